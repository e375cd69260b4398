//! A cluster in virtual time: a queue of scheduled events, the network, the coordinator, and faults.

mod connection;
mod faults;
mod gradients;
mod queue;
mod traffic;

use std::cell::{Cell, RefCell};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, VecDeque};
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use paceline_learn::{Dice, Vector};
use paceline_runtime::coordination::{
    Addressed, Coordination, Coordinator, Entry as LogEntry, Input, Rules, State, Word,
};
use paceline_runtime::edge::{
    Action, Answer, Ask, Cluster, ClusterOutput, Compute, Event, News, Replica, Shareable, Shelves,
    published,
};
use paceline_runtime::snapshot::SnapshotParts;
use paceline_runtime::wire::{Letter, Shelf};
use paceline_runtime::{Line, Record, Snapshot, Spans, Sum, Ticket, WorkerId};
use rustc_hash::FxHashMap;

use self::connection::Connection;
use self::queue::{QueueEntry, Read, Scheduled};
use crate::exchanges::Exchanges;
use crate::hosts::{Hosts, StartHost};
use crate::memo::Memo;
use crate::network::Wires;
use crate::pool::Pool;
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
    /// When each server will have handled the calls that have arrived.
    server_free: BTreeMap<WorkerId, Duration>,
    /// The numbers that each worker has encoded since its last gradient.
    encoded: BTreeMap<WorkerId, u64>,
    /// Reads of living peers that have not published anything yet.
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

    fn tell(&mut self, to: WorkerId, news: News) {
        if let Some(end) = self.paused_until(to) {
            self.at(end, Scheduled::Deferred { to, news: Box::new(news) });
        } else if self.alive.contains(&to) {
            self.out.push_back(Outgoing::Event(Event::For { to, news }));
        }
    }

    /// The coordinator takes an input; its orders are on their way to the workers.
    fn coordinate(&mut self, input: Input) {
        let output = self.coordinator.step(self.now, input);
        self.carry_out(output);
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
