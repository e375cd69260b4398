//! Joins the coordinator's state machine, its store and its service: what is told was stored before.
//!
//! One turn takes what has come in, steps the machine, writes what changed as one record, waits for the store once,
//! and only then answers: orders, acknowledgements, admissions.

mod admission;
mod opening;
mod sessions;
mod tokens;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use paceline_identity::{Authority, Credentials, JobName};
use paceline_runtime::coordination::{Collected, Coordinator, Input, Output, Rules};
use paceline_runtime::{Line, Spans, WorkerId};
use tokio::sync::mpsc;

use crate::clock::Clock;
use crate::incoming::{Incoming, Lane};
use crate::messages::{Answer, Described, Down, FileHead};
use crate::store::{Store, StoreError};
use crate::stored::{Batch, Memory, Stored};

/// What the first worker knows of the job, turned into lines.
type FirstLines = Box<dyn Fn(&str) -> Vec<Line> + Send>;

/// What the first worker knew (`None` for itself), and what the newcomer knows.
pub type CheckFacts = Box<dyn Fn(Option<&str>, &str) -> Result<u64, String> + Send>;

pub struct DriverConfig {
    /// The job as text, for workers that join. A store holds one job.
    pub text: String,
    /// `keeps_log` is set in any case; `samples_total` is what the first worker says.
    pub rules: Rules,
    /// The samples that an earlier run had applied, and how long it took.
    pub done: Spans,
    pub elapsed: Duration,
    /// Decides whether a worker may join that knows this of the job's model and data: returns the job's number of samples,
    /// or one sentence that says what differs.
    pub check_facts: CheckFacts,
    /// Of the program: workers of another version are refused.
    pub version: String,
    /// `None`: without TLS.
    pub authority: Option<Authority>,
    /// How long a worker whose connection was closed has to come back, before it counts as lost. A process that was
    /// killed closes its connections and does not come back, so this is much shorter than the patience.
    pub grace: Duration,
}

/// What the coordinator's process may want to know. It is stored already.
#[derive(Debug)]
pub enum Happened {
    Line(Line),
    /// A worker says something that only the caller understands.
    Note {
        from: WorkerId,
        note: serde_json::Value,
    },
    /// All parts of a snapshot have been handed in.
    Collected(Collected),
    /// A worker has stored a file.
    Stored {
        from: WorkerId,
        path: PathBuf,
        head: FileHead,
    },
    Joined {
        who: WorkerId,
        address: String,
    },
    Connected(WorkerId),
    Disconnected(WorkerId),
    /// These are the addresses of all coordinators now.
    Coordinators(Vec<String>),
    /// Somebody was turned away.
    Refused {
        from: SocketAddr,
        why: String,
    },
}

#[derive(Debug, thiserror::Error)]
pub enum DriverError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(
        "the state in {place} belongs to another job; give another place, or the job that it was made for"
    )]
    OtherJob {
        place: String,
        /// The job that the state was made for, as its caller wrote it down.
        text: String,
    },
    #[error("the state in {place} was written by another version of this program ({why})")]
    Format { place: String, why: String },
    #[error("cannot start a timer: {0}")]
    Timer(io::Error),
}

pub struct Driver {
    config: DriverConfig,
    store: Box<dyn Store>,
    /// Lines of the journal that are not stored yet.
    lines: Vec<u8>,
    memory: Memory,
    coordinator: Coordinator,
    clock: Clock,
    /// `None` without TLS.
    credentials: Option<Credentials>,
    sender: mpsc::Sender<Incoming>,
    incoming: mpsc::Receiver<Incoming>,
    timer: tokio::runtime::Runtime,
    lanes: BTreeMap<WorkerId, Session>,
    /// Workers whose connection was closed, and when they count as lost.
    closed: BTreeMap<WorkerId, Duration>,
    wakes: BTreeSet<Duration>,
    next_tick: Duration,
    /// All coordinators of the job, as the workers know them.
    coordinators: Vec<String>,
    batch: Batch,
    /// When the batch must be stored.
    commit_at: Option<Duration>,
    /// What is told when the batch is stored.
    after: Vec<After>,
    happening: Vec<Happened>,
    happened: Vec<Happened>,
    /// After this many bytes the log is replaced by a snapshot.
    log_bytes_max: u64,
    /// How long what nobody waits for waits for others.
    lines_wait: Duration,
    /// Which lines of workers become part of the journal.
    keeps_line: Box<dyn FnMut(&Line) -> bool + Send>,
    /// What the journal begins with, once it is known what the job learns from.
    first_lines: FirstLines,
}

struct Session {
    number: u64,
    lane: Lane,
}

enum After {
    /// Dropped if the worker has another session by then: it was sent what it missed.
    Tell {
        to: WorkerId,
        session: u64,
        message: Down,
    },
    /// The worker is told how much of what it said is logged.
    Heard {
        to: WorkerId,
        session: u64,
    },
    Reply(Box<dyn FnOnce() + Send>),
}

const LOG_BYTES_MAX: u64 = 4 << 20;
/// Messages that are taken together into one write.
const BATCH_MAX: usize = 512;
/// Lines of the journal, and words that are answered by nothing, wait this long for others: no worker waits for them.
const LINES_WAIT: Duration = Duration::from_millis(50);

impl Driver {
    /// For the service, and for whoever runs the coordinator from another thread.
    pub fn sender(&self) -> mpsc::Sender<Incoming> {
        self.sender.clone()
    }

    pub fn job(&self) -> &JobName {
        &self.memory.job
    }

    /// What the first worker knew of the job's model and data; `None` before one has joined.
    pub fn facts(&self) -> Option<&str> {
        self.memory.facts.as_deref()
    }

    pub fn coordinator(&self) -> &Coordinator {
        &self.coordinator
    }

    /// The coordinator's clock. It counts from the start of the job and goes on over restarts.
    pub fn now(&self) -> Duration {
        self.clock.now()
    }

    /// For the service, which answers while the driver waits for its store.
    pub fn clock(&self) -> Clock {
        self.clock
    }

    /// The journal of the job so far, up to the last commit; a restarted process reads it again.
    pub fn journal(&self) -> &Path {
        self.store.journal()
    }

    /// Makes sure that this coordinator is the one that decides. Only a standby could have taken its place.
    pub fn confirm(&mut self) -> Result<(), DriverError> {
        Ok(self.store.confirm()?)
    }

    /// The addresses of all coordinators of the job; empty if there can be no others.
    pub fn coordinators(&self) -> &[String] {
        &self.coordinators
    }

    /// Asks this function about every line of a worker: one that it does not keep counts as heard and is dropped. For what several
    /// workers report and the journal says once. If that depends on earlier lines, the caller reads them from the journal.
    pub fn keep_lines_if(&mut self, keeps: impl FnMut(&Line) -> bool + Send + 'static) {
        self.keeps_line = Box::new(keeps);
    }

    /// The journal of a new job begins with these lines, which follow from what its first worker knows. They come out of no
    /// [`turn`](Self::turn): the caller has them.
    pub fn begin_journal_with(&mut self, lines: impl Fn(&str) -> Vec<Line> + Send + 'static) {
        self.first_lines = Box::new(lines);
    }

    /// Workers that are connected now.
    pub fn connected(&self) -> impl Iterator<Item = WorkerId> + '_ {
        self.lanes.keys().copied()
    }

    /// The number of a worker's session, if it is connected now.
    pub fn session(&self, who: WorkerId) -> Option<u64> {
        self.lanes.get(&who).map(|session| session.number)
    }

    /// Whether a worker is connected, or may come back, and was not lost. One that is stopped keeps its connection.
    pub fn is_here(&self, who: WorkerId) -> bool {
        let is_known = self.lanes.contains_key(&who) || self.closed.contains_key(&who);
        is_known && self.coordinator.state().is_enrolled(who)
    }

    /// The coordinator's own key and certificate, for its port. The driver renews the certificate.
    pub fn credentials(&self) -> Option<&Credentials> {
        self.credentials.as_ref()
    }

    /// Sends a note, if the worker is connected and this coordinator may still speak.
    pub fn note(&self, to: WorkerId, note: serde_json::Value) {
        if self.store.check().is_ok()
            && let Some(session) = self.lanes.get(&to)
        {
            session.lane.send(&Down::Note(note));
        }
    }

    /// Tells the coordinator something; it is stored after the next turn.
    pub fn input(&mut self, input: Input) {
        if let Input::Ban(who) = input {
            self.memory.banned.insert(who);
            self.batch.banned.insert(who);
            self.wants_commit(Duration::ZERO);
        }
        let output = self.coordinator.step(self.clock.now(), input);
        self.carry_out(output);
    }

    /// Writes a line of the caller to the journal.
    pub fn line(&mut self, line: Line) {
        self.lines.extend(json(&line));
        self.lines.push(b'\n');
        self.happening.push(Happened::Line(line));
        self.wants_commit(self.lines_wait);
    }

    /// Waits at most this long for something to come in, and deals with it.
    pub fn turn(&mut self, wait: Duration) -> Result<Vec<Happened>, DriverError> {
        self.store.check()?;
        let now = self.clock.now();
        let due =
            [self.commit_at, self.wakes.first().copied(), self.closed.values().min().copied()];
        let until = due
            .into_iter()
            .flatten()
            .fold(self.next_tick.min(now.saturating_add(wait)), Duration::min);
        let wait = until.saturating_sub(now);
        let first =
            self.timer.block_on(async { tokio::time::timeout(wait, self.incoming.recv()).await });
        let mut next = first.ok().flatten();
        for _ in 0..BATCH_MAX {
            let Some(message) = next else { break };
            self.take(message);
            next = self.incoming.try_recv().ok();
        }
        if let Some(message) = next {
            self.take(message);
        }
        self.tick();
        if self.commit_at.is_some_and(|at| at <= self.clock.now()) {
            self.commit()?;
        }
        Ok(std::mem::take(&mut self.happened))
    }

    /// Writes everything that has changed, waits until it is stored, and tells what was waiting for it.
    pub fn commit(&mut self) -> Result<(), DriverError> {
        self.commit_at = None;
        let mut batch = std::mem::take(&mut self.batch);
        let lines = std::mem::take(&mut self.lines);
        let (at, journal) = (self.clock.now(), self.memory.journal + lines.len() as u64);
        (batch.at, batch.journal) = (at, journal);
        self.store.commit(&json(&batch), &lines)?;
        (self.memory.at, self.memory.journal) = (at, journal);
        self.happened.append(&mut self.happening);
        for after in std::mem::take(&mut self.after) {
            self.tell(after);
        }
        if self.store.size() > self.log_bytes_max {
            let stored =
                Stored { memory: self.memory.clone(), state: self.coordinator.state().clone() };
            self.store.snapshot(&json(&stored))?;
        }
        Ok(())
    }

    fn tell(&mut self, after: After) {
        match after {
            After::Tell { to, session, message } => {
                if let Some(lane) = self.lane(to, session) {
                    lane.send(&message);
                }
            }
            After::Heard { to, session } => {
                let number = self.memory.heard.get(&to).copied().unwrap_or(0);
                if let Some(lane) = self.lane(to, session) {
                    lane.send(&Down::Heard { number });
                }
            }
            After::Reply(reply) => reply(),
        }
    }

    fn lane(&self, who: WorkerId, session: u64) -> Option<&Lane> {
        self.lanes.get(&who).filter(|it| it.number == session).map(|it| &it.lane)
    }

    /// The batch must be stored so long from now, or earlier.
    fn wants_commit(&mut self, within: Duration) {
        let at = self.clock.now() + within;
        self.commit_at = Some(self.commit_at.map_or(at, |earlier| earlier.min(at)));
    }

    fn after(&mut self, after: After) {
        self.after.push(after);
        self.wants_commit(Duration::ZERO);
    }

    fn take(&mut self, message: Incoming) {
        let now = self.clock.now();
        match message {
            Incoming::Look { token, known, version, request, reply } => {
                let answer = match self.check(token.as_ref(), known, &version, &request) {
                    _ if self.is_too_late(token.as_ref(), known, &version, &request) => {
                        Answer::Over
                    }
                    Ok(_) => Answer::Yes(Described {
                        job: self.memory.job.clone(),
                        text: self.memory.text.clone(),
                    }),
                    Err(why) => Answer::Refused(why),
                };
                let _ = reply.send(answer);
            }
            Incoming::Join { token, known, join, reply } => self.join(token, known, join, reply),
            Incoming::Connected { from, session, received, lane } => {
                self.connect(from, session, received, lane);
            }
            Incoming::Said { from, session, number, said } => {
                if self.lane(from, session).is_some() {
                    self.hear(from, number, said);
                }
            }
            Incoming::Obeyed { from, session, number } => {
                if self.lane(from, session).is_some() {
                    self.coordinator.acknowledged(from, number);
                }
            }
            Incoming::Beat { from, session } => {
                if self.lane(from, session).is_some() {
                    let output = self.coordinator.step(now, Input::Beat(from));
                    self.carry_out(output);
                }
            }
            Incoming::Renew { from, session, request } => self.renew(from, session, &request),
            Incoming::Broken { from, session } => {
                if self.lane(from, session).is_some() {
                    self.disconnect(from);
                }
            }
            Incoming::Stored { from, path, head, reply } => {
                self.happening.push(Happened::Stored { from, path, head });
                // The file is on the disk; the answer only waits for its turn.
                self.after(After::Reply(Box::new(move || drop(reply.send(Answer::Yes(()))))));
            }
            Incoming::Turned { from, why } => {
                self.happened.push(Happened::Refused { from, why });
            }
            Incoming::Input(input) => self.input(input),
        }
    }

    /// Notes what must be stored, and what is told then.
    fn carry_out(&mut self, output: Output) {
        let Output { log, orders, records, snapshot, admitted: _, wake, acknowledged: _ } = output;
        if !log.is_empty() {
            // Nobody waits for an entry that leads to no order, such as what was applied: it is stored with the next one that does.
            self.wants_commit(self.lines_wait);
        }
        self.batch.entries.extend(log);
        let at = self.clock.now();
        records.into_iter().for_each(|record| self.line(Line { at, record }));
        orders.into_iter().for_each(|order| self.order(order));
        self.wakes.extend(wake);
        if let Some(collected) = snapshot {
            self.happening.push(Happened::Collected(collected));
            self.wants_commit(Duration::ZERO);
        }
    }

    fn tick(&mut self) {
        let now = self.clock.now();
        let gone: Vec<WorkerId> =
            self.closed.iter().filter(|(_, at)| **at <= now).map(|(who, _)| *who).collect();
        gone.into_iter().for_each(|who| self.lose(who));
        let is_due = self.next_tick <= now || self.wakes.first().is_some_and(|at| *at <= now);
        if !is_due {
            return;
        }
        self.wakes = self.wakes.split_off(&(now + Duration::from_nanos(1)));
        self.next_tick = now + (self.config.rules.patience / 4).min(Duration::from_secs(1));
        let output = self.coordinator.step(now, Input::Tick);
        self.carry_out(output);
        self.renew_own();
        self.look_for_coordinators();
    }

    /// Tells the workers when a standby has come or gone: they try all coordinators in turn.
    fn look_for_coordinators(&mut self) {
        let found = self.store.coordinators();
        if found == self.coordinators {
            return;
        }
        self.coordinators = found.clone();
        for session in self.lanes.values() {
            session.lane.send(&Down::Coordinators(found.clone()));
        }
        self.happened.push(Happened::Coordinators(found));
    }
}

fn json<T: serde::Serialize>(value: &T) -> Vec<u8> {
    serde_json::to_vec(value).expect("plain data can be written as JSON")
}

#[cfg(test)]
mod tests;
