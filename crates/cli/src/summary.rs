//! What a run came to, in words: its numbers, who computed how much, who was waited for, who did what when.

use std::collections::BTreeMap;
use std::fmt::Write;

use paceline_job::account::Account;
use paceline_job::{Outcome, Prepared, Target};
use paceline_runtime::WorkerId;
use paceline_watch::Timeline;
use paceline_watch::table::{bytes, count, duration};

use crate::audience::Audience;
use crate::output::{Ended, Ending, print, print_json};

/// More workers than these are summed up, not listed.
const WORKERS_LISTED_MAX: usize = 16;

/// What fits beside the workers' ids on a terminal of 80 columns.
const TIMELINE_COLUMNS: usize = 72;

/// Tells what came of a run on `place`, and whether its journal was written to the end.
pub fn tell(
    prepared: &Prepared,
    outcome: &Outcome,
    mut audience: Audience,
    place: &str,
    json: bool,
) -> Ended {
    audience.clear_bar();
    let written = audience.finish_journal();
    if json {
        print_json(outcome)?;
    }
    if let Some(sentence) = &outcome.diverged {
        return Err(Ending::Failed(format!("{} diverged: {sentence}", outcome.strategy)));
    }
    if !json {
        let mut text = heading(outcome, place);
        text += &numbers(prepared, outcome);
        text += &utilization(&audience.account.utilization());
        text += &waited_for(outcome, &audience.account);
        text += &timelines(outcome, &audience.account, &audience.timeline);
        print(&text)?;
    }
    check_ledger(outcome).map_err(Ending::Failed)?;
    written
}

/// Every sample once is our promise; a run that breaks it has failed, however well it learned.
pub fn check_ledger(outcome: &Outcome) -> Result<(), String> {
    let Outcome { strategy, ledger, .. } = outcome;
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

pub fn target(target: Target) -> String {
    match target {
        Target::Loss(loss) => format!("loss {loss}"),
        Target::Accuracy(accuracy) => format!("accuracy {}", percent(accuracy)),
    }
}

fn heading(outcome: &Outcome, place: &str) -> String {
    let Outcome { strategy, workers, batch, learning_rate, seed, .. } = outcome;
    format!(
        "{strategy} on {place}: {workers} workers, batch {batch}, learning rate {learning_rate}, seed {seed}\n\n"
    )
}

fn numbers(prepared: &Prepared, outcome: &Outcome) -> String {
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
    rows.iter().fold(String::new(), |mut text, (name, value)| {
        let _ = writeln!(text, "{name:<10}{value}");
        text
    })
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

fn waited_for(outcome: &Outcome, account: &Account) -> String {
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
fn timelines(outcome: &Outcome, account: &Account, timeline: &Timeline) -> String {
    let draw = |until| timeline.text(TIMELINE_COLUMNS, WORKERS_LISTED_MAX, until);
    let mut text = format!("\nThe first rounds\n{}", draw(Some(timeline.opening())));
    let workers = outcome.workers as usize;
    if timeline.workers() != workers || account.members.len() != workers {
        let _ = write!(text, "\nThe whole run\n{}", draw(None));
    }
    text
}
