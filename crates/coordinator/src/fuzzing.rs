//! What fuzzing reaches: the readers of messages and of the log, without a network and without a disk.

use std::path::Path;
use std::time::{Duration, UNIX_EPOCH};

use paceline_identity::{JobName, Tokens};
use paceline_runtime::Spans;
use paceline_runtime::coordination::{Coordination, Coordinator, Entry, Rules, State};
use serde::de::DeserializeOwned;

pub use crate::messages::{Down, Up};
use crate::store::log;
use crate::stored::{Batch, Memory, Stored};

pub fn decode<T: DeserializeOwned>(message: &[u8]) -> Option<T> {
    crate::messages::decode(message).ok()
}

/// The beginning of a log.
pub fn begin() -> Vec<u8> {
    log::MAGIC.to_vec()
}

pub fn record(payload: &[u8]) -> Vec<u8> {
    log::record(payload).expect("it is short")
}

/// The records of a log, and how many of its bytes they take.
pub fn records(bytes: &[u8]) -> Option<(Vec<Vec<u8>>, usize)> {
    log::parse(Path::new("log"), bytes).ok()
}

/// A snapshot that is read and written again.
pub fn stored(snapshot: &[u8]) -> Option<Vec<u8>> {
    let stored: Stored = serde_json::from_slice(snapshot).ok()?;
    Some(json(&stored))
}

/// Starts again from a new job's snapshot and batches, as the driver does; returns the next snapshot.
pub fn replayed<'a>(batches: impl Iterator<Item = &'a [u8]>) -> Option<Vec<u8>> {
    let Stored { mut memory, state } = begun();
    let mut entries = vec![];
    for batch in batches {
        let batch: Batch = serde_json::from_slice(batch).ok()?;
        memory.apply(&batch);
        entries.extend(batch.entries);
    }
    let (coordinator, _) = Coordinator::restart(rules(), state, entries, Duration::ZERO);
    Some(json(&Stored { memory, state: coordinator.state().clone() }))
}

/// A batch with these entries.
pub fn batch(entries: Vec<Entry>) -> Vec<u8> {
    json(&Batch { entries, ..Batch::default() })
}

fn begun() -> Stored {
    let memory = Memory {
        job: JobName::try_from("fuzzed".to_owned()).expect("a name"),
        text: "a job".to_owned(),
        began: UNIX_EPOCH,
        at: Duration::ZERO,
        facts: None,
        tokens: Tokens::default(),
        heard: Default::default(),
        addresses: Default::default(),
        banned: Default::default(),
        journal: 0,
    };
    Stored { memory, state: State::new(rules(), Spans::new()) }
}

fn rules() -> Rules {
    Rules { keeps_log: true, ..Rules::new(100, 2, Coordination::Synchronous) }
}

fn json(value: &impl serde::Serialize) -> Vec<u8> {
    serde_json::to_vec(value).expect("plain data can be written as JSON")
}
