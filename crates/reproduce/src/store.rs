//! A file of results, one per line; runs with a stored result are not run again.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use crate::error::StoreError;
use crate::result::Measurement;
use crate::runs::Run;

/// An open file of results.
pub struct Store {
    path: PathBuf,
    /// Locked until the store is dropped; the system releases the lock of a killed process.
    file: File,
    known: KnownResults,
}

/// Stored results by name and key of the run.
#[derive(Default)]
pub struct KnownResults(BTreeMap<(String, String), Measurement>);

impl KnownResults {
    /// Reads a file of results; returns no results if it does not exist.
    pub fn read(path: &Path) -> Result<KnownResults, StoreError> {
        match std::fs::read_to_string(path) {
            Ok(text) => KnownResults::parse(path, &text).map(|(known, _)| known),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(KnownResults::default()),
            Err(source) => Err(StoreError::Read { path: path.to_owned(), source }),
        }
    }

    /// Parses results; also returns the length of the valid part, because a truncated last line is ignored.
    fn parse(path: &Path, text: &str) -> Result<(KnownResults, usize), StoreError> {
        let mut known = BTreeMap::new();
        let mut valid = 0;
        for (i, line) in text.split_inclusive('\n').enumerate() {
            let is_last = valid + line.len() == text.len();
            match serde_json::from_str::<Measurement>(line) {
                Ok(result) => drop(known.insert((result.run.clone(), result.key.clone()), result)),
                Err(_) if line.trim().is_empty() => {}
                Err(_) if is_last => break,
                Err(source) => {
                    let (path, line) = (path.to_owned(), i + 1);
                    return Err(StoreError::Corrupt { path, line, source });
                }
            }
            valid += line.len();
        }
        Ok((KnownResults(known), valid))
    }

    pub fn get(&self, run: &Run) -> Option<&Measurement> {
        self.0.get(&(run.name.clone(), run.key()))
    }
}

impl Store {
    /// Opens or creates a file of results, and removes a truncated last line.
    pub fn open(path: &Path) -> Result<Store, StoreError> {
        let failed = |source| StoreError::Open { path: path.to_owned(), source };
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder).map_err(failed)?;
        }
        let mut file = OpenOptions::new().create(true).append(true).open(path).map_err(failed)?;
        // Other errors mean that the file system does not support locks; then there is no protection.
        if let Err(TryLockError::WouldBlock) = file.try_lock() {
            return Err(StoreError::Locked { path: path.to_owned() });
        }
        let text = std::fs::read_to_string(path).map_err(failed)?;
        let (known, valid) = KnownResults::parse(path, &text)?;
        file.set_len(valid as u64).map_err(failed)?;
        if valid > 0 && !text[..valid].ends_with('\n') {
            writeln!(file).map_err(failed)?;
        }
        Ok(Store { path: path.to_owned(), file, known })
    }

    /// The results that were in the file when it was opened.
    pub fn known(&self) -> &KnownResults {
        &self.known
    }

    /// Appends a result to the file.
    pub fn add(&mut self, result: &Measurement) -> Result<(), StoreError> {
        let mut line = serde_json::to_string(result).expect("plain data has a JSON form");
        line.push('\n');
        self.file
            .write_all(line.as_bytes())
            .map_err(|source| StoreError::Write { path: self.path.clone(), source })
    }

    /// Replaces the file's content by these results, which drops runs that are no longer part of the experiment.
    pub fn replace<'a>(
        &self,
        results: impl Iterator<Item = &'a Measurement>,
    ) -> Result<(), StoreError> {
        let failed = |source| StoreError::Write { path: self.path.clone(), source };
        let mut text = String::new();
        for result in results {
            text += &serde_json::to_string(result).expect("plain data has a JSON form");
            text.push('\n');
        }
        let temporary = self.path.with_extension("jsonl.new");
        std::fs::write(&temporary, text).map_err(failed)?;
        std::fs::rename(&temporary, &self.path).map_err(failed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: &str = r#"{"run":"a@x","seed":1,"key":"k","commit":"","command":"","retimed":false,"rate":0.1,"seconds":1.0,"to_target":null,"loss":0.5,"accuracy":0.9,"bytes":1,"rounds":1,"epochs":1.0,"period":null,"busy":1.0,"busy_least":1.0,"staleness":0,"diverged":null,"curves":{}}"#;

    #[test]
    fn a_new_result_starts_on_its_own_line_whatever_the_file_ends_with() {
        let folder = std::env::temp_dir().join(format!("paceline-store-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("the folder can be created");
        let path = folder.join("results.jsonl");
        let get = |store: &Store, run: &str| store.known.0.get(&(run.into(), "k".into())).cloned();
        let cut = &LINE[..60];
        for end in ["", "\n", "\n\n", "\n  \n\n", &format!("\n{cut}"), &format!("\n\n{cut}\n")] {
            std::fs::write(&path, format!("{LINE}{end}")).expect("the file can be written");

            let mut store = Store::open(&path).expect("the file is valid");
            let mut other = get(&store, "a@x").expect("the result is stored").clone();
            other.run = "b@x".into();
            store.add(&other).expect("the file can be written");
            drop(store);

            let store = Store::open(&path).expect("the file is valid");
            assert!(get(&store, "a@x").is_some() && get(&store, "b@x").is_some(), "{end:?}");
        }
        std::fs::write(&path, format!("{cut}\n{LINE}\n")).expect("the file can be written");
        let error = Store::open(&path).err().expect("only the last line may be truncated");
        assert!(matches!(error, StoreError::Corrupt { line: 1, .. }), "{error}");
        std::fs::remove_dir_all(&folder).expect("the folder can be removed");
    }
}
