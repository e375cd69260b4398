//! The arithmetic of a sum over members: the same function in every cluster.

use std::ops::Range;

use paceline_learn::{Dice, Vector};

use super::{Payload, half, quantize};

/// The sum of the members' payloads, in rank order, as if chunk j had been summed at member j.
///
/// Dense chunks are added in the order of a ring: rank j + 1 first, rank j last. Half and quantized
/// chunks are added in rank order, encoded anew, and given to all. Sparse payloads go to all as
/// they are. A sum over one member adds no rounding of its own.
pub fn sum(parts: &[&Payload], dice: &mut Dice) -> Vector {
    let (n, first) = (parts.len(), *parts.first().expect("a sum has at least one part"));
    assert!(
        parts.iter().all(|part| is_alike(first, part)),
        "all parts of a sum have the same codec and length"
    );

    // Each chunk gets dice of its own, so that its member can sum it without the others'.
    let key = dice.draw();
    let mut total = first.blank();
    for j in 0..n {
        let range = chunk(total.len(), n, j);
        if range.is_empty() {
            // More members than numbers: most have nothing to sum.
            continue;
        }
        let into = &mut total[range.clone()];
        for k in 0..n {
            let rank = if matches!(first, Payload::Dense(_)) { (j + 1 + k) % n } else { k };
            parts[rank].add_chunk(range.start, into);
        }
        if n > 1 {
            round_again(first, into, &mut Dice::keyed(&[key, j as u64]));
        }
    }
    total
}

/// Where chunk j of n lies in a vector.
pub fn chunk(length: usize, n: usize, j: usize) -> Range<usize> {
    j * length / n..(j + 1) * length / n
}

/// What encoding a summed chunk anew makes of it.
fn round_again(like: &Payload, values: &mut [f32], dice: &mut Dice) {
    match like {
        Payload::Dense(_) | Payload::Sparse { .. } => {}
        Payload::Half(_) => {
            values.iter_mut().for_each(|x| *x = half::widen(half::narrow(*x)));
        }
        Payload::Quantized { bits, bucket, .. } => {
            let (norms, levels) = quantize::quantize(values, *bits, *bucket as usize, dice);
            values.fill(-0.0);
            quantize::add_levels(*bits, *bucket as usize, &norms, &levels, 0, values);
        }
    }
}

fn is_alike(a: &Payload, b: &Payload) -> bool {
    let same_codec = match (a, b) {
        (
            Payload::Quantized { bits, bucket, .. },
            Payload::Quantized { bits: other_bits, bucket: other_bucket, .. },
        ) => (bits, bucket) == (other_bits, other_bucket),
        _ => std::mem::discriminant(a) == std::mem::discriminant(b),
    };
    same_codec && a.len() == b.len()
}
