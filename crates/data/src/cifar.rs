//! The binary format of CIFAR-10 and CIFAR-100: records of labels followed by a red, a green and a blue plane.

use paceline_learn::Extent;

use crate::error::FormatError;

pub const EXTENT: Extent = Extent { height: 32, width: 32, channels: 3 };

/// Pixels of one plane.
pub(crate) const PLANE: usize = EXTENT.height * EXTENT.width;

/// The layout of a record. If an image has several labels (CIFAR-100: coarse, fine), the last one is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    pub labels_each: usize,
    pub classes: usize,
}

/// Appends the images of one file, channels last, and their labels.
pub fn add(
    file: &[u8],
    layout: Layout,
    pixels: &mut Vec<u8>,
    labels: &mut Vec<u8>,
) -> Result<(), FormatError> {
    let Layout { labels_each, classes } = layout;
    let record = labels_each + EXTENT.len();
    if file.is_empty() || !file.len().is_multiple_of(record) {
        return Err(FormatError::CifarRecords { record, bytes: file.len() });
    }
    pixels.reserve(file.len() / record * EXTENT.len());
    for (image, record) in file.chunks_exact(record).enumerate() {
        let label = record[labels_each - 1];
        if usize::from(label) >= classes {
            return Err(FormatError::Label { image, label, classes });
        }
        labels.push(label);
        let (red, others) = record[labels_each..].split_at(PLANE);
        let (green, blue) = others.split_at(PLANE);
        for ((red, green), blue) in red.iter().zip(green).zip(blue) {
            pixels.extend([*red, *green, *blue]);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEN: Layout = Layout { labels_each: 1, classes: 10 };

    /// An image whose first pixels are 1, 2, 3 in red, 101, 102, 103 in green, 201, 202, 203 in blue.
    fn image() -> Vec<u8> {
        let mut planes = vec![0; EXTENT.len()];
        for (plane, first) in planes.chunks_exact_mut(PLANE).zip([1, 101, 201]) {
            plane[..3].copy_from_slice(&[first, first + 1, first + 2]);
        }
        planes
    }

    #[test]
    fn planes_become_pixels_and_the_last_label_is_used() {
        let hundred = Layout { labels_each: 2, classes: 100 };
        for (layout, label) in [(TEN, vec![7]), (hundred, vec![3, 42])] {
            let file = [label.clone(), image(), label.clone(), image()].concat();
            let (mut pixels, mut labels) = (vec![], vec![]);

            add(&file, layout, &mut pixels, &mut labels).unwrap();

            let last = *label.last().unwrap();
            assert_eq!(labels, [last, last]);
            assert_eq!(pixels.len(), 2 * EXTENT.len());
            assert_eq!(pixels[EXTENT.len()..][..6], [1, 101, 201, 2, 102, 202]);
        }
    }

    #[test]
    fn a_file_that_ends_within_a_record_is_refused() {
        let file = [vec![0], image(), vec![0], image()].concat();
        for len in [0, 1, 2, 3072, 3074, 4000, 6145] {
            let error = add(&file[..len], TEN, &mut vec![], &mut vec![]).unwrap_err();
            assert_eq!(error, FormatError::CifarRecords { record: 3073, bytes: len });
        }
    }

    #[test]
    fn a_label_without_a_class_is_reported_with_its_image() {
        let file = [vec![9], image(), vec![10], image()].concat();

        let error = add(&file, TEN, &mut vec![], &mut vec![]).unwrap_err();

        assert_eq!(error.to_string(), "image 1 has label 10, but there are only 10 classes");
    }
}
