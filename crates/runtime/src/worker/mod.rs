//! What a strategy sees of the cluster: its replica, its samples, its peers.

mod exchanges;
mod letters;
mod samples;
mod snapshots;

use std::sync::Arc;
use std::time::Duration;

use paceline_learn::{Dice, Gradient, OptimizerState, Rescaler, Vector};

use crate::agreed::Agreed;
use crate::exchange::Sum;
use crate::executor::Port;
use crate::ids::{Ticket, WorkerId};
use crate::journal::Record;
use crate::ledger::Ledger;
use crate::plan::Plan;
use crate::private::PrivateState;
use crate::spans::Spans;
use crate::view::View;
use crate::wire::{Published, Shelf};

/// Where the samples of a gradient come from.
#[derive(Clone, Debug, PartialEq)]
pub enum Share {
    /// The next positions, split by rank into these counts: all members take theirs at the same time.
    ByRank(Vec<u64>),
    /// The next positions of this worker's own lane, up to this count. Lanes are filled from what all
    /// members agree on ([`Strategy::lane_batch`](crate::Strategy::lane_batch)), so counts may differ.
    Lane(u64),
    /// Leased from the coordinator; `ahead` asks for the next samples while these are computed.
    Leased { samples: u64, ahead: bool },
}

/// A gradient over this worker's own samples.
#[derive(Clone, Debug)]
pub struct Mine {
    pub gradient: Gradient,
    pub spans: Spans,
    /// How many updates the replica had seen when this was computed.
    pub version: u64,
    is_leased: bool,
}

impl Mine {
    /// Adds more samples, computed at the same parameters.
    pub fn add(&mut self, more: Mine) {
        assert_eq!(self.version, more.version, "one gradient is computed at one replica");
        self.gradient.add(&more.gradient);
        self.spans.add(&more.spans);
    }
}

/// The gradient over the samples of all members.
#[derive(Clone, Debug)]
pub struct Total {
    pub sum: Arc<Sum>,
    pub spans: Spans,
    pub version: u64,
}

/// The mean of all members' replicas.
#[derive(Clone, Debug)]
pub struct Average {
    pub mean: Arc<Vector>,
    pub sum: Arc<Sum>,
}

/// Everything that is restored when a round is undone.
#[derive(Clone)]
pub struct State {
    pub round: u64,
    pub version: u64,
    pub params: Arc<Vector>,
    pub optimizer: Arc<OptimizerState>,
    pub agreed: Agreed,
    /// The replica at the start of the round.
    pub anchor: Arc<Vector>,
    pub private: PrivateState,
}

pub struct Worker {
    pub id: WorkerId,
    pub view: Arc<View>,
    pub plan: Arc<Plan>,
    pub(crate) port: Port,
    pub(crate) state: State,
    /// The newest view reported in the last exchange; every member has seen this number.
    pub(crate) newest_view_agreed: u64,
    /// The coordinator has no more samples for asynchronous workers.
    pub(crate) out_of_samples: bool,
    /// The members agreed to hand in parts of a snapshot after this round.
    pub(crate) save_agreed: bool,
    /// The number of the newest requested snapshot that this worker has passed on to the others, or handed
    /// in its part of.
    pub(crate) save_served: u64,
    /// This worker has handed in a part of the snapshot that ends a stopped job.
    pub(crate) stop_served: bool,
    /// Samples of the job applied when the round began, as all members know, or as the lease said.
    clock: u64,
    /// The total batch of one step of all members.
    nominal_batch: f64,
    /// The steps of this round so far.
    deals: u64,
    factor: f32,
    updates: u32,
    lease: Option<Ticket>,
    computed: u64,
    /// The agreed base batch of lanes; see [`Share::Lane`].
    lane_batch: u64,
    applied: Vec<Record>,
    /// Epochs of the job whose end this worker has seen.
    epochs_seen: u64,
}

impl Worker {
    pub(crate) fn new(plan: Arc<Plan>, port: Port, view: Arc<View>) -> Worker {
        let agreed = Agreed {
            ledger: Ledger::new(plan.samples_total),
            rescaler: Rescaler::new(plan.rescale, plan.batch_reference),
            stopped: false,
        };
        let state = State {
            round: 0,
            version: 0,
            params: plan.initial.clone(),
            optimizer: plan.blank.clone(),
            agreed,
            anchor: plan.initial.clone(),
            private: PrivateState::default(),
        };
        Worker {
            id: port.worker,
            view,
            plan,
            port,
            state,
            newest_view_agreed: 0,
            out_of_samples: false,
            save_agreed: false,
            save_served: 0,
            stop_served: false,
            clock: 0,
            nominal_batch: 0.0,
            deals: 0,
            factor: 1.0,
            updates: 0,
            lease: None,
            computed: 0,
            lane_batch: 1,
            applied: Vec::new(),
            epochs_seen: 0,
        }
    }

    pub fn now(&self) -> Duration {
        self.port.now()
    }

    pub fn round(&self) -> u64 {
        self.state.round
    }

    /// This worker's place in its view.
    pub fn rank(&self) -> usize {
        self.view.rank(self.id).expect("a worker is in its own view")
    }

    pub fn params(&self) -> &Arc<Vector> {
        &self.state.params
    }

    pub fn params_mut(&mut self) -> &mut Vector {
        Arc::make_mut(&mut self.state.params)
    }

    pub fn set_params(&mut self, params: Arc<Vector>) {
        self.state.params = params;
    }

    /// The replica as it was at the start of the round.
    pub fn anchor(&self) -> &Arc<Vector> {
        &self.state.anchor
    }

    /// The learning rate now: base schedule x rescale factor.
    pub fn rate(&self) -> f32 {
        // A worker's own samples must not change its rate, so each step counts as all members' batches.
        let samples = self.clock_after(self.deals.saturating_sub(1));
        self.plan.schedule.rate(samples, self.plan.samples_total) * self.factor
    }

    /// The learning rate before it decays.
    pub fn rate_at_peak(&self) -> f32 {
        self.plan.schedule.base * self.factor
    }

    pub fn is_warming_up(&self) -> bool {
        (self.samples_seen() as f64) < self.plan.schedule.rise() * self.plan.samples_total as f64
    }

    /// Samples that all members know to be applied.
    pub fn samples_done(&self) -> u64 {
        self.state.agreed.ledger.done().len()
    }

    /// Samples of the job seen so far: the clock of schedules and periods.
    pub fn samples_seen(&self) -> u64 {
        self.clock_after(self.deals)
    }

    fn clock_after(&self, steps: u64) -> u64 {
        self.clock + (steps as f64 * self.nominal_batch) as u64
    }

    /// Whether every sample of the job has been applied.
    pub fn is_done(&self) -> bool {
        self.state.agreed.ledger.is_done()
    }

    /// Whether there are samples of the job that are neither applied nor dealt.
    pub fn has_free_samples(&self) -> bool {
        self.state.agreed.ledger.has_free()
    }

    /// This worker's dice; the same `purpose` in the same round gives the same dice.
    pub fn dice(&self, purpose: u64) -> Dice {
        Dice::keyed(&[self.plan.seed, u64::from(self.id.0), self.state.round, purpose])
    }

    /// A random member, possibly this worker itself.
    pub fn random_member(&self) -> WorkerId {
        let members = &self.view.members;
        members[self.dice(PEER).below(members.len() as u64) as usize]
    }

    /// Writes a number to the journal that only the strategy knows.
    pub fn note(&self, name: &str, value: f64) {
        let (who, round) = (self.id, Some(self.state.round));
        self.port.record(Record::Note { who, name: name.to_owned(), value, round });
    }
}

const PEER: u64 = 1;
const ENCODING: u64 = 2;

/// What the training loop does with a worker.
impl Worker {
    /// Sets the clock and the learning rate's factor for the round that begins.
    pub(crate) fn begin_round(&mut self, nominal_batch: f64, lane_batch: u64, synchronous: bool) {
        self.factor = self.state.agreed.rescaler.factor(nominal_batch);
        self.state.anchor = self.state.params.clone();
        (self.computed, self.deals, self.nominal_batch) = (0, 0, nominal_batch);
        self.lane_batch = lane_batch.max(1);
        if synchronous {
            self.clock = self.state.agreed.ledger.done().len();
        }
    }

    pub(crate) fn has_sum_under_way(&self) -> bool {
        self.state.private.pending.is_some()
    }

    pub(crate) fn commit(&mut self) {
        self.state.round += 1;
        for record in std::mem::take(&mut self.applied) {
            self.port.record(record);
        }
        let fingerprint = self.plan.fingerprints.then(|| self.port.fingerprint(&self.state.params));
        let (who, round) = (self.id, self.state.round);
        self.port.record(Record::Committed { who, round, fingerprint });
    }

    /// Has the replicas on `shelf` evaluated if an epoch has ended since the last call. All members notice;
    /// the first one asks.
    pub(crate) fn evaluate_epoch(&mut self, samples: u64, of: &[WorkerId], shelf: Shelf) {
        let epochs = samples / self.plan.samples_per_epoch.max(1);
        let has_ended = std::mem::replace(&mut self.epochs_seen, epochs) < epochs;
        if has_ended && self.rank() == 0 {
            self.port.evaluate(samples, of.to_vec(), shelf);
        }
    }

    /// The state is another one, whose epochs have been evaluated already.
    pub(crate) fn skip_epochs(&mut self, samples: u64) {
        self.epochs_seen = samples / self.plan.samples_per_epoch.max(1);
    }

    /// Samples applied when the last lease was granted.
    pub(crate) fn samples_at_lease(&self) -> u64 {
        self.clock
    }

    /// Puts the replica where peers can read it.
    pub fn publish(&self) {
        let (params, optimizer) = (self.state.params.clone(), self.state.optimizer.clone());
        let done = Arc::default();
        self.port.publish(Shelf::Replica, Published { params, optimizer, version: 0, done });
    }

    pub(crate) fn roll_back(&mut self, before: State) {
        self.applied.clear();
        if let Some(pending) = self.state.private.pending.take() {
            // A view follows, in which nothing of the old one is used.
            self.abandon(&pending);
        }
        let (who, round, samples) = (self.id, before.round, self.computed);
        self.port.record(Record::RolledBack { who, round, samples });
        self.state = before;
    }

    /// Enters a view. A sum that is under way in the old one is dropped, and its samples are free again.
    pub(crate) fn enter_view(&mut self, view: Arc<View>) {
        self.port.look(|inbox| inbox.forget_views(view.number));
        self.view = view;
        self.save_agreed = false;
        let private = &mut self.state.private;
        let residual = std::mem::take(&mut private.residual);
        let before = std::mem::replace(private, PrivateState { residual, ..Default::default() });
        if let Some(pending) = before.pending {
            self.abandon(&pending);
            if pending.samples > 0 {
                let (who, round, samples) = (self.id, self.state.round, pending.samples);
                self.port.record(Record::RolledBack { who, round, samples });
            }
        }
        self.state.agreed.ledger.release_all();
    }
}
