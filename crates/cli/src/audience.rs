//! Everybody who reads along while a job runs: the account, the timeline, the bar and the journal's file.

use std::path::Path;

use paceline_job::account::Account;
use paceline_job::journal_file::JournalFile;
use paceline_runtime::{Line, Reader};
use paceline_watch::Timeline;

use crate::bar::Bar;
use crate::output::{Ended, Ending};

pub struct Audience {
    pub account: Account,
    pub timeline: Timeline,
    bar: Bar,
    journal: Option<JournalFile>,
}

impl Audience {
    /// Opens the journal's file first: better to fail now than after the run.
    pub fn new(bar: Bar, journal: Option<&Path>) -> Result<Audience, Ending> {
        let journal = journal.map(JournalFile::create).transpose().map_err(Ending::Failed)?;
        Ok(Audience { account: Account::default(), timeline: Timeline::default(), bar, journal })
    }

    pub fn clear_bar(&self) {
        self.bar.clear();
    }

    /// Closes the journal's file, and tells if it is not complete.
    pub fn finish_journal(&mut self) -> Ended {
        self.journal.take().map_or(Ok(()), JournalFile::finish).map_err(Ending::Failed)
    }
}

impl Reader for Audience {
    fn read(&mut self, line: &Line) {
        self.account.read(line);
        self.timeline.read(line);
        if let Some(journal) = &mut self.journal {
            journal.read(line);
        }
        self.bar.show(&self.account);
    }
}
