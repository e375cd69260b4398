//! The journal of the job as a file.

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
pub(super) struct Journal {
    path: PathBuf,
    file: File,
}

impl Journal {
    /// Cut to this length.
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
            Ok(file) => Ok(Journal { path, file }),
            Err(source) => Err(JournalError::new(&path, source)),
        }
    }

    pub fn write(&mut self, lines: &[u8]) -> Result<(), JournalError> {
        self.file.write_all(lines).map_err(|source| JournalError::new(&self.path, source))
    }

    /// Waits until everything is on the disk.
    pub fn sync(&mut self) -> Result<(), JournalError> {
        self.file.sync_data().map_err(|source| JournalError::new(&self.path, source))
    }
}
