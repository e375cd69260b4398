//! `paceline report`: a recorded journal as a page.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;

use clap::Args;
use paceline_job::journal_file;
use paceline_job::totals::RunTotals;
use paceline_runtime::{Line, Reader, Record};
use paceline_watch::table::count;
use paceline_watch::{Facts, Report as Page};

use crate::files::{check_apart, check_writable, write};
use crate::output::{Ended, Ending, say};
use crate::outputs::REPORT;
use crate::summary::{journal_numbers, named};

/// Draw a recorded journal as a page
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct Report {
    /// What `--journal` wrote
    journal: PathBuf,
    /// Where the page goes
    #[arg(long, value_name = "FILE.html", default_value = REPORT)]
    out: PathBuf,
}

const EXAMPLES: &str = "\
Examples:
  paceline simulate spot --journal run.jsonl && paceline report run.jsonl
  paceline report run.jsonl --out spot.html

A journal that breaks off, as that of a run that was killed, is drawn as far as it goes.";

impl Report {
    pub fn run(&self) -> Ended {
        let read = [("the journal", self.journal.clone())];
        check_apart(&read, &[("--out", self.out.clone())])?;
        check_writable("report", &self.out).map_err(Ending::Failed)?;
        let (mut account, mut page) = (RunTotals::default(), Page::default());
        let mut facts = Facts::default();
        for (before, line) in journal_file::read(&self.journal).enumerate() {
            match line {
                Ok(Line { record: Record::Began { .. }, .. }) if before > 0 => {
                    facts.remarks.push(format!(
                        "Another journal begins at {}, line {}: only the first is drawn.",
                        self.journal.display(),
                        before + 1
                    ));
                    break;
                }
                Ok(line) => {
                    facts.about.extend(told_by(&line));
                    account.read(&line);
                    page.read(&line);
                }
                // Without even a beginning there is nothing to draw.
                Err(error) if facts.about.is_empty() => return Err(Ending::of(error)),
                Err(sentence) if self.has_more_lines_than(before + 1) => facts
                    .remarks
                    .push(format!("The journal is drawn up to a line that is broken: {sentence}.")),
                Err(sentence) => {
                    facts.remarks.push(format!("The journal breaks off at {sentence}."))
                }
            }
        }
        if facts.about.is_empty() {
            let path = self.journal.display();
            return Err(Ending::Failed(format!("the journal {path} is empty")));
        }
        if page.keeping_one_in() > 1 {
            facts.remarks.push(format!(
                "The journal was thinned, at last to one record in {}: rates, shares and sums are estimates.",
                count(page.keeping_one_in())
            ));
        }
        facts.remarks.iter().for_each(|remark| say(remark));
        let strategy = facts.about.first().map_or("", |(_, strategy)| strategy);
        facts.title = format!("{strategy}, from {}", self.journal.display());
        facts.about.push(("workers".to_owned(), account.workers.len().to_string()));
        facts.figures = named(journal_numbers(&account, &page));
        facts.waited_for = account.waited_for;
        write("report", &self.out, &page.html(&facts)).map_err(Ending::Failed)?;
        say(&format!("Report: {}", self.out.display()));
        Ok(())
    }
}

impl Report {
    fn has_more_lines_than(&self, count: usize) -> bool {
        let Ok(file) = File::open(&self.journal) else { return false };
        BufReader::new(file).split(b'\n').nth(count).is_some()
    }
}

/// What the first line tells of the job.
fn told_by(line: &Line) -> Vec<(String, String)> {
    let Record::Began {
        strategy, seed, samples_total, samples_per_epoch, model, data, params, ..
    } = &line.record
    else {
        return vec![];
    };
    let called = |name: &str| if name.is_empty() { String::new() } else { format!("{name}, ") };
    let epochs = *samples_total as f64 / (*samples_per_epoch).max(1) as f64;
    named([
        ("strategy", strategy.clone()),
        ("model", format!("{}{} params", called(model), count(*params))),
        ("data", format!("{}{} samples", called(data), count(*samples_per_epoch))),
        ("epochs", format!("{epochs:.2}")),
        ("seed", seed.to_string()),
    ])
}
