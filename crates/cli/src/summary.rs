//! The summary and the report of a run: its numbers, utilization, waiting, and timelines.

use std::collections::BTreeMap;
use std::fmt::Write;

use paceline_job::run::totals::RunTotals;
use paceline_job::{Error, Job, Prepared, Recovery, RunResult, Target};
use paceline_runtime::WorkerId;
use paceline_watch::table::{bytes, count, duration, number};
use paceline_watch::{Facts, Report, Timeline};

use crate::counted::counted;
use crate::error::{CliError, CliResult, CommandError};
use crate::output::{print, print_json, say, say_error};
use crate::readers::RunReaders;

/// More workers than this are summarized, not listed.
const WORKERS_LISTED_MAX: usize = 16;

/// Width of a timeline; together with the workers' ids it fits into 80 columns.
const TIMELINE_COLUMNS: usize = 72;

/// The run that a summary is about.
pub struct ReportContext<'a> {
    pub job: &'a Job,
    pub prepared: &'a Prepared,
    /// The scenario's name, or "threads".
    pub place: &'a str,
    pub json: bool,
}

/// Prints the result of a run, writes its report, and checks that its output files are complete.
///
/// The report is written before anything is printed, and its error is reported afterwards, so that a failure of one
/// does not prevent the other.
pub fn report_run(
    run: &ReportContext,
    ended: Result<RunResult, Error>,
    mut readers: RunReaders,
) -> CliResult {
    let mut errors = readers.finish();
    let ended = match ended {
        Err(error) if error.is_usage() => return Err(error.into()),
        ended => ended,
    };
    let facts = facts(run, &ended, &readers);
    let page = readers.outputs.draw(&readers.report, &facts).unwrap_or_else(|error| {
        errors.push(error.into());
        None
    });
    let printed = match &ended {
        Ok(result) if run.json => print_json(result),
        Ok(result) if result.diverged.is_none() => print(&summary(run, result, &readers)),
        _ => Ok(()),
    };
    if let Some(path) = page {
        say(&format!("{}Report: {}", if run.json { "" } else { "\n" }, path.display()));
    }
    let ended = [check_result(ended), printed];
    let mut errors = ended.into_iter().filter_map(Result::err).chain(errors);
    let first = errors.next();
    for error in errors {
        if let CliError::Failed(error) = error {
            say_error(error);
        }
    }
    first.map_or(Ok(()), Err)
}

/// Fails if the run failed, diverged, or lost or repeated samples.
fn check_result(ended: Result<RunResult, Error>) -> CliResult {
    let result = ended?;
    if let Some(reason) = result.diverged {
        return Err(CommandError::Diverged { strategy: result.strategy, reason }.into());
    }
    Ok(check_ledger(&result)?)
}

fn summary(run: &ReportContext, result: &RunResult, readers: &RunReaders) -> String {
    let mut text = heading(result, run.place);
    for (name, value) in numbers(run.prepared, result) {
        let _ = writeln!(text, "{name:<10}{value}");
    }
    text += &utilization(&readers.totals.utilization());
    text += &waiting(result, &readers.totals);
    text += &timelines(result, &readers.totals, &readers.report.timeline);
    text
}

fn facts(run: &ReportContext, ended: &Result<RunResult, Error>, readers: &RunReaders) -> Facts {
    let ReportContext { job, prepared, place, .. } = run;
    let arguments = std::env::args_os().skip(1);
    let command: Vec<_> =
        arguments.map(|argument| argument.to_string_lossy().into_owned()).collect();
    let about = [
        ("strategy", prepared.name.clone()),
        ("model", format!("{}, {} params", job.model, count(prepared.plan.initial.len() as u64))),
        ("data", format!("{}, {} samples", job.data, count(prepared.plan.samples_per_epoch))),
        ("cluster", (*place).to_owned()),
        ("workers", prepared.workers.to_string()),
        ("batch", format!("{} per worker", prepared.batch)),
        ("learning rate", rate(prepared.plan.schedule.base)),
        ("seed", prepared.plan.seed.to_string()),
        ("command", format!("paceline {}", command.join(" "))),
    ];
    let (figures, remark) = match ended {
        Ok(result) => (numbers(prepared, result), result.diverged.clone()),
        Err(failure) => {
            (journal_numbers(&readers.totals, &readers.report), Some(failure.to_string()))
        }
    };
    Facts {
        title: format!("{} on {place}", prepared.name),
        about: named(about),
        figures: named(figures),
        remarks: remark.into_iter().collect(),
        waited_for: readers.totals.waited_for.clone(),
    }
}

pub fn named(rows: impl IntoIterator<Item = (&'static str, String)>) -> Vec<(String, String)> {
    rows.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

/// Fails if a sample was not applied exactly once, whatever the accuracy of the run.
pub fn check_ledger(result: &RunResult) -> Result<(), CommandError> {
    let RunResult { strategy, ledger, .. } = result;
    match (ledger.lost, ledger.repeated) {
        (0, 0) => Ok(()),
        (lost, repeated) => {
            Err(CommandError::Ledger { strategy: strategy.clone(), lost, repeated })
        }
    }
}

pub fn percent(part: f64) -> String {
    if part.is_finite() { format!("{:.1} %", 100.0 * part) } else { "-".into() }
}

pub fn loss(loss: f64) -> String {
    if loss.is_finite() { format!("{loss:.4}") } else { "-".into() }
}

/// Formats a learning rate with the digits of its f32 value, without those that a conversion to f64 would add.
pub fn rate(rate: f32) -> String {
    rate.to_string().parse().map_or_else(|_| rate.to_string(), number)
}

pub fn target(target: Target) -> String {
    match target {
        Target::Loss(loss) => format!("loss {}", number(loss)),
        Target::Accuracy(accuracy) => format!("accuracy {}", percent(accuracy)),
    }
}

fn heading(result: &RunResult, place: &str) -> String {
    let RunResult { strategy, batch, seed, .. } = result;
    let (workers, rate) = (counted(result.workers as usize, "worker"), rate(result.learning_rate));
    format!(
        "{strategy} on {place}: {workers}, batch {batch}, learning rate {rate}, seed {seed}\n\n"
    )
}

fn numbers(prepared: &Prepared, result: &RunResult) -> Vec<(&'static str, String)> {
    let clock = if result.virtual_seconds.is_some() { " (virtual)" } else { "" };
    let mut rows = vec![
        ("time", duration(result.seconds()) + clock),
        ("rounds", count(result.rounds)),
        ("samples", format!("{} = {:.2} epochs", count(result.samples), result.epochs)),
        ("wasted", format!("{} samples", count(result.samples_wasted))),
        ("sent", bytes(result.bytes_sent)),
        ("loss", loss(result.loss)),
        ("accuracy", percent(result.accuracy)),
    ];
    rows.extend(losses(result.started_over, result.recovery));
    if let Some(wanted) = prepared.target {
        let reached = match result.time_to_target_seconds {
            Some(seconds) => format!("reached after {}", duration(seconds)),
            None => "not reached".to_owned(),
        };
        rows.push(("target", format!("{} {reached}", target(wanted))));
    }
    rows
}

/// Returns the numbers that can be computed from a journal alone; estimates, if it was thinned.
pub fn journal_numbers(totals: &RunTotals, report: &Report) -> Vec<(&'static str, String)> {
    let thinned = report.keeping_one_in() > 1;
    let (about, samples) =
        if thinned { ("about ", report.curves.samples()) } else { ("", totals.samples()) };
    let epochs = samples as f64 / totals.tally.samples_per_epoch.max(1) as f64;
    let end = totals.over.unwrap_or(totals.end).as_secs_f64();
    let mut rows = vec![("time", duration(end))];
    // Without common rounds, the total is the sum over the workers' records, of which thinning dropped some.
    if totals.tally.is_synchronous() || !thinned {
        rows.push(("rounds", count(totals.rounds())));
    }
    let last = report.curves.loss().last().map_or(f64::NAN, |point| point.value);
    let smoothed = totals.curve.last().filter(|_| !thinned).unwrap_or(last);
    rows.extend([
        ("samples", format!("{about}{} = {epochs:.2} epochs", count(samples))),
        ("wasted", format!("{} samples computed in vain", count(totals.tally.wasted()))),
        ("sent", format!("{about}{}", bytes(report.bytes_total()))),
        ("loss", loss(smoothed)),
        ("accuracy", percent(totals.scores.last().map_or(f64::NAN, |score| score.accuracy))),
    ]);
    rows.extend(losses(totals.started_over, totals.recoveries.summary()));
    rows
}

/// What the loss of workers cost; nothing if none was lost.
fn losses(started_over: u32, recovery: Option<Recovery>) -> Vec<(&'static str, String)> {
    let mut rows = vec![];
    if let Some(Recovery { losses, median_seconds, worst_seconds }) = recovery {
        let (median, worst) = (duration(median_seconds), duration(worst_seconds));
        let lost = counted(losses, "worker");
        rows.push(("lost", format!("{lost}; training went on after {median} (worst {worst})")));
    }
    if started_over > 0 {
        let times = counted(started_over as usize, "time");
        let text = format!("{times}: every replica was lost, and what it had learned with it");
        rows.push(("anew", text));
    }
    rows
}

fn utilization(by_worker: &BTreeMap<WorkerId, f64>) -> String {
    let mut text = String::from("\nUtilization: fraction of its time that a worker computed\n");
    if by_worker.len() <= WORKERS_LISTED_MAX {
        let cells: Vec<String> = by_worker
            .iter()
            .map(|(worker, part)| format!("{:>4} {:>7}", worker.0, percent(*part)))
            .collect();
        text.extend(cells.chunks(6).map(|row| row.join("") + "\n"));
        return text;
    }
    let mut sorted: Vec<(WorkerId, f64)> =
        by_worker.iter().map(|(worker, part)| (*worker, *part)).collect();
    sorted.sort_by(|a, b| a.1.total_cmp(&b.1));
    let (lowest, middle, highest) = (sorted[0], sorted[sorted.len() / 2], sorted[sorted.len() - 1]);
    let _ = writeln!(
        text,
        "  {} workers: lowest {} (worker {}), median {}, highest {} (worker {})",
        count(sorted.len() as u64),
        percent(lowest.1),
        lowest.0.0,
        percent(middle.1),
        percent(highest.1),
        highest.0.0
    );
    text
}

fn waiting(result: &RunResult, totals: &RunTotals) -> String {
    let Some((slowest, seconds)) = result.waited_for.filter(|(_, seconds)| *seconds > 0.0) else {
        return String::from("\nNo worker waited for another one.\n");
    };
    let all: f64 = totals.workers.values().map(|worker| worker.member.as_secs_f64()).sum();
    format!(
        "\nSlowest: worker {slowest}. Others waited {} for it in total, {} of worker time.\n",
        duration(seconds),
        percent(seconds / all)
    )
}

/// Draws the first rounds in detail, and the whole run if its members changed.
fn timelines(result: &RunResult, totals: &RunTotals, timeline: &Timeline) -> String {
    let draw = |until| timeline.text(TIMELINE_COLUMNS, WORKERS_LISTED_MAX, until);
    let mut text = format!("\nThe first rounds\n{}", draw(Some(timeline.opening())));
    let workers = result.workers as usize;
    if timeline.workers() != workers || totals.members.len() != workers {
        let _ = write!(text, "\nThe whole run\n{}", draw(None));
    }
    text
}
