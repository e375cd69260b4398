//! Joins the coordinator's state machine, its log and its service: what is told was logged before.
//!
//! One turn takes what has come in, steps the machine, writes what changed as one record, waits for the disk once,
//! and only then answers: orders, acknowledgements, admissions.

mod admission;
mod sessions;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use paceline_identity::{Authority, Credentials, JobName, Token, TokenChange, TokenId, Tokens};
use paceline_runtime::coordination::{Collected, Coordinator, Entry, Input, Output, Rules, State};
use paceline_runtime::{Line, Record, Spans, WorkerId};
use tokio::sync::mpsc;

use crate::clock::Clock;
use crate::journal::{Journal, JournalError};
use crate::log::{Log, LogError, Opened};
use crate::messages::{Answer, Described, Down, FileHead};
use crate::service::{Incoming, Lane, queue};
use crate::stored::{Batch, Memory, Stored};

/// What the first worker knows of the job, turned into lines.
type FirstLines = Box<dyn Fn(&str) -> Vec<Line> + Send>;

/// What the first worker knew (`None` for itself), and what the newcomer knows.
pub type CheckFacts = Box<dyn Fn(Option<&str>, &str) -> Result<u64, String> + Send>;

pub struct DriverConfig {
    /// Where log, journal and authority are kept.
    pub folder: PathBuf,
    /// The job as text, for workers that join. A folder holds one job.
    pub text: String,
    /// `keeps_log` is set in any case; `samples_total` is what the first worker says.
    pub rules: Rules,
    /// The samples that an earlier run had applied.
    pub done: Spans,
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

/// What the coordinator's process may want to know. It is on the disk already.
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
    /// Somebody was turned away.
    Refused {
        from: SocketAddr,
        why: String,
    },
}

#[derive(Debug, thiserror::Error)]
pub enum DriverError {
    #[error(transparent)]
    Log(#[from] LogError),
    #[error(transparent)]
    Journal(#[from] JournalError),
    #[error(
        "the state in {0} belongs to another job; give another folder, or the job that it was made for"
    )]
    OtherJob(PathBuf),
    #[error("the state in {path} was written by another version of this program ({why})")]
    Format { path: PathBuf, why: String },
    #[error("cannot start a timer: {0}")]
    Timer(io::Error),
}

pub struct Driver {
    config: DriverConfig,
    log: Log,
    journal: Journal,
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
    batch: Batch,
    /// When the batch must be on the disk.
    commit_at: Option<Duration>,
    /// What is told when the batch is on the disk.
    after: Vec<After>,
    happening: Vec<Happened>,
    happened: Vec<Happened>,
    /// After this many bytes the log is replaced by a snapshot.
    log_bytes_max: u64,
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
/// Lines of the journal wait this long for others: no worker waits for them.
const LINES_WAIT: Duration = Duration::from_millis(50);

impl Driver {
    /// Opens the folder and starts the job, or continues it where the last coordinator stopped.
    pub fn open(mut config: DriverConfig) -> Result<Driver, DriverError> {
        config.rules.keeps_log = true;
        let Opened { mut log, snapshot, records, .. } = Log::open(&config.folder)?;
        let is_new = snapshot.is_none();
        let stored = match snapshot {
            Some(bytes) => config.parse(&bytes)?,
            None => {
                let stored = config.begin();
                log.snapshot(&json(&stored))?;
                stored
            }
        };
        let Stored { mut memory, state } = stored;
        if memory.text != config.text {
            return Err(DriverError::OtherJob(config.folder));
        }
        let mut entries: Vec<Entry> = vec![];
        for record in records {
            let batch: Batch = config.parse(&record)?;
            memory.apply(&batch);
            entries.extend(batch.entries);
        }
        let journal = Journal::open(&config.folder.join("journal.jsonl"), memory.journal)?;
        let clock = Clock::since(memory.began, memory.at);
        let now = clock.now();
        let (coordinator, output) = Coordinator::restart(config.rules, state, entries, now);
        let credentials = config.authority.as_ref().map(|authority| {
            Credentials::of_coordinator(authority, memory.job.clone(), SystemTime::now())
        });
        let (sender, incoming) = queue();
        let timer = tokio::runtime::Builder::new_current_thread().enable_time().build();
        let mut driver = Driver {
            config,
            log,
            journal,
            memory,
            coordinator,
            clock,
            credentials,
            sender,
            incoming,
            timer: timer.map_err(DriverError::Timer)?,
            lanes: BTreeMap::new(),
            closed: BTreeMap::new(),
            wakes: BTreeSet::new(),
            next_tick: now,
            batch: Batch::default(),
            commit_at: None,
            after: vec![],
            happening: vec![],
            happened: vec![],
            log_bytes_max: LOG_BYTES_MAX,
            keeps_line: Box::new(|_| true),
            first_lines: Box::new(|_| vec![]),
        };
        driver.carry_out(output);
        if !is_new {
            driver.line(Line { at: now, record: Record::Restarted });
        }
        driver.commit()?;
        Ok(driver)
    }

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

    /// The journal of the job so far, up to the last commit; a restarted process reads it again.
    pub fn journal(&self) -> &Path {
        &self.journal.path
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

    /// The coordinator's own key and certificate, for its port. The driver renews the certificate.
    pub fn credentials(&self) -> Option<&Credentials> {
        self.credentials.as_ref()
    }

    /// Makes a token with which so many workers may join.
    pub fn make_token(&mut self, lasts: Duration, uses_max: u32) -> Result<Token, DriverError> {
        let authority = self.config.authority.as_ref();
        let fingerprint =
            authority.map_or(paceline_identity::Digest([0; 32]), Authority::fingerprint);
        let (token, change) =
            self.memory.tokens.make(fingerprint, SystemTime::now() + lasts, uses_max);
        self.change_tokens(change);
        self.commit()?;
        Ok(token)
    }

    pub fn tokens(&self) -> &Tokens {
        &self.memory.tokens
    }

    pub fn revoke_token(&mut self, token: TokenId) -> Result<(), DriverError> {
        self.change_tokens(TokenChange::Revoked(token));
        self.commit()
    }

    /// Sends a note, if the worker is connected.
    pub fn note(&self, to: WorkerId, note: serde_json::Value) {
        if let Some(session) = self.lanes.get(&to) {
            session.lane.send(&Down::Note(note));
        }
    }

    /// Tells the coordinator something; it is on the disk after the next turn.
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
        self.journal.pending.extend(json(&line));
        self.journal.pending.push(b'\n');
        self.happening.push(Happened::Line(line));
        self.wants_commit(LINES_WAIT);
    }

    /// Waits at most this long for something to come in, and deals with it.
    pub fn turn(&mut self, wait: Duration) -> Result<Vec<Happened>, DriverError> {
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

    /// Writes everything that has changed, waits for the disk, and tells what was waiting for it.
    pub fn commit(&mut self) -> Result<(), DriverError> {
        self.commit_at = None;
        let mut batch = std::mem::take(&mut self.batch);
        let (at, journal) =
            (self.clock.now(), self.memory.journal + self.journal.pending.len() as u64);
        (batch.at, batch.journal) = (at, journal);
        // The journal first: the batch says how long it is.
        if let Err(error) = self.journal.commit() {
            // The log would speak of lines that are not there.
            self.log.give_up();
            return Err(error.into());
        }
        self.log.append(&json(&batch))?;
        self.log.commit()?;
        (self.memory.at, self.memory.journal) = (at, journal);
        self.happened.append(&mut self.happening);
        for after in std::mem::take(&mut self.after) {
            self.tell(after);
        }
        if self.log.size() > self.log_bytes_max {
            let stored =
                Stored { memory: self.memory.clone(), state: self.coordinator.state().clone() };
            self.log.snapshot(&json(&stored))?;
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

    /// The batch must be on the disk so long from now, or earlier.
    fn wants_commit(&mut self, within: Duration) {
        let at = self.clock.now() + within;
        self.commit_at = Some(self.commit_at.map_or(at, |earlier| earlier.min(at)));
    }

    fn after(&mut self, after: After) {
        self.after.push(after);
        self.wants_commit(Duration::ZERO);
    }

    fn change_tokens(&mut self, change: TokenChange) {
        self.memory.tokens.apply(&change);
        self.batch.tokens.push(change);
    }

    fn take(&mut self, message: Incoming) {
        let now = self.clock.now();
        match message {
            Incoming::Look { token, known, version, request, reply } => {
                let answer = match self.check(token.as_ref(), known, &version, &request) {
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
            self.wants_commit(Duration::ZERO);
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
    }
}

impl DriverConfig {
    fn begin(&self) -> Stored {
        let memory = Memory {
            job: JobName::random(),
            text: self.text.clone(),
            began: SystemTime::now(),
            at: Duration::ZERO,
            facts: None,
            tokens: Tokens::default(),
            heard: BTreeMap::new(),
            addresses: BTreeMap::new(),
            banned: BTreeSet::new(),
            journal: 0,
        };
        Stored { memory, state: State::new(self.rules, self.done.clone()) }
    }

    fn parse<T: serde::de::DeserializeOwned>(&self, bytes: &[u8]) -> Result<T, DriverError> {
        serde_json::from_slice(bytes).map_err(|error| {
            let path = self.folder.clone();
            DriverError::Format { path, why: error.to_string() }
        })
    }
}

fn json<T: serde::Serialize>(value: &T) -> Vec<u8> {
    serde_json::to_vec(value).expect("plain data can be written as JSON")
}

#[cfg(test)]
mod tests;
