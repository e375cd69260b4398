//! One sum that members add in chunks: who has entered, what has come of whose chunk, and when all of it is here. Encoded chunks are added
//! here, dense ones in `dense.rs`.

mod dense;

use std::ops::Range;
use std::sync::Arc;

use paceline_learn::Vector;
use paceline_learn::kernels::Pool;
use paceline_learn::kernels::shared::Claim;
use paceline_runtime::codec::{Adding, Codec, Encoded, Payload, chunk, dice_of};
use paceline_runtime::exchange::ExchangeResult;
use paceline_runtime::view::View;
use paceline_runtime::wire::Tail;
use paceline_runtime::{Sum, WorkerId};

use super::super::message::{ExchangeName, Form, Load, PeerMessage};
use super::super::near::{Near, There, Until, dense_chunk};
use super::pieces::{Pieces, Total, WRONG_CHUNK, piece_of};
use super::{Effects, Part, Shape, Violation, peers_of};
use dense::dense_of;

/// Numbers of a member.
pub enum Values {
    /// The whole payload of this member.
    Own(Arc<Payload>),
    /// Arrived in a frame: the chunk, or its sum.
    Here(Arc<Payload>),
    /// In the memory of a member of this host: the whole payload, or the sum of a chunk.
    There(There),
}

pub struct Chunked {
    shape: Shape,
    rank: usize,
    exchange: u64,
    /// Whether all members read each other's memory, as far as this one knows.
    pub is_near: bool,
    pool: Pool,
    /// By rank: a member's tail, the length of its vector, and whether it needs no older sum that lies where this one is to lie.
    entries: Vec<Option<(Tail, u64, bool)>>,
    parts: Parts,
    /// How many dense numbers were added, piece by piece.
    added: usize,
    /// By rank: the sum of that member's chunk.
    sums: Vec<Option<ChunkSum>>,
    /// The whole sum, as far as its pieces have arrived or were added here.
    total: Option<Total>,
    /// The sum of two members over links, as far as it was added.
    pair: Option<Vector>,
    /// The peers that read this member's dense sums in shared memory, and those that get them over links. They are chosen once for each exchange.
    ways: Option<(Vec<WorkerId>, Vec<WorkerId>)>,
}

/// This member's chunk of what all members add.
enum Parts {
    /// Decoded and added while they arrive.
    Encoded(Adding),
    /// By rank. They are read where they lie and added in one pass.
    Dense(Vec<Option<Held>>),
    Added,
}

enum Held {
    Whole(Arc<Payload>),
    /// From the number `first` on.
    Chunk {
        first: usize,
        numbers: Vector,
    },
    Pieces(Pieces),
}

enum ChunkSum {
    /// In a block of this process, where others read it.
    Own {
        claim: Claim,
        in_slot: bool,
    },
    /// Encoded.
    Here(Arc<Payload>),
    There {
        there: There,
        in_slot: bool,
    },
    /// This count of its numbers is already in `total`.
    Placed(usize),
}

const WRONG_SUM: Violation = Violation("a sum of another length");

impl Chunked {
    /// `is_near`: all members read each other's memory.
    pub fn new(
        shape: Shape,
        (rank, n): (usize, usize),
        exchange: u64,
        is_near: bool,
        pool: Pool,
    ) -> Chunked {
        let parts = match shape.codec {
            Codec::Dense => Parts::Dense((0..n).map(|_| None).collect()),
            _ => Parts::Encoded(Adding::new(n)),
        };
        let sums = (0..n).map(|_| None).collect();
        Chunked {
            shape,
            rank,
            exchange,
            is_near,
            pool,
            entries: vec![None; n],
            parts,
            added: 0,
            sums,
            total: None,
            pair: None,
            ways: None,
        }
    }

    fn is_dense(&self) -> bool {
        self.shape.codec == Codec::Dense
    }

    /// Whether dense vectors of two members are added.
    fn is_pair(&self) -> bool {
        self.is_dense() && self.members() == 2
    }

    fn members(&self) -> usize {
        self.entries.len()
    }

    fn piece(&self) -> usize {
        piece_of(self.shape.size(), self.members())
    }

    /// Which numbers of dense vectors this member adds.
    fn own_range(&self) -> Range<usize> {
        dense_chunk(self.shape.size(), self.members(), self.rank)
    }

    /// Which dense numbers this member adds if they come over links: two members give each other everything, and need no second step.
    fn added_range(&self) -> Range<usize> {
        if self.is_pair() { 0..self.shape.size() } else { self.own_range() }
    }

    pub fn take(&mut self, from: usize, part: Part) -> Result<(), Violation> {
        match part {
            Part::Whole(_) | Part::WholeThere { .. } => {
                Err(Violation("a whole entry in an exchange of chunks"))
            }
            Part::Sum { values: Values::Here(payload), .. } if self.is_dense() => {
                if self.sums[from].is_some() {
                    return Err(Violation("it sent a sum twice"));
                }
                self.place(from, 0, dense_of(payload).ok_or(WRONG_SUM)?)
            }
            Part::Sum { in_slot, values } => {
                let sum = self.check_sum(from, in_slot, values)?;
                if self.sums[from].replace(sum).is_some() {
                    return Err(Violation("it sent a sum twice"));
                }
                Ok(())
            }
            Part::Piece { of_sum: true, start, values } => self.place(from, start, values),
            Part::Piece { of_sum: false, start, values } => {
                let lengths = (self.added_range().len(), self.piece());
                match &mut self.parts {
                    Parts::Dense(parts) => match &mut parts[from] {
                        Some(Held::Pieces(pieces)) => pieces.push(start, values, lengths),
                        _ => Err(WRONG_CHUNK),
                    },
                    _ => Err(WRONG_CHUNK),
                }
            }
            Part::Chunk { tail, length, is_free, values } => {
                if self.entries[from].is_some() {
                    return Err(Violation("it entered an exchange twice"));
                }
                // What comes in pieces is not added where all can read it.
                self.is_near &= !matches!(values, Values::Here(_));
                if matches!(self.parts, Parts::Dense(_)) {
                    let part = self.held(length as usize, values)?;
                    if let Parts::Dense(parts) = &mut self.parts {
                        parts[from] = Some(part);
                    }
                } else {
                    let part = self.copied(length as usize, values)?;
                    if let Parts::Encoded(adding) = &mut self.parts {
                        adding.enter(from, part);
                    }
                }
                self.entries[from] = Some((tail, length, is_free));
                Ok(())
            }
        }
    }

    /// This member's chunk of an encoded part, in memory of its own: what lies in the memory of others may change before a sum of it has been
    /// sent to everybody.
    fn copied(&self, length: usize, values: Values) -> Result<Arc<Payload>, Violation> {
        let (n, j) = (self.members(), self.rank);
        let part = match values {
            Values::Here(part) => part,
            Values::Own(payload) if payload.is_empty() => payload,
            Values::Own(payload) => Arc::new(payload.chunk(n, j)),
            Values::There(there) => {
                let whole = there.payload().filter(|it| self.shape.fits(it) && it.len() == length);
                let whole = whole.ok_or(WRONG_CHUNK)?;
                if whole.is_empty() { Arc::new(whole) } else { Arc::new(whole.chunk(n, j)) }
            }
        };
        let (params, buffers) = match length {
            0 => (0, 0),
            _ => part.chunk_lengths((self.shape.params, self.shape.buffers), n, j),
        };
        let is_right = self.shape.has_kind(&part)
            && part.check(params, buffers).is_ok()
            && part.len() == params + buffers;
        if is_right { Ok(part) } else { Err(WRONG_CHUNK) }
    }

    /// How many learned numbers, and how many buffers, the sum of a member's chunk has.
    fn sum_lengths(&self, of: usize) -> (usize, usize) {
        let (shape, n) = (self.shape, self.members());
        match self.is_dense() {
            true => (dense_chunk(shape.size(), n, of).len(), 0),
            false => (chunk(shape.params, n, of).len(), chunk(shape.buffers, n, of).len()),
        }
    }

    /// Checks the sum of a chunk that its owner sends.
    fn check_sum(&self, from: usize, in_slot: bool, values: Values) -> Result<ChunkSum, Violation> {
        let lengths = self.sum_lengths(from);
        let payload = match values {
            Values::There(there) if self.is_dense() => {
                // Nor may some of it be on its way over the link, too: it has one place.
                let range = dense_chunk(self.shape.size(), self.members(), from);
                let is_alone = self.total.as_ref().is_none_or(|total| total.is_free(range));
                let is_right = there.dense_len() == Some(lengths.0) && is_alone;
                return if is_right {
                    Ok(ChunkSum::There { there, in_slot })
                } else {
                    Err(WRONG_SUM)
                };
            }
            Values::There(there) => Arc::new(there.payload().ok_or(WRONG_SUM)?),
            Values::Here(payload) | Values::Own(payload) => payload,
        };
        // A sum over one part is not encoded again.
        let is_plain = matches!(payload.learned, Encoded::Dense(_));
        let is_right = (payload.learned.len(), payload.buffers.len()) == lengths
            && (is_plain
                || self.shape.has_kind(&payload) && payload.check(lengths.0, lengths.1).is_ok());
        if is_right { Ok(ChunkSum::Here(payload)) } else { Err(WRONG_SUM) }
    }

    /// Adds what can be added, once all have entered, and tells all.
    pub fn advance(
        &mut self,
        name: ExchangeName,
        view: &View,
        mut near: Option<&mut Near>,
        effects: &mut Effects,
    ) {
        if matches!(self.parts, Parts::Added) || !self.entries.iter().all(Option::is_some) {
            return;
        }
        if let Some(near) = near.as_deref_mut() {
            near.release(Until::Entered(self.exchange));
        }
        if self.length() == 0 {
            self.parts = Parts::Added;
            return;
        }
        if self.is_dense() {
            return self.advance_dense(name, view, near, effects);
        }
        let Parts::Encoded(adding) = std::mem::replace(&mut self.parts, Parts::Added) else {
            return;
        };
        let mut dice = dice_of(self.shape.seed, self.exchange);
        let sum = adding.finish_chunk(&mut dice, self.shape.params, self.rank);
        let Some(sum) = sum.map(Arc::new) else { return };
        self.sums[self.rank] = Some(ChunkSum::Here(sum.clone()));
        if sum.is_empty() {
            return;
        }
        let message = PeerMessage::Sum { name, form: Form::of(&sum), in_slot: false };
        let (reached, far) = self.peers(view, near.as_deref());
        let is_posted = !reached.is_empty() && self.post(&message, &sum, near);
        let untold = far.into_iter().chain(reached.into_iter().filter(|_| !is_posted));
        let send = |who| (who, message.clone(), Load::Payload(sum.clone()));
        effects.sends.extend(untold.map(send));
    }

    /// Peers that read this member's memory, and those that do not.
    fn peers(&self, view: &View, near: Option<&Near>) -> (Vec<WorkerId>, Vec<WorkerId>) {
        let peers = peers_of(view, view.members[self.rank]).map(|(_, who)| who);
        peers.partition(|who| near.is_some_and(|near| near.reaches(*who)))
    }

    /// Tells those that read this member's memory; returns whether there was room.
    fn post(&self, message: &PeerMessage, sum: &Arc<Payload>, near: Option<&mut Near>) -> bool {
        let Some(near) = near else { return false };
        let places = near.place(sum, Until::Entered(self.exchange + 1));
        places.is_some_and(|places| near.post(message, &places))
    }

    /// The length of the sum; 0 if no member had anything to add.
    fn length(&self) -> u64 {
        self.entries.iter().flatten().map(|(_, length, _)| *length).max().unwrap_or(0)
    }

    pub fn is_complete(&self) -> bool {
        let have_entered = self.entries.iter().all(Option::is_some);
        let has_sum = |rank: usize| match &self.sums[rank] {
            Some(ChunkSum::Placed(count)) => *count == self.sum_lengths(rank).0,
            Some(_) => true,
            None => self.sum_lengths(rank) == (0, 0),
        };
        let has_all = self.added == self.shape.size() || (0..self.members()).all(has_sum);
        have_entered && (self.length() == 0 || has_all)
    }

    /// The result; or the rank of the member whose sum cannot be used.
    pub fn end(
        mut self,
        view: Arc<View>,
        mut near: Option<&mut Near>,
    ) -> Result<ExchangeResult, (usize, Violation)> {
        let vector = match self.length() {
            0 => Vector::new(),
            _ if self.is_pair() && self.added > 0 => {
                // The peer's numbers came over the link, so this member could finish before the peer has read this member's numbers in shared
                // memory. The peer has read them when it enters the next exchange.
                if let Some(near) = near.as_deref_mut() {
                    near.keep_until_entered(self.exchange + 1);
                }
                self.pair.take().unwrap_or_default()
            }
            _ => match self.read_in_place(&view, near.as_deref_mut()) {
                Some(vector) => vector,
                None => self.copy_out()?,
            },
        };
        if let (Some(near), Some(ChunkSum::Own { claim, .. })) = (near, self.sums[self.rank].take())
        {
            // Others may still have to copy it.
            near.keep(claim, Until::Entered(self.exchange + 1));
        }
        let tails = self.entries.into_iter().flatten().map(|(tail, ..)| tail).collect();
        Ok(ExchangeResult::Summed(Arc::new(Sum::new(self.exchange, view, vector, tails))))
    }

    fn copy_out(&mut self) -> Result<Vector, (usize, Violation)> {
        let (shape, n) = (self.shape, self.members());
        if self.is_dense() {
            let mut total = self.total.take().unwrap_or_else(|| self.new_total());
            for (j, sum) in self.sums.iter().enumerate() {
                let range = dense_chunk(shape.size(), n, j);
                let (first, len) = (range.start, range.len());
                let numbers = match sum {
                    Some(ChunkSum::Own { claim, .. }) => claim.as_slice(len),
                    Some(ChunkSum::There { there, .. }) => {
                        &there.dense(0..len).ok_or((j, WRONG_SUM))?
                    }
                    Some(ChunkSum::Here(_)) => return Err((j, WRONG_SUM)),
                    Some(ChunkSum::Placed(_)) | None => continue,
                };
                let copy = |into: &mut [f32], piece: Range<usize>| {
                    into.copy_from_slice(&numbers[piece.start - first..piece.end - first]);
                };
                if !total.write(range, copy) {
                    return Err((j, WRONG_SUM));
                }
            }
            return total.read(0..shape.size()).ok_or((self.rank, WRONG_SUM));
        }
        let mut vector = Vector::with_capacity(shape.size());
        let mut buffers = Vector::with_capacity(shape.buffers);
        for (j, sum) in self.sums.iter().enumerate() {
            let Some(sum) = sum else { continue };
            let ChunkSum::Here(payload) = sum else { return Err((j, WRONG_SUM)) };
            let chunk = payload.decode();
            let (learned, plain) = chunk.split_at(payload.learned.len());
            vector.extend_from_slice(learned);
            buffers.extend_from_slice(plain);
        }
        vector.extend_from_slice(&buffers);
        Ok(vector)
    }
}
