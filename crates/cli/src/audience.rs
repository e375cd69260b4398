//! Everybody who reads along while a job runs: the account, the report, the bar and the files.

use paceline_job::run::totals::RunTotals;
use paceline_runtime::{Line, Reader};
use paceline_watch::Report;

use crate::bar::Bar;
use crate::outputs::Outputs;

pub struct Audience {
    pub account: RunTotals,
    pub report: Report,
    pub outputs: Outputs,
    bar: Bar,
}

impl Audience {
    pub fn new(bar: Bar, outputs: Outputs) -> Audience {
        Audience { account: RunTotals::default(), report: Report::default(), outputs, bar }
    }

    /// Clears the bar and closes the files; gives a sentence for each that is not complete.
    pub fn finish(&mut self) -> Vec<String> {
        self.bar.clear();
        self.outputs.finish()
    }
}

impl Reader for Audience {
    fn read(&mut self, line: &Line) {
        self.account.read(line);
        self.report.read(line);
        self.outputs.read(line);
        self.bar.show(&self.account);
    }
}
