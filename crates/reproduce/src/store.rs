//! Results in a file, one a line: what is there need not be run again.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use crate::result::Measurement;
use crate::runs::Run;

pub struct Store {
    path: PathBuf,
    /// Locked for as long as the runs last; the system lets go of a killed one's.
    file: File,
    known: Known,
}

/// Results by run and key.
#[derive(Default)]
pub struct Known(BTreeMap<(String, String), Measurement>);

impl Known {
    /// What is in a file of results; nothing, if it is not there yet.
    pub fn read(path: &Path) -> Result<Known, String> {
        match std::fs::read_to_string(path) {
            Ok(text) => Known::of(path, &text).map(|(known, _)| known),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(Known::default()),
            Err(error) => Err(format!("cannot read {}: {error}", path.display())),
        }
    }

    /// What is in the text, and up to where it is whole: a last line that was cut off is left out.
    fn of(path: &Path, text: &str) -> Result<(Known, usize), String> {
        let mut known = BTreeMap::new();
        let mut whole = 0;
        for (i, line) in text.split_inclusive('\n').enumerate() {
            let is_last = whole + line.len() == text.len();
            match serde_json::from_str::<Measurement>(line) {
                Ok(result) => drop(known.insert((result.run.clone(), result.key.clone()), result)),
                Err(_) if line.trim().is_empty() => {}
                Err(_) if is_last => break,
                Err(error) => {
                    let (path, line) = (path.display(), i + 1);
                    return Err(format!(
                        "{path}, line {line}: this is no result ({error}); move the file away to begin anew"
                    ));
                }
            }
            whole += line.len();
        }
        Ok((Known(known), whole))
    }

    pub fn get(&self, run: &Run) -> Option<&Measurement> {
        self.0.get(&(run.name.clone(), run.key()))
    }
}

impl Store {
    /// Opens a file of results, or begins one. A last line that was cut off is left out.
    pub fn open(path: &Path) -> Result<Store, String> {
        let told = |error: std::io::Error| format!("cannot use {}: {error}", path.display());
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder).map_err(told)?;
        }
        let mut file = OpenOptions::new().create(true).append(true).open(path).map_err(told)?;
        // Where files cannot be locked, there is nothing to be known.
        if let Err(TryLockError::WouldBlock) = file.try_lock() {
            return Err(format!(
                "another `paceline reproduce` writes to {}: wait for it, or name another --folder",
                path.display()
            ));
        }
        let text = std::fs::read_to_string(path).map_err(told)?;
        let (known, whole) = Known::of(path, &text)?;
        file.set_len(whole as u64).map_err(told)?;
        if whole > 0 && !text[..whole].ends_with('\n') {
            writeln!(file).map_err(told)?;
        }
        Ok(Store { path: path.to_owned(), file, known })
    }

    pub fn known(&self) -> &Known {
        &self.known
    }

    pub fn add(&mut self, result: &Measurement) -> Result<(), String> {
        let mut line = serde_json::to_string(result).expect("plain data has a JSON form");
        line.push('\n');
        self.file
            .write_all(line.as_bytes())
            .map_err(|error| format!("cannot write to {}: {error}", self.path.display()))
    }

    /// Leaves only these results in the file, in their order: those of runs that are asked for no more go.
    pub fn tidy<'a>(&self, results: impl Iterator<Item = &'a Measurement>) -> Result<(), String> {
        let told = |error: std::io::Error| format!("cannot write {}: {error}", self.path.display());
        let mut text = String::new();
        for result in results {
            text += &serde_json::to_string(result).expect("plain data has a JSON form");
            text.push('\n');
        }
        let aside = self.path.with_extension("jsonl.new");
        std::fs::write(&aside, text).map_err(told)?;
        std::fs::rename(&aside, &self.path).map_err(told)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: &str = r#"{"run":"a@x","seed":1,"key":"k","commit":"","command":"","retimed":false,"rate":0.1,"seconds":1.0,"to_target":null,"loss":0.5,"accuracy":0.9,"bytes":1,"rounds":1,"epochs":1.0,"period":null,"busy":1.0,"busy_least":1.0,"staleness":0,"diverged":null,"curves":{}}"#;

    #[test]
    fn whatever_the_file_ends_with_the_next_result_has_a_line_of_its_own() {
        let folder = std::env::temp_dir().join(format!("paceline-store-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("there is a place");
        let path = folder.join("results.jsonl");
        let get = |store: &Store, run: &str| store.known.0.get(&(run.into(), "k".into())).cloned();
        let cut = &LINE[..60];
        for end in ["", "\n", "\n\n", "\n  \n\n", &format!("\n{cut}"), &format!("\n\n{cut}\n")] {
            std::fs::write(&path, format!("{LINE}{end}")).expect("it can be written");

            let mut store = Store::open(&path).expect("it can be read");
            let mut other = get(&store, "a@x").expect("it is known").clone();
            other.run = "b@x".into();
            store.add(&other).expect("it can be written");
            drop(store);

            let store = Store::open(&path).expect("it can be read");
            assert!(get(&store, "a@x").is_some() && get(&store, "b@x").is_some(), "{end:?}");
        }
        std::fs::write(&path, format!("{cut}\n{LINE}\n")).expect("it can be written");
        let error = Store::open(&path).err().expect("a broken line that is not the last");
        assert!(error.contains(", line 1: this is no result"), "{error}");
        std::fs::remove_dir_all(&folder).expect("it can be removed");
    }
}
