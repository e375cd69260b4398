//! The journal of a run: one line for everything that happened.
//!
//! Records are written where actions and events pass; strategies only add notes. A journal keeps no lines in
//! memory: it hands each one to its [`Reader`]s.

mod hash;
mod past;
mod tally;

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::ids::WorkerId;
use crate::spans::Spans;

pub use paceline_learn::gradient::weight_of;

pub use hash::{JournalHash, checksum, digest, fingerprint};
pub use past::{Past, PastLoss, PastScore};
pub use tally::{SampleTally, Tally};

/// The version of the record format; readers refuse a version that they do not know.
pub const VERSION: u32 = 1;

/// A line of the journal: when, and what.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Line {
    /// Seconds since the start, virtual or real.
    #[serde(with = "seconds")]
    pub at: Duration,
    #[serde(flatten)]
    pub record: Record,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "record", rename_all = "snake_case")]
pub enum Record {
    /// The first line: which job this is the journal of.
    Began {
        version: u32,
        strategy: String,
        seed: u64,
        samples_total: u64,
        samples_per_epoch: u64,
        /// Model and data as the job names them; empty if they are user-defined.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        model: String,
        #[serde(default, skip_serializing_if = "String::is_empty")]
        data: String,
        params: u64,
        /// The instruction set that gradients were computed with: their last bits depend on it.
        #[serde(default)]
        kernels: String,
        /// Whether the strategy is synchronous: all members apply the same samples.
        together: bool,
        /// Whether samples are applied to a center, whose versions then count.
        central: bool,
    },
    Started {
        who: WorkerId,
    },
    Crashed {
        who: WorkerId,
    },
    Left {
        who: WorkerId,
    },
    /// The coordinator decided a new view.
    View {
        number: u64,
        members: Vec<WorkerId>,
        reason: String,
    },
    /// The coordinator freed the leases of a worker that is gone; samples that this worker reports
    /// as applied from then on do not count.
    Freed {
        who: WorkerId,
        spans: Spans,
    },
    /// A gradient was computed; `at` is its end.
    Computed {
        who: WorkerId,
        #[serde(with = "seconds")]
        since: Duration,
        samples: u64,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        round: Option<u64>,
        /// Which samples these are. Recorded on demand only, and no part of the journal's hash.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        spans: Option<Spans>,
    },
    /// A member entered an exchange of gradients or replicas.
    Entered {
        who: WorkerId,
        view: u64,
        exchange: u64,
        round: u64,
        samples: u64,
        #[serde(with = "seconds")]
        compute: Duration,
    },
    /// An exchange ended for a member that had only been waiting for it since `blocked`.
    Exchanged {
        who: WorkerId,
        view: u64,
        exchange: u64,
        #[serde(with = "seconds")]
        entered: Duration,
        #[serde(with = "seconds")]
        blocked: Duration,
        bytes: u64,
    },
    /// An exchange could not end, because a member was lost; `bytes` had been sent in it.
    Interrupted {
        who: WorkerId,
        view: u64,
        exchange: u64,
        bytes: u64,
    },
    /// A letter or a read, with its size.
    Sent {
        who: WorkerId,
        to: WorkerId,
        bytes: u64,
    },
    /// A worker waited for a peer's answer.
    Waited {
        who: WorkerId,
        whom: WorkerId,
        #[serde(with = "seconds")]
        since: Duration,
    },
    /// Samples became part of `who`'s replica (or of the center, if `version` counts its updates).
    Applied {
        who: WorkerId,
        version: u64,
        spans: Spans,
        #[serde(deserialize_with = "number")]
        loss_sum: f64,
        /// What the loss is divided by, if it is not the number of samples.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        weight: Option<f64>,
        staleness: u64,
        rate: f32,
        /// `None` if a server applied them, and in journals of older versions.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        round: Option<u64>,
        /// Synchronous: which exchange's result this is. There is one line for a result, written by
        /// the first contributor that takes it; if an exchange has results of two views, the later view's counts.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        result: Option<ResultName>,
    },
    /// A round ended. The fingerprint is computed on demand only, and no part of the journal's hash.
    Committed {
        who: WorkerId,
        round: u64,
        #[serde(skip_serializing_if = "Option::is_none", default)]
        fingerprint: Option<u64>,
    },
    /// A round was undone because a member was lost; the work on `samples` is wasted. Only in journals of older
    /// versions: today an exchange is tried again, and nothing is undone.
    RolledBack {
        who: WorkerId,
        round: u64,
        samples: u64,
    },
    /// A worker entered a view, and adopted the state of another one if it was behind.
    Settled {
        who: WorkerId,
        view: u64,
        round: u64,
        adopted: Option<WorkerId>,
    },
    /// All replicas that had learned anything are lost: every sample is learned again.
    StartedOver,
    /// Every replica was lost more often than is allowed: the job ends without a result.
    GaveUp {
        restarts: u32,
    },
    /// These members do not hold what the others hold after this exchange: the job ends without a result.
    Disagreed {
        exchange: u64,
        workers: Vec<WorkerId>,
    },
    /// A worker was told that it counts as lost; it drops everything.
    PutOut {
        who: WorkerId,
    },
    /// The coordinator was started again, from its log.
    Restarted,
    /// A new server took the newest surviving copy of the center.
    Restored {
        who: WorkerId,
        version: u64,
        #[serde(default)]
        reign: u64,
    },
    /// A number that the strategy reports.
    Note {
        who: WorkerId,
        name: String,
        #[serde(deserialize_with = "number")]
        value: f64,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        round: Option<u64>,
    },
    /// An evaluation of the mean replica or the center on the test set, outside the run's time.
    Scored {
        samples: u64,
        #[serde(deserialize_with = "number")]
        loss: f64,
        #[serde(deserialize_with = "number")]
        accuracy: f64,
    },
    /// An evaluation of the model that would be deployed (the center, the common replica, or the mean of the replicas) on the
    /// validation part, outside the run's time. No part of the journal's hash: runs with and without a target are equal.
    Validated {
        samples: u64,
        #[serde(deserialize_with = "number")]
        loss: f64,
        #[serde(deserialize_with = "number")]
        accuracy: f64,
    },
    /// Replicas of other members were read, so that their mean is evaluated: their bytes. No part of the journal's hash, either.
    Fetched {
        samples: u64,
        bytes: u64,
    },
    /// A worker has compared its clock with the coordinator's: its times are wrong by `error` at most. Only where clocks are measured,
    /// when that changes much. No part of the journal's hash, either.
    ClockSet {
        who: WorkerId,
        #[serde(with = "seconds")]
        error: Duration,
    },
    /// Every member has told the coordinator that it has finished.
    Over,
    /// A worker was told that the job is over; its replica's fingerprint.
    Finished {
        who: WorkerId,
        rounds: u64,
        fingerprint: u64,
    },
    /// The job resumes from a checkpoint after `round` rounds, on average; `spans` are applied already.
    Resumed {
        round: u64,
        /// How many updates the center has seen; 0 if there is none.
        version: u64,
        spans: Spans,
        /// The training loss at the beginning of the job and at the checkpoint.
        loss_first: Option<f64>,
        loss_last: Option<f64>,
        /// The job's samples from here on, if a run resumes that was started again.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        samples_total: Option<u64>,
        /// The history up to the checkpoint, if a run resumes that was started again. Whatever the journal says about
        /// samples before this line is replaced by it: what was done after the checkpoint is done again.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        past: Option<Box<Past>>,
    },
    /// From here on only one in `keeping_one_in` records of the frequent kinds is kept.
    Thinned {
        keeping_one_in: u64,
    },
}

/// Names the result of an exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ResultName {
    pub exchange: u64,
    /// The view whose members contributed.
    pub view: u64,
}

/// Durations as seconds: exact to the nanosecond for a hundred days.
mod seconds {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serializer};

    pub fn serialize<S: Serializer>(time: &Duration, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_f64(time.as_secs_f64())
    }

    /// No run takes centuries, and sums of shorter times do not overflow.
    const MAX: f64 = 1e10;

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
        let seconds = f64::deserialize(from)?;
        if seconds > MAX {
            return Err(serde::de::Error::custom(format!("{seconds} seconds are too many")));
        }
        Duration::try_from_secs_f64(seconds).map_err(serde::de::Error::custom)
    }
}

/// Reads a number that may be `null`: JSON has no NaN, and a run that diverged has such numbers.
pub fn number<'de, D: serde::Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
    Ok(Option::deserialize(from)?.unwrap_or(f64::NAN))
}

/// Something that reads a journal, live or recorded.
pub trait Reader {
    fn read(&mut self, line: &Line);
}

/// Hands each line to every reader, and keeps the hash of all lines.
#[derive(Default)]
pub struct Journal<'a> {
    pub readers: Vec<&'a mut dyn Reader>,
    hash: JournalHash,
}

impl<'a> Journal<'a> {
    pub fn new(readers: Vec<&'a mut dyn Reader>) -> Journal<'a> {
        Journal { readers, hash: JournalHash::default() }
    }

    pub fn write(&mut self, line: &Line) {
        self.hash.add(line);
        self.readers.iter_mut().for_each(|reader| reader.read(line));
    }

    /// Equal for equal runs.
    pub fn hash(&self) -> u64 {
        self.hash.value()
    }
}

impl Record {
    /// The worker that a line is about; `None` for lines of the coordinator and of the whole run.
    pub fn worker(&self) -> Option<WorkerId> {
        match self {
            Record::Started { who }
            | Record::Crashed { who }
            | Record::Left { who }
            | Record::Freed { who, .. }
            | Record::Computed { who, .. }
            | Record::Entered { who, .. }
            | Record::Exchanged { who, .. }
            | Record::Interrupted { who, .. }
            | Record::Sent { who, .. }
            | Record::Waited { who, .. }
            | Record::Applied { who, .. }
            | Record::Committed { who, .. }
            | Record::RolledBack { who, .. }
            | Record::Settled { who, .. }
            | Record::Restored { who, .. }
            | Record::PutOut { who }
            | Record::Note { who, .. }
            | Record::ClockSet { who, .. }
            | Record::Finished { who, .. } => Some(*who),
            Record::Began { .. }
            | Record::View { .. }
            | Record::StartedOver
            | Record::GaveUp { .. }
            | Record::Disagreed { .. }
            | Record::Restarted
            | Record::Scored { .. }
            | Record::Validated { .. }
            | Record::Fetched { .. }
            | Record::Over
            | Record::Resumed { .. }
            | Record::Thinned { .. } => None,
        }
    }

    /// The round in which a worker wrote the line, as far as the line says: the number of rounds that the
    /// worker had completed by then.
    pub fn round(&self) -> Option<u64> {
        match self {
            Record::Computed { round, .. }
            | Record::Applied { round, .. }
            | Record::Note { round, .. } => *round,
            Record::Entered { round, .. }
            | Record::Committed { round, .. }
            | Record::RolledBack { round, .. }
            | Record::Settled { round, .. }
            | Record::Finished { rounds: round, .. } => Some(*round),
            _ => None,
        }
    }
}
