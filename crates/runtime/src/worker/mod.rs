//! What a strategy sees of the cluster: its replica, its samples, its peers.

mod exchanges;
mod letters;
mod replica;
mod samples;
mod settling;
mod snapshots;

use std::sync::Arc;
use std::time::Duration;

use paceline_learn::{Dice, Gradient, Rescaler, Vector, mix};

use crate::agreed::Agreed;
use crate::coordination::Word;
use crate::edge::some_evenly;
use crate::exchange::Sum;
use crate::executor::Port;
use crate::ids::{Ticket, WorkerId};
use crate::journal::{Record, digest};
use crate::ledger::Ledger;
use crate::plan::{Ended, Plan};
use crate::private::PrivateState;
use crate::spans::Spans;
use crate::view::View;
use crate::wire::{Memory, Shelf};
use replica::Held;

/// Where the samples of a gradient come from.
#[derive(Clone, Debug, PartialEq)]
pub enum Share {
    /// The next positions, as many as this, divided evenly: all members take theirs at the same time. If they cannot be
    /// divided evenly, the first members take one more.
    Even(u64),
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
    /// The positions of the samples.
    pub spans: Arc<Spans>,
    pub version: u64,
}

/// The mean of all members' replicas.
#[derive(Clone, Debug)]
pub struct Average {
    pub mean: Arc<Vector>,
    pub sum: Arc<Sum>,
}

/// What a worker holds: the replica, what all members agree on, and what it knows alone.
#[derive(Clone)]
pub struct State {
    pub round: u64,
    pub version: u64,
    pub replica: Held,
    pub agreed: Agreed,
    /// The replica at the start of the round. `None` if a host holds it and was not asked for it.
    pub anchor: Option<Arc<Vector>>,
    pub private: PrivateState,
}

impl State {
    fn new(plan: &Plan) -> State {
        State {
            round: 0,
            version: 0,
            replica: Held::new(plan),
            agreed: Agreed {
                ledger: plan.ledger.clone(),
                rescaler: Rescaler::new(plan.rescale, plan.batch_reference),
                stopped: false,
                view: Arc::default(),
                exchanges: 0,
                digest: 0,
            },
            anchor: Some(plan.initial.clone()),
            private: PrivateState::default(),
        }
    }
}

pub struct Worker {
    pub id: WorkerId,
    /// The view in force in which this worker stands, as far as it has heard.
    pub view: Arc<View>,
    pub plan: Arc<Plan>,
    pub(crate) port: Port,
    pub(crate) state: State,
    /// The last result that was taken, for members that missed it.
    last: Option<Arc<Sum>>,
    /// The newest plan that all contributors of the last result had heard of.
    pub(crate) plan_agreed: u64,
    /// The coordinator has no more samples for asynchronous workers.
    pub(crate) out_of_samples: bool,
    /// The newest snapshot that the members agreed to hand in their parts of.
    pub(crate) save_agreed: u64,
    /// The number of the newest requested snapshot that this worker has handed in its part of.
    pub(crate) save_served: u64,
    /// The view of which this worker was the last member when it handed in what it holds, to leave.
    pub(crate) parted_in: u64,
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
    /// Whether a host has made a step in this round.
    has_descended: bool,
    lease: Option<Ticket>,
    /// Leased samples whose gradients are not applied yet.
    in_hand: Spans,
    /// The reign of the newest center that this worker has seen, and the samples in it.
    center_known: (u64, Arc<Spans>),
    /// See [`Strategy::lane_batch`](crate::Strategy::lane_batch).
    lane_batch: Option<u64>,
    /// A hash of what the members had in common when the round began, in rounds in which it is compared.
    common: Option<u64>,
    /// Epochs of the job, and intervals between evaluations, whose end this worker has seen.
    seen: Ended,
    /// Which model would be deployed if the job ended now.
    deployed: Deployed,
    /// The local steps of this round, and whether the deployed model has been evaluated between two of them.
    alone: (u64, bool),
    said_bye: bool,
}

impl Worker {
    pub(crate) fn new(plan: Arc<Plan>, port: Port) -> Worker {
        Worker {
            id: port.worker,
            view: Arc::default(),
            state: State::new(&plan),
            plan,
            port,
            last: None,
            plan_agreed: 0,
            out_of_samples: false,
            save_agreed: 0,
            save_served: 0,
            parted_in: 0,
            stop_served: false,
            clock: 0,
            nominal_batch: 0.0,
            deals: 0,
            factor: 1.0,
            updates: 0,
            has_descended: false,
            lease: None,
            in_hand: Spans::new(),
            center_known: (0, Arc::default()),
            lane_batch: None,
            common: None,
            seen: Ended::default(),
            deployed: Deployed::Common,
            alone: (0, false),
            said_bye: false,
        }
    }

    /// Forgets everything, as before the first view.
    pub(crate) fn reset(&mut self) {
        let said_bye = self.said_bye;
        *self = Worker { said_bye, ..Worker::new(self.plan.clone(), self.port.clone()) };
    }

    /// Tells the coordinator once that this worker wants to leave, if it was told to.
    pub(crate) fn say_bye_if_ordered(&mut self) {
        if !self.said_bye && self.port.look(|inbox| inbox.leave_ordered) {
            self.said_bye = true;
            self.port.tell(Word::Bye);
        }
    }

    pub(crate) fn has_said_bye(&self) -> bool {
        self.said_bye
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

    /// The members on which all members agree: the contributors of the last exchange, or the members of a view that
    /// is in force since. Shares and learning rates follow these: of a loss, some members hear earlier than others.
    pub fn members(&self) -> &[WorkerId] {
        &self.state.agreed.view.members
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

/// What a round begins with.
pub(crate) struct Basis {
    pub nominal_batch: f64,
    pub lane_batch: Option<u64>,
    pub is_synchronous: bool,
    pub deployed: Deployed,
    /// The strategy's memory, in rounds in which the members compare it.
    pub memory: Option<Memory>,
}

/// Which model would be deployed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Deployed {
    /// The replica that all members have in common after each round; between averages, the mean of their replicas.
    Common,
    /// The mean of the replicas as they were last published.
    Mean,
    /// The center.
    Center,
    /// The center, which its server has evaluated itself.
    Server,
}

/// What the training loop does with a worker.
impl Worker {
    /// Sets the clock and the learning rate's factor for the round that begins.
    pub(crate) fn begin_round(&mut self, basis: Basis) {
        let Basis { nominal_batch, lane_batch, is_synchronous, deployed, memory } = basis;
        (self.deployed, self.alone) = (deployed, (0, false));
        self.factor = self.state.agreed.rescaler.factor(nominal_batch);
        self.state.anchor = self.state.replica.known().cloned();
        self.has_descended = false;
        (self.deals, self.nominal_batch) = (0, nominal_batch);
        self.lane_batch = lane_batch;
        if is_synchronous {
            self.clock = self.samples_done();
            self.open_lanes();
        }
        self.common = memory.map(|memory| self.hash_of_common(memory));
    }

    /// A hash of the replica and the strategy's memory. Hosts need not compute the same bits: their replicas are not compared.
    fn hash_of_common(&self, memory: Memory) -> u64 {
        let hash_of = |vector: &Arc<Vector>| self.port.fingerprint(vector);
        let Memory { json, vectors } = memory;
        let hashes = [digest(&json.to_string())].into_iter().chain(vectors.values().map(hash_of));
        let replica = match &self.state.replica {
            Held::Ours { params, .. } => hash_of(params),
            Held::Theirs { .. } => 0,
        };
        hashes.fold(replica, |hash, part| mix(hash ^ part))
    }

    pub(crate) fn has_sum_under_way(&self) -> bool {
        self.state.private.pending.is_some()
    }

    pub(crate) async fn commit(&mut self) {
        self.state.round += 1;
        let fingerprint = match self.plan.fingerprints {
            true => Some(self.port.fingerprint(self.params().await)),
            false => None,
        };
        let (who, round) = (self.id, self.state.round);
        self.port.record(Record::Committed { who, round, fingerprint });
    }

    /// Has the deployed model evaluated at the end of a round, if an epoch or an interval between evaluations has ended
    /// since the last call. All members notice; the first one asks.
    pub(crate) fn evaluate_if_due(&mut self) {
        let samples = match self.deployed {
            // The server knows the samples in its center better than any lease.
            Deployed::Server => return,
            Deployed::Common => self.samples_done(),
            Deployed::Mean | Deployed::Center => self.clock,
        };
        let (ended, seen) = (self.plan.ended(samples), self.seen);
        let ends_epoch = seen.epochs < ended.epochs;
        // An average that ends a round with evaluations is evaluated too: an outer step may make another model of it.
        let is_due = ends_epoch || seen.intervals < ended.intervals || self.alone.1;
        self.seen = Ended { intervals: seen.intervals.max(ended.intervals), ..ended };
        if !is_due || self.rank() != 0 {
            return;
        }
        let (of, shelf) = match self.deployed {
            Deployed::Mean => (self.view.members.clone(), Shelf::Replica),
            Deployed::Center => (vec![self.server()], Shelf::Center),
            Deployed::Common | Deployed::Server => (vec![self.id], Shelf::Replica),
        };
        self.port.evaluate(samples, ends_epoch, of, shelf);
    }

    /// Has the deployed model evaluated between two local steps of a round, if an interval between evaluations has ended: a
    /// strategy with long rounds is judged as often as one with short rounds.
    pub(super) async fn evaluate_within_round(&mut self) {
        if self.alone.0 == 0 || self.plan.evaluations_per_epoch <= 1 {
            return;
        }
        let samples = match self.deployed {
            Deployed::Server => return,
            Deployed::Common => self.samples_seen(),
            Deployed::Mean | Deployed::Center => self.clock,
        };
        let ended = self.plan.ended(samples);
        if ended.intervals <= self.seen.intervals {
            return;
        }
        (self.seen.intervals, self.alone.1) = (ended.intervals, true);
        match self.deployed {
            // The members get here at different times; what is evaluated is the mean after the same step of all.
            Deployed::Common => {
                let some = some_evenly(self.members());
                if some.contains(&self.id) {
                    self.publish().await;
                    self.port.evaluate_part(samples, some);
                }
            }
            // Peers read what a worker has published, so that publishing more would change what they learn.
            Deployed::Mean if self.rank() == 0 => {
                let members = self.view.members.clone();
                self.port.evaluate(samples, false, members, Shelf::Replica);
            }
            Deployed::Center if self.rank() == 0 => {
                self.port.evaluate(samples, false, vec![self.server()], Shelf::Center);
            }
            Deployed::Mean | Deployed::Center | Deployed::Server => {}
        }
    }

    /// Whether an epoch, or an interval between evaluations, has ended in this round of a synchronous strategy.
    fn is_evaluation_due(&self) -> bool {
        let ended = self.plan.ended(self.samples_done());
        self.seen.epochs < ended.epochs || self.seen.intervals < ended.intervals || self.alone.1
    }

    /// The state is another one, whose epochs have been evaluated already.
    pub(crate) fn skip_epochs(&mut self, samples: u64) {
        self.seen = self.plan.ended(samples);
    }

    /// Stands in a view from now on; older ones are forgotten.
    pub(crate) fn stand_in(&mut self, view: Arc<View>) {
        self.port.look(|inbox| inbox.forget_views(view.number));
        self.view = view;
    }

    /// A view is in force that all its members agree on, although others contributed to the last result. The lanes of those
    /// that are not in it are free.
    pub(crate) fn agree_on(&mut self, view: Arc<View>) {
        let ledger = &self.state.agreed.ledger;
        self.state.agreed.ledger =
            self.port.once(ledger, None, mix(steps::KEEP ^ view.number), || {
                let mut ledger = Ledger::clone(ledger);
                ledger.keep_lanes(&view.members);
                ledger
            });
        self.state.agreed.view = view;
    }
}

/// Names of computations that equal members make alike; see [`Cluster::once`](crate::Cluster::once).
mod steps {
    pub const KEEP: u64 = 2 << 32;
    pub const OPEN: u64 = 3 << 32;
    pub const DEAL: u64 = 4 << 32;
    pub const TAKE: u64 = 5 << 32;
    pub const DEAL_EVENLY: u64 = 6 << 32;
    pub const AGREE: u64 = 7 << 32;
}
