//! What a strategy sees of the cluster: its replica, its samples, its peers.

mod exchanges;
mod letters;
mod portions;
mod samples;

use std::sync::Arc;
use std::time::Duration;

use paceline_learn::{Dice, Gradient, OptimizerState, Rescaler, Vector};
use serde::{Deserialize, Serialize};

use crate::cluster::{Published, Shelf, Sum, Ticket, View, WorkerId};
use crate::executor::Port;
use crate::journal::Record;
use crate::ledger::Ledger;
use crate::plan::Plan;
use crate::spans::Spans;

pub(crate) use letters::read_shelf;

/// Where the samples of a gradient come from.
#[derive(Clone, Debug, PartialEq)]
pub enum Share {
    /// The next positions, so many for each rank: all members take theirs at the same time.
    ByRank(Vec<u64>),
    /// So many from this worker's own lane.
    Lane(u64),
    /// So many leased from the coordinator; `ahead` asks for the next ones while these are computed.
    Leased { samples: u64, ahead: bool },
}

/// A gradient of this worker's own samples.
#[derive(Clone, Debug)]
pub struct Mine {
    pub gradient: Gradient,
    pub spans: Spans,
    /// How many updates the replica had seen when this was computed.
    pub version: u64,
    is_leased: bool,
}

impl Mine {
    /// Takes in more samples, computed at the same parameters.
    pub fn add(&mut self, more: Mine) {
        assert_eq!(self.version, more.version, "one gradient is computed at one replica");
        self.gradient.add(&more.gradient);
        self.spans.add(&more.spans);
    }
}

/// The gradient over everybody's samples.
#[derive(Clone, Debug)]
pub struct Total {
    pub sum: Arc<Sum>,
    pub spans: Spans,
    pub version: u64,
}

/// The mean of everybody's replicas.
#[derive(Clone, Debug)]
pub struct Average {
    pub mean: Arc<Vector>,
    pub sum: Arc<Sum>,
}

/// What all members agree on besides replica and strategy.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Agreed {
    pub ledger: Ledger,
    pub rescaler: Rescaler,
    pub stopped: bool,
}

/// Everything that a lost round takes back.
#[derive(Clone)]
pub struct State {
    pub round: u64,
    pub version: u64,
    pub params: Arc<Vector>,
    pub optimizer: Arc<OptimizerState>,
    pub agreed: Agreed,
    /// The replica at the start of the round.
    pub anchor: Arc<Vector>,
    /// What encoding lost, to be sent later.
    residual: Arc<Vector>,
    /// The sum under way.
    summing: Option<PendingSum>,
    /// How many of the lane's positions are in gradients not yet applied.
    drawn: u64,
    /// What was dealt to all members since the last exchange.
    dealt: Spans,
    /// Samples, loss and time of this worker's gradients since the last exchange.
    samples: u64,
    loss_sum: f64,
    compute: Duration,
}

#[derive(Clone)]
struct PendingSum {
    ticket: Ticket,
    view: Arc<View>,
    number: u64,
    entered: Duration,
    bytes: u64,
    /// What the sum holds, where all know it beforehand; with lanes the counts tell.
    dealt: Spans,
    samples: u64,
}

pub struct Worker {
    pub id: WorkerId,
    pub view: Arc<View>,
    pub plan: Arc<Plan>,
    pub(crate) port: Port,
    pub(crate) state: State,
    /// The newest view that any member of the last exchange had heard of.
    pub(crate) heard: u64,
    /// The coordinator has no more samples for asynchronous workers.
    pub(crate) out_of_samples: bool,
    /// The members agreed to hand in portions of a snapshot after this round.
    pub(crate) save_agreed: bool,
    /// The newest snapshot asked for that this worker has told the others of, or handed in its portion of.
    pub(crate) wish_heeded: u64,
    /// The wish to stop has been answered with a portion of a snapshot.
    pub(crate) stop_heeded: bool,
    /// Samples of the job applied when the round began, as all members know, or as the lease said.
    clock: u64,
    /// What one step of all members stands for, and how many steps this round has dealt.
    nominal_batch: f64,
    deals: u64,
    factor: f32,
    exchanges: u64,
    updates: u32,
    lease: Option<Ticket>,
    computed: u64,
    /// The base batch of open batches: the most that was drawn at a time.
    lane_batch: u64,
    applied: Vec<Record>,
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
            residual: Arc::default(),
            summing: None,
            drawn: 0,
            dealt: Spans::new(),
            samples: 0,
            loss_sum: 0.0,
            compute: Duration::ZERO,
        };
        Worker {
            id: port.worker,
            view,
            plan,
            port,
            state,
            heard: 0,
            out_of_samples: false,
            save_agreed: false,
            wish_heeded: 0,
            stop_heeded: false,
            clock: 0,
            nominal_batch: 0.0,
            deals: 0,
            factor: 1.0,
            exchanges: 0,
            updates: 0,
            lease: None,
            computed: 0,
            lane_batch: 1,
            applied: Vec::new(),
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
        // Members may differ in samples, but never in the rate: steps count as all members' batches.
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

    /// Whether all of the job's samples are applied or dealt.
    pub fn has_free_samples(&self) -> bool {
        self.state.agreed.ledger.has_free()
    }

    /// Dice of this worker's own; the same `purpose` in the same round gives the same dice.
    pub fn dice(&self, purpose: u64) -> Dice {
        Dice::keyed(&[self.plan.seed, u64::from(self.id.0), self.state.round, purpose])
    }

    /// A member drawn at random, oneself included.
    pub fn random_member(&self) -> WorkerId {
        let members = &self.view.members;
        members[self.dice(PEER).below(members.len() as u64) as usize]
    }

    /// Notes a number that the journal cannot see by itself.
    pub fn note(&self, name: &str, value: f64) {
        self.port.record(Record::Note { who: self.id, name: name.to_owned(), value });
    }
}

const PEER: u64 = 1;
const ENCODING: u64 = 2;

/// What the loop around rounds does with a worker.
impl Worker {
    /// Sets the clock and the learning rate's factor for the round that begins.
    pub(crate) fn begin_round(&mut self, nominal_batch: f64, together: bool) {
        self.factor = self.state.agreed.rescaler.factor(nominal_batch);
        self.state.anchor = self.state.params.clone();
        (self.computed, self.deals, self.nominal_batch) = (0, 0, nominal_batch);
        if together {
            self.clock = self.state.agreed.ledger.done().len();
        }
    }

    pub(crate) fn has_sum_under_way(&self) -> bool {
        self.state.summing.is_some()
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

    /// Puts the replica where peers can read it.
    pub fn publish(&self) {
        let (params, optimizer) = (self.state.params.clone(), self.state.optimizer.clone());
        let done = Arc::default();
        self.port.publish(Shelf::Replica, Published { params, optimizer, version: 0, done });
    }

    pub(crate) fn roll_back(&mut self, before: State) {
        self.applied.clear();
        let (who, round, samples) = (self.id, before.round, self.computed);
        self.port.record(Record::RolledBack { who, round, samples });
        self.state = before;
    }

    /// Takes on a new view: what was under way in the old one is dropped, and its samples are free.
    pub(crate) fn enter_view(&mut self, view: Arc<View>) {
        self.view = view;
        self.exchanges = 0;
        self.save_agreed = false;
        if let Some(summing) = self.state.summing.take()
            && summing.samples > 0
        {
            let (who, round, samples) = (self.id, self.state.round, summing.samples);
            self.port.record(Record::RolledBack { who, round, samples });
        }
        self.state.drawn = 0;
        self.state.dealt = Spans::new();
        (self.state.samples, self.state.loss_sum) = (0, 0.0);
        self.state.compute = Duration::ZERO;
        self.state.agreed.ledger.release_all();
    }
}
