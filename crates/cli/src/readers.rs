//! The readers of a running job's journal: totals, report, output files and progress bar.

use paceline_job::run::totals::RunTotals;
use paceline_runtime::{Line, Reader};
use paceline_watch::Report;

use crate::bar::Bar;
use crate::error::CliError;
use crate::outputs::Outputs;

pub struct RunReaders {
    pub totals: RunTotals,
    pub report: Report,
    pub outputs: Outputs,
    bar: Bar,
}

impl RunReaders {
    pub fn new(bar: Bar, outputs: Outputs) -> RunReaders {
        RunReaders { totals: RunTotals::default(), report: Report::default(), outputs, bar }
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
        self.bar.show(&self.totals);
    }
}
