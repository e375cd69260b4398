//! The journal of the job on disk. It is cut to the length that the log knows when a coordinator starts again.

use std::fs::{File, OpenOptions};
use std::io::{self, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    #[error("the disk is full: the journal {0} cannot be written")]
    Full(PathBuf),
    #[error("cannot write the journal {path}: {source}")]
    Write { path: PathBuf, source: io::Error },
}

impl JournalError {
    fn new(path: &Path, source: io::Error) -> JournalError {
        let path = path.to_owned();
        match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => JournalError::Full(path),
            _ => JournalError::Write { path, source },
        }
    }
}

/// The lines of the job, as a file of JSON lines.
pub(crate) struct Journal {
    pub path: PathBuf,
    file: File,
    /// Lines that are not on the disk yet.
    pub pending: Vec<u8>,
}

impl Journal {
    pub fn open(path: &Path, length: u64) -> Result<Journal, JournalError> {
        let open = || -> io::Result<File> {
            let mut file =
                OpenOptions::new().create(true).write(true).truncate(false).open(path)?;
            file.set_len(length)?;
            file.seek(SeekFrom::End(0))?;
            Ok(file)
        };
        let path = path.to_owned();
        match open() {
            Ok(file) => Ok(Journal { path, file, pending: vec![] }),
            Err(source) => Err(JournalError::new(&path, source)),
        }
    }

    pub fn commit(&mut self) -> Result<(), JournalError> {
        if self.pending.is_empty() {
            return Ok(());
        }
        let written = self.file.write_all(&self.pending).and_then(|()| self.file.sync_data());
        self.pending.clear();
        written.map_err(|source| JournalError::new(&self.path, source))
    }
}
