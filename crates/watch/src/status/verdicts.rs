//! Which worker is slow, which one hangs, and what that costs: one sentence each.

use paceline_runtime::WorkerId;

use super::snapshot::{Counts, Level, State, Verdict, Verdicts, Wait, Worker};
use super::words::{listed, percent, sentence};
use crate::table::{count, duration};

/// What the sentences are made from.
pub struct Grounds<'a> {
    /// Members first.
    pub workers: &'a [Worker],
    pub waits: &'a [Wait],
    pub counts: &'a Counts,
    pub samples_wasted: u64,
    /// Whether there is training to judge.
    pub is_training: bool,
}

/// A worker for which the others wait less than this part of their time is not slow.
const WAITED_FOR_MIN: f64 = 0.05;
/// A worker is slow only if the others wait for it so many times as long as for another one: where all share a busy machine, each
/// is the last one now and then.
const TIMES_THE_OTHERS: f64 = 2.0;
/// A worker is slow if it computes at less than this part of the median speed.
const SPEED_MIN: f64 = 0.67;

pub fn verdicts(grounds: &Grounds<'_>) -> Verdicts {
    if !grounds.is_training {
        let verdict = |text: &str| Verdict { level: Level::Fine, sentence: text.to_owned() };
        let slow = verdict("Nothing is being trained.");
        return Verdicts { slow, hangs: verdict("No worker hangs."), cost: cost(grounds) };
    }
    Verdicts { slow: slow(grounds), hangs: hangs(grounds), cost: cost(grounds) }
}

fn slow(grounds: &Grounds<'_>) -> Verdict {
    let members: Vec<&Worker> = grounds.members().collect();
    let median = median(members.iter().filter_map(|worker| worker.samples_per_second).collect());
    let worst = members.iter().max_by(|a, b| a.waited_for.total_cmp(&b.waited_for));
    let all: f64 = members.iter().map(|worker| worker.waited_for).sum();
    let is_waited_for = |worker: &&&Worker| worker.waited_for >= WAITED_FOR_MIN;
    if let Some(worker) = worst.filter(is_waited_for) {
        let others = (all - worker.waited_for) / (members.len() as f64 - 1.0).max(1.0);
        if worker.waited_for < TIMES_THE_OTHERS * others {
            return fine("No single worker is slow: the members wait for each other in turn.");
        }
        let (id, part) = (worker.id, percent(worker.waited_for));
        let speed = match (worker.samples_per_second, median) {
            (Some(speed), Some(median)) if speed < SPEED_MIN * median => format!(
                "; it computes {} samples/s, the median is {}",
                count(speed.round() as u64),
                count(median.round() as u64)
            ),
            (Some(speed), _) => format!(
                "; it computes {} samples/s, about the median, so its share of the samples or its network may be why",
                count(speed.round() as u64)
            ),
            _ => String::new(),
        };
        let sentence =
            format!("Worker {id} is slow: the others waited for it {part} of their time{speed}.");
        return Verdict { level: Level::Warning, sentence };
    }
    let slowest = members
        .iter()
        .filter_map(|worker| Some((worker.id, worker.samples_per_second?)))
        .min_by(|a, b| a.1.total_cmp(&b.1));
    match (slowest, median) {
        (Some((id, speed)), Some(median)) if speed < SPEED_MIN * median => {
            let sentence = format!(
                "Worker {id} computes {} samples/s and the median is {}, but nobody waits for it.",
                count(speed.round() as u64),
                count(median.round() as u64)
            );
            Verdict { level: Level::Fine, sentence }
        }
        (Some(_), _) => fine("No worker is slow."),
        _ => fine("No speed is known yet."),
    }
}

fn hangs(grounds: &Grounds<'_>) -> Verdict {
    let hanging: Vec<&Worker> =
        grounds.members().filter(|worker| worker.state == State::Hanging).collect();
    let Some(longest) = hanging.iter().map(|it| it.silent_seconds).reduce(f64::max) else {
        return fine("No worker hangs.");
    };
    let ids: Vec<WorkerId> = hanging.iter().map(|worker| WorkerId(worker.id)).collect();
    let hang = if ids.len() == 1 { "hangs" } else { "hang" };
    let who: Vec<WorkerId> =
        grounds.waits.iter().flat_map(|wait| wait.who.iter().copied().map(WorkerId)).collect();
    let waits = match who.len() {
        0 => String::new(),
        1 => format!(", and {} waits", listed(&who)),
        _ => format!(", and {} wait", listed(&who)),
    };
    let (names, silent) = (sentence(&listed(&ids)), duration(longest));
    let sentence = format!("{names} {hang}: nothing was heard of it for {silent}{waits}.");
    let sentence = match ids.len() {
        1 => sentence,
        _ => sentence.replace("heard of it", "heard of them"),
    };
    Verdict { level: Level::Bad, sentence }
}

fn cost(grounds: &Grounds<'_>) -> Verdict {
    let members: Vec<&Worker> = grounds.members().collect();
    let others = members.len().saturating_sub(1) as f64;
    // Each worker's part is of the time of the others.
    let waited: f64 = members.iter().map(|worker| worker.waited_for * others).sum();
    let waited = if members.is_empty() { 0.0 } else { (waited / members.len() as f64).min(1.0) };
    let mut parts = vec![format!("waiting costs {} of the members' time", percent(waited))];
    let Counts { lost, recovered, recovery_seconds, .. } = *grounds.counts;
    if lost > 0 {
        let losses =
            if lost == 1 { "1 loss".to_owned() } else { format!("{} losses", count(lost)) };
        parts.push(match recovered {
            0 => format!("training has not gone on since {losses}"),
            _ => format!("{losses} stopped training for {} in all", duration(recovery_seconds)),
        });
    }
    if grounds.samples_wasted > 0 && lost > 0 {
        let samples = count(grounds.samples_wasted);
        parts.push(format!("{samples} samples were computed and not applied"));
    }
    let level = if waited >= WAITED_FOR_MIN { Level::Warning } else { Level::Fine };
    Verdict { level, sentence: format!("{}.", sentence(&parts.join("; "))) }
}

impl Grounds<'_> {
    fn members(&self) -> impl Iterator<Item = &Worker> {
        let takes_part = |worker: &&Worker| {
            matches!(
                worker.state,
                State::Working | State::Waiting | State::Exchanging | State::Hanging
            )
        };
        self.workers.iter().filter(takes_part)
    }
}

fn fine(sentence: &str) -> Verdict {
    Verdict { level: Level::Fine, sentence: sentence.to_owned() }
}

fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}
