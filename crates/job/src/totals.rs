//! Reads a journal and keeps what a run's outcome tells.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use paceline_runtime::{Line, Reader, Record, WorkerId};

/// What a run came to, so far.
#[derive(Default)]
pub struct RunTotals {
    pub end: Duration,
    /// When the coordinator declared the job over.
    pub over: Option<Duration>,
    pub together: bool,
    pub samples_per_epoch: u64,
    pub samples_total: u64,
    /// Samples applied so far.
    pub samples: u64,
    pub samples_rolled_back: u64,
    pub bytes_sent: u64,
    pub rounds: u64,
    steps: u64,
    /// What the run that this one goes on from had applied, and its rounds.
    samples_before: u64,
    rounds_before: u64,
    pub workers: BTreeMap<WorkerId, Life>,
    pub members: Vec<WorkerId>,
    pub curve: Curve,
    pub scores: Vec<Score>,
    pub staleness_max: u64,
    pub notes: BTreeMap<String, (f64, u64)>,
    applied: BTreeMap<WorkerId, u64>,
    void: BTreeSet<WorkerId>,
    exchanges: BTreeMap<(u64, u64), Vec<Wait>>,
    /// How long others waited for a worker, in all.
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
        match &line.record {
            Record::Began { samples_total, samples_per_epoch, together, .. } => {
                (self.samples_total, self.samples_per_epoch) = (*samples_total, *samples_per_epoch);
                self.together = *together;
                self.curve = Curve::new(*samples_per_epoch);
            }
            Record::Resumed { round, spans, loss_first, loss_last, .. } => {
                (self.samples, self.samples_before) = (spans.len(), spans.len());
                (self.rounds, self.rounds_before) = (*round, *round);
                let losses = [loss_first, loss_last].into_iter().copied().flatten();
                self.curve.points.extend(losses.map(|loss| (line.at, loss)));
            }
            Record::View { members, .. } => self.view(line.at, members),
            Record::Computed { who, since, samples } => {
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
            Record::Sent { bytes, .. } => self.bytes_sent += bytes,
            Record::Waited { whom, since, who } if whom != who => {
                *self.waited_for.entry(*whom).or_default() += line.at.saturating_sub(*since);
            }
            Record::Applied { who, spans, loss_sum, staleness, .. } => {
                self.staleness_max = self.staleness_max.max(*staleness);
                self.apply(line.at, *who, spans.len(), *loss_sum);
            }
            Record::Committed { round, .. } => {
                self.steps += 1;
                self.rounds = self.rounds.max(*round);
            }
            Record::StartedOver => {
                self.samples = self.samples_before;
                self.applied.clear();
                self.scores.clear();
                self.curve = Curve::new(self.samples_per_epoch);
            }
            Record::Over => self.over = Some(line.at),
            Record::RolledBack { samples, .. } => self.samples_rolled_back += samples,
            Record::Settled { who, adopted: Some(source), .. } => {
                let theirs = self.applied.get(source).copied().unwrap_or(self.samples_before);
                self.applied.insert(*who, theirs);
            }
            Record::Freed { who, .. } => drop(self.void.insert(*who)),
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

    /// Members that exchange together all tell of the same samples; they count once.
    fn apply(&mut self, at: Duration, who: WorkerId, samples: u64, loss_sum: f64) {
        if self.void.contains(&who) {
            return;
        }
        let known = self.applied.entry(who).or_insert(self.samples_before);
        *known += samples;
        if self.together {
            if *known <= self.samples {
                return;
            }
            self.samples = *known;
        } else {
            self.samples += samples;
        }
        self.curve.add(at, samples, loss_sum);
    }

    /// When all members have ended an exchange, the last to enter is whom the others waited for.
    fn exchanged(&mut self, name: (u64, u64), wait: Wait) {
        let waits = self.exchanges.entry(name).or_default();
        waits.push(wait);
        if waits.len() < self.members.len() {
            // Exchanges that lost a member never fill up; old ones are let go.
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

    /// Rounds; for asynchronous strategies steps per worker.
    pub fn rounds(&self) -> u64 {
        match self.workers.len() as u64 {
            _ if self.together => self.rounds,
            0 => self.rounds_before,
            workers => self.rounds_before + self.steps.div_ceil(workers),
        }
    }

    /// The mean of a strategy's own number.
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
    recent: VecDeque<f64>,
    /// Time and smoothed loss.
    pub points: Vec<(Duration, f64)>,
}

/// Over so many cells the loss is smoothed: half an epoch.
const SMOOTHED: usize = 10;
const CELLS_PER_EPOCH: u64 = 20;

impl Curve {
    fn new(samples_per_epoch: u64) -> Curve {
        Curve { per_cell: (samples_per_epoch / CELLS_PER_EPOCH).max(1), ..Curve::default() }
    }

    fn add(&mut self, at: Duration, samples: u64, loss_sum: f64) {
        self.samples += samples;
        self.loss_sum += loss_sum;
        if self.samples < self.per_cell {
            return;
        }
        self.recent.push_back(self.loss_sum / self.samples as f64);
        if self.recent.len() > SMOOTHED {
            self.recent.pop_front();
        }
        let smoothed = self.recent.iter().sum::<f64>() / self.recent.len() as f64;
        self.points.push((at, smoothed));
        (self.samples, self.loss_sum) = (0, 0.0);
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

    /// Whether all that learning was for nothing: the loss ends well above where it began.
    pub fn ends_higher(&self) -> bool {
        match (self.points.first(), self.points.last()) {
            (Some((_, first)), Some((_, last))) => *last > 1.5 * first.abs().max(1e-3),
            _ => false,
        }
    }

    /// Whether learning has come apart: the loss is no number, or far above where it began.
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
