//! Reads a journal and keeps the totals that a run's result reports.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use super::recovery::Recoveries;
use crate::error::RunError;
use paceline_runtime::journal::weight_of;
use paceline_runtime::{Line, Reader, Record, SampleTally, WorkerId};

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
    pub rounds: u64,
    steps: u64,
    /// Rounds before the run was resumed.
    rounds_before: u64,
    pub workers: BTreeMap<WorkerId, Life>,
    pub members: Vec<WorkerId>,
    pub curve: Curve,
    pub scores: Vec<Score>,
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
            }
            Record::Resumed { round, loss_first, loss_last, .. } => {
                (self.rounds, self.rounds_before) = (*round, *round);
                let losses = [loss_first, loss_last].into_iter().copied().flatten();
                self.curve.points.extend(losses.map(|loss| (line.at, loss)));
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
            Record::Waited { whom, since, who } if whom != who => {
                *self.waited_for.entry(*whom).or_default() += line.at.saturating_sub(*since);
            }
            Record::Applied { spans, loss_sum, weight, staleness, .. } => {
                self.staleness_max = self.staleness_max.max(*staleness);
                if samples_new > 0 {
                    let weight = weight_of(spans.len(), *weight);
                    self.curve.add(line.at, spans.len(), *loss_sum, weight);
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
                self.curve = Curve::new(self.tally.samples_per_epoch);
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
            }
            Record::Finished { who, .. } | Record::Left { who } | Record::Crashed { who } => {
                self.workers.entry(*who).or_default().end(line.at);
            }
            _ => {}
        }
    }
}

impl RunTotals {
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

/// The training loss over time, on a grid of 1/20 epoch.
#[derive(Default)]
pub struct Curve {
    per_cell: u64,
    samples: u64,
    loss_sum: f64,
    weight: f64,
    recent: VecDeque<f64>,
    /// Time and smoothed loss.
    pub points: Vec<(Duration, f64)>,
}

/// The loss is smoothed over this many cells: half an epoch.
const SMOOTHED: usize = 10;
const CELLS_PER_EPOCH: u64 = 20;

impl Curve {
    fn new(samples_per_epoch: u64) -> Curve {
        Curve { per_cell: (samples_per_epoch / CELLS_PER_EPOCH).max(1), ..Curve::default() }
    }

    fn add(&mut self, at: Duration, samples: u64, loss_sum: f64, weight: f64) {
        self.samples += samples;
        self.loss_sum += loss_sum;
        self.weight += weight;
        // Samples that are all masked have no mean loss.
        if self.samples < self.per_cell || self.weight == 0.0 {
            return;
        }
        self.recent.push_back(self.loss_sum / self.weight);
        if self.recent.len() > SMOOTHED {
            self.recent.pop_front();
        }
        let smoothed = self.recent.iter().sum::<f64>() / self.recent.len() as f64;
        self.points.push((at, smoothed));
        (self.samples, self.loss_sum, self.weight) = (0, 0.0, 0.0);
    }

    pub fn last(&self) -> Option<f64> {
        self.points.last().map(|(_, loss)| *loss)
    }

    /// When the loss first fell to `target`, between grid points by interpolation.
    pub fn time_to(&self, target: f64) -> Option<f64> {
        let at = self.points.iter().position(|(_, loss)| *loss <= target)?;
        let (after, below) = self.points[at];
        let Some((before, above)) = at.checked_sub(1).map(|before| self.points[before]) else {
            return Some(after.as_secs_f64());
        };
        let part = if above > below { (above - target) / (above - below) } else { 1.0 };
        Some(before.as_secs_f64() + part * (after - before).as_secs_f64())
    }

    /// Whether the loss ends well above where it began.
    pub fn ends_higher(&self) -> bool {
        match (self.points.first(), self.points.last()) {
            (Some((_, first)), Some((_, last))) => *last > 1.5 * first.abs().max(1e-3),
            _ => false,
        }
    }

    /// Whether training has diverged: the loss is not finite, or far above where it began.
    pub fn has_diverged(&self) -> bool {
        if !self.loss_sum.is_finite() {
            return true;
        }
        match (self.points.first(), self.points.last()) {
            (Some((_, first)), Some((_, last))) => {
                !last.is_finite() || *last > 20.0 * first.abs().max(1e-3)
            }
            _ => false,
        }
    }
}
