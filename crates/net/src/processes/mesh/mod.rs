//! The links of one worker process to all others, and the thread that serves them while the worker computes.
//!
//! Of two workers the younger one dials. A link lives as long as both: if it breaks, something that was on its way may be
//! lost, so both ends suspect each other, and the coordinator decides which of them is put out.

mod links;
mod look;
mod near;
mod reads;
mod traffic;
mod turns;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use mio::{Events, Interest, Poll, Token};
use paceline_identity::{Credentials, peer_server};
use paceline_learn::Vector;
use paceline_learn::kernels::Pool;
use paceline_runtime::edge::{Event, News};
use paceline_runtime::wire::{Entry, Extent, Letter, Shelf};
use paceline_runtime::{Ticket, View, WorkerId};

use super::clock::Clock;
use super::exchanges::{Effects, Shape};
use super::frame::Limits;
use super::link::Link;
use super::message::{Form, Load, PeerMessage, Secret, Up};
use super::near::Near;
use super::shelves::OwnShelves;
use super::socket;
use crate::inbox::{Inbox, Teller};

use near::{Neighbors, SharedExchanges};
use turns::Links;

pub use near::GradientMemory;

/// What the mesh of one worker needs.
pub struct MeshConfig {
    pub me: WorkerId,
    /// Proves that a peer belongs to this job, where nothing is encrypted.
    pub secret: Secret,
    /// Encrypts all links, and says who this worker is; `None`: in the clear.
    pub security: Option<Credentials>,
    /// Where peers dial.
    pub listener: TcpListener,
    pub shape: Shape,
    /// Whether members of one host read each other's memory.
    pub shares_memory: bool,
    pub patience: Duration,
    pub clock: Clock,
    pub events: Teller,
    pub up: Sender<Up>,
}

/// What the worker asks of the thread.
pub enum Command {
    /// Where a worker can be reached.
    Peer {
        who: WorkerId,
        address: SocketAddr,
    },
    /// A view is in force. `lost`: who was lost with it; `closes`: exchanges of older views cannot end any more.
    View {
        view: Arc<View>,
        lost: Arc<Vec<WorkerId>>,
        closes: bool,
    },
    /// This view is being boarded.
    Plan {
        view: Arc<View>,
    },
    Exchange {
        ticket: Ticket,
        view: Arc<View>,
        number: u64,
        entry: Entry,
    },
    /// What followed from an exchange that the worker's own thread has served.
    CarryOut(Effects),
    Send {
        to: WorkerId,
        letter: Arc<Letter>,
    },
    Read {
        ticket: Ticket,
        from: WorkerId,
        shelf: Shelf,
        extent: Extent,
        waits: bool,
    },
    /// Somebody waits for a value that was published just now.
    Published,
    /// Reads the parameters that several workers have published.
    Collect {
        of: Vec<WorkerId>,
        shelf: Shelf,
        to: Sender<Vec<Arc<Vector>>>,
    },
    /// Nobody needs what is still being collected.
    StopCollecting,
    /// This worker will not answer any more. Who reads a value that it has published gets none.
    Lose {
        who: WorkerId,
    },
    /// A member that has no link by now will never have one.
    Orphaned,
    End,
}

/// The worker's end of its mesh. Dropping it closes all links.
pub struct Mesh {
    commands: Sender<Command>,
    wake: Wake,
    /// `None` if another crate serves the links.
    links: Option<(Arc<Links>, SharedExchanges)>,
    pub shelves: Arc<OwnShelves>,
    thread: Option<JoinHandle<()>>,
}

/// Wakes the thread that serves the links.
pub type Wake = Arc<dyn Fn() + Send + Sync>;

/// Gives commands to a mesh, from any thread.
#[derive(Clone)]
pub struct MeshHandle {
    commands: Sender<Command>,
    wake: Wake,
}

impl MeshHandle {
    pub fn give(&self, command: Command) {
        if self.commands.send(command).is_ok() {
            (self.wake)();
        }
    }
}

impl Mesh {
    /// Links that are not ours: a thread of another crate takes the commands and reads the shelves.
    pub fn served_elsewhere(
        commands: Sender<Command>,
        wake: Wake,
        shelves: Arc<OwnShelves>,
    ) -> Mesh {
        Mesh { commands, wake, links: None, shelves, thread: None }
    }

    pub fn start(config: MeshConfig) -> io::Result<Mesh> {
        let (commands, todo) = mpsc::channel();
        let poll = Poll::new()?;
        let shelves = Arc::<OwnShelves>::default();
        socket::prepare(&config.listener)?;
        let mut listener = mio::net::TcpListener::from_std(config.listener.try_clone()?);
        poll.registry().register(&mut listener, LISTEN, Interest::READABLE)?;
        let peers = Arc::new(Mutex::new(BTreeSet::new()));
        let known = peers.clone();
        let is_member = Arc::new(move |who| known.lock().is_ok_and(|known| known.contains(&who)));
        let near = config.shares_memory.then(|| Near::new(config.shape.size()).ok()).flatten();
        let neighbors = near.as_ref().and_then(|near| Neighbors::open(near, &poll).ok());
        let near = near.filter(|_| neighbors.is_some());
        let exchanges = SharedExchanges::new(&config, near);
        let server = config.security.as_ref().map(|it| Arc::new(peer_server(it, is_member)));
        let serving = Serving {
            peers,
            server,
            pool: exchanges.lock().pool.clone(),
            exchanges: exchanges.clone(),
            neighbors,
            events: Events::with_capacity(turns::EVENTS),
            told: vec![],
            has_ended: false,
            wakes_at: None,
            limits: Limits::for_replica(config.shape.size()),
            config,
            poll,
            listener,
            todo,
            shelves: shelves.clone(),
            conns: BTreeMap::new(),
            next_token: FIRST_LINK,
            by_peer: BTreeMap::new(),
            dials: BTreeMap::new(),
            accept_again: None,
            waiting: BTreeMap::new(),
            gone: BTreeSet::new(),
            view: Arc::default(),
            plan: Arc::default(),
            reads: BTreeMap::new(),
            requests: 0,
            collects: BTreeMap::new(),
            dirty: Tokens::default(),
            readable: Tokens::default(),
        };
        let (links, thread) = Links::start(serving)?;
        let woken = links.clone();
        let wake: Wake = Arc::new(move || woken.wake());
        Ok(Mesh { commands, wake, links: Some((links, exchanges)), shelves, thread: Some(thread) })
    }

    pub fn handle(&self) -> MeshHandle {
        MeshHandle { commands: self.commands.clone(), wake: self.wake.clone() }
    }

    /// Gives a command, on the worker's own thread; others have a [`handle`](Self::handle).
    pub fn give(&self, command: Command) {
        self.hand_back();
        self.handle().give(command);
    }

    /// Leaves the links to their thread: the worker does something else than to wait in [`next`](Self::next).
    pub fn hand_back(&self) {
        if let Some((links, _)) = &self.links {
            links.hand_back();
        }
    }

    /// Enters an exchange. A short one is entered on this thread, without waking another one: all of it if all members share memory,
    /// else as far as the sockets take it. What is left is done by the thread of the links, or in [`next`](Self::next).
    pub fn exchange(&self, ticket: Ticket, view: Arc<View>, number: u64, entry: Entry) {
        let command = |view, entry| Command::Exchange { ticket, view, number, entry };
        let Some((links, exchanges)) = &self.links else { return self.give(command(view, entry)) };
        let entered = exchanges.enter_here(ticket, view, number, entry);
        let (view, entry) = match entered {
            Ok(effects) if effects.is_empty() => return,
            Ok(effects) => return self.give(Command::CarryOut(effects)),
            Err(it) => it,
        };
        let command = command(view, entry);
        let is_short = exchanges.is_short(number);
        let left = if is_short { links.enter_here(command) } else { Some(command) };
        left.into_iter().for_each(|command| self.give(command));
    }

    /// What happens next; `None` if nothing can any more.
    pub fn next(&self, inbox: &Inbox) -> Option<Event> {
        match &self.links {
            Some((links, _)) => links.next(inbox),
            None => inbox.wait(),
        }
    }

    /// Whether all other members read this one's memory.
    pub fn is_near(&self, view: &View) -> bool {
        self.links.as_ref().is_some_and(|(_, exchanges)| exchanges.lock().is_near(view))
    }

    /// Memory in which peers of this host can read gradients; `None` if they share none.
    pub fn gradient_memory(&self) -> Option<GradientMemory> {
        self.links.as_ref().and_then(|(_, exchanges)| exchanges.gradient_memory())
    }
}

impl Drop for Mesh {
    fn drop(&mut self) {
        self.give(Command::End);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

const LISTEN: Token = Token(0);
/// A peer of this host has passed its segment; a peer wants this process to look at its board.
const DOOR: Token = Token(1);
const BELL: Token = Token(2);
const FIRST_LINK: usize = 3;

/// A connection that has not said who it is may send this much.
const STRANGER: Limits = Limits { head: 512, body: 0 };
/// How many of them there may be, and for how long.
const STRANGERS_MAX: usize = 64;
const STRANGER_TIME: Duration = Duration::from_secs(5);
/// A refused dial is tried again after this time, and then less and less often.
const REDIAL: Duration = Duration::from_millis(20);
/// What may wait for a peer that takes nothing, besides twice what one message can hold.
const QUEUE_MAX: u64 = 64 << 20;

struct Serving {
    config: MeshConfig,
    limits: Limits,
    poll: Poll,
    listener: mio::net::TcpListener,
    todo: Receiver<Command>,
    shelves: Arc<OwnShelves>,
    exchanges: SharedExchanges,
    /// Memory of vectors that arrive and are dropped.
    pool: Pool,
    neighbors: Option<Neighbors>,
    events: Events,
    /// What the worker is to be told at the end of a turn.
    told: Vec<Event>,
    /// Whether the worker's end of the mesh is gone.
    has_ended: bool,
    /// When the thread of the links wakes on its own.
    wakes_at: Option<Instant>,
    conns: BTreeMap<usize, Conn>,
    next_token: usize,
    by_peer: BTreeMap<WorkerId, usize>,
    /// Workers that may be talked to, by their certificates.
    peers: Arc<Mutex<BTreeSet<WorkerId>>>,
    server: Option<Arc<rustls::ServerConfig>>,
    dials: BTreeMap<WorkerId, Dial>,
    /// When connections are accepted that could not be.
    accept_again: Option<Instant>,
    /// Messages to peers whose link is not there yet.
    waiting: BTreeMap<WorkerId, Vec<(PeerMessage, Load)>>,
    /// Peers whose link broke.
    gone: BTreeSet<WorkerId>,
    view: Arc<View>,
    /// A view that is being boarded, or was.
    plan: Arc<View>,
    reads: BTreeMap<u64, (WorkerId, Reader)>,
    requests: u64,
    collects: BTreeMap<u64, Collecting>,
    /// Links that have something to send, and those that may have something to read.
    dirty: Tokens,
    readable: Tokens,
}

/// Some links. In most turns it is one of them or none, so that a list without an allocation of its own serves best.
#[derive(Default)]
struct Tokens(Vec<usize>);

impl Tokens {
    fn insert(&mut self, token: usize) {
        if !self.0.contains(&token) {
            self.0.push(token);
        }
    }

    fn remove(&mut self, token: usize) {
        self.0.retain(|it| *it != token);
    }

    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn drain(&mut self) -> impl Iterator<Item = usize> {
        self.0.drain(..)
    }

    /// Those that come next need not be given new memory.
    fn use_memory_of(&mut self, drained: Tokens) {
        if self.0.capacity() == 0 {
            *self = drained;
        }
    }
}

struct Conn {
    link: Link,
    since: Instant,
    standing: Standing,
    /// Whether a peer is on this machine.
    is_here: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Standing {
    /// This process dialled, and the connection is not there yet.
    Dialling(WorkerId),
    /// It said hello to the peer it dialled, and waits for an answer.
    Greeted(WorkerId),
    /// Somebody dialled this process and has not said who it is.
    Stranger,
    Peer(WorkerId),
}

/// A peer that must be dialled.
struct Dial {
    address: SocketAddr,
    since: Instant,
    tries: u32,
    /// `None` while a connection is under way.
    again: Option<Instant>,
}

/// Who wants a value.
enum Reader {
    Task(Ticket),
    Collect(u64),
}

struct Collecting {
    missing: usize,
    found: BTreeMap<WorkerId, Arc<Vector>>,
    to: Sender<Vec<Arc<Vector>>>,
}

impl Serving {
    fn happens(&mut self, event: &mio::event::Event) {
        match event.token() {
            LISTEN => self.accept(),
            DOOR => self.descriptors_arrive(),
            BELL => self.look(),
            Token(token) => self.serve(token, event),
        }
    }

    fn obey(&mut self, command: Command) {
        match command {
            Command::Peer { who, address } => {
                if let Ok(mut peers) = self.peers.lock() {
                    peers.insert(who);
                }
                let is_linked = self.by_peer.contains_key(&who) || self.gone.contains(&who);
                if who < self.config.me && !is_linked {
                    let now = Instant::now();
                    let dial = Dial { address, since: now, tries: 0, again: Some(now) };
                    self.dials.entry(who).or_insert(dial);
                }
            }
            Command::View { view, lost, closes } => {
                if closes {
                    self.exchanges.lock().close_before(view.number);
                }
                for who in lost.iter() {
                    self.lose(*who, false);
                }
                self.view = view;
                self.suspect_gone();
            }
            Command::Plan { view } => {
                self.plan = view;
                self.suspect_gone();
            }
            Command::StopCollecting => self.collects.clear(),
            Command::Lose { who } => self.lose(who, false),
            Command::Orphaned => self.lose_unlinked(),
            Command::Exchange { ticket, view, number, entry } => {
                let effects = self.exchanges.enter(ticket, view, number, entry);
                self.carry_out(effects);
            }
            Command::CarryOut(effects) => self.carry_out(effects),
            Command::Send { to, letter } => {
                let form = match &*letter {
                    Letter::Gradient { payload, .. } => Some(Form::of(payload)),
                    _ => None,
                };
                let head = Box::new((*letter).clone());
                let message = PeerMessage::Letter { letter: head, form };
                self.send(to, message, Load::Letter(letter));
            }
            Command::Read { ticket, from, shelf, extent, waits } => {
                self.read(from, Reader::Task(ticket), (shelf, extent, waits));
            }
            Command::Published => {
                for (waiting, value) in self.shelves.answers() {
                    self.answer(waiting.by, waiting.request, Some(value));
                }
            }
            Command::Collect { of, shelf, to } => self.collect(&of, shelf, to),
            Command::End => {}
        }
    }

    fn tell(&mut self, news: News) {
        self.told.push(Event::For { to: self.config.me, news });
    }

    fn carry_out(&mut self, effects: Effects) {
        let Effects { sends, done, wrong } = effects;
        for (to, message, load) in sends {
            self.send(to, message, load);
        }
        for (ticket, result) in done {
            self.tell(News::of(ticket, result));
        }
        for (who, _) in wrong {
            self.lose(who, true);
        }
    }
}

#[cfg(test)]
mod tests;
