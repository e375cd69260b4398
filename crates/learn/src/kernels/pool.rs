//! Memory of vectors that is used again.
//!
//! Long vectors that are made and dropped in every exchange cost more than what is done with them: the system takes their pages back
//! and hands out new ones, filled with zeros.

use std::ptr::NonNull;
use std::sync::{Arc, Mutex, Weak};

use super::{Lent, memory};

/// Memory, and where its numbers begin.
type Spare = (Vec<f32>, usize);

/// Lends memory that comes back when its vector is dropped.
#[derive(Clone, Debug, Default)]
pub struct Pool(Arc<Mutex<Vec<Spare>>>);

/// Shorter vectors are not worth it: the allocator keeps their memory itself, and filling it with zeros takes less than a microsecond.
const WORTHWHILE: usize = 4 << 10;
/// The memory of this many long vectors is kept, and of short ones up to this many numbers: pieces of a sum come from all members at once.
const SPARE: usize = 8;
const SPARE_NUMBERS: usize = 8 << 20;
const LONG: usize = SPARE_NUMBERS / SPARE;

impl Pool {
    /// Memory for this many numbers; `None` if they are too few. What the numbers are is not said: the memory may have been used before.
    pub fn lend(&self, len: usize) -> Option<Lent> {
        (len >= WORTHWHILE).then(|| self.lend_any(len))
    }

    /// The same for any length; few numbers do not come back to the pool.
    pub(super) fn lend_any(&self, len: usize) -> Lent {
        let spare = self.0.lock().ok().and_then(|mut spare| {
            // What was used last is most likely still in the processor's cache.
            let at = spare.iter().rposition(|(numbers, start)| numbers.len() - start == len)?;
            Some(spare.remove(at))
        });
        let mut numbers = spare.unwrap_or_else(|| memory::zeros(len));
        let first = numbers.0[numbers.1..].as_mut_ptr();
        let start = NonNull::new(first).unwrap_or(NonNull::dangling());
        let to = if len < WORTHWHILE { Weak::new() } else { Arc::downgrade(&self.0) };
        let owner = Returned { numbers, to };
        // SAFETY: the numbers live as long as their owner and do not move with it, since a `Vec` moves without what it points to. The owner
        // does nothing with them before it is dropped, so that only the vector reads and writes them.
        unsafe { Lent::writable(start, len, owner) }
    }
}

/// Memory that goes back to its pool.
struct Returned {
    numbers: Spare,
    to: Weak<Mutex<Vec<Spare>>>,
}

impl Drop for Returned {
    fn drop(&mut self) {
        let Some(pool) = self.to.upgrade() else { return };
        let Ok(mut spare) = pool.lock() else { return };
        let is_long = |(numbers, _): &Spare| numbers.len() > LONG;
        let was_long = is_long(&self.numbers);
        spare.push(std::mem::take(&mut self.numbers));
        let is_too_much = |spare: &[Spare]| {
            let alike = spare.iter().filter(|it| is_long(it) == was_long);
            match was_long {
                true => alike.count() > SPARE,
                false => alike.map(|(numbers, _)| numbers.len()).sum::<usize>() > SPARE_NUMBERS,
            }
        };
        let mut dropped = vec![];
        // What was returned first is of a length that is not used any more, if lengths have changed.
        while is_too_much(&spare)
            && let Some(first) = spare.iter().position(|it| is_long(it) == was_long)
        {
            dropped.push(spare.remove(first));
        }
        // The system takes long memory back slowly, and nobody waits for it.
        drop(spare);
        drop(dropped);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Vector;

    #[test]
    fn memory_that_comes_back_is_used_again() {
        let pool = Pool::default();
        let mut first = Vector::pooled(&pool, WORTHWHILE);
        first.fill(3.0);
        let place = first.as_ptr();
        let second = Vector::pooled(&pool, WORTHWHILE);
        assert_ne!(second.as_ptr(), place, "two vectors never share memory");
        drop(first);
        let third = Vector::pooled(&pool, WORTHWHILE);
        assert_eq!((third.as_ptr(), third.len()), (place, WORTHWHILE));

        let kept = Arc::new(third);
        drop(pool);
        assert_eq!(kept[0], 3.0, "a vector may outlive its pool");
    }

    #[test]
    fn a_pool_keeps_a_few_long_vectors_or_many_short_ones_and_no_more() {
        let pool = Pool::default();
        let lend = |count: usize, len: usize| {
            drop((0..count).map(|i| Vector::pooled(&pool, len + i)).collect::<Vec<_>>());
            pool.0.lock().expect("nobody panics").len()
        };
        assert_eq!(lend(20, LONG), SPARE);
        let short = lend(4000, WORTHWHILE) - SPARE;
        let fits = |len: usize| SPARE_NUMBERS / len;
        assert!((fits(WORTHWHILE + 4000) - 1..=fits(WORTHWHILE)).contains(&short), "{short}");
    }
}
