//! Memory of a vector that is written part by part and then read as a whole. Each part has one writer.

use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;

use super::{Lent, Pool};

/// Memory of a vector in parts. Each part is lent once to be written. When it has come back it is only read, alone or with others.
pub struct Divided {
    memory: Arc<Memory>,
    /// In order, without gaps.
    parts: Vec<Part>,
}

struct Part {
    range: Range<usize>,
    stage: Stage,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Nobody has it.
    Free,
    /// Somebody writes it, or did and has dropped it.
    Lent,
    /// It has come back: nobody writes it any more.
    Done,
}

struct Memory {
    start: NonNull<f32>,
    /// Keeps the numbers alive, and is not used otherwise.
    _numbers: Lent,
}

// SAFETY: the memory is lent, and may be sent. Parts of it are written only through what `Divided::lend` returns, each of
// which has a range of its own, and are read only after those are gone.
unsafe impl Send for Memory {}
// SAFETY: as for `Send`; a shared `Memory` is not even read.
unsafe impl Sync for Memory {}

impl Divided {
    /// Memory with parts of these lengths. What its numbers are is not said before they are written.
    pub fn new(pool: &Pool, lengths: impl IntoIterator<Item = usize>) -> Divided {
        let mut end = 0;
        let part = |length| {
            let start = end;
            end = usize::checked_add(end, length).expect("the parts fit into memory");
            Part { range: start..end, stage: Stage::Free }
        };
        // Of two parts that begin at the same place, one would be empty.
        let parts: Vec<Part> = lengths.into_iter().filter(|it| *it > 0).map(part).collect();
        let mut numbers = pool.lend_any(end);
        let first = numbers.as_mut_slice().as_mut_ptr();
        let start = NonNull::new(first).unwrap_or(NonNull::dangling());
        Divided { memory: Arc::new(Memory { start, _numbers: numbers }), parts }
    }

    /// The numbers of the part that begins here, to be written; `None` if it was lent before, or has another length.
    pub fn lend(&mut self, start: usize, len: usize) -> Option<Lent> {
        let part = self.part(start).filter(|part| part.range.len() == len)?;
        if part.stage != Stage::Free {
            return None;
        }
        part.stage = Stage::Lent;
        // SAFETY: the range is inside of the numbers, whose memory lives as long as `Memory` and does not move with it; all of it was
        // initialized. The part was free, so that this is the only one that reads or writes it until it comes back.
        Some(unsafe {
            let first = self.memory.start.add(start);
            Lent::writable(first, len, self.memory.clone())
        })
    }

    /// Takes back what was lent, written; returns the memory if it is other memory.
    pub fn settle(&mut self, start: usize, numbers: Lent) -> Result<(), Lent> {
        let base = self.memory.start.as_ptr().cast_const();
        let Some(part) = self.part(start) else { return Err(numbers) };
        // Only what was lent has this memory: the rest of `Memory` is not used, and what is read may be so only when it was settled.
        let slice = numbers.as_slice();
        let is_ours = part.stage == Stage::Lent
            && part.range.len() == slice.len()
            && std::ptr::eq(slice.as_ptr(), base.wrapping_add(start));
        if !is_ours {
            return Err(numbers);
        }
        drop(numbers);
        part.stage = Stage::Done;
        Ok(())
    }

    /// These numbers, which are whole parts, to be read where they lie; `None` if some of them have not come back.
    pub fn read(&self, range: Range<usize>) -> Option<Lent> {
        if range.end > self.parts.last().map_or(0, |part| part.range.end) {
            return None;
        }
        let first = self.parts.partition_point(|part| part.range.end <= range.start);
        let mut end = range.start;
        for part in self.parts[first..].iter().take_while(|part| part.range.start < range.end) {
            if part.stage != Stage::Done || part.range.start != end {
                return None;
            }
            end = part.range.end;
        }
        if end != range.end {
            return None;
        }
        // SAFETY: as in `lend`; moreover, all of these parts have come back, and no part is lent twice, so that nobody writes to them any more.
        Some(unsafe {
            let first = self.memory.start.add(range.start);
            Lent::new(first, range.len(), self.memory.clone())
        })
    }

    /// Whether nobody has been lent any of these numbers.
    pub fn is_free(&self, range: Range<usize>) -> bool {
        let overlaps = |part: &&Part| part.range.start < range.end && range.start < part.range.end;
        self.parts.iter().filter(overlaps).all(|part| part.stage == Stage::Free)
    }

    fn part(&mut self, start: usize) -> Option<&mut Part> {
        let at = self.parts.binary_search_by_key(&start, |part| part.range.start).ok()?;
        Some(&mut self.parts[at])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A vector of three parts with 2, 3 and 4 times as many numbers.
    fn divided(factor: usize) -> Divided {
        Divided::new(&Pool::default(), [2, 3, 4].map(|it| it * factor))
    }

    #[test]
    fn parts_are_written_apart_and_read_together() {
        for factor in [1, 20_000] {
            let mut divided = divided(factor);
            let mut parts: Vec<Lent> = [(0, 2), (2, 3), (5, 4)]
                .map(|(start, len)| divided.lend(start * factor, len * factor).expect("it is free"))
                .into();
            std::thread::scope(|scope| {
                for (i, part) in parts.iter_mut().enumerate() {
                    scope.spawn(move || part.as_mut_slice().fill(i as f32));
                }
            });
            assert!(divided.read(0..9 * factor).is_none(), "all are being written");
            let third = parts.pop().expect("three were lent");
            assert!(divided.settle(5 * factor, third).is_ok());
            let third = divided.read(5 * factor..9 * factor).expect("it is written");
            let read = third.as_slice();
            assert_eq!((read.len(), read[0]), (4 * factor, 2.0));
            assert!(divided.read(2 * factor..9 * factor).is_none());
            for (part, start) in parts.into_iter().zip([0, 2]) {
                assert!(divided.settle(start * factor, part).is_ok());
            }
            let whole = divided.read(0..9 * factor).expect("all are written");
            assert_eq!(whole.as_slice()[5 * factor..].as_ptr(), read.as_ptr(), "nothing is copied");
            assert!(divided.lend(0, 2 * factor).is_none(), "it is only read from now on");
            assert!(divided.read(0..9 * factor).is_some(), "a refusal changes nothing");
            drop(divided);
            let sum: f32 = whole.as_slice().iter().sum();
            assert_eq!(sum, (3 + 2 * 4) as f32 * factor as f32);
        }
    }

    #[test]
    fn a_part_is_lent_once_and_only_it_comes_back() {
        let mut divided = divided(1);
        assert!(divided.lend(0, 3).is_none() && divided.lend(1, 2).is_none());
        let part = divided.lend(2, 3).expect("it is free");
        assert!(divided.lend(2, 3).is_none(), "somebody has it");
        assert!(divided.settle(2, Pool::default().lend_any(3)).is_err(), "other memory");
        let part = divided.settle(0, part).expect_err("not this one");
        assert!(divided.settle(2, part).is_ok());
        let read = divided.read(2..5).expect("it came back");
        assert!(divided.settle(2, read).is_err(), "it came back before");
        drop(divided.lend(0, 2));
        assert!(divided.read(0..5).is_none(), "the first was dropped");
        assert!(divided.read(3..5).is_none() && divided.read(2..4).is_none(), "not whole parts");
        let beyond = usize::MAX / 2;
        assert!(divided.read(beyond..beyond).is_none() && divided.read(9..10).is_none());
        assert!(divided.is_free(5..9) && !divided.is_free(4..9) && !divided.is_free(0..1));
    }

    #[test]
    #[should_panic(expected = "the parts fit into memory")]
    fn lengths_that_no_memory_has_are_refused() {
        let half = 1 << (usize::BITS - 1);
        Divided::new(&Pool::default(), [half, half, 4]);
    }

    #[test]
    fn empty_parts_are_no_parts_and_an_empty_whole_can_be_read() {
        let mut divided = Divided::new(&Pool::default(), [0, 2, 0]);
        let first = divided.lend(0, 2).expect("it is free");
        assert!(divided.lend(0, 0).is_none() && divided.lend(2, 0).is_none());
        assert!(divided.settle(0, first).is_ok());
        assert_eq!(divided.read(0..2).map(|it| it.as_slice().len()), Some(2));
        assert_eq!(
            Divided::new(&Pool::default(), []).read(0..0).map(|it| it.as_slice().len()),
            Some(0)
        );
    }
}
