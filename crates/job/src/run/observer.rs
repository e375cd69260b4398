//! Reads every line of a run: keeps the totals, requests evaluations, notices divergence, makes the result.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use paceline_learn::Vector;
use paceline_learn::vector::mean;
use paceline_runtime::evaluation::{Part as ReplicaPart, Parts, bytes_fetched};
use paceline_runtime::{Coordination, Journal, Line, Reader, Record, WorkerId, journal};

use crate::job::{Prepared, Target};
use crate::retime::Training;
use crate::run::evaluator::{EvalRequest, Evaluator, line};
use crate::run::totals::{RunTotals, Score};
use crate::run_result::RunResult;
use crate::task::Part;

/// Takes every line of a run's journal.
pub struct Observer<'a> {
    pub totals: RunTotals,
    journal: Journal<'a>,
    evaluator: Evaluator,
    coordination: Coordination,
    training: Option<Arc<Training>>,
    /// Whether there is a validation part.
    validates: bool,
    /// Replicas that wait for those of other members, to be evaluated together.
    parts: Parts,
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
            validates: prepared.task.validation.is_some(),
            parts: Parts::default(),
            end_at: prepared.target.filter(|_| prepared.ends_at_target),
            diverged: None,
        };
        first_lines(prepared, coordination).iter().for_each(|line| observer.write(line));
        observer
    }

    /// Reads a line; breaks off the run when training has diverged.
    pub fn observe(&mut self, line: &Line) -> ControlFlow<()> {
        self.write(line);
        if line.record == Record::StartedOver {
            self.parts.clear();
        }
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

    /// Evaluates the mean of these replicas, which had learned from so many samples, on the validation part, and at the end of
    /// an epoch on the test set.
    pub fn evaluate(
        &mut self,
        (at, samples): (Duration, u64),
        ends_epoch: bool,
        replicas: &[Arc<Vector>],
    ) -> ControlFlow<()> {
        self.parts.skip_to(samples);
        let bytes = bytes_fetched(replicas);
        if bytes > 0 {
            self.write(&Line { at, record: Record::Fetched { samples, bytes } });
        }
        // The replicas of a run that is only timed hold nothing.
        let params = if self.training.is_some() { None } else { mean(replicas.iter()) };
        self.score(Part::Validation, (at, samples), params.clone(), Evaluator::request);
        if ends_epoch {
            self.score(Part::Test, (at, samples), params, Evaluator::request);
        }
        if self.has_arrived() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    /// Keeps the replica of one of `parts` members; when all are here, their mean is evaluated, at the time of the last one.
    pub fn evaluate_part(
        &mut self,
        (at, samples): (Duration, u64),
        (by, parts): (WorkerId, usize),
        replicas: Vec<Arc<Vector>>,
    ) -> ControlFlow<()> {
        let own = replicas.into_iter().next();
        let part = own.map(|replica| ReplicaPart { by, at, samples, parts, replica });
        match part.and_then(|part| self.parts.add(part)) {
            Some((at, replicas)) => self.evaluate((at, samples), false, &replicas),
            None => ControlFlow::Continue(()),
        }
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
        self.end_at.is_some_and(|target| self.totals.is_at(target))
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
        on: Part,
        (at, samples): (Duration, u64),
        params: Option<Arc<Vector>>,
        request: fn(&mut Evaluator, EvalRequest) -> Option<Line>,
    ) {
        if on == Part::Validation && !self.validates {
            return;
        }
        let line = match (&self.training, params) {
            (Some(training), _) => Some(line(on, at, samples, training.score(on, samples))),
            (None, Some(params)) => {
                request(&mut self.evaluator, EvalRequest { on, at, samples, params })
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
        let samples = self.totals.tally.samples();
        // Asynchronous replicas still change when all samples are applied.
        let is_in = |scores: &[Score]| {
            scores.last().is_some_and(|score| score.samples == samples)
                && self.coordination != Coordination::Asynchronous
        };
        let validations = &self.totals.validations;
        let missing =
            [(Part::Validation, is_in(validations)), (Part::Test, is_in(&self.totals.scores))];
        for (on, is_in) in missing {
            if self.diverged.is_none() && !is_in {
                let end = self.totals.over.unwrap_or(self.totals.end);
                let is_brief = stopped || hurry.load(Ordering::Relaxed);
                let request =
                    if is_brief { Evaluator::request_briefly } else { Evaluator::request };
                self.score(on, (end, samples), params.clone(), request);
            }
        }
        let given_up = self.diverged.is_some() || self.has_arrived();
        if self.diverged.is_none() && self.totals.curve.ends_higher() {
            self.diverged = Some(
                "the training loss ended well above where it began; try a smaller learning rate"
                    .into(),
            );
        }
        let totals = &self.totals;
        let target = prepared.target.filter(|_| self.diverged.is_none());
        let validated = totals.validations.last();
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
            bytes_evaluated: totals.bytes_evaluated,
            loss: totals.curve.last().unwrap_or(f64::NAN),
            validation_loss: validated.map_or(f64::NAN, |score| score.loss),
            validation_accuracy: validated.map_or(f64::NAN, |score| score.accuracy),
            accuracy: totals.scores.last().map_or(f64::NAN, |score| score.accuracy),
            utilization: totals.utilization().into_values().collect(),
            seconds_to_target: target.and_then(|target| totals.time_to(target)),
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

/// What the journal of a run begins with: which job it is of, and which checkpoint it resumes.
pub fn first_lines(prepared: &Prepared, coordination: Coordination) -> Vec<Line> {
    let record = Record::Began {
        version: journal::VERSION,
        strategy: prepared.name.clone(),
        seed: prepared.plan.seed,
        samples_total: prepared.plan.samples_total,
        samples_per_epoch: prepared.plan.samples_per_epoch,
        model: prepared.model.clone(),
        data: prepared.data.clone(),
        params: prepared.size() as u64,
        kernels: prepared.task.model.kernels().to_owned(),
        together: coordination == Coordination::Synchronous,
        central: coordination == Coordination::Centered { applies_samples: true },
    };
    let mut lines = vec![Line { at: Duration::ZERO, record }];
    if let Some(snapshot) = &prepared.plan.resumed {
        let (loss_first, loss_last) = (prepared.losses.first, prepared.losses.last);
        let past = (!prepared.past.is_empty()).then(|| Box::new(prepared.past.clone()));
        let record = Record::Resumed {
            round: snapshot.rounds_mean(),
            version: snapshot.version(),
            spans: snapshot.done.clone(),
            loss_first,
            loss_last,
            samples_total: past.as_ref().map(|_| prepared.plan.samples_total),
            past,
        };
        lines.push(Line { at: prepared.past.time, record });
    }
    lines
}
