//! A log and a journal in a folder.
//!
//! The lines of a batch are written with it, as one record of the log, so that the disk is waited for once. The journal is written
//! without waiting: what a crash takes from its end is in the log. A snapshot, which replaces the log, waits for the journal.

use std::path::{Path, PathBuf};

use super::journal::Journal;
use super::log::{Log, LogError};
use super::{Opened, Store, StoreError, joined, journal_in, parted};

pub struct Disk {
    log: Log,
    path: PathBuf,
    /// The lines in the log, until the journal is open.
    recent: Vec<u8>,
    /// Open from [`Store::begin_journal`] on.
    journal: Option<Journal>,
}

impl Disk {
    /// Opens a folder, or makes it.
    pub fn open(folder: &Path) -> Result<Opened, LogError> {
        let super::log::Opened { log, snapshot, records, .. } = Log::open(folder)?;
        let mut recent = vec![];
        let mut batches = vec![];
        for record in records {
            let (batch, lines) = parted(&record);
            batches.push(batch.to_vec());
            recent.extend(lines);
        }
        let store = Disk { log, path: journal_in(folder), recent, journal: None };
        let place = folder.display().to_string();
        Ok(Opened { store: Box::new(store), place, snapshot, batches })
    }
}

impl Store for Disk {
    fn begin_journal(&mut self, length: u64) -> Result<(), StoreError> {
        let recent = std::mem::take(&mut self.recent);
        let before = length.saturating_sub(recent.len() as u64);
        let mut journal = Journal::open(&self.path, before)?;
        journal.write(&recent)?;
        self.journal = Some(journal);
        Ok(())
    }

    fn commit(&mut self, batch: &[u8], lines: &[u8]) -> Result<(), StoreError> {
        self.log.append(&joined(batch, lines))?;
        self.log.commit()?;
        if let Some(Err(error)) = self.journal.as_mut().map(|journal| journal.write(lines)) {
            // The lines are in the log, but nobody reads them there.
            self.log.give_up();
            return Err(error.into());
        }
        Ok(())
    }

    fn size(&self) -> u64 {
        self.log.size()
    }

    fn snapshot(&mut self, state: &[u8]) -> Result<(), StoreError> {
        if let Some(Err(error)) = self.journal.as_mut().map(Journal::sync) {
            self.log.give_up();
            return Err(error.into());
        }
        Ok(self.log.snapshot(state)?)
    }

    fn journal(&self) -> &Path {
        &self.path
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::testing::Folder;

    fn reopened(folder: &Folder, length: u64) -> (Vec<Vec<u8>>, String) {
        let mut opened = Disk::open(&folder.path).expect("the folder is free");
        opened.store.begin_journal(length).expect("there is room on the disk");
        let journal = fs::read_to_string(opened.store.journal()).expect("a journal");
        (opened.batches, journal)
    }

    /// Also of a journal that was written by an earlier version, whose log held no lines.
    #[test]
    fn lines_that_a_crash_took_from_the_journal_are_in_the_log() {
        let folder = Folder::new();
        let mut store = Disk::open(&folder.path).expect("a new folder").store;
        store.snapshot(b"state").expect("there is room on the disk");
        store.begin_journal(0).expect("there is room on the disk");
        store.commit(b"{1}", b"one\n").expect("there is room on the disk");
        store.snapshot(b"state").expect("there is room on the disk");
        store.commit(b"{2}", b"two\nthree\n").expect("there is room on the disk");
        store.commit(b"{3}", b"").expect("there is room on the disk");
        drop(store);
        let path = journal_in(&folder.path);
        for kept in ["one\n", "one\ntw", "one\ntwo\nthree\n", "one\ntwo\nthree\nnever told\n"] {
            fs::write(&path, kept).expect("written");
            let (batches, journal) = reopened(&folder, 14);
            assert_eq!(batches, [b"{2}", b"{3}"]);
            assert_eq!(journal, "one\ntwo\nthree\n", "{kept:?} was left");
        }
    }
}
