//! A folder of checkpoints: each is complete or absent, and only the newest are kept.

use std::fs::{self, File};
use std::io;
use std::num::NonZero;
use std::path::{Path, PathBuf};

use super::files::MANIFEST;
use super::lock::Lock;
use crate::error::{CheckpointError, WriteProblem};

/// A folder that a run writes its checkpoints to.
pub struct Folder {
    path: PathBuf,
    keep: NonZero<u64>,
    /// The checkpoint in it that the run resumed from.
    pub begun: Option<PathBuf>,
    lock: Lock,
}

/// A checkpoint that was written.
#[derive(Debug)]
pub struct Added {
    pub path: PathBuf,
    /// Why the oldest checkpoints could not be deleted.
    pub not_deleted: Option<CheckpointError>,
}

/// The prefix of folders that are being written or deleted; they are never read.
const TEMPORARY: &str = ".tmp-";
const OLD: &str = "old-";
const ROUND: &str = "round-";

impl Folder {
    /// Opens a folder for a run that resumes from the checkpoint `from`, or starts anew. Deletes what a killed
    /// run left, and renames checkpoints later than `from`.
    pub fn open(
        path: &Path,
        keep: NonZero<u64>,
        from: Option<&Path>,
    ) -> Result<Folder, CheckpointError> {
        let unwritable = |source| CheckpointError::Unwritable { folder: path.to_owned(), source };
        fs::create_dir_all(path).map_err(unwritable)?;
        // Once the folder is locked, no live run owns its temporary folders.
        let lock = Lock::take(path)?;
        let there = rounds(path)?;
        let is_from = |checkpoint: &Path| {
            let same = checkpoint.canonicalize().ok().zip(from?.canonicalize().ok());
            same.filter(|(one, other)| one == other)
        };
        let begun = there.iter().position(|(_, checkpoint)| is_from(checkpoint).is_some());
        if begun.is_none() && !there.is_empty() {
            return Err(CheckpointError::Occupied { folder: path.to_owned() });
        }
        for entry in fs::read_dir(path).map_err(unwritable)? {
            let entry = entry.map_err(unwritable)?;
            if is_temporary(&entry.file_name().to_string_lossy()) {
                remove(&entry.path()).map_err(unwritable)?;
            }
        }
        for (_, later) in there.iter().skip(begun.map_or(0, |begun| begun + 1)) {
            let name = later.file_name().unwrap_or_default().to_string_lossy();
            let passed_over = path.join(format!("passed-over-{name}"));
            remove(&passed_over).map_err(unwritable)?;
            fs::rename(later, passed_over).map_err(unwritable)?;
        }
        let begun = begun.map(|begun| there[begun].1.clone());
        Ok(Folder { path: path.to_owned(), keep, begun, lock })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Adds a checkpoint whose files `write` writes, then deletes the oldest.
    pub fn add(
        &self,
        round: u64,
        write: impl FnOnce(&Path) -> Result<(), CheckpointError>,
    ) -> Result<Added, CheckpointError> {
        self.lock.check()?;
        // A checkpoint of the same round, with fewer samples, stays until this one is complete.
        let same = rounds(&self.path)?.into_iter().filter(|(of, _)| *of == round);
        let name = match same.filter_map(|(_, path)| place_of(&path)).max() {
            Some((_, number)) => format!("{ROUND}{round:06}-{}", number + 1),
            None => format!("{ROUND}{round:06}"),
        };
        let temporary = self.path.join(format!("{TEMPORARY}{name}"));
        let path = self.path.join(&name);
        let created = remove(&temporary).and_then(|()| fs::create_dir(&temporary));
        created.map_err(WriteProblem::from)?;
        let published = || {
            sync_folder(&temporary)?;
            fs::rename(&temporary, &path)?;
            sync_folder(&self.path)
        };
        let written = write(&temporary).and_then(|()| Ok(published().map_err(WriteProblem::from)?));
        if written.is_err() {
            let _ = remove(&temporary);
        }
        written?;
        // From here on the checkpoint is there, whatever happens to old ones.
        Ok(Added { path, not_deleted: self.delete_oldest().err() })
    }

    fn delete_oldest(&self) -> Result<(), CheckpointError> {
        let there = rounds(&self.path)?;
        let too_many = there.len().saturating_sub(self.keep.get() as usize);
        for (_, old) in &there[..too_many] {
            let deleted = self.delete(old);
            deleted.map_err(|source| CheckpointError::NotDeleted { path: old.clone(), source })?;
        }
        Ok(())
    }

    /// Renames a checkpoint before deleting it, so that it is never read half deleted.
    fn delete(&self, checkpoint: &Path) -> io::Result<()> {
        let name = checkpoint.file_name().unwrap_or_default().to_string_lossy();
        let temporary = self.path.join(format!("{TEMPORARY}{OLD}{name}"));
        remove(&temporary)?;
        fs::rename(checkpoint, &temporary)?;
        remove(&temporary)
    }
}

/// Whether a killed run left this; other files with a similar name are the user's.
fn is_temporary(name: &str) -> bool {
    let name = name.strip_prefix(TEMPORARY).map(|name| name.strip_prefix(OLD).unwrap_or(name));
    name.is_some_and(|name| name.starts_with(ROUND))
}

fn remove(path: &Path) -> io::Result<()> {
    let removed = if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) };
    match removed {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// Writes the entries of a folder to the disk; systems that cannot open folders do it by themselves.
fn sync_folder(path: &Path) -> io::Result<()> {
    if cfg!(unix) { File::open(path)?.sync_all() } else { Ok(()) }
}

/// The round that a checkpoint is named after.
pub fn round_of(checkpoint: &Path) -> Option<u64> {
    place_of(checkpoint).map(|(round, _)| round)
}

/// The round, and the number among the checkpoints of that round.
fn place_of(checkpoint: &Path) -> Option<(u64, u64)> {
    let name = checkpoint.file_name()?.to_str()?.strip_prefix(ROUND)?;
    let (round, number) = name.split_once('-').unwrap_or((name, "1"));
    Some((round.parse().ok()?, number.parse().ok()?))
}

/// The checkpoints in a folder with their rounds, the oldest first.
pub fn rounds(path: &Path) -> Result<Vec<(u64, PathBuf)>, CheckpointError> {
    let unreadable = |source| CheckpointError::Unreadable { folder: path.to_owned(), source };
    let mut found = Vec::new();
    for entry in fs::read_dir(path).map_err(unreadable)? {
        let entry = entry.map_err(unreadable)?;
        if let Some(place) = place_of(&entry.path()).filter(|_| entry.path().is_dir()) {
            found.push((place, entry.path()));
        }
    }
    found.sort();
    Ok(found.into_iter().map(|((round, _), path)| (round, path)).collect())
}

/// The newest checkpoint in a folder, whether it is intact or not; `None` if there is none.
pub fn newest(path: &Path) -> Option<PathBuf> {
    rounds(path).ok()?.pop().map(|(_, checkpoint)| checkpoint)
}

/// The newest checkpoint that `read` can read, and the errors of newer ones; `dir` is a folder of
/// checkpoints, or one of them.
pub fn newest_intact<T>(
    dir: &Path,
    read: impl Fn(&Path) -> Result<T, CheckpointError>,
) -> Result<(T, Vec<CheckpointError>), CheckpointError> {
    if dir.join(MANIFEST).exists() {
        return Ok((read(dir)?, vec![]));
    }
    let mut damaged = Vec::new();
    for (_, path) in rounds(dir)?.iter().rev() {
        match read(path) {
            Ok(found) => return Ok((found, damaged)),
            Err(error) => damaged.push(error),
        }
    }
    let (folder, tried) = (dir.to_owned(), damaged.len());
    match damaged.into_iter().next().map(Box::new) {
        None => Err(CheckpointError::None { folder }),
        Some(newest) => Err(CheckpointError::NoneIntact { folder, tried, newest }),
    }
}

#[cfg(test)]
mod tests {
    use super::super::lock::{LOCK, OWNER};
    use super::*;

    /// A folder for one test, deleted when dropped.
    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Scratch {
            let name = format!("paceline-folder-{name}-{}", std::process::id());
            let path = std::env::temp_dir().join(name);
            let _ = fs::remove_dir_all(&path);
            Scratch(path)
        }

        fn names(&self) -> Vec<String> {
            let entries = fs::read_dir(&self.0).expect("the folder exists").flatten();
            let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
            let mut names: Vec<String> =
                names.filter(|name| ![LOCK, OWNER].contains(&name.as_str())).collect();
            names.sort();
            names
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn fill(dir: &Path) -> Result<(), CheckpointError> {
        Ok(fs::write(dir.join(MANIFEST), "{}").map_err(WriteProblem::from)?)
    }

    fn fail(_: &Path) -> Result<(), CheckpointError> {
        Err(WriteProblem::ParamsNotFinite.into())
    }

    #[test]
    fn only_the_newest_are_kept_and_a_failed_one_leaves_nothing() {
        let scratch = Scratch::new("keep");
        let two = NonZero::new(2).expect("not zero");
        let folder = Folder::open(&scratch.0, two, None).expect("the folder can be used");

        (1..=3).for_each(|round| drop(folder.add(round, fill).expect("it can be written")));
        assert!(folder.add(4, fail).is_err());
        assert_eq!(scratch.names(), ["round-000002", "round-000003"]);
    }

    /// Asynchronous workers may have applied more samples while their mean round stays the same.
    #[test]
    fn a_second_checkpoint_of_a_round_replaces_the_first_only_when_it_is_complete() {
        let scratch = Scratch::new("again");
        let folder =
            Folder::open(&scratch.0, NonZero::<u64>::MIN, None).expect("the folder can be used");
        fs::write(scratch.0.join("round-000009"), "a file of the user").expect("it can be written");

        for number in 1..=11 {
            let there = |_: &Path| match rounds(&scratch.0)?.len() {
                0 if number > 1 => panic!("a killed run would leave no checkpoint"),
                _ => Ok(()),
            };
            folder.add(3, there).expect("a round may be written again");
        }

        assert_eq!(scratch.names(), ["round-000003-11", "round-000009"]);
    }

    #[test]
    fn leftovers_are_deleted_and_later_checkpoints_are_renamed() {
        let scratch = Scratch::new("open");
        let ten = NonZero::new(10).expect("not zero");
        let folder = Folder::open(&scratch.0, ten, None).expect("the folder can be used");
        (1..=3).for_each(|round| drop(folder.add(round, fill).expect("it can be written")));
        fs::create_dir(scratch.0.join(".tmp-round-000004")).expect("it can be made");
        drop(folder);

        assert!(Folder::open(&scratch.0, ten, None).is_err(), "the checkpoints are of another run");
        let from = scratch.0.join("round-000002");
        let folder = Folder::open(&scratch.0, ten, Some(&from)).expect("it resumes from there");

        let expected = ["passed-over-round-000003", "round-000001", "round-000002"];
        assert_eq!(scratch.names(), expected);
        fs::create_dir(scratch.0.join(".tmp-round-000004")).expect("it can be made");
        let refused = Folder::open(&scratch.0, ten, Some(&from)).err();
        assert!(matches!(refused, Some(CheckpointError::Locked { .. })));
        assert!(scratch.0.join(".tmp-round-000004").exists(), "it belongs to a live run");
        drop(folder);
        assert!(Folder::open(&scratch.0, ten, Some(&from)).is_ok());
    }

    #[test]
    fn a_users_own_files_are_never_deleted() {
        let scratch = Scratch::new("users-files");
        let ten = NonZero::new(10).expect("not zero");
        fs::create_dir_all(scratch.0.join(".tmp-important")).expect("it can be made");
        fs::create_dir(scratch.0.join(".tmp-round-000004")).expect("it can be made");
        fs::create_dir(scratch.0.join("round-000001")).expect("it can be made");

        let refused = Folder::open(&scratch.0, ten, None).err();

        assert!(matches!(refused, Some(CheckpointError::Occupied { .. })));
        assert!(scratch.0.join(".tmp-round-000004").exists(), "a refused run deletes nothing");
        fs::remove_dir(scratch.0.join("round-000001")).expect("it is empty");
        drop(Folder::open(&scratch.0, ten, None).expect("the folder can be used"));
        assert!(scratch.0.join(".tmp-important").exists());
        assert!(!scratch.0.join(".tmp-round-000004").exists(), "a killed run left it");
    }

    #[test]
    fn a_checkpoint_is_added_even_if_an_old_one_cannot_be_deleted() {
        let scratch = Scratch::new("undeleted");
        let folder = Folder::open(&scratch.0, NonZero::<u64>::MIN, None);
        let folder = folder.expect("the folder can be used");
        folder.add(1, fill).expect("it can be written");
        // A name of 255 bytes is valid, but too long with the temporary prefix.
        let name = format!("{ROUND}0-{}", "0".repeat(253 - ROUND.len()));
        fs::create_dir(scratch.0.join(name)).expect("it can be made");

        let added = folder.add(2, fill).expect("the new checkpoint is written");

        assert_eq!(round_of(&added.path), Some(2));
        let error = added.not_deleted.expect("its temporary name is too long");
        assert!(matches!(error, CheckpointError::NotDeleted { .. }));
    }
}
