//! Plain loops over rows of channels, compiled for every path.
//!
//! Sums over pixels have one accumulator per channel, so their bits do not depend on the width of vectors.

/// Channels that are processed together: their sums and factors stay in registers during the loop over pixels.
const LANES: usize = 16;

on_every_path! {
/// sums += x and squares += x^2, per channel, over all pixels.
pub fn add_moments(pixels: &[f32], sums: &mut [f32], squares: &mut [f32]) {
    add_product_lanes(pixels, pixels, sums, squares);
}

/// sums += d and products += d z, per channel, over all pixels.
pub fn add_products(deltas: &[f32], pixels: &[f32], sums: &mut [f32], products: &mut [f32]) {
    add_product_lanes(deltas, pixels, sums, products);
}

/// sums += d, per channel, over all pixels.
pub fn add_pixels(deltas: &[f32], sums: &mut [f32]) {
    let channels = sums.len();
    for from in (0..channels).step_by(LANES) {
        let sums = &mut sums[from..channels.min(from + LANES)];
        let mut lanes = [0.0; LANES];
        for d in deltas.chunks_exact(channels) {
            match d[from..].first_chunk::<LANES>() {
                Some(d) => (0..LANES).for_each(|i| lanes[i] += d[i]),
                None => (0..sums.len()).for_each(|i| lanes[i] += d[from + i]),
            }
        }
        sums.iter_mut().zip(lanes).for_each(|(sum, lane)| *sum += lane);
    }
}

/// y <- x scale + shift, per channel, then an optional relu.
pub fn scale_shift(x: &[f32], scale: &[f32], shift: &[f32], relu: bool, y: &mut [f32]) {
    let floor = if relu { 0.0 } else { f32::NEG_INFINITY };
    let channels = scale.len();
    for from in (0..channels).step_by(LANES) {
        let rows = x.chunks_exact(channels).zip(y.chunks_exact_mut(channels));
        match (scale[from..].first_chunk::<LANES>(), shift[from..].first_chunk::<LANES>()) {
            (Some(scale), Some(shift)) => {
                for (x, y) in rows {
                    let (x, y) = (lanes(x, from), lanes_mut(y, from));
                    (0..LANES).for_each(|i| y[i] = at_least(floor, x[i] * scale[i] + shift[i]));
                }
            }
            _ => {
                for (x, y) in rows {
                    for i in from..channels {
                        y[i] = at_least(floor, x[i] * scale[i] + shift[i]);
                    }
                }
            }
        }
    }
}

/// y <- x scale + shift + skip, per channel, then an optional relu.
pub fn scale_shift_add(
    x: &[f32],
    scale: &[f32],
    shift: &[f32],
    skip: &[f32],
    relu: bool,
    y: &mut [f32],
) {
    let floor = if relu { 0.0 } else { f32::NEG_INFINITY };
    let channels = scale.len();
    for from in (0..channels).step_by(LANES) {
        let rows = x.chunks_exact(channels).zip(skip.chunks_exact(channels));
        let rows = rows.zip(y.chunks_exact_mut(channels));
        match (scale[from..].first_chunk::<LANES>(), shift[from..].first_chunk::<LANES>()) {
            (Some(scale), Some(shift)) => {
                for ((x, skip), y) in rows {
                    let (x, skip, y) = (lanes(x, from), lanes(skip, from), lanes_mut(y, from));
                    for i in 0..LANES {
                        y[i] = at_least(floor, x[i] * scale[i] + shift[i] + skip[i]);
                    }
                }
            }
            _ => {
                for ((x, skip), y) in rows {
                    for i in from..channels {
                        y[i] = at_least(floor, x[i] * scale[i] + shift[i] + skip[i]);
                    }
                }
            }
        }
    }
}

/// dz <- a d + b z + c, per channel.
pub fn combine(d: &[f32], z: &[f32], a: &[f32], b: &[f32], c: &[f32], dz: &mut [f32]) {
    let channels = a.len();
    for from in (0..channels).step_by(LANES) {
        let rows = d.chunks_exact(channels).zip(z.chunks_exact(channels));
        let rows = rows.zip(dz.chunks_exact_mut(channels));
        if channels - from < LANES {
            for ((d, z), dz) in rows {
                (from..channels).for_each(|i| dz[i] = a[i] * d[i] + (b[i] * z[i] + c[i]));
            }
            continue;
        }
        let (a, b, c) = (*lanes(a, from), *lanes(b, from), *lanes(c, from));
        for ((d, z), dz) in rows {
            let (d, z, dz) = (lanes(d, from), lanes(z, from), lanes_mut(dz, from));
            (0..LANES).for_each(|i| dz[i] = a[i] * d[i] + (b[i] * z[i] + c[i]));
        }
    }
}

/// d <- d where the output y of the relu is above 0, and 0 elsewhere.
pub fn relu_backward(d: &mut [f32], y: &[f32]) {
    d.iter_mut().zip(y).for_each(|(d, y)| *d = if *y > 0.0 { *d } else { 0.0 });
}

/// y <- x if `overwrite`, otherwise y <- y + x.
pub fn write_or_add(x: &[f32], overwrite: bool, y: &mut [f32]) {
    if overwrite {
        y.copy_from_slice(x);
    } else {
        y.iter_mut().zip(x).for_each(|(y, x)| *y += x);
    }
}

/// y <- a + b, then an optional relu.
pub fn add(a: &[f32], b: &[f32], relu: bool, y: &mut [f32]) {
    let floor = if relu { 0.0 } else { f32::NEG_INFINITY };
    for (y, (a, b)) in y.iter_mut().zip(a.iter().zip(b)) {
        *y = at_least(floor, a + b);
    }
}

/// y <- the maximum of each window in a row of windows, then an optional relu. `which` receives the number of
/// the first pixel with that maximum, or -1 where the relu returned 0.
pub fn max_pool(window: Window, x: &[f32], relu: bool, y: &mut [f32], which: &mut [f32]) {
    let floor = if relu { 0.0 } else { f32::NEG_INFINITY };
    let channels = window.channels;
    let outs = y.chunks_exact_mut(channels).zip(which.chunks_exact_mut(channels));
    for (column, (y, which)) in outs.enumerate() {
        for from in (0..channels).step_by(LANES) {
            let start = window.at(column) + from;
            if channels - from >= LANES {
                let (mut best, mut at) = (*lanes(x, start), [0.0; LANES]);
                let mut pixel = 0.0;
                for row in 0..window.height {
                    for offset in (0..window.width * channels).step_by(channels) {
                        let x = lanes(x, start + row * window.row + offset);
                        for i in 0..LANES {
                            at[i] = if x[i] > best[i] { pixel } else { at[i] };
                            best[i] = if x[i] > best[i] { x[i] } else { best[i] };
                        }
                        pixel += 1.0;
                    }
                }
                let (y, which) = (lanes_mut(y, from), lanes_mut(which, from));
                for i in 0..LANES {
                    which[i] = if best[i] > floor { at[i] } else { -1.0 };
                    y[i] = at_least(floor, best[i]);
                }
                continue;
            }
            for i in from..channels {
                let (mut best, mut at, mut pixel) = (x[window.at(column) + i], 0.0, 0.0);
                for row in 0..window.height {
                    for offset in (0..window.width * channels).step_by(channels) {
                        let x = x[window.at(column) + i + row * window.row + offset];
                        (best, at) = if x > best { (x, pixel) } else { (best, at) };
                        pixel += 1.0;
                    }
                }
                which[i] = if best > floor { at } else { -1.0 };
                y[i] = at_least(floor, best);
            }
        }
    }
}

/// y <- the mean of each window in a row of windows, then an optional relu.
pub fn mean_pool(window: Window, x: &[f32], relu: bool, y: &mut [f32]) {
    let floor = if relu { 0.0 } else { f32::NEG_INFINITY };
    let share = 1.0 / (window.height * window.width) as f32;
    y.fill(0.0);
    for (column, y) in y.chunks_exact_mut(window.channels).enumerate() {
        for row in 0..window.height {
            let x = &x[window.at(column) + row * window.row..];
            for x in x.chunks_exact(window.channels).take(window.width) {
                y.iter_mut().zip(x).for_each(|(y, x)| *y += x);
            }
        }
        y.iter_mut().for_each(|y| *y = at_least(floor, *y * share));
    }
}

/// Adds, or writes, the gradient of each maximum to the pixel that had it.
pub fn max_pool_backward(dy: &[f32], which: &[f32], window: Window, overwrite: bool, dx: &mut [f32]) {
    let channels = window.channels;
    let outs = dy.chunks_exact(channels).zip(which.chunks_exact(channels));
    for (column, (dy, which)) in outs.enumerate() {
        for from in (0..channels).step_by(LANES) {
            let to = window.at(column) + from;
            let is_whole = channels - from >= LANES && overwrite;
            let len = LANES.min(channels - from);
            let (mut delta, mut place) = ([0.0; LANES], [0.0; LANES]);
            if is_whole {
                (delta, place) = (*lanes(dy, from), *lanes(which, from));
            } else {
                delta[..len].copy_from_slice(&dy[from..from + len]);
                place[..len].copy_from_slice(&which[from..from + len]);
            }
            let mut pixel = 0.0;
            for row in 0..window.height {
                for offset in (0..window.width * channels).step_by(channels) {
                    let to = to + row * window.row + offset;
                    let part: [f32; LANES] =
                        std::array::from_fn(|i| if place[i] == pixel { delta[i] } else { 0.0 });
                    if is_whole {
                        *lanes_mut(dx, to) = part;
                    } else {
                        for (dx, part) in dx[to..to + len].iter_mut().zip(part) {
                            *dx = if overwrite { part } else { *dx + part };
                        }
                    }
                    pixel += 1.0;
                }
            }
        }
    }
}

/// Adds, or writes, equal shares of the gradient of each mean to all pixels of its window.
pub fn mean_pool_backward(dy: &[f32], window: Window, overwrite: bool, dx: &mut [f32]) {
    let share = 1.0 / (window.height * window.width) as f32;
    for (column, dy) in dy.chunks_exact(window.channels).enumerate() {
        for row in 0..window.height {
            let dx = &mut dx[window.at(column) + row * window.row..];
            for dx in dx.chunks_exact_mut(window.channels).take(window.width) {
                for (dx, dy) in dx.iter_mut().zip(dy) {
                    *dx = if overwrite { dy * share } else { *dx + dy * share };
                }
            }
        }
    }
}

/// Returns the sum of the cross-entropy of all rows, and replaces the logits by its gradient,
/// (softmax(logits) - onehot(label)) x weight.
pub fn cross_entropy(
    logits: &mut [f32],
    classes: usize,
    labels: &mut dyn Iterator<Item = usize>,
    weight: f32,
) -> f64 {
    let mut loss_sum = 0.0;
    for (logits, label) in logits.chunks_exact_mut(classes).zip(labels) {
        let highest = logits.iter().fold(f32::NEG_INFINITY, |highest, x| highest.max(*x));
        let right = logits[label] - highest;
        logits.iter_mut().for_each(|x| *x = exp(*x - highest));
        let total: f32 = logits.iter().sum();
        loss_sum += f64::from(total).ln() - f64::from(right);
        let factor = weight / total;
        logits.iter_mut().for_each(|x| *x *= factor);
        logits[label] -= weight;
    }
    loss_sum
}
}

/// Adjacent windows over rows of pixels that are `row` floats apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    pub height: usize,
    pub width: usize,
    pub row: usize,
    pub channels: usize,
}

impl Window {
    /// Where the window at `column` begins.
    #[inline(always)]
    fn at(&self, column: usize) -> usize {
        column * self.width * self.channels
    }
}

#[inline(always)]
fn add_product_lanes(x: &[f32], z: &[f32], sums: &mut [f32], products: &mut [f32]) {
    let channels = sums.len();
    for from in (0..channels).step_by(LANES) {
        let (mut s, mut q) = ([0.0; LANES], [0.0; LANES]);
        let rows = x.chunks_exact(channels).zip(z.chunks_exact(channels));
        let len = LANES.min(channels - from);
        if len == LANES {
            for (x, z) in rows {
                let (x, z) = (lanes(x, from), lanes(z, from));
                for i in 0..LANES {
                    s[i] += x[i];
                    q[i] += x[i] * z[i];
                }
            }
        } else {
            for (x, z) in rows {
                for i in 0..len {
                    s[i] += x[from + i];
                    q[i] += x[from + i] * z[from + i];
                }
            }
        }
        for i in 0..len {
            sums[from + i] += s[i];
            products[from + i] += q[i];
        }
    }
}

#[inline(always)]
fn lanes(pixel: &[f32], from: usize) -> &[f32; LANES] {
    pixel[from..].first_chunk().expect("a full group of channels is left")
}

#[inline(always)]
fn lanes_mut(pixel: &mut [f32], from: usize) -> &mut [f32; LANES] {
    pixel[from..].first_chunk_mut().expect("a full group of channels is left")
}

/// max(x, floor), except that NaN stays NaN: divergence must be visible in the loss.
#[inline(always)]
pub fn at_least(floor: f32, x: f32) -> f32 {
    if x < floor { floor } else { x }
}

/// e^x by a polynomial, with the same bits on every machine and a relative error below 2e-7. Returns 0 or infinity
/// where the result is outside the range of f32.
#[inline(always)]
pub fn exp(x: f32) -> f32 {
    const SHIFT: f32 = 12_582_912.0; // 1.5 x 2^23: adding it leaves a whole number in the low bits.
    let clamped = if x < -87.3 { -87.3 } else { x };
    let clamped = if clamped > 88.7 { 88.7 } else { clamped };
    let whole = (clamped * std::f32::consts::LOG2_E + SHIFT) - SHIFT;
    // ln 2 in two parts, so that the product with a whole number is exact.
    let r = (clamped - whole * 0.693_359_4) - whole * -2.121_944_4e-4;
    let p = 1.987_569_1e-4;
    let p = p * r + 1.398_199_9e-3;
    let p = p * r + 8.333_452e-3;
    let p = p * r + 4.166_579_6e-2;
    let p = p * r + 1.666_666_5e-1;
    let p = p * r + 0.5;
    let p = (p * r * r + r) + 1.0;
    // Two factors, because 2^128 is not a finite f32, but the product of p and two smaller powers can be.
    let half = (whole as i32) >> 1;
    let power = |n: i32| f32::from_bits(((n + 127) as u32) << 23);
    let y = p * power(half) * power(whole as i32 - half);
    let y = if x < -87.3 { 0.0 } else { y };
    let y = if x > 88.7 { f32::INFINITY } else { y };
    if x.is_nan() { x } else { y }
}

/// The number of rows whose highest logit is that of their label; among equal logits, the first counts.
pub fn count_correct(logits: &[f32], classes: usize, labels: impl Iterator<Item = usize>) -> u64 {
    let guesses = logits.chunks_exact(classes).map(highest);
    guesses.zip(labels).filter(|(guess, label)| guess == label).count() as u64
}

/// The class of the highest logit; among equal logits, the first.
pub fn highest(logits: &[f32]) -> usize {
    (1..logits.len()).fold(0, |best, class| if logits[class] > logits[best] { class } else { best })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::Path;

    #[test]
    fn exp_is_accurate_and_saturates_at_the_ends_of_its_range() {
        for i in -8_730..=8_870 {
            let x = i as f32 / 100.0;
            let exact = f64::from(x).exp();
            assert!((f64::from(exp(x)) / exact - 1.0).abs() < 2e-7, "{x}: {} {exact}", exp(x));
        }
        assert_eq!((exp(-1e9), exp(1e9), exp(0.0)), (0.0, f32::INFINITY, 1.0));
        assert!(exp(f32::NAN).is_nan());
    }

    #[test]
    fn large_logits_do_not_overflow() {
        let mut logits = [1000.0, 0.0, -1000.0];

        let loss = cross_entropy(Path::Portable, &mut logits, 3, &mut [1].into_iter(), 1.0);

        assert_eq!((loss, logits), (1000.0, [1.0, -1.0, 0.0]));
    }

    #[test]
    fn a_row_is_correct_if_its_label_has_the_first_highest_logit() {
        let logits = [0.1, 0.3, 0.2, 1.0, 1.0, 0.0];

        assert_eq!(count_correct(&logits, 3, [1, 0].into_iter()), 2);
        assert_eq!(count_correct(&logits, 3, [2, 1].into_iter()), 0);
    }

    #[test]
    fn sums_over_pixels_are_plain_sums_for_any_number_of_channels() {
        for channels in [1, 3, 16, 20, 48] {
            let x: Vec<f32> = (0..7 * channels).map(|i| (i * 37 % 11) as f32 - 5.0).collect();
            let (mut sums, mut squares) = (vec![1.0; channels], vec![2.0; channels]);

            add_moments(Path::best(), &x, &mut sums, &mut squares);

            for c in 0..channels {
                let of = |f: fn(f32) -> f32| (0..7).map(|p| f(x[p * channels + c])).sum::<f32>();
                assert_eq!((sums[c], squares[c]), (1.0 + of(|x| x), 2.0 + of(|x| x * x)));
            }
            let (mut again, mut products) = (vec![1.0; channels], vec![2.0; channels]);
            add_products(Path::best(), &x, &x, &mut again, &mut products);
            assert_eq!((&again, &products), (&sums, &squares));
            let mut again = vec![1.0; channels];
            add_pixels(Path::best(), &x, &mut again);
            assert_eq!(again, sums);
        }
    }
}
