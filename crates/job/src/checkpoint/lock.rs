//! Keeps two runs from writing checkpoints to one folder, also where the file system has no working locks.
//!
//! `.lock` is locked by the operating system, which releases the lock of a killed process. On network file
//! systems such locks may be missing, or work only among processes of one machine. Therefore `.owner` is
//! created exclusively, and a thread rewrites it with a growing number for as long as the run lasts: if the
//! number stands still, the run is gone.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use crate::error::CheckpointError;

pub const LOCK: &str = ".lock";
pub const OWNER: &str = ".owner";

/// Time between two rewrites of the owner file.
const BEAT: Duration = Duration::from_secs(1);
/// An owner on another machine that does not rewrite its file for this long is gone.
const PATIENCE: Duration = Duration::from_secs(10);

/// Exclusive use of a folder; ends when dropped, or when the process dies.
pub struct Lock {
    folder: PathBuf,
    owner: Owner,
    file: File,
    /// Dropped to stop the thread.
    stop: Option<Sender<()>>,
    beating: Option<JoinHandle<()>>,
}

/// The process that uses a folder.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Owner {
    host: String,
    process: u32,
    /// The time of locking: a process may use one folder several times.
    since: u128,
}

impl Lock {
    /// Locks a folder, or says which run uses it.
    pub fn take(folder: &Path) -> Result<Lock, CheckpointError> {
        Lock::take_with(folder, &host(), PATIENCE)
    }

    fn take_with(folder: &Path, host: &str, patience: Duration) -> Result<Lock, CheckpointError> {
        let unwritable = |source| CheckpointError::Unwritable { folder: folder.to_owned(), source };
        let locked = |owner: Option<&Owner>| CheckpointError::Locked {
            folder: folder.to_owned(),
            owner: owner.map_or_else(|| "an unknown process".to_owned(), Owner::shown),
        };
        // Not truncated: it might be a link to something else.
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(false);
        let file = options.open(folder.join(LOCK)).map_err(unwritable)?;
        let is_locked = match file.try_lock() {
            Ok(()) => true,
            Err(TryLockError::WouldBlock) => {
                return Err(locked(read(folder).map(|(owner, _)| owner).as_ref()));
            }
            // The file system has no locks.
            Err(TryLockError::Error(_)) => false,
        };
        if folder.join(OWNER).exists() {
            let seen = read(folder);
            // On one machine the operating system's lock is reliable: the owner is gone.
            let is_gone = is_locked && seen.as_ref().is_some_and(|(owner, _)| owner.host == host);
            if !is_gone && let Some(owner) = changes(folder, &seen, patience) {
                return Err(locked(Some(&owner)));
            }
            remove(&folder.join(OWNER)).map_err(unwritable)?;
        }
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let owner =
            Owner { host: host.to_owned(), process: std::process::id(), since: since.as_nanos() };
        match create(folder, &owner) {
            Ok(()) => {}
            // Another run was faster.
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                return Err(locked(read(folder).map(|(owner, _)| owner).as_ref()));
            }
            Err(error) => return Err(unwritable(error)),
        }
        let (stop, stopped) = channel();
        let (place, me) = (folder.to_owned(), owner.clone());
        let beating = std::thread::Builder::new().name("checkpoint lock".into()).spawn(move || {
            let mut beat = 0;
            while stopped.recv_timeout(BEAT) == Err(RecvTimeoutError::Timeout) && me.owns(&place) {
                beat += 1;
                // If this beat cannot be written, the next one may be.
                let _ = rewrite(&place, &me.text(beat));
            }
        });
        let beating = Some(beating.map_err(unwritable)?);
        Ok(Lock { folder: folder.to_owned(), owner, file, stop: Some(stop), beating })
    }

    /// Refuses if another run has taken over the folder, because this process was suspended for long.
    pub fn check(&self) -> Result<(), CheckpointError> {
        match read(&self.folder) {
            Some((owner, _)) if owner != self.owner => {
                Err(CheckpointError::TakenOver { owner: owner.shown() })
            }
            // A run that took over has ended since, and removed its file.
            None if !self.folder.join(OWNER).exists() => {
                Err(CheckpointError::TakenOver { owner: "a run that has ended".to_owned() })
            }
            _ => Ok(()),
        }
    }
}

/// Voids the lock of whoever uses the folder: it notices before it writes again. For a run that knows from elsewhere that it has
/// taken the place of the one before, which may be stopped or cut off rather than dead.
pub fn void(folder: &Path) -> io::Result<()> {
    // Whoever has locked the file keeps a lock of a file without a name.
    [LOCK, OWNER].iter().try_for_each(|name| remove(&folder.join(name)))
}

impl Drop for Lock {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(beating) = self.beating.take() {
            let _ = beating.join();
        }
        if self.owner.owns(&self.folder) {
            let _ = fs::remove_file(self.folder.join(OWNER));
        }
        // Closing the file is not enough: a process forked a moment ago holds it, too.
        let _ = self.file.unlock();
    }
}

impl Owner {
    fn text(&self, beat: u64) -> String {
        format!("{} {} {} {beat}\n", self.host, self.process, self.since)
    }

    fn shown(&self) -> String {
        format!("process {} on {}", self.process, self.host)
    }

    fn owns(&self, folder: &Path) -> bool {
        read(folder).is_some_and(|(owner, _)| owner == *self)
    }
}

/// The owner of a folder, and how often it has rewritten its file.
fn read(folder: &Path) -> Option<(Owner, u64)> {
    let text = fs::read_to_string(folder.join(OWNER)).ok()?;
    let mut words = text.split_whitespace();
    let host = words.next()?.to_owned();
    let process = words.next()?.parse().ok()?;
    let since = words.next()?.parse().ok()?;
    Some((Owner { host, process, since }, words.next()?.parse().ok()?))
}

/// The owner, if it rewrites its file within `patience`.
fn changes(folder: &Path, seen: &Option<(Owner, u64)>, patience: Duration) -> Option<Owner> {
    let start = Instant::now();
    while start.elapsed() < patience {
        std::thread::sleep(patience.min(BEAT) / 4);
        let now = read(folder);
        if now.is_some() && now != *seen {
            return now.map(|(owner, _)| owner);
        }
    }
    None
}

fn create(folder: &Path, owner: &Owner) -> io::Result<()> {
    let path = folder.join(OWNER);
    let mut file = OpenOptions::new().write(true).create_new(true).open(path)?;
    file.write_all(owner.text(0).as_bytes())
}

/// Replaces the owner file at once: a reader sees the old text or the new one.
fn rewrite(folder: &Path, text: &str) -> io::Result<()> {
    let temporary = folder.join(format!("{OWNER}-new"));
    fs::write(&temporary, text)?;
    fs::rename(temporary, folder.join(OWNER))
}

fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// The name of this machine, without spaces.
fn host() -> String {
    let files = ["/proc/sys/kernel/hostname", "/etc/hostname"];
    let named = files.iter().find_map(|path| fs::read_to_string(path).ok());
    let named = named.or_else(|| std::env::var("HOSTNAME").ok());
    let named = named.or_else(|| std::env::var("COMPUTERNAME").ok()).unwrap_or_default();
    let name: String = named.split_whitespace().collect();
    if name.is_empty() { "unknown-host".to_owned() } else { name }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHORT: Duration = Duration::from_millis(200);

    fn scratch(name: &str) -> PathBuf {
        let path =
            std::env::temp_dir().join(format!("paceline-lock-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).expect("the folder can be made");
        path
    }

    fn elsewhere() -> Owner {
        Owner { host: "elsewhere".into(), process: 7, since: 1 }
    }

    #[test]
    fn a_folder_is_locked_once_and_free_again_after_the_lock_is_dropped() {
        let folder = scratch("once");
        let lock = Lock::take(&folder).expect("the folder is free");

        let message = Lock::take(&folder).err().expect("the folder is locked").to_string();
        let expected = format!("another run (process {} on {})", std::process::id(), host());
        assert!(message.starts_with(&expected), "{message}");
        drop(lock);

        assert!(!folder.join(OWNER).exists());
        assert!(Lock::take(&folder).is_ok());
        let _ = fs::remove_dir_all(&folder);
    }

    #[test]
    fn a_dead_process_of_this_machine_is_replaced_at_once() {
        let folder = scratch("dead");
        create(&folder, &Owner { host: host(), ..elsewhere() }).expect("the file can be written");

        let start = Instant::now();
        let lock = Lock::take(&folder);

        assert!(lock.is_ok() && start.elapsed() < PATIENCE / 2);
        let _ = fs::remove_dir_all(&folder);
    }

    /// As on a network file system whose locks do not reach other machines.
    #[test]
    fn a_live_owner_on_another_machine_keeps_the_folder() {
        let folder = scratch("live");
        create(&folder, &elsewhere()).expect("the file can be written");
        let place = folder.clone();
        let beats = std::thread::spawn(move || {
            for beat in 1..10 {
                std::thread::sleep(SHORT / 5);
                rewrite(&place, &elsewhere().text(beat)).expect("the file can be written");
            }
        });

        let refused = Lock::take_with(&folder, &host(), 2 * SHORT).err();

        let message = refused.expect("the folder is locked").to_string();
        assert!(message.starts_with("another run (process 7 on elsewhere)"), "{message}");
        beats.join().expect("the thread does not panic");
        let _ = fs::remove_dir_all(&folder);
    }

    #[test]
    fn a_voided_lock_can_be_taken_and_its_holder_notices() {
        let folder = scratch("void");
        let before = Lock::take(&folder).expect("the folder is free");

        void(&folder).expect("the files can be removed");
        let now = Lock::take(&folder).expect("nobody holds it");

        assert!(matches!(before.check(), Err(CheckpointError::TakenOver { .. })));
        assert!(now.check().is_ok());
        drop(before);
        assert!(now.check().is_ok(), "the other run's file is not removed");
        let _ = fs::remove_dir_all(&folder);
    }

    #[test]
    fn a_dead_owner_on_another_machine_is_replaced_and_notices_if_it_wakes_up() {
        let folder = scratch("suspended");
        create(&folder, &elsewhere()).expect("the file can be written");

        let lock =
            Lock::take_with(&folder, &host(), SHORT).expect("the owner does not change its file");

        assert!(lock.check().is_ok());
        fs::write(folder.join(OWNER), elsewhere().text(3)).expect("the file can be written");
        assert!(matches!(lock.check(), Err(CheckpointError::TakenOver { .. })));
        drop(lock);
        assert!(folder.join(OWNER).exists(), "the other run's file is not removed");
        let _ = fs::remove_dir_all(&folder);
    }
}
