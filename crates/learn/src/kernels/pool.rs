//! Memory of vectors that is used again.
//!
//! Long vectors that are made and dropped in every exchange cost more than what is done with them: the system takes their pages back
//! and hands out new ones, filled with zeros.

use std::ptr::NonNull;
use std::sync::{Arc, Mutex, Weak};

use super::Lent;

/// Lends memory that comes back when its vector is dropped.
#[derive(Clone, Debug, Default)]
pub struct Pool(Arc<Mutex<Vec<Vec<f32>>>>);

/// Shorter vectors are not worth it: the allocator keeps their memory itself.
const WORTHWHILE: usize = 16 << 10;
/// The most vectors whose memory is kept.
const SPARE_MAX: usize = 8;

impl Pool {
    /// Memory for this many numbers; `None` if they are too few. What the numbers are is not said: the memory may have been used before.
    pub fn lend(&self, len: usize) -> Option<Lent> {
        if len < WORTHWHILE {
            return None;
        }
        let spare = self.0.lock().ok().and_then(|mut spare| {
            let at = spare.iter().position(|numbers| numbers.len() == len)?;
            Some(spare.swap_remove(at))
        });
        let mut numbers = spare.unwrap_or_else(|| vec![0.0; len]);
        let start = NonNull::new(numbers.as_mut_ptr()).unwrap_or(NonNull::dangling());
        let owner = Returned { numbers, to: Arc::downgrade(&self.0) };
        // SAFETY: the numbers live as long as their owner and do not move with it, since a `Vec` moves without what it points to. The owner
        // does nothing with them before it is dropped, so that only the vector reads and writes them.
        Some(unsafe { Lent::writable(start, len, owner) })
    }
}

/// Memory that goes back to its pool.
struct Returned {
    numbers: Vec<f32>,
    to: Weak<Mutex<Vec<Vec<f32>>>>,
}

impl Drop for Returned {
    fn drop(&mut self) {
        if let Some(pool) = self.to.upgrade()
            && let Ok(mut spare) = pool.lock()
        {
            // What was returned first is of a length that is not used any more, if lengths have changed.
            if spare.len() == SPARE_MAX {
                spare.remove(0);
            }
            spare.push(std::mem::take(&mut self.numbers));
        }
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
    fn a_pool_keeps_a_few_vectors_and_no_more() {
        let pool = Pool::default();
        drop((0..50).map(|i| Vector::pooled(&pool, WORTHWHILE + i)).collect::<Vec<_>>());
        assert_eq!(pool.0.lock().expect("nobody panics").len(), SPARE_MAX);
    }
}
