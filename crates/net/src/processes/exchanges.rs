//! Exchanges of one worker process: what it tells the other members, and how it adds what they tell.
//!
//! Long vectors are added in chunks: chunk j of every member goes to member j, which adds them in rank order, encodes the sum as its
//! parts were, and gives it to all. Short vectors and sparse ones go to all members as they are, and each adds in rank order. Either
//! way the bits are those of a [`Meeting`] that has all entries in one place. Members of one host read each other's memory
//! (`near`), all others get frames; an exchange may have both.

mod chunked;
mod pieces;

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use paceline_learn::Vector;
use paceline_learn::kernels::Pool;
use paceline_runtime::codec::{Codec, Encoded, Payload};
use paceline_runtime::exchange::ExchangeResult;
use paceline_runtime::view::View;
use paceline_runtime::wire::{Entry, Tail};
use paceline_runtime::{Meeting, Ticket, WorkerId};

use super::frame::Segment;
use super::message::{EntryHead, ExchangeName, Form, Load, PeerMessage};
use super::near::{Near, There, Until, dense_chunk};
use chunked::{Chunked, Values};
use pieces::{PIECE, piece_of, pieces};

/// What all members of a job know about its vectors.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    pub seed: u64,
    /// How many numbers of a replica are learned, and how many are buffers.
    pub params: usize,
    pub buffers: usize,
    pub codec: Codec,
}

impl Shape {
    pub fn size(&self) -> usize {
        self.params + self.buffers
    }

    /// Whether a worker adds vectors on its own thread, and does nothing long with them: with longer ones it has other things to do while
    /// they are added.
    pub fn is_short(&self) -> bool {
        4 * self.size() <= SHORT
    }

    /// Whether a payload of a peer is one that this job can have.
    pub fn fits(&self, payload: &Payload) -> bool {
        self.has_kind(payload) && payload.check(self.params, self.buffers).is_ok()
    }

    /// Whether a payload is encoded as this job's are.
    fn has_kind(&self, payload: &Payload) -> bool {
        match (&payload.learned, self.codec) {
            (Encoded::Dense(_), Codec::Dense) | (Encoded::Half(_), Codec::Half) => true,
            (Encoded::Quantized { bits, bucket, .. }, Codec::Qsgd { bits: b, bucket: u }) => {
                *bits == b && *bucket as usize == u
            }
            (Encoded::Sparse { .. }, Codec::TopK { .. }) => true,
            // Numbers are exchanged with an empty payload, whatever the codec.
            _ => payload.is_empty(),
        }
    }

    /// What a peer puts into a sum.
    fn sum_of(&self, tail: Tail, payload: Payload) -> Result<Entry, Violation> {
        match self.fits(&payload) {
            true => Ok(Entry::Sum { payload: Arc::new(payload), tail }),
            false => Err(Violation("a payload does not fit the job")),
        }
    }

    /// Whether sums are added in chunks.
    fn is_chunked(&self) -> bool {
        let bytes = match self.codec {
            Codec::Dense => 4 * self.size(),
            Codec::Half => 2 * self.params + 4 * self.buffers,
            Codec::Qsgd { bits, .. } => {
                self.params.saturating_mul(bits.into()) / 8 + 4 * self.buffers
            }
            // A sum of sparse vectors is less sparse: its chunks would be longer than all parts together.
            Codec::TopK { .. } => 0,
        };
        bytes > CHUNKED_FROM
    }
}

/// A peer does what no member of this version does. Its link is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Violation(pub &'static str);

/// What follows from something that was entered or received.
#[derive(Debug, Default)]
pub struct Effects {
    pub sends: Vec<(WorkerId, PeerMessage, Load)>,
    pub done: Vec<(Ticket, ExchangeResult)>,
    /// Peers whose parts turned out to be wrong.
    pub wrong: Vec<(WorkerId, Violation)>,
}

/// All exchanges of this process that have not ended.
pub struct Exchanges {
    me: WorkerId,
    shape: Shape,
    open: BTreeMap<ExchangeName, Open>,
    /// Nothing completes any more in views before this one.
    closed_before: u64,
    /// The memory that members of this host share; `None` if they use links.
    pub near: Option<Near>,
    /// Memory for sums.
    pub pool: Pool,
}

#[derive(Default)]
struct Open {
    /// Parts that came before this member entered: it knows the view only then.
    early: Vec<(WorkerId, Part)>,
    entered: Option<Entered>,
}

struct Entered {
    ticket: Ticket,
    view: Arc<View>,
    progress: Progress,
}

enum Progress {
    Whole(Meeting),
    Chunked(Chunked),
}

/// What a peer sends in an exchange.
enum Part {
    Whole(Entry),
    /// A sum's entry in the memory of a member of this host. It is read when this member takes part: nobody waits until those have read it who do
    /// not.
    WholeThere {
        tail: Tail,
        there: There,
    },
    Chunk {
        tail: Tail,
        length: u64,
        is_free: bool,
        values: Values,
    },
    Sum {
        in_slot: bool,
        values: Values,
    },
    /// More of a dense chunk, or of its sum.
    Piece {
        of_sum: bool,
        start: usize,
        values: Vector,
    },
}

/// How many bytes a short vector has at most.
const SHORT: usize = 1 << 20;
/// Shorter vectors go to everybody as a whole: one step instead of two.
const CHUNKED_FROM: usize = 16 << 10;
/// Members are never further apart than one exchange; a few views may follow each other quickly.
const EARLY_MAX: usize = 64;

const UNFIT: Violation = Violation("numbers that do not fit their form");

fn check_name(name: ExchangeName) -> Result<(), Violation> {
    if name.exchange > 0 { Ok(()) } else { Err(Violation("a sum while settling")) }
}

/// All other members with their ranks. Those behind this one come first: if all members began with the first one, it would be told everything at
/// once, and the last one nothing for a while.
fn peers_of(view: &View, me: WorkerId) -> impl Iterator<Item = (usize, WorkerId)> {
    let mine = view.rank(me).unwrap_or(0);
    let ranks = (mine..view.members.len()).chain(0..mine);
    ranks.map(|rank| (rank, view.members[rank])).filter(move |(_, who)| *who != me)
}

impl Exchanges {
    pub fn new(me: WorkerId, shape: Shape, near: Option<Near>) -> Exchanges {
        let (open, pool) = (BTreeMap::new(), Pool::default());
        Exchanges { me, shape, open, closed_before: 0, near, pool }
    }

    /// Forgets parts of exchanges that this process can never enter, now that somebody has come to this one: a newcomer of the same
    /// host reads what members post in views that it is no member of. Members of one view are at most one exchange apart, and none
    /// is two plans behind.
    fn forget_before(&mut self, name: ExchangeName) {
        let is_over = |other: &ExchangeName| match other.view == name.view {
            true => other.exchange + 2 <= name.exchange,
            false => other.view.number + 2 < name.view.number,
        };
        self.open.retain(|other, open| open.entered.is_some() || !is_over(other));
    }

    /// A member was lost: exchanges of views before this one can never end.
    pub fn close_before(&mut self, view: u64) {
        self.closed_before = self.closed_before.max(view);
        self.open.retain(|name, _| name.view.number >= self.closed_before);
    }

    /// How many exchanges have not ended.
    #[cfg(test)]
    pub fn count(&self) -> usize {
        self.open.len()
    }

    /// Whether this member has entered an exchange that has not ended.
    pub fn has_entered(&self) -> bool {
        self.open.values().any(|open| open.entered.is_some())
    }

    /// Whether this member has entered an exchange that has not ended, and some of it comes over links.
    pub fn are_under_way(&self) -> bool {
        let mut entered = self.open.values().filter_map(|open| open.entered.as_ref());
        entered.any(|entered| !self.is_near(&entered.view))
    }

    /// Whether all other members read this one's memory.
    pub fn is_near(&self, view: &View) -> bool {
        let reaches = |who: &WorkerId| self.near.as_ref().is_some_and(|near| near.reaches(*who));
        view.members.iter().all(|who| *who == self.me || reaches(who))
    }

    /// This member enters.
    pub fn enter(&mut self, ticket: Ticket, view: Arc<View>, number: u64, entry: Entry) -> Effects {
        let name = ExchangeName { view: view.name(), exchange: number };
        let mut effects = Effects::default();
        let Some(rank) = view.rank(self.me) else { return effects };
        if view.number < self.closed_before {
            // It can never end. The worker has not been told of the loss yet, but will be.
            return effects;
        }
        let n = view.members.len();
        if let Some(near) = &mut self.near {
            near.start(number);
        }
        let is_chunked = self.shape.is_chunked() && n > 1 && number > 0;
        let (progress, mine) = match entry {
            Entry::Sum { payload, tail } if is_chunked => {
                let (is_near, pool) = (self.is_near(&view), self.pool.clone());
                let mut chunked = Chunked::new(self.shape, (rank, n), number, is_near, pool);
                let is_free = self.near.as_ref().is_none_or(|near| near.is_free(number));
                let length = payload.len() as u64;
                let message = |form| {
                    let tail = tail.clone();
                    PeerMessage::Chunk { name, tail, form, length, is_free }
                };
                let is_dense = matches!(payload.learned, Encoded::Dense(_));
                let by_link = |j: usize| {
                    if !is_dense {
                        let chunk = payload.chunk(n, j);
                        return vec![(message(Form::of(&chunk)), Load::Payload(Arc::new(chunk)))];
                    }
                    let range = match n {
                        // The peer adds all of it: the bytes are as many as with chunks, and one step is enough.
                        2 => 0..payload.len(),
                        _ => dense_chunk(payload.len(), n, j),
                    };
                    let piece = |piece: Range<usize>| {
                        let message = match piece.start - range.start {
                            0 => message(Form::Dense),
                            start => {
                                PeerMessage::Piece { name, start: start as u64, of_sum: false }
                            }
                        };
                        (message, Load::Chunk(payload.clone(), piece))
                    };
                    pieces(range.clone(), piece_of(payload.len(), n)).map(piece).collect()
                };
                let whole = (&payload, Until::Completed(number));
                let is_posted =
                    self.tell(&view, &message(Form::of(&payload)), whole, by_link, &mut effects);
                chunked.is_near &= is_posted;
                let values = Values::Own(payload);
                (Progress::Chunked(chunked), Part::Chunk { tail, length, is_free, values })
            }
            Entry::Sum { payload, tail } => {
                let form = Form::of(&payload);
                let head = EntryHead::Sum { tail: tail.clone(), form };
                let message = PeerMessage::Entry { name, entry: head };
                let by_link = |_| vec![(message.clone(), Load::Payload(payload.clone()))];
                let all = (&payload, Until::Entered(number + 1));
                self.tell(&view, &message, all, by_link, &mut effects);
                (Progress::Whole(Meeting::new(n)), Part::Whole(Entry::Sum { payload, tail }))
            }
            Entry::Gather { standing } => {
                let head = EntryHead::Gather { standing: standing.clone() };
                let message = PeerMessage::Entry { name, entry: head };
                let peers = peers_of(&view, self.me);
                effects.sends.extend(peers.map(|(_, who)| (who, message.clone(), Load::None)));
                (Progress::Whole(Meeting::new(n)), Part::Whole(Entry::Gather { standing }))
            }
        };
        let open = self.open.entry(name).or_default();
        open.entered = Some(Entered { ticket, view, progress });
        let early = std::mem::take(&mut open.early);
        for (from, part) in std::iter::once((self.me, mine)).chain(early) {
            if let Err(violation) = self.take(name, from, part, &mut effects) {
                effects.wrong.push((from, violation));
            }
        }
        effects
    }

    /// Tells all peers: those of this host by one notice, if there is room, all others by frames. Returns whether there was a notice.
    fn tell(
        &mut self,
        view: &View,
        message: &PeerMessage,
        (payload, until): (&Arc<Payload>, Until),
        by_link: impl Fn(usize) -> Vec<(PeerMessage, Load)>,
        effects: &mut Effects,
    ) -> bool {
        let mut is_posted = false;
        if let Some(near) = &mut self.near
            && peers_of(view, self.me).any(|(_, who)| near.reaches(who))
            && let Some(places) = near.place(payload, until)
        {
            is_posted = near.post(message, &places);
        }
        let has_read = |who| is_posted && self.near.as_ref().is_some_and(|near| near.reaches(who));
        let far = peers_of(view, self.me).filter(|(_, who)| !has_read(*who));
        for (j, who) in far {
            effects
                .sends
                .extend(by_link(j).into_iter().map(|(message, load)| (who, message, load)));
        }
        is_posted
    }

    /// A peer's message of an exchange has arrived.
    pub fn receive(
        &mut self,
        from: WorkerId,
        message: PeerMessage,
        segments: Vec<Segment>,
    ) -> Result<Effects, Violation> {
        let (name, part) = self.part(message, segments)?;
        self.receive_part(from, name, part)
    }

    /// Memory into which numbers of this message can be read that are about to arrive; `None` if it does not matter where they are.
    pub fn room(&mut self, from: WorkerId, message: &PeerMessage, len: usize) -> Option<Vector> {
        let (name, start) = match message {
            PeerMessage::Sum { name, form: Form::Dense, .. } => (name, 0),
            PeerMessage::Piece { name, start, of_sum: true } => {
                (name, usize::try_from(*start).ok()?)
            }
            _ => return None,
        };
        let entered = self.open.get_mut(name)?.entered.as_mut()?;
        let Progress::Chunked(chunked) = &mut entered.progress else { return None };
        chunked.room(entered.view.rank(from)?, start, len)
    }

    /// Takes everything that members of this host have told since.
    pub fn look(&mut self) -> Effects {
        let mut effects = Effects::default();
        while let Some((from, notice)) = self.near.as_mut().and_then(Near::next) {
            let received = match notice {
                Ok((message, there)) => self
                    .part_there(message, there)
                    .and_then(|(name, part)| self.receive_part(from, name, part)),
                Err(()) => Err(Violation("a notice that names memory outside of the segment")),
            };
            match received {
                Ok(more) => effects.extend(more),
                Err(violation) => effects.wrong.push((from, violation)),
            }
        }
        effects
    }

    fn receive_part(
        &mut self,
        from: WorkerId,
        name: ExchangeName,
        part: Part,
    ) -> Result<Effects, Violation> {
        let mut effects = Effects::default();
        if name.view.number < self.closed_before {
            return Ok(effects);
        }
        self.forget_before(name);
        let has_room = self.open.len() < EARLY_MAX || self.open.contains_key(&name);
        let open = match has_room {
            true => self.open.entry(name).or_default(),
            false => return Err(Violation("it is far ahead of all exchanges")),
        };
        if open.entered.is_none() {
            // Chunks and sums come in pieces.
            let parts_max = 2 + 2 * self.shape.size() / PIECE;
            if open.early.iter().filter(|(peer, _)| *peer == from).count() >= parts_max {
                return Err(Violation("it entered an exchange twice"));
            }
            open.early.push((from, part));
            return Ok(effects);
        }
        self.take(name, from, part, &mut effects)?;
        Ok(effects)
    }

    /// Checks what a peer sends.
    fn part(
        &self,
        message: PeerMessage,
        segments: Vec<Segment>,
    ) -> Result<(ExchangeName, Part), Violation> {
        let fill = |form: Form, segments| form.fill(segments).ok_or(UNFIT);
        Ok(match message {
            PeerMessage::Entry { name, entry: EntryHead::Gather { standing } } => {
                if name.exchange != 0 || !segments.is_empty() {
                    return Err(Violation("a standing outside of settling"));
                }
                (name, Part::Whole(Entry::Gather { standing }))
            }
            PeerMessage::Entry { name, entry: EntryHead::Sum { tail, form } } => {
                check_name(name)?;
                (name, Part::Whole(self.shape.sum_of(tail, fill(form, segments)?)?))
            }
            PeerMessage::Chunk { name, tail, form, length, is_free } => {
                self.check_length(length)?;
                let values = Values::Here(Arc::new(fill(form, segments)?));
                (name, Part::Chunk { tail, length, is_free, values })
            }
            PeerMessage::Sum { name, form, .. } => {
                let values = Values::Here(Arc::new(fill(form, segments)?));
                (name, Part::Sum { in_slot: false, values })
            }
            PeerMessage::Piece { name, start, of_sum } => {
                let Encoded::Dense(values) = fill(Form::Dense, segments)?.learned else {
                    return Err(Violation("a piece that is not dense"));
                };
                let start = usize::try_from(start).unwrap_or(usize::MAX);
                (name, Part::Piece { of_sum, start, values })
            }
            _ => return Err(Violation("not a message of an exchange")),
        })
    }

    /// Checks what a peer of this host tells; its numbers are read later.
    fn part_there(
        &self,
        message: PeerMessage,
        there: There,
    ) -> Result<(ExchangeName, Part), Violation> {
        Ok(match message {
            PeerMessage::Entry { name, entry: EntryHead::Sum { tail, .. } } => {
                check_name(name)?;
                (name, Part::WholeThere { tail, there })
            }
            PeerMessage::Chunk { name, tail, length, is_free, .. } => {
                self.check_length(length)?;
                (name, Part::Chunk { tail, length, is_free, values: Values::There(there) })
            }
            PeerMessage::Sum { name, in_slot, .. } => {
                (name, Part::Sum { in_slot, values: Values::There(there) })
            }
            _ => return Err(Violation("not a message of an exchange")),
        })
    }

    fn check_length(&self, length: u64) -> Result<(), Violation> {
        let is_right = length == 0 || length == self.shape.size() as u64;
        if is_right { Ok(()) } else { Err(Violation("a vector of another length")) }
    }

    fn take(
        &mut self,
        name: ExchangeName,
        from: WorkerId,
        part: Part,
        effects: &mut Effects,
    ) -> Result<(), Violation> {
        let Some(open) = self.open.get_mut(&name) else { return Ok(()) };
        let Some(entered) = &mut open.entered else { return Ok(()) };
        let rank = entered.view.rank(from).ok_or(Violation("it is not a member of the view"))?;
        let is_complete = match &mut entered.progress {
            Progress::Whole(meeting) => {
                let entry = match part {
                    Part::Whole(entry) => entry,
                    Part::WholeThere { tail, there } => {
                        self.shape.sum_of(tail, there.payload().ok_or(UNFIT)?)?
                    }
                    _ => return Err(Violation("a chunk in an exchange without chunks")),
                };
                if meeting.has_entered(rank) {
                    return Err(Violation("it entered an exchange twice"));
                }
                meeting.enter(rank, entry);
                meeting.is_complete()
            }
            Progress::Chunked(chunked) => {
                chunked.take(rank, part)?;
                chunked.advance(name, &entered.view, self.near.as_mut(), effects);
                chunked.is_complete()
            }
        };
        if !is_complete {
            return Ok(());
        }
        let entered = self.open.remove(&name).and_then(|open| open.entered);
        let Some(Entered { ticket, view, progress, .. }) = entered else { return Ok(()) };
        let result = match progress {
            Progress::Whole(meeting) => meeting.end(self.shape.seed, view, name.exchange),
            Progress::Chunked(chunked) => match chunked.end(view.clone(), self.near.as_mut()) {
                Ok(result) => result,
                // Not always who sent something last.
                Err((rank, violation)) => {
                    effects.wrong.push((view.members[rank], violation));
                    return Ok(());
                }
            },
        };
        if let Some(near) = &mut self.near {
            near.release(Until::Completed(name.exchange));
        }
        effects.done.push((ticket, result));
        Ok(())
    }
}

impl Effects {
    pub fn extend(&mut self, more: Effects) {
        if self.is_empty() {
            *self = more;
            return;
        }
        self.sends.extend(more.sends);
        self.done.extend(more.done);
        self.wrong.extend(more.wrong);
    }

    pub fn is_empty(&self) -> bool {
        self.sends.is_empty() && self.done.is_empty() && self.wrong.is_empty()
    }
}

#[cfg(test)]
mod tests;
