//! Top-k with error feedback: the largest values go, the rest waits for its turn.

use paceline_learn::{Vector, vector::add};

/// How many of `length` values are sent: at least one, so that everything is sent in time.
pub fn kept(fraction: f64, length: usize) -> usize {
    ((fraction * length as f64).round() as usize).max(1).min(length)
}

/// The `count` largest of residual + vector, by size and then by index; the others are the new
/// residual.
pub fn take_largest(vector: Vector, count: usize, residual: &mut Vector) -> (Vec<u32>, Vec<f32>) {
    let mut waiting = vector;
    if !residual.is_empty() {
        assert_eq!(residual.len(), waiting.len(), "a residual belongs to vectors of one length");
        add(&mut waiting, residual);
    }
    let (mut indices, mut values) = (Vec::with_capacity(count), Vec::with_capacity(count));
    if count > 0 {
        let (least, mut ties) = threshold(&waiting, count);
        for (index, x) in waiting.iter_mut().enumerate() {
            let tied = size(*x) == least && ties > 0;
            if size(*x) > least || tied {
                ties -= usize::from(tied);
                indices.push(index as u32);
                values.push(std::mem::take(x));
            }
        }
    }
    *residual = waiting;
    (indices, values)
}

/// The size of the `count`-th largest value, and how many of that very size are among the largest.
fn threshold(values: &[f32], count: usize) -> (u32, usize) {
    let mut sizes: Vec<u32> = values.iter().map(|x| size(*x)).collect();
    let (larger, least, _) = sizes.select_nth_unstable_by(count - 1, |a, b| b.cmp(a));
    let least = *least;
    (least, 1 + larger.iter().filter(|size| **size == least).count())
}

/// |x| as an integer: the order is that of floats, and NaN comes first so that divergence is seen.
fn size(x: f32) -> u32 {
    x.abs().to_bits()
}
