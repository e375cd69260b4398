//! Synthetic images whose class is the direction of their stripes, which no single pixel reveals.

use crate::dataset::Extent;
use crate::dice::Dice;
use crate::images::{Channel, Images};

/// The extent of the built-in set.
pub const EXTENT: Extent = Extent { height: 16, width: 16, channels: 1 };

/// The normalization of the images: middle gray, and the approximate standard deviation.
pub const CHANNEL: Channel = Channel { mean: 0.5, deviation: 0.18 };

/// Striped and noisy images, with the classes in turn.
///
/// The phase of the stripes is random, so that every pixel is gray on average and a linear model learns little, while
/// a convolution detects the direction easily. Widths, strengths and colors vary. With the same seed, the first
/// images do not depend on the number of samples.
pub fn patterns(samples: usize, extent: Extent, classes: u8, seed: u64) -> Images {
    const PATTERN: u64 = 2;
    let mut pixels = Vec::with_capacity(samples * extent.len());
    let mut labels = Vec::with_capacity(samples);
    for sample in 0..samples {
        let label = (sample % usize::from(classes)) as u8;
        let mut dice = Dice::keyed(&[seed, sample as u64, PATTERN]);
        let direction = std::f64::consts::PI * f64::from(label) / f64::from(classes);
        let turns_per_pixel = 1.0 / dice.between(4.0, 6.0);
        let (down, right) = (direction.sin() * turns_per_pixel, direction.cos() * turns_per_pixel);
        let start = dice.unit();
        let strengths: Vec<f64> = (0..extent.channels).map(|_| dice.between(0.1, 0.3)).collect();
        for row in 0..extent.height {
            for column in 0..extent.width {
                let turns = start + down * row as f64 + right * column as f64;
                let wave = (std::f64::consts::TAU * turns).sin();
                for strength in &strengths {
                    let gray = 0.5 + strength * wave + 0.1 * dice.normal();
                    pixels.push((255.0 * gray.clamp(0.0, 1.0)).round() as u8);
                }
            }
        }
        labels.push(label);
    }
    let channels = vec![CHANNEL; extent.channels];
    Images::new(extent, &channels, classes.into(), pixels, labels)
        .expect("the pixels and labels fit the extent and classes")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dataset::Dataset;

    const SMALL: Extent = Extent { height: 8, width: 8, channels: 3 };

    #[test]
    fn images_depend_on_the_seed_and_not_on_the_number_of_samples() {
        let (few, many) = (patterns(4, SMALL, 4, 1), patterns(8, SMALL, 4, 1));
        let [mut one, mut other] = [[0.0; 192]; 2];

        for index in 0..4 {
            assert_eq!(few.read(index, 0, &mut one), many.read(index, 9, &mut other));
            assert_eq!(one, other);
        }
        assert_ne!(few, patterns(4, SMALL, 4, 2));
    }

    #[test]
    fn inputs_are_normalized_and_no_pixel_reveals_the_class() {
        let images = patterns(2_000, SMALL, 2, 3);
        let mut input = [0.0; 192];
        let mut means = [[0.0f32; 192]; 2];
        let (mut sum, mut squares) = (0.0, 0.0);
        for index in 0..2_000 {
            let label = images.read(index, 0, &mut input) as usize;
            means[label].iter_mut().zip(input).for_each(|(mean, x)| *mean += x / 1_000.0);
            sum += input.iter().sum::<f32>();
            squares += input.iter().map(|x| x * x).sum::<f32>();
        }

        let count = 2_000.0 * 192.0;
        assert!((sum / count).abs() < 0.03, "{}", sum / count);
        assert!((squares / count - 1.0).abs() < 0.1, "{}", squares / count);
        assert!(means.iter().flatten().all(|mean| mean.abs() < 0.15));
    }
}
