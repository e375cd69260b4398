//! Dense numbers go over links in pieces: those of a member, until they are added, and those of the sum, which are written where they belong.

use std::collections::VecDeque;
use std::ops::Range;

use paceline_learn::Vector;
use paceline_learn::kernels::{Divided, Pool};

use super::super::near::dense_chunk;
use super::Violation;

/// How many dense numbers go over a link at a time.
pub const PIECE: usize = 128 << 10;
/// Two members give each other at most this many in one piece: the sum then takes the place of what has come.
const WHOLE: usize = 256 << 10;

/// The length of a piece, in numbers, when `members` members add vectors of `size` numbers over links.
pub fn piece_of(size: usize, members: usize) -> usize {
    if members == 2 && size <= WHOLE { WHOLE } else { PIECE }
}

/// The pieces of these numbers. There is always a first one, which may be empty.
pub fn pieces(range: Range<usize>, piece: usize) -> impl Iterator<Item = Range<usize>> {
    let first = range.start..range.end.min(range.start + piece);
    let others = (range.start..range.end).step_by(piece).skip(1);
    std::iter::once(first).chain(others.map(move |from| from..range.end.min(from + piece)))
}

pub const WRONG_CHUNK: Violation = Violation("a chunk of another length");

/// What has come over a link of a member's numbers.
#[derive(Default)]
pub struct Pieces {
    pub received: usize,
    /// Those that were not added yet.
    pub waiting: VecDeque<Vector>,
}

impl Pieces {
    /// Takes the next of the pieces of `length` numbers.
    pub fn push(
        &mut self,
        start: usize,
        values: Vector,
        (length, piece): (usize, usize),
    ) -> Result<(), Violation> {
        let expected = piece.min(length - self.received);
        if start != self.received || values.len() != expected || values.is_empty() {
            return Err(WRONG_CHUNK);
        }
        self.received += values.len();
        self.waiting.push_back(values);
        Ok(())
    }
}

/// The whole sum. Its pieces are read from links into the place where they belong, or added there, and sent from there.
pub struct Total {
    numbers: Divided,
    piece: usize,
}

impl Total {
    pub fn new(pool: &Pool, size: usize, members: usize) -> Total {
        let piece = piece_of(size, members);
        let chunks = (0..members).map(|j| dense_chunk(size, members, j));
        let numbers =
            Divided::new(pool, chunks.flat_map(|it| pieces(it, piece)).map(|it| it.len()));
        Total { numbers, piece }
    }

    /// Memory for a piece of the sum that is about to arrive; `None` if it is no piece, or if there is one already.
    pub fn room(&mut self, start: usize, len: usize) -> Option<Vector> {
        self.numbers.lend(start, len).map(Vector::from)
    }

    /// Whether none of these numbers has arrived, or is about to.
    pub fn is_free(&self, range: Range<usize>) -> bool {
        self.numbers.is_free(range)
    }

    /// A piece has arrived, in its [`room`](Self::room) or elsewhere; returns whether it was missing.
    pub fn place(&mut self, start: usize, values: Vector) -> bool {
        let elsewhere = match values.into_lent().map(|lent| self.numbers.settle(start, lent)) {
            Ok(Ok(())) => return true,
            Ok(Err(lent)) => Vector::from(lent),
            Err(vector) => vector,
        };
        self.write_piece(start, elsewhere.len(), |into| into.copy_from_slice(&elsewhere))
    }

    /// Writes these numbers, which are a chunk or pieces of one; `write` gets the place of each piece.
    pub fn write(
        &mut self,
        range: Range<usize>,
        mut write: impl FnMut(&mut [f32], Range<usize>),
    ) -> bool {
        let mut all = pieces(range, self.piece).filter(|it| !it.is_empty());
        all.all(|piece| self.write_piece(piece.start, piece.len(), |into| write(into, piece)))
    }

    fn write_piece(&mut self, start: usize, len: usize, write: impl FnOnce(&mut [f32])) -> bool {
        let Some(mut into) = self.room(start, len) else { return false };
        write(&mut into);
        into.into_lent().is_ok_and(|lent| self.numbers.settle(start, lent).is_ok())
    }

    /// These numbers, where they lie; `None` if some are missing.
    pub fn read(&self, range: Range<usize>) -> Option<Vector> {
        self.numbers.read(range).map(Vector::from)
    }
}
