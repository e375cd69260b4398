//! What is known of a run now, from the lines of its journal: a reader that is asked at any moment, in bounded memory.
//!
//! The page, `paceline status` and the metrics all show the same [`Snapshot`].

mod events;
mod members;
mod metrics;
mod recent;
mod snapshot;
mod terminal;
#[cfg(test)]
mod tests;
mod verdicts;
mod waits;
mod words;

use std::collections::BTreeMap;
use std::time::Duration;

use paceline_runtime::{Line, Reader, Record, WorkerId};

use crate::curves::{Curves as Drawn, Point};
use crate::points::{smoothed, thinned};
use events::Events;
use members::{Member, Members};
use recent::{Recent, covered};
use verdicts::{Grounds, verdicts};
use waits::{Underway, WAIT_SHOWN, Waits};

pub use metrics::metrics;
pub use snapshot::{
    Actions, Checkpoint, Committed, Counts, Curves, Event, Kind, Level, Phase, Snapshot, State,
    Verdict, Verdicts, Wait, Worker,
};
pub use terminal::terminal;

/// Reads a journal, and says what is known of the run at any moment.
#[derive(Default)]
pub struct Status {
    job: Job,
    phase: Phase,
    curves: Drawn,
    members: Members,
    waits: Waits,
    events: Events,
    applied: Recent,
    bytes: u64,
    failure: Option<String>,
    /// The time of the newest line.
    end: Duration,
    /// This run began then, which is later than the job did if it was resumed.
    began: Duration,
}

/// What the journal's first line says.
#[derive(Default)]
struct Job {
    strategy: String,
    model: String,
    data: String,
    params: u64,
    seed: u64,
    /// Whether members wait for each other in exchanges.
    is_synchronous: bool,
}

/// What is known of a run besides its journal.
#[derive(Clone, Debug, Default)]
pub struct Surroundings {
    /// Of the program.
    pub version: String,
    pub place: String,
    pub checkpoint: Option<Checkpoint>,
    pub actions: Actions,
    /// The user has asked that the run end.
    pub is_stopping: bool,
    /// With fewer members, training waits for others.
    pub members_min: usize,
    pub addresses: BTreeMap<WorkerId, String>,
}

/// Nothing hangs that was heard of less than this long ago.
const HANGS_MIN: Duration = Duration::from_secs(2);
/// A worker hangs if nothing was heard of it for this many of its usual rounds.
const HANGS_ROUNDS: u32 = 8;

impl Reader for Status {
    fn read(&mut self, line: &Line) {
        self.end = self.end.max(line.at);
        // Names of notes are the workers' choice, and there may be any number of them.
        if !matches!(line.record, Record::Note { .. }) {
            let before = self.curves.samples();
            self.curves.read(line);
            let new = self.curves.samples().saturating_sub(before);
            if matches!(line.record, Record::Applied { .. }) && new > 0 {
                self.applied.add(line.at, new as f64);
            }
        }
        self.events.read(line);
        let waited = self.waits.read(line, &self.members.view);
        self.members.read(line);
        for wait in waited {
            self.members.waited(line.at, wait.who, wait.whom, wait.time);
        }
        match &line.record {
            Record::Began { strategy, model, data, params, seed, together, .. } => {
                self.job = Job {
                    strategy: strategy.clone(),
                    model: model.clone(),
                    data: data.clone(),
                    params: *params,
                    seed: *seed,
                    is_synchronous: *together,
                };
            }
            Record::Resumed { past: Some(past), .. } => {
                (self.bytes, self.began) = (past.bytes_sent, line.at);
            }
            Record::View { members, .. } if self.phase == Phase::Waiting && !members.is_empty() => {
                self.phase = Phase::Training;
                // Nobody could learn before.
                self.began = self.began.max(line.at);
            }
            Record::Exchanged { bytes, .. }
            | Record::Sent { bytes, .. }
            | Record::Interrupted { bytes, .. } => {
                self.bytes = self.bytes.saturating_add(*bytes);
            }
            Record::StartedOver => {
                self.curves.begin_anew();
                self.applied = Recent::default();
            }
            Record::GaveUp { restarts } => {
                let why = format!("every replica was lost {restarts} times");
                (self.phase, self.failure) = (Phase::Failed, Some(why));
            }
            Record::Disagreed { exchange, .. } => {
                let why = format!("members hold different replicas after exchange {exchange}");
                (self.phase, self.failure) = (Phase::Failed, Some(why));
            }
            Record::Over if self.phase != Phase::Failed => self.phase = Phase::Over,
            _ => {}
        }
    }
}

impl Status {
    /// A checkpoint was written.
    pub fn saved(&mut self, at: Duration, name: &str) {
        self.events.add(at, Kind::Saved, format!("checkpoint {name} was saved"));
    }

    /// What is known at this time of the job's clock.
    pub fn snapshot(&self, now: Duration, around: &Surroundings) -> Snapshot {
        let now = if self.phase == Phase::Over { self.end } else { now.max(self.end) };
        let tally = self.curves.tally();
        let (samples, total) = (tally.samples(), tally.samples_total);
        let underway = self.waits.underway(now, &self.members.view);
        let workers = self.workers(now, &underway, around);
        let waits: Vec<Wait> = wait(now, &underway).into_iter().collect();
        let phase = match self.phase {
            Phase::Training | Phase::Waiting if around.is_stopping => Phase::Stopping,
            Phase::Training if self.members.view.len() < around.members_min => Phase::Waiting,
            phase => phase,
        };
        let verdicts = verdicts(&Grounds {
            workers: &workers,
            waits: &waits,
            counts: &self.events.counts,
            samples_wasted: self.wasted(),
            is_training: matches!(phase, Phase::Training | Phase::Stopping),
        });
        let speed = self.applied.sum(now) / covered(now, self.began).as_secs_f64().max(0.1);
        let left = (total.saturating_sub(samples)) as f64 / speed;
        let loss = smoothed(self.curves.loss());
        let last = |points: &[Point]| points.last().map(|point| point.value).filter(is_number);
        Snapshot {
            version: around.version.clone(),
            place: around.place.clone(),
            phase,
            strategy: self.job.strategy.clone(),
            model: self.job.model.clone(),
            data: self.job.data.clone(),
            params: self.job.params,
            seed: self.job.seed,
            seconds: now.as_secs_f64(),
            samples,
            samples_total: total,
            samples_wasted: self.wasted(),
            epochs: tally.epochs(samples),
            epochs_total: tally.epochs(total),
            rounds: self.members.rounds_max(),
            samples_per_second: speed,
            seconds_left: Some(left)
                .filter(|left| is_number(left) && !matches!(phase, Phase::Over | Phase::Waiting)),
            bytes_sent: self.bytes,
            loss: last(&loss),
            test_loss: last(self.curves.test_loss()),
            accuracy: last(self.curves.accuracy()),
            curves: Curves {
                loss: drawn(&loss),
                test_loss: drawn(self.curves.test_loss()),
                accuracy: drawn(self.curves.accuracy()),
            },
            workers,
            waits,
            verdicts,
            events: self.events.newest.iter().cloned().collect(),
            counts: self.events.counts,
            checkpoint: around.checkpoint.clone(),
            failure: self.failure.clone(),
            actions: around.actions,
        }
    }

    /// Samples that were computed for nothing, so far: what is under way still counts.
    fn wasted(&self) -> u64 {
        let tally = self.curves.tally();
        if self.phase == Phase::Over || self.events.counts.lost > 0 { tally.wasted() } else { 0 }
    }

    fn workers(&self, now: Duration, underway: &Underway, around: &Surroundings) -> Vec<Worker> {
        let (most, all) = (self.members.rounds_max(), self.members.samples_recent(now));
        let others = self.members.view.len().saturating_sub(1).max(1) as f64;
        let worker = |who: WorkerId| {
            let member = self.members.known.get(&who)?;
            let (state, since) = self.state(who, member, now, underway);
            let is_member = self.members.view.contains(&who);
            let seconds = member.covered(now).max(0.1);
            let recent = |sum: Recent| sum.sum(now) / seconds;
            let waits_now = underway.waited_for(who, now, seconds) / seconds;
            Some(Worker {
                id: who.0,
                state,
                state_seconds: now.saturating_sub(since).as_secs_f64(),
                address: around.addresses.get(&who).cloned(),
                samples_per_second: member.speed(now),
                share: match is_member && all > 0.0 {
                    true => member.recent.samples.sum(now) / all,
                    false => 0.0,
                },
                busy: recent(member.recent.compute).min(1.0),
                rounds: member.rounds,
                rounds_behind: if is_member { most.saturating_sub(member.rounds) } else { 0 },
                samples: member.samples,
                compute_seconds: member.compute.as_secs_f64(),
                waited_seconds: member.waited.as_secs_f64(),
                waited_for_seconds: member.waited_for.as_secs_f64(),
                waited_for: ((recent(member.recent.waited_for) + waits_now) / others).min(1.0),
                bytes_sent: member.bytes,
                silent_seconds: now.saturating_sub(member.heard).as_secs_f64(),
                clock_error_seconds: member.clock_error.map(|error| error.as_secs_f64()),
                committed: member.committed,
            })
        };
        self.members.in_order().filter_map(worker).collect()
    }

    /// What a worker does now, and since when.
    fn state(
        &self,
        who: WorkerId,
        member: &Member,
        now: Duration,
        underway: &Underway,
    ) -> (State, Duration) {
        if let Some(fate) = member.fate {
            return fate;
        }
        if !self.members.view.contains(&who) {
            return (State::Joining, member.since);
        }
        let waits = underway.waiting.get(&who);
        if let Some(since) = waits.filter(|since| now.saturating_sub(**since) >= WAIT_SHOWN) {
            let state =
                if underway.missing.is_empty() { State::Exchanging } else { State::Waiting };
            return (state, *since);
        }
        // Members of a synchronous job that pauses are silent, and nobody waits for them.
        let is_awaited = match self.job.is_synchronous {
            true => underway.missing.contains(&who) && !underway.waiting.is_empty(),
            false => self.phase == Phase::Training,
        };
        let patience = HANGS_MIN.max(HANGS_ROUNDS * member.round_usual);
        let is_silent = now.saturating_sub(member.heard) > patience;
        match is_awaited && is_silent {
            true => (State::Hanging, member.heard),
            false => (State::Working, member.since),
        }
    }
}

/// Who waits for whom now, if it takes long enough to be worth a word.
fn wait(now: Duration, underway: &Underway) -> Option<Wait> {
    let first = underway.waiting.values().min()?;
    let seconds = now.saturating_sub(*first);
    if underway.missing.is_empty() || seconds < WAIT_SHOWN {
        return None;
    }
    let who = underway.waiting.keys().map(|who| who.0).collect();
    let whom = underway.missing.iter().map(|who| who.0).collect();
    Some(Wait { who, whom, seconds: seconds.as_secs_f64() })
}

fn is_number(value: &f64) -> bool {
    value.is_finite()
}

/// Few points, with few digits: a page gets all of them every time.
fn drawn(points: &[Point]) -> Vec<[f64; 3]> {
    let brief = |value: f64| match value {
        0.0 => 0.0,
        _ => {
            let scale = 10f64.powi(4 - value.abs().log10().floor() as i32);
            (value * scale).round() / scale
        }
    };
    let point = |point: &Point| [brief(point.at), brief(point.epochs), brief(point.value)];
    let points: Vec<Point> = points.iter().filter(|it| is_number(&it.value)).copied().collect();
    thinned(&points).iter().map(point).filter(|point| point.iter().all(is_number)).collect()
}
