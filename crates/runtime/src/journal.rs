//! The account of a run: one line per thing that happened, read by everyone who wants to know.
//!
//! Records are written where actions and events pass, not by strategies. A journal never grows
//! without bound: it hands each record to its [`Reader`]s and forgets it.

use std::hash::{Hash, Hasher};
use std::time::Duration;

use paceline_learn::mix;
use serde::{Deserialize, Serialize};

use crate::cluster::WorkerId;
use crate::spans::Spans;

/// The version of the record format; readers refuse what they do not know.
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
    /// The first line: what this is the journal of.
    Began {
        version: u32,
        strategy: String,
        seed: u64,
        samples_total: u64,
        samples_per_epoch: u64,
        /// What was learned from what, as the job names them; empty if they have no names.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        model: String,
        #[serde(default, skip_serializing_if = "String::is_empty")]
        data: String,
        params: u64,
        /// Which instructions gradients were computed with: their last bits depend on it.
        #[serde(default)]
        kernels: String,
        /// Whether all members exchange together; tells checkers how samples are accounted for.
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
    /// The coordinator took back what a worker that is gone had leased; what that worker says it
    /// applied of it does not count.
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
    /// An exchange ended for a member that had been doing nothing but wait for it since `blocked`.
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
        staleness: u64,
        rate: f32,
    },
    /// A round ended. The fingerprint is left out of the journal's hash, for it is only computed on demand.
    Committed {
        who: WorkerId,
        round: u64,
        #[serde(skip_serializing_if = "Option::is_none", default)]
        fingerprint: Option<u64>,
    },
    /// A round was undone because a member was lost; `samples` had been computed in vain.
    RolledBack {
        who: WorkerId,
        round: u64,
        samples: u64,
    },
    /// A worker entered a view, and adopted the shared of another if it was behind.
    Settled {
        who: WorkerId,
        view: u64,
        round: u64,
        adopted: Option<WorkerId>,
    },
    /// All who had learned anything are gone: what was applied is lost with them, and is learned again.
    StartedOver,
    /// A new server took the newest surviving copy of the center.
    Restored {
        who: WorkerId,
        version: u64,
    },
    /// A strategy's own number.
    Note {
        who: WorkerId,
        name: String,
        #[serde(deserialize_with = "number")]
        value: f64,
    },
    /// An evaluation on the mean replica or the center, outside the run's time.
    Scored {
        samples: u64,
        #[serde(deserialize_with = "number")]
        loss: f64,
        #[serde(deserialize_with = "number")]
        accuracy: f64,
    },
    /// The coordinator heard from every member that it has finished.
    Over,
    /// A worker heard that the job is over; its replica's fingerprint.
    Finished {
        who: WorkerId,
        rounds: u64,
        fingerprint: u64,
    },
    /// The job goes on from a checkpoint after so many rounds, on average: these samples are applied already.
    Resumed {
        round: u64,
        /// How many updates the center has seen; 0 if there is none.
        version: u64,
        spans: Spans,
        /// The training loss at the job's beginning, and at the checkpoint.
        loss_first: Option<f64>,
        loss_last: Option<f64>,
    },
    /// Records of the frequent kinds were left out from here on, all but one in so many.
    Thinned {
        keeping_one_in: u64,
    },
}

/// Durations as seconds: exact to the nanosecond for a hundred days.
mod seconds {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serializer};

    pub fn serialize<S: Serializer>(time: &Duration, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_f64(time.as_secs_f64())
    }

    /// No run takes centuries; and of shorter times any number can be added up.
    const MAX: f64 = 1e10;

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
        let seconds = f64::deserialize(from)?;
        if seconds > MAX {
            return Err(serde::de::Error::custom(format!("{seconds} seconds are too many")));
        }
        Duration::try_from_secs_f64(seconds).map_err(serde::de::Error::custom)
    }
}

/// JSON knows no NaN and writes null; a run that diverged has such numbers.
pub fn number<'de, D: serde::Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
    Ok(Option::deserialize(from)?.unwrap_or(f64::NAN))
}

/// Something that reads a journal, live or recorded.
pub trait Reader {
    fn read(&mut self, line: &Line);
}

/// Hands each line to every reader, and keeps the hash of all.
#[derive(Default)]
pub struct Journal<'a> {
    pub readers: Vec<&'a mut dyn Reader>,
    hash: RecordHasher,
}

impl<'a> Journal<'a> {
    pub fn new(readers: Vec<&'a mut dyn Reader>) -> Journal<'a> {
        Journal { readers, hash: RecordHasher::default() }
    }

    pub fn write(&mut self, line: &Line) {
        line.at.hash(&mut self.hash);
        line.record.hash(&mut self.hash);
        self.readers.iter_mut().for_each(|reader| reader.read(line));
    }

    /// Equal for equal runs. Covers times, samples and results, but no tickets or serial numbers.
    pub fn hash(&self) -> u64 {
        self.hash.finish()
    }
}

impl Record {
    /// The kind as a number, for hashes: a new kind gets a new number, wherever it stands in the enum.
    fn tag(&self) -> u8 {
        match self {
            Record::Began { .. } => 0,
            Record::Started { .. } => 1,
            Record::Crashed { .. } => 2,
            Record::Left { .. } => 3,
            Record::View { .. } => 4,
            Record::Freed { .. } => 5,
            Record::Computed { .. } => 6,
            Record::Entered { .. } => 7,
            Record::Exchanged { .. } => 8,
            Record::Sent { .. } => 9,
            Record::Waited { .. } => 10,
            Record::Applied { .. } => 11,
            Record::Committed { .. } => 12,
            Record::RolledBack { .. } => 13,
            Record::Settled { .. } => 14,
            Record::StartedOver => 15,
            Record::Restored { .. } => 16,
            Record::Note { .. } => 17,
            Record::Scored { .. } => 18,
            Record::Over => 19,
            Record::Finished { .. } => 20,
            Record::Thinned { .. } => 21,
            Record::Resumed { .. } => 22,
        }
    }
}

impl Hash for Record {
    fn hash<H: Hasher>(&self, h: &mut H) {
        self.tag().hash(h);
        match self {
            Record::Began { version, seed, samples_total, .. } => {
                (version, seed, samples_total).hash(h);
            }
            Record::Started { who } | Record::Crashed { who } | Record::Left { who } => who.hash(h),
            Record::View { number, members, .. } => (number, members).hash(h),
            Record::Freed { who, spans } => (who, spans).hash(h),
            Record::Computed { who, since, samples } => (who, since, samples).hash(h),
            Record::Entered { who, view, exchange, round, samples, compute } => {
                (who, view, exchange, round, samples, compute).hash(h);
            }
            Record::Exchanged { who, view, exchange, entered, blocked, bytes } => {
                (who, view, exchange, entered, blocked, bytes).hash(h);
            }
            Record::Sent { who, to, bytes } => (who, to, bytes).hash(h),
            Record::Waited { who, whom, since } => (who, whom, since).hash(h),
            Record::Applied { who, version, spans, loss_sum, staleness, rate } => {
                (who, version, spans, loss_sum.to_bits(), staleness, rate.to_bits()).hash(h);
            }
            Record::Committed { who, round, .. } => (who, round).hash(h),
            Record::RolledBack { who, round, samples } => (who, round, samples).hash(h),
            Record::Settled { who, view, round, adopted } => (who, view, round, adopted).hash(h),
            Record::Restored { who, version } => (who, version).hash(h),
            Record::Note { who, name, value } => (who, name, value.to_bits()).hash(h),
            Record::Scored { samples, loss, accuracy } => {
                (samples, loss.to_bits(), accuracy.to_bits()).hash(h);
            }
            Record::Finished { who, rounds, fingerprint } => (who, rounds, fingerprint).hash(h),
            Record::Over | Record::StartedOver => {}
            Record::Thinned { keeping_one_in } => keeping_one_in.hash(h),
            Record::Resumed { round, version, spans, loss_first, loss_last } => {
                let bits = |loss: &Option<f64>| loss.map(f64::to_bits);
                (round, version, spans, bits(loss_first), bits(loss_last)).hash(h);
            }
        }
    }
}

/// A hasher whose result is the same on every machine and in every build.
#[derive(Default)]
pub struct RecordHasher(u64);

impl Hasher for RecordHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.write_u64(u64::from_le_bytes(word));
        }
    }

    fn write_u64(&mut self, word: u64) {
        self.0 = mix(self.0 ^ word);
    }

    fn write_u32(&mut self, word: u32) {
        self.write_u64(u64::from(word));
    }

    fn write_u8(&mut self, word: u8) {
        self.write_u64(u64::from(word));
    }

    fn write_usize(&mut self, word: usize) {
        self.write_u64(word as u64);
    }

    fn write_isize(&mut self, word: isize) {
        self.write_u64(word as u64);
    }
}

/// A short name for a replica's exact bits.
pub fn fingerprint(params: &[f32]) -> u64 {
    params.iter().fold(params.len() as u64, |hash, x| mix(hash ^ u64::from(x.to_bits())))
}
