//! The summary and the report of a run: its numbers, utilization, waiting, and timelines.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::io::{IsTerminal, stderr, stdout};
use std::path::Path;

use paceline_job::run::totals::{RunTotals, Score};
use paceline_job::{Error, Job, Prepared, Recovery, RunResult, Target};
use paceline_runtime::WorkerId;
use paceline_watch::table::{bytes, count, duration, number};
use paceline_watch::{Facts, Report, Timeline};

use crate::chance::no_better_than_chance;
use crate::counted::counted;
use crate::error::{CliError, CliResult, CommandError};
use crate::output::{print, print_json, say, say_error};
use crate::readers::RunReaders;
use crate::speeds::listed;
use crate::stop::Stop;

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
    pub stop: &'a Stop,
    /// The emulated speeds of the workers, if any.
    pub speeds: &'a [f64],
    /// The checkpoint with the last weights, if they were saved.
    pub saved_in: Option<&'a Path>,
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
    let ended = [check_result(run, ended, &readers.totals), printed];
    let mut errors = ended.into_iter().filter_map(Result::err).chain(errors);
    let first = errors.next();
    for error in errors {
        if let CliError::Failed(error) = error {
            say_error(error);
        }
    }
    first.map_or(Ok(()), Err)
}

/// Fails if the run failed, diverged, lost or repeated samples, was stopped, or learned nothing.
fn check_result(
    run: &ReportContext,
    ended: Result<RunResult, Error>,
    totals: &RunTotals,
) -> CliResult {
    let result = ended?;
    if let Some(reason) = result.diverged {
        return Err(CommandError::Diverged { strategy: result.strategy, reason }.into());
    }
    check_ledger(&result)?;
    if result.stopped {
        let message = stopped_at(run.prepared, &result);
        return Err(CliError::Stopped { code: run.stop.code(), message });
    }
    let loss_first = totals.curve.points.first().map(|(_, loss)| *loss);
    match no_better_than_chance(run.prepared, &result, loss_first) {
        Some(reason) => {
            Err(CommandError::LearnedNothing { strategy: result.strategy, reason }.into())
        }
        None => Ok(()),
    }
}

/// "stopped at epoch 3.42 of 20"
fn stopped_at(prepared: &Prepared, result: &RunResult) -> String {
    let plan = &prepared.plan;
    let all = plan.samples_total as f64 / plan.samples_per_epoch as f64;
    let rounded = |epochs: f64| number((100.0 * epochs).round() / 100.0);
    format!("stopped at epoch {} of {}", rounded(result.epochs), rounded(all))
}

fn summary(run: &ReportContext, result: &RunResult, readers: &RunReaders) -> String {
    let mut text = heading(result, run.place);
    for (name, value) in numbers(run, result) {
        let _ = writeln!(text, "{name:<10}{value}");
    }
    // On a terminal the message that follows says so already.
    let is_said = stdout().is_terminal() && stderr().is_terminal();
    if result.stopped && !is_said {
        let _ = writeln!(text, "\n{}", stopped_at(run.prepared, result));
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
        ("model", format!("{}, {} params", job.model, count(prepared.size() as u64))),
        ("data", format!("{}, {} samples", job.data, count(prepared.plan.samples_per_epoch))),
        ("cluster", (*place).to_owned()),
        ("workers", prepared.workers.to_string()),
        ("batch", format!("{} per worker", prepared.batch)),
        ("learning rate", rate(prepared.plan.schedule.base)),
        ("seed", prepared.plan.seed.to_string()),
        ("command", format!("paceline {}", command.join(" "))),
    ];
    let (figures, remark) = match ended {
        Ok(result) => {
            let stopped = || result.stopped.then(|| stopped_at(prepared, result));
            (numbers(run, result), result.diverged.clone().or_else(stopped))
        }
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

/// The loss at the workers, and that of the deployed model on the held-out samples.
fn both_losses(training: f64, validation: f64) -> String {
    format!("{} training, {} validation", loss(training), loss(validation))
}

fn test_accuracy(accuracy: f64) -> String {
    format!("{} test", percent(accuracy))
}

pub fn loss(loss: f64) -> String {
    if loss.is_finite() { format!("{loss:.4}") } else { "-".into() }
}

/// Formats a learning rate with at most six digits: a product such as 0.2 x 0.05 is not exactly 0.01 as an f32.
pub fn rate(rate: f32) -> String {
    format!("{rate:.5e}").parse().map_or_else(|_| rate.to_string(), number)
}

pub fn target(target: Target) -> String {
    match target {
        Target::Loss(loss) => format!("validation loss {}", number(loss)),
        Target::Accuracy(accuracy) => format!("validation accuracy {}", percent(accuracy)),
        Target::TrainingLoss(loss) => format!("training loss {}", number(loss)),
    }
}

fn heading(result: &RunResult, place: &str) -> String {
    let RunResult { strategy, batch, seed, .. } = result;
    let (workers, rate) = (counted(result.workers as usize, "worker"), rate(result.learning_rate));
    format!(
        "{strategy} on {place}: {workers}, batch {batch}, learning rate {rate}, seed {seed}\n\n"
    )
}

fn numbers(run: &ReportContext, result: &RunResult) -> Vec<(&'static str, String)> {
    let prepared = run.prepared;
    let clock = if result.virtual_seconds.is_some() { " (virtual)" } else { "" };
    let mut rows = vec![
        ("time", duration(result.seconds()) + clock),
        ("rounds", count(result.rounds)),
        ("samples", format!("{} = {:.2} epochs", count(result.samples), result.epochs)),
        ("wasted", format!("{} samples", count(result.samples_wasted))),
        ("sent", bytes(result.bytes_sent)),
        ("loss", both_losses(result.loss, result.validation_loss)),
        ("accuracy", test_accuracy(result.accuracy)),
    ];
    rows.extend(losses(result.started_over, result.recovery));
    if let Some(wanted) = prepared.target {
        let reached = match result.seconds_to_target {
            Some(seconds) => format!("reached after {}", duration(seconds)),
            None => "not reached".to_owned(),
        };
        rows.push(("target", format!("{} {reached}", target(wanted))));
    }
    if let Some(snapshot) = &prepared.plan.resumed {
        let epochs = snapshot.done.len() as f64 / prepared.plan.samples_per_epoch as f64;
        let time = duration(prepared.time_before().as_secs_f64());
        rows.push((
            "resumed",
            format!(
                "at epoch {epochs:.2}, after {time}; utilization, waiting and timelines since then"
            ),
        ));
    }
    if !run.speeds.is_empty() {
        rows.push(("speeds", format!("{} (emulated)", listed(run.speeds, prepared.workers))));
    }
    if let Some(folder) = run.saved_in.and_then(Path::parent) {
        rows.push(("weights", folder.display().to_string()));
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
        ("loss", both_losses(smoothed, last_of(&totals.validations, |score| score.loss))),
        ("accuracy", test_accuracy(last_of(&totals.scores, |score| score.accuracy))),
    ]);
    rows.extend(losses(totals.started_over, totals.recoveries.summary()));
    rows
}

fn last_of(scores: &[Score], value: fn(&Score) -> f64) -> f64 {
    scores.last().map_or(f64::NAN, value)
}

/// What the loss of workers cost; nothing if none was lost.
fn losses(started_over: u32, recovery: Option<Recovery>) -> Vec<(&'static str, String)> {
    let mut rows = vec![];
    if let Some(Recovery { losses, recovered, median_seconds, worst_seconds }) = recovery {
        let (median, worst) = (duration(median_seconds), duration(worst_seconds));
        let lost = counted(losses, "worker");
        let went_on = match recovered {
            0 => "training did not go on".to_owned(),
            _ => format!("training went on after {median} (worst {worst})"),
        };
        rows.push(("lost", format!("{lost}; {went_on}")));
    }
    if started_over > 0 {
        let times = counted(started_over as usize, "time");
        let text = format!(
            "{times}: every replica was lost, and training began again from the newest checkpoint, or from the start"
        );
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
    let since = if timeline.is_resumed() { " since the run was resumed" } else { "" };
    let mut text = format!("\nThe first rounds{since}\n{}", draw(Some(timeline.opening())));
    let workers = result.workers as usize;
    if timeline.workers() != workers || totals.members.len() != workers {
        let _ = write!(text, "\nThe whole run\n{}", draw(None));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use paceline_runtime::{Line, Reader, Record, Spans};
    use paceline_watch::status::{Status, Surroundings};
    use std::time::Duration;

    /// One worker is lost before it took part, one in mid-run, and one at the end, after which nothing is applied.
    #[test]
    fn the_summary_counts_the_losses_that_the_status_counts() {
        let view = |number, members: &[u32]| Record::View {
            number,
            members: members.iter().copied().map(WorkerId).collect(),
            reason: "worker 9 was lost".to_owned(),
        };
        let freed = |who| Record::Freed { who: WorkerId(who), spans: Spans::new() };
        let applied = |view| Record::Applied {
            who: WorkerId(0),
            version: 1,
            spans: Spans::one(view, view + 1),
            loss_sum: 1.0,
            weight: None,
            staleness: 0,
            rate: 0.1,
            round: None,
            result: Some(paceline_runtime::journal::ResultName { exchange: view, view }),
        };
        let (mut totals, mut status) = (RunTotals::default(), Status::default());
        let records = [
            view(1, &[0, 1, 2]),
            applied(1),
            freed(7),
            freed(2),
            view(2, &[0, 1]),
            applied(2),
            freed(1),
            view(3, &[0]),
        ];

        for (at, record) in records.into_iter().enumerate() {
            let line = Line { at: Duration::from_secs(at as u64), record };
            totals.read(&line);
            status.read(&line);
        }

        let recovery = totals.recoveries.summary().expect("there were losses");
        let counts = status.snapshot(Duration::from_secs(9), &Surroundings::default()).counts;
        assert_eq!((recovery.losses as u64, counts.lost), (3, 3));
        let rows = losses(0, Some(recovery));
        assert!(rows[0].1.starts_with("3 workers; training went on after"), "{rows:?}");
    }

    #[test]
    fn rates_have_no_digits_of_rounding() {
        for (value, expected) in
            [(0.2 * 0.05, "0.01"), (0.3, "0.3"), (1e-9, "1e-9"), (0.2 / 784.0 * 64.0, "0.0163265")]
        {
            assert_eq!(rate(value), expected);
        }
    }
}
