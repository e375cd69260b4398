//! The coordinator's log on disk: records that survive the process, after a snapshot of everything older.
//!
//! A folder holds `snapshot` and `log-N`, where the snapshot names N. A record is its length, a checksum of the length, a
//! checksum of the payload, and the payload. What is appended is in memory until [`Log::commit`], which writes all of
//! it and waits for the disk once. A record that a crash cut off is dropped on opening; damage in front of a
//! whole record is an error, because what follows it had been promised.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

/// Longer records are neither written nor read.
pub const RECORD_MAX: usize = 256 << 20;

pub(crate) const MAGIC: &[u8] = b"paceline log 1\n\0";
const HEADER: usize = 12;

pub struct Log {
    folder: PathBuf,
    path: PathBuf,
    file: File,
    generation: u64,
    /// Records that are not on the disk yet.
    pending: Vec<u8>,
    /// The length of the file.
    bytes: u64,
    /// A write failed: nobody knows what is on the disk, so nothing more is written.
    has_failed: bool,
    /// Held as long as the log is open.
    _lock: File,
}

/// What a folder held.
pub struct Opened {
    pub log: Log,
    /// `None` in a new folder.
    pub snapshot: Option<Vec<u8>>,
    /// The records since the snapshot.
    pub records: Vec<Vec<u8>>,
    /// Bytes of a record that a crash had cut off.
    pub dropped: u64,
}

#[derive(Debug, thiserror::Error)]
pub enum LogError {
    #[error("another coordinator uses the state in {0}")]
    InUse(PathBuf),
    #[error("cannot read the coordinator's state {path}: {source}")]
    Read { path: PathBuf, source: io::Error },
    #[error("cannot write the coordinator's state {path}: {source}")]
    Write { path: PathBuf, source: io::Error },
    #[error("the disk is full: the coordinator's state {0} cannot be written")]
    Full(PathBuf),
    #[error(
        "the coordinator's state {path} is damaged at byte {offset}; restore it from a copy, or begin anew in another folder"
    )]
    Damaged { path: PathBuf, offset: u64 },
    #[error(
        "the coordinator's state {0} could not be written before; nothing more is written to it"
    )]
    Failed(PathBuf),
    #[error("a record of {0} bytes is too long for the coordinator's state")]
    TooLong(usize),
}

impl LogError {
    fn write(path: &Path, source: io::Error) -> LogError {
        let path = path.to_owned();
        match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => LogError::Full(path),
            _ => LogError::Write { path, source },
        }
    }
}

impl Log {
    pub fn open(folder: &Path) -> Result<Opened, LogError> {
        fs::create_dir_all(folder).map_err(|source| LogError::write(folder, source))?;
        let lock = lock(folder)?;
        let snapshot_path = folder.join("snapshot");
        let (generation, snapshot) = match read(&snapshot_path)? {
            None => (0, None),
            Some(bytes) => {
                let damaged = || LogError::Damaged { path: snapshot_path.clone(), offset: 0 };
                // A snapshot was renamed to its name when it was whole: any damage to it is an error.
                let payload = record_at(&bytes, 0).ok_or_else(damaged)?;
                let (generation, state) = payload.split_first_chunk().ok_or_else(damaged)?;
                (u64::from_le_bytes(*generation), Some(state.to_vec()))
            }
        };
        let path = folder.join(format!("log-{generation}"));
        let bytes = read(&path)?.unwrap_or_default();
        let (records, whole) = parse(&path, &bytes)?;
        let (file, length) =
            prepare(&path, whole).map_err(|source| LogError::write(&path, source))?;
        sync_folder(folder).map_err(|source| LogError::write(folder, source))?;
        remove_others(folder, generation);
        let log = Log {
            folder: folder.to_owned(),
            path,
            file,
            generation,
            pending: vec![],
            bytes: length,
            has_failed: false,
            _lock: lock,
        };
        let dropped = (bytes.len() - whole) as u64;
        Ok(Opened { log, snapshot, records, dropped })
    }

    /// Bytes of the log on the disk, since the last snapshot.
    pub fn size(&self) -> u64 {
        self.bytes
    }

    /// Adds a record, which is not safe before the next commit.
    pub fn append(&mut self, payload: &[u8]) -> Result<(), LogError> {
        self.pending.extend(record(payload)?);
        Ok(())
    }

    /// Writes all that was appended, and waits until it is on the disk.
    pub fn commit(&mut self) -> Result<(), LogError> {
        if self.has_failed {
            return Err(LogError::Failed(self.path.clone()));
        }
        if self.pending.is_empty() {
            return Ok(());
        }
        let written = self.file.write_all(&self.pending).and_then(|()| self.file.sync_data());
        if let Err(source) = written {
            self.has_failed = true;
            return Err(LogError::write(&self.path, source));
        }
        self.bytes += self.pending.len() as u64;
        self.pending.clear();
        Ok(())
    }

    /// Nothing more is written: what would follow depends on something that could not be stored elsewhere.
    pub fn give_up(&mut self) {
        self.has_failed = true;
    }

    /// Replaces all records so far by this state. Nothing may be uncommitted.
    pub fn snapshot(&mut self, state: &[u8]) -> Result<(), LogError> {
        if self.has_failed || !self.pending.is_empty() {
            return Err(LogError::Failed(self.path.clone()));
        }
        let generation = self.generation + 1;
        let path = self.folder.join(format!("log-{generation}"));
        let payload = [generation.to_le_bytes().as_slice(), state].concat();
        let replaced = || -> io::Result<(File, u64)> {
            // The new log is there before a snapshot names it.
            let _ = fs::remove_file(&path);
            let new = prepare(&path, 0)?;
            let aside = self.folder.join("snapshot.new");
            let mut file = File::create(&aside)?;
            file.write_all(
                &record(&payload).map_err(|error| io::Error::other(error.to_string()))?,
            )?;
            file.sync_all()?;
            fs::rename(&aside, self.folder.join("snapshot"))?;
            sync_folder(&self.folder)?;
            Ok(new)
        };
        let (file, bytes) = replaced().map_err(|source| {
            // Whether the rename is on the disk is unknown, and with it which log is read next.
            self.has_failed = true;
            LogError::write(&self.folder.join("snapshot"), source)
        })?;
        (self.file, self.bytes, self.generation, self.path) = (file, bytes, generation, path);
        remove_others(&self.folder, generation);
        Ok(())
    }
}

#[cfg(all(test, target_os = "linux"))]
impl Log {
    /// As if the disk were full from now on.
    pub fn fill_disk(&mut self) {
        let full = OpenOptions::new().write(true).open("/dev/full");
        self.file = full.expect("a device that is full");
    }
}

fn lock(folder: &Path) -> Result<File, LogError> {
    let path = folder.join("lock");
    let file = OpenOptions::new().create(true).write(true).truncate(false).open(&path);
    let file = file.map_err(|source| LogError::write(&path, source))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(fs::TryLockError::WouldBlock) => Err(LogError::InUse(folder.to_owned())),
        Err(fs::TryLockError::Error(source)) => Err(LogError::Write { path, source }),
    }
}

fn read(path: &Path) -> Result<Option<Vec<u8>>, LogError> {
    let mut bytes = vec![];
    let read = File::open(path).and_then(|mut file| file.read_to_end(&mut bytes));
    match read {
        Ok(_) => Ok(Some(bytes)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(LogError::Read { path: path.to_owned(), source }),
    }
}

pub(crate) fn record(payload: &[u8]) -> Result<Vec<u8>, LogError> {
    if payload.len() > RECORD_MAX {
        return Err(LogError::TooLong(payload.len()));
    }
    let length = (payload.len() as u32).to_le_bytes();
    let mut bytes = Vec::with_capacity(HEADER + payload.len());
    bytes.extend(length);
    bytes.extend(crc32fast::hash(&length).to_le_bytes());
    bytes.extend(crc32fast::hash(payload).to_le_bytes());
    bytes.extend(payload);
    Ok(bytes)
}

/// The payload of the whole record that begins here, if there is one.
fn record_at(bytes: &[u8], at: usize) -> Option<&[u8]> {
    let (length, rest) = bytes.get(at..)?.split_first_chunk()?;
    let (length_check, rest) = rest.split_first_chunk()?;
    let (check, rest) = rest.split_first_chunk()?;
    if u32::from_le_bytes(*length_check) != crc32fast::hash(length) {
        return None;
    }
    let length = u32::from_le_bytes(*length) as usize;
    let payload = rest.get(..length).filter(|_| length <= RECORD_MAX)?;
    (u32::from_le_bytes(*check) == crc32fast::hash(payload)).then_some(payload)
}

/// The records of a log, and how many of its bytes they take.
pub(crate) fn parse(path: &Path, bytes: &[u8]) -> Result<(Vec<Vec<u8>>, usize), LogError> {
    let damaged =
        |offset: usize| LogError::Damaged { path: path.to_owned(), offset: offset as u64 };
    if !bytes.starts_with(MAGIC) {
        // A crash while the file was made leaves a part of its first bytes, or zeros.
        let is_cut_off = MAGIC.starts_with(bytes) || bytes.iter().all(|byte| *byte == 0);
        return if is_cut_off { Ok((vec![], 0)) } else { Err(damaged(0)) };
    }
    let (mut records, mut at) = (vec![], MAGIC.len());
    while let Some(payload) = record_at(bytes, at) {
        records.push(payload.to_vec());
        at += HEADER + payload.len();
    }
    // The last write may be there in part, in any order of its blocks; behind it there is nothing whole.
    let is_whole_later = (at + 1..bytes.len()).any(|later| record_at(bytes, later).is_some());
    if is_whole_later { Err(damaged(at)) } else { Ok((records, at)) }
}

/// Opens a log for writing behind its whole records.
fn prepare(path: &Path, whole: usize) -> io::Result<(File, u64)> {
    let mut file = OpenOptions::new().create(true).write(true).truncate(false).open(path)?;
    file.set_len(whole as u64)?;
    let end = file.seek(SeekFrom::End(0))?;
    if end == 0 {
        file.write_all(MAGIC)?;
    }
    file.sync_all()?;
    Ok((file, end.max(MAGIC.len() as u64)))
}

/// Makes renamed and new files last.
pub(crate) fn sync_folder(folder: &Path) -> io::Result<()> {
    #[cfg(unix)]
    File::open(folder)?.sync_all()?;
    #[cfg(not(unix))]
    let _ = folder;
    Ok(())
}

/// Removes logs that no snapshot names. One that cannot be removed does no harm.
fn remove_others(folder: &Path, generation: u64) {
    let keep = format!("log-{generation}");
    let files = fs::read_dir(folder).into_iter().flatten().flatten();
    for file in files {
        let name = file.file_name();
        if name.to_str().is_some_and(|name| name.starts_with("log-") && name != keep) {
            let _ = fs::remove_file(file.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::testing::Folder;

    fn filled(folder: &Path, records: &[&[u8]]) -> Vec<u8> {
        let mut log = Log::open(folder).expect("a new log").log;
        for record in records {
            log.append(record).expect("short");
            log.commit().expect("written");
        }
        fs::read(folder.join("log-0")).expect("a file")
    }

    fn reopened(folder: &Path, bytes: &[u8]) -> Result<Vec<Vec<u8>>, LogError> {
        fs::write(folder.join("log-0"), bytes).expect("written");
        Log::open(folder).map(|opened| opened.records)
    }

    #[test]
    fn a_log_that_is_cut_off_anywhere_opens_to_its_whole_records_and_takes_more() {
        let folder = Folder::new();
        let records: [&[u8]; 4] = [b"one", b"", b"three, longer", b"four"];
        let bytes = filled(&folder.path, &records);
        for length in 0..=bytes.len() {
            fs::write(folder.path.join("log-0"), &bytes[..length]).expect("written");
            let Opened { mut log, records: kept, dropped, .. } =
                Log::open(&folder.path).unwrap_or_else(|error| panic!("cut at {length}: {error}"));
            assert_eq!(kept, records[..kept.len()], "cut at {length}");
            assert!(dropped < 32 && (length < bytes.len() || kept.len() == 4), "cut at {length}");
            log.append(b"new").expect("short");
            log.commit().expect("written");
            drop(log);
            let again = Log::open(&folder.path).expect("whole").records;
            assert_eq!(
                (again.len(), again.last().map(Vec::as_slice)),
                (kept.len() + 1, Some(&b"new"[..]))
            );
        }
    }

    #[test]
    fn damage_in_the_middle_is_an_error_and_at_the_end_a_torn_record() {
        let folder = Folder::new();
        let records: [&[u8]; 3] = [b"first", b"second", b"third"];
        let bytes = filled(&folder.path, &records);
        let last = bytes.len() - HEADER - 5;
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 0x10;
            match reopened(&folder.path, &damaged) {
                Err(LogError::Damaged { offset, .. }) => {
                    assert!(at < last && offset <= at as u64, "byte {at}")
                }
                Ok(kept) => assert!(at >= last && kept == records[..2], "byte {at}: {kept:?}"),
                Err(other) => panic!("byte {at}: {other}"),
            }
        }
        // Blocks of the last write that never reached the disk are zeros.
        let zeros = [&bytes[..last], &[0; 4096]].concat();
        assert_eq!(reopened(&folder.path, &zeros).expect("torn"), records[..2]);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]
        #[test]
        fn any_prefix_of_the_bytes_opens_to_a_prefix_of_the_records(
            records in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 0..12),
            cut in 0.0..1.0,
        ) {
            let folder = Folder::new();
            let slices: Vec<&[u8]> = records.iter().map(Vec::as_slice).collect();
            let bytes = filled(&folder.path, &slices);
            let length = (cut * bytes.len() as f64) as usize;
            let kept = reopened(&folder.path, &bytes[..length]).expect("a prefix is no damage");
            prop_assert_eq!(&kept, &records[..kept.len()]);
        }
    }

    #[test]
    fn what_is_not_committed_is_gone_and_what_is_stays() {
        let folder = Folder::new();
        let mut log = Log::open(&folder.path).expect("new").log;
        log.append(b"told").expect("short");
        log.commit().expect("written");
        log.append(b"not yet").expect("short");
        drop(log);
        assert_eq!(Log::open(&folder.path).expect("whole").records, [b"told"]);
    }

    #[test]
    fn a_snapshot_replaces_the_records_before_it_wherever_the_process_dies() {
        let folder = Folder::new();
        let mut log = Log::open(&folder.path).expect("new").log;
        log.append(b"old").expect("short");
        log.commit().expect("written");
        log.snapshot(b"state").expect("written");
        log.append(b"new").expect("short");
        log.commit().expect("written");
        let size = log.size();
        drop(log);
        // Left over from a process that died between writing the snapshot and naming it, and before removing the old log.
        fs::write(folder.path.join("snapshot.new"), b"half").expect("written");
        fs::write(folder.path.join("log-0"), b"old").expect("written");
        fs::write(folder.path.join("log-2"), b"begun").expect("written");
        let opened = Log::open(&folder.path).expect("whole");
        assert_eq!(opened.snapshot.as_deref(), Some(&b"state"[..]));
        assert_eq!((opened.records, opened.log.size()), (vec![b"new".to_vec()], size));
        assert!(!fs::exists(folder.path.join("log-0")).expect("readable"));
        drop(opened.log);

        let mut snapshot = fs::read(folder.path.join("snapshot")).expect("a file");
        *snapshot.last_mut().expect("not empty") ^= 1;
        fs::write(folder.path.join("snapshot"), snapshot).expect("written");
        assert!(matches!(Log::open(&folder.path), Err(LogError::Damaged { .. })));
    }

    #[test]
    fn two_coordinators_cannot_share_a_folder() {
        let folder = Folder::new();
        let first = Log::open(&folder.path).expect("new");
        assert!(matches!(Log::open(&folder.path), Err(LogError::InUse(_))));
        drop(first);
        assert!(Log::open(&folder.path).is_ok());
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_full_disk_is_said_and_nothing_is_written_after_it() {
        let folder = Folder::new();
        let mut log = Log::open(&folder.path).expect("new").log;
        log.fill_disk();
        log.append(b"x").expect("short");
        let sentence = log.commit().expect_err("full").to_string();
        assert!(sentence.starts_with("the disk is full"), "{sentence}");
        log.file = File::create(folder.path.join("log-0")).expect("there is room again");
        assert!(matches!(log.commit(), Err(LogError::Failed(_))));
    }
}
