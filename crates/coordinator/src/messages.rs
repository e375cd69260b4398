//! What crosses the network between the coordinator and a worker process: JSON in gRPC frames, and raw bytes of stored
//! files. Every length is bounded before memory is taken.

use std::time::Duration;

use bytes::{Buf, BufMut, Bytes};
use paceline_identity::{Certificate, JobName, Request, bytes as hexadecimal};
use paceline_runtime::coordination::{Order, Word};
use paceline_runtime::{Line, WorkerId};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tonic::Status;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};

/// Longer messages are refused unread.
pub const MESSAGE_MAX: usize = 16 << 20;

/// Files are sent in chunks of this size.
pub const CHUNK: usize = 256 << 10;

pub(crate) const LOOK: &str = "/paceline.Coordinator/Look";
pub(crate) const JOIN: &str = "/paceline.Coordinator/Join";
pub(crate) const SESSION: &str = "/paceline.Coordinator/Session";
pub(crate) const STORE: &str = "/paceline.Coordinator/Store";
pub(crate) const FETCH: &str = "/paceline.Coordinator/Fetch";

/// Without TLS a worker says who it is in this header.
pub(crate) const WORKER_HEADER: &str = "paceline-worker";

/// A process asks what the job is, before it joins: it must find its data first.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Look {
    /// Of the program.
    pub version: String,
    /// `None`: the connection's certificate, of an earlier time in the job, stands for it.
    pub token: Option<String>,
    pub request: Request,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Described {
    pub job: JobName,
    /// The job, as the coordinator's caller wrote it down.
    pub text: String,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Join {
    pub version: String,
    pub token: Option<String>,
    pub request: Request,
    /// Where peers reach this worker. An unspecified IP address stands for the one that the coordinator sees.
    pub address: String,
    /// What this worker knows of the job's model and data, in words that the coordinator's caller understands.
    pub facts: String,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Admitted {
    pub who: WorkerId,
    /// `None` without TLS.
    pub certificate: Option<Certificate>,
    /// The authority's certificate; empty without TLS.
    #[serde(with = "hexadecimal")]
    pub authority: Vec<u8>,
    pub job: JobName,
    /// The address that peers are told.
    pub address: String,
    /// The coordinator's clock when the question arrived, and when it was answered.
    pub received: Duration,
    pub now: Duration,
    pub patience: Duration,
    /// How many coordinators there were before this one.
    pub incarnation: u64,
    /// The addresses of all coordinators; empty if there can be no others.
    pub coordinators: Vec<String>,
}

/// An answer, or one sentence that says why there is none.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Answer<T> {
    Yes(T),
    Refused(String),
    /// There is nothing left to do.
    Over,
}

/// What a worker says in its session. Words, lines and notes share one order.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Said {
    Word(Word),
    /// A line of the journal.
    Line(Line),
    /// Something for whoever runs the coordinator.
    Note(serde_json::Value),
}

/// From a worker.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Up {
    /// The first message of a connection: how many orders have arrived.
    Hello { received: u64 },
    /// Numbered from 1 over all connections of this worker.
    Said { number: u64, said: Said },
    /// All orders up to this one have arrived.
    Obeyed { number: u64 },
    /// The worker lives. `sent` comes back in the echo: the time since the connection was opened, by the worker's clock.
    Beat { sent: Duration },
    /// A new certificate for the same key is wanted.
    Renew(Request),
}

/// From the coordinator.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Down {
    /// The first message of a connection: how much of what was said is logged. A worker that has heard of a newer incarnation of the
    /// coordinator hangs up.
    Welcome {
        heard: u64,
        now: Duration,
        incarnation: u64,
        coordinators: Vec<String>,
    },
    /// All coordinators of the job: a standby has come or gone.
    Coordinators(Vec<String>),
    /// `peers`: the addresses of the members that the order names. Number 0: it is not numbered.
    Order {
        number: u64,
        order: Order,
        peers: Vec<Peer>,
    },
    /// Everything that was said up to this number is logged.
    Heard {
        number: u64,
    },
    Beat,
    /// The answer to a worker's beat: when that was sent, and what the coordinator's clock showed when it arrived.
    Echo {
        sent: Duration,
        now: Duration,
    },
    Renewed(Certificate),
    /// Something from whoever runs the coordinator; lost if the connection breaks.
    Note(serde_json::Value),
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Peer {
    pub who: WorkerId,
    pub address: String,
}

/// The name of the file that holds what a job of users' own programs begins with. Several workers may offer one; the first that is
/// whole stays, so that all of them read the same.
pub const INITIAL: &str = "initial";

/// The first message of a file that is sent; its bytes follow.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FileHead {
    pub name: String,
    pub bytes: u64,
}

impl FileHead {
    /// A file's name is plain: it cannot lead out of its folder.
    pub fn is_plain(&self) -> bool {
        let is_allowed = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
        (1..=100).contains(&self.name.len())
            && self.name.chars().all(is_allowed)
            && !self.name.starts_with('.')
    }
}

pub(crate) fn encode<T: Serialize>(message: &T) -> Bytes {
    serde_json::to_vec(message).expect("messages can be written as JSON").into()
}

pub(crate) fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Status> {
    serde_json::from_slice(bytes).map_err(|error| Status::invalid_argument(error.to_string()))
}

/// gRPC frames that carry bytes: their meaning is decided by the method.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Raw;

impl Codec for Raw {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = Raw;
    type Decoder = Raw;

    fn encoder(&mut self) -> Raw {
        Raw
    }

    fn decoder(&mut self) -> Raw {
        Raw
    }
}

impl Encoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, item: Bytes, into: &mut EncodeBuf<'_>) -> Result<(), Status> {
        into.put(item);
        Ok(())
    }
}

impl Decoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(from.copy_to_bytes(from.remaining())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_does_not_lead_out_of_its_folder() {
        let is_plain = |name: &str| FileHead { name: name.to_owned(), bytes: 0 }.is_plain();
        assert!(is_plain("part-3.safetensors") && is_plain("A_1"));
        for name in ["", ".", "..", ".hidden", "a/b", "a\\b", "../a", "a\0", "ä", &"a".repeat(101)]
        {
            assert!(!is_plain(name), "{name}");
        }
    }
}
