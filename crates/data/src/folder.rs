//! The folder that data sets are kept in, and functions to read its files.

use std::ffi::OsString;
use std::fs;
use std::io::{BufReader, ErrorKind, Read};
use std::path::{Path, PathBuf};

use flate2::read::MultiGzDecoder;

use crate::error::{NoDataFolder, ReadError};
use crate::limits::BYTES_MAX;

/// Returns the default folder for data sets: `PACELINE_DATA`, or `paceline` in the cache folder.
pub fn default_root() -> Result<PathBuf, NoDataFolder> {
    root_from(|name| std::env::var_os(name))
}

fn root_from(variable: impl Fn(&str) -> Option<OsString>) -> Result<PathBuf, NoDataFolder> {
    let path = |name: &str| variable(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    // The XDG specification says to ignore a relative XDG_CACHE_HOME.
    path("PACELINE_DATA")
        .or_else(|| {
            Some(path("XDG_CACHE_HOME").filter(|home| home.is_absolute())?.join("paceline"))
        })
        .or_else(|| Some(path("HOME")?.join(".cache").join("paceline")))
        .ok_or(NoDataFolder)
}

/// Returns the contents of a file, or of its gzipped form with `.gz` after the name; `None` if there is neither.
///
/// An error contains the path that could not be read.
pub(crate) fn contents(folder: &Path, name: &str) -> Result<Option<Vec<u8>>, (PathBuf, ReadError)> {
    let plain = folder.join(name);
    match open(&plain) {
        Ok(None) => {}
        Ok(Some(file)) => {
            return read_bounded(file).map(Some).map_err(|error| (plain, error));
        }
        Err(error) => return Err((plain, error)),
    }
    let zipped = folder.join(format!("{name}.gz"));
    let bytes = open(&zipped).and_then(|file| {
        file.map(|file| read_bounded(MultiGzDecoder::new(BufReader::new(file)))).transpose()
    });
    bytes.map_err(|error| (zipped, error))
}

/// Opens a file; returns `None` if it does not exist.
fn open(path: &Path) -> Result<Option<fs::File>, ReadError> {
    match fs::File::open(path) {
        Ok(file) if is_device(&file) => Err(ReadError::Device),
        Ok(file) => Ok(Some(file)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Reads a file, up to `BYTES_MAX`.
pub(crate) fn read_file(path: &Path) -> Result<Vec<u8>, ReadError> {
    let file = fs::File::open(path)?;
    if is_device(&file) {
        return Err(ReadError::Device);
    }
    read_bounded(file)
}

/// Whether this is a device, such as /dev/zero, which has no end.
#[cfg(unix)]
fn is_device(file: &fs::File) -> bool {
    use std::os::unix::fs::FileTypeExt;
    let kind = file.metadata().map(|there| there.file_type());
    kind.is_ok_and(|kind| kind.is_char_device() || kind.is_block_device())
}

#[cfg(not(unix))]
fn is_device(_: &fs::File) -> bool {
    false
}

/// Reads to the end, up to `BYTES_MAX`.
pub(crate) fn read_bounded(from: impl Read) -> Result<Vec<u8>, ReadError> {
    let mut bytes = vec![];
    from.take(BYTES_MAX + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > BYTES_MAX {
        return Err(ReadError::TooLong);
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::Compression;
    use flate2::write::GzEncoder;

    use super::*;

    #[test]
    fn the_root_is_the_named_folder_or_in_the_cache() {
        let root = |set: &[(&str, &str)]| {
            root_from(|name| set.iter().find(|(n, _)| *n == name).map(|(_, value)| value.into()))
        };

        let home = ("HOME", "/home/a");
        assert_eq!(root(&[home]), Ok("/home/a/.cache/paceline".into()));
        assert_eq!(root(&[home, ("XDG_CACHE_HOME", "/cache")]), Ok("/cache/paceline".into()));
        assert_eq!(
            root(&[home, ("XDG_CACHE_HOME", "cache")]),
            Ok("/home/a/.cache/paceline".into())
        );
        assert_eq!(root(&[home, ("PACELINE_DATA", "/data")]), Ok("/data".into()));
        assert_eq!(root(&[home, ("PACELINE_DATA", "")]), Ok("/home/a/.cache/paceline".into()));
        assert_eq!(root(&[]), Err(NoDataFolder));
    }

    #[test]
    fn a_file_may_be_gzipped_and_the_error_names_a_damaged_one() {
        let folder = tempfile::tempdir().unwrap();
        let mut zip = GzEncoder::new(vec![], Compression::default());
        zip.write_all(b"digits").unwrap();
        let zipped = zip.finish().unwrap();
        fs::write(folder.path().join("zipped.gz"), &zipped).unwrap();
        fs::write(folder.path().join("truncated.gz"), &zipped[..zipped.len() - 6]).unwrap();
        fs::write(folder.path().join("foreign.gz"), b"not gzip at all").unwrap();
        fs::write(folder.path().join("plain"), b"digits").unwrap();

        let read = |name| contents(folder.path(), name);
        assert_eq!(read("plain").unwrap(), Some(b"digits".to_vec()));
        assert_eq!(read("zipped").unwrap(), Some(b"digits".to_vec()));
        assert_eq!(read("absent").unwrap(), None);
        for name in ["truncated", "foreign"] {
            let (path, _) = read(name).unwrap_err();
            assert_eq!(path, folder.path().join(format!("{name}.gz")));
        }
    }
}
