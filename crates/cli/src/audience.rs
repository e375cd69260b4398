//! Everybody who reads along while a job runs: the account, the report, the bar and the files.

use std::path::Path;

use paceline_job::account::Account;
use paceline_job::journal_file::JournalFile;
use paceline_runtime::{Line, Reader};
use paceline_watch::Report;

use crate::bar::Bar;
use crate::output::Ending;
use crate::outputs::Outputs;

pub struct Audience {
    pub account: Account,
    pub report: Report,
    pub outputs: Outputs,
    bar: Bar,
    journal: Option<JournalFile>,
}

impl Audience {
    /// Opens the journal's file first: better to fail now than after the run.
    pub fn new(bar: Bar, journal: Option<&Path>, outputs: Outputs) -> Result<Audience, Ending> {
        let journal = journal.map(JournalFile::create).transpose().map_err(Ending::Failed)?;
        let (account, report) = (Account::default(), Report::default());
        Ok(Audience { account, report, outputs, bar, journal })
    }

    /// Clears the bar and closes the files; gives a sentence for each that is not complete.
    pub fn finish(&mut self) -> Vec<String> {
        self.bar.clear();
        let journal = self.journal.take().map_or(Ok(()), JournalFile::finish);
        journal.err().into_iter().chain(self.outputs.finish()).collect()
    }
}

impl Reader for Audience {
    fn read(&mut self, line: &Line) {
        self.account.read(line);
        self.report.read(line);
        if let Some(journal) = &mut self.journal {
            journal.read(line);
        }
        self.outputs.read(line);
        self.bar.show(&self.account);
    }
}
