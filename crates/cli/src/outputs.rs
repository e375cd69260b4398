//! Where a run can be watched: the flags that name files, and the files behind them.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use clap::Args;
use paceline_job::journal_file::JournalFile;
use paceline_runtime::{Line, Reader};
use paceline_watch::{Facts, Report, TensorBoard, Trace};

use crate::files::{self, Named, check_apart, check_writable};
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

/// The files of one run. That they can be written is known before it begins: better to fail then
/// than after it. They are opened at its first line: a run that is refused leaves what was there.
pub struct Outputs {
    /// What a trace calls the run.
    name: String,
    report: Option<PathBuf>,
    journal: Option<PathBuf>,
    tensorboard: Option<PathBuf>,
    trace: Option<PathBuf>,
    open: Option<Open>,
}

struct Open {
    journal: Option<JournalFile>,
    tensorboard: Option<TensorBoard>,
    trace: Option<Trace>,
    /// A sentence for each that could not be opened.
    troubles: Vec<String>,
}

impl OutputFlags {
    /// Where everything goes, checked; a report by default is none if it cannot be written.
    pub fn check(
        &self,
        name: &str,
        report_by_default: bool,
        journal: Option<&Path>,
        read: &[Named],
    ) -> Result<Outputs, Ending> {
        let default = (report_by_default && !self.no_report).then(|| PathBuf::from(REPORT));
        let report = match &self.report {
            Some(path) => Some(("--report", path.clone())),
            None => default.map(|path| ("the report", path)),
        };
        let journal = journal.map(|path| ("--journal", path.to_owned()));
        let trace = self.trace.clone().map(|path| ("--trace", path));
        let named = [&journal, &report, &trace];
        check_apart(read, &named.into_iter().flatten().cloned().collect::<Vec<_>>())?;
        let check = |what, path: &Option<Named>| match path {
            Some((_, path)) => check_writable(what, path).map_err(Ending::Failed),
            None => Ok(()),
        };
        check("journal", &journal)?;
        check("trace", &trace)?;
        if let Some(folder) = &self.tensorboard {
            check_folder(folder).map_err(Ending::Failed)?;
        }
        Ok(Outputs {
            name: name.to_owned(),
            report: writable_report(report).map_err(Ending::Failed)?,
            journal: journal.map(|(_, path)| path),
            tensorboard: self.tensorboard.clone(),
            trace: trace.map(|(_, path)| path),
            open: None,
        })
    }
}

fn check_folder(folder: &Path) -> Result<(), String> {
    let told = |error: &dyn std::fmt::Display| {
        format!("cannot write TensorBoard's events to {}: {error}", folder.display())
    };
    if folder.exists() && !folder.is_dir() {
        return Err(told(&"it is a file, name a folder"));
    }
    let trial = folder.join(format!(".paceline-{}", std::process::id()));
    let tried = fs::create_dir_all(folder).and_then(|()| fs::write(&trial, ""));
    tried.and_then(|()| fs::remove_file(&trial)).map_err(|error| told(&error))
}

/// A report that nobody asked for is not worth a failure.
fn writable_report(named: Option<Named>) -> Result<Option<PathBuf>, String> {
    let Some((what, path)) = named else { return Ok(None) };
    match check_writable("report", &path) {
        Ok(()) => Ok(Some(path)),
        Err(sentence) if what == "--report" => Err(sentence),
        Err(sentence) => {
            say(&format!("no report: {sentence}"));
            Ok(None)
        }
    }
}

impl Outputs {
    fn open(&self) -> Open {
        let mut troubles = vec![];
        let journal = self.journal.as_deref().map(JournalFile::create);
        let journal = journal.map(|opened| opened.map_err(|error| error.to_string()));
        let tensorboard = self.tensorboard.as_deref();
        let tensorboard = tensorboard.map(|path| TensorBoard::create(path, SystemTime::now()));
        let trace = self.trace.as_deref().map(|path| Trace::create(path, &self.name));
        Open {
            journal: kept(journal, &mut troubles),
            tensorboard: kept(tensorboard, &mut troubles),
            trace: kept(trace, &mut troubles),
            troubles,
        }
    }

    /// Closes the files; gives a sentence for each that is not complete.
    pub fn finish(&mut self) -> Vec<String> {
        let Some(Open { journal, tensorboard, trace, mut troubles }) = self.open.take() else {
            return vec![];
        };
        let journal = journal.map(JournalFile::finish);
        let journal = journal.map(|ended| ended.map_err(|error| error.to_string()));
        let trace = trace.map(Trace::finish);
        let tensorboard = tensorboard.map(TensorBoard::finish);
        let ended = [journal, trace, tensorboard].into_iter().flatten();
        troubles.extend(ended.filter_map(Result::err));
        troubles
    }

    /// Draws the page, if there is to be one; gives where it is.
    pub fn draw(&self, report: &Report, facts: &Facts) -> Result<Option<PathBuf>, String> {
        let Some(path) = &self.report else { return Ok(None) };
        files::write("report", path, &report.html(facts))?;
        Ok(Some(path.clone()))
    }
}

fn kept<T>(opened: Option<Result<T, String>>, troubles: &mut Vec<String>) -> Option<T> {
    opened?.map_err(|sentence| troubles.push(sentence)).ok()
}

impl Reader for Outputs {
    fn read(&mut self, line: &Line) {
        if self.open.is_none() {
            self.open = Some(self.open());
        }
        let Some(open) = &mut self.open else { return };
        if let Some(journal) = &mut open.journal {
            journal.read(line);
        }
        if let Some(trace) = &mut open.trace {
            trace.read(line);
        }
        if let Some(tensorboard) = &mut open.tensorboard {
            tensorboard.read(line);
        }
    }
}
