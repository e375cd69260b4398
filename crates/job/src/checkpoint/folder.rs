//! A folder of checkpoints: each appears whole or not at all, and only the newest are kept.

use std::fs::{self, File};
use std::io;
use std::num::NonZero;
use std::path::{Path, PathBuf};

use super::files::MANIFEST;

/// A folder that a run writes its checkpoints to.
pub struct Folder {
    path: PathBuf,
    keep: NonZero<u64>,
}

/// What is being written, or deleted, begins with this; nobody reads it.
const ASIDE: &str = ".tmp-";
const ROUND: &str = "round-";

impl Folder {
    /// Opens a folder for a run that goes on from a checkpoint, or begins anew. What a killed writer left
    /// is deleted; checkpoints after the one the run goes on from get another name.
    pub fn open(path: &Path, keep: NonZero<u64>, from: Option<&Path>) -> Result<Folder, String> {
        let cannot =
            |error: io::Error| format!("cannot write checkpoints to {}: {error}", path.display());
        fs::create_dir_all(path).map_err(cannot)?;
        for entry in fs::read_dir(path).map_err(cannot)? {
            let entry = entry.map_err(cannot)?;
            if entry.file_name().to_string_lossy().starts_with(ASIDE) {
                remove(&entry.path()).map_err(cannot)?;
            }
        }
        let there = rounds(path)?;
        let is_from = |checkpoint: &Path| {
            let same = checkpoint.canonicalize().ok().zip(from?.canonicalize().ok());
            same.filter(|(one, other)| one == other)
        };
        let begun = there.iter().position(|(_, checkpoint)| is_from(checkpoint).is_some());
        if begun.is_none() && !there.is_empty() {
            return Err(format!(
                "{0} holds checkpoints of another run: go on with it by --resume {0}, or name another folder",
                path.display()
            ));
        }
        for (_, later) in there.iter().skip(begun.map_or(0, |begun| begun + 1)) {
            let name = later.file_name().unwrap_or_default().to_string_lossy();
            let passed_over = path.join(format!("passed-over-{name}"));
            remove(&passed_over).map_err(cannot)?;
            fs::rename(later, passed_over).map_err(cannot)?;
        }
        Ok(Folder { path: path.to_owned(), keep })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Adds a checkpoint that `write` fills, then deletes the oldest.
    pub fn add(
        &self,
        round: u64,
        write: impl FnOnce(&Path) -> Result<(), String>,
    ) -> Result<PathBuf, String> {
        let (name, text) = (format!("{ROUND}{round:06}"), |error: io::Error| error.to_string());
        let (aside, place) = (self.path.join(format!("{ASIDE}{name}")), self.path.join(&name));
        remove(&aside).map_err(text)?;
        fs::create_dir(&aside).map_err(text)?;
        let written = write(&aside).and_then(|()| {
            sync_folder(&aside).map_err(text)?;
            if place.exists() {
                self.delete(&place).map_err(text)?;
            }
            fs::rename(&aside, &place).map_err(text)?;
            sync_folder(&self.path).map_err(text)
        });
        if written.is_err() {
            let _ = remove(&aside);
        }
        written?;
        let there = rounds(&self.path)?;
        let too_many = there.len().saturating_sub(self.keep.get() as usize);
        for (_, old) in &there[..too_many] {
            self.delete(old).map_err(text)?;
        }
        Ok(place)
    }

    /// A checkpoint vanishes whole, too.
    fn delete(&self, checkpoint: &Path) -> io::Result<()> {
        let name = checkpoint.file_name().unwrap_or_default().to_string_lossy();
        let aside = self.path.join(format!("{ASIDE}old-{name}"));
        remove(&aside)?;
        fs::rename(checkpoint, &aside)?;
        remove(&aside)
    }
}

fn remove(path: &Path) -> io::Result<()> {
    let removed = if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) };
    match removed {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// Makes the names in a folder last; where folders cannot be opened, the system sees to it.
fn sync_folder(path: &Path) -> io::Result<()> {
    if cfg!(unix) { File::open(path)?.sync_all() } else { Ok(()) }
}

/// The round that a checkpoint is named after.
pub fn round_of(checkpoint: &Path) -> Option<u64> {
    checkpoint.file_name()?.to_str()?.strip_prefix(ROUND)?.parse().ok()
}

/// The checkpoints in a folder by their rounds, oldest first.
pub fn rounds(path: &Path) -> Result<Vec<(u64, PathBuf)>, String> {
    let cannot = |error: io::Error| format!("cannot read {}: {error}", path.display());
    let mut found = Vec::new();
    for entry in fs::read_dir(path).map_err(cannot)? {
        let entry = entry.map_err(cannot)?;
        if let Some(round) = round_of(&entry.path()) {
            found.push((round, entry.path()));
        }
    }
    found.sort();
    Ok(found)
}

/// The newest checkpoint that `read` finds whole, with what is wrong with those that were passed over;
/// `dir` is a folder of checkpoints, or one of them.
pub fn newest_whole<T>(
    dir: &Path,
    read: impl Fn(&Path) -> Result<T, String>,
) -> Result<(T, Vec<String>), String> {
    if dir.join(MANIFEST).exists() {
        return Ok((read(dir)?, vec![]));
    }
    let mut damaged = Vec::new();
    for (_, path) in rounds(dir)?.iter().rev() {
        match read(path) {
            Ok(found) => return Ok((found, damaged)),
            Err(sentence) => damaged.push(sentence),
        }
    }
    match damaged.first() {
        None => Err(format!("there is no checkpoint in {} yet", dir.display())),
        Some(newest) => {
            let (all, dir) = (damaged.len(), dir.display());
            Err(format!("no checkpoint in {dir} is whole ({all} tried); the newest: {newest}"))
        }
    }
}
