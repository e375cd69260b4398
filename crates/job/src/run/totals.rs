//! Reads a journal and keeps the totals that a run's result reports.

use std::collections::BTreeMap;
use std::time::Duration;

use super::curve::{CELLS_PER_EPOCH, Curve, time_to};
use super::recovery::Recoveries;
use crate::error::RunError;
use crate::job::Target;
use paceline_runtime::journal::{Past, PastLoss, PastScore, weight_of};
use paceline_runtime::{Line, Reader, Record, SampleTally, WorkerId};

/// So many evaluations in a row must be at a target, so that a lucky one does not count.
const IN_A_ROW: usize = 2;

/// The totals of a run so far.
#[derive(Default)]
pub struct RunTotals {
    pub end: Duration,
    /// When the coordinator declared the job over.
    pub over: Option<Duration>,
    pub tally: SampleTally,
    /// Why the job ended without a result.
    pub failure: Option<RunError>,
    /// How often every replica was lost, and all began anew.
    pub started_over: u32,
    pub recoveries: Recoveries,
    pub bytes_sent: u64,
    /// Bytes of other members' replicas that were read to be evaluated.
    pub bytes_evaluated: u64,
    pub rounds: u64,
    steps: u64,
    /// Rounds before the run was resumed.
    rounds_before: u64,
    pub workers: BTreeMap<WorkerId, Life>,
    pub members: Vec<WorkerId>,
    pub curve: Curve,
    /// On the test set.
    pub scores: Vec<Score>,
    /// On the validation part.
    pub validations: Vec<Score>,
    /// Losses and scores of the whole job, for checkpoints.
    past: Past,
    pub staleness_max: u64,
    pub notes: BTreeMap<String, (f64, u64)>,
    exchanges: BTreeMap<(u64, u64), Vec<Wait>>,
    /// The total time that others waited for a worker.
    pub waited_for: BTreeMap<WorkerId, Duration>,
}

/// One worker's time.
#[derive(Clone, Debug, Default)]
pub struct Life {
    pub compute: Duration,
    pub samples: u64,
    pub member: Duration,
    since: Option<Duration>,
}

impl Life {
    fn end(&mut self, at: Duration) {
        if let Some(since) = self.since.take() {
            self.member += at.saturating_sub(since);
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub struct Score {
    pub at: Duration,
    pub samples: u64,
    pub loss: f64,
    pub accuracy: f64,
}

#[derive(Clone, Copy)]
struct Wait {
    who: WorkerId,
    entered: Duration,
    blocked: Duration,
    ended: Duration,
}

impl Reader for RunTotals {
    fn read(&mut self, line: &Line) {
        self.end = self.end.max(line.at);
        let samples_new = self.tally.read(line);
        self.recoveries.read(line);
        match &line.record {
            Record::Began { samples_per_epoch, .. } => {
                self.curve = Curve::new(*samples_per_epoch);
                self.past = Past::new(*samples_per_epoch / CELLS_PER_EPOCH);
            }
            Record::Resumed { round, past: Some(past), loss_first, .. } => {
                self.curve = Curve::continued(self.tally.samples_per_epoch, *loss_first);
                self.resume(line.at, *round, past);
            }
            Record::Resumed { round, loss_first, loss_last, .. } => {
                (self.rounds, self.rounds_before) = (*round, *round);
                let losses = [loss_first, loss_last].into_iter().copied().flatten();
                losses.for_each(|loss| self.curve.push(line.at, loss));
            }
            Record::View { members, .. } => self.view(line.at, members),
            Record::Computed { who, since, samples, .. } => {
                let life = self.workers.entry(*who).or_default();
                life.compute += line.at.saturating_sub(*since);
                life.samples += samples;
            }
            Record::Exchanged { who, view, exchange, entered, blocked, bytes } => {
                self.bytes_sent += bytes;
                let (entered, blocked, ended) = (*entered, *blocked, line.at);
                let wait = Wait { who: *who, entered, blocked, ended };
                self.exchanged((*view, *exchange), wait);
            }
            Record::Sent { bytes, .. } | Record::Interrupted { bytes, .. } => {
                self.bytes_sent += bytes;
            }
            Record::Fetched { bytes, .. } => self.bytes_evaluated += bytes,
            Record::Waited { whom, since, who } if whom != who => {
                *self.waited_for.entry(*whom).or_default() += line.at.saturating_sub(*since);
            }
            Record::Applied { spans, loss_sum, weight, staleness, rate, .. } => {
                self.staleness_max = self.staleness_max.max(*staleness);
                if samples_new > 0 {
                    let weight = weight_of(spans.len(), *weight);
                    self.curve.add(line.at, spans.len(), *loss_sum, weight);
                    let (at, samples, loss) = (line.at, self.tally.samples(), loss_sum / weight);
                    self.past.add_loss(PastLoss { at, samples, loss, weight, rate: *rate });
                }
            }
            Record::Committed { round, .. } => {
                self.steps += 1;
                self.rounds = self.rounds.max(*round);
            }
            Record::StartedOver => {
                self.started_over += 1;
                (self.rounds, self.steps) = (self.rounds_before, 0);
                self.scores.clear();
                self.validations.clear();
                let (per_epoch, began) = (self.tally.samples_per_epoch, self.curve.began());
                self.curve = Curve::continued(per_epoch, began);
                self.past = Past::new(self.past.samples_per_loss);
            }
            Record::GaveUp { restarts } => {
                self.failure = Some(RunError::GaveUp { restarts: *restarts });
            }
            Record::Disagreed { exchange, workers } => {
                let (exchange, workers) = (*exchange, workers.clone());
                self.failure = Some(RunError::Disagreed { exchange, workers });
            }
            Record::Over => self.over = Some(line.at),
            Record::Note { name, value, .. } => {
                let note = self.notes.entry(name.clone()).or_default();
                *note = (note.0 + value, note.1 + 1);
            }
            &Record::Scored { samples, loss, accuracy } => {
                self.scores.push(Score { at: line.at, samples, loss, accuracy });
                self.past.add_score(PastScore { at: line.at, samples, loss, accuracy });
            }
            &Record::Validated { samples, loss, accuracy } => {
                self.validations.push(Score { at: line.at, samples, loss, accuracy });
                self.past.add_validation(PastScore { at: line.at, samples, loss, accuracy });
            }
            Record::Finished { who, .. } | Record::Left { who } | Record::Crashed { who } => {
                self.workers.entry(*who).or_default().end(line.at);
            }
            _ => {}
        }
    }
}

impl RunTotals {
    /// The history of the job so far.
    pub fn past(&self) -> Past {
        let (time, samples_computed) = (self.end, self.tally.computed());
        let (bytes_sent, bytes_evaluated) = (self.bytes_sent, self.bytes_evaluated);
        Past { time, bytes_sent, bytes_evaluated, samples_computed, ..self.past.clone() }
    }

    /// A run is resumed that was started again: losses, scores and traffic are those of its checkpoint.
    fn resume(&mut self, at: Duration, round: u64, past: &Past) {
        (self.rounds, self.rounds_before, self.steps) = (round, round, 0);
        self.workers.values_mut().for_each(|life| life.end(at));
        self.exchanges.clear();
        self.over = None;
        (self.bytes_sent, self.bytes_evaluated) = (past.bytes_sent, past.bytes_evaluated);
        self.past = past.clone();
        let mut before = 0;
        for PastLoss { at, samples, loss, weight, .. } in &past.losses {
            self.curve.add(*at, samples.saturating_sub(before), loss * weight, *weight);
            before = *samples;
        }
        let score = |score: &PastScore| {
            let PastScore { at, samples, loss, accuracy } = *score;
            Score { at, samples, loss, accuracy }
        };
        self.scores = past.scores.iter().map(score).collect();
        self.validations = past.validations.iter().map(score).collect();
    }

    fn view(&mut self, at: Duration, members: &[WorkerId]) {
        for (who, life) in &mut self.workers {
            if members.binary_search(who).is_err() {
                life.end(at);
            }
        }
        for who in members {
            self.workers.entry(*who).or_default().since.get_or_insert(at);
        }
        self.members = members.to_vec();
    }

    /// When all members have ended an exchange, the last one to enter is the one that the others waited for.
    fn exchanged(&mut self, name: (u64, u64), wait: Wait) {
        let waits = self.exchanges.entry(name).or_default();
        waits.push(wait);
        if waits.len() < self.members.len() {
            // Exchanges that lost a member never become complete; old ones are dropped.
            while self.exchanges.len() > 8 {
                self.exchanges.pop_first();
            }
            return;
        }
        let waits = self.exchanges.remove(&name).expect("it is there");
        let last = waits.iter().max_by_key(|wait| wait.entered).expect("a view has members");
        let cost = waits.iter().filter(|wait| wait.who != last.who);
        let cost = cost.map(|wait| last.entered.min(wait.ended).saturating_sub(wait.blocked));
        *self.waited_for.entry(last.who).or_default() += cost.sum::<Duration>();
    }

    /// Compute time over time as a member, by worker.
    pub fn utilization(&self) -> BTreeMap<WorkerId, f64> {
        let part = |life: &Life| {
            let running = life.since.map_or(Duration::ZERO, |since| self.end.saturating_sub(since));
            let member = (life.member + running).as_secs_f64();
            if member > 0.0 { (life.compute.as_secs_f64() / member).min(1.0) } else { 0.0 }
        };
        self.workers.iter().map(|(who, life)| (*who, part(life))).collect()
    }

    /// When the target was reached, in seconds. On the validation part two evaluations in a row must be at it.
    pub fn time_to(&self, target: Target) -> Option<f64> {
        let judged = |value: fn(&Score) -> f64| -> Vec<_> {
            self.validations.iter().map(|score| (score.at, value(score))).collect()
        };
        match target {
            Target::TrainingLoss(loss) => time_to(&self.curve.points, loss, 1),
            Target::Loss(loss) => time_to(&judged(|score| score.loss), loss, IN_A_ROW),
            Target::Accuracy(wanted) => {
                time_to(&judged(|score| -score.accuracy), -wanted, IN_A_ROW)
            }
        }
    }

    /// Whether the run is at the target now.
    pub fn is_at(&self, target: Target) -> bool {
        let is_at = |score: &Score| match target {
            Target::Accuracy(wanted) => score.accuracy >= wanted,
            Target::Loss(wanted) | Target::TrainingLoss(wanted) => score.loss <= wanted,
        };
        match target {
            Target::TrainingLoss(wanted) => self.curve.last().is_some_and(|loss| loss <= wanted),
            Target::Loss(_) | Target::Accuracy(_) => {
                let last = self.validations.last_chunk::<IN_A_ROW>();
                last.is_some_and(|scores| scores.iter().all(is_at))
            }
        }
    }

    /// Samples applied so far.
    pub fn samples(&self) -> u64 {
        self.tally.samples()
    }

    /// Rounds; for asynchronous strategies steps per worker.
    pub fn rounds(&self) -> u64 {
        match self.workers.len() as u64 {
            _ if self.tally.is_synchronous() => self.rounds,
            0 => self.rounds_before,
            workers => self.rounds_before + self.steps.div_ceil(workers),
        }
    }

    /// The mean of a number that the strategy reports.
    pub fn note(&self, name: &str) -> Option<f64> {
        self.notes.get(name).map(|(sum, count)| sum / *count as f64)
    }
}

#[cfg(test)]
mod tests {
    use paceline_runtime::Spans;

    use super::*;

    #[test]
    fn a_target_that_was_reached_before_a_resume_stays_reached() {
        let mut before = RunTotals::default();
        for (second, loss) in [(1, 0.9), (2, 0.4), (3, 0.3)] {
            let record = Record::Validated { samples: 10 * second, loss, accuracy: 0.5 };
            before.read(&Line { at: Duration::from_secs(second), record });
        }
        let (mut after, past) = (RunTotals::default(), Some(Box::new(before.past())));
        let record = Record::Resumed {
            round: 3,
            version: 0,
            spans: Spans::one(0, 30),
            loss_first: None,
            loss_last: None,
            samples_total: Some(60),
            past,
        };

        after.read(&Line { at: Duration::from_secs(3), record });

        let target = Target::Loss(0.5);
        assert!(before.time_to(target).is_some());
        assert_eq!(after.time_to(target), before.time_to(target));
    }
}
