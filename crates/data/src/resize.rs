//! Which places of a line make up each place of a longer or shorter one.

/// A place of the new line: neighboring places of the old one from `start` on, and how much each counts. The weights
/// add up to one.
#[derive(Clone, Debug, PartialEq)]
pub struct Blend {
    pub start: usize,
    pub weights: Vec<f32>,
}

/// The mean of what a place covers when the line gets shorter, and the line between its neighbors when it gets longer.
pub fn blends(from: usize, to: usize) -> Vec<Blend> {
    assert!(from > 0 && to > 0, "a line has at least one place");
    let ratio = from as f64 / to as f64;
    let blend = if to <= from { covered } else { between };
    (0..to).map(|place| blend(place, ratio, from)).collect()
}

fn covered(place: usize, ratio: f64, from: usize) -> Blend {
    let (left, right) = (place as f64 * ratio, (place + 1) as f64 * ratio);
    // Rounding must leave a place to look at, and none behind the end.
    let start = (left as usize).min(from - 1);
    let end = (right.ceil() as usize).clamp(start + 1, from);
    let overlap = |old: usize| (right.min((old + 1) as f64) - left.max(old as f64)).max(0.0);
    let overlaps: Vec<f64> = (start..end).map(overlap).collect();
    let sum: f64 = overlaps.iter().sum();
    Blend { start, weights: overlaps.iter().map(|overlap| (overlap / sum) as f32).collect() }
}

fn between(place: usize, ratio: f64, from: usize) -> Blend {
    let center = ((place as f64 + 0.5) * ratio - 0.5).clamp(0.0, (from - 1) as f64);
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
            let places = line[blend.start..].iter().zip(&blend.weights);
            places.map(|(level, weight)| level * weight).sum()
        };
        blends(line.len(), to).iter().map(sum).collect()
    }

    #[test]
    fn a_line_of_the_same_length_stays_as_it_is() {
        assert_eq!(resized(&[3.0, 7.0, 1.0], 3), [3.0, 7.0, 1.0]);
    }

    #[test]
    fn a_shorter_line_has_the_mean_of_what_each_place_covers() {
        assert_eq!(resized(&[1.0, 3.0, 5.0, 9.0], 2), [2.0, 7.0]);
        // A place and a half each.
        let halves = resized(&[0.0, 3.0, 6.0], 2);
        assert!((halves[0] - 1.0).abs() < 1e-6 && (halves[1] - 5.0).abs() < 1e-6, "{halves:?}");
    }

    #[test]
    fn a_longer_line_goes_straight_from_place_to_place() {
        assert_eq!(resized(&[0.0, 4.0], 4), [0.0, 1.0, 3.0, 4.0]);
        assert_eq!(resized(&[5.0], 3), [5.0, 5.0, 5.0]);
    }

    #[test]
    fn whatever_the_lengths_weights_add_up_to_one_within_the_line() {
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
