//! Where a run can be watched: the flags that name files, and the files behind them.

use std::fs::{self, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use clap::Args;
use paceline_runtime::{Line, Reader};
use paceline_watch::{Facts, Report, TensorBoard, Trace};

use crate::output::{Ending, say};

/// Where a report goes unless somebody says otherwise.
pub const REPORT: &str = "report.html";

#[derive(Args)]
#[command(next_help_heading = "Watching")]
pub struct OutputFlags {
    /// Draw the run into this page [default: report.html for `train` without --json, else none]
    #[arg(long, value_name = "FILE.html")]
    report: Option<PathBuf>,
    /// Draw no page
    #[arg(long, conflicts_with = "report")]
    no_report: bool,
    /// Write scalars for TensorBoard into this folder; give every run its own
    #[arg(long, value_name = "FOLDER")]
    tensorboard: Option<PathBuf>,
    /// Write a trace for Perfetto (ui.perfetto.dev) or chrome://tracing
    #[arg(long, value_name = "FILE.json")]
    trace: Option<PathBuf>,
}

/// The files of one run, open from before it begins: better to fail then than after it.
pub struct Outputs {
    report: Option<PathBuf>,
    tensorboard: Option<TensorBoard>,
    trace: Option<Trace>,
}

impl OutputFlags {
    /// Opens what is asked for; a report by default is none if it cannot be written.
    pub fn open(
        &self,
        name: &str,
        report_by_default: bool,
        journal: Option<&Path>,
    ) -> Result<Outputs, Ending> {
        self.check_apart(journal).map_err(Ending::Usage)?;
        let report = self.report_path(report_by_default).map_err(Ending::Failed)?;
        let tensorboard =
            self.tensorboard.as_deref().map(|path| TensorBoard::create(path, SystemTime::now()));
        let trace = self.trace.as_deref().map(|path| Trace::create(path, name));
        Ok(Outputs {
            report,
            tensorboard: tensorboard.transpose().map_err(Ending::Failed)?,
            trace: trace.transpose().map_err(Ending::Failed)?,
        })
    }

    fn check_apart(&self, journal: Option<&Path>) -> Result<(), String> {
        let named = [
            ("--journal", journal),
            ("--report", self.report.as_deref()),
            ("--trace", self.trace.as_deref()),
        ];
        for (i, (flag, path)) in named.iter().enumerate() {
            let same = named[..i].iter().find(|(_, other)| path.is_some() && other == path);
            if let (Some((other, _)), Some(path)) = (same, path) {
                let path = path.display();
                return Err(format!("{other} and {flag} both name {path}: give each its own file"));
            }
        }
        Ok(())
    }

    fn report_path(&self, by_default: bool) -> Result<Option<PathBuf>, String> {
        if let Some(path) = &self.report {
            return check_writable(path).map(|()| Some(path.clone()));
        }
        if self.no_report || !by_default {
            return Ok(None);
        }
        match check_writable(Path::new(REPORT)) {
            Ok(()) => Ok(Some(REPORT.into())),
            Err(sentence) => {
                say(&format!("no report: {sentence}"));
                Ok(None)
            }
        }
    }
}

impl Outputs {
    /// Closes trace and scalars; gives a sentence for each that is not complete.
    pub fn finish(&mut self) -> Vec<String> {
        let trace = self.trace.take().map(Trace::finish);
        let tensorboard = self.tensorboard.take().map(TensorBoard::finish);
        [trace, tensorboard].into_iter().flatten().filter_map(Result::err).collect()
    }

    /// Draws the page, if there is to be one; gives where it is.
    pub fn draw(&self, report: &Report, facts: &Facts) -> Result<Option<PathBuf>, String> {
        let Some(path) = &self.report else { return Ok(None) };
        write_report(path, report, facts)?;
        Ok(Some(path.clone()))
    }
}

impl Reader for Outputs {
    fn read(&mut self, line: &Line) {
        if let Some(trace) = &mut self.trace {
            trace.read(line);
        }
        if let Some(tensorboard) = &mut self.tensorboard {
            tensorboard.read(line);
        }
    }
}

pub fn write_report(path: &Path, report: &Report, facts: &Facts) -> Result<(), String> {
    fs::write(path, report.html(facts)).map_err(|error| cannot_write(path, &error))
}

/// Whether a report could be written there; leaves everything as it is.
pub fn check_writable(path: &Path) -> Result<(), String> {
    let is_new = !path.exists();
    let opened = OpenOptions::new().append(true).create(true).open(path);
    opened.map_err(|error| cannot_write(path, &error))?;
    if is_new {
        let _ = fs::remove_file(path);
    }
    Ok(())
}

fn cannot_write(path: &Path, error: &io::Error) -> String {
    format!("cannot write the report {}: {error}", path.display())
}
