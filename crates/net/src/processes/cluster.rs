//! What the executor of one worker process runs against.

use std::io;
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::JoinHandle;
use std::time::Duration;

use paceline_identity::Credentials;
use paceline_learn::Vector;
use paceline_runtime::coordination::{Coordination, Order, Word};
use paceline_runtime::edge::{
    Action, Answer, Ask, Cluster, ClusterOutput, Compute, Event, News, Workspace, some_evenly,
};
use paceline_runtime::evaluation::{Part, Parts, bytes_fetched};
use paceline_runtime::wire::{Extent, Letter, Shelf};
use paceline_runtime::{Line, Record, Spans, Ticket, View, WorkerId};

use super::clock::Clock;
use super::exchanges::Shape;
use super::mesh::{Command, Mesh, MeshConfig, MeshHandle};
use super::message::{Conclude, Down, Secret, Up};
use super::shelves::OwnShelves;
use crate::gradients::{Computing, StartHost};
use crate::inbox::{Inbox, Teller, inbox};

/// What a worker process knows when it has been admitted.
pub struct ProcessConfig {
    pub me: WorkerId,
    pub clock: Clock,
    pub secret: Secret,
    /// Encrypts the links to peers; `None`: in the clear.
    pub security: Option<Credentials>,
    pub patience: Duration,
    pub listener: TcpListener,
    pub shape: Shape,
    /// Whether workers of one host read each other's memory, where the system can do that.
    pub shares_memory: bool,
    pub gradients: Gradients,
    pub coordination: Coordination,
    /// To the coordinator, and from it.
    pub up: Sender<Up>,
    pub down: Receiver<Down>,
    /// Gets what is to be evaluated while the worker trains.
    pub evaluations: Sender<Evaluation>,
}

/// Where a worker process computes its gradients.
pub enum Gradients {
    /// On a thread of ours. `pace`: the time per sample, at least, to emulate a slower machine.
    Ours { compute: Compute, pace: Duration },
    /// At a host, which holds the replica.
    Theirs(StartHost),
}

/// What a worker process needs besides its links.
pub struct WorkerConfig {
    pub me: WorkerId,
    pub clock: Clock,
    pub gradients: Gradients,
    pub coordination: Coordination,
    /// To the coordinator, and from it.
    pub up: Sender<Up>,
    pub down: Receiver<Down>,
    /// Gets what is to be evaluated while the worker trains.
    pub evaluations: Sender<Evaluation>,
}

/// Replicas whose mean is to be evaluated.
pub struct Evaluation {
    pub at: Duration,
    pub samples: u64,
    pub ends_epoch: bool,
    pub replicas: Vec<Arc<Vector>>,
}

/// Why a worker's time as this id is over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ended {
    /// The coordinator counts it as lost: it may join anew unless it is banned.
    PutOut { why: String, banned: bool },
    /// Nothing is left to do.
    Dismissed,
    /// The coordinator is gone.
    Disconnected,
}

/// A worker process as its own main thread sees it: gives the executor its cluster, and stays until the coordinator
/// needs nothing more of this process.
pub struct Process {
    mesh: Arc<Mesh>,
    clock: Clock,
    events: Teller,
    me: WorkerId,
    /// The order that the coordinator gives when the job is over.
    pub conclusions: Receiver<Conclude>,
    listening: JoinHandle<(Ended, Receiver<Down>)>,
    has_ended: Arc<AtomicBool>,
}

pub struct ProcessCluster {
    me: WorkerId,
    clock: Clock,
    mesh: Arc<Mesh>,
    inbox: Inbox,
    /// Loops back what the worker sends to itself.
    events: Teller,
    computing: Computing,
    up: Sender<Up>,
    evaluations: Sender<Evaluation>,
    /// Replicas of members that train alone, to be evaluated together.
    parts: Parts,
    has_ended: bool,
}

impl Process {
    pub fn start(config: ProcessConfig) -> io::Result<(Process, ProcessCluster)> {
        let ProcessConfig { me, clock, secret, patience, listener, shape, gradients, .. } = config;
        let ProcessConfig { coordination, up, down, evaluations, security, shares_memory, .. } =
            config;
        let (mesh_up, mesh_clock) = (up.clone(), clock.clone());
        let links = |events| {
            let (up, clock) = (mesh_up, mesh_clock);
            Mesh::start(MeshConfig {
                me,
                secret,
                security,
                listener,
                shape,
                shares_memory,
                patience,
                clock,
                events,
                up,
            })
        };
        let worker = WorkerConfig { me, clock, gradients, coordination, up, down, evaluations };
        Process::over(worker, links)
    }

    /// A worker whose links are made by `links`, of the queue into which they put what happens.
    pub fn over(
        config: WorkerConfig,
        links: impl FnOnce(Teller) -> io::Result<Mesh>,
    ) -> io::Result<(Process, ProcessCluster)> {
        let WorkerConfig { me, clock, gradients, coordination, up, down, evaluations } = config;
        let (events, inbox) = inbox();
        drop(events.send(Event::Started { who: me }));
        let mesh = Arc::new(links(events.clone())?);
        let computing = match gradients {
            Gradients::Ours { compute, pace } => {
                let memory = mesh.gradient_memory();
                let workspace = Workspace { memory, ..Workspace::default() };
                Computing::on_thread(me, compute, pace, workspace, events.clone())
            }
            Gradients::Theirs(start) => {
                Computing::at_host(me, &start, mesh.gradient_memory(), events.clone())
            }
        };
        let (concludes, conclusions) = mpsc::channel();
        let has_ended = Arc::<AtomicBool>::default();
        let listener = Listener {
            me,
            coordination,
            mesh: mesh.handle(),
            shelves: mesh.shelves.clone(),
            events: events.clone(),
            up: up.clone(),
            concludes,
            plan: None,
            is_over: false,
            has_ended: has_ended.clone(),
        };
        let listening = std::thread::Builder::new()
            .name("orders".into())
            .spawn(move || listener.listen(down))?;
        let cluster = ProcessCluster {
            me,
            clock: clock.clone(),
            mesh: mesh.clone(),
            inbox,
            events: events.clone(),
            computing,
            up,
            evaluations,
            parts: Parts::default(),
            has_ended: false,
        };
        Ok((Process { mesh, clock, events, me, conclusions, listening, has_ended }, cluster))
    }

    pub fn now(&self) -> Duration {
        self.clock.now()
    }

    /// Whether the coordinator needs nothing more of this worker, or is gone.
    pub fn has_ended(&self) -> bool {
        self.has_ended.load(Ordering::SeqCst)
    }

    /// Makes the worker leave in good order.
    pub fn leaver(&self) -> impl Fn() + Send + 'static {
        let (events, to) = (self.events.clone(), self.me);
        move || drop(events.send(Event::For { to, news: News::Told(Order::Leave) }))
    }

    /// What these workers have published, in the order of their ids.
    pub fn collect(&self, of: Vec<WorkerId>, shelf: Shelf) -> Vec<Arc<Vector>> {
        let (to, found) = mpsc::channel();
        self.mesh.give(Command::Collect { of, shelf, to });
        found.recv().unwrap_or_default()
    }

    /// Waits until the coordinator needs nothing more of this worker; returns why, and the stream for its next life.
    pub fn end(self) -> (Ended, Option<Receiver<Down>>) {
        match self.listening.join() {
            Ok((ended, down)) => (ended, Some(down)),
            Err(_) => (Ended::Disconnected, None),
        }
    }
}

/// The thread that takes the coordinator's orders.
struct Listener {
    me: WorkerId,
    coordination: Coordination,
    mesh: MeshHandle,
    shelves: Arc<OwnShelves>,
    events: Teller,
    up: Sender<Up>,
    concludes: Sender<Conclude>,
    plan: Option<Arc<View>>,
    is_over: bool,
    has_ended: Arc<AtomicBool>,
}

impl Listener {
    fn listen(mut self, down: Receiver<Down>) -> (Ended, Receiver<Down>) {
        loop {
            let Ok(message) = down.recv() else {
                self.end();
                return (Ended::Disconnected, down);
            };
            match message {
                Down::Order(order) => {
                    self.has_ended
                        .fetch_or(matches!(order, Order::PutOut { .. }), Ordering::SeqCst);
                    self.is_over |= order == Order::Over;
                    let put_out = match &order {
                        // There is nothing to come back to.
                        Order::PutOut { banned: false, .. } if self.is_over => {
                            Some(Ended::Dismissed)
                        }
                        Order::PutOut { why, banned } => {
                            Some(Ended::PutOut { why: why.clone(), banned: *banned })
                        }
                        _ => None,
                    };
                    self.follow(&order);
                    self.tell(News::Told(order));
                    if let Some(ended) = put_out {
                        self.mesh.give(Command::StopCollecting);
                        return (ended, down);
                    }
                }
                Down::Peer { who, address } => self.mesh.give(Command::Peer { who, address }),
                Down::Snapshot(snapshot) => self.tell(News::Snapshot(Arc::new(snapshot.unpack()))),
                Down::SendCenter { request } => {
                    let center = self.shelves.read(Shelf::Center, Extent::Whole).map(Box::new);
                    drop(self.up.send(Up::Center { request, center }));
                }
                Down::Conclude(conclude) => drop(self.concludes.send(conclude)),
                Down::Lost { who } => self.mesh.give(Command::Lose { who }),
                Down::Orphaned => self.mesh.give(Command::Orphaned),
                Down::Dismissed => {
                    self.end();
                    return (Ended::Dismissed, down);
                }
                Down::Job(_) | Down::Welcome { .. } | Down::Refused { .. } | Down::Idle => {}
            }
        }
    }

    /// Nothing more can happen to this worker: its task must not wait for anything, should it still run.
    fn end(&self) {
        self.has_ended.store(true, Ordering::SeqCst);
        self.mesh.give(Command::StopCollecting);
        drop(self.events.send(Event::Crashed { who: self.me }));
    }

    fn tell(&self, news: News) {
        drop(self.events.send(Event::For { to: self.me, news }));
    }

    /// The links must know who is a member.
    fn follow(&mut self, order: &Order) {
        let none = || Arc::new(vec![]);
        let (view, lost) = match order {
            Order::Start { view, .. } => (view.clone(), none()),
            Order::View { view, lost } => (view.clone(), lost.clone()),
            Order::Plan { view } => {
                self.plan = Some(view.clone());
                self.mesh.give(Command::Plan { view: view.clone() });
                return;
            }
            Order::Go { view: number } => {
                match self.plan.take().filter(|plan| plan.number == *number) {
                    Some(plan) => (plan, none()),
                    None => return,
                }
            }
            _ => return,
        };
        let closes = self.coordination == Coordination::Synchronous && !lost.is_empty();
        self.mesh.give(Command::View { view, lost, closes });
    }
}

impl Cluster for ProcessCluster {
    fn now(&self) -> Duration {
        self.clock.now()
    }

    fn submit(&mut self, by: WorkerId, action: Action) {
        match action {
            Action::Compute { ticket, at, spans, .. } => {
                self.computing.compute(ticket, at, spans);
            }
            Action::Exchange { ticket, view, number, entry } => {
                self.mesh.exchange(ticket, view, number, entry);
            }
            Action::Send { to, letter } if to == self.me => {
                let news = News::Letter { from: by, letter };
                drop(self.events.send(Event::For { to, news }));
            }
            Action::Send { to, letter } => {
                self.mesh.give(Command::Send { to, letter: Arc::new(*letter) });
            }
            Action::Publish { shelf, value } => {
                if self.mesh.shelves.publish(shelf, value) {
                    self.mesh.give(Command::Published);
                }
            }
            Action::Read { ticket, from, shelf, extent, .. } if from == self.me => {
                let value = self.mesh.shelves.read(shelf, extent);
                let news = News::Value { ticket, value };
                drop(self.events.send(Event::For { to: by, news }));
            }
            Action::Read { ticket, from, shelf, extent, waits } => {
                self.mesh.give(Command::Read { ticket, from, shelf, extent, waits });
            }
            Action::Evaluate { samples, ends_epoch, of, shelf } => {
                self.evaluate((samples, ends_epoch), &of, shelf);
            }
            Action::EvaluatePart { samples, with } => self.evaluate_part(samples, &with),
            Action::Save { part, done } => drop(self.up.send(Up::Part { part, done })),
            Action::Tell(word) => {
                self.has_ended |= word == Word::Gone;
                drop(self.up.send(Up::Word(word)));
            }
        }
    }

    fn ask_host(&mut self, _: WorkerId, ticket: Ticket, ask: Ask) -> Option<Answer> {
        self.computing.ask(ticket, ask);
        None
    }

    fn show_host(&mut self, _: WorkerId, ahead: Spans) {
        self.computing.show(ahead);
    }

    fn next(&mut self) -> Option<Event> {
        loop {
            match self.mesh.next(&self.inbox)? {
                Event::Crashed { .. } => return None,
                Event::For { news: News::Letter { from, letter }, .. }
                    if matches!(*letter, Letter::Part { .. }) =>
                {
                    self.take_part(from, *letter);
                }
                event => {
                    if let Event::For { news: News::Told(Order::Start { .. }), .. } = event {
                        self.parts.clear();
                    }
                    return Some(event);
                }
            }
        }
    }

    fn is_over(&self) -> bool {
        self.has_ended
    }

    /// Lines and words share one stream: what a worker did is in the journal before anything that its words cause.
    fn emit(&mut self, output: ClusterOutput) {
        match output {
            ClusterOutput::Line(line) => drop(self.up.send(Up::Line(line))),
            // Evaluations are requested where the replicas are, and snapshots are put together by the coordinator.
            ClusterOutput::Evaluate { .. } | ClusterOutput::Snapshot(_) => {}
        }
    }
}

impl Drop for ProcessCluster {
    /// A worker may end right after it has entered a sum. Its links live on: peers read what it has published.
    fn drop(&mut self) {
        self.mesh.hand_back();
    }
}

impl ProcessCluster {
    /// Has the mean of the replicas evaluated. This worker's own is taken now, before it publishes another one; those of peers
    /// are read meanwhile, and the worker does not wait for them.
    fn evaluate(&mut self, (samples, ends_epoch): (u64, bool), of: &[WorkerId], shelf: Shelf) {
        self.parts.skip_to(samples);
        let (at, requests) = (self.clock.now(), self.requests());
        let mut of = some_evenly(of);
        let mut replicas = vec![];
        if of.contains(&self.me) {
            of.retain(|who| *who != self.me);
            let own = self.mesh.shelves.read(shelf, Extent::Params);
            replicas.extend(own.map(|published| published.params));
        }
        if of.is_empty() {
            return requests.send(Evaluation { at, samples, ends_epoch, replicas });
        }
        let (to, found) = mpsc::channel();
        self.mesh.give(Command::Collect { of, shelf, to });
        let wait = move || {
            if let Ok(others) = found.recv() {
                replicas.extend(others);
                requests.send(Evaluation { at, samples, ends_epoch, replicas });
            }
        };
        // At most 20 an epoch, and a thread that only waits costs little.
        drop(std::thread::Builder::new().name("collect".into()).spawn(wait));
    }

    /// Hands in this worker's replica. The first of the members `with` keeps the parts until all are there.
    fn evaluate_part(&mut self, samples: u64, with: &[WorkerId]) {
        let published = self.mesh.shelves.read(Shelf::Replica, Extent::Params);
        let (Some(&first), Some(published)) = (with.first(), published) else { return };
        let (parts, at, replica) = (with.len(), self.clock.now(), published.params);
        let letter = Letter::Part { samples, parts, at, replica };
        if first == self.me {
            self.take_part(self.me, letter);
        } else {
            self.mesh.give(Command::Send { to: first, letter: Arc::new(letter) });
        }
    }

    fn take_part(&mut self, by: WorkerId, letter: Letter) {
        let Letter::Part { samples, parts, at, replica } = letter else { return };
        if let Some((at, replicas)) = self.parts.add(Part { by, at, samples, parts, replica }) {
            self.requests().send(Evaluation { at, samples, ends_epoch: false, replicas });
        }
    }

    fn requests(&self) -> Requests {
        Requests { evaluations: self.evaluations.clone(), up: self.up.clone() }
    }
}

/// Where evaluations are requested, and where their bytes are counted.
struct Requests {
    evaluations: Sender<Evaluation>,
    up: Sender<Up>,
}

impl Requests {
    fn send(&self, evaluation: Evaluation) {
        let (at, samples) = (evaluation.at, evaluation.samples);
        let bytes = bytes_fetched(&evaluation.replicas);
        if bytes > 0 {
            let record = Record::Fetched { samples, bytes };
            drop(self.up.send(Up::Line(Line { at, record })));
        }
        drop(self.evaluations.send(evaluation));
    }
}
