//! The edge between tasks and the cluster that runs them: a simulator, threads, or machines.
//!
//! Tasks hand [`Action`]s to a [`Cluster`] and get [`Event`]s back. Both stay within one process and share
//! memory through `Arc`s; what crosses between workers is in [`wire`](crate::wire), what crosses between a worker
//! and the coordinator in [`coordination`](crate::coordination).

use std::any::Any;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use paceline_learn::{Batch, Gradient, OptimizerState, Scratch, Vector};

use crate::coordination::{Order, Word};
use crate::exchange::{ExchangeResult, Sum};
use crate::ids::{Ticket, WorkerId};
use crate::journal::{Line, fingerprint};
use crate::snapshot::{Snapshot, WorkerSnapshot};
use crate::spans::Spans;
use crate::view::View;
use crate::wire::{Entry, Extent, Letter, Published, Shelf, Standing};

/// What a task may ask of the cluster.
#[derive(Debug)]
pub enum Action {
    /// Computes a gradient: with the function that the cluster was given when it was made, or at the worker's host.
    /// `updates` is the number of updates to the replica since the last gradient, for clusters that charge time for them.
    Compute {
        ticket: Ticket,
        at: Place,
        spans: Spans,
        updates: u32,
    },
    /// Takes part in an exchange of the view's members: the `number`-th of the job, or, with 0, the one in which
    /// they tell where they stand.
    Exchange {
        ticket: Ticket,
        view: Arc<View>,
        number: u64,
        entry: Entry,
    },
    Send {
        to: WorkerId,
        letter: Box<Letter>,
    },
    /// Puts a value where peers can read it; takes no time.
    Publish {
        shelf: Shelf,
        value: Published,
    },
    /// Reads a peer's last published value without waking the peer's task. `waits`: a living peer that has published
    /// nothing answers when it does, instead of saying so.
    Read {
        ticket: Ticket,
        from: WorkerId,
        shelf: Shelf,
        extent: Extent,
        waits: bool,
    },
    /// Hands in this worker's part of a snapshot; takes no time. The cluster keeps the part and tells the
    /// coordinator its name ([`Word::HandedIn`]); a cluster that is never saved drops it. `done`: the samples in
    /// all replicas, if all members know them.
    Save {
        part: Box<WorkerSnapshot>,
        done: Option<Spans>,
    },
    /// Has the host evaluate the mean of these members' published values, after `samples` samples of the job; takes
    /// no time. Only the first member asks, [`Plan::evaluations_per_epoch`](crate::Plan) times per epoch.
    /// `ends_epoch`: an epoch has ended since the last call, and the test set is evaluated too.
    Evaluate {
        samples: u64,
        ends_epoch: bool,
        of: Vec<WorkerId>,
        shelf: Shelf,
    },
    /// Has the host evaluate the mean of the replicas of the members `with`, this one among them; takes no time. Each of them
    /// hands in its own, as it was published last, after the same number of samples.
    EvaluatePart {
        samples: u64,
        with: Vec<WorkerId>,
    },
    /// Tells the coordinator something.
    Tell(Word),
}

/// The replica at which a gradient is computed.
#[derive(Debug)]
pub enum Place {
    Ours(Arc<Vector>),
    /// The host holds it. `size`: how many numbers it has; `ahead`: what this worker will probably compute next.
    Theirs {
        size: usize,
        ahead: Spans,
        moment: Moment,
    },
}

/// Where a job stands when a worker asks its host something. Synchronous members ask the same question at the same moment, so
/// schedules and epochs that hosts derive from it agree.
#[derive(Clone, Debug, Default)]
pub struct Moment {
    pub round: u64,
    /// Samples of the job that steps before this one stand for; each step counts as all members' batches.
    pub samples: u64,
    /// The members on which all members agree.
    pub view: Arc<View>,
    /// The samples that are in the replicas of all synchronous members; a replica may hold more of its own. Asynchronous workers do
    /// not know it.
    pub done: Spans,
}

/// What a worker asks of the host that holds its replica, optimizer and data; one question at a time.
#[derive(Debug)]
pub enum Ask {
    /// Compute the gradient at the replica over the samples at these positions. `ahead`: the positions that probably follow.
    Compute { spans: Spans, ahead: Spans, moment: Moment },
    /// Take a step along the mean of this gradient. `rate` is the job's learning rate, with `factor` in it; a host that has a
    /// schedule of its own multiplies its rate by `factor`.
    /// `moment`: after this step.
    Apply { along: Along, rate: f32, factor: f32, moment: Moment },
    /// Give the replica as one vector; the answer is [`Answer::Params`].
    Export,
    /// Replace the replica. `optimizer`: the state that the optimizer has from now on, in the host's own bytes; empty: that
    /// of one that has made no step; `None`: the state that it has.
    Load { params: Arc<Vector>, optimizer: Option<Arc<Vec<u8>>> },
    /// Give the optimizer's state as bytes that another host can load; the answer is [`Answer::Optimizer`].
    Keep,
}

/// What a host steps along.
#[derive(Debug)]
pub enum Along {
    /// The gradient over all members' samples.
    Total(Arc<Sum>),
    /// The worker's own gradient.
    Mine(Gradient),
}

impl Along {
    pub fn gradient(&self) -> &Gradient {
        match self {
            Along::Total(sum) => &sum.gradient,
            Along::Mine(gradient) => gradient,
        }
    }
}

/// A host's answer.
#[derive(Debug)]
pub enum Answer {
    Done,
    /// The step of [`Ask::Apply`] was left out, because its gradient was not finite.
    Skipped,
    Params(Arc<Vector>),
    Optimizer(Arc<Vec<u8>>),
}

/// What the cluster may tell the executor.
#[derive(Debug)]
pub enum Event {
    /// A worker starts; the executor makes its task.
    Started { who: WorkerId },
    /// A worker died; the executor drops its tasks.
    Crashed { who: WorkerId },
    /// Something for a living worker.
    For { to: WorkerId, news: News },
}

/// What the cluster may tell one worker.
#[derive(Debug)]
pub enum News {
    /// `took`: how long it was computed, if a host says so; else it is the time since it was asked for.
    Computed {
        ticket: Ticket,
        gradient: Gradient,
        took: Option<Duration>,
    },
    Hosted {
        ticket: Ticket,
        answer: Answer,
    },
    Summed {
        ticket: Ticket,
        sum: Arc<Sum>,
    },
    Gathered {
        ticket: Ticket,
        standings: Arc<Vec<Standing>>,
    },
    /// Boxed, because letters are large and rare: all other news would be moved about at their size.
    Letter {
        from: WorkerId,
        letter: Box<Letter>,
    },
    /// `None`: the peer is gone, or has never published.
    Value {
        ticket: Ticket,
        value: Option<Published>,
    },
    /// The newest stored snapshot, from which the members begin anew.
    Snapshot(Arc<Snapshot>),
    /// The coordinator's order.
    Told(Order),
}

impl News {
    /// What a member is told when an exchange ends.
    pub fn of(ticket: Ticket, result: ExchangeResult) -> News {
        match result {
            ExchangeResult::Summed(sum) => News::Summed { ticket, sum },
            ExchangeResult::Gathered(standings) => News::Gathered { ticket, standings },
        }
    }
}

/// What comes out of a cluster while it runs, for the host that watches it. Every cluster has one stream of
/// outputs, in which the lines of each worker keep their order.
#[derive(Debug)]
pub enum ClusterOutput {
    Line(Line),
    /// The replicas whose mean is to be evaluated, with those of `parts - 1` other members after the same number of samples.
    Evaluate {
        by: WorkerId,
        at: Duration,
        samples: u64,
        /// Whether an epoch has ended, so that the test set is evaluated too.
        ends_epoch: bool,
        parts: usize,
        replicas: Vec<Arc<Vector>>,
    },
    Snapshot(Arc<Snapshot>),
}

/// Everything that is published: by worker and shelf.
pub type Shelves = BTreeMap<(WorkerId, Shelf), Published>;

/// What the named members have published; a member that has published nothing is skipped.
pub fn published(shelves: &Shelves, of: &[WorkerId], shelf: Shelf) -> Vec<Arc<Vector>> {
    of.iter().filter_map(|who| Some(shelves.get(&(*who, shelf))?.params.clone())).collect()
}

/// The mean of this many replicas, evenly spaced over the members, stands for the mean of all where each of them has to be sent:
/// on real clusters, and within rounds.
pub const EVALUATED_MAX: usize = 8;

/// At most [`EVALUATED_MAX`] of these members, evenly spaced and with the first one.
pub fn some_evenly(of: &[WorkerId]) -> Vec<WorkerId> {
    let count = of.len().min(EVALUATED_MAX);
    (0..count).map(|i| of[i * of.len() / count]).collect()
}

/// Gives memory for a gradient of this length; `None` if there is none left.
pub type GradientMemory = Arc<dyn Fn(usize) -> Option<Vector> + Send + Sync>;

/// Memory that a compute thread owns and reuses for every gradient.
#[derive(Default)]
pub struct Workspace {
    pub scratch: Scratch,
    pub batch: Batch,
    /// Where gradients are made, if not in memory of their own: where peers of the same host can read them. `None` if it is full.
    pub memory: Option<GradientMemory>,
}

impl Workspace {
    /// A gradient over no samples yet.
    pub fn zero_gradient(&self, size: usize) -> Gradient {
        match self.memory.as_ref().and_then(|memory| memory(size)) {
            Some(mut sum) => {
                sum.fill(0.0);
                Gradient { sum, ..Gradient::default() }
            }
            None => Gradient::zero(size),
        }
    }
}

/// Computes the gradient at a replica over the samples at the given positions.
pub type Compute = Arc<dyn Fn(&Arc<Vector>, &Spans, &mut Workspace) -> Gradient + Send + Sync>;

/// A value that equal members may share.
pub type Shareable = Arc<dyn Any + Send + Sync>;

/// A replica and its optimizer's state.
pub type Replica = (Arc<Vector>, Arc<OptimizerState>);

/// What runs workers: simulated or real.
pub trait Cluster {
    fn now(&self) -> Duration;

    fn submit(&mut self, by: WorkerId, action: Action);

    /// Waits for the next event, in virtual or real time; `None` once nothing can happen any more.
    fn next(&mut self) -> Option<Event>;

    /// Whether nothing is left to run once all tasks have ended: the job is over, or this part of the cluster has left it.
    fn is_over(&self) -> bool;

    /// Passes a line of the journal, or another output, to the host.
    fn emit(&mut self, output: ClusterOutput);

    /// Asks a worker's host something, except for gradients. A cluster whose time stands still meanwhile waits for the answer and
    /// returns it; from others it comes as [`News::Hosted`].
    fn ask_host(&mut self, by: WorkerId, ticket: Ticket, ask: Ask) -> Option<Answer> {
        let _ = (by, ticket, ask);
        unreachable!("only workers of clusters that have hosts ask them")
    }

    /// Tells a worker's host which samples probably follow those that it computes; there is no answer.
    fn show_host(&mut self, by: WorkerId, ahead: Spans) {
        let _ = (by, ahead);
    }

    /// One step of a replica along a sum. A cluster that runs many workers in one process may remember the
    /// result, so that equal replicas stay one vector.
    fn descend(
        &mut self,
        before: Replica,
        along: &Arc<Sum>,
        rate: f32,
        step: &dyn Fn(&Replica) -> Replica,
    ) -> Replica {
        let _ = (along, rate);
        step(&before)
    }

    /// Computes what all members compute alike from the same value, along the same result; `step` names the
    /// computation. A cluster that runs many members in one process may remember the answer.
    fn once(
        &mut self,
        before: &Shareable,
        along: Option<&Arc<Sum>>,
        step: u64,
        make: &mut dyn FnMut() -> Shareable,
    ) -> Shareable {
        let _ = (before, along, step);
        make()
    }

    /// Withdraws from an exchange that cannot end any more: nothing more is sent in it. Returns the bytes that this
    /// worker has sent.
    fn withdraw(&mut self, by: WorkerId, view: u64, exchange: u64) -> u64 {
        let _ = (by, view, exchange);
        0
    }

    /// Whether members can be lost. If not, nobody needs to keep what it has put into an exchange.
    fn can_lose_members(&self) -> bool {
        true
    }

    /// A short name for a replica's exact bits.
    fn fingerprint(&mut self, params: &Arc<Vector>) -> u64 {
        fingerprint(params)
    }
}
