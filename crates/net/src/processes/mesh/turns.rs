//! Who serves the links: the worker's own thread while it waits, a thread of theirs while it does not.
//!
//! Waking a thread takes longer than a short sum, so a worker that has nothing else to do writes and reads on its own, and sleeps on
//! the sockets if nothing comes. Sockets are watched by a poll that is itself watched by two others: the one on which the worker
//! sleeps, and the one on which the thread of the links does; a worker that serves turns the second one off, and nobody else is woken
//! by what it is about to read.

use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Registry, Token, Waker};
use paceline_runtime::edge::Event;

use super::look::{Look, Looks};
use super::{Command, Serving, Standing};
use crate::inbox::Inbox;

/// The links of one process, which two threads serve in turns.
pub struct Links {
    /// `None` when the worker's end of the mesh is gone: then all links are closed.
    serving: Mutex<Option<Serving>>,
    /// Of the poll that the thread of the links waits on.
    registry: Registry,
    /// The poll that watches the sockets.
    sockets: RawFd,
    /// Wakes the thread of the links.
    waker: Waker,
    bed: Mutex<Bed>,
    /// Whether the worker serves, and the thread of the links is not woken by sockets.
    is_served_here: AtomicBool,
    /// Whether the worker wants to serve, and waits for the other thread to let it.
    is_wanted: AtomicBool,
    /// Whether the worker has left something to do.
    has_more: AtomicBool,
    /// Whether it has left something that sockets did not take yet.
    has_unsent: AtomicBool,
    /// Whether a peer was late last time.
    was_slow: AtomicBool,
    /// Whether vectors are so short that the worker never does anything long between two events. Then it does not hand back in between:
    /// that takes as long as some of its sums.
    keeps: bool,
}

/// Where the worker sleeps.
struct Bed {
    poll: Poll,
    events: Events,
    /// How often it may look at its links alone. What wakes it wakes it only once, so that it must look at everything before it sleeps
    /// again.
    glances: usize,
}

const WAKE: Token = Token(0);
const SOCKETS: Token = Token(1);

/// What the poll of the links watches the sockets for while they are the worker's: such an event never comes.
#[cfg(any(target_os = "linux", target_os = "android"))]
const NOTHING: Option<Interest> = Some(Interest::PRIORITY);
#[cfg(not(any(target_os = "linux", target_os = "android")))]
const NOTHING: Option<Interest> = None;

/// A worker that waits for the next part of a short sum reads all of its links without asking which can be read, if there are at most this
/// many.
const FEW: usize = 3;
/// How many times it does so before it looks at everything else.
const GLANCES: usize = 32;
/// Nobody sleeps longer than this without a look at all links, and the thread of links that the worker keeps does not either: whatever is
/// wrong with what wakes them, a job goes on.
const UNSEEN: Duration = Duration::from_secs(1);
const UNSEEN_KEPT: Duration = Duration::from_millis(100);

impl Links {
    /// Starts the thread that serves while the worker does not.
    pub fn start(serving: Serving) -> io::Result<(Arc<Links>, JoinHandle<()>)> {
        let (poll, bed) = (Poll::new()?, Poll::new()?);
        let waker = Waker::new(poll.registry(), WAKE)?;
        serving.config.events.set_waker(Waker::new(bed.registry(), WAKE)?);
        let sockets = serving.poll.as_raw_fd();
        let keeps = serving.config.shape.is_short();
        let registry = poll.registry().try_clone()?;
        for watching in [&registry, bed.registry()] {
            watching.register(&mut SourceFd(&sockets), SOCKETS, Interest::READABLE)?;
        }
        let links = Arc::new(Links {
            serving: Mutex::new(Some(serving)),
            registry,
            sockets,
            waker,
            bed: Mutex::new(Bed { poll: bed, events: Events::with_capacity(2), glances: 0 }),
            is_served_here: AtomicBool::new(false),
            is_wanted: AtomicBool::new(false),
            has_more: AtomicBool::new(false),
            has_unsent: AtomicBool::new(false),
            was_slow: AtomicBool::new(false),
            keeps,
        });
        let served = links.clone();
        let thread = std::thread::Builder::new().name("links".into());
        let thread = thread.spawn(move || served.serve(poll))?;
        Ok((links, thread))
    }

    pub fn wake(&self) {
        // A thread that cannot be woken has ended.
        let _ = self.waker.wake();
    }

    fn lock(&self) -> MutexGuard<'_, Option<Serving>> {
        self.serving.lock().expect("no holder panics")
    }

    /// Has the other thread let go of the links. A worker that left an exchange to that thread instead would have to wake it, and would find
    /// the links taken again by the next exchange, and so on.
    fn lock_soon(&self) -> MutexGuard<'_, Option<Serving>> {
        self.is_wanted.store(true, Ordering::Relaxed);
        let serving = self.lock();
        self.is_wanted.store(false, Ordering::Relaxed);
        serving
    }

    /// What the thread of the links does.
    fn serve(&self, mut poll: Poll) {
        let mut events = Events::with_capacity(2);
        let mut timeout = Some(UNSEEN_KEPT);
        loop {
            let polled = poll.poll(&mut events, timeout);
            let mut serving = self.lock();
            let Some(links) = serving.as_mut() else { return };
            let mut look = Look::begin(false);
            loop {
                let turn = links.turn();
                links.tell_all();
                if turn.happens {
                    look.again();
                }
                // What is left is done by the worker, which waits for nothing else.
                let is_wanted = self.is_wanted.load(Ordering::Relaxed);
                // While members add a long vector, the next piece is never far.
                let is_looking = !is_wanted && links.is_adding() && look.on(links.looks());
                if !turn.is_full && !is_looking || links.has_ended || is_wanted {
                    break;
                }
            }
            let is_broken = polled.is_err_and(|error| error.kind() != io::ErrorKind::Interrupted);
            if links.has_ended || is_broken {
                links.flush_all();
                *serving = None;
                return;
            }
            links.wakes_at = links.next_wake();
            timeout = Some(until(links.wakes_at, if self.keeps { UNSEEN_KEPT } else { UNSEEN }));
        }
    }

    /// Enters a short exchange on the worker's own thread; returns the command if the links are closed.
    pub fn enter_here(&self, command: Command) -> Option<Command> {
        let mut serving = self.lock_soon();
        let Some(links) = serving.as_mut() else { return Some(command) };
        self.take_over();
        // What the coordinator ordered before comes first.
        links.obey_all();
        links.obey(command);
        links.flush();
        links.tell_all();
        self.leave(links);
        if links.is_sooner(links.next_wake()) {
            self.wake();
        }
        None
    }

    /// What happens next to the worker, which serves the links meanwhile.
    pub fn next(&self, inbox: &Inbox) -> Option<Event> {
        let found = inbox.take().or_else(|| {
            self.take_over();
            self.serve_here(inbox)
        });
        // What can be read may wait until the worker comes back: a peer that is ahead has sent its part of the next sum. Peers wait for what
        // was not sent.
        let keeps = self.keeps && self.is_served_here.load(Ordering::Relaxed);
        if !keeps || self.has_unsent.load(Ordering::Relaxed) || found.is_none() {
            self.hand_back();
        }
        found.or_else(|| inbox.wait())
    }

    fn serve_here(&self, inbox: &Inbox) -> Option<Event> {
        if !self.is_served_here.load(Ordering::Relaxed) {
            return None;
        }
        let Bed { poll, events, glances } = &mut *self.bed.lock().expect("no holder panics");
        let was_slow = self.was_slow.load(Ordering::Relaxed);
        let mut look = Look::begin(was_slow);
        let mut is_slow = false;
        loop {
            let mut serving = self.lock_soon();
            let links = serving.as_mut()?;
            let found = loop {
                if let Some(event) = inbox.take() {
                    break Some(event);
                }
                let turn = match *glances > 0 && self.keeps && links.can_glance() {
                    true => {
                        *glances -= 1;
                        links.glance()
                    }
                    false => {
                        let turn = links.turn();
                        // What it has not seen would not wake it.
                        *glances = if turn.is_full { 0 } else { GLANCES };
                        turn
                    }
                };
                // What was told before is in the inbox, which is empty: this is the next event, and need not go through it.
                let first = links.first_told();
                links.tell_all();
                if links.has_ended {
                    self.wake();
                    return first;
                }
                if first.is_some() {
                    break first;
                }
                if turn.happens || turn.is_full {
                    look.again();
                } else if !links.is_adding() {
                    break None;
                } else if !look.on(links.looks()) {
                    is_slow = true;
                    break None;
                }
            };
            self.leave(links);
            let wakes_at = links.next_wake();
            let is_sooner = links.is_sooner(wakes_at);
            drop(serving);
            let timeout = Some(until(wakes_at, UNSEEN));
            let found = found.or_else(|| {
                inbox.sleep(|| {
                    *glances = 0;
                    // An error ends the sleep, and the sockets are looked at again.
                    let _ = poll.poll(events, timeout);
                })
            });
            if found.is_some() {
                // Once only: a peer that is still computing is not waited for in vain in every exchange.
                self.was_slow.store(is_slow && !was_slow, Ordering::Relaxed);
                if is_sooner {
                    self.wake();
                }
                return found;
            }
        }
    }

    /// Notes what the worker leaves to do.
    fn leave(&self, links: &Serving) {
        self.has_more.store(links.has_more(), Ordering::Relaxed);
        self.has_unsent.store(links.has_unsent(), Ordering::Relaxed);
    }

    fn take_over(&self) {
        if !self.is_served_here.load(Ordering::Relaxed)
            && let Some(nothing) = NOTHING
            && self.registry.reregister(&mut SourceFd(&self.sockets), SOCKETS, nothing).is_ok()
        {
            self.is_served_here.store(true, Ordering::Relaxed);
        }
    }

    /// What has arrived and was not read yet wakes the thread of the links now, and so does what the worker has left to do.
    pub fn hand_back(&self) {
        let sockets = &mut SourceFd(&self.sockets);
        if self.is_served_here.load(Ordering::Relaxed)
            && self.registry.reregister(sockets, SOCKETS, Interest::READABLE).is_ok()
        {
            self.is_served_here.store(false, Ordering::Relaxed);
        }
        if self.has_more.swap(false, Ordering::Relaxed) {
            self.wake();
        }
    }
}

/// How long it is to this time, or `max` if that is less.
fn until(at: Option<Instant>, max: Duration) -> Duration {
    at.map_or(max, |at| at.saturating_duration_since(Instant::now()).min(max))
}

/// What came of a turn.
struct Turn {
    happens: bool,
    /// Whether more may be there.
    is_full: bool,
}

/// How many are looked at in a turn.
pub const EVENTS: usize = 256;

impl Serving {
    /// Does what can be done without waiting.
    fn turn(&mut self) -> Turn {
        let mut events = std::mem::replace(&mut self.events, Events::with_capacity(0));
        let polled = self.poll.poll(&mut events, Some(Duration::ZERO));
        let was_interrupted = polled.is_err_and(|error| error.kind() == io::ErrorKind::Interrupted);
        let mut count = 0;
        for event in &events {
            count += 1;
            self.happens(event);
        }
        self.events = events;
        // Who slept for long looks at everything, whether a bell was rung or not.
        let is_told = count == 0 && self.look_at_boards();
        let has_obeyed = self.obey_all();
        let is_busy = self.has_more();
        self.dial_due();
        self.read_all();
        self.flush();
        let is_full = was_interrupted || count == EVENTS || self.has_more();
        Turn { happens: count > 0 || is_told || has_obeyed || is_busy, is_full }
    }

    /// Whether reading all links costs less than asking which of them can be read, and the next part of a sum is about to come. A socket that has
    /// not taken everything would not say when it takes more.
    fn can_glance(&self) -> bool {
        self.conns.len() <= FEW && self.is_adding() && !self.has_unsent()
    }

    /// Reads all links of peers, and obeys.
    fn glance(&mut self) -> Turn {
        let has_obeyed = self.obey_all();
        let is_told = self.look_at_boards();
        let mut peers = [None; FEW];
        for (peer, token) in peers.iter_mut().zip(self.by_peer.values()) {
            *peer = Some(*token);
        }
        let mut has_read = self.read_all();
        for token in peers.into_iter().flatten() {
            self.conns.get_mut(&token).into_iter().for_each(|conn| conn.link.wake(false));
            has_read |= self.read_for_a_turn(token);
        }
        self.flush();
        Turn { happens: has_obeyed || is_told || has_read, is_full: self.has_more() }
    }

    /// Whether the thread of the links does not wake on its own by this time.
    fn is_sooner(&self, at: Option<Instant>) -> bool {
        at.is_some_and(|at| self.wakes_at.is_none_or(|set| at < set))
    }

    /// Writes as much as the sockets take.
    fn flush_all(&mut self) {
        while !self.dirty.is_empty() {
            self.flush();
        }
    }

    /// Whether something waits until a socket takes more.
    fn has_unsent(&self) -> bool {
        self.conns.values().any(|conn| conn.link.has_unsent())
    }

    /// Whether links can be read or written.
    fn has_more(&self) -> bool {
        !self.readable.is_empty() || !self.dirty.is_empty()
    }

    /// Whether parts of a sum are still to come over links.
    fn is_adding(&self) -> bool {
        self.exchanges.lock().are_under_way()
    }

    fn looks(&self) -> Looks {
        match self.exchanges.looks(&self.view) {
            Looks::InTurns { .. } => Looks::InTurns { is_crowded: self.has_only_neighbors() },
            looks => looks,
        }
    }

    /// Whether all peers are on this machine, by the addresses of their links.
    fn has_only_neighbors(&self) -> bool {
        let mut peers = self.conns.values().filter(|it| matches!(it.standing, Standing::Peer(_)));
        peers.all(|conn| conn.is_here)
    }

    fn first_told(&mut self) -> Option<Event> {
        (!self.told.is_empty()).then(|| self.told.remove(0))
    }

    /// Tells the worker what has happened. It is told at the end of a turn: woken earlier, it would find the links taken.
    fn tell_all(&mut self) {
        for event in self.told.drain(..) {
            // Nobody listens any more when the worker has ended.
            drop(self.config.events.send(event));
        }
    }

    /// Obeys all commands; returns whether there were any.
    fn obey_all(&mut self) -> bool {
        let mut has_obeyed = false;
        while let Ok(command) = self.todo.try_recv() {
            self.has_ended |= matches!(command, Command::End);
            self.obey(command);
            has_obeyed = true;
        }
        has_obeyed
    }
}
