//! Vectors of numbers, and arithmetic on them: plain IEEE multiply and add, so that the result has the same bits on every CPU.
//!
//! Functions of two vectors panic if their lengths differ: the vectors belong to different models.

use std::borrow::Borrow;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::kernels::memory::{self, gap};
use crate::kernels::{Lent, Pool};

pub use crate::kernels::memory::ALIGNMENT;

/// A vector of numbers: parameters, a gradient, or a state of an optimizer.
///
/// It owns its memory, which then begins at a multiple of [`ALIGNMENT`], or its memory is [`Lent`] and begins where the lender
/// says. A clone owns its memory.
pub struct Vector(Memory);

enum Memory {
    Own(Own),
    Lent(Lent),
}

/// The numbers are `floats[start..]`; those before only fill the memory up to an aligned place.
struct Own {
    floats: Vec<f32>,
    start: usize,
}

impl Own {
    const EMPTY: Own = Own { floats: Vec::new(), start: 0 };

    fn zeros(len: usize) -> Own {
        if len == 0 {
            return Own::EMPTY;
        }
        let (floats, start) = memory::zeros(len);
        Own { floats, start }
    }

    fn with_capacity(len: usize) -> Own {
        if len == 0 {
            return Own::EMPTY;
        }
        let (floats, start) = memory::with_capacity(len);
        Own { floats, start }
    }

    fn is_aligned(&self) -> bool {
        gap(self.floats.as_ptr()) == self.start || self.floats.is_empty()
    }
}

impl Vector {
    /// An empty vector; it has no memory.
    pub const fn new() -> Vector {
        Vector(Memory::Own(Own::EMPTY))
    }

    pub fn zeros(len: usize) -> Vector {
        Vector(Memory::Own(Own::zeros(len)))
    }

    /// A vector whose memory goes back to a pool. What its numbers are is not said.
    pub fn pooled(pool: &Pool, len: usize) -> Vector {
        pool.lend(len).map_or_else(|| Vector::zeros(len), Vector::from)
    }

    /// Its memory, if that is lent; else the vector.
    pub fn into_lent(self) -> Result<Lent, Vector> {
        match self.0 {
            Memory::Lent(lent) => Ok(lent),
            own @ Memory::Own(_) => Err(Vector(own)),
        }
    }

    pub fn filled(value: f32, len: usize) -> Vector {
        let mut vector = Vector::with_capacity(len);
        vector.resize(len, value);
        vector
    }

    /// An empty vector with memory for `len` numbers.
    pub fn with_capacity(len: usize) -> Vector {
        Vector(Memory::Own(Own::with_capacity(len)))
    }

    pub fn as_slice(&self) -> &[f32] {
        self
    }

    /// Changes the length; numbers that are added have this value.
    pub fn resize(&mut self, len: usize, value: f32) {
        let own = self.own(len.saturating_sub(self.len()));
        own.floats.resize(own.start + len, value);
    }

    pub fn extend_from_slice(&mut self, numbers: &[f32]) {
        if !numbers.is_empty() {
            self.own(numbers.len()).floats.extend_from_slice(numbers);
        }
    }

    /// Cuts off the numbers from `at` on, and returns them.
    pub fn split_off(&mut self, at: usize) -> Vector {
        let rest = Vector::from(&self[at..]);
        let own = self.own(0);
        own.floats.truncate(own.start + at);
        rest
    }

    /// Memory of its own with room for this many more numbers. If that needs another allocation, it is made here: `Vec` would not
    /// keep the numbers aligned.
    fn own(&mut self, more: usize) -> &mut Own {
        let has_room = match &self.0 {
            Memory::Own(own) => own.floats.capacity() - own.floats.len() >= more,
            Memory::Lent(_) => false,
        };
        if !has_room {
            // Twice as much, so that a vector that grows by small steps is not copied in every step.
            let len = if more > 0 { (2 * self.len()).max(self.len() + more) } else { self.len() };
            let mut own = Own::with_capacity(len);
            own.floats.extend_from_slice(self);
            self.0 = Memory::Own(own);
        }
        match &mut self.0 {
            Memory::Own(own) => own,
            Memory::Lent(_) => unreachable!("it was just copied"),
        }
    }
}

impl Deref for Vector {
    type Target = [f32];

    #[inline]
    fn deref(&self) -> &[f32] {
        match &self.0 {
            Memory::Own(own) => &own.floats[own.start..],
            Memory::Lent(lent) => lent.as_slice(),
        }
    }
}

impl DerefMut for Vector {
    #[inline]
    fn deref_mut(&mut self) -> &mut [f32] {
        if let Memory::Lent(lent) = &self.0
            && !lent.is_writable()
        {
            self.own(0);
        }
        match &mut self.0 {
            Memory::Own(own) => &mut own.floats[own.start..],
            Memory::Lent(lent) => lent.as_mut_slice(),
        }
    }
}

impl Clone for Vector {
    fn clone(&self) -> Vector {
        Vector::from(self.as_slice())
    }
}

impl Default for Vector {
    fn default() -> Vector {
        Vector::new()
    }
}

impl fmt::Debug for Vector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_slice().fmt(f)
    }
}

impl From<&[f32]> for Vector {
    fn from(numbers: &[f32]) -> Vector {
        let mut own = Own::with_capacity(numbers.len());
        own.floats.extend_from_slice(numbers);
        Vector(Memory::Own(own))
    }
}

/// Copies the numbers, unless their memory happens to be aligned.
impl From<Vec<f32>> for Vector {
    fn from(floats: Vec<f32>) -> Vector {
        let own = Own { floats, start: 0 };
        if own.is_aligned() { Vector(Memory::Own(own)) } else { own.floats.as_slice().into() }
    }
}

impl<const N: usize> From<[f32; N]> for Vector {
    fn from(numbers: [f32; N]) -> Vector {
        numbers.as_slice().into()
    }
}

impl From<Lent> for Vector {
    fn from(lent: Lent) -> Vector {
        Vector(Memory::Lent(lent))
    }
}

impl FromIterator<f32> for Vector {
    fn from_iter<I: IntoIterator<Item = f32>>(numbers: I) -> Vector {
        let numbers = numbers.into_iter();
        let mut own = Own::with_capacity(numbers.size_hint().0);
        own.floats.extend(numbers);
        // There may have been more numbers than foreseen.
        let is_aligned = own.is_aligned();
        let vector = Vector(Memory::Own(own));
        if is_aligned { vector } else { vector.clone() }
    }
}

impl From<Vector> for Vec<f32> {
    fn from(vector: Vector) -> Vec<f32> {
        match vector.0 {
            Memory::Own(Own { floats, start: 0 }) => floats,
            _ => vector.to_vec(),
        }
    }
}

impl IntoIterator for Vector {
    type Item = f32;
    type IntoIter = std::vec::IntoIter<f32>;

    fn into_iter(self) -> Self::IntoIter {
        Vec::from(self).into_iter()
    }
}

impl<'a> IntoIterator for &'a Vector {
    type Item = &'a f32;
    type IntoIter = std::slice::Iter<'a, f32>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl<'a> IntoIterator for &'a mut Vector {
    type Item = &'a mut f32;
    type IntoIter = std::slice::IterMut<'a, f32>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter_mut()
    }
}

impl<T: AsRef<[f32]> + ?Sized> PartialEq<T> for Vector {
    fn eq(&self, other: &T) -> bool {
        self.as_slice() == other.as_ref()
    }
}

impl PartialEq<Vector> for [f32] {
    fn eq(&self, other: &Vector) -> bool {
        self == other.as_slice()
    }
}

impl PartialEq<Vector> for Vec<f32> {
    fn eq(&self, other: &Vector) -> bool {
        self == other.as_slice()
    }
}

impl AsRef<[f32]> for Vector {
    fn as_ref(&self) -> &[f32] {
        self
    }
}

impl Borrow<[f32]> for Vector {
    fn borrow(&self) -> &[f32] {
        self
    }
}

impl Serialize for Vector {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        self.as_slice().serialize(to)
    }
}

impl<'de> Deserialize<'de> for Vector {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Vector, D::Error> {
        Vec::deserialize(from).map(Vector::from)
    }
}

/// y <- y + x
pub fn add(y: &mut [f32], x: &[f32]) {
    assert_same_length(y, x);
    y.iter_mut().zip(x).for_each(|(y, x)| *y += x);
}

/// y <- y + a x
pub fn add_scaled(y: &mut [f32], a: f32, x: &[f32]) {
    assert_same_length(y, x);
    y.iter_mut().zip(x).for_each(|(y, x)| *y += a * x);
}

/// y <- a y
pub fn scale(y: &mut [f32], a: f32) {
    y.iter_mut().for_each(|y| *y *= a);
}

/// Moves `y` towards `x` by `part` of the way: y <- y + part (x - y)
pub fn blend(y: &mut [f32], x: &[f32], part: f32) {
    assert_same_length(y, x);
    y.iter_mut().zip(x).for_each(|(y, x)| *y += part * (x - *y));
}

/// |x - y|^2, accumulated in f64: a sum of ten million small squares would lose most of them in f32.
pub fn distance_squared(x: &[f32], y: &[f32]) -> f64 {
    assert_same_length(x, y);
    x.iter().zip(y).map(|(x, y)| f64::from(x - y) * f64::from(x - y)).sum()
}

/// |x|^2, accumulated in f64.
pub fn norm_squared(x: &[f32]) -> f64 {
    x.iter().map(|x| f64::from(*x) * f64::from(*x)).sum()
}

/// The mean of replicas; `None` if there are none.
///
/// If all are equal, returns the first one: the rounded sum of three equal numbers, divided by three, is
/// not always that number.
pub fn mean<'a>(replicas: impl Iterator<Item = &'a Arc<Vector>> + Clone) -> Option<Arc<Vector>> {
    let first = replicas.clone().next()?;
    if replicas.clone().all(|replica| Arc::ptr_eq(replica, first) || replica == first) {
        return Some(first.clone());
    }
    let mut mean = (**first).clone();
    replicas.clone().skip(1).for_each(|replica| add(&mut mean, replica));
    scale(&mut mean, 1.0 / replicas.count() as f32);
    Some(Arc::new(mean))
}

/// Panics if the lengths differ; `zip` would silently ignore the end of the longer vector.
#[inline]
fn assert_same_length(x: &[f32], y: &[f32]) {
    assert_eq!(x.len(), y.len(), "vectors of different models cannot be combined");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mean_of_equal_replicas_has_their_bits() {
        let replica: Vector = (1..1000).map(|i| 1.0 / i as f32).collect();
        let three = [(); 3].map(|()| Arc::new(replica.clone()));
        assert_eq!(*mean(three.iter()).unwrap(), replica);
        let summed_up: Vector = replica.iter().map(|x| (x + x + x) * (1.0 / 3.0)).collect();
        assert_ne!(summed_up, replica, "dividing the sum does not return the same bits");

        let two = [[1.0, 4.0], [3.0, 0.0]].map(|numbers| Arc::new(Vector::from(numbers)));
        assert_eq!(*mean(two.iter()).unwrap(), [2.0, 2.0]);
        assert_eq!(mean([].iter()), None);
    }

    fn is_aligned(vector: &Vector) -> bool {
        (vector.as_ptr() as usize).is_multiple_of(ALIGNMENT)
    }

    #[test]
    fn memory_of_its_own_is_aligned_however_a_vector_is_made_and_grows() {
        let numbers: Vec<f32> = (0..200).map(|x| x as f32).collect();
        // Kept, so that the allocator hands out different places.
        let mut kept = vec![];
        for len in [1, 2, 3, 15, 16, 17, 100, 200] {
            let of = &numbers[..len];
            let mut grown = Vector::new();
            of.iter().for_each(|x| grown.extend_from_slice(&[*x]));
            let mut resized = Vector::with_capacity(1);
            resized.resize(len, 0.0);
            resized.copy_from_slice(of);
            let mut split = Vector::from(&numbers[..]);
            let rest = split.split_off(len);
            let unforeseen = numbers.iter().copied().filter(|x| (*x as usize) < len);
            let made = [
                Vector::from(of),
                Vector::from(of.to_vec()),
                Vector::from(of).clone(),
                of.iter().copied().collect(),
                unforeseen.collect(),
                grown,
                resized,
                split,
            ];
            for (i, vector) in made.iter().enumerate() {
                assert_eq!(vector, of, "{i} of {len}");
                assert!(is_aligned(vector), "{i} of {len}");
            }
            assert_eq!(rest, numbers[len..], "{len}");
            assert!(rest.is_empty() || is_aligned(&rest), "{len}");
            let zeros = Vector::zeros(len);
            assert!(is_aligned(&zeros) && zeros == vec![0.0; len], "{len}");
            kept.extend(made.into_iter().chain([rest, zeros]));
        }
    }

    #[test]
    fn vectors_of_different_lengths_are_refused_in_every_build() {
        let lengths = [(3, 2), (2, 3), (0, 1)];
        type Operation = fn(&mut [f32], &[f32]);
        let operations: [Operation; 4] = [
            add,
            |y, x| add_scaled(y, 0.5, x),
            |y, x| blend(y, x, 0.5),
            |y, x| _ = distance_squared(y, x),
        ];
        for ((y, x), operation) in lengths.iter().flat_map(|len| operations.map(|op| (*len, op))) {
            let outcome = std::panic::catch_unwind(|| operation(&mut vec![1.0; y], &vec![1.0; x]));
            assert!(outcome.is_err(), "{y} and {x} numbers");
        }
    }
}
