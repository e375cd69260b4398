//! A cluster in virtual time: a queue of scheduled events, the network, the coordinator, and faults.

mod connection;
mod faults;

use std::cell::{Cell, RefCell};
use std::cmp::{Ordering, Reverse};
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, VecDeque};
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use paceline_learn::{Dice, Vector};
use paceline_runtime::coordination::{
    Addressed, Coordination, Coordinator, Entry as LogEntry, Input, Order, Rules, State, Word,
};
use paceline_runtime::edge::{
    Action, Answer, Ask, Cluster, ClusterOutput, Compute, Event, News, Place, Replica, Shareable,
    Shelves, published,
};
use paceline_runtime::snapshot::SnapshotParts;
use paceline_runtime::wire::{Extent, HEADER_BYTES, Letter, Published, Shelf};
use paceline_runtime::{Line, Record, Snapshot, Spans, Sum, Ticket, WorkerId};

use self::connection::Connection;
use rustc_hash::FxHashMap;

use crate::exchanges::{Ended, Exchanges, Receiver, RingMessage};
use crate::hosts::{Hosts, StartHost};
use crate::memo::Memo;
use crate::network::{Transit, Wires};
use crate::pool::{Computing, Pool};
use crate::scenario::{Scenario, seconds};
use crate::speed::Speed;

/// The configuration of a simulated cluster, besides its scenario.
pub struct SimConfig {
    pub seed: u64,
    pub compute: Compute,
    pub threads: usize,
    pub samples_total: u64,
    pub samples_per_epoch: u64,
    pub coordination: Coordination,
    /// The samples that were applied before the run was resumed.
    pub done: Spans,
}

pub struct SimCluster {
    scenario: Scenario,
    seed: u64,
    now: Duration,
    due: BinaryHeap<Reverse<QueueEntry>>,
    serial: u64,
    /// What happens at this moment, in order.
    out: VecDeque<Outgoing>,
    outputs: Outputs,
    memo: Memo,
    speed: Speed,
    wires: Wires,
    exchanges: Exchanges,
    pool: Pool,
    /// If workers have hosts that hold their replicas.
    hosts: Option<Hosts>,
    rules: Rules,
    coordinator: Coordinator,
    /// The coordinator's process does not run.
    is_killed: bool,
    restarts: u64,
    /// What outlives the coordinator's process: a state, and the entries logged since.
    stored: State,
    log: Vec<LogEntry>,
    connections: FxHashMap<WorkerId, Connection>,
    /// Random numbers drawn for messages so far.
    draws: u64,
    /// How many events have happened.
    events: Rc<Cell<u64>>,
    /// How many of them at this moment.
    at_once: u64,
    shelves: Arc<Mutex<Shelves>>,
    /// Reads of living peers that have not published anything yet.
    /// When each server will have handled the calls that have arrived.
    server_free: BTreeMap<WorkerId, Duration>,
    /// The numbers that each worker has encoded since its last gradient.
    encoded: BTreeMap<WorkerId, u64>,
    unanswered: Vec<Read>,
    parts: SnapshotParts,
    /// The newest snapshot, as if it were stored where no worker and no coordinator can be lost with it.
    snapshot: Option<Arc<Snapshot>>,
    alive: BTreeSet<WorkerId>,
    /// When each dead worker died.
    died: BTreeMap<WorkerId, Duration>,
    /// Workers that were told that they count as lost; each comes back under a new id.
    put_out: BTreeSet<WorkerId>,
    leaving: BTreeSet<WorkerId>,
    /// Workers that have said hello and do not know their ids yet.
    joining: usize,
    /// Wanted numbers of workers, each from a sample on; the next one comes first.
    sizes: VecDeque<(u64, u32)>,
}

/// What has come out of a cluster and was not taken yet.
pub type Outputs = Rc<RefCell<VecDeque<ClusterOutput>>>;

/// More events than this at one moment are a circle that never ends.
const AT_ONCE_MAX: u64 = 1 << 22;

enum Outgoing {
    Event(Event),
    /// A line of the coordinator; boxed, because records are larger than events, and rare here.
    Record(Box<Record>),
}

impl Outgoing {
    fn record(record: Record) -> Outgoing {
        Outgoing::Record(Box::new(record))
    }
}

struct QueueEntry {
    at: Duration,
    serial: u64,
    scheduled: Scheduled,
}

enum Scheduled {
    Computed {
        who: WorkerId,
        ticket: Ticket,
        /// `None`: the worker's host computes it.
        computing: Option<Computing>,
    },
    Ring(RingMessage),
    Letter {
        from: WorkerId,
        to: WorkerId,
        letter: Box<Letter>,
        transit: Transit,
    },
    /// It has passed the downlink and, if a server has to update its center by it, the letters before it.
    Received {
        from: WorkerId,
        to: WorkerId,
        letter: Box<Letter>,
    },
    Asked(Read),
    Value {
        from: WorkerId,
        to: WorkerId,
        ticket: Ticket,
        value: Published,
        /// Only this of its transit: the largest kind of event decides how much memory every event moves.
        left: Duration,
    },
    Nothing {
        to: WorkerId,
        ticket: Ticket,
    },
    ToCoordinator {
        from: WorkerId,
        generation: u64,
        number: u64,
        word: Word,
    },
    FromCoordinator {
        to: WorkerId,
        generation: u64,
        number: u64,
        order: Order,
    },
    Reconnect {
        who: WorkerId,
    },
    Kill {
        back_after: f64,
    },
    Restart,
    /// For a worker whose process was stopped.
    Deferred {
        to: WorkerId,
        news: Box<News>,
    },
    Suspect {
        between: (WorkerId, WorkerId),
        until: Duration,
    },
    Noticed(Input),
    /// The coordinator has given a worker its id.
    Admitted {
        who: WorkerId,
        restarts: u64,
    },
    Beats,
    Crash {
        who: WorkerId,
        back_after: Option<f64>,
    },
    Leave {
        who: WorkerId,
    },
    Join,
    Size {
        workers: u32,
    },
    Churn {
        who: WorkerId,
    },
}

/// A worker reads what a peer has published.
#[derive(Clone, Copy)]
struct Read {
    by: WorkerId,
    from: WorkerId,
    shelf: Shelf,
    extent: Extent,
    ticket: Ticket,
    /// Until the peer has published something.
    waits: bool,
}

impl PartialEq for QueueEntry {
    fn eq(&self, other: &QueueEntry) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for QueueEntry {}

impl PartialOrd for QueueEntry {
    fn partial_cmp(&self, other: &QueueEntry) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for QueueEntry {
    fn cmp(&self, other: &QueueEntry) -> Ordering {
        (self.at, self.serial).cmp(&(other.at, other.serial))
    }
}

impl SimCluster {
    pub fn new(scenario: Scenario, setting: SimConfig) -> SimCluster {
        let SimConfig {
            seed,
            compute,
            threads,
            samples_total,
            samples_per_epoch,
            coordination,
            done,
        } = setting;
        let rules = Rules {
            patience: seconds(scenario.coordinator.patience),
            gathering: seconds(scenario.coordinator.gathering),
            keeps_log: scenario.has_unsteady_coordinator(),
            members_min: scenario.coordinator.members_min.unwrap_or(1) as usize,
            members_max: scenario.coordinator.members_max.map(|most| most as usize),
            ..Rules::new(samples_total, scenario.workers as usize, coordination)
        };
        let mut cluster = SimCluster {
            seed,
            now: Duration::ZERO,
            due: BinaryHeap::new(),
            serial: 0,
            out: VecDeque::new(),
            outputs: Outputs::default(),
            memo: Memo::default(),
            speed: Speed::new(seed, scenario.compute.clone(), scenario.workers),
            wires: Wires::new(&scenario),
            exchanges: Exchanges::new(seed, scenario.ring_model()),
            pool: Pool::new(compute, threads),
            hosts: None,
            rules,
            stored: State::new(rules, done.clone()),
            log: vec![LogEntry::Started],
            coordinator: Coordinator::new(rules, done),
            is_killed: false,
            restarts: 0,
            connections: FxHashMap::default(),
            draws: 0,
            events: Rc::default(),
            at_once: 0,
            shelves: Arc::default(),
            server_free: BTreeMap::new(),
            encoded: BTreeMap::new(),
            unanswered: vec![],
            parts: SnapshotParts::default(),
            snapshot: None,
            alive: BTreeSet::new(),
            died: BTreeMap::new(),
            put_out: BTreeSet::new(),
            leaving: BTreeSet::new(),
            joining: 0,
            sizes: VecDeque::new(),
            scenario,
        };
        cluster.plan_faults(samples_per_epoch);
        // The first workers are there from the start, and so is their view.
        for _ in 0..cluster.scenario.workers {
            let output = cluster.coordinator.step(Duration::ZERO, Input::Hello);
            let who = output.admitted.expect("a worker that says hello gets an id");
            cluster.spawn(who);
            cluster.log.extend(output.log);
            cluster.out.extend(output.records.into_iter().map(Outgoing::record));
            for Addressed { to, number, order } in output.orders {
                cluster.order_arrives(to, 0, number, order);
            }
        }
        cluster
    }

    /// The same cluster, in which each worker has a host that holds its replica; `start` gives it one when it starts.
    pub fn with_hosts(mut self, start: StartHost) -> SimCluster {
        let mut hosts = Hosts::new(start);
        self.alive.iter().for_each(|who| hosts.open(*who));
        self.hosts = Some(hosts);
        self
    }

    /// Where published values are; for evaluating without disturbing anybody.
    pub fn shelves(&self) -> Arc<Mutex<Shelves>> {
        self.shelves.clone()
    }

    fn published(&self, of: &[WorkerId], shelf: Shelf) -> Vec<Arc<Vector>> {
        published(&self.shelves.lock().expect("no holder panics"), of, shelf)
    }

    /// Where lines of the journal come out.
    pub fn outputs(&self) -> Outputs {
        self.outputs.clone()
    }

    /// Counts everything that crosses the wires, headers included.
    pub fn bytes_on_wires(&self) -> Rc<Cell<u64>> {
        self.wires.bytes.clone()
    }

    /// Counts the events of the simulation.
    pub fn events(&self) -> Rc<Cell<u64>> {
        self.events.clone()
    }

    fn dice(&self, who: WorkerId, purpose: u64) -> Dice {
        Dice::keyed(&[self.seed, u64::from(who.0), purpose])
    }

    fn at(&mut self, at: Duration, scheduled: Scheduled) {
        self.serial += 1;
        self.due.push(Reverse(QueueEntry { at, serial: self.serial, scheduled }));
    }

    /// What the sender had not yet sent when it died never arrives.
    fn was_sent(&self, from: WorkerId, left: Duration) -> bool {
        self.died.get(&from).is_none_or(|died| left <= *died)
    }

    fn tell(&mut self, to: WorkerId, news: News) {
        if let Some(end) = self.paused_until(to) {
            self.at(end, Scheduled::Deferred { to, news: Box::new(news) });
        } else if self.alive.contains(&to) {
            self.out.push_back(Outgoing::Event(Event::For { to, news }));
        }
    }

    fn ring(&mut self, messages: impl IntoIterator<Item = RingMessage>, ended: Vec<Ended>) {
        for mut message in messages {
            let (at, first) = (message.transit.arrives, self.serial + 1);
            if let Receiver::Each { members, serial } = &mut message.to {
                // The event has the numbers of all messages that it stands for.
                (*serial, self.serial) = (first, self.serial + u64::from(*members));
            } else {
                self.serial = first;
            }
            self.exchanges.scheduled(&message, first);
            let scheduled = Scheduled::Ring(message);
            self.due.push(Reverse(QueueEntry { at, serial: first, scheduled }));
        }
        for Ended { to, ticket, result } in ended {
            self.tell(to, News::of(ticket, result));
        }
    }

    /// The coordinator takes an input; its orders are on their way to the workers.
    fn coordinate(&mut self, input: Input) {
        let output = self.coordinator.step(self.now, input);
        self.carry_out(output);
    }

    fn happen(&mut self, scheduled: Scheduled) {
        match scheduled {
            Scheduled::Computed { who, ticket, computing } => {
                if let Some(end) = self.paused_until(who) {
                    self.at(end, Scheduled::Computed { who, ticket, computing });
                } else if self.alive.contains(&who) {
                    self.computed(who, ticket, computing);
                }
            }
            Scheduled::Ring(message) => self.pass_on(message),
            Scheduled::Letter { from, to, letter, transit } => {
                if self.was_sent(from, transit.left) {
                    self.receive(from, to, letter);
                }
            }
            Scheduled::Received { from, to, letter } => {
                self.tell(to, News::Letter { from, letter });
            }
            Scheduled::Asked(read) => self.answer(read),
            Scheduled::Value { from, to, ticket, value, left } => {
                if self.was_sent(from, left) {
                    self.tell(to, News::Value { ticket, value: Some(value) });
                }
            }
            Scheduled::Nothing { to, ticket } => self.tell(to, News::Value { ticket, value: None }),
            Scheduled::ToCoordinator { from, generation, number, word } => {
                self.word_arrives(from, generation, number, word);
            }
            Scheduled::Reconnect { who } => self.reconnect(who),
            Scheduled::Kill { back_after } => self.kill_coordinator(back_after),
            Scheduled::Restart => self.restart_coordinator(),
            Scheduled::Deferred { to, news } => self.tell(to, *news),
            Scheduled::Suspect { between, until } => {
                self.suspect(between);
                let again = self.now + self.rules.patience;
                let is_used = self.alive.contains(&between.0) && self.alive.contains(&between.1);
                if again < until && is_used && !self.coordinator.is_over() {
                    self.at(again, Scheduled::Suspect { between, until });
                }
            }
            Scheduled::Admitted { restarts, .. } if restarts < self.restarts || self.is_killed => {
                // The answer was lost with the coordinator.
                self.joining -= 1;
                self.join();
            }
            Scheduled::Admitted { who, .. } => {
                self.joining -= 1;
                self.spawn(who);
            }
            Scheduled::FromCoordinator { to, generation, number, order } => {
                match self.paused_until(to) {
                    Some(end) => {
                        self.at(end, Scheduled::FromCoordinator { to, generation, number, order });
                    }
                    None => self.order_arrives(to, generation, number, order),
                }
            }
            Scheduled::Noticed(Input::Hello) if self.is_killed => {
                let again = self.now + seconds(self.scenario.coordinator.reconnect);
                self.at(again, Scheduled::Noticed(Input::Hello));
            }
            // A restarted coordinator notices a loss by the silence.
            Scheduled::Noticed(_) if self.is_killed => {}
            Scheduled::Noticed(input) => self.coordinate(input),
            Scheduled::Beats => self.beats(),
            Scheduled::Crash { who, back_after } => {
                if self.alive.contains(&who) {
                    self.crash(who);
                    if let Some(after) = back_after {
                        self.at(self.now + seconds(after), Scheduled::Join);
                    }
                }
            }
            Scheduled::Leave { who } => self.leave(who),
            Scheduled::Join => self.join(),
            Scheduled::Size { workers } => self.resize(workers as usize),
            Scheduled::Churn { who } => {
                if let Some(churn) = self.scenario.churn.clone() {
                    self.churn(who, &churn);
                }
            }
        }
    }

    fn pass_on(&mut self, message: RingMessage) {
        if !self.scenario.pauses.is_empty() {
            let members = self.exchanges.members(message.name);
            let receivers: Vec<WorkerId> = match message.to {
                Receiver::Rank(rank) => members.get(rank as usize).copied().into_iter().collect(),
                Receiver::Each { .. } | Receiver::All => members.to_vec(),
            };
            if let Some(end) = receivers.into_iter().filter_map(|who| self.paused_until(who)).max()
            {
                return self.at(end, Scheduled::Ring(message));
            }
        }
        let arrives = match message.to {
            Receiver::Rank(_) => self.was_sent(message.from, message.transit.left),
            Receiver::Each { .. } => true,
            Receiver::All => {
                let members = self.exchanges.members(message.name);
                members.iter().all(|member| !self.died.contains_key(member))
            }
        };
        if arrives {
            let (next, ended) = self.exchanges.arrive(self.now, &mut self.wires, message);
            match (message.to, next.first().map(|next| next.to)) {
                (Receiver::Each { serial, .. }, Some(Receiver::Rank(_))) => {
                    // The members are no longer in step: the messages that the event stood for arrive one by one.
                    for (serial, message) in (serial..).zip(next) {
                        let (at, scheduled) = (self.now, Scheduled::Ring(message));
                        self.due.push(Reverse(QueueEntry { at, serial, scheduled }));
                    }
                }
                _ => self.ring(next, ended),
            }
        }
    }

    /// A read is answered by the peer's shelf; its task sleeps on.
    fn answer(&mut self, read: Read) {
        let Read { by, from, shelf, extent, ticket, waits } = read;
        if self.died.contains_key(&from) {
            return;
        }
        if let Some(end) = self.paused_until(from) {
            return self.at(end, Scheduled::Asked(read));
        }
        let value = if self.alive.contains(&from) {
            self.shelves.lock().expect("no holder panics").get(&(from, shelf)).cloned()
        } else {
            None
        };
        match value {
            Some(value) => {
                let value = value.extract(extent);
                let bytes = HEADER_BYTES + value.bytes();
                self.exchanges.fall_out_of_step(&mut self.wires);
                let transit = self.wires.send(self.now, from, by, bytes);
                if from != by {
                    self.out.push_back(Outgoing::record(Record::Sent { who: from, to: by, bytes }));
                }
                let left = transit.left;
                self.at(transit.arrives, Scheduled::Value { from, to: by, ticket, value, left });
            }
            None if waits && self.alive.contains(&from) => self.unanswered.push(read),
            None => {
                let arrives = self.wires.signal(self.now, from, by);
                self.at(arrives, Scheduled::Nothing { to: by, ticket });
            }
        }
    }

    /// The last byte of a letter would arrive now, if nobody else sent to this worker.
    fn receive(&mut self, from: WorkerId, to: WorkerId, letter: Box<Letter>) {
        let mut at = self.wires.receive(self.now, from, to, letter.bytes());
        // A server handles one call after another, and each update of its center takes time.
        if let Some(numbers) = letter.numbers_for_server() {
            let free = self.server_free.entry(to).or_default();
            *free = at.max(*free) + self.speed.serving(to, numbers);
            at = *free;
        }
        if at > self.now {
            self.at(at, Scheduled::Received { from, to, letter });
        } else {
            self.tell(to, News::Letter { from, letter });
        }
    }

    fn compute(&mut self, who: WorkerId, ticket: Ticket, at: Place, spans: Spans, updates: u32) {
        while let Some((sample, workers)) = self.sizes.front().copied()
            && spans.intervals().last().is_some_and(|(_, end)| *end > sample)
        {
            self.sizes.pop_front();
            self.at(self.now, Scheduled::Size { workers });
        }
        let size = match &at {
            Place::Ours(params) => params.len(),
            Place::Theirs { size, .. } => *size,
        };
        let encoded = self.encoded.remove(&who).unwrap_or(0);
        let cost = self.speed.cost(who, self.now, spans.len(), (updates, size), encoded);
        let computing = match at {
            Place::Ours(params) => Some(self.pool.start(params, spans)),
            Place::Theirs { ahead, moment, .. } => {
                self.hosts().ask(who, ticket, Ask::Compute { spans, ahead, moment });
                None
            }
        };
        self.at(self.now + cost, Scheduled::Computed { who, ticket, computing });
    }

    /// How long a host took is virtual, as for all gradients.
    fn computed(&mut self, who: WorkerId, ticket: Ticket, computing: Option<Computing>) {
        let gradient = match computing {
            Some(computing) => Some(computing.finish()),
            None => match self.hosts().answer(who) {
                Some(News::Computed { gradient, .. }) => Some(gradient),
                _ => None,
            },
        };
        match gradient {
            Some(gradient) => self.tell(who, News::Computed { ticket, gradient, took: None }),
            // A worker is lost with its host.
            None => self.crash(who),
        }
    }

    fn hosts(&self) -> &Hosts {
        self.hosts.as_ref().expect("workers whose replicas are with hosts have hosts")
    }
}

impl Cluster for SimCluster {
    fn now(&self) -> Duration {
        self.now
    }

    fn submit(&mut self, by: WorkerId, action: Action) {
        match action {
            Action::Compute { ticket, at, spans, updates } => {
                self.compute(by, ticket, at, spans, updates);
            }
            Action::Exchange { ticket, view, number, entry } => {
                if view.members.len() > 1 {
                    *self.encoded.entry(by).or_default() += entry.numbers_encoded();
                }
                let (messages, ended) = self.exchanges.enter(
                    self.now,
                    &mut self.wires,
                    by,
                    (view, number),
                    (ticket, entry),
                );
                self.ring(messages, ended);
            }
            Action::Send { to, letter } => {
                let bytes = letter.bytes();
                if let Letter::Gradient { payload, .. } = &*letter {
                    *self.encoded.entry(by).or_default() += payload.numbers_encoded();
                }
                self.exchanges.fall_out_of_step(&mut self.wires);
                let transit = self.wires.send(self.now, by, to, bytes);
                self.at(transit.arrives, Scheduled::Letter { from: by, to, letter, transit });
            }
            Action::Publish { shelf, value } => {
                self.shelves.lock().expect("no holder panics").insert((by, shelf), value);
                let is_it = |read: &mut Read| read.from == by && read.shelf == shelf;
                let answered: Vec<Read> = self.unanswered.extract_if(.., is_it).collect();
                answered.into_iter().for_each(|read| self.answer(read));
            }
            Action::Read { ticket, from, shelf, extent, waits } => {
                let asked = self.wires.signal(self.now, by, from);
                let read = Read { by, from, shelf, extent, ticket, waits };
                self.at(asked, Scheduled::Asked(read));
            }
            Action::Evaluate { samples, ends_epoch, of, shelf } => {
                let (at, parts, replicas) = (self.now, 1, self.published(&of, shelf));
                self.emit(ClusterOutput::Evaluate { by, at, samples, ends_epoch, parts, replicas });
            }
            Action::EvaluatePart { samples, with } => {
                let (at, parts, ends_epoch) = (self.now, with.len(), false);
                let replicas = self.published(&[by], Shelf::Replica);
                self.emit(ClusterOutput::Evaluate { by, at, samples, ends_epoch, parts, replicas });
            }
            Action::Save { part, done } => self.hand_in(by, *part, done),
            Action::Tell(word) => {
                if word == Word::Gone {
                    if !self.coordinator.is_over() {
                        self.clear_shelves(by);
                    }
                    self.alive.remove(&by);
                    self.close_line(by);
                    let was_leaving = self.leaving.remove(&by);
                    if self.put_out.remove(&by) && !was_leaving && !self.coordinator.is_over() {
                        self.join();
                    }
                }
                self.send_word(by, word);
            }
        }
    }

    fn next(&mut self) -> Option<Event> {
        loop {
            match self.out.pop_front() {
                Some(Outgoing::Event(event)) => return Some(event),
                Some(Outgoing::Record(record)) => {
                    self.emit(ClusterOutput::Line(Line { at: self.now, record: *record }));
                }
                None => {
                    let Reverse(next) = self.due.pop()?;
                    self.at_once = if next.at > self.now { 0 } else { self.at_once + 1 };
                    assert!(self.at_once < AT_ONCE_MAX, "time stands still at {:?}", self.now);
                    self.now = next.at;
                    self.events.set(self.events.get() + 1);
                    self.crash_at_event();
                    self.happen(next.scheduled);
                }
            }
        }
    }

    fn is_over(&self) -> bool {
        self.coordinator.is_over()
    }

    fn emit(&mut self, output: ClusterOutput) {
        if let ClusterOutput::Line(Line { record, .. }) = &output
            && let Record::Exchanged { who, view, exchange, .. } = record
        {
            self.exchanges.reported(&mut self.wires, *who, (*view, *exchange));
        }
        self.outputs.borrow_mut().push_back(output);
    }

    /// Virtual time stands still until the host has answered.
    fn ask_host(&mut self, by: WorkerId, ticket: Ticket, ask: Ask) -> Option<Answer> {
        self.hosts().ask(by, ticket, ask);
        match self.hosts().answer(by) {
            Some(News::Hosted { answer, .. }) => Some(answer),
            _ => {
                // A worker is lost with its host.
                self.at(self.now, Scheduled::Crash { who: by, back_after: None });
                None
            }
        }
    }

    fn show_host(&mut self, by: WorkerId, ahead: Spans) {
        self.hosts().show(by, ahead);
    }

    fn descend(
        &mut self,
        before: Replica,
        along: &Arc<Sum>,
        rate: f32,
        step: &dyn Fn(&Replica) -> Replica,
    ) -> Replica {
        self.memo.descend(before, along, rate, step)
    }

    fn once(
        &mut self,
        before: &Shareable,
        along: Option<&Arc<Sum>>,
        step: u64,
        make: &mut dyn FnMut() -> Shareable,
    ) -> Shareable {
        self.memo.once(before, along, step, make)
    }

    fn withdraw(&mut self, by: WorkerId, view: u64, exchange: u64) -> u64 {
        self.exchanges.withdraw(&mut self.wires, by, (view, exchange))
    }

    fn can_lose_members(&self) -> bool {
        self.scenario.can_lose_members()
    }

    fn fingerprint(&mut self, params: &Arc<Vector>) -> u64 {
        self.memo.fingerprint(params)
    }
}
