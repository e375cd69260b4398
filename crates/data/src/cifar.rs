//! The binary form of CIFAR-10 and CIFAR-100: records of labels, then a red, a green and a blue plane.

use paceline_learn::Extent;

pub const EXTENT: Extent = Extent { height: 32, width: 32, channels: 3 };

/// Pixels of one plane.
pub(crate) const PLANE: usize = EXTENT.height * EXTENT.width;

/// Which of the two sets it is. Of several labels in front of an image (CIFAR-100: coarse, fine) the last counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Form {
    pub labels_each: usize,
    pub classes: usize,
}

/// Adds the images of one file, channels last, and their labels.
pub fn add(
    file: &[u8],
    form: Form,
    pixels: &mut Vec<u8>,
    labels: &mut Vec<u8>,
) -> Result<(), String> {
    let Form { labels_each, classes } = form;
    let record = labels_each + EXTENT.len();
    if file.is_empty() || !file.len().is_multiple_of(record) {
        return Err(format!(
            "is cut short or foreign: {} bytes are not records of {record}",
            file.len()
        ));
    }
    pixels.reserve(file.len() / record * EXTENT.len());
    for (index, record) in file.chunks_exact(record).enumerate() {
        let label = record[labels_each - 1];
        if usize::from(label) >= classes {
            return Err(format!(
                "has label {label} at image {index}, but there are {classes} classes"
            ));
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

    const TEN: Form = Form { labels_each: 1, classes: 10 };

    /// An image whose first pixels are 1, 2, 3 in red, 101, 102, 103 in green, 201, 202, 203 in blue.
    fn image() -> Vec<u8> {
        let mut planes = vec![0; EXTENT.len()];
        for (plane, first) in planes.chunks_exact_mut(PLANE).zip([1, 101, 201]) {
            plane[..3].copy_from_slice(&[first, first + 1, first + 2]);
        }
        planes
    }

    #[test]
    fn planes_become_pixels_and_the_last_label_counts() {
        let hundred = Form { labels_each: 2, classes: 100 };
        for (form, label) in [(TEN, vec![7]), (hundred, vec![3, 42])] {
            let file = [label.clone(), image(), label.clone(), image()].concat();
            let (mut pixels, mut labels) = (vec![], vec![]);

            add(&file, form, &mut pixels, &mut labels).unwrap();

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
            let said = add(&file[..len], TEN, &mut vec![], &mut vec![]).unwrap_err();
            assert_eq!(
                said,
                format!("is cut short or foreign: {len} bytes are not records of 3073")
            );
        }
    }

    #[test]
    fn a_label_without_a_class_is_told_with_its_place() {
        let file = [vec![9], image(), vec![10], image()].concat();

        let said = add(&file, TEN, &mut vec![], &mut vec![]).unwrap_err();

        assert_eq!(said, "has label 10 at image 1, but there are 10 classes");
    }
}
