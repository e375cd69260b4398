//! The coordinator's side of a job on processes: takes what workers say, has the coordinator decide, and tells them.
//!
//! It knows no sockets and no pipes: a connection is a desk, with a queue in each direction.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use paceline_net::processes::message::{
    Conclude, Down, JobText, PackedSnapshot, Secret, Up, VERSION,
};
use paceline_runtime::coordination::{
    Addressed, Collected, Coordination, Coordinator, Input, Order, Output, Rules, Word,
};
use paceline_runtime::edge::ClusterOutput;
use paceline_runtime::snapshot::SnapshotParts;
use paceline_runtime::wire::Published;
use paceline_runtime::{Line, Record, Snapshot, Spans, WorkerId};

use super::Pending;
use super::center_lines::CenterLines;
use super::reported::Reported;
use crate::run::Request;

/// A connection to one worker process.
pub type DeskId = u64;

/// What comes from a connection.
pub enum Incoming {
    Opened { to: Sender<Down> },
    Said(Box<Up>),
    Closed,
}

pub struct Office {
    start: Instant,
    /// How long the job had run before, if it was resumed.
    before: Duration,
    rules: Rules,
    coordinator: Coordinator,
    job: JobText,
    /// A hash of the data, which all workers must have alike.
    data: u64,
    secret: Secret,
    incoming: Receiver<(DeskId, Incoming)>,
    desks: BTreeMap<DeskId, Desk>,
    outputs: VecDeque<ClusterOutput>,
    /// When the coordinator wants to be asked what is due.
    wake: Option<Duration>,
    last_tick: Duration,
    parts: SnapshotParts,
    /// Snapshots whose center is still on its way.
    pending: BTreeMap<u64, Pending>,
    requests: u64,
    /// The newest snapshot, from which all begin anew if every replica is lost.
    snapshot: Option<Arc<Snapshot>>,
    reported: Reported,
    center: CenterLines,
    /// What workers could not do.
    pub failures: Vec<String>,
    concluded: BTreeMap<DeskId, Option<u64>>,
    /// How many workers were admitted and then lost with their process.
    pub crashed: u32,
}

struct Desk {
    to: Sender<Down>,
    worker: Option<WorkerId>,
    address: Option<SocketAddr>,
    /// Its worker counts as lost; it may come back under a new id.
    is_put_out: bool,
    /// Its worker has ended.
    is_gone: bool,
}

/// What an office needs to know.
pub struct OfficeConfig {
    pub rules: Rules,
    /// The samples that an earlier run had applied, and how long it took.
    pub done: Spans,
    pub elapsed: Duration,
    pub job: JobText,
    pub data: u64,
    pub secret: Secret,
    pub incoming: Receiver<(DeskId, Incoming)>,
}

impl Office {
    pub fn new(config: OfficeConfig) -> Office {
        let OfficeConfig { rules, done, elapsed, job, data, secret, incoming } = config;
        let center = CenterLines::begin(done.clone());
        Office {
            start: Instant::now(),
            before: elapsed,
            rules,
            coordinator: Coordinator::new(rules, done),
            job,
            data,
            secret,
            incoming,
            desks: BTreeMap::new(),
            outputs: VecDeque::new(),
            wake: None,
            last_tick: Duration::ZERO,
            parts: SnapshotParts::default(),
            pending: BTreeMap::new(),
            requests: 0,
            snapshot: None,
            reported: Reported::default(),
            center,
            failures: vec![],
            concluded: BTreeMap::new(),
            crashed: 0,
        }
    }

    /// The time of the job, over all its runs.
    fn now(&self) -> Duration {
        self.before + self.start.elapsed()
    }

    pub fn is_over(&self) -> bool {
        self.coordinator.is_over()
    }

    /// Whether there was a first view.
    pub fn has_begun(&self) -> bool {
        self.coordinator.view().number > 0 || self.is_over()
    }

    /// How many connections there are.
    pub fn connected(&self) -> usize {
        self.desks.len()
    }

    /// Whether the job is over and every worker that could say so has ended. One that was put out may be stopped for long.
    pub fn has_ended(&self) -> bool {
        let is_done = |desk: &Desk| desk.worker.is_none() || desk.is_gone || desk.is_put_out;
        self.is_over() && self.pending.is_empty() && self.desks.values().all(is_done)
    }

    /// Waits for something to happen, but not for long; returns what there is for the journal.
    pub fn next(&mut self) -> Option<ClusterOutput> {
        if let Some(output) = self.outputs.pop_front() {
            return Some(output);
        }
        let now = self.now();
        let wake = self.wake.map_or(IDLE, |wake| wake.saturating_sub(now)).min(IDLE);
        match self.incoming.recv_timeout(wake) {
            Ok((desk, incoming)) => self.take(desk, incoming),
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {}
        }
        self.tick();
        self.outputs.pop_front()
    }

    fn tick(&mut self) {
        let now = self.now();
        let every = (self.rules.patience / 16).clamp(TICK_MIN, TICK_MAX);
        let is_due = self.wake.is_some_and(|wake| wake <= now) || now >= self.last_tick + every;
        if is_due {
            (self.last_tick, self.wake) = (now, None);
            self.step(Input::Tick);
        }
    }

    fn take(&mut self, desk: DeskId, incoming: Incoming) {
        match incoming {
            Incoming::Opened { to } => {
                drop(to.send(Down::Job(self.job.clone())));
                let (worker, address) = (None, None);
                let new = Desk { to, worker, address, is_put_out: false, is_gone: false };
                self.desks.insert(desk, new);
            }
            Incoming::Said(up) => self.hear(desk, *up),
            Incoming::Closed => self.close(desk),
        }
    }

    fn close(&mut self, desk: DeskId) {
        let Some(Desk { worker, is_gone, is_put_out, .. }) = self.desks.remove(&desk) else {
            return;
        };
        let Some(who) = worker.filter(|_| !is_gone) else { return };
        if !is_put_out {
            self.record(Record::Crashed { who });
        }
        self.crashed += 1;
        self.forget_center(who);
        self.step(Input::Lost(who));
    }

    fn hear(&mut self, desk: DeskId, up: Up) {
        let Some(from) = self.desks.get(&desk) else { return };
        let worker = from.worker;
        if let Some(who) = worker {
            self.step(Input::Beat(who));
        }
        match (up, worker) {
            (Up::Hello { version, data, address }, _) => self.hello(desk, (version, data), address),
            (Up::Word(word), Some(who)) => self.word(desk, who, word),
            (Up::Line(line), _) => self.line(line),
            (Up::Part { part, done }, Some(from)) => {
                let word = part.word(done);
                self.parts.insert(from, *part);
                self.step(Input::Word { from, number: 0, word });
            }
            (Up::Center { request, center }, _) => self.center(request, center),
            (Up::Concluded { params }, _) => drop(self.concluded.insert(desk, params)),
            (Up::SaveWished, _) => self.step(Input::Save),
            (Up::Failed { why }, _) => self.failures.push(why),
            (Up::Beat | Up::Word(_) | Up::Part { .. }, _) => {}
        }
    }

    fn hello(&mut self, desk: DeskId, (version, data): (u32, u64), address: SocketAddr) {
        let refuse = |why: &str| Down::Refused { why: why.to_owned() };
        let refusal = if version != VERSION {
            Some(refuse("it runs another version of Paceline than the coordinator"))
        } else if data != self.data {
            Some(refuse("its data differ from the coordinator's: are they the same files?"))
        } else {
            None
        };
        if let Some(refusal) = refusal {
            return self.tell(desk, refusal);
        }
        let now = self.now();
        let output = self.coordinator.step(now, Input::Hello);
        let Some(id) = output.admitted else { return };
        let (secret, patience) = (self.secret, self.rules.patience);
        self.tell(desk, Down::Welcome { id, now, secret, patience });
        let others: Vec<(DeskId, WorkerId, SocketAddr)> = self
            .desks
            .iter()
            .filter(|(other, it)| **other != desk && !it.is_gone && !it.is_put_out)
            .filter_map(|(other, it)| Some((*other, it.worker?, it.address?)))
            .collect();
        for (other, who, theirs) in others {
            self.tell(desk, Down::Peer { who, address: theirs });
            self.tell(other, Down::Peer { who: id, address });
        }
        if let Some(it) = self.desks.get_mut(&desk) {
            (it.worker, it.address) = (Some(id), Some(address));
            (it.is_put_out, it.is_gone) = (false, false);
        }
        self.carry_out(output);
    }

    fn word(&mut self, desk: DeskId, from: WorkerId, word: Word) {
        let is_gone = word == Word::Gone;
        if let Word::Restored { done, .. } = &word
            && let Some(record) = self.center.restored(from, done)
        {
            self.record(record);
        }
        self.step(Input::Word { from, number: 0, word });
        if !is_gone {
            return;
        }
        let is_over = self.is_over();
        let Some(it) = self.desks.get_mut(&desk) else { return };
        it.is_gone = true;
        // At the end of the job somebody must still answer for the parameters; one that was put out comes back.
        if !is_over && !it.is_put_out {
            self.tell(desk, Down::Dismissed);
        }
    }

    /// A line for the journal. A result is reported by every contributor, and has one line.
    fn line(&mut self, line: Line) {
        if self.reported.is_first(&line) {
            self.read(&line);
            self.outputs.push_back(ClusterOutput::Line(line));
        }
    }

    fn record(&mut self, record: Record) {
        let line = Line { at: self.now(), record };
        self.read(&line);
        self.outputs.push_back(ClusterOutput::Line(line));
    }

    fn read(&mut self, line: &Line) {
        if self.rules.coordination == (Coordination::Centered { applies_samples: true }) {
            self.center.read(line);
        }
    }

    fn tell(&self, desk: DeskId, message: Down) {
        if let Some(desk) = self.desks.get(&desk) {
            // One whose connection has ended is closed soon.
            drop(desk.to.send(message));
        }
    }

    fn step(&mut self, input: Input) {
        let output = self.coordinator.step(self.now(), input);
        self.carry_out(output);
    }

    fn carry_out(&mut self, output: Output) {
        let Output { orders, records, snapshot, wake, .. } = output;
        records.into_iter().for_each(|record| self.record(record));
        for Addressed { to, order, .. } in orders {
            self.order(to, order);
        }
        self.wake = self.wake.into_iter().chain(wake).min();
        if let Some(collected) = snapshot {
            self.collected(collected);
        }
        let collecting = self.coordinator.collecting();
        self.parts.keep(collecting);
    }

    fn desk_of(&self, who: WorkerId) -> Option<DeskId> {
        self.desks.iter().find(|(_, desk)| desk.worker == Some(who)).map(|(id, _)| *id)
    }

    /// Whether a process is connected, and was not put out: one that is stopped keeps its connection.
    fn is_here(&self, desk: DeskId) -> bool {
        self.desks.get(&desk).is_some_and(|desk| !desk.is_put_out)
    }

    /// The center that a worker was asked for will not come.
    fn forget_center(&mut self, host: WorkerId) {
        self.pending.retain(|_, it| it.host != host);
    }

    fn order(&mut self, to: WorkerId, order: Order) {
        let Some(desk) = self.desk_of(to) else { return };
        if let Order::PutOut { banned: false, .. } = &order
            && let Some(desk) = self.desks.get_mut(&desk)
        {
            desk.is_put_out = true;
            self.forget_center(to);
        }
        if let (Order::Start { from_saved: true, .. }, Some(snapshot)) = (&order, &self.snapshot) {
            self.tell(desk, Down::Snapshot(PackedSnapshot::pack(snapshot)));
        }
        self.tell(desk, Down::Order(order));
    }

    /// All parts of a snapshot are there. A center is fetched from the worker that hosts it.
    fn collected(&mut self, collected: Collected) {
        let parts = self.parts.take(&collected);
        let is_centered = matches!(self.rules.coordination, Coordination::Centered { .. });
        let host = self.coordinator.view().members.first().copied();
        match host.zip(host.and_then(|host| self.desk_of(host))).filter(|_| is_centered) {
            Some((host, desk)) => {
                self.requests += 1;
                let request = self.requests;
                self.pending.insert(request, Pending { host, collected, parts });
                self.tell(desk, Down::SendCenter { request });
            }
            None => self.assemble(collected, parts, None),
        }
    }

    fn center(&mut self, request: u64, center: Option<Box<Published>>) {
        if let Some(Pending { collected, parts, .. }) = self.pending.remove(&request) {
            self.assemble(collected, parts, center.map(|center| *center));
        }
    }

    fn assemble(
        &mut self,
        collected: Collected,
        parts: BTreeMap<WorkerId, paceline_runtime::WorkerSnapshot>,
        center: Option<Published>,
    ) {
        if parts.len() < collected.members.len() {
            return;
        }
        let coordination = self.rules.coordination;
        let snapshot = Arc::new(Snapshot::assemble(collected, parts, center, coordination));
        self.snapshot = Some(snapshot.clone());
        self.step(Input::Saved(snapshot.saved()));
        self.outputs.push_back(ClusterOutput::Snapshot(snapshot));
    }

    /// Asks that the job end after this round.
    pub fn stop(&mut self) {
        self.step(Input::Stop);
    }

    /// Asks for a snapshot.
    pub fn save(&mut self) {
        self.step(Input::Save);
    }

    /// Puts out a member, on the user's wish.
    pub fn put_out(&mut self, request: Request) {
        self.step(request.input());
    }

    /// Has one member evaluate what is deployed, once the job is over: the first that can. Its score is among the lines
    /// that come out of [`next`](Self::next). Returns a fingerprint of the parameters.
    pub fn conclude(
        &mut self,
        conclude: &Conclude,
        mut take: impl FnMut(ClusterOutput),
    ) -> Option<u64> {
        let is_there = |who: &WorkerId| self.desk_of(*who);
        let desks: Vec<DeskId> = conclude.of.iter().filter_map(is_there).collect();
        for desk in desks {
            self.tell(desk, Down::Conclude(conclude.clone()));
            let mut others: Vec<WorkerId> = conclude.of.clone();
            while !self.concluded.contains_key(&desk) && self.is_here(desk) {
                // No view comes any more that would tell it for whose replicas it need not wait.
                let is_here = |who: WorkerId| self.desk_of(who).is_some_and(|it| self.is_here(it));
                for who in others.extract_if(.., |who| !is_here(*who)) {
                    self.tell(desk, Down::Lost { who });
                }
                self.next().into_iter().for_each(&mut take);
            }
            if let Some(params) = self.concluded.remove(&desk) {
                while let Some(output) = self.outputs.pop_front() {
                    take(output);
                }
                return params;
            }
        }
        None
    }

    /// Tells all processes that nothing is left to do.
    pub fn dismiss(&mut self) {
        for desk in self.desks.keys().copied().collect::<Vec<_>>() {
            self.tell(desk, Down::Dismissed);
        }
    }
}

/// The longest wait for something to happen.
const IDLE: Duration = Duration::from_millis(20);
const TICK_MIN: Duration = Duration::from_millis(5);
const TICK_MAX: Duration = Duration::from_millis(250);
