//! The image format and class names of each data set, known without reading its files.

use paceline_learn::{Channel, Extent, digits, patterns};

use crate::cifar;

/// The format of a data set's images, which a model trained on them expects as input.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ImageForm {
    pub extent: Extent,
    /// Mean and deviation of each channel, for normalization.
    pub channels: &'static [Channel],
    pub classes: usize,
    /// The names of the classes; empty if classes are just numbers.
    names: &'static [&'static str],
}

const GRAY_28: Extent = Extent { height: 28, width: 28, channels: 1 };

// Means and deviations are those of the training sets.
const MNIST: [Channel; 1] = [channel(0.1307, 0.3081)];
const FASHION: [Channel; 1] = [channel(0.2860, 0.3530)];
const CIFAR10: [Channel; 3] =
    [channel(0.4914, 0.2470), channel(0.4822, 0.2435), channel(0.4465, 0.2616)];
const CIFAR100: [Channel; 3] =
    [channel(0.5071, 0.2673), channel(0.4865, 0.2564), channel(0.4409, 0.2762)];

const fn channel(mean: f32, deviation: f32) -> Channel {
    Channel { mean, deviation }
}

const CLOTHES: [&str; 10] = [
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
];

const THINGS: [&str; 10] =
    ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"];

/// Returns the format of a data set's images; `None` if the data set is unknown or does not consist of images.
pub fn image_form(data: &str) -> Option<ImageForm> {
    let form = |extent, channels, names| ImageForm { extent, channels, classes: 10, names };
    Some(match data {
        "digits" => form(digits::EXTENT, &[digits::CHANNEL], &[]),
        "patterns" => form(patterns::EXTENT, &[patterns::CHANNEL], &[]),
        "mnist" => form(GRAY_28, &MNIST, &[]),
        "fashion-mnist" => form(GRAY_28, &FASHION, &CLOTHES),
        "cifar10" => form(cifar::EXTENT, &CIFAR10, &THINGS),
        "cifar100" => ImageForm { classes: 100, ..form(cifar::EXTENT, &CIFAR100, &[]) },
        _ => return None,
    })
}

/// Returns the name of a class, or its number if classes have no names.
pub fn class_name(data: &str, class: usize) -> String {
    let name = image_form(data).and_then(|form| form.names.get(class).copied());
    name.map_or_else(|| class.to_string(), str::to_owned)
}

impl ImageForm {
    /// Normalizes levels from 0 to 255 (row by row, channels last) in the same way as the training images.
    pub fn normalize(&self, levels: &mut [f32]) {
        for pixel in levels.chunks_exact_mut(self.channels.len()) {
            for (level, channel) in pixel.iter_mut().zip(self.channels) {
                *level = *level * channel.scale() + channel.shift();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use paceline_learn::{Dataset, Images};

    use super::*;
    use crate::CATALOG;

    #[test]
    fn every_data_set_of_images_has_a_consistent_form() {
        let known = CATALOG.iter().map(|entry| entry.name).chain(["digits", "patterns"]);
        for name in known {
            let form = image_form(name).expect(name);
            assert_eq!(form.channels.len(), form.extent.channels, "{name}");
            assert!(form.names.is_empty() || form.names.len() == form.classes, "{name}");
        }
        assert_eq!(image_form("text"), None);
    }

    #[test]
    fn classes_have_names_or_else_numbers() {
        assert_eq!(class_name("fashion-mnist", 9), "Ankle boot");
        assert_eq!(class_name("cifar10", 3), "cat");
        assert_eq!(class_name("mnist", 7), "7");
        assert_eq!(class_name("cifar100", 99), "99");
        assert_eq!(class_name("blobs", 2), "2");
    }

    #[test]
    fn normalized_levels_equal_the_training_inputs_bit_for_bit() {
        let form = image_form("cifar10").unwrap();
        let bytes: Vec<u8> = (0..form.extent.len()).map(|i| (i % 256) as u8).collect();
        let images = Images::new(form.extent, form.channels, 10, bytes.clone(), vec![0]).unwrap();
        let mut expected = vec![0.0; bytes.len()];
        images.read(0, 0, &mut expected);

        let mut levels: Vec<f32> = bytes.iter().map(|byte| f32::from(*byte)).collect();
        form.normalize(&mut levels);

        assert_eq!(levels, expected);
    }
}
