//! Reads every line of a run: keeps the totals, requests evaluations, notices divergence, makes the result.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use paceline_learn::Vector;
use paceline_learn::vector::mean;
use paceline_runtime::{Coordination, Journal, Line, Reader, Record, journal};

use crate::job::{Prepared, Target};
use crate::retime::Training;
use crate::run::evaluator::{EvalRequest, Evaluator};
use crate::run::totals::RunTotals;
use crate::run_result::RunResult;

/// Takes every line of a run's journal.
pub struct Observer<'a> {
    pub totals: RunTotals,
    journal: Journal<'a>,
    evaluator: Evaluator,
    coordination: Coordination,
    training: Option<Arc<Training>>,
    /// The target at which the run ends.
    end_at: Option<Target>,
    pub diverged: Option<String>,
}

impl<'a> Observer<'a> {
    pub fn new(
        prepared: &Prepared,
        (coordination, evaluator): (Coordination, Evaluator),
        readers: Vec<&'a mut dyn Reader>,
    ) -> Observer<'a> {
        let mut observer = Observer {
            totals: RunTotals::default(),
            journal: Journal::new(readers),
            evaluator,
            coordination,
            training: prepared.training.clone(),
            end_at: prepared.target.filter(|_| prepared.ends_at_target),
            diverged: None,
        };
        let record = Record::Began {
            version: journal::VERSION,
            strategy: prepared.name.clone(),
            seed: prepared.plan.seed,
            samples_total: prepared.plan.samples_total,
            samples_per_epoch: prepared.plan.samples_per_epoch,
            model: prepared.model.clone(),
            data: prepared.data.clone(),
            params: prepared.plan.initial.len() as u64,
            kernels: prepared.task.model.kernels().to_owned(),
            together: coordination == Coordination::Synchronous,
            central: coordination == Coordination::Centered { applies_samples: true },
        };
        observer.write(&Line { at: Duration::ZERO, record });
        if let Some(snapshot) = &prepared.plan.resumed {
            let (loss_first, loss_last) = (prepared.losses.first, prepared.losses.last);
            let (round, version) = (snapshot.rounds_mean(), snapshot.version());
            let spans = snapshot.done.clone();
            let record = Record::Resumed { round, version, spans, loss_first, loss_last };
            observer.write(&Line { at: Duration::ZERO, record });
        }
        observer
    }

    /// Reads a line; breaks off the run when training has diverged.
    pub fn observe(&mut self, line: &Line) -> ControlFlow<()> {
        self.write(line);
        let Record::Applied { .. } = line.record else { return ControlFlow::Continue(()) };
        if self.totals.curve.has_diverged() {
            self.diverged = Some(format!(
                "the training loss diverged after {:.2} epochs ({:.3} s); try a smaller learning rate",
                self.totals.tally.epochs(self.totals.tally.samples()),
                line.at.as_secs_f64()
            ));
            return ControlFlow::Break(());
        }
        if self.has_arrived() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    /// Evaluates the mean of these replicas, which had learned from `samples` samples.
    pub fn evaluate(
        &mut self,
        at: Duration,
        samples: u64,
        replicas: &[Arc<Vector>],
    ) -> ControlFlow<()> {
        self.score(at, samples, mean(replicas.iter()), Evaluator::request);
        if self.has_arrived() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    /// Reads the scores that have arrived; breaks off the run when its target is reached.
    pub fn poll_evaluations(&mut self) -> ControlFlow<()> {
        let lines = self.evaluator.poll();
        lines.iter().for_each(|line| self.write(line));
        let has_arrived = !lines.is_empty() && self.has_arrived();
        if has_arrived { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    /// Whether the target is reached at which the run ends.
    fn has_arrived(&self) -> bool {
        match self.end_at {
            Some(Target::Loss(wanted)) => {
                self.totals.curve.last().is_some_and(|loss| loss <= wanted)
            }
            Some(Target::Accuracy(wanted)) => {
                self.totals.scores.last().is_some_and(|score| score.accuracy >= wanted)
            }
            None => false,
        }
    }

    /// Whether the loss is above where it began, or training has diverged.
    pub fn is_astray(&self) -> bool {
        self.totals.curve.has_diverged() || self.totals.curve.ends_higher()
    }

    fn write(&mut self, line: &Line) {
        self.totals.read(line);
        self.journal.write(line);
    }

    fn score(
        &mut self,
        at: Duration,
        samples: u64,
        params: Option<Arc<Vector>>,
        request: fn(&mut Evaluator, EvalRequest) -> Option<Line>,
    ) {
        let line = match (&self.training, params) {
            (Some(training), _) => {
                let (loss, accuracy) = training.score(samples);
                Some(Line { at, record: Record::Scored { samples, loss, accuracy } })
            }
            (None, Some(params)) => {
                request(&mut self.evaluator, EvalRequest { at, samples, params })
            }
            (None, None) => None,
        };
        if let Some(line) = line {
            self.write(&line);
        }
    }

    /// Evaluates the parameters at the end of the run and makes its result. `hurry` cuts the evaluation short.
    pub fn conclude(
        mut self,
        prepared: &Prepared,
        stopped: bool,
        hurry: &AtomicBool,
        params: Option<Arc<Vector>>,
    ) -> RunResult {
        let given_up = stopped || self.diverged.is_some();
        let (lines, evaluator) =
            self.evaluator.finish(|| given_up || hurry.load(Ordering::Relaxed));
        self.evaluator = evaluator;
        lines.iter().for_each(|line| self.write(line));
        let last = self.totals.scores.last().map(|score| score.samples);
        // Asynchronous replicas still change when all samples are applied.
        let is_scored = last == Some(self.totals.tally.samples())
            && self.coordination != Coordination::Asynchronous;
        if self.diverged.is_none() && !is_scored {
            let end = self.totals.over.unwrap_or(self.totals.end);
            let is_brief = stopped || hurry.load(Ordering::Relaxed);
            let request = if is_brief { Evaluator::request_briefly } else { Evaluator::request };
            self.score(end, self.totals.samples(), params, request);
        }
        let given_up = self.diverged.is_some() || self.has_arrived();
        if self.diverged.is_none() && self.totals.curve.ends_higher() {
            self.diverged = Some(
                "the training loss ended well above where it began; try a smaller learning rate"
                    .into(),
            );
        }
        let totals = &self.totals;
        let time_to_target = match prepared.target {
            _ if self.diverged.is_some() => None,
            Some(Target::Loss(loss)) => totals.curve.time_to(loss),
            Some(Target::Accuracy(wanted)) => totals
                .scores
                .iter()
                .find(|score| score.accuracy >= wanted)
                .map(|score| score.at.as_secs_f64()),
            None => None,
        };
        let waited_for = totals.waited_for.iter().max_by_key(|(_, time)| **time);
        let ledger = totals.tally.verdict(stopped || given_up);
        RunResult {
            strategy: prepared.name.clone(),
            seed: prepared.plan.seed,
            workers: prepared.workers,
            virtual_seconds: None,
            real_seconds: None,
            stopped: false,
            rounds: totals.rounds(),
            samples: ledger.done,
            samples_wasted: totals.tally.wasted(),
            started_over: totals.started_over,
            recovery: totals.recoveries.summary(),
            epochs: ledger.done as f64 / prepared.plan.samples_per_epoch as f64,
            bytes_sent: totals.bytes_sent,
            loss: totals.curve.last().unwrap_or(f64::NAN),
            accuracy: totals.scores.last().map_or(f64::NAN, |score| score.accuracy),
            utilization: totals.utilization().into_values().collect(),
            time_to_target_seconds: time_to_target,
            ledger,
            diverged: self.diverged.clone(),
            learning_rate: prepared.plan.schedule.base,
            batch: prepared.batch,
            staleness_max: totals.staleness_max,
            period_mean: totals.note("period"),
            waited_for: waited_for.map(|(who, time)| (who.0, time.as_secs_f64())),
            journal_hash: format!("{:016x}", self.journal.hash()),
        }
    }
}
