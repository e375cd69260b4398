//! Images in memory, a byte per channel, normalized and augmented as they are read.

use crate::dataset::{Dataset, Extent};
use crate::dice::Dice;
use crate::error::DataError;

/// Labeled images of one extent.
#[derive(Clone, Debug, PartialEq)]
pub struct Images {
    extent: Extent,
    classes: usize,
    /// Image after image, row by row, channels last.
    pixels: Vec<u8>,
    labels: Vec<u8>,
    /// input <- byte x scale + shift, for each number of one row of an image.
    scale: Vec<f32>,
    shift: Vec<f32>,
    augment: Option<Augment>,
}

/// Mean and standard deviation of a channel over a data set, on a scale from 0 to 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Channel {
    pub mean: f32,
    pub deviation: f32,
}

impl Channel {
    /// input <- byte x scale + shift
    pub fn scale(&self) -> f32 {
        1.0 / (255.0 * self.deviation)
    }

    pub fn shift(&self) -> f32 {
        -self.mean / self.deviation
    }
}

/// Augmentation: in every epoch an image is shifted by up to `pad` pixels in each direction (and padded with the mean,
/// zero) and, if `flip`, mirrored with probability 1/2.
///
/// The random numbers depend only on seed, epoch and index, so a sample is the same on every worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Augment {
    pub pad: usize,
    pub flip: bool,
    pub seed: u64,
}

/// Distinguishes these random numbers from others with the same seed.
const AUGMENT: u64 = 0x6175_676d;

impl Images {
    /// Images of one extent; an error if the bytes do not fit it, or a label is invalid.
    pub fn new(
        extent: Extent,
        channels: &[Channel],
        classes: usize,
        pixels: Vec<u8>,
        labels: Vec<u8>,
    ) -> Result<Images, DataError> {
        assert_eq!(channels.len(), extent.channels, "every channel has a mean and a deviation");
        assert!(
            channels.iter().all(|channel| channel.deviation > 0.0),
            "deviations are above zero"
        );
        if labels.is_empty() || extent.is_empty() {
            return Err(DataError::NoImages);
        }
        let (images, bytes_each, bytes) = (labels.len(), extent.len(), pixels.len());
        if images.checked_mul(bytes_each) != Some(bytes) {
            return Err(DataError::Pixels { images, bytes_each, bytes });
        }
        if let Some(image) = labels.iter().position(|label| usize::from(*label) >= classes) {
            return Err(DataError::ImageLabel { image, label: labels[image], classes });
        }
        let row = || channels.iter().cycle().take(extent.width * extent.channels);
        let scale = row().map(Channel::scale).collect();
        let shift = row().map(Channel::shift).collect();
        Ok(Images { extent, classes, pixels, labels, scale, shift, augment: None })
    }

    pub fn augmented(self, augment: Augment) -> Images {
        let Extent { height, width, .. } = self.extent;
        assert!(augment.pad < height.min(width), "a shifted image is still visible in part");
        Images { augment: Some(augment), ..self }
    }

    /// The label of each image.
    pub fn labels(&self) -> &[u8] {
        &self.labels
    }

    fn normalize(&self, bytes: &[u8], into: &mut [f32]) {
        let line = bytes.iter().zip(&self.scale).zip(&self.shift);
        for (to, ((byte, scale), shift)) in into.iter_mut().zip(line) {
            *to = f32::from(*byte) * scale + shift;
        }
    }
}

impl Dataset for Images {
    fn len(&self) -> u64 {
        self.labels.len() as u64
    }

    fn features(&self) -> usize {
        self.extent.len()
    }

    fn classes(&self) -> usize {
        self.classes
    }

    fn extent(&self) -> Extent {
        self.extent
    }

    fn read(&self, index: u64, epoch: u64, into: &mut [f32]) -> u32 {
        let Extent { height, width, channels } = self.extent;
        let line = width * channels;
        let image = &self.pixels[index as usize * into.len()..][..into.len()];
        let crop = self.augment.map_or(Crop::WHOLE, |augment| augment.crop(epoch, index));
        let columns = overlap(crop.right, width);
        let [from, to] = [columns.start * channels, columns.end * channels];
        let source = columns.start.saturating_add_signed(crop.right) * channels;

        let rows = overlap(crop.down, height);
        for (row, into) in into.chunks_exact_mut(line).enumerate() {
            if !rows.contains(&row) {
                into.fill(0.0);
                continue;
            }
            let bytes = &image[row.saturating_add_signed(crop.down) * line..][..line];
            into[..from].fill(0.0);
            self.normalize(&bytes[source..][..to - from], &mut into[from..to]);
            into[to..].fill(0.0);
            if crop.mirrored {
                mirror(into, channels);
            }
        }
        u32::from(self.labels[index as usize])
    }
}

/// The section of an image that is read: row r of the result is row r + down of the image, column c is column
/// c + right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Crop {
    down: isize,
    right: isize,
    mirrored: bool,
}

impl Crop {
    const WHOLE: Crop = Crop { down: 0, right: 0, mirrored: false };
}

impl Augment {
    fn crop(&self, epoch: u64, index: u64) -> Crop {
        let mut dice = Dice::keyed(&[self.seed, AUGMENT, epoch, index]);
        let mut offset = || dice.below(2 * self.pad as u64 + 1) as isize - self.pad as isize;
        let (down, right) = (offset(), offset());
        Crop { down, right, mirrored: self.flip && dice.below(2) == 1 }
    }
}

/// The rows (or columns) of a result of length `len` that lie inside the image when it is shifted by `offset`.
fn overlap(offset: isize, len: usize) -> std::ops::Range<usize> {
    let start = 0usize.saturating_add_signed(-offset);
    start..len.min(len.saturating_add_signed(-offset))
}

/// Reverses the pixels of a row; the channels of a pixel stay in order.
fn mirror(row: &mut [f32], channels: usize) {
    row.reverse();
    if channels > 1 {
        row.chunks_exact_mut(channels).for_each(<[f32]>::reverse);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HALF: Channel = Channel { mean: 0.5, deviation: 0.25 };

    /// One image of 3 x 3 bytes, 1 to 9, without normalization.
    fn square() -> Images {
        let extent = Extent { height: 3, width: 3, channels: 1 };
        let as_is = Channel { mean: 0.0, deviation: 1.0 / 255.0 };
        Images::new(extent, &[as_is], 1, (1..=9).collect(), vec![0]).unwrap()
    }

    fn read(images: &Images, index: u64, epoch: u64) -> Vec<f32> {
        let mut into = vec![f32::NAN; images.features()];
        images.read(index, epoch, &mut into);
        into
    }

    #[test]
    fn every_channel_is_normalized_by_its_own_mean_and_deviation() {
        let extent = Extent { height: 1, width: 2, channels: 2 };
        let channels = [HALF, Channel { mean: 0.0, deviation: 1.0 }];
        let pixels = vec![0, 0, 255, 255, 255, 0, 0, 255];

        let images = Images::new(extent, &channels, 3, pixels, vec![2, 1]).unwrap();

        assert_eq!(read(&images, 0, 0), [-2.0, 0.0, 2.0, 1.0]);
        assert_eq!(read(&images, 1, 7), [2.0, 0.0, -2.0, 1.0]);
        assert_eq!((images.labels(), images.extent(), images.len()), (&[2, 1][..], extent, 2));
    }

    #[test]
    fn a_shifted_and_mirrored_image_is_padded_with_the_mean() {
        let images = square();
        let seen = |down, right, mirrored| {
            let augment = (0..)
                .map(|seed| Augment { pad: 1, flip: true, seed })
                .find(|augment| augment.crop(0, 0) == Crop { down, right, mirrored });
            let read =
                read(&images.clone().augmented(augment.expect("some seed draws this crop")), 0, 0);
            read.iter().map(|x| x.round() as u8).collect::<Vec<_>>()
        };

        assert_eq!(seen(0, 0, false), [1, 2, 3, 4, 5, 6, 7, 8, 9]);
        assert_eq!(seen(0, 0, true), [3, 2, 1, 6, 5, 4, 9, 8, 7]);
        assert_eq!(seen(1, 1, false), [5, 6, 0, 8, 9, 0, 0, 0, 0]);
        assert_eq!(seen(-1, -1, false), [0, 0, 0, 0, 1, 2, 0, 4, 5]);
        assert_eq!(seen(-1, 1, true), [0, 0, 0, 0, 3, 2, 0, 6, 5]);
    }

    #[test]
    fn a_mirrored_pixel_keeps_its_channels_in_order() {
        let mut row = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0];

        mirror(&mut row, 3);

        assert_eq!(row, [4.0, 5.0, 6.0, 1.0, 2.0, 3.0]);
    }

    #[test]
    fn crops_depend_only_on_seed_epoch_and_index() {
        let augment = Augment { pad: 4, flip: true, seed: 1 };
        let crops = |augment: Augment, epoch| (0..50).map(move |i| augment.crop(epoch, i));

        let backwards: Vec<_> = crops(augment, 3).rev().collect();

        assert!(crops(augment, 3).eq(backwards.into_iter().rev()));
        assert!(crops(augment, 3).ne(crops(augment, 4)));
        assert!(crops(augment, 3).ne(crops(Augment { seed: 2, ..augment }, 3)));
    }

    /// Each of the (2 pad + 1)^2 crops is equally likely. A corner is inside the white image in 4 of 9, an edge in 6.
    #[test]
    fn every_crop_and_both_orientations_are_equally_likely() {
        let extent = Extent { height: 3, width: 3, channels: 1 };
        let white = Channel { mean: 0.0, deviation: 1.0 };
        let images = Images::new(extent, &[white], 1, vec![255; 9], vec![0]).unwrap();
        let images = images.augmented(Augment { pad: 1, flip: true, seed: 5 });
        let epochs = 9_000;

        let mut mean = [0.0; 9];
        for epoch in 0..epochs {
            let read = read(&images, 0, epoch);
            mean.iter_mut().zip(read).for_each(|(sum, x)| *sum += x / epochs as f32);
        }

        let (corner, edge) = (4.0 / 9.0, 6.0 / 9.0);
        let expected = [corner, edge, corner, edge, 1.0, edge, corner, edge, corner];
        for (mean, expected) in mean.iter().zip(expected) {
            assert!((mean - expected).abs() < 0.02, "{mean} is not {expected}");
        }
    }

    #[test]
    fn invalid_images_are_refused_with_the_reason() {
        let extent = Extent { height: 1, width: 2, channels: 1 };
        let cases = [
            (vec![0; 3], vec![0, 1], "2 images of 2 bytes need 4, not 3"),
            (vec![0; 4], vec![0, 2], "image 1 has label 2"),
            (vec![], vec![], "at least one image"),
        ];

        for (pixels, labels, reason) in cases {
            let error = Images::new(extent, &[HALF], 2, pixels, labels).unwrap_err().to_string();
            assert!(error.contains(reason), "{error}");
        }
    }
}
