//! The built-in data set of handwritten digits.

use crate::dataset::{Extent, Table};
use crate::images::Channel;

pub const EXTENT: Extent = Extent { height: 8, width: 8, channels: 1 };

const PIXELS: usize = 64;
const CLASSES: usize = 10;

/// 65 bytes per image: 64 pixels from 0 to 16, then the digit. See data/README.md for source and
/// licence.
const IMAGES: &[u8] = include_bytes!("../data/digits.bin");

/// The approximate mean of all pixels, so that inputs are centered; they are not scaled.
pub const CHANNEL: Channel = Channel { mean: 0.3, deviation: 1.0 };

/// The UCI optical digits, 8 x 8 pixels, as (train, test): 1,437 and 360 images.
///
/// The split is fixed: every fifth image, starting with the first, is for testing. Nothing is shuffled.
pub fn digits() -> (Table, Table) {
    let empty = Table { extent: EXTENT, classes: CLASSES, inputs: vec![], labels: vec![] };
    let (mut train, mut test) = (empty.clone(), empty);
    for (index, image) in IMAGES.chunks_exact(PIXELS + 1).enumerate() {
        let table = if index % 5 == 0 { &mut test } else { &mut train };
        let input = |pixel: &u8| f32::from(*pixel) / 16.0 - CHANNEL.mean;
        table.inputs.extend(image[..PIXELS].iter().map(input));
        table.labels.push(u32::from(image[PIXELS]));
    }
    (train, test)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dataset::Dataset;

    #[test]
    fn every_fifth_image_is_for_testing() {
        let (train, test) = digits();

        assert_eq!((train.len(), test.len()), (1437, 360));
        assert_eq!(test.labels[..4], [0, 5, 0, 5]);
        assert_eq!(train.labels[..8], [1, 2, 3, 4, 6, 7, 8, 9]);
    }

    #[test]
    fn both_parts_are_well_formed_and_centered() {
        for table in [digits().0, digits().1] {
            let mean = table.inputs.iter().sum::<f32>() / table.inputs.len() as f32;
            assert!(mean.abs() < 0.01, "{mean}");

            let features = table.features();
            let Table { classes, inputs, labels, .. } = table;
            Table::new(features, classes, inputs, labels).unwrap();
        }
    }
}
