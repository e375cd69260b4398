//! Arithmetic on flat vectors: plain IEEE multiply and add, so that the result has the same bits on every CPU.
//!
//! Functions of two vectors panic if their lengths differ: the vectors belong to different models.

use std::sync::Arc;

pub type Vector = Vec<f32>;

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

        let two = [Arc::new(vec![1.0, 4.0]), Arc::new(vec![3.0, 0.0])];
        assert_eq!(*mean(two.iter()).unwrap(), [2.0, 2.0]);
        assert_eq!(mean([].iter()), None);
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
