//! A real cluster in one process: a thread for each worker, and one for its gradients.
//!
//! Workers may join, leave, be killed and be stopped for a while; so may the coordinator, which then starts again from its
//! log. A killed worker's thread ends at its next step, and nothing that it does from then on reaches anybody.

mod cluster;
mod faults;

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use paceline_runtime::coordination::{
    self, Addressed, Collected, Coordination, Coordinator, Input, Order, Rules,
};
use paceline_runtime::edge::{ClusterOutput, Compute, Event, News, Shelves, Workspace};
use paceline_runtime::snapshot::SnapshotParts;
use paceline_runtime::wire::{Entry, Extent, HEADER_BYTES, Published, Shelf};
use paceline_runtime::{
    Line, Meeting, Record, Snapshot, Spans, Ticket, View, WorkerId, WorkerSnapshot,
};

use crate::gradients::{Computing, StartHost};
use crate::inbox::{Teller, inbox};

pub use cluster::ThreadCluster;
pub use faults::Life;

/// The configuration of a cluster of threads.
pub struct ThreadConfig {
    pub seed: u64,
    pub workers: u32,
    pub compute: Compute,
    pub samples_total: u64,
    pub coordination: Coordination,
    /// The samples that were applied before the run was resumed.
    pub done: Spans,
    /// How long the job had run before it was resumed: what workers and the journal call the time begins here.
    pub elapsed: Duration,
    /// Each worker's time per sample, at least, to emulate slower machines; empty: none is emulated.
    pub pace: Vec<Duration>,
    /// If workers have hosts that hold their replicas and compute their gradients: gives a worker that starts its host.
    pub hosts: Option<StartHost>,
    /// If workers and the coordinator may fail.
    pub elastic: Option<Elastic>,
}

/// How a cluster whose workers come and go decides that one is lost.
#[derive(Clone, Copy, Debug)]
pub struct Elastic {
    /// A worker that is stopped for longer counts as lost.
    pub patience: Duration,
    /// Workers that join or leave within this time do so together.
    pub gathering: Duration,
    /// With fewer members, training waits; with `members_max`, more workers wait.
    pub members_min: usize,
    pub members_max: Option<usize>,
}

/// What all workers of the process share.
pub struct ThreadHub {
    start: Instant,
    config: ThreadConfig,
    state: Mutex<State>,
    shelves: Mutex<Shelves>,
    outputs: Mutex<Sender<ClusterOutput>>,
}

struct State {
    rules: Rules,
    coordinator: Coordinator,
    /// What outlives the coordinator: a state, and the entries logged since.
    stored: coordination::State,
    log: Vec<coordination::Entry>,
    presence: Presence,
    /// What the coordinator is told while it is away.
    unheard: VecDeque<Input>,
    inboxes: BTreeMap<WorkerId, Teller>,
    lives: BTreeMap<WorkerId, Arc<Life>>,
    /// Workers that were asked to leave.
    leaving: BTreeSet<WorkerId>,
    /// Workers that were told that they count as lost, and have not ended yet.
    put_out: BTreeSet<WorkerId>,
    /// How many workers that were put out want to come back.
    comebacks: u32,
    /// The newest snapshot, from which all begin anew if every replica is lost.
    snapshot: Option<Arc<Snapshot>>,
    exchanges: HashMap<(u64, u64), Arc<Mutex<Open>>>,
    /// The newest view with a loss: exchanges of older ones can never end.
    closed_before: u64,
    parts: SnapshotParts,
    /// Reads of living peers that have not published anything yet.
    unanswered: Vec<Read>,
}

/// A worker reads what a peer has published.
struct Read {
    by: WorkerId,
    from: WorkerId,
    shelf: Shelf,
    extent: Extent,
    ticket: Ticket,
}

/// Whether the coordinator takes what it is told.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Presence {
    Here,
    /// Its process is stopped, and goes on where it was.
    Stopped,
    /// Its process is dead, and starts again from its log.
    Killed,
}

/// After this many entries the coordinator's state is stored and they are dropped.
const LOG_MAX: usize = 1024;

/// An exchange that not all members have entered yet. It has its own lock, because adding takes long.
struct Open {
    meeting: Meeting,
    tickets: Vec<(WorkerId, Ticket)>,
}

impl Open {
    fn new(members: usize) -> Open {
        Open { meeting: Meeting::new(members), tickets: Vec::with_capacity(members) }
    }
}

impl State {
    fn tell(&self, to: WorkerId, news: News) {
        // A worker that is gone needs no news.
        if let Some(inbox) = self.inboxes.get(&to) {
            drop(inbox.send(Event::For { to, news }));
        }
    }
}

impl ThreadHub {
    /// A cluster of threads, and the stream of its outputs.
    pub fn new(mut config: ThreadConfig) -> (Arc<ThreadHub>, Receiver<ClusterOutput>) {
        let workers = config.workers as usize;
        let mut rules = Rules::new(config.samples_total, workers, config.coordination);
        if let Some(elastic) = config.elastic {
            let Elastic { patience, gathering, members_min, members_max } = elastic;
            let keeps_log = true;
            rules = Rules { patience, gathering, members_min, members_max, keeps_log, ..rules };
        }
        let done = std::mem::take(&mut config.done);
        let state = State {
            rules,
            stored: coordination::State::new(rules, done.clone()),
            log: vec![coordination::Entry::Started],
            coordinator: Coordinator::new(rules, done),
            presence: Presence::Here,
            unheard: VecDeque::new(),
            inboxes: BTreeMap::new(),
            lives: BTreeMap::new(),
            leaving: BTreeSet::new(),
            put_out: BTreeSet::new(),
            comebacks: 0,
            snapshot: None,
            exchanges: HashMap::new(),
            closed_before: 0,
            parts: SnapshotParts::default(),
            unanswered: vec![],
        };
        let (outputs, out) = mpsc::channel();
        let hub = ThreadHub {
            start: Instant::now(),
            config,
            state: Mutex::new(state),
            shelves: Mutex::default(),
            outputs: Mutex::new(outputs),
        };
        (Arc::new(hub), out)
    }

    /// The part of the cluster that one worker's executor runs against.
    pub fn attach(self: &Arc<ThreadHub>, me: WorkerId) -> ThreadCluster {
        let (events, inbox) = inbox();
        let ThreadConfig { compute, pace, hosts, .. } = &self.config;
        let computing = match hosts {
            Some(start) => Computing::at_host(me, start, None, events.clone()),
            None => {
                let pace = pace.get(me.0 as usize).copied().unwrap_or_default();
                Computing::on_thread(
                    me,
                    compute.clone(),
                    pace,
                    Workspace::default(),
                    events.clone(),
                )
            }
        };
        // A worker starts before it can be told anything.
        drop(events.send(Event::Started { who: me }));
        let life = Arc::<Life>::default();
        let mut state = self.state();
        state.inboxes.insert(me, events);
        state.lives.insert(me, life.clone());
        drop(state);
        let outputs = self.outputs.lock().expect("no holder panics").clone();
        ThreadCluster { me, hub: self.clone(), inbox, computing, outputs, life, ended: false }
    }

    /// A worker joins and is given the next id. `None` while the coordinator is away.
    pub fn join(self: &Arc<ThreadHub>) -> Option<ThreadCluster> {
        let state = self.state();
        let me = state.coordinator.state().next_id();
        if state.presence != Presence::Here {
            return None;
        }
        drop(state);
        let cluster = self.attach(me);
        let admitted = self.step(&mut self.state(), Input::Hello);
        assert_eq!(admitted, Some(me), "workers join one at a time");
        Some(cluster)
    }

    pub fn is_over(&self) -> bool {
        self.state().coordinator.is_over()
    }

    /// A worker is gone: nobody tells it anything, and nobody can read its values.
    fn forget(&self, who: WorkerId) {
        let mut state = self.state();
        state.inboxes.remove(&who);
        state.lives.remove(&who);
        let was_leaving = state.leaving.remove(&who);
        let comes_back = state.put_out.remove(&who) && !was_leaving && !state.coordinator.is_over();
        state.comebacks += u32::from(comes_back);
        drop(state);
        self.shelves().retain(|(owner, _), _| *owner != who);
    }

    fn publish(&self, by: WorkerId, shelf: Shelf, value: Published) {
        self.shelves().insert((by, shelf), value);
        let is_it = |read: &mut Read| read.from == by && read.shelf == shelf;
        let waiting: Vec<Read> = self.state().unanswered.extract_if(.., is_it).collect();
        waiting.into_iter().for_each(|read| self.read(read, false));
    }

    fn read(&self, read: Read, waits: bool) {
        let Read { by, from, shelf, extent, ticket } = read;
        let mut state = self.state();
        let value = self.shelves().get(&(from, shelf)).map(|value| value.extract(extent));
        if value.is_none() && waits && state.inboxes.contains_key(&from) {
            return state.unanswered.push(read);
        }
        if let Some(value) = value.as_ref().filter(|_| from != by) {
            let bytes = HEADER_BYTES + value.bytes();
            self.record(Record::Sent { who: from, to: by, bytes });
        }
        state.tell(by, News::Value { ticket, value });
    }

    /// Asks that the job end after this round.
    pub fn stop(&self) {
        self.coordinate(Input::Stop);
    }

    /// Asks for a snapshot.
    pub fn save(&self) {
        self.coordinate(Input::Save);
    }

    /// Everything that is published.
    pub fn shelves(&self) -> MutexGuard<'_, Shelves> {
        self.shelves.lock().expect("no holder panics")
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no holder panics")
    }

    fn coordinate(&self, input: Input) {
        self.hear(&mut self.state(), input);
    }

    fn hear(&self, state: &mut State, input: Input) {
        match state.presence {
            Presence::Here => drop(self.step(state, input)),
            Presence::Stopped | Presence::Killed => state.unheard.push_back(input),
        }
    }

    /// The coordinator takes an input, and all workers are told before it takes another one: they receive
    /// its orders in one order. Returns the id of the worker that said hello.
    fn step(&self, state: &mut State, input: Input) -> Option<WorkerId> {
        let output = state.coordinator.step(self.start.elapsed(), input);
        self.carry_out(state, output)
    }

    fn carry_out(&self, state: &mut State, output: coordination::Output) -> Option<WorkerId> {
        let coordination::Output { log, orders, records, snapshot, admitted, wake, .. } = output;
        state.log.extend(log);
        if state.log.len() > LOG_MAX {
            state.stored = state.coordinator.state().clone();
            state.log.clear();
        }
        records.into_iter().for_each(|record| self.record(record));
        for Addressed { to, number, order } in orders {
            if let Order::View { view, lost } = &order
                && !lost.is_empty()
                && self.config.coordination == Coordination::Synchronous
            {
                state.closed_before = view.number;
                state.exchanges.retain(|(view, _), _| *view >= state.closed_before);
            }
            match (&order, &state.snapshot) {
                (Order::PutOut { banned: false, .. }, _) if state.inboxes.contains_key(&to) => {
                    state.put_out.insert(to);
                }
                (Order::Start { from_saved: true, .. }, Some(snapshot)) => {
                    state.tell(to, News::Snapshot(snapshot.clone()));
                }
                _ => {}
            }
            state.coordinator.acknowledged(to, number);
            state.tell(to, News::Told(order));
        }
        if let Some(collected) = snapshot {
            let snapshot = Arc::new(self.assemble(state, collected));
            if self.config.elastic.is_some() {
                state.snapshot = Some(snapshot.clone());
                let _ = self.step(state, Input::Saved(snapshot.saved()));
            }
            self.emit(ClusterOutput::Snapshot(snapshot));
        }
        let collecting = state.coordinator.collecting();
        state.parts.keep(collecting);
        if wake.is_some_and(|wake| wake <= self.start.elapsed()) {
            let _ = self.step(state, Input::Tick);
        }
        admitted
    }

    /// The job's time. The coordinator has a clock of its own, which begins with this run.
    fn now(&self) -> Duration {
        self.config.elapsed + self.start.elapsed()
    }

    fn record(&self, record: Record) {
        self.emit(ClusterOutput::Line(Line { at: self.now(), record }));
    }

    /// Keeps a worker's part of a snapshot and tells the coordinator its name, in one step.
    fn hand_in(&self, from: WorkerId, part: WorkerSnapshot, done: Option<Spans>) {
        let mut state = self.state();
        let word = part.word(done);
        state.parts.insert(from, part);
        self.hear(&mut state, Input::Word { from, number: 0, word });
    }

    fn assemble(&self, state: &mut State, collected: Collected) -> Snapshot {
        let first = state.coordinator.view().first();
        let center = self.shelves().get(&(first, Shelf::Center)).cloned();
        let workers = state.parts.take(&collected);
        Snapshot::assemble(collected, workers, center, self.config.coordination)
    }

    fn emit(&self, output: ClusterOutput) {
        drop(self.outputs.lock().expect("no holder panics").send(output));
    }

    /// A member that enters an exchange adds what can be added by then; the last one tells all members.
    fn meet(
        &self,
        me: WorkerId,
        (view, number): (Arc<View>, u64),
        (ticket, entry): (Ticket, Entry),
    ) {
        let rank = view.rank(me).expect("members enter the exchanges of their view");
        let name = (view.number, number);
        let open = {
            let mut state = self.state();
            if view.number < state.closed_before {
                // It can never end. This member has not been told of the loss yet, but will be.
                return;
            }
            let begin = || Arc::new(Mutex::new(Open::new(view.members.len())));
            state.exchanges.entry(name).or_insert_with(begin).clone()
        };
        let Open { meeting, tickets, .. } = {
            // A member that panicked while it added is lost, and this exchange cannot end.
            let Ok(mut open) = open.lock() else { return };
            open.tickets.push((me, ticket));
            open.meeting.enter(rank, entry);
            if !open.meeting.is_complete() {
                return;
            }
            std::mem::replace(&mut *open, Open::new(0))
        };
        self.state().exchanges.remove(&name);
        let result = meeting.end(self.config.seed, view, number);
        let state = self.state();
        for (to, ticket) in tickets {
            state.tell(to, News::of(ticket, result.clone()));
        }
    }
}
