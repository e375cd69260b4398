//! Memory that somebody else owns: a segment that processes share, or an array of another language.

use std::any::Any;
use std::fmt;
use std::ptr::NonNull;

/// Numbers in memory that somebody else owns. A [`Vector`](crate::Vector) is made from it without a copy.
pub struct Lent {
    start: NonNull<f32>,
    len: usize,
    is_writable: bool,
    _owner: Box<dyn Any + Send + Sync>,
}

// SAFETY: whoever calls `Lent::new` or `Lent::writable` promises that the memory may be read, and if it is writable
// written, from any thread; the owner may be sent and shared.
unsafe impl Send for Lent {}
// SAFETY: as for `Send`; through a shared reference the memory is only read.
unsafe impl Sync for Lent {}

impl Lent {
    /// Memory that is only read: a vector in it is copied before it is changed. `owner` is dropped with the vector; it keeps the
    /// memory alive.
    ///
    /// # Safety
    /// Until `owner` is dropped, `start` must point to `len` initialized numbers, aligned as `f32` is, at most `isize::MAX` bytes
    /// in all; nobody may write to them, and every thread may read them. They must not move with `owner`. For `len` = 0 any
    /// aligned `start` will do.
    pub unsafe fn new(start: NonNull<f32>, len: usize, owner: impl Any + Send + Sync) -> Lent {
        Lent { start, len, is_writable: false, _owner: Box::new(owner) }
    }

    /// Memory that is lent for good: a vector in it is changed in place.
    ///
    /// # Safety
    /// As for [`new`](Self::new); moreover, until `owner` is dropped nobody else may read the memory, and every thread may write
    /// to it.
    pub unsafe fn writable(start: NonNull<f32>, len: usize, owner: impl Any + Send + Sync) -> Lent {
        Lent { start, len, is_writable: true, _owner: Box::new(owner) }
    }

    pub(crate) fn as_slice(&self) -> &[f32] {
        // SAFETY: whoever made this promised that the numbers are there as long as the owner is, that is as long as `self`, and
        // that nobody else writes to them. We write only through `as_mut_slice`, which borrows `self` alone.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }

    pub(crate) fn is_writable(&self) -> bool {
        self.is_writable
    }

    pub(crate) fn as_mut_slice(&mut self) -> &mut [f32] {
        assert!(
            self.is_writable,
            "memory that is only lent for reading is copied before it is changed"
        );
        // SAFETY: as in `as_slice`; moreover, nobody else reads memory that is writable, and `self` is borrowed alone.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl fmt::Debug for Lent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_slice().fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;
    use crate::Vector;

    /// Says when the memory is given back.
    struct Owner {
        memory: Vec<f32>,
        is_returned: Arc<AtomicBool>,
    }

    impl Drop for Owner {
        fn drop(&mut self) {
            self.is_returned.store(true, Ordering::SeqCst);
        }
    }

    /// A vector in lent memory, where the memory is, and whether it was given back.
    fn lend(numbers: &[f32], is_writable: bool) -> (Vector, *const f32, Arc<AtomicBool>) {
        let is_returned = Arc::<AtomicBool>::default();
        let mut owner = Owner { memory: numbers.to_vec(), is_returned: is_returned.clone() };
        let start = NonNull::new(owner.memory.as_mut_ptr()).expect("it is not null");
        let len = numbers.len();
        // SAFETY: the numbers live as long as their owner and do not move with it, and nobody else uses them.
        let lent = unsafe {
            match is_writable {
                true => Lent::writable(start, len, owner),
                false => Lent::new(start, len, owner),
            }
        };
        (Vector::from(lent), start.as_ptr(), is_returned)
    }

    #[test]
    fn lent_memory_is_read_where_it_is_and_returned_with_its_last_reader() {
        let (vector, start, is_returned) = lend(&[1.0, 2.0, 3.0], false);
        let shared = Arc::new(vector);
        let other = shared.clone();

        assert_eq!((shared.as_ptr(), other.iter().sum::<f32>()), (start, 6.0));
        drop(other);
        assert!(!is_returned.load(Ordering::SeqCst));
        let copy = Vector::clone(&shared);
        drop(shared);

        assert!(is_returned.load(Ordering::SeqCst));
        assert_eq!(copy, [1.0, 2.0, 3.0]);
    }

    #[test]
    fn a_vector_in_memory_that_is_only_read_is_copied_before_it_changes() {
        let (mut vector, start, is_returned) = lend(&[1.0, 2.0], false);

        vector[1] = 7.0;

        assert_eq!(vector, [1.0, 7.0]);
        assert_ne!(vector.as_ptr(), start);
        assert!(is_returned.load(Ordering::SeqCst), "nobody needs it any more");
    }

    #[test]
    fn a_vector_in_writable_memory_changes_in_place_until_it_grows() {
        let (mut vector, start, is_returned) = lend(&[1.0, 2.0], true);

        vector[1] = 7.0;
        assert_eq!((vector.as_ptr(), &vector[..]), (start, &[1.0, 7.0][..]));
        assert!(!is_returned.load(Ordering::SeqCst));

        vector.extend_from_slice(&[3.0]);
        assert_eq!(vector, [1.0, 7.0, 3.0]);
        assert!(is_returned.load(Ordering::SeqCst));
    }
}
