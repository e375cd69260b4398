//! A run as Chrome trace events, for Perfetto and chrome://tracing: a thread for each worker.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use paceline_runtime::{Line, Reader, Record, WorkerId};
use serde_json::{Value, json};

use crate::pulse::Pulse;

/// Writes trace events while a run goes on. What is in the file is a whole JSON array at any time.
pub struct Trace {
    file: TraceFile,
    /// Until when the coordinator's thread has been told; workers' lines may come a little late.
    now: Duration,
    /// Until when each worker's thread has been told.
    told: BTreeMap<WorkerId, Duration>,
    /// Who entered an exchange last so far, and when; the newest exchanges.
    entered: BTreeMap<(u64, u64), (WorkerId, Duration)>,
    pulse: Pulse,
    slices: u64,
}

/// About 150 MB, more than viewers like; what is rare is written on.
const SLICES_MAX: u64 = 1_000_000;

/// Exchanges that lost a member are never heard of again.
const EXCHANGES_MAX: usize = 64;

impl Trace {
    /// `name` is what the viewer calls the run.
    pub fn create(path: &Path, name: &str) -> Result<Trace, String> {
        let mut trace = Trace {
            file: TraceFile::create(path)?,
            now: Duration::ZERO,
            told: BTreeMap::new(),
            entered: BTreeMap::new(),
            pulse: Pulse::default(),
            slices: 0,
        };
        trace.file.write(
            &json!({ "ph": "M", "pid": 1, "name": "process_name", "args": { "name": name } }),
        );
        trace.name_thread(0, "coordinator");
        Ok(trace)
    }

    /// Writes what is left; a write that failed at any time is told here, for a run goes on without its trace.
    pub fn finish(mut self) -> Result<(), String> {
        self.file.spill(true);
        self.file.error.map_or(Ok(()), |error| {
            Err(format!("the trace {} is incomplete: {error}", self.file.path.display()))
        })
    }

    fn name_thread(&mut self, thread: u64, name: &str) {
        let event = |kind: &str, args: Value| json!({ "ph": "M", "pid": 1, "tid": thread, "name": kind, "args": args });
        self.file.write(&event("thread_name", json!({ "name": name })));
        self.file.write(&event("thread_sort_index", json!({ "sort_index": thread })));
    }

    /// When this worker's thread was last told of; a worker that is new gets a thread.
    fn told(&mut self, who: WorkerId) -> Duration {
        if let Some(told) = self.told.get(&who) {
            return *told;
        }
        self.name_thread(thread(who), &format!("worker {who}"));
        self.told.insert(who, Duration::ZERO);
        Duration::ZERO
    }

    /// A slice of a worker's time; what has been told already is not told again.
    fn slice(&mut self, who: WorkerId, name: &str, from: Duration, to: Duration, args: Value) {
        let from = from.max(self.told(who));
        if from >= to || self.slices > SLICES_MAX {
            return;
        }
        self.slices += 1;
        if self.slices > SLICES_MAX {
            let name = format!("slices end here: there are more than {SLICES_MAX}");
            return self.moment(&name, json!({}));
        }
        self.told.insert(who, to);
        let length = microseconds(to) - microseconds(from);
        self.file.write(&json!({
            "ph": "X", "pid": 1, "tid": thread(who), "name": name,
            // Rounded, so that one slice ends where the next begins.
            "ts": microseconds(from), "dur": (1000.0 * length).round() / 1000.0, "args": args,
        }));
    }

    /// A moment on the coordinator's thread.
    fn moment(&mut self, name: &str, args: Value) {
        self.file.write(&json!({
            "ph": "i", "s": "p", "pid": 1, "tid": 0, "name": name, "ts": microseconds(self.now), "args": args,
        }));
    }

    fn moment_of(&mut self, who: WorkerId, name: &str, at: Duration) {
        let at = at.max(self.told(who));
        self.told.insert(who, at);
        self.file.write(&json!({
            "ph": "i", "s": "t", "pid": 1, "tid": thread(who), "name": name, "ts": microseconds(at),
        }));
    }

    fn count(&mut self, name: &str, value: f64) {
        // JSON has no word for a loss that came apart.
        if value.is_finite() {
            self.file.write(&json!({
                "ph": "C", "pid": 1, "tid": 0, "name": name, "ts": microseconds(self.now), "args": { name: value },
            }));
        }
    }

    /// A wait for whoever entered last, then the exchange itself.
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
        if let Some(beat) = self.pulse.read(line) {
            self.count("training loss", beat.loss);
        }
        match &line.record {
            Record::Started { who } => drop(self.told(*who)),
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
            // Between the last thing that was waited for and the round's end a replica is updated.
            Record::Committed { who, round, .. } => {
                let since = self.told(*who);
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

/// 0 is the coordinator's.
fn thread(who: WorkerId) -> u64 {
    u64::from(who.0) + 1
}

fn microseconds(time: Duration) -> f64 {
    time.as_nanos() as f64 / 1000.0
}

/// A JSON array that is closed behind every piece and opened again for the next.
struct TraceFile {
    path: PathBuf,
    file: File,
    /// A pipe cannot go back; its array is closed at the end.
    goes_back: bool,
    buffer: String,
    error: Option<io::Error>,
}

const PIECE: usize = 1 << 16;
const CLOSING: &str = "\n]\n";

impl TraceFile {
    fn create(path: &Path) -> Result<TraceFile, String> {
        let mut file = File::create(path)
            .map_err(|error| format!("cannot write the trace {}: {error}", path.display()))?;
        let goes_back = file.stream_position().is_ok();
        let buffer = String::from("[");
        Ok(TraceFile { path: path.to_owned(), file, goes_back, buffer, error: None })
    }

    fn write(&mut self, event: &Value) {
        let comma = if self.buffer == "[" { "\n" } else { ",\n" };
        self.buffer += comma;
        self.buffer += &event.to_string();
        if self.buffer.len() >= PIECE {
            self.spill(false);
        }
    }

    /// Writes the piece and the closing, and goes back in front of the closing.
    fn spill(&mut self, is_last: bool) {
        let mut piece = std::mem::take(&mut self.buffer);
        if self.goes_back || is_last {
            piece += CLOSING;
        }
        if self.error.is_some() {
            return;
        }
        let mut written = self.file.write_all(piece.as_bytes());
        if self.goes_back {
            let back = SeekFrom::Current(-(CLOSING.len() as i64));
            written = written.and_then(|()| self.file.seek(back).map(drop));
        }
        self.error = written.err();
    }
}

#[cfg(test)]
mod tests;
