//! Plain loops of transformers, compiled for every path: layer norm, gelu and softmax.
//!
//! Sums along a row have a fixed number of accumulators, which are added in a fixed order, so their bits do not
//! depend on the width of vectors.

/// Floats that are processed together.
pub const LANES: usize = 16;

const EPSILON: f32 = 1e-5;

on_every_path! {
/// y <- (x - mean) / deviation x scale + shift, row by row; stores each row's mean and inverse deviation in
/// `moments`.
pub fn layer_norm(x: &[f32], scale: &[f32], shift: &[f32], moments: &mut [f32], y: &mut [f32]) {
    let channels = scale.len();
    let share = 1.0 / channels as f32;
    let rows = x.chunks_exact(channels).zip(y.chunks_exact_mut(channels));
    for ((x, y), moments) in rows.zip(moments.chunks_exact_mut(2)) {
        let mut sums = [0.0; LANES];
        let (lanes, rest) = x.as_chunks::<LANES>();
        for x in lanes {
            for i in 0..LANES {
                sums[i] += x[i];
            }
        }
        for (sum, x) in sums.iter_mut().zip(rest) {
            *sum += x;
        }
        let mean = total(sums) * share;
        let mut squares = [0.0; LANES];
        for x in lanes {
            for i in 0..LANES {
                squares[i] += (x[i] - mean) * (x[i] - mean);
            }
        }
        for (square, x) in squares.iter_mut().zip(rest) {
            *square += (x - mean) * (x - mean);
        }
        let inv = 1.0 / (total(squares) * share + EPSILON).sqrt();
        for (((x, y), scale), shift) in x.iter().zip(y).zip(scale).zip(shift) {
            *y = (x - mean) * inv * scale + shift;
        }
        moments.copy_from_slice(&[mean, inv]);
    }
}

/// The backward pass of [`layer_norm`]: writes dx or adds to it, and adds to the gradients of scale and shift.
pub fn layer_norm_backward(
    x: &[f32],
    moments: &[f32],
    scale: &[f32],
    dy: &[f32],
    dscale: &mut [f32],
    dshift: &mut [f32],
    overwrite: bool,
    dx: &mut [f32],
) {
    let channels = scale.len();
    let share = 1.0 / channels as f32;
    let (scales, scale_rest) = scale.as_chunks::<LANES>();
    let (dscales, dscale_rest) = dscale.as_chunks_mut::<LANES>();
    let (dshifts, dshift_rest) = dshift.as_chunks_mut::<LANES>();
    let rows = x.chunks_exact(channels).zip(dy.chunks_exact(channels));
    let rows = rows.zip(dx.chunks_exact_mut(channels)).zip(moments.chunks_exact(2));
    for (((x, dy), dx), moments) in rows {
        let (mean, inv) = (moments[0], moments[1]);
        let (xs, x_rest) = x.as_chunks::<LANES>();
        let (dys, dy_rest) = dy.as_chunks::<LANES>();
        // Sums of g and of g h, where h is the normalized x and g the gradient with respect to h.
        let (mut of_g, mut of_gh) = ([0.0; LANES], [0.0; LANES]);
        for (at, (x, dy)) in xs.iter().zip(dys).enumerate() {
            let (scale, dscale, dshift) = (&scales[at], &mut dscales[at], &mut dshifts[at]);
            for i in 0..LANES {
                let h = (x[i] - mean) * inv;
                let g = dy[i] * scale[i];
                of_g[i] += g;
                of_gh[i] += g * h;
                dscale[i] += dy[i] * h;
                dshift[i] += dy[i];
            }
        }
        for i in 0..x_rest.len() {
            let h = (x_rest[i] - mean) * inv;
            let g = dy_rest[i] * scale_rest[i];
            of_g[i] += g;
            of_gh[i] += g * h;
            dscale_rest[i] += dy_rest[i] * h;
            dshift_rest[i] += dy_rest[i];
        }
        let (mean_g, mean_gh) = (total(of_g) * share, total(of_gh) * share);
        for (((x, dy), dx), scale) in x.iter().zip(dy).zip(dx).zip(scale) {
            let h = (x - mean) * inv;
            let part = (dy * scale - mean_g - h * mean_gh) * inv;
            *dx = if overwrite { part } else { *dx + part };
        }
    }
}

/// y <- x times the normal distribution function of x, in its tanh approximation (Hendrycks and Gimpel 2016);
/// stores the slopes for the backward pass.
pub fn gelu(x: &[f32], slopes: &mut [f32], y: &mut [f32]) {
    for ((x, slope), y) in x.iter().zip(slopes).zip(y) {
        (*y, *slope) = gelu_of(*x);
    }
}

/// y <- x z if `overwrite`, otherwise y <- y + x z, element by element.
pub fn write_or_add_products(x: &[f32], z: &[f32], overwrite: bool, y: &mut [f32]) {
    if overwrite {
        for ((y, x), z) in y.iter_mut().zip(x).zip(z) {
            *y = x * z;
        }
    } else {
        for ((y, x), z) in y.iter_mut().zip(x).zip(z) {
            *y += x * z;
        }
    }
}

/// Causal softmax of `scale` times each row. Rows are `step` floats apart. In the first row, the first `visible`
/// floats take part, and one more in each following row; the others become 0. Only the first `width` floats of a
/// row, a multiple of `LANES`, are read and written.
pub fn softmax(rows: &mut [f32], step: usize, visible: usize, width: usize, scale: f32) {
    for (row, visible) in rows.chunks_mut(step).zip(visible..) {
        let (row, beyond) = row[..width].split_at_mut(visible.next_multiple_of(LANES));
        beyond.fill(0.0);
        row[visible..].fill(f32::NEG_INFINITY);
        let (row, _) = row.as_chunks_mut::<LANES>();
        let mut highest = [f32::NEG_INFINITY; LANES];
        for x in &*row {
            for i in 0..LANES {
                highest[i] = higher(highest[i], x[i]);
            }
        }
        let highest = join(highest, higher);
        let mut sums = [0.0; LANES];
        for x in &mut *row {
            for i in 0..LANES {
                let below = (x[i] - highest) * scale;
                x[i] = if below < EXP_MIN { 0.0 } else { exp_inside(below) };
                sums[i] += x[i];
            }
        }
        let share = 1.0 / total(sums);
        for x in row.as_flattened_mut() {
            *x *= share;
        }
    }
}

/// The backward pass of [`softmax`]: replaces gradients with respect to its outputs, `rows`, by gradients with
/// respect to its inputs.
pub fn softmax_backward(
    rows: &[f32],
    step: usize,
    visible: usize,
    width: usize,
    scale: f32,
    deltas: &mut [f32],
) {
    for ((row, deltas), visible) in rows.chunks(step).zip(deltas.chunks_mut(step)).zip(visible..) {
        let (deltas, beyond) = deltas[..width].split_at_mut(visible.next_multiple_of(LANES));
        beyond.fill(0.0);
        let ((row, _), (deltas, _)) = (row.as_chunks::<LANES>(), deltas.as_chunks_mut::<LANES>());
        let mut sums = [0.0; LANES];
        for (p, d) in row.iter().zip(&*deltas) {
            for i in 0..LANES {
                sums[i] += p[i] * d[i];
            }
        }
        let mean = total(sums);
        for (p, d) in row.iter().zip(deltas) {
            for i in 0..LANES {
                d[i] = p[i] * (d[i] - mean) * scale;
            }
        }
    }
}
}

/// Gelu of x and its slope: x s and s + x s', where s = sigmoid(2 z) = (1 + tanh(z)) / 2 and
/// z = sqrt(2 / pi) (x + 0.044715 x^3).
#[inline(always)]
fn gelu_of(x: f32) -> (f32, f32) {
    const LINEAR: f32 = 1.595_769_2;
    const CUBIC: f32 = 0.071_354_814;
    let square = x * x;
    let z = x * (LINEAR + CUBIC * square);
    let z = if z < EXP_MIN { EXP_MIN } else { z };
    let z = if z > -EXP_MIN { -EXP_MIN } else { z };
    let s = 1.0 / (1.0 + exp_inside(-z));
    let y = x * s;
    (y, s + y * (1.0 - s) * (LINEAR + 3.0 * CUBIC * square))
}

/// Below this, e^x is a subnormal number.
const EXP_MIN: f32 = -87.0;

/// e^x for x from `EXP_MIN` to -`EXP_MIN`: the polynomial of [`exp`](super::loops::exp) without its checks of the
/// range. NaN stays NaN.
#[inline(always)]
fn exp_inside(x: f32) -> f32 {
    const SHIFT: f32 = 12_582_912.0; // 1.5 x 2^23: adding it leaves a whole number in the low bits.
    let shifted = x * std::f32::consts::LOG2_E + SHIFT;
    let whole = shifted - SHIFT;
    // ln 2 in two parts, so that the product with a whole number is exact.
    let r = (x - whole * 0.693_359_4) - whole * -2.121_944_4e-4;
    let p = 1.987_569_1e-4;
    let p = p * r + 1.398_199_9e-3;
    let p = p * r + 8.333_452e-3;
    let p = p * r + 4.166_579_6e-2;
    let p = p * r + 1.666_666_5e-1;
    let p = p * r + 0.5;
    let p = (p * r * r + r) + 1.0;
    p * f32::from_bits((shifted.to_bits() << 23).wrapping_add(127 << 23))
}

/// max(a, b), or a if one of them is NaN.
#[inline(always)]
fn higher(a: f32, b: f32) -> f32 {
    if b > a { b } else { a }
}

/// Reduces all lanes to one number, first the two halves with each other.
#[inline(always)]
fn join(mut lanes: [f32; LANES], of: impl Fn(f32, f32) -> f32) -> f32 {
    for i in 0..8 {
        lanes[i] = of(lanes[i], lanes[i + 8]);
    }
    for i in 0..4 {
        lanes[i] = of(lanes[i], lanes[i + 4]);
    }
    of(of(lanes[0], lanes[2]), of(lanes[1], lanes[3]))
}

#[inline(always)]
fn total(lanes: [f32; LANES]) -> f32 {
    join(lanes, |a, b| a + b)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::{Path, loops};

    #[test]
    fn gelu_and_its_slope_are_those_of_the_tanh_form() {
        let exact =
            |x: f64| 0.5 * x * (1.0 + (0.797_884_560_8 * (x + 0.044715 * x.powi(3))).tanh());
        for i in -2_000..=2_000 {
            let x = i as f32 / 100.0;
            let (y, slope) = gelu_of(x);
            let (low, high) = (exact(f64::from(x) - 1e-5), exact(f64::from(x) + 1e-5));
            assert!((f64::from(y) - exact(f64::from(x))).abs() < 1e-6, "{x}: {y}");
            assert!((f64::from(slope) - (high - low) / 2e-5).abs() < 1e-5, "{x}: {slope}");
        }
        assert!(gelu_of(f32::NAN).0.is_nan());
        assert_eq!((gelu_of(1e6).0, gelu_of(-1e6).0.abs() < 1e-30), (1e6, true));
    }

    #[test]
    fn exp_inside_its_range_has_the_bits_of_exp() {
        for i in -8_700..=8_700 {
            let x = i as f32 / 100.0;
            assert_eq!(exp_inside(x), loops::exp(x), "{x}");
        }
    }

    #[test]
    fn causal_softmax_includes_one_more_in_each_row_and_sums_to_one() {
        let (step, width, visible) = (48, 32, 3);
        let mut rows: Vec<f32> = (0..4 * step).map(|i| (i * 7 % 13) as f32 * 100.0).collect();
        let before = rows.clone();

        softmax(Path::best(), &mut rows, step, visible, width, 0.01);

        for (i, (row, before)) in rows.chunks(step).zip(before.chunks(step)).enumerate() {
            let visible = visible + i;
            let total: f32 = before[..visible].iter().map(|x| (0.01 * x).exp()).sum();
            for j in 0..visible {
                assert!((row[j] - (0.01 * before[j]).exp() / total).abs() < 1e-6, "{i} {j}");
            }
            assert!(row[visible..width].iter().all(|p| *p == 0.0));
            assert_eq!(row[width..], before[width..]);
        }
    }

    #[test]
    fn a_normalized_row_has_mean_0_and_variance_1_for_any_number_of_channels() {
        for channels in [1, 5, 16, 40] {
            let x: Vec<f32> = (0..3 * channels).map(|i| (i * 37 % 11) as f32 + 100.0).collect();
            let (ones, zeros) = (vec![1.0; channels], vec![0.0; channels]);
            let (mut moments, mut y) = ([0.0; 6], vec![0.0; x.len()]);

            layer_norm(Path::best(), &x, &ones, &zeros, &mut moments, &mut y);

            for y in y.chunks(channels) {
                let mean = y.iter().sum::<f32>() / channels as f32;
                let variance = y.iter().map(|y| y * y).sum::<f32>() / channels as f32;
                assert!(mean.abs() < 1e-4, "{channels}: {mean}");
                assert!(channels == 1 || (variance - 1.0).abs() < 1e-4, "{channels}: {variance}");
            }
        }
    }
}
