//! Weights for resizing a line of pixels to another length.

/// A pixel of the new line, as a weighted mean of neighboring pixels of the old line from `start` on. The weights add up
/// to one.
#[derive(Clone, Debug, PartialEq)]
pub struct Blend {
    pub start: usize,
    pub weights: Vec<f32>,
}

/// Returns one blend per new pixel: area averaging if the line gets shorter, linear interpolation if it gets longer.
pub fn blends(from: usize, to: usize) -> Vec<Blend> {
    assert!(from > 0 && to > 0, "a line has at least one pixel");
    let ratio = from as f64 / to as f64;
    let blend = if to <= from { covered } else { between };
    (0..to).map(|pixel| blend(pixel, ratio, from)).collect()
}

fn covered(pixel: usize, ratio: f64, from: usize) -> Blend {
    let (left, right) = (pixel as f64 * ratio, (pixel + 1) as f64 * ratio);
    // Despite rounding, the range must not be empty and must not pass the end.
    let start = (left as usize).min(from - 1);
    let end = (right.ceil() as usize).clamp(start + 1, from);
    let overlap = |old: usize| (right.min((old + 1) as f64) - left.max(old as f64)).max(0.0);
    let overlaps: Vec<f64> = (start..end).map(overlap).collect();
    let sum: f64 = overlaps.iter().sum();
    Blend { start, weights: overlaps.iter().map(|overlap| (overlap / sum) as f32).collect() }
}

fn between(pixel: usize, ratio: f64, from: usize) -> Blend {
    let center = ((pixel as f64 + 0.5) * ratio - 0.5).clamp(0.0, (from - 1) as f64);
    let start = (center as usize).min(from.saturating_sub(2));
    let part = (center - start as f64) as f32;
    let weights = if from == 1 { vec![1.0] } else { vec![1.0 - part, part] };
    Blend { start, weights }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resized(line: &[f32], to: usize) -> Vec<f32> {
        let sum = |blend: &Blend| {
            let pixels = line[blend.start..].iter().zip(&blend.weights);
            pixels.map(|(level, weight)| level * weight).sum()
        };
        blends(line.len(), to).iter().map(sum).collect()
    }

    #[test]
    fn a_line_of_the_same_length_is_unchanged() {
        assert_eq!(resized(&[3.0, 7.0, 1.0], 3), [3.0, 7.0, 1.0]);
    }

    #[test]
    fn a_shorter_line_averages_the_pixels_it_covers() {
        assert_eq!(resized(&[1.0, 3.0, 5.0, 9.0], 2), [2.0, 7.0]);
        // Each new pixel covers one and a half old ones.
        let halves = resized(&[0.0, 3.0, 6.0], 2);
        assert!((halves[0] - 1.0).abs() < 1e-6 && (halves[1] - 5.0).abs() < 1e-6, "{halves:?}");
    }

    #[test]
    fn a_longer_line_is_interpolated_linearly() {
        assert_eq!(resized(&[0.0, 4.0], 4), [0.0, 1.0, 3.0, 4.0]);
        assert_eq!(resized(&[5.0], 3), [5.0, 5.0, 5.0]);
    }

    #[test]
    fn weights_add_up_to_one_within_the_line_for_all_lengths() {
        for from in 1..70 {
            for to in 1..70 {
                for Blend { start, weights } in blends(from, to) {
                    assert!(start + weights.len() <= from, "{from} to {to}");
                    let sum: f32 = weights.iter().sum();
                    assert!((sum - 1.0).abs() < 1e-5, "{from} to {to}: {sum}");
                }
            }
        }
    }
}
