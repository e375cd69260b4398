//! A real cluster in one process: a thread for each worker, and one for its gradients.

use std::collections::{BTreeMap, HashMap};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use paceline_learn::Vector;
use paceline_runtime::coordination::{
    self, Addressed, Collected, Coordination, Coordinator, Input, Order, Rules, Word,
};
use paceline_runtime::edge::{
    Action, Cluster, ClusterOutput, Compute, Event, News, Shelves, Workspace, published,
};
use paceline_runtime::snapshot::SnapshotParts;
use paceline_runtime::wire::{Entry, HEADER_BYTES, Shelf};
use paceline_runtime::{
    Line, Meeting, Record, Snapshot, Spans, Ticket, View, WorkerId, WorkerSnapshot,
};

/// The configuration of a cluster of threads.
pub struct ThreadConfig {
    pub seed: u64,
    pub workers: u32,
    pub compute: Compute,
    pub samples_total: u64,
    pub coordination: Coordination,
    /// The samples that were applied before the run was resumed.
    pub done: Spans,
    /// Each worker's time per sample, at least, to emulate slower machines; empty: none is emulated.
    pub pace: Vec<Duration>,
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
    coordinator: Coordinator,
    inboxes: BTreeMap<WorkerId, Sender<Event>>,
    exchanges: HashMap<(u64, u64), Arc<Mutex<Open>>>,
    /// The newest view with a loss: exchanges of older ones can never end.
    closed_before: u64,
    parts: SnapshotParts,
}

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
        // A thread cannot fall silent without its process, so nothing sends ticks; and the coordinator lives and dies
        // with the process, so it keeps no log.
        let workers = config.workers as usize;
        let rules = Rules::new(config.samples_total, workers, config.coordination);
        let coordinator = Coordinator::new(rules, std::mem::take(&mut config.done));
        let state = State {
            coordinator,
            inboxes: BTreeMap::new(),
            exchanges: HashMap::new(),
            closed_before: 0,
            parts: SnapshotParts::default(),
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
        let (events, inbox) = mpsc::channel();
        let (computing, work) = mpsc::channel();
        let pace = self.config.pace.get(me.0 as usize).copied().unwrap_or_default();
        let (compute, done) = (self.config.compute.clone(), events.clone());
        std::thread::Builder::new()
            .name(format!("gradient-{me}"))
            .spawn(move || gradients(me, compute, pace, work, done))
            .expect("the system can start another thread");
        // A worker starts before it can be told anything.
        drop(events.send(Event::Started { who: me }));
        self.state().inboxes.insert(me, events);
        let outputs = self.outputs.lock().expect("no holder panics").clone();
        ThreadCluster { me, hub: self.clone(), inbox, computing, outputs, ended: false }
    }

    /// A worker joins. The ids of workers count up from 0 in the order in which they do.
    pub fn hello(&self, me: WorkerId) {
        let mut state = self.state();
        let admitted = self.step(&mut state, Input::Hello);
        assert_eq!(admitted, Some(me), "workers are attached in the order in which they join");
    }

    /// A worker's thread has died.
    pub fn lost(&self, me: WorkerId) {
        self.forget(me);
        self.coordinate(Input::Lost(me));
    }

    /// A worker is gone: nobody tells it anything, and nobody can read its values.
    fn forget(&self, who: WorkerId) {
        self.state().inboxes.remove(&who);
        self.shelves().retain(|(owner, _), _| *owner != who);
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

    /// The coordinator takes an input, and all workers are told before it takes another one: they receive
    /// its orders in one order.
    fn coordinate(&self, input: Input) {
        let _ = self.step(&mut self.state(), input);
    }

    /// Returns the id of the worker that said hello.
    fn step(&self, state: &mut State, input: Input) -> Option<WorkerId> {
        let coordination::Output { orders, records, snapshot, admitted, wake, .. } =
            state.coordinator.step(self.start.elapsed(), input);
        for record in records {
            self.emit(ClusterOutput::Line(Line { at: self.start.elapsed(), record }));
        }
        for Addressed { to, order, .. } in orders {
            if let Order::View { view, lost } = &order
                && !lost.is_empty()
                && self.config.coordination == Coordination::Synchronous
            {
                state.closed_before = view.number;
                state.exchanges.retain(|(view, _), _| *view >= state.closed_before);
            }
            state.tell(to, News::Told(order));
        }
        if let Some(collected) = snapshot {
            let snapshot = self.assemble(state, collected);
            self.emit(ClusterOutput::Snapshot(Box::new(snapshot)));
        }
        let collecting = state.coordinator.collecting();
        state.parts.keep(collecting);
        if wake.is_some_and(|wake| wake <= self.start.elapsed()) {
            let _ = self.step(state, Input::Tick);
        }
        admitted
    }

    /// Keeps a worker's part of a snapshot and tells the coordinator its name, in one step.
    fn hand_in(&self, from: WorkerId, part: WorkerSnapshot, done: Option<Spans>) {
        let mut state = self.state();
        // Asynchronous members agree on nothing.
        let digest = if done.is_some() { part.digest() } else { 0 };
        let snapshot = part.number;
        let word = Word::HandedIn { snapshot, digest, done };
        state.parts.insert(from, part);
        self.step(&mut state, Input::Word { from, number: 0, word });
    }

    fn assemble(&self, state: &mut State, collected: Collected) -> Snapshot {
        let first = state.coordinator.view().first();
        let center = self.shelves().get(&(first, Shelf::Center)).cloned();
        let workers = state.parts.take(&collected);
        let center_applies =
            self.config.coordination == (Coordination::Centered { applies_samples: true });
        Snapshot::assemble(collected, workers, center, center_applies)
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

type Work = (Ticket, Arc<Vector>, Spans);

/// Computes gradients one after another; emulates a slower machine by sleeping out its pace.
fn gradients(
    me: WorkerId,
    compute: Compute,
    pace: Duration,
    work: Receiver<Work>,
    done: Sender<Event>,
) {
    let mut workspace = Workspace::default();
    let _guard = PanicGuard { me, done: done.clone() };
    for (ticket, params, spans) in work {
        let since = Instant::now();
        let gradient = compute(&params, &spans, &mut workspace);
        let end = since + pace.saturating_mul(u32::try_from(spans.len()).unwrap_or(u32::MAX));
        std::thread::sleep(end.saturating_duration_since(Instant::now()));
        drop(params);
        let news = News::Computed { ticket, gradient };
        if done.send(Event::For { to: me, news }).is_err() {
            return;
        }
    }
}

/// Tells the worker if its model panics: it would wait for that gradient forever.
struct PanicGuard {
    me: WorkerId,
    done: Sender<Event>,
}

impl Drop for PanicGuard {
    fn drop(&mut self) {
        if std::thread::panicking() {
            drop(self.done.send(Event::Crashed { who: self.me }));
        }
    }
}

/// What one worker sees of the cluster.
pub struct ThreadCluster {
    me: WorkerId,
    hub: Arc<ThreadHub>,
    inbox: Receiver<Event>,
    computing: Sender<Work>,
    outputs: Sender<ClusterOutput>,
    ended: bool,
}

impl Cluster for ThreadCluster {
    fn now(&self) -> Duration {
        self.hub.start.elapsed()
    }

    fn submit(&mut self, by: WorkerId, action: Action) {
        match action {
            Action::Compute { ticket, params, spans, .. } => {
                // If the gradient's thread has died, its last word is already in the inbox.
                drop(self.computing.send((ticket, params, spans)));
            }
            Action::Exchange { ticket, view, number, entry } => {
                self.hub.meet(by, (view, number), (ticket, entry));
            }
            Action::Send { to, letter } => {
                self.hub.state().tell(to, News::Letter { from: by, letter });
            }
            Action::Publish { shelf, value } => {
                self.hub.shelves().insert((by, shelf), value);
            }
            Action::Read { ticket, from, shelf, extent } => {
                let shelves = self.hub.shelves();
                let value = shelves.get(&(from, shelf)).map(|value| value.extract(extent));
                drop(shelves);
                if let Some(value) = value.as_ref().filter(|_| from != by) {
                    let bytes = HEADER_BYTES + value.bytes();
                    let record = Record::Sent { who: from, to: by, bytes };
                    self.emit(ClusterOutput::Line(Line { at: self.now(), record }));
                }
                self.hub.state().tell(self.me, News::Value { ticket, value });
            }
            Action::Evaluate { samples, of, shelf } => {
                let replicas = published(&self.hub.shelves(), &of, shelf);
                self.emit(ClusterOutput::Evaluate { at: self.now(), samples, replicas });
            }
            Action::Save { part, done } => self.hub.hand_in(by, *part, done),
            Action::Tell(word) => {
                let is_gone = word == Word::Gone;
                self.ended |= is_gone;
                self.hub.coordinate(Input::Word { from: by, number: 0, word });
                if is_gone && !self.hub.state().coordinator.is_over() {
                    self.hub.forget(by);
                }
            }
        }
    }

    fn next(&mut self) -> Option<Event> {
        // Without the thread of its gradients nothing more can happen to a worker.
        self.inbox.recv().ok().filter(|event| !matches!(event, Event::Crashed { .. }))
    }

    fn is_over(&self) -> bool {
        self.ended
    }

    /// What a worker did is in the journal before anything that its words cause.
    fn emit(&mut self, output: ClusterOutput) {
        drop(self.outputs.send(output));
    }
}

impl Drop for ThreadCluster {
    fn drop(&mut self) {
        // A worker that ends without saying so is lost, and the others must be told.
        if !self.ended {
            self.hub.lost(self.me);
        }
    }
}
