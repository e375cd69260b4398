//! `paceline report`: draws a recorded journal as an HTML page.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;

use clap::Args;
use paceline_job::journal_file;
use paceline_job::run::totals::RunTotals;
use paceline_runtime::{Line, Reader, Record};
use paceline_watch::table::count;
use paceline_watch::{Facts, Report as Page};

use crate::error::{CliError, CliResult, UsageError};
use crate::files::{check_distinct, check_format, check_writable, write};
use crate::output::say;
use crate::outputs::{HTML, Outputs, REPORT};
use crate::summary::{journal_numbers, named};

/// Draw a recorded journal as an HTML page
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct Report {
    /// A file that was written with `--journal`, or the journal.jsonl in a coordinator's state folder
    journal: PathBuf,
    /// Write the page to this file
    #[arg(long, value_name = "FILE.html", default_value = REPORT)]
    out: PathBuf,
    /// Also write TensorBoard scalars into this folder
    #[arg(long, value_name = "DIR")]
    tensorboard: Option<PathBuf>,
    /// Also write trace events for Perfetto to this file
    #[arg(long, value_name = "FILE.json")]
    trace: Option<PathBuf>,
}

const EXAMPLES: &str = "\
Examples:
  paceline simulate spot --journal run.jsonl && paceline report run.jsonl
  paceline report run.jsonl --out spot.html
  paceline report run.jsonl --trace trace.json --tensorboard runs/spot

A journal that ends early, for example because the run was killed, is drawn up to its end. The journal of
a coordinator is journal.jsonl in its state folder.";

impl Report {
    pub fn run(&self) -> CliResult {
        let read = [("the journal", self.journal.clone())];
        let trace = self.trace.clone().map(|path| ("--trace", path));
        let written: Vec<_> = [("--out", self.out.clone())].into_iter().chain(trace).collect();
        check_distinct(&read, &written)?;
        check_format("--out", &self.out, HTML)?;
        check_writable("report", &self.out)?;
        let mut others = self.others()?;
        let (mut totals, mut page) = (RunTotals::default(), Page::default());
        let mut facts = Facts::default();
        for (before, line) in journal_file::read(&self.journal).enumerate() {
            match line {
                Ok(Line { record: Record::Began { .. }, .. }) if before > 0 => {
                    facts.remarks.push(format!(
                        "Another journal begins at {}, line {}: only the first one is drawn.",
                        self.journal.display(),
                        before + 1
                    ));
                    break;
                }
                Ok(line) => {
                    facts.about.extend(job_facts(&line));
                    totals.read(&line);
                    page.read(&line);
                    others.read(&line);
                }
                // Without its first line, a journal cannot be drawn.
                Err(error) if facts.about.is_empty() => return Err(CliError::usage(error)),
                Err(error) if self.has_more_lines_than(before + 1) => facts
                    .remarks
                    .push(format!("The journal is drawn up to a damaged line: {error}.")),
                Err(error) => facts.remarks.push(format!("The journal ends early: {error}.")),
            }
        }
        if facts.about.is_empty() {
            return Err(UsageError::EmptyJournal { path: self.journal.clone() }.into());
        }
        if page.keeping_one_in() > 1 {
            facts.remarks.push(format!(
                "The journal was thinned, at the end to one record in {}: rates, shares and sums are estimates.",
                count(page.keeping_one_in())
            ));
        }
        facts.remarks.iter().for_each(|remark| say(remark));
        let strategy = facts.about.first().map_or("", |(_, strategy)| strategy);
        facts.title = format!("{strategy}, from {}", self.journal.display());
        facts.about.push(("workers".to_owned(), totals.workers.len().to_string()));
        facts.figures = named(journal_numbers(&totals, &page));
        facts.waited_for = totals.waited_for;
        write("report", &self.out, &page.html(&facts))?;
        say(&format!("Report: {}", self.out.display()));
        others.finish().into_iter().next().map_or(Ok(()), Err)
    }

    /// The other files that are made from the journal.
    fn others(&self) -> CliResult<Outputs> {
        let name = self.journal.display().to_string();
        Outputs::of_journal(name, self.tensorboard.clone(), self.trace.clone())
    }

    fn has_more_lines_than(&self, count: usize) -> bool {
        let Ok(file) = File::open(&self.journal) else { return false };
        BufReader::new(file).split(b'\n').nth(count).is_some()
    }
}

/// Returns what the first line of a journal says about the job.
fn job_facts(line: &Line) -> Vec<(String, String)> {
    let Record::Began {
        strategy, seed, samples_total, samples_per_epoch, model, data, params, ..
    } = &line.record
    else {
        return vec![];
    };
    let prefix = |name: &str| if name.is_empty() { String::new() } else { format!("{name}, ") };
    let epochs = *samples_total as f64 / (*samples_per_epoch).max(1) as f64;
    named([
        ("strategy", strategy.clone()),
        ("model", format!("{}{} params", prefix(model), count(*params))),
        ("data", format!("{}{} samples", prefix(data), count(*samples_per_epoch))),
        ("epochs", format!("{epochs:.2}")),
        ("seed", seed.to_string()),
    ])
}
