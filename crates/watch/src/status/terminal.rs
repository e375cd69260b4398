//! A snapshot for a terminal.

use super::snapshot::{Level, Phase, Snapshot, Worker};
use super::words::{listed, percent, sentence};
use crate::table::{bytes, count, duration, number, table};
use paceline_runtime::WorkerId;

/// So many of the newest events are shown.
const EVENTS_SHOWN: usize = 8;

/// Some lines of text: progress, the three answers, the workers, the newest events.
pub fn terminal(snapshot: &Snapshot) -> String {
    let mut text = format!("{}\n{}\n\n", title(snapshot), progress(snapshot));
    let verdicts = &snapshot.verdicts;
    for verdict in [&verdicts.slow, &verdicts.hangs, &verdicts.cost] {
        let mark = match verdict.level {
            Level::Fine => "  ",
            Level::Warning => "! ",
            Level::Bad => "!!",
        };
        text += &format!("{mark} {}\n", verdict.sentence);
    }
    for wait in &snapshot.waits {
        let ids = |ids: &[u32]| listed(&ids.iter().copied().map(WorkerId).collect::<Vec<_>>());
        let (who, whom) = (sentence(&ids(&wait.who)), ids(&wait.whom));
        let verb = if wait.who.len() == 1 { "has" } else { "have" };
        let time = duration(wait.seconds);
        text += &format!("   {who} {verb} been waiting for {whom} for {time}.\n");
    }
    if let Some(failure) = &snapshot.failure {
        text += &format!("!! The job ended without a result: {failure}.\n");
    }
    text += &format!("   {}\n\n{}", checkpoint(snapshot), workers(&snapshot.workers));
    if !snapshot.events.is_empty() {
        text += "\n";
    }
    for event in snapshot.events.iter().rev().take(EVENTS_SHOWN) {
        text += &format!("{:>12}  {}\n", duration(event.at), event.sentence());
    }
    text
}

/// "dbs, mlp on digits, 4 members (threads): training"
fn title(it: &Snapshot) -> String {
    let phase = match it.phase {
        Phase::Waiting => "waiting for workers",
        Phase::Training => "training",
        Phase::Stopping => "stopping",
        Phase::Over => "over",
        Phase::Failed => "failed",
    };
    let what = [it.strategy.as_str(), it.model.as_str(), it.data.as_str()];
    let what: Vec<&str> = what.into_iter().filter(|name| !name.is_empty()).collect();
    if what.is_empty() { phase.to_owned() } else { format!("{}: {phase}", what.join(", ")) }
}

/// "epoch 3.4 of 20 (17 %), loss 0.210, accuracy 95.1 %, 5,432 samples/s, 3 min left, running for 36 s"
fn progress(it: &Snapshot) -> String {
    let mut parts = vec![];
    if it.samples_total > 0 {
        let done = percent(it.samples as f64 / it.samples_total as f64);
        let all = number((100.0 * it.epochs_total).round() / 100.0);
        parts.push(format!("epoch {:.1} of {all} ({done})", it.epochs));
    }
    parts.extend(it.loss.map(|loss| format!("loss {loss:.4}")));
    parts.extend(it.accuracy.map(|accuracy| format!("accuracy {:.1} %", 100.0 * accuracy)));
    if it.samples_per_second > 0.0 && it.phase != Phase::Over {
        parts.push(format!("{} samples/s", count(it.samples_per_second.round() as u64)));
    }
    parts.extend(it.seconds_left.map(|left| format!("{} left", duration(left))));
    parts.push(format!("running for {}", duration(it.seconds)));
    parts.join(", ")
}

fn checkpoint(it: &Snapshot) -> String {
    match &it.checkpoint {
        Some(saved) => {
            format!("The last checkpoint is {} old: {}", duration(saved.age_seconds), saved.path)
        }
        None if it.actions.save => "No checkpoint has been saved yet.".to_owned(),
        None => "This run saves no checkpoints.".to_owned(),
    }
}

fn workers(workers: &[Worker]) -> String {
    let header =
        ["worker", "state", "for", "samples/s", "share", "busy", "waited for", "behind", "sent"];
    let row = |it: &Worker| {
        let is_gone = it.state.is_gone();
        let of_member = |text: String| if is_gone { "-".to_owned() } else { text };
        let speed = it.samples_per_second.map(|speed| count(speed.round() as u64));
        vec![
            it.id.to_string(),
            it.state.name().to_owned(),
            duration(it.state_seconds),
            of_member(speed.unwrap_or_else(|| "-".to_owned())),
            of_member(percent(it.share)),
            of_member(percent(it.busy)),
            of_member(percent(it.waited_for)),
            of_member(it.rounds_behind.to_string()),
            bytes(it.bytes_sent),
        ]
    };
    let rows: Vec<Vec<String>> = workers.iter().map(row).collect();
    let align = [true, false, true, true, true, true, true, true, true];
    table(&header, &rows, &align)
}
