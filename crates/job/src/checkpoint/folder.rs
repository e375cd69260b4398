//! A folder of checkpoints: each appears whole or not at all, and only the newest are kept.

use std::fs::{self, File, TryLockError};
use std::io;
use std::num::NonZero;
use std::path::{Path, PathBuf};

use super::files::MANIFEST;

/// A folder that a run writes its checkpoints to.
pub struct Folder {
    path: PathBuf,
    keep: NonZero<u64>,
    /// The checkpoint in it that the run goes on from.
    pub begun: Option<PathBuf>,
    /// Held for as long as the run lasts; the system lets go of a killed one's.
    lock: File,
}

impl Drop for Folder {
    fn drop(&mut self) {
        // Closing would not do: a process just forked off holds the file too, for a moment.
        let _ = self.lock.unlock();
    }
}

/// What is being written, or deleted, begins with this; nobody reads it.
const ASIDE: &str = ".tmp-";
const ROUND: &str = "round-";
const LOCK: &str = ".lock";

impl Folder {
    /// Opens a folder for a run that goes on from a checkpoint, or begins anew. What a killed writer left
    /// is deleted; checkpoints after the one the run goes on from get another name.
    pub fn open(path: &Path, keep: NonZero<u64>, from: Option<&Path>) -> Result<Folder, String> {
        let cannot =
            |error: io::Error| format!("cannot write checkpoints to {}: {error}", path.display());
        fs::create_dir_all(path).map_err(cannot)?;
        let lock = File::create(path.join(LOCK)).map_err(cannot)?;
        // Where files cannot be locked, there is nothing to be known.
        if let Err(TryLockError::WouldBlock) = lock.try_lock() {
            let path = path.display();
            return Err(format!("another run writes checkpoints to {path}: name another folder"));
        }
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
        let begun = begun.map(|begun| there[begun].1.clone());
        Ok(Folder { path: path.to_owned(), keep, begun, lock })
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
        let text = |error: io::Error| error.to_string();
        // One of the same round, with fewer samples, stays until this one is there.
        let same = rounds(&self.path)?.into_iter().filter(|(of, _)| *of == round);
        let name = match same.filter_map(|(_, path)| place_of(&path)).max() {
            Some((_, number)) => format!("{ROUND}{round:06}-{}", number + 1),
            None => format!("{ROUND}{round:06}"),
        };
        let (aside, place) = (self.path.join(format!("{ASIDE}{name}")), self.path.join(&name));
        remove(&aside).map_err(text)?;
        fs::create_dir(&aside).map_err(text)?;
        let written = write(&aside).and_then(|()| {
            sync_folder(&aside).map_err(text)?;
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
    place_of(checkpoint).map(|(round, _)| round)
}

/// The round, and which of the checkpoints of that round it is.
fn place_of(checkpoint: &Path) -> Option<(u64, u64)> {
    let name = checkpoint.file_name()?.to_str()?.strip_prefix(ROUND)?;
    let (round, number) = name.split_once('-').unwrap_or((name, "1"));
    Some((round.parse().ok()?, number.parse().ok()?))
}

/// The checkpoints in a folder by their rounds, oldest first.
pub fn rounds(path: &Path) -> Result<Vec<(u64, PathBuf)>, String> {
    let cannot = |error: io::Error| format!("cannot read {}: {error}", path.display());
    let mut found = Vec::new();
    for entry in fs::read_dir(path).map_err(cannot)? {
        let entry = entry.map_err(cannot)?;
        if let Some(place) = place_of(&entry.path()).filter(|_| entry.path().is_dir()) {
            found.push((place, entry.path()));
        }
    }
    found.sort();
    Ok(found.into_iter().map(|((round, _), path)| (round, path)).collect())
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

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder for a test alone, gone with it.
    struct Room(PathBuf);

    impl Room {
        fn new(name: &str) -> Room {
            let name = format!("paceline-folder-{name}-{}", std::process::id());
            let path = std::env::temp_dir().join(name);
            let _ = fs::remove_dir_all(&path);
            Room(path)
        }

        fn names(&self) -> Vec<String> {
            let entries = fs::read_dir(&self.0).expect("it is there").flatten();
            let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
            let mut names: Vec<String> = names.filter(|name| name != LOCK).collect();
            names.sort();
            names
        }
    }

    impl Drop for Room {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn fill(dir: &Path) -> Result<(), String> {
        fs::write(dir.join(MANIFEST), "{}").map_err(|error| error.to_string())
    }

    #[test]
    fn only_the_newest_are_kept_and_a_failed_one_leaves_no_trace() {
        let room = Room::new("keep");
        let two = NonZero::new(2).expect("not zero");
        let folder = Folder::open(&room.0, two, None).expect("it can be made");

        (1..=3).for_each(|round| drop(folder.add(round, fill).expect("there is room")));
        assert_eq!(
            folder.add(4, |_| Err("the disk is full".into())),
            Err("the disk is full".into())
        );
        assert_eq!(room.names(), ["round-000002", "round-000003"]);
    }

    /// Asynchronous workers may have learned more, and be in the same round by their mean.
    #[test]
    fn another_of_the_same_round_takes_the_place_of_none_before_it_is_there() {
        let room = Room::new("again");
        let folder = Folder::open(&room.0, NonZero::<u64>::MIN, None).expect("it can be made");
        fs::write(room.0.join("round-000009"), "somebody's notes").expect("there is room");

        for number in 1..=11 {
            let there = |_: &Path| match rounds(&room.0)?.len() {
                0 if number > 1 => Err("a killed writer would leave nothing".into()),
                _ => Ok(()),
            };
            folder.add(3, there).expect("a round may be written again");
        }

        assert_eq!(room.names(), ["round-000003-11", "round-000009"]);
    }

    #[test]
    fn leftovers_are_cleaned_up_and_later_checkpoints_are_set_aside() {
        let room = Room::new("open");
        let ten = NonZero::new(10).expect("not zero");
        let folder = Folder::open(&room.0, ten, None).expect("it can be made");
        (1..=3).for_each(|round| drop(folder.add(round, fill).expect("there is room")));
        fs::create_dir(room.0.join(".tmp-round-000004")).expect("a killed writer made it");
        drop(folder);

        assert!(Folder::open(&room.0, ten, None).is_err(), "it is another run's");
        let from = room.0.join("round-000002");
        let folder = Folder::open(&room.0, ten, Some(&from)).expect("it goes on from there");

        let expected = ["passed-over-round-000003", "round-000001", "round-000002"];
        assert_eq!(room.names(), expected);
        let sentence = Folder::open(&room.0, ten, Some(&from)).err().expect("it is taken");
        assert!(sentence.starts_with("another run writes checkpoints to "), "{sentence}");
        drop(folder);
        assert!(Folder::open(&room.0, ten, Some(&from)).is_ok());
    }
}
