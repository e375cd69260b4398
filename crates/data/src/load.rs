//! Loads data sets by name from their folders.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use paceline_learn::text::ALICE;
use paceline_learn::{Augment, Channel, Dataset, Images, Text, texts};

use crate::catalog::{Entry, File, find};
use crate::cifar::Layout;
use crate::error::{FormatError, LoadError, Remedy};
use crate::folder::{contents, default_root, read_file};
use crate::image_form::{ImageForm, image_form};
use crate::{cifar, idx};

/// A training set and a test set.
#[derive(Clone)]
pub struct Sets {
    pub train: Arc<dyn Dataset>,
    pub test: Arc<dyn Dataset>,
}

/// Number of tokens that a text model sees before the last token it predicts.
pub const CONTEXT: usize = 64;

/// The usual augmentation of small photographs: shifted by up to four pixels, and mirrored half the time.
const PAD: usize = 4;

/// The names that `load` knows. It also accepts any text file, as `text:PATH` or a path that ends with `.txt`.
pub const NAMES: [&str; 5] = ["text", "mnist", "fashion-mnist", "cifar10", "cifar100"];

/// Loads a data set by name, from under `root` or the default folder. Returns `None` if the name is unknown.
pub fn load(name: &str, root: Option<&Path>, seed: u64) -> Option<Result<Sets, LoadError>> {
    if let Some(texts) = text(name) {
        let sets = |(train, test)| Sets { train: Arc::new(train), test: Arc::new(test) };
        return Some(texts.map(sets));
    }
    let sets = |(train, test)| Sets { train: Arc::new(train), test: Arc::new(test) };
    Some(images(find(name)?, root, seed).map(sets))
}

/// Loads a text by name, as (train, test). Returns `None` if the name is not that of a text.
pub fn text(name: &str) -> Option<Result<(Text, Text), LoadError>> {
    if name == "text" {
        return Some(Ok(
            texts(ALICE.as_bytes(), CONTEXT).expect("the built-in text is long enough")
        ));
    }
    let path = name.strip_prefix("text:").or(name.ends_with(".txt").then_some(name))?;
    let path = PathBuf::from(path);
    Some(match read_file(&path) {
        Ok(bytes) => texts(&bytes, CONTEXT)
            .map_err(|error| LoadError::Text { path, problem: error.to_string() }),
        Err(source) => Err(LoadError::ReadText { path, source }),
    })
}

/// Loads images as (train, test). Photographs (CIFAR) are augmented for training, drawings (MNIST) are not.
pub fn images(
    entry: &Entry,
    root: Option<&Path>,
    seed: u64,
) -> Result<(Images, Images), LoadError> {
    let folder = entry.folder(&root.map_or_else(default_root, |root| Ok(root.to_owned()))?);
    let source = Folder { entry, root, path: &folder };
    let ImageForm { channels, classes, .. } =
        image_form(entry.name).expect("every data set of the catalog has an image form");
    match entry.name {
        "cifar10" => source.photographs(Layout { labels_each: 1, classes }, channels, seed),
        "cifar100" => source.photographs(Layout { labels_each: 2, classes }, channels, seed),
        _ => source.drawings(channels, classes),
    }
}

/// The folder of a data set; adds paths and remedies to errors.
struct Folder<'a> {
    entry: &'a Entry,
    root: Option<&'a Path>,
    path: &'a Path,
}

impl Folder<'_> {
    fn drawings(
        &self,
        channels: &[Channel],
        classes: usize,
    ) -> Result<(Images, Images), LoadError> {
        let part = |name: &str| {
            let images = self.parsed(&format!("{name}-images-idx3-ubyte"), idx::images)?;
            let file = format!("{name}-labels-idx1-ubyte");
            let labels = self.parsed(&file, idx::labels)?;
            Images::new(images.extent, channels, classes, images.pixels, labels).map_err(|error| {
                self.invalid(&file, FormatError::Labels { problem: error.to_string() })
            })
        };
        let (train, test) = (part("train")?, part("t10k")?);
        if train.extent() != test.extent() {
            return Err(self.invalid("t10k-images-idx3-ubyte", FormatError::ImageSize));
        }
        Ok((train, test))
    }

    /// The last file is the test set.
    fn photographs(
        &self,
        layout: Layout,
        channels: &[Channel],
        seed: u64,
    ) -> Result<(Images, Images), LoadError> {
        let part = |files: &[File]| {
            let (mut pixels, mut labels) = (vec![], vec![]);
            for file in files {
                self.parsed(file.name, |bytes| {
                    // The format has no header with the number of records.
                    let (len, expected) = (bytes.len() as u64, file.bytes);
                    if len != expected {
                        return Err(FormatError::Length { bytes: len, expected });
                    }
                    cifar::add(&bytes, layout, &mut pixels, &mut labels)
                })?;
            }
            let images = Images::new(cifar::EXTENT, channels, layout.classes, pixels, labels);
            Ok::<_, LoadError>(images.expect("every record has one image and a checked label"))
        };
        let (train, test) = self.entry.files.split_at(self.entry.files.len() - 1);
        let (train, test) = (part(train)?, part(test)?);
        Ok((train.augmented(Augment { pad: PAD, flip: true, seed }), test))
    }

    /// Reads and parses a file.
    fn parsed<T>(
        &self,
        file: &str,
        parse: impl FnOnce(Vec<u8>) -> Result<T, FormatError>,
    ) -> Result<T, LoadError> {
        let bytes = contents(self.path, file).map_err(|(path, source)| LoadError::Read {
            path,
            source,
            remedy: self.remedy(),
        })?;
        let bytes = bytes.ok_or_else(|| LoadError::Missing {
            file: file.to_owned(),
            folder: self.path.to_owned(),
            remedy: self.remedy(),
        })?;
        parse(bytes).map_err(|problem| self.invalid(file, problem))
    }

    fn invalid(&self, file: &str, problem: FormatError) -> LoadError {
        LoadError::Format { path: self.path.join(file), problem, remedy: self.remedy() }
    }

    fn remedy(&self) -> Box<Remedy> {
        Box::new(self.entry.remedy(self.root, self.path))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::catalog::CATALOG;

    fn idx(lengths: &[u32], bytes: &[u8]) -> Vec<u8> {
        let lengths = lengths.iter().flat_map(|length| length.to_be_bytes());
        let kind = (lengths.clone().count() / 4) as u8;
        [0, 0, 8, kind].into_iter().chain(lengths).chain(bytes.iter().copied()).collect()
    }

    /// A folder with a data set of two tiny training images and one test image.
    fn drawings() -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("mnist");
        fs::create_dir(&folder).unwrap();
        let write = |name: &str, bytes: Vec<u8>| fs::write(folder.join(name), bytes).unwrap();
        write("train-images-idx3-ubyte", idx(&[2, 1, 2], &[0, 255, 255, 0]));
        write("train-labels-idx1-ubyte", idx(&[2], &[3, 9]));
        write("t10k-images-idx3-ubyte", idx(&[1, 1, 2], &[0, 0]));
        write("t10k-labels-idx1-ubyte", idx(&[1], &[1]));
        root
    }

    fn refused(name: &str, root: &Path) -> String {
        let refused = load(name, Some(root), 1).expect("the name is known").err();
        refused.expect("it is refused").to_string().replace(root.to_str().unwrap(), "ROOT")
    }

    #[test]
    fn drawings_are_read_and_normalized() {
        let root = drawings();

        let sets = load("mnist", Some(root.path()), 1).unwrap().unwrap();

        let mut image = [0.0; 2];
        assert_eq!(sets.train.read(1, 5, &mut image), 9);
        assert!((image[0] - 2.8215).abs() < 1e-3 && (image[1] + 0.4242).abs() < 1e-3);
        assert_eq!((sets.train.len(), sets.test.len(), sets.test.classes()), (2, 1, 10));
    }

    #[test]
    fn photographs_are_read_and_augmented_for_training_only() {
        static SMALL: Entry = Entry {
            name: "cifar100",
            summary: "",
            files: &[
                File { name: "train.bin", bytes: 3074, sha256: None },
                File { name: "test.bin", bytes: 3074, sha256: None },
            ],
            source: None,
            manual_source: "",
        };
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("cifar100");
        fs::create_dir(&folder).unwrap();
        let record: Vec<u8> = [19, 99].into_iter().chain((0..3072).map(|i| i as u8)).collect();
        fs::write(folder.join("train.bin"), &record).unwrap();
        fs::write(folder.join("test.bin"), &record).unwrap();

        let (train, test) = images(&SMALL, Some(root.path()), 1).unwrap();

        let read = |images: &Images, epoch| {
            let mut image = vec![0.0; 3072];
            assert_eq!(images.read(0, epoch, &mut image), 99);
            image
        };
        assert_eq!(read(&test, 0), read(&test, 1));
        assert_ne!(read(&train, 0), read(&train, 1));
        assert_eq!((train.len(), train.classes(), test.len()), (1, 100, 1));

        fs::write(folder.join("test.bin"), &record[1..]).unwrap();
        let error = images(&SMALL, Some(root.path()), 1).unwrap_err().to_string();
        assert!(error.contains("test.bin: the file has 3073 bytes instead of 3074"), "{error}");
    }

    #[test]
    fn missing_or_damaged_files_are_named_together_with_a_remedy() {
        let root = drawings();
        let write = |name: &str, bytes: Vec<u8>| {
            fs::write(root.path().join("mnist").join(name), bytes).unwrap();
            refused("mnist", root.path())
        };
        let remedy = "run `paceline data get mnist --dir ROOT` to fetch it";

        assert_eq!(
            write("t10k-labels-idx1-ubyte", idx(&[2], &[1])),
            format!(
                "ROOT/mnist/t10k-labels-idx1-ubyte: truncated: 2 labels need 10 bytes, the file has 9; {remedy}"
            )
        );
        let mismatch = write("t10k-labels-idx1-ubyte", idx(&[2], &[1, 2]));
        let start = "ROOT/mnist/t10k-labels-idx1-ubyte: the labels do not match the images: ";
        assert!(mismatch.starts_with(start) && mismatch.ends_with(remedy), "{mismatch}");
        assert!(
            write("train-labels-idx1-ubyte", idx(&[2], &[1, 10])).contains("image 1 has label 10")
        );
        assert!(write("train-images-idx3-ubyte", b"<html>".repeat(9)).contains("not an IDX file"));
        fs::remove_file(root.path().join("mnist/train-images-idx3-ubyte")).unwrap();
        assert_eq!(
            refused("mnist", root.path()),
            format!("there is no train-images-idx3-ubyte in ROOT/mnist; {remedy}")
        );
        assert_eq!(
            refused("cifar100", root.path()),
            "there is no train.bin in ROOT/cifar100; download the binary version of CIFAR-100 (cifar-100-binary.tar.gz) by hand and put train.bin, test.bin into ROOT/cifar100"
        );
    }

    #[test]
    fn a_text_is_built_in_or_a_file() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("mine.txt");
        fs::write(&path, "to be or not to be. ".repeat(100)).unwrap();
        let path = path.to_str().unwrap();

        let classes = |name: &str| load(name, None, 1).unwrap().unwrap().train.classes();
        let refused = |name: &str| load(name, None, 1).unwrap().err().expect("it is refused");

        assert_eq!(classes("text"), 70);
        assert_eq!(classes(path), 8);
        assert_eq!(classes(&format!("text:{path}")), 8);
        let absent = refused("text:no/such").to_string();
        assert!(absent.starts_with("cannot read the text no/such: "), "{absent}");
        fs::write(path, "short").unwrap();
        let short = refused(path);
        assert!(matches!(&short, LoadError::Text { path, .. } if path.ends_with("mine.txt")));
        assert!(load("minst", None, 1).is_none());
    }

    #[test]
    fn every_entry_of_the_catalog_can_be_loaded_by_name() {
        let nowhere = Path::new("/nonexistent");
        for entry in &CATALOG {
            assert!(NAMES.contains(&entry.name));
            let error = refused(entry.name, nowhere);
            assert!(error.starts_with("there is no "), "{error}");
        }
    }

    /// Checked on the test set, which is not augmented and has nearly the same statistics as the training set.
    #[test]
    #[ignore = "needs the files of mnist, fashion-mnist and cifar10"]
    fn normalized_images_have_mean_zero_and_variance_one() {
        for name in ["mnist", "fashion-mnist", "cifar10"] {
            let test = load(name, None, 1).unwrap().unwrap().test;
            let channels = test.extent().channels;
            let mut image = vec![0.0; test.features()];
            let mut counts = vec![0; test.classes()];
            let mut sums = vec![(0.0, 0.0); channels];
            for index in 0..test.len() {
                counts[test.read(index, 0, &mut image) as usize] += 1;
                for (at, x) in image.iter().enumerate() {
                    let (sum, squares) = &mut sums[at % channels];
                    *sum += f64::from(*x);
                    *squares += f64::from(x * x);
                }
            }

            assert!(name == "mnist" || counts.iter().all(|count| *count == 1_000), "{name}");
            let count = test.len() as f64 * (test.features() / channels) as f64;
            for (sum, squares) in sums {
                let (mean, variance) = (sum / count, squares / count);
                assert!(mean.abs() < 0.02, "{name}: {mean}");
                assert!((variance - 1.0).abs() < 0.02, "{name}: {variance}");
            }
        }
    }
}
