//! The readers of a running job's journal: totals, report, output files and progress bar.

use paceline_job::run::totals::RunTotals;
use paceline_page::PageReader;
use paceline_runtime::{Line, Reader, Record, WorkerId};
use paceline_watch::Report;

use crate::bar::Bar;
use crate::error::CliError;
use crate::log::{self, LogReader};
use crate::output::say;
use crate::outputs::Outputs;

pub struct RunReaders {
    pub totals: RunTotals,
    pub report: Report,
    pub outputs: Outputs,
    bar: Bar,
    page: Option<PageReader>,
    /// The members of the last view, if it is said when one of them is gone.
    members: Option<Vec<WorkerId>>,
}

impl RunReaders {
    pub fn new(bar: Bar, outputs: Outputs) -> RunReaders {
        let (totals, report) = (RunTotals::default(), Report::default());
        RunReaders { totals, report, outputs, bar, page: None, members: None }
    }

    /// Also reads for the page, if there is one.
    pub fn shown_on(self, page: Option<PageReader>) -> RunReaders {
        RunReaders { page, ..self }
    }

    /// Also says when a member is lost or leaves.
    pub fn telling_losses(self) -> RunReaders {
        RunReaders { members: Some(vec![]), ..self }
    }

    fn tell(&mut self, line: &Line) {
        let (Some(before), Record::View { members, reason, .. }) =
            (&mut self.members, &line.record)
        else {
            return;
        };
        let is_gone = before.iter().any(|who| !members.contains(who));
        before.clone_from(members);
        // In a log, every view has a line already.
        if is_gone && !log::is_on() {
            say(reason);
        }
    }

    /// Clears the bar and closes the files; returns an error for each incomplete file.
    pub fn finish(&mut self) -> Vec<CliError> {
        self.bar.clear();
        self.outputs.finish()
    }
}

impl Reader for RunReaders {
    fn read(&mut self, line: &Line) {
        self.totals.read(line);
        self.report.read(line);
        self.outputs.read(line);
        self.bar.show(line, &self.totals);
        LogReader.read(line);
        self.tell(line);
        if let Some(page) = &mut self.page {
            page.read(line);
        }
    }
}
