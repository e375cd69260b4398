//! What a run came to, in words: its numbers, who computed how much, who was waited for, who did what when.

use std::collections::BTreeMap;
use std::fmt::Write;

use paceline_job::totals::RunTotals;
use paceline_job::{Error, Job, Prepared, RunResult, Target};
use paceline_runtime::WorkerId;
use paceline_watch::table::{bytes, count, duration, number};
use paceline_watch::{Facts, Report, Timeline};

use crate::audience::Audience;
use crate::output::{Ended, Ending, print, print_json, say, say_error, some};

/// More workers than these are summed up, not listed.
const WORKERS_LISTED_MAX: usize = 16;

/// What fits beside the workers' ids on a terminal of 80 columns.
const TIMELINE_COLUMNS: usize = 72;

/// What a run was, for telling what came of it.
pub struct Told<'a> {
    pub job: &'a Job,
    pub prepared: &'a Prepared,
    /// Where it ran, in a word.
    pub place: &'a str,
    pub json: bool,
}

/// Tells what came of a run: on stdout, in its report, and whether its files were written to the end.
///
/// The page is drawn before anything is printed and its failures are told after that, so that
/// neither is lost for the other's sake.
pub fn tell(told: &Told, ended: Result<RunResult, Error>, mut audience: Audience) -> Ended {
    let mut troubles = audience.finish();
    if let Err(error) = &ended
        && error.is_usage()
    {
        return Err(Ending::Usage(error.to_string()));
    }
    let facts = facts(told, &ended, &audience);
    let page = audience.outputs.draw(&audience.report, &facts);
    let page = page.unwrap_or_else(|sentence| {
        troubles.push(sentence);
        None
    });
    let printed = match &ended {
        Ok(outcome) if told.json => print_json(outcome),
        Ok(outcome) if outcome.diverged.is_none() => print(&summary(told, outcome, &audience)),
        _ => Ok(()),
    };
    if let Some(path) = page {
        say(&format!("{}Report: {}", if told.json { "" } else { "\n" }, path.display()));
    }
    let troubles = troubles.into_iter().map(|sentence| Err(Ending::Failed(sentence)));
    let failures = [outcome_of(ended), printed].into_iter().chain(troubles);
    let mut failures = failures.filter_map(Result::err);
    let first = failures.next();
    for failure in failures {
        if let Ending::Failed(sentence) = failure {
            say_error(&sentence);
        }
    }
    first.map_or(Ok(()), Err)
}

/// Whether the run itself was a success.
fn outcome_of(ended: Result<RunResult, Error>) -> Ended {
    let outcome = ended?;
    if let Some(sentence) = &outcome.diverged {
        return Err(Ending::Failed(format!("{} diverged: {sentence}", outcome.strategy)));
    }
    check_ledger(&outcome).map_err(Ending::Failed)
}

fn summary(told: &Told, outcome: &RunResult, audience: &Audience) -> String {
    let mut text = heading(outcome, told.place);
    for (name, value) in numbers(told.prepared, outcome) {
        let _ = writeln!(text, "{name:<10}{value}");
    }
    text += &utilization(&audience.account.utilization());
    text += &waited_for(outcome, &audience.account);
    text += &timelines(outcome, &audience.account, &audience.report.timeline);
    text
}

fn facts(told: &Told, ended: &Result<RunResult, Error>, audience: &Audience) -> Facts {
    let Told { job, prepared, place, .. } = told;
    let arguments = std::env::args_os().skip(1);
    let command: Vec<_> = arguments.map(|word| word.to_string_lossy().into_owned()).collect();
    let about = [
        ("strategy", prepared.name.clone()),
        ("model", format!("{}, {} params", job.model, count(prepared.plan.initial.len() as u64))),
        ("data", format!("{}, {} samples", job.data, count(prepared.plan.samples_per_epoch))),
        ("cluster", (*place).to_owned()),
        ("workers", prepared.workers.to_string()),
        ("batch", format!("{} a worker", prepared.batch)),
        ("learning rate", rate(prepared.plan.schedule.base)),
        ("seed", prepared.plan.seed.to_string()),
        ("command", format!("paceline {}", command.join(" "))),
    ];
    let (figures, remark) = match ended {
        Ok(outcome) => (numbers(prepared, outcome), outcome.diverged.clone()),
        Err(failure) => {
            (journal_numbers(&audience.account, &audience.report), Some(failure.to_string()))
        }
    };
    Facts {
        title: format!("{} on {place}", prepared.name),
        about: named(about),
        figures: named(figures),
        remarks: remark.into_iter().collect(),
        waited_for: audience.account.waited_for.clone(),
    }
}

pub fn named(rows: impl IntoIterator<Item = (&'static str, String)>) -> Vec<(String, String)> {
    rows.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

/// Every sample once is our promise; a run that breaks it has failed, however well it learned.
pub fn check_ledger(outcome: &RunResult) -> Result<(), String> {
    let RunResult { strategy, ledger, .. } = outcome;
    if ledger.lost + ledger.repeated == 0 {
        return Ok(());
    }
    let (lost, repeated) = (count(ledger.lost), count(ledger.repeated));
    Err(format!("{strategy} lost {lost} samples and repeated {repeated}; please report this"))
}

pub fn percent(part: f64) -> String {
    if part.is_finite() { format!("{:.1} %", 100.0 * part) } else { "-".into() }
}

pub fn loss(loss: f64) -> String {
    if loss.is_finite() { format!("{loss:.4}") } else { "-".into() }
}

/// A learning rate with the digits it was given with.
pub fn rate(rate: f32) -> String {
    rate.to_string().parse().map_or_else(|_| rate.to_string(), number)
}

pub fn target(target: Target) -> String {
    match target {
        Target::Loss(loss) => format!("loss {}", number(loss)),
        Target::Accuracy(accuracy) => format!("accuracy {}", percent(accuracy)),
    }
}

fn heading(outcome: &RunResult, place: &str) -> String {
    let RunResult { strategy, batch, seed, .. } = outcome;
    let (workers, rate) = (some(outcome.workers as usize, "worker"), rate(outcome.learning_rate));
    format!(
        "{strategy} on {place}: {workers}, batch {batch}, learning rate {rate}, seed {seed}\n\n"
    )
}

fn numbers(prepared: &Prepared, outcome: &RunResult) -> Vec<(&'static str, String)> {
    let clock = if outcome.virtual_seconds.is_some() { " (virtual)" } else { "" };
    let mut rows = vec![
        ("time", duration(outcome.seconds()) + clock),
        ("rounds", count(outcome.rounds)),
        ("samples", format!("{} = {:.2} epochs", count(outcome.samples), outcome.epochs)),
        ("wasted", format!("{} samples", count(outcome.samples_wasted))),
        ("sent", bytes(outcome.bytes_sent)),
        ("loss", loss(outcome.loss)),
        ("accuracy", percent(outcome.accuracy)),
    ];
    if let Some(wanted) = prepared.target {
        let reached = match outcome.time_to_target_seconds {
            Some(seconds) => format!("after {}", duration(seconds)),
            None => "not reached".to_owned(),
        };
        rows.push(("target", format!("{} {reached}", target(wanted))));
    }
    rows
}

/// The numbers that a journal alone gives; estimates, if it was thinned.
pub fn journal_numbers(account: &RunTotals, report: &Report) -> Vec<(&'static str, String)> {
    let thinned = report.keeping_one_in() > 1;
    let (about, samples) =
        if thinned { ("about ", report.curves.samples()) } else { ("", account.samples) };
    let epochs = samples as f64 / account.samples_per_epoch.max(1) as f64;
    let end = account.over.unwrap_or(account.end).as_secs_f64();
    let mut rows = vec![("time", duration(end))];
    // Rounds of workers on their own are counted one by one, and some were left out.
    if account.together || !thinned {
        rows.push(("rounds", count(account.rounds())));
    }
    let last = report.curves.loss().last().map_or(f64::NAN, |point| point.value);
    let smoothed = account.curve.last().filter(|_| !thinned).unwrap_or(last);
    rows.extend([
        ("samples", format!("{about}{} = {epochs:.2} epochs", count(samples))),
        ("wasted", format!("{} samples rolled back", count(account.samples_rolled_back))),
        ("sent", format!("{about}{}", bytes(report.bytes_total()))),
        ("loss", loss(smoothed)),
        ("accuracy", percent(account.scores.last().map_or(f64::NAN, |score| score.accuracy))),
    ]);
    rows
}

fn utilization(by_worker: &BTreeMap<WorkerId, f64>) -> String {
    let mut text = String::from("\nUtilization, the part of its time in which a worker computed\n");
    if by_worker.len() <= WORKERS_LISTED_MAX {
        let cells: Vec<String> = by_worker
            .iter()
            .map(|(who, part)| format!("{:>4} {:>7}", who.0, percent(*part)))
            .collect();
        text.extend(cells.chunks(6).map(|row| row.join("") + "\n"));
        return text;
    }
    let mut sorted: Vec<(WorkerId, f64)> =
        by_worker.iter().map(|(who, part)| (*who, *part)).collect();
    sorted.sort_by(|a, b| a.1.total_cmp(&b.1));
    let (least, middle, most) = (sorted[0], sorted[sorted.len() / 2], sorted[sorted.len() - 1]);
    let _ = writeln!(
        text,
        "  {} workers: least {} (worker {}), median {}, most {} (worker {})",
        count(sorted.len() as u64),
        percent(least.1),
        least.0.0,
        percent(middle.1),
        percent(most.1),
        most.0.0
    );
    text
}

fn waited_for(outcome: &RunResult, account: &RunTotals) -> String {
    let Some((who, seconds)) = outcome.waited_for.filter(|(_, seconds)| *seconds > 0.0) else {
        return String::from("\nNobody was waited for.\n");
    };
    let lives = account.workers.values().map(|life| life.member.as_secs_f64());
    let all = lives.sum::<f64>();
    format!(
        "\nThe others waited for worker {who} most: {} in all, {} of all workers' time.\n",
        duration(seconds),
        percent(seconds / all)
    )
}

/// The first rounds in detail; all of the run if its members changed.
fn timelines(outcome: &RunResult, account: &RunTotals, timeline: &Timeline) -> String {
    let draw = |until| timeline.text(TIMELINE_COLUMNS, WORKERS_LISTED_MAX, until);
    let mut text = format!("\nThe first rounds\n{}", draw(Some(timeline.opening())));
    let workers = outcome.workers as usize;
    if timeline.workers() != workers || account.members.len() != workers {
        let _ = write!(text, "\nThe whole run\n{}", draw(None));
    }
    text
}
