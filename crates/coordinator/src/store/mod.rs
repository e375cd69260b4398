//! Where a coordinator keeps what it must know after a restart: a log of records after a snapshot, and the journal of the job.
//!
//! There are two such places. A folder on a disk ([`Disk`]) outlives the process. Keys in etcd ([`Etcd`]) outlive the machine, and
//! another coordinator, the standby, continues from them.

mod disk;
mod etcd;
mod journal;
pub(crate) mod log;

use std::path::{Path, PathBuf};

pub use disk::Disk;
pub use etcd::{Etcd, EtcdConfig, EtcdError, EtcdPlace, EtcdTls, PlaceError};
pub use journal::JournalError;
pub(crate) use log::sync_folder;
pub use log::{Log, LogError};

/// Keeps what one coordinator writes, as long as no other one may write there.
pub trait Store: Send {
    /// Makes the journal have this length: all lines that are stored, and no other ones.
    fn begin_journal(&mut self, length: u64) -> Result<(), StoreError>;

    /// Adds lines to the journal and a batch, which is JSON, to the log. Both are there or none is; when this returns, they outlive the
    /// process.
    fn commit(&mut self, batch: &[u8], lines: &[u8]) -> Result<(), StoreError>;

    /// Bytes of the records since the last snapshot.
    fn size(&self) -> u64;

    /// Replaces all records so far by this state.
    fn snapshot(&mut self, state: &[u8]) -> Result<(), StoreError>;

    /// A file with all lines of the journal.
    fn journal(&self) -> &Path;

    /// Whether this coordinator may still write, as far as it knows. Costs nothing.
    fn check(&self) -> Result<(), StoreError> {
        Ok(())
    }

    /// As [`check`](Self::check), and nobody knows better.
    fn confirm(&mut self) -> Result<(), StoreError> {
        self.check()
    }

    /// The addresses of all coordinators of the job, this one's and those of its standbys; empty if there can be no others.
    fn coordinators(&self) -> Vec<String> {
        vec![]
    }
}

/// What a store held when it was opened.
pub struct Opened {
    pub store: Box<dyn Store>,
    /// How users know the place.
    pub place: String,
    /// `None` for a new job.
    pub snapshot: Option<Vec<u8>>,
    /// The batches since the snapshot.
    pub batches: Vec<Vec<u8>>,
}

#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error(transparent)]
    Log(#[from] LogError),
    #[error(transparent)]
    Journal(#[from] JournalError),
    #[error(transparent)]
    Etcd(#[from] EtcdError),
}

/// A batch and its lines as one record. A batch is JSON, and has no line end in it.
fn joined(batch: &[u8], lines: &[u8]) -> Vec<u8> {
    let end: &[u8] = if lines.is_empty() { b"" } else { b"\n" };
    [batch, end, lines].concat()
}

/// The batch and the lines of a record.
fn parted(record: &[u8]) -> (&[u8], &[u8]) {
    match record.iter().position(|byte| *byte == b'\n') {
        Some(at) => (&record[..at], &record[at + 1..]),
        None => (record, &[]),
    }
}

/// The name of the journal in a coordinator's folder.
const JOURNAL: &str = "journal.jsonl";

fn journal_in(folder: &Path) -> PathBuf {
    folder.join(JOURNAL)
}
