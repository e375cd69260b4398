//! One sum that members add in chunks.

use std::ops::Range;
use std::sync::Arc;

use paceline_learn::Vector;
use paceline_learn::kernels::Pool;
use paceline_learn::kernels::shared::Claim;
use paceline_runtime::Sum;
use paceline_runtime::codec::{Adding, Codec, Encoded, Payload, add_dense, chunk, dice_of};
use paceline_runtime::exchange::ExchangeResult;
use paceline_runtime::view::View;
use paceline_runtime::wire::Tail;

use super::super::message::{ExchangeName, Form, Load, PeerMessage};
use super::super::near::board::Place;
use super::super::near::{Near, There, Until, dense_chunk};
use super::{Effects, Part, Shape, Violation};

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
    /// By rank: the sum of that member's chunk.
    sums: Vec<Option<ChunkSum>>,
    /// The whole sum, if this member has added all of it.
    total: Option<Vector>,
}

/// This member's chunk of what all members add.
enum Parts {
    /// Decoded and added while they arrive.
    Encoded(Adding),
    /// By rank. They are read where they lie and added in one pass when all are there.
    Dense(Vec<Option<Held>>),
    Added,
}

enum Held {
    Whole(Arc<Payload>),
    Chunk(Vector),
}

enum ChunkSum {
    /// In a block of this process, where others read it.
    Own {
        claim: Claim,
        in_slot: bool,
    },
    Here(Arc<Payload>),
    There {
        there: There,
        in_slot: bool,
    },
}

const WRONG_CHUNK: Violation = Violation("a chunk of another length");
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
        let (entries, total) = (vec![None; n], None);
        Chunked { shape, rank, exchange, is_near, pool, entries, parts, sums, total }
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

    /// Which numbers of dense vectors this member adds.
    fn own_range(&self) -> Range<usize> {
        dense_chunk(self.shape.size(), self.members(), self.rank)
    }

    /// Takes a part; returns whether now all have entered.
    pub fn take(&mut self, from: usize, part: Part) -> Result<bool, Violation> {
        match part {
            Part::Whole(_) => Err(Violation("a whole entry in an exchange of chunks")),
            Part::Sum { in_slot, values } => {
                let sum = self.check_sum(from, in_slot, values)?;
                if self.sums[from].replace(sum).is_some() {
                    return Err(Violation("it sent a sum twice"));
                }
                Ok(false)
            }
            Part::Chunk { tail, length, is_free, values } => {
                if self.entries[from].is_some() {
                    return Err(Violation("it entered an exchange twice"));
                }
                // Two members that do not both read each other's memory give each other all, and need no second step.
                self.is_near &= !self.is_pair() || !matches!(values, Values::Here(_));
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
                Ok(self.entries.iter().all(Option::is_some))
            }
        }
    }

    /// This member's chunk of a dense part, read where it lies.
    fn held(&self, length: usize, values: Values) -> Result<Held, Violation> {
        let range = if length == 0 { 0..0 } else { self.own_range() };
        match values {
            Values::Own(payload) => Ok(Held::Whole(payload)),
            Values::Here(payload) if self.is_pair() => {
                let is_dense = matches!(payload.learned, Encoded::Dense(_));
                let is_right = is_dense && payload.buffers.is_empty() && payload.len() == length;
                if is_right { Ok(Held::Whole(payload)) } else { Err(WRONG_CHUNK) }
            }
            Values::There(there) if self.is_pair() => {
                let is_right = there.dense_len() == Some(length);
                let whole = there.dense(0..length).filter(|_| is_right).ok_or(WRONG_CHUNK)?;
                Ok(Held::Whole(Arc::new(Payload::dense(whole))))
            }
            Values::Here(_) => self
                .copied(length, values)
                .map(|part| Held::Chunk(Arc::unwrap_or_clone(part).into_vector())),
            Values::There(there) => {
                let is_right = there.dense_len() == Some(length);
                let chunk = there.dense(range).filter(|_| is_right);
                chunk.map(Held::Chunk).ok_or(WRONG_CHUNK)
            }
        }
    }

    /// This member's chunk of a part, in memory of its own: what lies in the memory of others may change before a sum of it has been
    /// sent to everybody.
    fn copied(&self, length: usize, values: Values) -> Result<Arc<Payload>, Violation> {
        let (n, j) = (self.members(), self.rank);
        let range = if length == 0 { 0..0 } else { self.own_range() };
        let part = match values {
            Values::Here(part) => part,
            Values::Own(payload) if payload.is_empty() => payload,
            Values::Own(payload) => match &payload.learned {
                Encoded::Dense(values) => Arc::new(Payload::dense(values[range.clone()].into())),
                _ => Arc::new(payload.chunk(n, j)),
            },
            Values::There(there) if self.is_dense() => {
                let is_right = there.dense_len() == Some(length);
                let chunk = there.dense(range.clone()).filter(|_| is_right);
                Arc::new(Payload::dense(chunk.ok_or(WRONG_CHUNK)?.clone()))
            }
            Values::There(there) => {
                let whole = there.payload().filter(|it| self.shape.fits(it) && it.len() == length);
                let whole = whole.ok_or(WRONG_CHUNK)?;
                if whole.is_empty() { Arc::new(whole) } else { Arc::new(whole.chunk(n, j)) }
            }
        };
        let (params, buffers) = match (length, self.is_dense()) {
            (0, _) => (0, 0),
            (_, true) => (range.len(), 0),
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
                let is_right = there.dense_len() == Some(lengths.0);
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

    /// All have entered: adds this member's chunk, and tells all.
    pub fn add(
        &mut self,
        name: ExchangeName,
        view: &View,
        mut near: Option<&mut Near>,
        effects: &mut Effects,
    ) {
        if let Some(near) = near.as_deref_mut() {
            near.release(Until::Entered(self.exchange));
        }
        let parts = std::mem::replace(&mut self.parts, Parts::Added);
        if self.length() == 0 {
            return;
        }
        if let Parts::Dense(parts) = &parts
            && self.is_pair()
            && !self.is_near
        {
            let mut total = Vector::pooled(&self.pool, self.shape.size());
            self.add_into(&mut total, parts, 0..self.shape.size());
            self.total = Some(total);
            return;
        }
        let sum = match (parts, near.as_deref_mut()) {
            (Parts::Dense(parts), Some(near)) if self.is_near => {
                match self.add_in_segment(&parts, near, name) {
                    None => return,
                    Some(sum) => Some(sum),
                }
            }
            (Parts::Dense(parts), _) => Some(self.add_here(&parts)),
            (Parts::Encoded(adding), _) => {
                let mut dice = dice_of(self.shape.seed, self.exchange);
                adding.finish_chunk(&mut dice, self.shape.params, self.rank)
            }
            (Parts::Added, _) => None,
        };
        let Some(sum) = sum.map(Arc::new) else { return };
        if self.sums[self.rank].is_none() {
            self.sums[self.rank] = Some(ChunkSum::Here(sum.clone()));
        }
        if sum.is_empty() {
            return;
        }
        let message = PeerMessage::Sum { name, form: Form::of(&sum), in_slot: false };
        let is_reached = |near: &Near, who| near.reaches(who);
        let mut is_posted = false;
        if let Some(near) = near.as_deref_mut()
            && view.members.iter().any(|who| is_reached(near, *who))
            && let Some(places) = near.place(&sum, Until::Entered(self.exchange + 1))
        {
            is_posted = near.post(&message, &places);
        }
        let peers = view.members.iter().enumerate().filter(|(rank, _)| *rank != self.rank);
        let far = peers.filter(|(_, who)| {
            !(is_posted && near.as_deref().is_some_and(|near| is_reached(near, **who)))
        });
        let send = |(_, who): (usize, &_)| (*who, message.clone(), Load::Payload(sum.clone()));
        effects.sends.extend(far.map(send));
    }

    /// Adds in a block that others read, and posts a notice. Returns the sum if it must be told in another way.
    fn add_in_segment(
        &mut self,
        parts: &[Option<Held>],
        near: &mut Near,
        name: ExchangeName,
    ) -> Option<Payload> {
        let in_slot = self.entries.iter().flatten().all(|(_, _, is_free)| *is_free);
        let len = self.own_range().len();
        let Some(mut claim) = near.sum_block(self.exchange, in_slot) else {
            return Some(self.add_here(parts));
        };
        self.add_into(claim.numbers(len), parts, self.own_range());
        let places = [
            Place { is_floats: true, start: claim.place(), len },
            Place { is_floats: true, start: 0, len: 0 },
        ];
        let message = PeerMessage::Sum { name, form: Form::Dense, in_slot };
        let is_told = len == 0 || near.post(&message, &places);
        let copy = (!is_told).then(|| Payload::dense(claim.as_slice(len).into()));
        self.sums[self.rank] = Some(ChunkSum::Own { claim, in_slot });
        copy
    }

    fn add_here(&self, parts: &[Option<Held>]) -> Payload {
        let mut sum = Vector::pooled(&self.pool, self.own_range().len());
        self.add_into(&mut sum, parts, self.own_range());
        Payload::dense(sum)
    }

    fn add_into(&self, into: &mut [f32], parts: &[Option<Held>], range: Range<usize>) {
        let entries = self.entries.iter().flatten().zip(parts.iter().flatten());
        let parts: Vec<&[f32]> = entries
            .filter(|((_, length, _), _)| *length > 0)
            .filter_map(|(_, part)| match part {
                Held::Chunk(chunk) => Some(chunk.as_slice()),
                Held::Whole(payload) => match &payload.learned {
                    Encoded::Dense(all) => Some(&all[range.clone()]),
                    _ => None,
                },
            })
            .collect();
        add_dense(into, &parts);
    }

    /// The length of the sum; 0 if no member had anything to add.
    fn length(&self) -> u64 {
        self.entries.iter().flatten().map(|(_, length, _)| *length).max().unwrap_or(0)
    }

    pub fn is_complete(&self) -> bool {
        let have_entered = self.entries.iter().all(Option::is_some);
        let has_sum = |rank: usize| self.sums[rank].is_some() || self.sum_lengths(rank) == (0, 0);
        let has_all = self.total.is_some() || (0..self.members()).all(has_sum);
        have_entered && (self.length() == 0 || has_all)
    }

    pub fn end(
        mut self,
        view: Arc<View>,
        mut near: Option<&mut Near>,
    ) -> Result<ExchangeResult, Violation> {
        let vector = match (self.length(), self.total.take()) {
            (0, _) => Vector::new(),
            (_, Some(total)) => total,
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

    /// The sum without a copy, if all chunks lie where they can be mapped side by side.
    fn read_in_place(&mut self, view: &View, near: Option<&mut Near>) -> Option<Vector> {
        let near = near?;
        let is_in_slot = |(rank, sum): (usize, &Option<ChunkSum>)| match sum {
            Some(ChunkSum::Own { in_slot, .. } | ChunkSum::There { in_slot, .. }) => *in_slot,
            Some(ChunkSum::Here(_)) => false,
            None => self.sum_lengths(rank) == (0, 0),
        };
        if !self.sums.iter().enumerate().all(is_in_slot) {
            return None;
        }
        let Some(ChunkSum::Own { claim, .. }) = self.sums[self.rank].take() else { return None };
        let theirs = self.sums.iter().map(|sum| match sum {
            Some(ChunkSum::There { there, .. }) => Some(there),
            _ => None,
        });
        let theirs: Vec<_> = view.members.iter().copied().zip(theirs).collect();
        let what = (view.name(), self.exchange, self.shape.size());
        match near.result(what, (self.rank, claim), &theirs) {
            Ok(vector) => Some(vector),
            Err(claim) => {
                self.sums[self.rank] = Some(ChunkSum::Own { claim, in_slot: true });
                None
            }
        }
    }

    fn copy_out(&self) -> Result<Vector, Violation> {
        let (shape, n) = (self.shape, self.members());
        if self.is_dense() {
            let mut vector = Vector::pooled(&self.pool, shape.size());
            for (j, sum) in self.sums.iter().enumerate() {
                let into = &mut vector[dense_chunk(shape.size(), n, j)];
                let len = into.len();
                match sum {
                    Some(ChunkSum::Own { claim, .. }) => into.copy_from_slice(claim.as_slice(len)),
                    Some(ChunkSum::There { there, .. }) => {
                        into.copy_from_slice(&there.dense(0..len).ok_or(WRONG_SUM)?);
                    }
                    Some(ChunkSum::Here(payload)) => match &payload.learned {
                        Encoded::Dense(values) => into.copy_from_slice(values),
                        _ => return Err(WRONG_SUM),
                    },
                    None => {}
                }
            }
            return Ok(vector);
        }
        let mut vector = Vector::with_capacity(shape.size());
        let mut buffers = Vector::with_capacity(shape.buffers);
        for sum in self.sums.iter().flatten() {
            let ChunkSum::Here(payload) = sum else { return Err(WRONG_SUM) };
            let chunk = payload.decode();
            let (learned, plain) = chunk.split_at(payload.learned.len());
            vector.extend_from_slice(learned);
            buffers.extend_from_slice(plain);
        }
        vector.extend_from_slice(&buffers);
        Ok(vector)
    }
}
