//! Members of one host, which read each other's memory: where numbers lie, who reads whose notices, and what may be written again.
//!
//! Each process writes only to its own segment (`learn::kernels::shared`). A notice on its board names an exchange and the memory that
//! holds the numbers. Memory that a notice names is not written again before every reader has said, by entering a later exchange,
//! that it needs it no more. A process that was put out still writes only to its own segment, which no later view reads.

pub mod board;
#[cfg(target_os = "linux")]
pub mod door;
#[cfg(not(target_os = "linux"))]
#[path = "door_elsewhere.rs"]
pub mod door;

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use paceline_learn::Vector;
use paceline_learn::kernels::shared::{
    Claim, Gallery, OwnSegment, PAGE, PeerSegment, Piece, Segment as Memory,
};
use paceline_runtime::WorkerId;
use paceline_runtime::codec::{Payload, chunk};
use paceline_runtime::view::ViewName;

use super::frame::{Segment, Slice, bytes_of};
use super::message::{Form, PeerMessage, payload_slices};
use board::{CONTROL, CURSORS, CURSORS_MAX, Place, UNREAD_MAX, WANTS_BELL};
use door::Bell;

/// Blocks for gradients and other inputs: one in the exchange under way, one being computed, one being added to.
const INPUTS: usize = 4;
/// Blocks for sums that are read where they lie. A worker keeps its last result while the next sum is under way; the third is for a
/// result that somebody still uses.
const SLOTS: usize = 3;
/// The block for sums that everybody copies.
const SCRATCH: usize = INPUTS + SLOTS;

/// Numbers of a page.
const PAGE_NUMBERS: usize = PAGE / size_of::<f32>();

/// Where chunk j of n of a dense vector lies. Chunks begin at pages, so that sums can be mapped side by side.
pub fn dense_chunk(length: usize, n: usize, j: usize) -> std::ops::Range<usize> {
    let pages = chunk(length.div_ceil(PAGE_NUMBERS), n, j);
    (pages.start * PAGE_NUMBERS).min(length)..(pages.end * PAGE_NUMBERS).min(length)
}

/// The memory of this process that others read, and that of others.
pub struct Near {
    own: Arc<OwnSegment>,
    peers: BTreeMap<WorkerId, Peer>,
    /// The number of the last notice; the first is 1.
    posted: u64,
    cursors_free: Vec<usize>,
    kept: Vec<Kept>,
    galleries: BTreeMap<usize, (ViewName, Arc<Gallery>)>,
}

struct Peer {
    segment: Arc<PeerSegment>,
    bell: Bell,
    /// The notice of its board that is read next; `None` before it has said with which to begin.
    next: Option<u64>,
    /// Which word of our segment says how far we have read its board.
    cursor: usize,
    /// The notice of our board that it read next when we last looked, and the word of its segment that says so.
    reads: Option<(u64, usize)>,
}

impl Peer {
    /// Whether there is room for this notice, and the place behind it can be cleared: what this peer has not read is not overwritten. Its word is
    /// read only if it has to be: the peer has written it since, so that this takes as long as it takes a core to get a cache line.
    fn has_room(&mut self, number: u64) -> bool {
        let Some((next, cursor)) = &mut self.reads else { return true };
        if number >= next.saturating_add(UNREAD_MAX) {
            *next = self.segment.word(*cursor).max(*next);
        }
        number < next.saturating_add(UNREAD_MAX)
    }
}

/// Memory that must not be written before members have reached a point in the sequence of exchanges.
struct Kept {
    until: Until,
    payload: Option<Arc<Payload>>,
    places: Vec<Place>,
    _claim: Option<Claim>,
}

/// A point in the sequence of exchanges.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Until {
    Entered(u64),
    Completed(u64),
}

impl Until {
    fn order(self) -> (u64, bool) {
        match self {
            Until::Entered(exchange) => (exchange, false),
            Until::Completed(exchange) => (exchange, true),
        }
    }
}

/// Numbers in a peer's segment, all of which lie inside.
#[derive(Clone)]
pub struct There {
    segment: Arc<PeerSegment>,
    form: Form,
    places: Vec<Place>,
}

impl There {
    /// The payload, copied.
    pub fn payload(&self) -> Option<Payload> {
        let copied = |place: &Place| {
            let words = if place.is_floats { place.len } else { place.len.div_ceil(4) };
            let numbers = self.segment.slice(place.start, words)?;
            Some(match place.is_floats {
                true => Segment::Floats(Vector::from(numbers)),
                false => {
                    Segment::Bytes(bytes_of(Slice::Floats(numbers)).get(..place.len)?.to_vec())
                }
            })
        };
        self.form.fill(self.places.iter().map(copied).collect::<Option<_>>()?)
    }

    /// How many numbers a dense payload has; `None` if it is not dense.
    pub fn dense_len(&self) -> Option<usize> {
        let is_dense = self.form == Form::Dense && self.places.iter().all(|it| it.is_floats);
        (is_dense && self.places.get(1).is_none_or(|it| it.len == 0))
            .then(|| self.places.first().map_or(0, |it| it.len))
    }

    /// Numbers of a dense payload, read where they lie.
    pub fn dense(&self, range: std::ops::Range<usize>) -> Option<Vector> {
        let place = self.places.first().filter(|it| it.is_floats && range.end <= it.len)?;
        let start = place.start + range.start * size_of::<f32>();
        self.segment.numbers(start, range.len()).map(Vector::from)
    }

    fn is_at(&self, start: usize) -> bool {
        self.places.first().is_some_and(|place| place.start == start)
    }
}

impl Near {
    /// For replicas of this many numbers.
    pub fn new(size: usize) -> io::Result<Near> {
        let (input, half) = (4 * size, 4 * size.div_ceil(2) + PAGE);
        let mut blocks = vec![input; INPUTS];
        blocks.extend([half; SLOTS + 1]);
        let own = OwnSegment::new(CONTROL, &blocks)?;
        own.words()[WANTS_BELL].store(1, Ordering::SeqCst);
        let cursors_free = (0..CURSORS_MAX).map(|i| CURSORS + i).rev().collect();
        let (peers, kept, galleries) = (BTreeMap::new(), vec![], BTreeMap::new());
        Ok(Near { own, peers, posted: 0, cursors_free, kept, galleries })
    }

    pub fn segment(&self) -> &Arc<OwnSegment> {
        &self.own
    }

    /// A peer has passed its segment. Returns the word that will say how far we have read its board; `None` if there are too many peers.
    pub fn add(&mut self, who: WorkerId, segment: Arc<PeerSegment>, bell: Bell) -> Option<u64> {
        if self.peers.contains_key(&who) {
            return None;
        }
        let cursor = self.cursors_free.pop()?;
        self.own.words()[cursor].store(0, Ordering::Relaxed);
        self.peers.insert(who, Peer { segment, bell, next: None, cursor, reads: None });
        Some(cursor as u64)
    }

    /// A peer can read our board, and says in this word how far it has. Returns the notice with which it begins; `None` if we have not
    /// mapped its segment yet.
    pub fn admit(&mut self, who: WorkerId, cursor: u64) -> Result<Option<u64>, ()> {
        let is_cursor = (CURSORS as u64..(CURSORS + CURSORS_MAX) as u64).contains(&cursor);
        let from = self.posted + 1;
        match self.peers.get_mut(&who) {
            _ if !is_cursor => Err(()),
            None => Ok(None),
            Some(peer) if peer.reads.is_some() => Err(()),
            Some(peer) => {
                peer.reads = Some((from, cursor as usize));
                Ok(Some(from))
            }
        }
    }

    /// A peer says with which notice of its board we begin.
    pub fn begin(&mut self, who: WorkerId, from: u64) -> Option<()> {
        let is_number = from > 0 && from < u64::MAX >> 1;
        let peer = self.peers.get_mut(&who).filter(|peer| peer.next.is_none() && is_number)?;
        peer.next = Some(from);
        Some(())
    }

    #[cfg(test)]
    pub fn posted(&self) -> u64 {
        self.posted
    }

    #[cfg(test)]
    pub fn is_next_clear(&self) -> bool {
        self.own.words()[board::slot(self.posted + 1)].load(Ordering::Relaxed) == 0
    }

    #[cfg(test)]
    pub fn cursor_of(&self, who: WorkerId) -> Option<u64> {
        self.peers.get(&who).map(|peer| peer.cursor as u64)
    }

    pub fn forget(&mut self, who: WorkerId) {
        if let Some(peer) = self.peers.remove(&who) {
            self.cursors_free.push(peer.cursor);
        }
    }

    /// Whether a peer reads our board.
    pub fn reaches(&self, who: WorkerId) -> bool {
        self.peers.get(&who).is_some_and(|peer| peer.reads.is_some())
    }

    /// Whether nothing of this process still uses the block in which the result of this exchange is to lie.
    pub fn is_free(&self, exchange: u64) -> bool {
        !self.own.is_claimed(slot(exchange))
    }

    /// A block for this member's chunk of the sum: where it is read in place, or else where it is copied from.
    pub fn sum_block(&mut self, exchange: u64, in_slot: bool) -> Option<Claim> {
        self.own.claim(if in_slot { slot(exchange) } else { SCRATCH })
    }

    /// Keeps a block until everybody has read it.
    pub fn keep(&mut self, claim: Claim, until: Until) {
        let (payload, places) = (None, vec![]);
        self.kept.push(Kept { until, payload, places, _claim: Some(claim) });
    }

    /// What was kept until the end of the exchange before this one is kept until others have entered this one.
    pub fn keep_until_entered(&mut self, exchange: u64) {
        let ended = Until::Completed(exchange - 1);
        let kept = self.kept.iter_mut().filter(|kept| kept.until == ended);
        kept.for_each(|kept| kept.until = Until::Entered(exchange));
    }

    /// Members have come this far: what was kept until then is not needed any more.
    pub fn release(&mut self, at: Until) {
        self.kept.retain(|kept| kept.until.order() > at.order());
    }

    /// An exchange is entered. What was kept for later ones is of a job that has started over since.
    pub fn start(&mut self, exchange: u64) {
        self.kept.retain(|kept| kept.until.order() <= (exchange + 1, true));
    }

    /// Where the numbers of a payload lie for others to read: where they are if that is in the segment, else in a copy. `None` if there
    /// is no room.
    pub fn place(&mut self, payload: &Arc<Payload>, until: Until) -> Option<Vec<Place>> {
        let is_same = |kept: &&mut Kept| {
            kept.payload.as_ref().is_some_and(|before| Arc::ptr_eq(before, payload))
        };
        // It was entered in a view that has ended.
        if let Some(kept) = self.kept.iter_mut().find(is_same) {
            kept.until = until;
            return Some(kept.places.clone());
        }
        let slices = payload_slices(payload);
        let in_segment = slices.iter().map(|slice| match slice {
            Slice::Floats([]) => Some(Place { is_floats: true, start: 0, len: 0 }),
            Slice::Floats(floats) => {
                let start = self.own.place_of(floats)?;
                Some(Place { is_floats: true, start, len: floats.len() })
            }
            Slice::Bytes(_) => None,
        });
        let (places, claim) = match in_segment.collect::<Option<Vec<Place>>>() {
            Some(places) => (places, None),
            None => {
                let (places, claim) = self.copy(&slices)?;
                (places, Some(claim))
            }
        };
        let kept = Kept { until, payload: Some(payload.clone()), places, _claim: claim };
        let places = kept.places.clone();
        self.kept.push(kept);
        Some(places)
    }

    fn copy(&mut self, slices: &[Slice<'_>]) -> Option<(Vec<Place>, Claim)> {
        let words = |slice: &Slice<'_>| bytes_of(*slice).len().div_ceil(size_of::<f32>());
        let total: usize = slices.iter().map(words).sum();
        let mut claim = (0..INPUTS).rev().find_map(|block| self.own.claim(block))?;
        let (mut places, mut at) = (Vec::with_capacity(slices.len()), 0);
        let start = claim.place();
        if claim.len() < total {
            return None;
        }
        let into = claim.numbers(total);
        for slice in slices {
            let (bytes, to) = (bytes_of(*slice), &mut into[at..at + words(slice)]);
            bytemuck::cast_slice_mut::<f32, u8>(to)[..bytes.len()].copy_from_slice(bytes);
            let (is_floats, len) = match slice {
                Slice::Floats(floats) => (true, floats.len()),
                Slice::Bytes(bytes) => (false, bytes.len()),
            };
            places.push(Place { is_floats, start: start + 4 * at, len });
            at += words(slice);
        }
        Some((places, claim))
    }

    /// Writes a notice for all readers, and wakes those that want to be. Returns whether there was room: a notice that a reader has not read
    /// is not overwritten.
    pub fn post(&mut self, message: &PeerMessage, places: &[Place]) -> bool {
        let (number, mut has_room) = (self.posted + 1, true);
        for peer in self.peers.values_mut() {
            if !peer.has_room(number) {
                // It did not want to be woken, because it would look soon anyway. It may have left the view instead.
                peer.bell.ring();
                has_room = false;
            }
        }
        if !has_room || !board::write(self.own.words(), number, message, places) {
            return false;
        }
        self.posted = number;
        // Before the words below are read; `Near::wants_bell` has the other half.
        fence(Ordering::SeqCst);
        for peer in self.peers.values().filter(|peer| peer.reads.is_some()) {
            if peer.segment.word(WANTS_BELL) != 0 {
                peer.bell.ring();
            }
        }
        board::clear(self.own.words(), number + 1);
        true
    }

    /// The next notice of any peer. `Err`: the peer wrote what no member of this version writes.
    #[allow(clippy::type_complexity)]
    pub fn next(&mut self) -> Option<(WorkerId, Result<(PeerMessage, There), ()>)> {
        for (who, peer) in &mut self.peers {
            let Some(number) = peer.next else { continue };
            let Some(notice) = board::read(&peer.segment, number) else { continue };
            peer.next = Some(number + 1);
            self.own.words()[peer.cursor].store(number + 1, Ordering::Release);
            let there = notice.and_then(|(message, places)| {
                let form = match &message {
                    PeerMessage::Entry {
                        entry: super::message::EntryHead::Sum { form, .. },
                        ..
                    }
                    | PeerMessage::Chunk { form, .. }
                    | PeerMessage::Sum { form, .. } => *form,
                    _ => return None,
                };
                let lies_inside = |place: &Place| {
                    let words = if place.is_floats { place.len } else { place.len.div_ceil(4) };
                    peer.segment.slice(place.start, words).is_some()
                };
                let is_inside = places.iter().all(lies_inside);
                let segment = peer.segment.clone();
                is_inside.then_some((message, There { segment, form, places }))
            });
            return Some((*who, there.ok_or(())));
        }
        None
    }

    /// Says whether peers are to wake this process when they post a notice. Who says yes looks once more for notices after it: a peer that
    /// posted before either sees the yes, or its notice is seen by that look.
    pub fn wants_bell(&self, wants: bool) {
        let word = &self.own.words()[WANTS_BELL];
        // Peers read it with every notice: what does not change stays in their caches.
        if word.load(Ordering::Relaxed) != u64::from(wants) {
            word.store(u64::from(wants), Ordering::SeqCst);
            fence(Ordering::SeqCst);
        }
    }

    /// All chunks of a sum as one vector, each read where its owner has added it. It holds this member's own block. `Err` with that
    /// block if the chunks cannot be mapped side by side.
    pub fn result(
        &mut self,
        (view, exchange, length): (ViewName, u64, usize),
        (rank, mine): (usize, Claim),
        theirs: &[(WorkerId, Option<&There>)],
    ) -> Result<Vector, Claim> {
        let k = slot(exchange);
        // All segments of a job are laid out alike.
        let place = mine.place();
        if !theirs.iter().all(|(_, there)| there.is_none_or(|there| there.is_at(place))) {
            return Err(mine);
        }
        let known = self.galleries.get(&k).filter(|(of, _)| *of == view).map(|(_, it)| it.clone());
        let Some(gallery) = known.or_else(|| self.map_side_by_side(length, (rank, place), theirs))
        else {
            return Err(mine);
        };
        self.galleries.insert(k, (view, gallery.clone()));
        gallery.numbers(length, mine).map(Vector::from)
    }

    fn map_side_by_side(
        &self,
        length: usize,
        (rank, place): (usize, usize),
        theirs: &[(WorkerId, Option<&There>)],
    ) -> Option<Arc<Gallery>> {
        let piece = |(j, (who, _)): (usize, &(WorkerId, Option<&There>))| {
            let numbers = dense_chunk(length, theirs.len(), j).len();
            let of = match j == rank {
                true => Memory::Own(&self.own),
                false => Memory::Peer(&self.peers.get(who)?.segment),
            };
            let bytes = (numbers * size_of::<f32>()).next_multiple_of(PAGE);
            Some(Piece { of, place, bytes })
        };
        let pieces: Option<Vec<Piece<'_>>> = theirs.iter().enumerate().map(piece).collect();
        Gallery::new(&pieces?).ok()
    }
}

/// Gives memory for gradients in a segment.
pub fn gradient_memory(
    own: &Arc<OwnSegment>,
    size: usize,
) -> Arc<dyn Fn(usize) -> Option<Vector> + Send + Sync> {
    let own = own.clone();
    Arc::new(move |len| {
        // The last block is left for inputs that were made elsewhere.
        let claim = (len == size).then(|| (0..INPUTS - 1).find_map(|block| own.claim(block)));
        claim.flatten().map(|claim| Vector::from(claim.into_lent(len)))
    })
}

fn slot(exchange: u64) -> usize {
    INPUTS + (exchange % SLOTS as u64) as usize
}
