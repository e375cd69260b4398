//! What the coordinator is told, and what it answers: plain, serialisable data without vectors.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::ids::WorkerId;
use crate::journal::Record;
use crate::spans::Spans;
use crate::view::View;

/// How the members of a strategy coordinate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Coordination {
    /// All members exchange with each other: an exchange is a transaction, tried again when a member is lost.
    Synchronous,
    /// No worker waits for all others.
    Asynchronous,
    /// As `Asynchronous`, around a center at the view's first member. `applies_samples`: samples are applied to
    /// the center, not to the workers' replicas.
    Centered { applies_samples: bool },
}

/// Everything that the coordinator can be told.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Input {
    /// A worker wants to take part; [`Output::admitted`] is its id.
    Hello,
    /// The job has this many samples: the first worker that joins knows, and a coordinator without the data does not.
    Sized { samples_total: u64 },
    /// A worker is alive.
    Beat(WorkerId),
    /// The connection to a worker broke for good.
    Lost(WorkerId),
    /// Time has passed.
    Tick,
    /// A worker says something. Words of a worker are numbered from 1, so that one that is sent again after a
    /// broken connection counts once; 0: the cluster never repeats a word.
    Word { from: WorkerId, number: u64, word: Word },
    /// The user asks that the job end.
    Stop,
    /// The user wants this worker to count as lost; it may join again.
    PutOut(WorkerId),
    /// The user wants this worker out, for good.
    Ban(WorkerId),
    /// The user asks for a snapshot.
    Save,
    /// A snapshot is whole and stored.
    Saved(Saved),
}

/// A stored snapshot, as far as the coordinator knows it: the job begins anew from the newest one when every replica is
/// lost.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Saved {
    /// Rounds per member, on average.
    pub round: u64,
    /// How many updates the center has seen; 0 if there is none.
    pub version: u64,
    pub done: Spans,
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
    /// The center is back, in the state in which exactly these samples had been applied. `reign`: the number of
    /// the view that made this worker the server.
    Restored { reign: u64, done: Spans },
    /// It holds what all members of this view agree on (or, asynchronous, has adopted a replica), after
    /// `exchange` completed exchanges.
    Settled { view: u64, exchange: u64 },
    /// Messages to and from this member do not pass.
    Suspect { peer: WorkerId, view: u64 },
    /// Members that should agree after this exchange do not.
    Disagreed { exchange: u64, workers: Vec<WorkerId> },
    /// It has handed in its part of a snapshot. `done`: the samples in all replicas, if all members know them.
    HandedIn { snapshot: u64, digest: u64, done: Option<Spans> },
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
    /// The members begin here, from the same state: the initial one, or the snapshot that the job was resumed with; or,
    /// with `from_saved`, the newest stored snapshot, which the cluster delivers before this order
    /// ([`News::Snapshot`](crate::edge::News::Snapshot)).
    Start { view: Arc<View>, from_saved: bool },
    /// A view that is in force at once: after a loss, or of asynchronous workers. `lost` are the workers that are
    /// gone since the last view and did not say goodbye. Every member receives every view, in order.
    View { view: Arc<View>, lost: Arc<Vec<WorkerId>> },
    /// Synchronous workers: a view that joins or leaves make. Its members board it at a boundary between
    /// rounds, all at the same one.
    Plan { view: Arc<View> },
    /// All members of the planned view have boarded it: it is in force, and workers that are not in it may go.
    Go { view: u64 },
    /// An asynchronous worker that said goodbye owes nothing any more.
    Released,
    /// The coordinator counts this worker as lost. It must drop everything, and may join anew unless it is banned.
    PutOut { why: String, banned: bool },
    /// The restored center does not hold these samples, which were leased to this worker.
    Missing { reign: u64, spans: Spans },
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
    /// What a restarted coordinator must still know. Empty unless [`Rules::keeps_log`](super::Rules::keeps_log).
    pub log: Vec<Entry>,
    pub orders: Vec<Addressed>,
    /// Lines for the journal.
    pub records: Vec<Record>,
    /// A snapshot of which all members have handed in their parts.
    pub snapshot: Option<Collected>,
    /// The id of the worker that said hello.
    pub admitted: Option<WorkerId>,
    /// The coordinator wants an [`Input::Tick`] at this time.
    pub wake: Option<Duration>,
    /// The words of this worker are logged up to this number: it need not send them again.
    pub acknowledged: Option<(WorkerId, u64)>,
}

/// An order and its receiver. Orders to one worker are numbered from 1 if the coordinator keeps a log, so that one
/// that is sent again counts once; 0: it is sent once.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Addressed {
    pub to: WorkerId,
    pub number: u64,
    pub order: Order,
}

/// An input that changes what the coordinator must remember. Replaying all entries gives the same state:
/// heartbeats, ticks and times appear nowhere.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Entry {
    /// The coordinator started, for the first time or again.
    Started,
    /// The job has this many samples. Comes before the first worker, if at all.
    Sized {
        samples_total: u64,
    },
    /// A worker joined and was given the next id.
    Joined,
    /// Workers that wait to join or to leave are taken together into a plan.
    Planned,
    Lost {
        workers: Vec<WorkerId>,
        why: Why,
    },
    Word {
        from: WorkerId,
        number: u64,
        word: Word,
    },
    Stopped,
    SaveWished,
    Saved(Saved),
}

/// Why the coordinator counts workers as lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Why {
    /// Their connection broke.
    Disconnected,
    /// They sent no heartbeat for longer than the patience.
    Silent,
    /// Peers could not reach them.
    Suspected,
    /// The user does not want them.
    Banned,
    /// The user wants them to begin anew.
    Unwanted,
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Why::Disconnected => "lost",
            Why::Silent => "silent for too long",
            Why::Suspected => "out of reach of other members",
            Why::Banned => "banned",
            Why::Unwanted => "put out by the user",
        })
    }
}

/// A snapshot whose parts are all there.
#[derive(Clone, Debug, PartialEq)]
pub struct Collected {
    pub number: u64,
    pub members: Vec<WorkerId>,
    /// The samples in the replicas; where samples are applied to a center, the center knows better.
    pub done: Spans,
}
