//! Reads a data set from its folder, or says in one sentence why not.

use std::path::Path;
use std::sync::Arc;

use paceline_learn::text::ALICE;
use paceline_learn::{Augment, Channel, Dataset, Images, Text, texts};

use crate::catalog::{Entry, File, find};
use crate::cifar::Form;
use crate::folder::{bounded, contents, default_root};
use crate::image_form::{ImageForm, image_form};
use crate::{cifar, idx};

/// What is learned from, and what it is judged by.
#[derive(Clone)]
pub struct Sets {
    pub train: Arc<dyn Dataset>,
    pub test: Arc<dyn Dataset>,
}

/// Tokens that a model of a text sees before the last one it tells.
pub const CONTEXT: usize = 64;

/// The most common way to show small photographs: moved by up to four pixels, and mirrored half the time.
const PAD: usize = 4;

/// The names that `load` knows; a text of one's own is `text:PATH`, or a path that ends with `.txt`.
pub const NAMES: [&str; 5] = ["text", "mnist", "fashion-mnist", "cifar10", "cifar100"];

/// A data set by name, from under `root` or the usual folder; `None` if there is none of that name.
pub fn load(name: &str, root: Option<&Path>, seed: u64) -> Option<Result<Sets, String>> {
    if let Some(texts) = text(name) {
        let sets = |(train, test)| Sets { train: Arc::new(train), test: Arc::new(test) };
        return Some(texts.map(sets));
    }
    let sets = |(train, test)| Sets { train: Arc::new(train), test: Arc::new(test) };
    Some(images(find(name)?, root, seed).map(sets))
}

/// A text by name, as (train, test); `None` if the name is not that of a text.
pub fn text(name: &str) -> Option<Result<(Text, Text), String>> {
    if name == "text" {
        return Some(texts(ALICE.as_bytes(), CONTEXT).map_err(|error| error.to_string()));
    }
    let path = name.strip_prefix("text:").or(name.ends_with(".txt").then_some(name))?;
    let bytes = std::fs::File::open(path).map_err(|error| error.to_string()).and_then(bounded);
    Some(match bytes {
        Ok(bytes) => texts(&bytes, CONTEXT).map_err(|why| format!("{path}: {why}")),
        Err(why) => Err(format!("cannot read the text {path}: {why}")),
    })
}

/// Images as (train, test). Photographs are augmented for training, drawings are not.
pub fn images(entry: &Entry, root: Option<&Path>, seed: u64) -> Result<(Images, Images), String> {
    let folder = entry.folder(&root.map_or_else(default_root, |root| Ok(root.to_owned()))?);
    let source = Folder { entry, root, path: &folder };
    let ImageForm { channels, classes, .. } =
        image_form(entry.name).expect("what is in the catalog has a known form");
    match entry.name {
        "cifar10" => source.photographs(Form { labels_each: 1, classes }, channels, seed),
        "cifar100" => source.photographs(Form { labels_each: 2, classes }, channels, seed),
        _ => source.drawings(channels, classes),
    }
}

/// Where a data set's files are looked for, and what to do about those that are not right.
struct Folder<'a> {
    entry: &'a Entry,
    root: Option<&'a Path>,
    path: &'a Path,
}

impl Folder<'_> {
    fn drawings(&self, channels: &[Channel], classes: usize) -> Result<(Images, Images), String> {
        let part = |name: &str| {
            let images = self.parsed(&format!("{name}-images-idx3-ubyte"), idx::images)?;
            let file = format!("{name}-labels-idx1-ubyte");
            let labels = self.parsed(&file, idx::labels)?;
            Images::new(images.extent, channels, classes, images.pixels, labels)
                .map_err(|why| self.broken(&file, &format!("does not fit its images: {why}")))
        };
        let (train, test) = (part("train")?, part("t10k")?);
        if train.extent() != test.extent() {
            return Err(self.broken("t10k-images-idx3-ubyte", "has images of another size"));
        }
        Ok((train, test))
    }

    /// The last file is for testing.
    fn photographs(
        &self,
        form: Form,
        channels: &[Channel],
        seed: u64,
    ) -> Result<(Images, Images), String> {
        let part = |files: &[File]| {
            let (mut pixels, mut labels) = (vec![], vec![]);
            for file in files {
                self.parsed(file.name, |bytes| {
                    // Records have no header that would tell how many there are.
                    if bytes.len() as u64 != file.bytes {
                        return Err(format!("has {} bytes, not {}", bytes.len(), file.bytes));
                    }
                    cifar::add(&bytes, form, &mut pixels, &mut labels)
                })?;
            }
            Images::new(cifar::EXTENT, channels, form.classes, pixels, labels)
                .map_err(|error| error.to_string())
        };
        let (train, test) = self.entry.files.split_at(self.entry.files.len() - 1);
        let (train, test) = (part(train)?, part(test)?);
        Ok((train.augmented(Augment { pad: PAD, flip: true, seed }), test))
    }

    /// What a file says, or the sentence that names it, what is wrong, and what to do.
    fn parsed<T>(
        &self,
        file: &str,
        parse: impl FnOnce(Vec<u8>) -> Result<T, String>,
    ) -> Result<T, String> {
        let remedy = || self.entry.remedy(self.root, self.path);
        let bytes = contents(self.path, file).map_err(|why| format!("{why}; {}", remedy()))?;
        let bytes = bytes.ok_or_else(|| {
            format!("there is no {file} in {}; {}", self.path.display(), remedy())
        })?;
        parse(bytes).map_err(|why| self.broken(file, &why))
    }

    fn broken(&self, file: &str, what: &str) -> String {
        let remedy = self.entry.remedy(self.root, self.path);
        format!("{} {what}; {remedy}", self.path.join(file).display())
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

    /// A folder with a data set of two tiny drawings to learn from and one to be judged by.
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
        refused.expect("it is refused").replace(root.to_str().unwrap(), "ROOT")
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
            by_hand: "",
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
        let said = images(&SMALL, Some(root.path()), 1).unwrap_err();
        assert!(said.contains("test.bin has 3073 bytes, not 3074"), "{said}");
    }

    #[test]
    fn what_is_missing_cut_or_foreign_is_named_with_what_to_do() {
        let root = drawings();
        let write = |name: &str, bytes: Vec<u8>| {
            fs::write(root.path().join("mnist").join(name), bytes).unwrap();
            refused("mnist", root.path())
        };
        let remedy = "`paceline data get mnist --dir ROOT` brings it";

        assert_eq!(
            write("t10k-labels-idx1-ubyte", idx(&[2], &[1])),
            format!(
                "ROOT/mnist/t10k-labels-idx1-ubyte is cut short: 2 labels make 10 bytes, it has 9; {remedy}"
            )
        );
        assert_eq!(
            write("t10k-labels-idx1-ubyte", idx(&[2], &[1, 2])),
            format!(
                "ROOT/mnist/t10k-labels-idx1-ubyte does not fit its images: 2 images of 2 bytes need 4, not 2; {remedy}"
            )
        );
        assert!(
            write("train-labels-idx1-ubyte", idx(&[2], &[1, 10])).contains("image 1 has label 10")
        );
        assert!(write("train-images-idx3-ubyte", b"<html>".repeat(9)).contains("is no IDX file"));
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

        let classes = |name: &str| load(name, None, 1).unwrap().map(|sets| sets.train.classes());

        assert_eq!(classes("text"), Ok(70));
        assert_eq!(classes(path), Ok(8));
        assert_eq!(classes(&format!("text:{path}")), Ok(8));
        assert!(classes("text:no/such").unwrap_err().starts_with("cannot read the text no/such: "));
        fs::write(path, "short").unwrap();
        assert!(classes(path).unwrap_err().contains("mine.txt: a text of 5 bytes is too short"));
        assert!(load("minst", None, 1).is_none());
    }

    #[test]
    fn every_entry_of_the_catalog_can_be_loaded_by_name() {
        let nowhere = Path::new("/nonexistent");
        for entry in &CATALOG {
            assert!(NAMES.contains(&entry.name));
            let said = refused(entry.name, nowhere);
            assert!(said.starts_with("there is no "), "{said}");
        }
    }

    /// Of the test set, which is not augmented and much like the training set.
    #[test]
    #[ignore = "needs the files of mnist, fashion-mnist and cifar10"]
    fn images_have_the_mean_and_deviation_they_are_normalized_by() {
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
