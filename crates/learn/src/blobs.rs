//! Synthetic data: points around one center per class, and rows without features.

use crate::dataset::{Dataset, Extent, Table};
use crate::dice::Dice;

/// Points around one center per class, with the classes in turn. Centers are normal with variance 1 per feature;
/// points are normal around their center with standard deviation `spread`.
pub fn blobs(samples: usize, features: usize, classes: usize, seed: u64, spread: f32) -> Table {
    const CENTER: u64 = 0;
    const POINT: u64 = 1;
    let centers: Vec<Vec<f32>> = (0..classes)
        .map(|class| {
            let mut dice = Dice::keyed(&[seed, class as u64, CENTER]);
            (0..features).map(|_| dice.normal() as f32).collect()
        })
        .collect();
    let mut inputs = Vec::with_capacity(samples * features);
    for sample in 0..samples {
        let mut dice = Dice::keyed(&[seed, sample as u64, POINT]);
        let center = &centers[sample % classes];
        inputs.extend(center.iter().map(|center| center + spread * dice.normal() as f32));
    }
    let labels = (0..samples).map(|sample| (sample % classes) as u32).collect();
    Table { extent: Extent::row(features), classes, inputs, labels }
}

/// Rows without features, for the quadratic model, which depends only on a sample's key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Noise {
    pub len: u64,
}

impl Dataset for Noise {
    fn len(&self) -> u64 {
        self.len
    }

    fn features(&self) -> usize {
        0
    }

    fn classes(&self) -> usize {
        1
    }

    fn read(&self, _index: u64, _epoch: u64, _into: &mut [f32]) -> u32 {
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vector::distance_squared;

    #[test]
    fn points_are_around_the_center_of_their_class() {
        let tight = blobs(40, 8, 4, 3, 0.01);

        let row = |index: usize| &tight.inputs[index * 8..][..8];
        for index in 4..40 {
            assert!(distance_squared(row(index), row(index % 4)) < 0.02);
            assert!(distance_squared(row(index), row((index + 1) % 4)) > 1.0);
        }
        assert_eq!(tight.labels[..6], [0, 1, 2, 3, 0, 1]);
    }

    #[test]
    fn points_depend_only_on_the_seed() {
        assert_eq!(blobs(30, 3, 3, 5, 0.5), blobs(30, 3, 3, 5, 0.5));
        assert_ne!(blobs(30, 3, 3, 5, 0.5), blobs(30, 3, 3, 6, 0.5));
    }
}
