//! The links of one worker process to all others, and the thread that serves them while the worker computes.
//!
//! Of two workers the younger one dials. A link lives as long as both: if it breaks, something that was on its way may be
//! lost, so both ends suspect each other, and the coordinator decides which of them is put out.

mod links;
mod near;
mod reads;
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
use paceline_runtime::wire::{Entry, Extent, Framed, Letter, Shelf};
use paceline_runtime::{Ticket, View, WorkerId};

use super::clock::Clock;
use super::exchanges::{Effects, Shape};
use super::frame::{Arrived, Limits};
use super::link::{Got, Link, TURN};
use super::message::{Form, Load, PeerMessage, Secret, Up, VERSION};
use super::near::Near;
use super::shelves::{OwnShelves, Waiting};
use crate::inbox::{Inbox, Teller};

use links::{hello, shows};
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
        config.listener.set_nonblocking(true)?;
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
            waiting: BTreeMap::new(),
            gone: BTreeSet::new(),
            view: Arc::default(),
            plan: Arc::default(),
            reads: BTreeMap::new(),
            requests: 0,
            collects: BTreeMap::new(),
            dirty: BTreeSet::new(),
            readable: BTreeSet::new(),
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
    dirty: BTreeSet<usize>,
    readable: BTreeSet<usize>,
}

struct Conn {
    link: Link,
    since: Instant,
    standing: Standing,
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

    fn send(&mut self, to: WorkerId, message: PeerMessage, load: Load) {
        if self.gone.contains(&to) {
            return;
        }
        match self.by_peer.get(&to).and_then(|token| Some((*token, self.conns.get_mut(token)?))) {
            Some((token, conn)) => {
                conn.link.queue(&message, load);
                self.dirty.insert(token);
            }
            None => self.waiting.entry(to).or_default().push((message, load)),
        }
    }

    fn flush(&mut self) {
        for token in std::mem::take(&mut self.dirty) {
            let Some(conn) = self.conns.get_mut(&token) else { continue };
            let has_more = conn.link.write();
            let is_full = conn.link.queued() > QUEUE_MAX + 2 * self.limits.body;
            match has_more {
                Ok(true) if !is_full => drop(self.dirty.insert(token)),
                Ok(false) if !is_full => {}
                _ => self.close(token),
            }
        }
    }

    /// A socket can be read or written.
    fn serve(&mut self, token: usize, event: &mio::event::Event) {
        let ends = event.is_read_closed() || event.is_error();
        let (is_readable, is_writable) = (event.is_readable() || ends, event.is_writable());
        let Some(conn) = self.conns.get_mut(&token) else { return };
        if let Standing::Dialling(who) = conn.standing {
            if !is_writable && !is_readable {
                return;
            }
            let is_connected = matches!(conn.link.wire.stream.take_error(), Ok(None))
                && conn.link.wire.stream.peer_addr().is_ok();
            if !is_connected {
                return self.close(token);
            }
            conn.standing = Standing::Greeted(who);
            conn.link.set_timeout(self.config.patience);
            let hello = hello(&self.config, who);
            conn.link.queue(&hello, Load::None);
            self.dirty.insert(token);
            return;
        }
        if is_writable {
            self.dirty.insert(token);
        }
        if is_readable {
            conn.link.wake(ends);
            self.readable.insert(token);
        }
    }

    /// Reads from all links that may have something, for a turn each.
    fn read_all(&mut self) {
        for token in std::mem::take(&mut self.readable) {
            if self.read_turn(token) {
                self.readable.insert(token);
            }
        }
    }

    /// Returns whether the link may have more.
    fn read_turn(&mut self, token: usize) -> bool {
        let mut room = TURN;
        // One frame at a time: what a greeting allows to follow is larger than a stranger may send, and pieces of a sum are added while
        // they are in the processor's cache.
        loop {
            let Some(conn) = self.conns.get_mut(&token) else { return false };
            let got = conn.link.read(&mut room);
            if conn.link.wire.wants_write() {
                self.dirty.insert(token);
            }
            let is_right = match got {
                Ok(Got::Frame(frame)) => self.receive(token, frame).is_some(),
                Ok(Got::Nothing) => return false,
                Ok(Got::Later) => return true,
                Err(_) => false,
            };
            if !is_right {
                self.close(token);
            }
        }
    }

    /// Takes one frame; `None` if the link must be closed.
    fn receive(&mut self, token: usize, frame: Arrived) -> Option<()> {
        let message: PeerMessage = frame.message().ok()?;
        let conn = self.conns.get_mut(&token)?;
        let from = match (conn.standing, &message) {
            (Standing::Peer(who), _) => who,
            (standing, PeerMessage::Hello { version, secret, from, to }) => {
                let is_right = *version == VERSION
                    && *secret == self.config.secret
                    && *to == self.config.me
                    && (self.config.security.is_none() || shows(conn, *from))
                    && !self.by_peer.contains_key(from)
                    && !self.gone.contains(from);
                let is_expected = match standing {
                    Standing::Greeted(who) => who == *from,
                    _ => *from > self.config.me,
                };
                let from = *from;
                return (is_right && is_expected).then(|| self.know(token, from));
            }
            _ => return None,
        };
        match message {
            PeerMessage::Hello { .. } => None,
            PeerMessage::Entry { .. }
            | PeerMessage::Chunk { .. }
            | PeerMessage::Sum { .. }
            | PeerMessage::Piece { .. } => {
                let effects = self.exchanges.lock().receive(from, message, frame.segments).ok()?;
                self.carry_out(effects);
                Some(())
            }
            PeerMessage::Door { name, nonce } => {
                self.pass_segment(name, nonce);
                Some(())
            }
            PeerMessage::Mapped { cursor } => self.admit_reader(from, cursor),
            PeerMessage::Board { from: first } => {
                self.exchanges.lock().near.as_mut()?.begin(from, first)?;
                // What the peer has told since has rung the bell before this process knew where to read.
                self.look();
                Some(())
            }
            PeerMessage::Letter { mut letter, form } => {
                match (&mut *letter, form) {
                    (Letter::Gradient { payload, .. }, Some(form)) => {
                        let filled = form.fill(frame.segments);
                        *payload = Arc::new(filled.filter(|it| self.config.shape.fits(it))?);
                    }
                    (Letter::Gradient { .. }, None) | (_, Some(_)) => return None,
                    (letter, None) => letter.fill(frame.segments).ok()?,
                }
                self.tell(News::Letter { from, letter });
                Some(())
            }
            PeerMessage::Read { request, shelf, extent, waits } => {
                let waiting = Waiting { by: from, request, shelf, extent };
                let value = match waits {
                    true => self.shelves.read_or_wait(waiting),
                    false => self.shelves.read(shelf, extent),
                };
                if value.is_some() || !waits {
                    self.answer(from, request, value);
                }
                Some(())
            }
            PeerMessage::Value { request, value } => {
                let value = match value {
                    Some(mut value) => {
                        value.fill(frame.segments).ok()?;
                        Some(*value)
                    }
                    None => None,
                };
                self.value_arrives(from, request, value);
                Some(())
            }
        }
    }
}

#[cfg(test)]
mod tests;
