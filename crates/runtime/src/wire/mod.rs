//! The edge between workers: everything that one worker sends to another.
//!
//! A message has two halves. Its head is small and serialisable; what is long travels beside it as
//! raw frames ([`Framed`]) and never passes through serde.

mod letter;
mod memory;
mod optimizer;
mod sum;

use std::sync::Arc;
use std::time::Duration;

use paceline_learn::Vector;
use serde::{Deserialize, Serialize};

use crate::codec::{Encoded, Payload};

pub use letter::{Extent, Letter, Mailbox, Message, Published, SharedState, Shelf};
pub use memory::Memory;
pub use optimizer::AnyOptimizerState;
pub use sum::Sum;

/// What precedes every message: sender, view, exchange, part, length, checksum.
pub const HEADER_BYTES: u64 = 48;
/// A [`Tail`] on the wire, without a weight; its flag is a byte, which also says whether a weight follows.
pub const TAIL_BYTES: u64 = 65;
/// A [`Standing`] on the wire.
const STANDING_BYTES: u64 = 17;
/// The weight of a [`Tail`] that has one.
const WEIGHT_BYTES: u64 = 8;

/// Exact numbers that every member adds to an exchange; they are never encoded by a codec.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Tail {
    /// The newest plan that this member has heard of; 0 if none.
    #[serde(default)]
    pub plan: u64,
    pub samples: u64,
    pub loss_sum: f64,
    /// What sums over these samples are divided by, if it is not their number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight: Option<f64>,
    /// How many updates the replica had seen when the gradient was computed.
    pub version: u64,
    /// Time spent computing since the last exchange, without any waiting.
    pub compute: Duration,
    #[serde(rename = "number")]
    pub extra: Extra,
    /// Whether this member asks that the job end after this round.
    pub stop: bool,
    /// The newest snapshot that this member was asked for: all hand in their parts after this round. (A flag in
    /// snapshots of an older format, where it was always false.)
    #[serde(default, deserialize_with = "number_or_flag")]
    pub save: u64,
    /// A hash of everything that the members must agree on; 0 if this member did not compute it this time.
    #[serde(default)]
    pub digest: u64,
}

impl Tail {
    /// Size on the wire. A weight that is the number of samples is not sent.
    pub fn bytes(&self) -> u64 {
        TAIL_BYTES + self.weight.map_or(0, |_| WEIGHT_BYTES)
    }
}

fn number_or_flag<'de, D: serde::Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Save {
        Number(u64),
        Flag(bool),
    }
    Ok(match Save::deserialize(from)? {
        Save::Number(number) => number,
        Save::Flag(flag) => u64::from(flag),
    })
}

/// One more number that some exchanges need from each member.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(from = "f64", into = "f64")]
pub enum Extra {
    #[default]
    None,
    /// How much a member's replica counts in an average.
    Weight(f64),
    /// A number whose mean over the members is asked for, such as the drift of a replica.
    Value(f64),
    /// |g_i|^2 of a member's mean gradient, for AdaScale.
    GradientSquare(f64),
}

impl Extra {
    /// The number, whatever it means; 0 if there is none.
    pub fn number(self) -> f64 {
        match self {
            Extra::None => 0.0,
            Extra::Weight(x) | Extra::Value(x) | Extra::GradientSquare(x) => x,
        }
    }
}

impl From<Extra> for f64 {
    fn from(extra: Extra) -> f64 {
        extra.number()
    }
}

/// Only the number is written: which kind of exchange it belongs to, both sides know.
impl From<f64> for Extra {
    fn from(number: f64) -> Extra {
        Extra::Value(number)
    }
}

/// What a member tells the others when it enters a view.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Standing {
    /// How many exchanges this member has completed: their results are here, used or not.
    pub completed: u64,
    /// A hash of all these results.
    pub digest: u64,
    /// A newcomer has no state to share and adopts that of the others.
    pub newcomer: bool,
}

/// What a member puts into an exchange (a collective operation of all members).
#[derive(Clone, Debug)]
pub enum Entry {
    /// Summed over the members.
    Sum { payload: Arc<Payload>, tail: Tail },
    /// Handed to every member as it is.
    Gather { standing: Standing },
}

/// The shape of an exchange: in each of `count` steps every member sends `bytes`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Steps {
    pub count: u32,
    pub bytes: u64,
}

impl Entry {
    /// How many numbers of it a lossy codec has encoded.
    pub fn numbers_encoded(&self) -> u64 {
        match self {
            Entry::Sum { payload, .. } => payload.numbers_encoded(),
            Entry::Gather { .. } => 0,
        }
    }

    /// A ring: reduce-scatter then all-gather for sums. Chunk j goes to member j, which decodes and adds all parts, and encodes the
    /// sum again: no partial sum travels, so that an encoded chunk has the same size both ways; sparse payloads, with their buffers, and standings are only gathered.
    pub fn steps(&self, members: usize) -> Steps {
        let n = members as u64;
        match self {
            Entry::Sum { payload, tail } => {
                let exact = HEADER_BYTES + tail.bytes();
                match payload.learned {
                    Encoded::Sparse { .. } => {
                        Steps { count: members as u32 - 1, bytes: payload.bytes() + exact }
                    }
                    _ => Steps {
                        count: 2 * (members as u32 - 1),
                        bytes: payload.bytes().div_ceil(n) + exact,
                    },
                }
            }
            Entry::Gather { .. } => {
                Steps { count: members as u32 - 1, bytes: HEADER_BYTES + STANDING_BYTES }
            }
        }
    }
}

/// A message in two halves: the head, which serde writes without anything long, and frames.
pub trait Framed {
    /// The frames, in a fixed order, without a copy.
    fn frames(&self) -> Vec<Frame<'_>>;

    /// Puts received frames where [`frames`](Self::frames) took them from. The peer may be wrong: frames that do not
    /// fit the head are an error, not a panic.
    fn fill(&mut self, frames: Vec<ReceivedFrame>) -> Result<(), FrameError>;
}

/// A long part of a message.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Frame<'a> {
    Floats(&'a [f32]),
    /// What only hosts understand.
    Bytes(&'a [u8]),
}

/// A frame that has arrived.
#[derive(Clone, Debug, PartialEq)]
pub enum ReceivedFrame {
    Floats(Vector),
    Bytes(Vec<u8>),
}

impl From<Frame<'_>> for ReceivedFrame {
    fn from(frame: Frame<'_>) -> ReceivedFrame {
        match frame {
            Frame::Floats(floats) => ReceivedFrame::Floats(floats.into()),
            Frame::Bytes(bytes) => ReceivedFrame::Bytes(bytes.to_vec()),
        }
    }
}

impl ReceivedFrame {
    /// The vectors, if all frames are.
    pub(crate) fn vectors(frames: Vec<ReceivedFrame>) -> Result<Vec<Vector>, FrameError> {
        let expected = frames.len();
        let vectors: Vec<Vector> = frames.into_iter().filter_map(ReceivedFrame::vector).collect();
        let received = vectors.len();
        if received == expected { Ok(vectors) } else { Err(FrameError { expected, received }) }
    }

    fn vector(self) -> Option<Vector> {
        match self {
            ReceivedFrame::Floats(vector) => Some(vector),
            ReceivedFrame::Bytes(_) => None,
        }
    }
}

/// A message whose frames do not fit its head.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "a message should have {expected} frames of the right kind and has {received}: does its sender run the same version?"
)]
pub struct FrameError {
    pub expected: usize,
    pub received: usize,
}
