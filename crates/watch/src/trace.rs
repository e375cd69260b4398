//! A run as Chrome trace events for Perfetto and chrome://tracing, with one thread per worker.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use paceline_runtime::{Line, Reader, Record, WorkerId};
use serde_json::{Value, json};

use crate::aside::Aside;
use crate::error::OutputError;
use crate::intervals::Intervals;

/// Writes trace events during a run. The file is a complete JSON array at any time. If it replaces an older file, it
/// has a temporary name until it is finished.
pub struct Trace {
    file: TraceFile,
    /// The newest time of any line; a worker's lines may arrive a little later than this.
    now: Duration,
    /// The time up to which each worker's thread has been written.
    written_until: BTreeMap<WorkerId, Duration>,
    /// For the newest exchanges: the worker that entered last so far, and when.
    entered: BTreeMap<(u64, u64), (WorkerId, Duration)>,
    intervals: Intervals,
    slices: u64,
}

/// About 150 MB, which viewers already handle badly. Rare events are still written after that.
const SLICES_MAX: u64 = 1_000_000;

/// Older exchanges are dropped, because one that lost a member never completes.
const EXCHANGES_MAX: usize = 64;

impl Trace {
    /// Creates the file; viewers show `name` as the name of the run.
    pub fn create(path: &Path, name: &str) -> Result<Trace, OutputError> {
        let mut trace = Trace {
            file: TraceFile::create(path)?,
            now: Duration::ZERO,
            written_until: BTreeMap::new(),
            entered: BTreeMap::new(),
            intervals: Intervals::default(),
            slices: 0,
        };
        trace.file.write(
            &json!({ "ph": "M", "pid": 1, "name": "process_name", "args": { "name": name } }),
        );
        trace.name_thread(0, "coordinator");
        Ok(trace)
    }

    /// Flushes the file. An earlier write error is returned only here, because the run continues without its trace.
    pub fn finish(mut self) -> Result<(), OutputError> {
        self.file.flush(true);
        let TraceFile { path, error, aside, .. } = self.file;
        let published = match (error, aside) {
            (None, aside) => aside.map_or(Ok(()), Aside::publish),
            (Some(error), aside) => {
                aside.into_iter().for_each(Aside::discard);
                Err(error)
            }
        };
        published.map_err(|source| OutputError::IncompleteTrace { path, source })
    }

    fn name_thread(&mut self, thread: u64, name: &str) {
        let event = |kind: &str, args: Value| json!({ "ph": "M", "pid": 1, "tid": thread, "name": kind, "args": args });
        self.file.write(&event("thread_name", json!({ "name": name })));
        self.file.write(&event("thread_sort_index", json!({ "sort_index": thread })));
    }

    /// The time up to which this worker's thread has been written; the thread is created if necessary.
    fn written_until(&mut self, who: WorkerId) -> Duration {
        if let Some(until) = self.written_until.get(&who) {
            return *until;
        }
        self.name_thread(thread(who), &format!("worker {who}"));
        self.written_until.insert(who, Duration::ZERO);
        Duration::ZERO
    }

    /// Writes a slice of a worker's time, without the part that overlaps an earlier slice.
    fn slice(&mut self, who: WorkerId, name: &str, from: Duration, to: Duration, args: Value) {
        let from = from.max(self.written_until(who));
        if from >= to || self.slices > SLICES_MAX {
            return;
        }
        self.slices += 1;
        if self.slices > SLICES_MAX {
            let name = format!("no slices from here on: the limit of {SLICES_MAX} is reached");
            return self.moment(&name, json!({}));
        }
        self.written_until.insert(who, to);
        let length = microseconds(to) - microseconds(from);
        self.file.write(&json!({
            "ph": "X", "pid": 1, "tid": thread(who), "name": name,
            // Rounded, so that a slice ends exactly where the next one begins.
            "ts": microseconds(from), "dur": (1000.0 * length).round() / 1000.0, "args": args,
        }));
    }

    /// Writes an instant event on the coordinator's thread.
    fn moment(&mut self, name: &str, args: Value) {
        self.file.write(&json!({
            "ph": "i", "s": "p", "pid": 1, "tid": 0, "name": name, "ts": microseconds(self.now), "args": args,
        }));
    }

    fn moment_of(&mut self, who: WorkerId, name: &str, at: Duration) {
        let at = at.max(self.written_until(who));
        self.written_until.insert(who, at);
        self.file.write(&json!({
            "ph": "i", "s": "t", "pid": 1, "tid": thread(who), "name": name, "ts": microseconds(at),
        }));
    }

    fn count(&mut self, name: &str, value: f64) {
        // JSON cannot represent the loss of a diverged run.
        if value.is_finite() {
            self.file.write(&json!({
                "ph": "C", "pid": 1, "tid": 0, "name": name, "ts": microseconds(self.now), "args": { name: value },
            }));
        }
    }

    /// Writes the wait for the worker that entered last, then the exchange itself.
    fn exchanged(&mut self, who: WorkerId, name: (u64, u64), blocked: Duration, at: Duration) {
        let begun = match self.entered.get(&name) {
            Some((last, entered)) if *last != who && *entered > blocked => {
                let (last, entered) = (*last, (*entered).min(at));
                self.slice(who, "wait", blocked, entered, json!({ "for": last.0 }));
                entered
            }
            _ => blocked,
        };
        self.slice(who, "exchange", begun, at, json!({ "view": name.0, "exchange": name.1 }));
    }
}

impl Reader for Trace {
    fn read(&mut self, line: &Line) {
        let at = line.at;
        self.now = self.now.max(at);
        if let Some(interval) = self.intervals.read(line) {
            self.count("training loss", interval.loss);
        }
        match &line.record {
            Record::Started { who } => drop(self.written_until(*who)),
            Record::Computed { who, since, samples, .. } => {
                self.slice(*who, "compute", *since, at, json!({ "samples": samples }));
            }
            Record::Entered { who, view, exchange, .. } => {
                let last = self.entered.entry((*view, *exchange)).or_insert((*who, at));
                *last = if at > last.1 { (*who, at) } else { *last };
                while self.entered.len() > EXCHANGES_MAX {
                    self.entered.pop_first();
                }
            }
            Record::Exchanged { who, view, exchange, blocked, .. } => {
                self.exchanged(*who, (*view, *exchange), *blocked, at);
            }
            Record::Waited { who, whom, since } => {
                self.slice(*who, "wait", *since, at, json!({ "for": whom.0 }));
            }
            // The replica is updated between the last slice and the end of the round.
            Record::Committed { who, round, .. } => {
                let since = self.written_until(*who);
                if since > Duration::ZERO {
                    self.slice(*who, "update", since, at, json!({ "round": round }));
                }
            }
            Record::RolledBack { who, samples, .. } => {
                self.moment_of(*who, &format!("rolled back {samples} samples"), at);
            }
            Record::Crashed { who } => self.moment_of(*who, "crashed", at),
            Record::Left { who } => self.moment_of(*who, "left", at),
            Record::Finished { who, .. } => self.moment_of(*who, "finished", at),
            Record::View { number, members, reason } => {
                self.moment(&format!("view {number}: {reason}"), json!({ "members": members }));
                self.count("members", members.len() as f64);
            }
            Record::StartedOver => self.moment("started over", json!({})),
            Record::Scored { loss, accuracy, samples } => {
                let args = json!({ "samples": samples, "loss": loss, "accuracy": accuracy });
                self.moment("score", args);
                self.count("test accuracy", *accuracy);
            }
            Record::Over => self.moment("over", json!({})),
            _ => {}
        }
    }
}

/// The thread id of a worker; 0 is the coordinator's.
fn thread(who: WorkerId) -> u64 {
    u64::from(who.0) + 1
}

fn microseconds(time: Duration) -> f64 {
    time.as_nanos() as f64 / 1000.0
}

/// A JSON array that is closed after every chunk; the next chunk overwrites the closing bracket.
struct TraceFile {
    path: PathBuf,
    file: File,
    /// Its temporary name, if it replaces another file.
    aside: Option<Aside>,
    /// False for a pipe, whose array is closed only at the end.
    is_seekable: bool,
    buffer: String,
    error: Option<io::Error>,
}

const CHUNK: usize = 1 << 16;
const CLOSING: &str = "\n]\n";

impl TraceFile {
    fn create(path: &Path) -> Result<TraceFile, OutputError> {
        let (mut file, aside) = Aside::open(path)
            .map_err(|source| OutputError::CreateTrace { path: path.to_owned(), source })?;
        let is_seekable = file.stream_position().is_ok();
        let buffer = String::from("[");
        Ok(TraceFile { path: path.to_owned(), file, aside, is_seekable, buffer, error: None })
    }

    fn write(&mut self, event: &Value) {
        let comma = if self.buffer == "[" { "\n" } else { ",\n" };
        self.buffer += comma;
        self.buffer += &event.to_string();
        if self.buffer.len() >= CHUNK {
            self.flush(false);
        }
    }

    /// Writes the buffered chunk and the closing bracket, then seeks back to before the bracket.
    fn flush(&mut self, is_last: bool) {
        let mut chunk = std::mem::take(&mut self.buffer);
        if self.is_seekable || is_last {
            chunk += CLOSING;
        }
        if self.error.is_some() {
            return;
        }
        let mut written = self.file.write_all(chunk.as_bytes());
        if self.is_seekable {
            let back = SeekFrom::Current(-(CLOSING.len() as i64));
            written = written.and_then(|()| self.file.seek(back).map(drop));
        }
        self.error = written.err();
    }
}

#[cfg(test)]
mod tests;
