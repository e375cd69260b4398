//! The folder that data sets are kept in, and reading its files.

use std::ffi::OsString;
use std::fs;
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};

use flate2::read::MultiGzDecoder;

/// No file of a data set is longer; a longer one is refused before it fills the memory.
pub(crate) const BYTES_MAX: u64 = 1 << 30;

/// Where data sets are kept unless the user says otherwise: `PACELINE_DATA`, or `paceline` in the cache folder.
pub fn default_root() -> Result<PathBuf, String> {
    root_from(|name| std::env::var_os(name))
}

fn root_from(variable: impl Fn(&str) -> Option<OsString>) -> Result<PathBuf, String> {
    let path = |name: &str| variable(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    // A relative cache folder is to be ignored, says the specification of XDG_CACHE_HOME.
    path("PACELINE_DATA")
        .or_else(|| {
            Some(path("XDG_CACHE_HOME").filter(|home| home.is_absolute())?.join("paceline"))
        })
        .or_else(|| Some(path("HOME")?.join(".cache").join("paceline")))
        .ok_or_else(|| {
            "there is no home folder to keep data in: set PACELINE_DATA to a folder".to_owned()
        })
}

/// The contents of a file, which may lie there gzipped with `.gz` after its name; `None` if it does not lie there.
pub(crate) fn contents(folder: &Path, name: &str) -> Result<Option<Vec<u8>>, String> {
    let path = folder.join(name);
    match fs::File::open(&path) {
        Ok(file) => return bounded(file).map(Some).map_err(|why| unreadable(&path, &why)),
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Err(error) => return Err(unreadable(&path, &error.to_string())),
    }
    let path = folder.join(format!("{name}.gz"));
    match fs::File::open(&path) {
        Ok(file) => {
            let unzipped = bounded(MultiGzDecoder::new(std::io::BufReader::new(file)));
            unzipped.map(Some).map_err(|why| unreadable(&path, &why))
        }
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(unreadable(&path, &error.to_string())),
    }
}

/// Everything there is to read, unless it is too long.
pub(crate) fn bounded(from: impl Read) -> Result<Vec<u8>, String> {
    let mut bytes = vec![];
    from.take(BYTES_MAX + 1).read_to_end(&mut bytes).map_err(|error| error.to_string())?;
    if bytes.len() as u64 > BYTES_MAX {
        return Err(format!("it is longer than {} MiB", BYTES_MAX >> 20));
    }
    Ok(bytes)
}

fn unreadable(path: &Path, why: &str) -> String {
    format!("cannot read {}: {why}", path.display())
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::Compression;
    use flate2::write::GzEncoder;

    use super::*;

    #[test]
    fn the_folder_is_the_named_one_or_lies_in_the_cache() {
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
        assert!(root(&[]).unwrap_err().contains("set PACELINE_DATA"));
    }

    #[test]
    fn a_file_may_be_gzipped_and_a_broken_one_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let mut zip = GzEncoder::new(vec![], Compression::default());
        zip.write_all(b"digits").unwrap();
        let zipped = zip.finish().unwrap();
        fs::write(folder.path().join("zipped.gz"), &zipped).unwrap();
        fs::write(folder.path().join("cut.gz"), &zipped[..zipped.len() - 6]).unwrap();
        fs::write(folder.path().join("foreign.gz"), b"not gzip at all").unwrap();
        fs::write(folder.path().join("plain"), b"digits").unwrap();

        assert_eq!(contents(folder.path(), "plain"), Ok(Some(b"digits".to_vec())));
        assert_eq!(contents(folder.path(), "zipped"), Ok(Some(b"digits".to_vec())));
        assert_eq!(contents(folder.path(), "absent"), Ok(None));
        for broken in ["cut", "foreign"] {
            let said = contents(folder.path(), broken).unwrap_err();
            assert!(said.contains(&format!("{broken}.gz: ")), "{said}");
        }
    }
}
