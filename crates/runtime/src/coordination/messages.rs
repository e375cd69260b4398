//! What the coordinator is told, and what it answers: plain, serialisable data without vectors.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::ids::WorkerId;
use crate::journal::Record;
use crate::spans::Spans;
use crate::view::View;

/// Everything that the coordinator can be told.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Input {
    /// A worker wants to take part.
    Hello(WorkerId),
    /// A worker is alive.
    Beat(WorkerId),
    /// The connection to a worker broke.
    Lost(WorkerId),
    /// Time has passed.
    Tick,
    /// A worker says something.
    Word { from: WorkerId, word: Word },
    /// The user asks that the job end.
    Stop,
    /// The user asks for a snapshot.
    Save,
}

/// What a worker tells the coordinator.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Word {
    /// It asks for samples. The answer carries the number of the request.
    Lease { request: u64, samples: u64 },
    /// These samples have been applied.
    Done { spans: Spans },
    /// These were leased to `holder` and will not be used.
    Return { holder: WorkerId, spans: Spans },
    /// The center is back, in the state in which exactly these samples had been applied.
    Restored { done: Spans },
    /// It has handed in its part of a snapshot. `done`: the samples in all replicas, if all members know them.
    HandedIn { snapshot: u64, done: Option<Spans> },
    /// It has nothing left to do.
    Finished,
    /// It wants to leave.
    Bye,
    /// It has left and owes nothing to any peer.
    Gone,
}

/// What the coordinator tells a worker.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Order {
    /// The view to enter next. `lost` are the workers that are gone since the last view and did not say
    /// goodbye. Every member receives every view, in order.
    View { view: Arc<View>, lost: Arc<Vec<WorkerId>> },
    /// The answer to [`Word::Lease`].
    Lease { request: u64, lease: Lease },
    /// End the job after this round.
    Stop,
    /// Hand in a part of a snapshot: the `number`-th that was asked for.
    Save { number: u64 },
    /// Leave in good order. Today only the host of a worker gives this order, on behalf of the user.
    Leave,
    /// There is more to do, although this worker said that it had finished.
    MoreWork,
    /// The job is over.
    Over,
}

/// Samples for a worker.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Lease {
    /// `count` samples of the job have been applied so far.
    Yours { spans: Spans, count: u64 },
    /// Every sample has been applied.
    Over,
}

/// What came of one [`Input`]. The log must be on stable storage before any order is sent, as in etcd's raft
/// (`Ready`); lines for the journal may be written at any time.
#[derive(Clone, Debug, Default, PartialEq)]
#[must_use]
pub struct Output {
    /// Decisions that a restarted coordinator must still know.
    pub log: Vec<Decision>,
    pub orders: Vec<(WorkerId, Order)>,
    /// Lines for the journal.
    pub records: Vec<Record>,
    /// A snapshot of which all members have handed in their parts.
    pub snapshot: Option<Collected>,
}

/// A decision that workers may have acted upon, so that it must outlive the coordinator's process. Heartbeats
/// and ticks are volatile and appear nowhere. Nothing replays decisions yet.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Decision {
    View {
        view: Arc<View>,
        lost: Arc<Vec<WorkerId>>,
    },
    Leased {
        to: WorkerId,
        spans: Spans,
    },
    Done {
        by: WorkerId,
        spans: Spans,
    },
    Returned {
        holder: WorkerId,
        spans: Spans,
    },
    Freed {
        who: WorkerId,
    },
    /// Exactly these samples count as applied.
    Restored {
        done: Spans,
    },
    SaveWished {
        number: u64,
    },
    Stopped,
    Over,
}

/// A snapshot whose parts are all there.
#[derive(Clone, Debug, PartialEq)]
pub struct Collected {
    pub number: u64,
    pub members: Vec<WorkerId>,
    /// The samples in the replicas; where samples are applied to a center, the center knows better.
    pub done: Spans,
}
