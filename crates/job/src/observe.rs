//! What every run is watched by: the account, the ledger's checker, evaluations, and whoever else reads.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use paceline_learn::Vector;
use paceline_learn::vector::mean;
use paceline_runtime::cluster::{Shelf, Shelves};
use paceline_runtime::{Coordination, Journal, Line, Reader, Record, WorkerId, journal};
use paceline_sim::checkers::LedgerCheck;

use crate::evaluator::{EvalRequest, Evaluator};
use crate::job::{Prepared, Target};
use crate::retime::Training;
use crate::run_result::RunResult;
use crate::totals::RunTotals;

/// Takes every line of a run's journal.
pub struct Observer<'a> {
    pub account: RunTotals,
    ledger: LedgerCheck,
    journal: Journal<'a>,
    judge: Evaluator,
    /// What members had published when they wrote the last line that was observed.
    shelves: Arc<Mutex<Shelves>>,
    coordination: Coordination,
    epochs_scored: u64,
    training: Option<Arc<Training>>,
    /// The target after which there is nothing to wait for.
    end_at: Option<Target>,
    pub diverged: Option<String>,
}

impl<'a> Observer<'a> {
    pub fn new(
        prepared: &Prepared,
        (coordination, judge): (Coordination, Evaluator),
        shelves: Arc<Mutex<Shelves>>,
        readers: Vec<&'a mut dyn Reader>,
    ) -> Observer<'a> {
        let mut observer = Observer {
            account: RunTotals::default(),
            ledger: LedgerCheck::default(),
            journal: Journal::new(readers),
            judge,
            shelves,
            coordination,
            epochs_scored: 0,
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
            let (loss_first, loss_last) = snapshot.losses;
            let (round, version) = (snapshot.rounds_mean(), snapshot.version());
            let spans = snapshot.done.clone();
            let record = Record::Resumed { round, version, spans, loss_first, loss_last };
            observer.write(&Line { at: Duration::ZERO, record });
            observer.epochs_scored = observer.epochs();
        }
        observer
    }

    /// Reads a line; breaks off when learning has come apart.
    pub fn observe(&mut self, line: &Line) -> ControlFlow<()> {
        self.write(line);
        let Record::Applied { who, .. } = line.record else { return ControlFlow::Continue(()) };
        if self.account.curve.has_diverged() {
            self.diverged = Some(format!(
                "the training loss came apart after {:.2} epochs ({:.3} s); try a smaller learning rate",
                self.account.samples as f64 / self.account.samples_per_epoch as f64,
                line.at.as_secs_f64()
            ));
            return ControlFlow::Break(());
        }
        let epochs = self.epochs();
        if self.epochs_scored != epochs {
            self.epochs_scored = epochs;
            self.score(line.at, Some(who), Evaluator::ask);
        }
        if self.has_arrived() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    /// Takes in what has been evaluated meanwhile; breaks off when there is nothing left to wait for.
    pub fn hear(&mut self) -> ControlFlow<()> {
        let lines = self.judge.answered();
        lines.iter().for_each(|line| self.write(line));
        let has_arrived = !lines.is_empty() && self.has_arrived();
        if has_arrived { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    /// Whether the target is reached after which there is nothing to wait for.
    fn has_arrived(&self) -> bool {
        match self.end_at {
            Some(Target::Loss(wanted)) => {
                self.account.curve.last().is_some_and(|loss| loss <= wanted)
            }
            Some(Target::Accuracy(wanted)) => {
                self.account.scores.last().is_some_and(|score| score.accuracy >= wanted)
            }
            None => false,
        }
    }

    /// Whether learning is no better off than at its beginning, or came apart.
    pub fn is_astray(&self) -> bool {
        self.account.curve.has_diverged() || self.account.curve.ends_higher()
    }

    fn epochs(&self) -> u64 {
        self.account.samples / self.account.samples_per_epoch.max(1)
    }

    fn write(&mut self, line: &Line) {
        self.account.read(line);
        self.ledger.read(line);
        self.journal.write(line);
    }

    /// Has evaluated what was learned by now, or by this member.
    fn score(
        &mut self,
        at: Duration,
        who: Option<WorkerId>,
        ask: fn(&mut Evaluator, EvalRequest) -> Option<Line>,
    ) {
        let samples = self.account.samples;
        let line = match &self.training {
            Some(training) => {
                let (loss, accuracy) = training.score(samples);
                Some(Line { at, record: Record::Scored { samples, loss, accuracy } })
            }
            None => self
                .learned(who)
                .and_then(|params| ask(&mut self.judge, EvalRequest { at, samples, params })),
        };
        if let Some(line) = line {
            self.write(&line);
        }
    }

    /// The center, or the mean of the members' replicas. Where all exchange together, the one that is first
    /// through a round has what all will have.
    fn learned(&self, who: Option<WorkerId>) -> Option<Arc<Vector>> {
        let members = &self.account.members[..];
        let (shelf, whose, at_most) = match (self.coordination, who) {
            (Coordination::Centered { .. }, _) => (Shelf::Center, members, 1),
            (Coordination::Synchronous, Some(_)) => (Shelf::Replica, who.as_slice(), 1),
            _ => (Shelf::Replica, members, members.len()),
        };
        let shelves = self.shelves.lock().expect("nobody panics here");
        let of = |who: &WorkerId| Some(shelves.get(&(*who, shelf))?.params.clone());
        let replicas: Vec<Arc<Vector>> = whose.iter().filter_map(of).take(at_most).collect();
        drop(shelves);
        mean(replicas.iter())
    }

    /// Scores the end of the run and tells what came of it all. Evaluating is cut short for who is in a hurry.
    pub fn conclude(
        mut self,
        prepared: &Prepared,
        stopped: bool,
        hurry: &AtomicBool,
    ) -> (RunResult, Option<Arc<Vector>>) {
        let given_up = stopped || self.diverged.is_some();
        let (lines, judge) = self.judge.finish(|| given_up || hurry.load(Ordering::Relaxed));
        self.judge = judge;
        lines.iter().for_each(|line| self.write(line));
        let last = self.account.scores.last().map(|score| score.samples);
        // Replicas that learn apart are still drawn together when all samples are applied.
        let is_scored =
            last == Some(self.account.samples) && self.coordination != Coordination::Asynchronous;
        if self.diverged.is_none() && !is_scored {
            let end = self.account.over.unwrap_or(self.account.end);
            let is_brief = stopped || hurry.load(Ordering::Relaxed);
            let ask = if is_brief { Evaluator::ask_briefly } else { Evaluator::ask };
            self.score(end, None, ask);
        }
        let given_up = self.diverged.is_some() || self.has_arrived();
        if self.diverged.is_none() && self.account.curve.ends_higher() {
            self.diverged = Some(
                "the training loss ended well above where it began; try a smaller learning rate"
                    .into(),
            );
        }
        let account = &self.account;
        let time_to_target = match prepared.target {
            _ if self.diverged.is_some() => None,
            Some(Target::Loss(loss)) => account.curve.time_to(loss),
            Some(Target::Accuracy(wanted)) => account
                .scores
                .iter()
                .find(|score| score.accuracy >= wanted)
                .map(|score| score.at.as_secs_f64()),
            None => None,
        };
        let waited_for = account.waited_for.iter().max_by_key(|(_, time)| **time);
        let ledger = self.ledger.tally(stopped || given_up);
        let outcome = RunResult {
            strategy: prepared.name.clone(),
            seed: prepared.plan.seed,
            workers: prepared.workers,
            virtual_seconds: None,
            real_seconds: None,
            stopped: false,
            rounds: account.rounds(),
            samples: ledger.done,
            samples_wasted: account.samples_rolled_back + self.ledger.wasted(),
            epochs: ledger.done as f64 / prepared.plan.samples_per_epoch as f64,
            bytes_sent: account.bytes_sent,
            loss: account.curve.last().unwrap_or(f64::NAN),
            accuracy: account.scores.last().map_or(f64::NAN, |score| score.accuracy),
            utilization: account.utilization().into_values().collect(),
            time_to_target_seconds: time_to_target,
            ledger,
            diverged: self.diverged.clone(),
            learning_rate: prepared.plan.schedule.base,
            batch: prepared.batch,
            staleness_max: account.staleness_max,
            period_mean: account.note("period"),
            waited_for: waited_for.map(|(who, time)| (who.0, time.as_secs_f64())),
            journal_hash: format!("{:016x}", self.journal.hash()),
        };
        (outcome, self.learned(None))
    }
}
