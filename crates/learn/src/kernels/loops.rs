//! Plain loops over rows of channels; [`Path::run`](super::Path::run) compiles them for a processor.
//!
//! Sums over pixels keep a lane per channel, so that the width of vectors changes no bit.

/// Channels that are summed at a time: they stay in registers while pixels go by.
const LANES: usize = 16;

/// sum += x and squares += x^2, per channel, over the pixels of a row.
#[inline(always)]
pub fn add_moments(pixels: &[f32], sums: &mut [f32], squares: &mut [f32]) {
    let channels = sums.len();
    lanes(channels, |from, len| {
        let (mut s, mut q) = ([0.0; LANES], [0.0; LANES]);
        if len == LANES {
            for pixel in pixels.chunks_exact(channels) {
                let pixel: &[f32; LANES] = pixel[from..from + LANES].try_into().expect("16");
                for i in 0..LANES {
                    s[i] += pixel[i];
                    q[i] += pixel[i] * pixel[i];
                }
            }
        } else {
            for pixel in pixels.chunks_exact(channels) {
                for i in 0..len {
                    s[i] += pixel[from + i];
                    q[i] += pixel[from + i] * pixel[from + i];
                }
            }
        }
        for i in 0..len {
            sums[from + i] += s[i];
            squares[from + i] += q[i];
        }
    });
}

/// sums += d and products += d z, per channel, over the pixels of a row.
#[inline(always)]
pub fn add_products(deltas: &[f32], pixels: &[f32], sums: &mut [f32], products: &mut [f32]) {
    let channels = sums.len();
    lanes(channels, |from, len| {
        let (mut s, mut q) = ([0.0; LANES], [0.0; LANES]);
        let rows = deltas.chunks_exact(channels).zip(pixels.chunks_exact(channels));
        if len == LANES {
            for (d, z) in rows {
                let d: &[f32; LANES] = d[from..from + LANES].try_into().expect("16");
                let z: &[f32; LANES] = z[from..from + LANES].try_into().expect("16");
                for i in 0..LANES {
                    s[i] += d[i];
                    q[i] += d[i] * z[i];
                }
            }
        } else {
            for (d, z) in rows {
                for i in 0..len {
                    s[i] += d[from + i];
                    q[i] += d[from + i] * z[from + i];
                }
            }
        }
        for i in 0..len {
            sums[from + i] += s[i];
            products[from + i] += q[i];
        }
    });
}

/// sums += d, per channel, over the pixels of a row.
#[inline(always)]
pub fn add_pixels(deltas: &[f32], sums: &mut [f32]) {
    let channels = sums.len();
    lanes(channels, |from, len| {
        let mut s = [0.0; LANES];
        for d in deltas.chunks_exact(channels) {
            if len == LANES {
                let d: &[f32; LANES] = d[from..from + LANES].try_into().expect("16");
                for i in 0..LANES {
                    s[i] += d[i];
                }
            } else {
                (0..len).for_each(|i| s[i] += d[from + i]);
            }
        }
        (0..len).for_each(|i| sums[from + i] += s[i]);
    });
}

#[inline(always)]
fn lanes(channels: usize, mut each: impl FnMut(usize, usize)) {
    let mut from = 0;
    while from < channels {
        let len = LANES.min(channels - from);
        each(from, len);
        from += len;
    }
}

/// y <- x scale + shift (+ skip), per channel, and relu if wanted.
#[inline(always)]
pub fn scale_shift(
    x: &[f32],
    scale: &[f32],
    shift: &[f32],
    skip: Option<&[f32]>,
    relu: bool,
    y: &mut [f32],
) {
    let channels = scale.len();
    let floor = if relu { 0.0 } else { f32::NEG_INFINITY };
    let rows = x.chunks_exact(channels).zip(y.chunks_exact_mut(channels));
    match skip {
        None => {
            for (x, y) in rows {
                for i in 0..channels {
                    y[i] = at_least(floor, x[i] * scale[i] + shift[i]);
                }
            }
        }
        Some(skip) => {
            for ((x, y), skip) in rows.zip(skip.chunks_exact(channels)) {
                for i in 0..channels {
                    y[i] = at_least(floor, x[i] * scale[i] + shift[i] + skip[i]);
                }
            }
        }
    }
}

/// dz <- a d + b z + c, per channel.
#[inline(always)]
pub fn combine(d: &[f32], z: &[f32], [a, b, c]: [&[f32]; 3], dz: &mut [f32]) {
    let channels = a.len();
    let rows = d.chunks_exact(channels).zip(z.chunks_exact(channels));
    for ((d, z), dz) in rows.zip(dz.chunks_exact_mut(channels)) {
        for i in 0..channels {
            dz[i] = a[i] * d[i] + (b[i] * z[i] + c[i]);
        }
    }
}

/// d <- d where the relu was open, else 0.
#[inline(always)]
pub fn close(d: &mut [f32], y: &[f32]) {
    for (d, y) in d.iter_mut().zip(y) {
        *d = if *y > 0.0 { *d } else { 0.0 };
    }
}

/// y <- x, or y <- y + x.
#[inline(always)]
pub fn put(x: &[f32], fresh: bool, y: &mut [f32]) {
    if fresh {
        y.copy_from_slice(x);
    } else {
        y.iter_mut().zip(x).for_each(|(y, x)| *y += x);
    }
}

/// max(x, floor), but what is not a number stays so: divergence must show in the loss.
#[inline(always)]
pub fn at_least(floor: f32, x: f32) -> f32 {
    if x < floor { floor } else { x }
}

/// e^x by a polynomial, the same bits everywhere; the error is below 2e-7 of the result. Outside of what
/// f32 holds it gives 0 or infinity.
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
    // Two factors, for 2^128 is not a number but its half squared is within reach.
    let half = (whole as i32) >> 1;
    let power = |n: i32| f32::from_bits(((n + 127) as u32) << 23);
    let y = p * power(half) * power(whole as i32 - half);
    let y = if x < -87.3 { 0.0 } else { y };
    let y = if x > 88.7 { f32::INFINITY } else { y };
    if x.is_nan() { x } else { y }
}

/// The cross-entropy of each row, summed; logits become (softmax(logits) - onehot(label)) x weight, its
/// gradient.
pub fn cross_entropy(
    logits: &mut [f32],
    classes: usize,
    labels: impl Iterator<Item = usize>,
    weight: f32,
) -> f64 {
    let mut loss_sum = 0.0;
    for (logits, label) in logits.chunks_exact_mut(classes).zip(labels) {
        let highest = logits.iter().fold(f32::NEG_INFINITY, |highest, x| highest.max(*x));
        let right = logits[label] - highest;
        let mut total = 0.0;
        for x in logits.iter_mut() {
            *x = exp(*x - highest);
        }
        logits.iter().for_each(|x| total += x);
        loss_sum += f64::from(total).ln() - f64::from(right);
        let factor = weight / total;
        logits.iter_mut().for_each(|x| *x *= factor);
        logits[label] -= weight;
    }
    loss_sum
}

/// How many rows have their highest logit at their label; the first of equals counts.
pub fn count_correct(
    logits: &[f32],
    classes: usize,
    labels: impl Iterator<Item = usize>,
) -> u64 {
    let guesses = logits.chunks_exact(classes).map(highest);
    guesses.zip(labels).filter(|(guess, label)| guess == label).count() as u64
}

/// The class of the highest logit; the first of equals.
pub fn highest(logits: &[f32]) -> usize {
    (1..logits.len()).fold(0, |best, class| if logits[class] > logits[best] { class } else { best })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_is_right_to_the_last_bits_and_at_its_ends() {
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

        let loss = cross_entropy(&mut logits, 3, [1].into_iter(), 1.0);

        assert_eq!((loss, logits), (1000.0, [1.0, -1.0, 0.0]));
    }

    #[test]
    fn a_class_is_right_when_its_logit_is_the_first_highest() {
        let logits = [0.1, 0.3, 0.2, 1.0, 1.0, 0.0];

        assert_eq!(count_correct(&logits, 3, [1, 0].into_iter()), 2);
        assert_eq!(count_correct(&logits, 3, [2, 1].into_iter()), 0);
    }

    #[test]
    fn sums_over_pixels_are_plain_sums_for_any_number_of_channels() {
        for channels in [1, 3, 16, 20, 48] {
            let x: Vec<f32> = (0..7 * channels).map(|i| (i * 37 % 11) as f32 - 5.0).collect();
            let (mut sums, mut squares) = (vec![1.0; channels], vec![2.0; channels]);

            add_moments(&x, &mut sums, &mut squares);

            for c in 0..channels {
                let of = |f: fn(f32) -> f32| (0..7).map(|p| f(x[p * channels + c])).sum::<f32>();
                assert_eq!((sums[c], squares[c]), (1.0 + of(|x| x), 2.0 + of(|x| x * x)));
            }
            let (mut again, mut products) = (vec![1.0; channels], vec![2.0; channels]);
            add_products(&x, &x, &mut again, &mut products);
            assert_eq!((&again, &products), (&sums, &squares));
            let mut again = vec![1.0; channels];
            add_pixels(&x, &mut again);
            assert_eq!(again, sums);
        }
    }
}
