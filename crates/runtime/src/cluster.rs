//! The edge between tasks and whatever runs them: a simulator, threads, or machines.
//!
//! Only plain data crosses it: tasks hand [`Action`]s in and get [`Event`]s back.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use paceline_learn::{Batch, Gradient, OptimizerState, Scratch, Vector};
use serde::{Deserialize, Serialize};

use crate::codec::Payload;
use crate::journal::{Line, Record};
use crate::snapshot::WorkerSnapshot;
use crate::spans::Spans;

/// One worker, for all time: an id is never used again.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct WorkerId(pub u32);

impl fmt::Display for WorkerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Who is in, as agreed by everyone in it; replaced whole, never edited.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct View {
    pub number: u64,
    /// In rank order, which is the order of ids.
    pub members: Vec<WorkerId>,
}

impl View {
    pub fn rank(&self, worker: WorkerId) -> Option<usize> {
        self.members.binary_search(&worker).ok()
    }

    pub fn has(&self, worker: WorkerId) -> bool {
        self.rank(worker).is_some()
    }

    /// The member that hosts the center, for strategies that have one.
    pub fn first(&self) -> WorkerId {
        *self.members.first().expect("a view has members")
    }
}

/// Names one request, so that its answer finds the way back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ticket(pub u64);

/// What every member adds to an exchange in exact numbers, never encoded.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Tail {
    /// The newest view this member has heard of.
    pub view: u64,
    pub samples: u64,
    pub loss_sum: f64,
    /// How many updates the replica had seen when the gradient was computed.
    pub version: u64,
    /// Time spent computing since the last exchange, without any waiting.
    pub compute: Duration,
    /// One number of the exchange's own: a weight, a drift, the square of a gradient.
    pub number: f64,
    /// Whether this member wishes the job to end after this round.
    pub stop: bool,
    /// Whether this member wishes all to hand in their portions of a snapshot after this round.
    pub save: bool,
}

/// What an exchange gave, the same for every member.
#[derive(Debug, Default)]
pub struct Sum {
    pub gradient: Gradient,
    /// In rank order.
    pub tails: Vec<Tail>,
    /// The newest view that any member had heard of.
    pub newest_view: u64,
    /// The oldest replica that a part was computed at.
    pub version: u64,
    /// Whether any member wishes the job to end.
    pub stop: bool,
    /// Whether any member wishes for a snapshot.
    pub save: bool,
    /// The sum divided by the weights, computed by whoever asks first.
    pub mean: OnceLock<Arc<Vector>>,
}

impl Sum {
    pub fn new(vector: Vector, tails: Vec<Tail>) -> Sum {
        let loss_sum = tails.iter().map(|tail| tail.loss_sum).sum();
        let samples = tails.iter().map(|tail| tail.samples).sum();
        Sum {
            gradient: Gradient { sum: vector, loss_sum, samples },
            newest_view: tails.iter().map(|tail| tail.view).max().unwrap_or(0),
            version: tails.iter().map(|tail| tail.version).min().unwrap_or(0),
            stop: tails.iter().any(|tail| tail.stop),
            save: tails.iter().any(|tail| tail.save),
            tails,
            mean: OnceLock::new(),
        }
    }
}

/// What a member tells the others when it enters a view.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Standing {
    pub round: u64,
    /// A newcomer has nothing to give and adopts whatever there is.
    pub newcomer: bool,
    /// The newest view this member has heard of.
    pub heard: u64,
}

/// Everything a newcomer adopts: what all members agree on, between rounds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SharedState {
    pub round: u64,
    pub version: u64,
    pub params: Arc<Vector>,
    pub optimizer: Arc<OptimizerState>,
    /// The strategy and what the runtime remembers with it, as JSON.
    pub memory: Vec<u8>,
}

/// A value that peers may read without asking anybody.
#[derive(Clone, Debug, PartialEq)]
pub struct Published {
    pub params: Arc<Vector>,
    pub optimizer: Arc<OptimizerState>,
    /// How many updates the center had seen; only meaningful for strategies with a center.
    pub version: u64,
    pub done: Arc<Spans>,
}

/// Which of a worker's published values is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Shelf {
    /// A worker's replica.
    Replica,
    /// The center as a worker saw it last.
    Copy,
    /// The center, on the shelf of the member that hosts it.
    Center,
}

/// A one-way message outside any exchange.
#[derive(Clone, Debug, PartialEq)]
pub enum Letter {
    /// To a new member of the view, from one that is further on.
    SharedState { view: u64, shared: Arc<SharedState> },
    /// To a worker: a replica, or the center.
    Params { params: Arc<Vector>, version: u64, done: Arc<Spans> },
    /// To the server: a gradient, and which samples are in it.
    Push { payload: Payload, tail: Tail, spans: Spans },
    /// To the server: a replica to be drawn towards the center.
    Replica { params: Arc<Vector> },
    /// To the server: I shall ask for no more samples.
    Idle,
    /// To the next server, from one that leaves.
    Handover { center: Published },
}

impl Letter {
    pub fn is_for_server(&self) -> bool {
        matches!(
            self,
            Letter::Push { .. } | Letter::Replica { .. } | Letter::Idle | Letter::Handover { .. }
        )
    }

    /// Size on the wire, header included.
    pub fn bytes(&self) -> u64 {
        let spans = |spans: &Spans| 16 * spans.intervals().len() as u64;
        let slots = |state: &OptimizerState| {
            state.slots.iter().map(|slot| 4 * slot.len() as u64).sum::<u64>()
        };
        HEADER_BYTES
            + match self {
                Letter::SharedState { shared, .. } => {
                    4 * shared.params.len() as u64
                        + slots(&shared.optimizer)
                        + shared.memory.len() as u64
                }
                Letter::Params { params, done, .. } => 4 * params.len() as u64 + spans(done),
                Letter::Push { payload, spans: of, .. } => payload.bytes() + TAIL_BYTES + spans(of),
                Letter::Replica { params } => 4 * params.len() as u64,
                Letter::Idle => 0,
                Letter::Handover { center } => {
                    4 * center.params.len() as u64 + slots(&center.optimizer) + spans(&center.done)
                }
            }
    }
}

/// What precedes every message: sender, view, exchange, part, length, checksum.
pub const HEADER_BYTES: u64 = 48;
/// A [`Tail`] on the wire; its two wishes share a byte.
pub const TAIL_BYTES: u64 = 49;

/// What members put into an exchange.
#[derive(Clone, Debug)]
pub enum Entry {
    /// Summed over the members.
    Sum { payload: Payload, tail: Tail },
    /// Handed to every member as it is.
    Gather { standing: Standing },
}

/// How an exchange goes around: so many steps, in each of which every member sends so many bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Steps {
    pub count: u32,
    pub bytes: u64,
}

impl Entry {
    /// A ring: reduce-scatter then all-gather for sums; sparse payloads and standings are only gathered.
    pub fn steps(&self, members: usize) -> Steps {
        let n = members as u64;
        match self {
            Entry::Sum { payload: payload @ Payload::Sparse { .. }, .. } => Steps {
                count: members as u32 - 1,
                bytes: payload.bytes() + HEADER_BYTES + TAIL_BYTES,
            },
            Entry::Sum { payload, .. } => Steps {
                count: 2 * (members as u32 - 1),
                bytes: payload.bytes().div_ceil(n) + HEADER_BYTES + TAIL_BYTES,
            },
            Entry::Gather { .. } => Steps { count: members as u32 - 1, bytes: HEADER_BYTES + 17 },
        }
    }
}

/// What an exchange hands back to each member.
#[derive(Clone, Debug)]
pub enum ExchangeResult {
    Summed(Arc<Sum>),
    Gathered(Arc<Vec<Standing>>),
}

/// What a task may ask of the cluster.
#[derive(Debug)]
pub enum Action {
    /// A gradient; the cluster was given the function when it was made. `updates` is how many
    /// times the replica was updated since the last one, for clusters that charge for it.
    Compute {
        ticket: Ticket,
        params: Arc<Vector>,
        spans: Spans,
        updates: u32,
    },
    /// Takes part in an exchange of the view's members, which is their `number`-th in this view.
    Exchange {
        ticket: Ticket,
        view: Arc<View>,
        number: u64,
        entry: Entry,
    },
    Send {
        to: WorkerId,
        letter: Letter,
    },
    /// Puts a value where peers can read it; costs nothing.
    Publish {
        shelf: Shelf,
        value: Published,
    },
    /// Reads a peer's last published value; the peer sleeps on.
    Read {
        ticket: Ticket,
        from: WorkerId,
        shelf: Shelf,
    },
    /// This worker's portion of a snapshot; costs nothing. Clusters that write no checkpoints drop it.
    Save(Box<WorkerSnapshot>),
    /// A word to the coordinator.
    Tell(Word),
}

/// What a worker tells the coordinator.
#[derive(Clone, Debug, PartialEq)]
pub enum Word {
    /// Asks for samples of its own.
    Lease { ticket: Ticket, samples: u64 },
    /// These have been applied.
    Done { spans: Spans },
    /// These were leased to `holder` and will not be used.
    Return { holder: WorkerId, spans: Spans },
    /// The center is back, as it was when just these had been applied.
    Restored { done: Spans },
    /// I have nothing left to do.
    Finished,
    /// I wish to leave.
    Bye,
    /// I have left, and owe nobody anything.
    Gone,
    /// The user wishes the job to end.
    Stop,
    /// The user wishes for a snapshot.
    Save,
}

/// The coordinator's answer to a lease.
#[derive(Clone, Debug, PartialEq)]
pub enum Lease {
    /// Yours; `count` samples of the job have been applied so far.
    Yours { spans: Spans, count: u64 },
    /// Every sample has been applied.
    Over,
}

/// What the cluster may tell.
#[derive(Debug)]
pub enum Event {
    /// A worker's life begins; the host starts its task.
    Started {
        who: WorkerId,
    },
    Computed {
        to: WorkerId,
        ticket: Ticket,
        gradient: Gradient,
    },
    Exchanged {
        to: WorkerId,
        ticket: Ticket,
        outcome: ExchangeResult,
    },
    Arrived {
        to: WorkerId,
        from: WorkerId,
        letter: Letter,
    },
    /// `None`: the peer is gone, or has never published.
    Value {
        to: WorkerId,
        ticket: Ticket,
        value: Option<Published>,
    },
    Leased {
        to: WorkerId,
        ticket: Ticket,
        lease: Lease,
    },
    /// `lost` are those who are gone since the last view and did not say goodbye. Every member hears
    /// of every view, in order.
    ViewChanged {
        to: WorkerId,
        view: Arc<View>,
        lost: Arc<Vec<WorkerId>>,
    },
    /// Somebody asked that the job end after this round.
    StopWished {
        to: WorkerId,
    },
    /// Somebody asked for a snapshot of this number.
    SaveWished {
        to: WorkerId,
        number: u64,
    },
    /// This worker was asked to leave, and may do so in good order.
    LeaveWished {
        to: WorkerId,
    },
    /// A record of the coordinator's own.
    Recorded {
        record: Record,
    },
    Crashed {
        who: WorkerId,
    },
    /// This worker thought it had finished, but there is more to do.
    Again {
        to: WorkerId,
    },
    Over {
        to: WorkerId,
    },
}

/// Everything that is published, by whom and where.
pub type Shelves = BTreeMap<(WorkerId, Shelf), Published>;

/// What a compute thread owns and uses again for every gradient.
#[derive(Default)]
pub struct Workspace {
    pub scratch: Scratch,
    pub batch: Batch,
}

/// Computes the gradient at some replica over the samples at some positions.
pub type Compute = Arc<dyn Fn(&Arc<Vector>, &Spans, &mut Workspace) -> Gradient + Send + Sync>;

/// What runs workers: simulated or real.
pub trait Cluster {
    fn now(&self) -> Duration;
    fn submit(&mut self, by: WorkerId, action: Action);
    /// Waits for the next event, in virtual time or in real; `None` once nothing can happen any more.
    fn next(&mut self) -> Option<Event>;
    /// Whether the coordinator has declared the job over.
    fn is_over(&self) -> bool;
    /// Takes a line of the journal on its way, if lines of several executors must keep their order;
    /// else gives it back.
    fn pass(&mut self, line: Line) -> Option<Line> {
        Some(line)
    }
}
