//! Dense numbers of a sum in chunks. Members of one host read them where they lie. Over links they go in pieces: a piece is added as soon as all
//! members' are there, while it is still in the processor's cache, and its sum is sent while the next ones arrive.

use std::ops::Range;
use std::sync::Arc;

use paceline_learn::Vector;
use paceline_learn::vector::add;
use paceline_runtime::WorkerId;
use paceline_runtime::codec::{Encoded, Payload, add_dense};
use paceline_runtime::view::View;

use super::super::super::message::{ExchangeName, Form, Load, PeerMessage};
use super::super::super::near::board::Place;
use super::super::super::near::{Near, dense_chunk};
use super::super::pieces::{Pieces, Total, WRONG_CHUNK, pieces};
use super::super::{Effects, Violation};
use super::{ChunkSum, Chunked, Held, Parts, Values, WRONG_SUM};

/// The numbers of a dense payload that came in a frame.
pub(super) fn dense_of(payload: Arc<Payload>) -> Option<Vector> {
    match Arc::unwrap_or_clone(payload) {
        Payload { learned: Encoded::Dense(values), buffers } if buffers.is_empty() => Some(values),
        _ => None,
    }
}

impl Chunked {
    /// A dense part, read where it lies.
    pub(super) fn held(&self, length: usize, values: Values) -> Result<Held, Violation> {
        let range = if length == 0 { 0..0 } else { self.added_range() };
        match values {
            Values::Own(payload) => Ok(Held::Whole(payload)),
            Values::Here(payload) => {
                let mut pieces = Pieces::default();
                let first = dense_of(payload).ok_or(WRONG_CHUNK)?;
                match range.len() {
                    0 if first.is_empty() => {}
                    length => pieces.push(0, first, (length, self.piece()))?,
                }
                Ok(Held::Pieces(pieces))
            }
            Values::There(there) => {
                let is_right = there.dense_len() == Some(length);
                let first = range.start;
                let numbers = there.dense(range).filter(|_| is_right).ok_or(WRONG_CHUNK)?;
                Ok(Held::Chunk { first, numbers })
            }
        }
    }

    /// Memory for a piece of the sum of a member's chunk that is about to arrive; `None` if it is not expected.
    pub fn room(&mut self, from: usize, start: usize, len: usize) -> Option<Vector> {
        let range = dense_chunk(self.shape.size(), self.members(), from);
        let is_next = match &self.sums[from] {
            None => start == 0,
            Some(ChunkSum::Placed(placed)) => start == *placed,
            Some(_) => false,
        };
        let is_expected = self.is_dense() && !self.is_pair() && from != self.rank;
        let is_here = is_next && is_expected && start < range.len();
        is_here.then(|| self.total().room(range.start + start, len)).flatten()
    }

    /// A piece of the sum of a member's chunk.
    pub(super) fn place(
        &mut self,
        from: usize,
        start: usize,
        values: Vector,
    ) -> Result<(), Violation> {
        let range = dense_chunk(self.shape.size(), self.members(), from);
        let placed = match &self.sums[from] {
            Some(ChunkSum::Placed(placed)) => *placed,
            None => 0,
            _ => return Err(WRONG_SUM),
        };
        let len = values.len();
        let is_right = start == placed && len == self.piece().min(range.len() - placed);
        if !is_right || values.is_empty() || from == self.rank {
            return Err(WRONG_SUM);
        }
        if !self.total().place(range.start + placed, values) {
            return Err(WRONG_SUM);
        }
        self.sums[from] = Some(ChunkSum::Placed(placed + len));
        Ok(())
    }

    fn total(&mut self) -> &mut Total {
        if self.total.is_none() {
            self.total = Some(self.new_total());
        }
        self.total.as_mut().expect("it was just made")
    }

    pub(super) fn new_total(&self) -> Total {
        Total::new(&self.pool, self.shape.size(), self.members())
    }

    pub(super) fn advance_dense(
        &mut self,
        name: ExchangeName,
        view: &View,
        mut near: Option<&mut Near>,
        effects: &mut Effects,
    ) {
        // Once for all pieces: a peer that begins to read this member's memory meanwhile would get some of them in both ways.
        let ways = self.ways.take().unwrap_or_else(|| self.peers(view, near.as_deref()));
        let (mut reached, far) = self.ways.insert(ways).clone();
        if self.is_near
            && let Some(near) = near.as_deref_mut()
        {
            let Parts::Dense(parts) = std::mem::replace(&mut self.parts, Parts::Added) else {
                return;
            };
            if self.add_in_segment(&parts, near, name) {
                return;
            }
            self.send_pieces(name, self.own_range(), &far, effects);
        } else if !self.add_pieces(name, &far, effects) || self.is_pair() {
            return;
        }
        let range = self.own_range();
        if !reached.is_empty() && !range.is_empty() {
            let Some(sum) = self.total().read(range.clone()) else { return };
            let message = PeerMessage::Sum { name, form: Form::Dense, in_slot: false };
            if self.post(&message, &Arc::new(Payload::dense(sum)), near) {
                reached.clear();
            }
        }
        self.send_pieces(name, range, &reached, effects);
    }

    /// Adds in a block that others read, and posts a notice. If there is no room, the sum is in `total` and must be told in another way.
    fn add_in_segment(
        &mut self,
        parts: &[Option<Held>],
        near: &mut Near,
        name: ExchangeName,
    ) -> bool {
        let in_slot = self.entries.iter().flatten().all(|(_, _, is_free)| *is_free);
        let range = self.own_range();
        if let Some(mut claim) = near.sum_block(self.exchange, in_slot) {
            add_dense(claim.numbers(range.len()), &self.slices(parts, range.clone()));
            let places = [
                Place { is_floats: true, start: claim.place(), len: range.len() },
                Place { is_floats: true, start: 0, len: 0 },
            ];
            let message = PeerMessage::Sum { name, form: Form::Dense, in_slot };
            if range.is_empty() || near.post(&message, &places) {
                self.sums[self.rank] = Some(ChunkSum::Own { claim, in_slot });
                return true;
            }
        }
        self.add_into_total(parts, range.clone());
        self.sums[self.rank] = Some(ChunkSum::Placed(range.len()));
        false
    }

    /// Adds where the numbers of the other member lie, if there are two and all of its numbers have come in one piece; returns whether it was
    /// so. Whose numbers come first does not matter to the sum of two.
    fn add_in_place(&mut self) -> bool {
        let size = self.shape.size();
        let Parts::Dense(parts) = &mut self.parts else { return false };
        let (mine, theirs) = match parts.as_mut_slice() {
            [Some(Held::Whole(mine)), Some(Held::Pieces(theirs))]
            | [Some(Held::Pieces(theirs)), Some(Held::Whole(mine))] => (mine, theirs),
            _ => return false,
        };
        let Encoded::Dense(mine) = &mine.learned else { return false };
        let is_whole = theirs.waiting.front().is_some_and(|it| it.len() == size);
        if !is_whole || mine.len() != size {
            return false;
        }
        let Some(mut sum) = theirs.waiting.pop_front() else { return false };
        add(&mut sum, mine);
        (self.pair, self.added, self.parts) = (Some(sum), size, Parts::Added);
        true
    }

    /// Adds pieces that have come from all members, and sends their sums to `far`; returns whether those were all.
    fn add_pieces(&mut self, name: ExchangeName, far: &[WorkerId], effects: &mut Effects) -> bool {
        if self.add_in_place() {
            return true;
        }
        let range = self.added_range();
        while self.added < range.len() {
            let Parts::Dense(parts) = &self.parts else { return false };
            let has_come = |part: &Option<Held>| match part {
                Some(Held::Pieces(pieces)) => pieces.received == 0 || !pieces.waiting.is_empty(),
                _ => true,
            };
            if !parts.iter().all(has_come) {
                return false;
            }
            let from = range.start + self.added;
            let piece = from..range.end.min(from + self.piece());
            let Parts::Dense(mut parts) = std::mem::replace(&mut self.parts, Parts::Added) else {
                return false;
            };
            if self.is_pair() {
                let size = self.shape.size();
                let mut sum = self.pair.take().unwrap_or_else(|| Vector::pooled(&self.pool, size));
                add_dense(&mut sum[piece.clone()], &self.slices(&parts, piece.clone()));
                self.pair = Some(sum);
            } else {
                self.add_into_total(&parts, piece.clone());
            }
            for part in parts.iter_mut().flatten() {
                if let Held::Pieces(pieces) = part {
                    pieces.waiting.pop_front();
                }
            }
            self.parts = Parts::Dense(parts);
            self.added += piece.len();
            if !self.is_pair() {
                self.send_pieces(name, piece, far, effects);
            }
        }
        self.parts = Parts::Added;
        if !self.is_pair() {
            self.sums[self.rank] = Some(ChunkSum::Placed(range.len()));
        }
        true
    }

    fn add_into_total(&mut self, parts: &[Option<Held>], range: Range<usize>) {
        let mut total = self.total.take().unwrap_or_else(|| self.new_total());
        total.write(range, |into, piece| add_dense(into, &self.slices(parts, piece)));
        self.total = Some(total);
    }

    /// These numbers of all members that have any, in rank order. Of numbers that come in pieces they are the next piece.
    fn slices<'a>(&self, parts: &'a [Option<Held>], range: Range<usize>) -> Vec<&'a [f32]> {
        let entries = self.entries.iter().flatten().zip(parts.iter().flatten());
        let slice = |part: &'a Held| match part {
            Held::Whole(payload) => match &payload.learned {
                Encoded::Dense(all) => Some(&all[range.clone()]),
                _ => None,
            },
            Held::Chunk { first, numbers } => {
                Some(&numbers[range.start - first..range.end - first])
            }
            Held::Pieces(pieces) => pieces.waiting.front().map(|piece| piece.as_slice()),
        };
        let has_numbers = entries.filter(|((_, length, _), _)| *length > 0);
        has_numbers.filter_map(|(_, part)| slice(part)).collect()
    }

    /// Sends these numbers of the sum.
    fn send_pieces(
        &self,
        name: ExchangeName,
        range: Range<usize>,
        to: &[WorkerId],
        effects: &mut Effects,
    ) {
        if to.is_empty() || range.is_empty() {
            return;
        }
        let before = self.own_range().start;
        for piece in pieces(range, self.piece()) {
            let Some(sum) = self.total.as_ref().and_then(|it| it.read(piece.clone())) else {
                return;
            };
            let load = Load::Payload(Arc::new(Payload::dense(sum)));
            let message = match piece.start - before {
                0 => PeerMessage::Sum { name, form: Form::Dense, in_slot: false },
                start => PeerMessage::Piece { name, start: start as u64, of_sum: true },
            };
            effects.sends.extend(to.iter().map(|who| (*who, message.clone(), load.clone())));
        }
    }

    /// The sum without a copy, if all chunks lie where they can be mapped side by side.
    pub(super) fn read_in_place(&mut self, view: &View, near: Option<&mut Near>) -> Option<Vector> {
        let near = near?;
        let is_in_slot = |(rank, sum): (usize, &Option<ChunkSum>)| match sum {
            Some(ChunkSum::Own { in_slot, .. } | ChunkSum::There { in_slot, .. }) => *in_slot,
            Some(ChunkSum::Here(_) | ChunkSum::Placed(_)) => false,
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
}
