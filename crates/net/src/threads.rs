//! A real cluster in one process: a thread for each worker, and one for its gradients.

use std::collections::{BTreeMap, HashMap};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use paceline_learn::Vector;
use paceline_runtime::cluster::{
    Action, Cluster, Compute, Entry, Event, Published, Shelf, Shelves, Ticket, Word, Workspace,
};
use paceline_runtime::coordinator::{Coordinator, Rules};
use paceline_runtime::membership::Sign;
use paceline_runtime::{Line, Meeting, Record, Snapshot, Spans, View, WorkerId, WorkerSnapshot};

/// What a cluster of threads is told when it is made.
pub struct ThreadConfig {
    pub seed: u64,
    pub workers: u32,
    pub compute: Compute,
    pub samples_total: u64,
    /// See [`Rules::center_applies`].
    pub center_applies: bool,
    /// What the run that this one goes on from had applied.
    pub done: Spans,
    /// Each worker's time per sample, at least; empty if none is to be emulated.
    pub pace: Vec<Duration>,
}

/// What comes out of a cluster while it runs, in order.
#[derive(Debug)]
pub enum News {
    Line(Line),
    /// Before the lines of the round that led to it.
    Published {
        who: WorkerId,
        shelf: Shelf,
        value: Published,
    },
    Snapshot(Box<Snapshot>),
}

/// What all workers of the process share.
pub struct ThreadHub {
    start: Instant,
    setting: ThreadConfig,
    state: Mutex<State>,
    shelves: Mutex<Shelves>,
    news: Mutex<Sender<News>>,
}

struct State {
    coordinator: Coordinator,
    inboxes: BTreeMap<WorkerId, Sender<Event>>,
    exchanges: HashMap<(u64, u64), Arc<Mutex<Open>>>,
}

/// An exchange that not all members have entered yet. It has a lock of its own: adding takes long.
struct Open {
    meeting: Meeting,
    tickets: Vec<(WorkerId, Ticket)>,
}

impl Open {
    fn new(members: usize) -> Open {
        Open { meeting: Meeting::new(members), tickets: Vec::with_capacity(members) }
    }
}

impl ThreadHub {
    /// A cluster for so many workers, and where the journal's lines and snapshots come out.
    pub fn new(mut setting: ThreadConfig) -> (Arc<ThreadHub>, Receiver<News>) {
        let rules = Rules {
            members_min: setting.workers as usize,
            patience: Duration::from_secs(60),
            samples_total: setting.samples_total,
            center_applies: setting.center_applies,
        };
        let mut coordinator = Coordinator::new(rules);
        coordinator.resume(std::mem::take(&mut setting.done));
        let state = State { coordinator, inboxes: BTreeMap::new(), exchanges: HashMap::new() };
        let (news, out) = mpsc::channel();
        let hub = ThreadHub {
            start: Instant::now(),
            setting,
            state: Mutex::new(state),
            shelves: Mutex::default(),
            news: Mutex::new(news),
        };
        (Arc::new(hub), out)
    }

    /// The part of the cluster that one worker's executor runs against.
    pub fn attach(self: &Arc<ThreadHub>, me: WorkerId) -> ThreadCluster {
        let (events, inbox) = mpsc::channel();
        let (computing, work) = mpsc::channel();
        let pace = self.setting.pace.get(me.0 as usize).copied().unwrap_or_default();
        let (compute, done) = (self.setting.compute.clone(), events.clone());
        std::thread::Builder::new()
            .name(format!("gradient-{me}"))
            .spawn(move || gradients(me, compute, pace, work, done))
            .expect("the system has a thread left");
        // The life of this worker begins before anyone can tell it anything.
        drop(events.send(Event::Started { who: me }));
        self.state().inboxes.insert(me, events);
        let news = self.news.lock().expect("no holder panics").clone();
        ThreadCluster { me, hub: self.clone(), inbox, computing, news, ended: false }
    }

    pub fn hello(&self, me: WorkerId) {
        self.decide(|coordinator, now| coordinator.on(now, Sign::Hello(me)));
    }

    /// A worker's thread has died.
    pub fn lost(&self, me: WorkerId) {
        self.state().inboxes.remove(&me);
        self.decide(|coordinator, now| coordinator.on(now, Sign::Lost(me)));
    }

    /// The user wishes the job to end after this round.
    pub fn stop(&self) {
        self.decide(|coordinator, now| coordinator.hear(now, WorkerId(0), Word::Stop));
    }

    /// The user wishes for a snapshot.
    pub fn save(&self) {
        self.decide(|coordinator, now| coordinator.hear(now, WorkerId(0), Word::Save));
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no holder panics")
    }

    /// The coordinator decides, and all are told before it can decide anything else: everyone hears
    /// of its decisions in their order.
    fn decide(&self, decision: impl FnOnce(&mut Coordinator, Duration) -> Vec<Event>) {
        let mut state = self.state();
        for event in decision(&mut state.coordinator, self.start.elapsed()) {
            let to = match &event {
                Event::ViewChanged { to, .. }
                | Event::Leased { to, .. }
                | Event::StopWished { to }
                | Event::SaveWished { to, .. }
                | Event::Again { to }
                | Event::Over { to } => *to,
                Event::Recorded { record } => {
                    self.record(record.clone());
                    continue;
                }
                _ => unreachable!("the coordinator tells nothing else"),
            };
            // Who is gone needs to hear nothing.
            if let Some(inbox) = state.inboxes.get(&to) {
                drop(inbox.send(event));
            }
        }
    }

    fn record(&self, record: Record) {
        let line = Line { at: self.start.elapsed(), record };
        drop(self.news.lock().expect("no holder panics").send(News::Line(line)));
    }

    fn collect(&self, from: WorkerId, portion: WorkerSnapshot) {
        let mut state = self.state();
        let Some(mut snapshot) = state.coordinator.collect(from, portion) else { return };
        let first = state.coordinator.view().first();
        let shelves = self.shelves.lock().expect("no holder panics");
        snapshot.center = shelves.get(&(first, Shelf::Center)).cloned();
        if let Some(center) = snapshot.center.as_ref().filter(|_| self.setting.center_applies) {
            snapshot.done = (*center.done).clone();
        }
        let news = News::Snapshot(Box::new(snapshot));
        drop(self.news.lock().expect("no holder panics").send(news));
    }

    /// Whoever enters an exchange adds what can be added by then, and whoever completes it tells all.
    fn meet(
        &self,
        me: WorkerId,
        (view, number): (Arc<View>, u64),
        (ticket, entry): (Ticket, Entry),
    ) {
        let rank = view.rank(me).expect("members enter the exchanges of their view");
        let name = (view.number, number);
        let begin = || Arc::new(Mutex::new(Open::new(view.members.len())));
        let open = self.state().exchanges.entry(name).or_insert_with(begin).clone();
        let Open { meeting, tickets } = {
            let mut open = open.lock().expect("no holder panics");
            open.tickets.push((me, ticket));
            open.meeting.enter(rank, entry);
            if !open.meeting.is_complete() {
                return;
            }
            std::mem::replace(&mut *open, Open::new(0))
        };
        self.state().exchanges.remove(&name);
        let outcome = meeting.end(self.setting.seed, name);
        let state = self.state();
        for (to, ticket) in tickets {
            if let Some(inbox) = state.inboxes.get(&to) {
                drop(inbox.send(Event::Exchanged { to, ticket, outcome: outcome.clone() }));
            }
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
        if done.send(Event::Computed { to: me, ticket, gradient }).is_err() {
            return;
        }
    }
}

/// Tells the worker when its model panics, for it would wait for that gradient forever.
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
    news: Sender<News>,
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
                if let Some(inbox) = self.hub.state().inboxes.get(&to) {
                    drop(inbox.send(Event::Arrived { to, from: by, letter }));
                }
            }
            Action::Publish { shelf, value } => {
                drop(self.news.send(News::Published { who: by, shelf, value: value.clone() }));
                self.hub.shelves.lock().expect("no holder panics").insert((by, shelf), value);
            }
            Action::Read { ticket, from, shelf } => {
                let value =
                    self.hub.shelves.lock().expect("no holder panics").get(&(from, shelf)).cloned();
                if let Some(inbox) = self.hub.state().inboxes.get(&self.me) {
                    drop(inbox.send(Event::Value { to: self.me, ticket, value }));
                }
            }
            Action::Save(portion) => self.hub.collect(by, *portion),
            Action::Tell(word) => {
                self.ended |= word == Word::Gone;
                self.hub.decide(|coordinator, now| coordinator.hear(now, by, word));
            }
        }
    }

    fn next(&mut self) -> Option<Event> {
        // Nothing can happen to a worker whose gradients have no thread any more.
        self.inbox.recv().ok().filter(|event| !matches!(event, Event::Crashed { .. }))
    }

    fn is_over(&self) -> bool {
        self.ended
    }

    /// What a worker did is in the journal before anything that its word sets off.
    fn pass(&mut self, line: Line) -> Option<Line> {
        drop(self.news.send(News::Line(line)));
        None
    }
}

impl Drop for ThreadCluster {
    fn drop(&mut self) {
        // A worker that ends other than by its own word is lost, and the others must hear of it.
        if !self.ended {
            self.hub.lost(self.me);
        }
    }
}
