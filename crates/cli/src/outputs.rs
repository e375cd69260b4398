//! The output files of a run: report, journal, trace and TensorBoard events.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use clap::Args;
use paceline_job::journal_file::{JournalFile, Recorded, old_name};
use paceline_runtime::{Line, Reader};
use paceline_watch::{Facts, Report, TensorBoard, Trace};

use crate::error::{CliError, CliResult, CommandError};
use crate::files::{self, Named, check_distinct, check_format, check_writable};
use crate::output::say;

/// The default report file.
pub const REPORT: &str = "report.html";
/// How the names of pages end.
pub const HTML: &[&str] = &["html", "htm"];

#[derive(Args)]
#[command(next_help_heading = "Output")]
pub struct OutputFlags {
    /// Write an HTML report to this file [default: report.html for `train` without --json, else none]
    #[arg(long, value_name = "FILE.html")]
    report: Option<PathBuf>,
    /// Write no report
    #[arg(long, conflicts_with = "report")]
    no_report: bool,
    /// Write TensorBoard scalars into this folder; use a separate folder for each run
    #[arg(long, value_name = "FOLDER")]
    tensorboard: Option<PathBuf>,
    /// Write a trace for Perfetto (ui.perfetto.dev) or chrome://tracing
    #[arg(long, value_name = "FILE.json")]
    trace: Option<PathBuf>,
}

/// The output files of one run. They are checked to be writable before the run, but opened only at its first journal
/// line, so that a run that is refused overwrites nothing.
pub struct Outputs {
    /// The run's name in the trace.
    name: String,
    report: Option<PathBuf>,
    journal: Option<PathBuf>,
    tensorboard: Option<PathBuf>,
    trace: Option<PathBuf>,
    /// The journal of the run before, which this one continues.
    recorded: Option<Recorded>,
    open: Option<Open>,
}

struct Open {
    journal: Option<JournalFile>,
    tensorboard: Option<TensorBoard>,
    trace: Option<Trace>,
    /// An error for each file that could not be opened.
    errors: Vec<CliError>,
}

impl OutputFlags {
    /// Checks that all files can be written. If the default report path is not writable, no report is written.
    pub fn check(
        &self,
        name: &str,
        report_by_default: bool,
        journal: Option<&Path>,
        read: &[Named],
    ) -> CliResult<Outputs> {
        let default = (report_by_default && !self.no_report).then(|| PathBuf::from(REPORT));
        let report = match &self.report {
            Some(path) => Some(("--report", path.clone())),
            None => default.map(|path| ("the report", path)),
        };
        let journal = journal.map(|path| ("--journal", path.to_owned()));
        let trace = self.trace.clone().map(|path| ("--trace", path));
        let old = |(_, path): &Named| ("the old journal", old_name(path));
        let old_journal = journal.as_ref().filter(|(_, path)| path.is_file()).map(old);
        let named = [&journal, &old_journal, &report, &trace];
        check_distinct(read, &named.into_iter().flatten().cloned().collect::<Vec<_>>())?;
        if let Some((flag, path)) = &report {
            check_format(flag, path, HTML)?;
        }
        let check = |what, path: &Option<Named>| match path {
            Some((_, path)) => check_writable(what, path),
            None => Ok(()),
        };
        check("journal", &journal)?;
        check("trace", &trace)?;
        if let Some(folder) = &self.tensorboard {
            check_folder(folder)?;
        }
        Ok(Outputs {
            name: name.to_owned(),
            report: writable_report(report)?,
            journal: journal.map(|(_, path)| path),
            tensorboard: self.tensorboard.clone(),
            trace: trace.map(|(_, path)| path),
            recorded: None,
            open: None,
        })
    }
}

fn check_folder(folder: &Path) -> Result<(), CommandError> {
    if folder.exists() && !folder.is_dir() {
        return Err(CommandError::TensorBoardFile { path: folder.to_owned() });
    }
    let trial = folder.join(format!(".paceline-{}", std::process::id()));
    let tried = fs::create_dir_all(folder).and_then(|()| fs::write(&trial, ""));
    tried
        .and_then(|()| fs::remove_file(&trial))
        .map_err(|source| CommandError::TensorBoard { folder: folder.to_owned(), source })
}

/// Fails only if the report was requested with --report; an unwritable default report is just omitted.
fn writable_report(named: Option<Named>) -> Result<Option<PathBuf>, CommandError> {
    let Some((what, path)) = named else { return Ok(None) };
    match check_writable("report", &path) {
        Ok(()) => Ok(Some(path)),
        Err(error) if what == "--report" => Err(error),
        Err(error) => {
            say(&format!("no report: {error}"));
            Ok(None)
        }
    }
}

impl Outputs {
    /// No files at all.
    pub fn none() -> Outputs {
        let (name, report, journal) = (String::new(), None, None);
        let (tensorboard, trace, recorded, open) = (None, None, None, None);
        Outputs { name, report, journal, tensorboard, trace, recorded, open }
    }

    /// TensorBoard scalars and a trace, of a journal with this name.
    pub fn of_journal(
        name: String,
        tensorboard: Option<PathBuf>,
        trace: Option<PathBuf>,
    ) -> CliResult<Outputs> {
        if let Some(path) = &trace {
            check_writable("trace", path)?;
        }
        if let Some(folder) = &tensorboard {
            check_folder(folder)?;
        }
        Ok(Outputs { name, tensorboard, trace, ..Outputs::none() })
    }

    /// The same files, with a journal that continues the one of the run before.
    pub fn continuing(self, recorded: Option<Recorded>) -> Outputs {
        Outputs { recorded, ..self }
    }

    fn open(&self) -> Open {
        let mut errors = vec![];
        let journal = self.journal.as_deref().map(|path| match self.recorded {
            Some(recorded) => JournalFile::append(path, recorded),
            None => JournalFile::create(path),
        });
        let tensorboard = self.tensorboard.as_deref();
        let tensorboard = tensorboard.map(|path| TensorBoard::create(path, SystemTime::now()));
        let trace = self.trace.as_deref().map(|path| Trace::create(path, &self.name));
        Open {
            journal: opened(journal, &mut errors),
            tensorboard: opened(tensorboard, &mut errors),
            trace: opened(trace, &mut errors),
            errors,
        }
    }

    /// Closes the files; returns an error for each incomplete file.
    pub fn finish(&mut self) -> Vec<CliError> {
        let Some(Open { journal, tensorboard, trace, mut errors }) = self.open.take() else {
            return vec![];
        };
        let journal = journal.map(|journal| journal.finish().map_err(CliError::failed));
        let trace = trace.map(|trace| trace.finish().map_err(CliError::failed));
        let tensorboard = tensorboard.map(|events| events.finish().map_err(CliError::failed));
        let finished = [journal, trace, tensorboard].into_iter().flatten();
        errors.extend(finished.filter_map(Result::err));
        errors
    }

    /// Writes the report, if there is one; returns its path.
    pub fn draw(&self, report: &Report, facts: &Facts) -> Result<Option<PathBuf>, CommandError> {
        let Some(path) = &self.report else { return Ok(None) };
        files::write("report", path, &report.html(facts))?;
        Ok(Some(path.clone()))
    }
}

fn opened<T, E>(file: Option<Result<T, E>>, errors: &mut Vec<CliError>) -> Option<T>
where
    E: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    file?.map_err(|error| errors.push(CliError::failed(error))).ok()
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
