//! The readers of a running job's journal: totals, report, output files and progress bar.

use paceline_job::run::totals::RunTotals;
use paceline_page::PageReader;
use paceline_runtime::{Line, Reader};
use paceline_watch::Report;

use crate::bar::Bar;
use crate::error::CliError;
use crate::log::LogReader;
use crate::outputs::Outputs;

pub struct RunReaders {
    pub totals: RunTotals,
    pub report: Report,
    pub outputs: Outputs,
    bar: Bar,
    page: Option<PageReader>,
}

impl RunReaders {
    pub fn new(bar: Bar, outputs: Outputs) -> RunReaders {
        let (totals, report) = (RunTotals::default(), Report::default());
        RunReaders { totals, report, outputs, bar, page: None }
    }

    /// Also reads for the page, if there is one.
    pub fn shown_on(self, page: Option<PageReader>) -> RunReaders {
        RunReaders { page, ..self }
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
        LogReader.read(line);
        if let Some(page) = &mut self.page {
            page.read(line);
        }
    }
}
