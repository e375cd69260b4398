//! Who serves the links: a thread of their own, or the worker's while it waits for a short sum.
//!
//! Waking a thread takes longer than a short sum, so a worker that has nothing else to do writes and reads on its own. Sockets are
//! watched by a poll that is itself watched by the one which the thread of the links waits on; a worker that serves turns this
//! off, and nobody is woken by what it is about to read.

use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Registry, Token, Waker};
use paceline_runtime::edge::Event;

use super::{Command, Serving};

/// The links of one process, which two threads serve in turns.
pub struct Links {
    /// `None` when the worker's end of the mesh is gone: then all links are closed.
    serving: Mutex<Option<Serving>>,
    /// Of the poll that the thread of the links waits on.
    registry: Registry,
    /// The poll that watches the sockets.
    sockets: RawFd,
    waker: Waker,
    /// Whether the worker serves, and the thread of the links is not woken by sockets.
    is_served_here: AtomicBool,
    /// Whether a peer was late last time.
    was_slow: AtomicBool,
}

const WAKE: Token = Token(0);
const SOCKETS: Token = Token(1);

/// What the poll of the links watches the sockets for while they are the worker's: such an event never comes.
#[cfg(any(target_os = "linux", target_os = "android"))]
const NOTHING: Option<Interest> = Some(Interest::PRIORITY);
#[cfg(not(any(target_os = "linux", target_os = "android")))]
const NOTHING: Option<Interest> = None;

/// So long a worker looks for what comes next before it sleeps. A peer needs some of it to write what it has to say.
const SPIN: Duration = Duration::from_micros(100);
/// So long a worker looks if a peer was late last time. That peer may be late because it had to be woken, as this worker then is; if one of
/// them does not wait for the other, both wake each other in every exchange from then on.
const SPIN_LATE: Duration = Duration::from_micros(400);
/// How often a worker tries to have the links, while the other thread is about to let go of them.
const TRIES: usize = 64;

impl Links {
    /// Starts the thread that serves while the worker does not.
    pub fn start(serving: Serving) -> io::Result<(Arc<Links>, JoinHandle<()>)> {
        let poll = Poll::new()?;
        let waker = Waker::new(poll.registry(), WAKE)?;
        let sockets = serving.poll.as_raw_fd();
        let registry = poll.registry().try_clone()?;
        registry.register(&mut SourceFd(&sockets), SOCKETS, Interest::READABLE)?;
        let (is_served_here, was_slow) = (AtomicBool::new(false), AtomicBool::new(false));
        let serving = Mutex::new(Some(serving));
        let links = Arc::new(Links { serving, registry, sockets, waker, is_served_here, was_slow });
        let served = links.clone();
        let thread = std::thread::Builder::new().name("links".into());
        let thread = thread.spawn(move || served.serve(poll))?;
        Ok((links, thread))
    }

    pub fn wake(&self) {
        // A thread that cannot be woken has ended.
        let _ = self.waker.wake();
    }

    /// What the thread of the links does.
    fn serve(&self, mut poll: Poll) {
        let mut events = Events::with_capacity(2);
        let mut timeout = None;
        loop {
            let polled = poll.poll(&mut events, timeout);
            let mut serving = self.serving.lock().expect("no holder panics");
            let Some(links) = serving.as_mut() else { return };
            let mut until = Instant::now() + SPIN;
            loop {
                let turn = links.turn();
                if turn.happens {
                    until = Instant::now() + SPIN;
                }
                // While members add a long vector, the next piece is never far.
                let is_spinning = links.is_adding() && Instant::now() < until;
                if !turn.is_full && !is_spinning || links.has_ended {
                    break;
                }
            }
            let is_broken = polled.is_err_and(|error| error.kind() != io::ErrorKind::Interrupted);
            if links.has_ended || is_broken {
                *serving = None;
                return;
            }
            links.wakes_at = links.next_wake();
            timeout = links.wakes_at.map(|at| at.saturating_duration_since(Instant::now()));
        }
    }

    /// The links, unless the other thread serves them for longer than a moment.
    fn try_lock(&self) -> Option<MutexGuard<'_, Option<Serving>>> {
        (0..TRIES).find_map(|_| {
            std::hint::spin_loop();
            self.serving.try_lock().ok()
        })
    }

    /// Enters an exchange on the worker's own thread; returns the command if the other one serves just now. `looks`: the answer is worth
    /// waiting for without sleeping.
    pub fn enter_here(&self, command: Command, looks: bool) -> Option<Command> {
        let Some(mut serving) = self.try_lock() else { return Some(command) };
        let Some(links) = serving.as_mut() else { return Some(command) };
        if looks {
            self.take_over();
        }
        // What the coordinator ordered before comes first.
        links.obey_all();
        links.obey(command);
        links.flush();
        links.tell_all();
        None
    }

    /// What happens next. A worker that has just entered a short exchange serves the links for a moment before it sleeps.
    pub fn next(&self, inbox: &Receiver<Event>) -> Option<Event> {
        if !self.is_served_here.load(Ordering::Relaxed) {
            return inbox.recv().ok();
        }
        let found = self.serve_here(inbox);
        self.hand_back();
        found.or_else(|| inbox.recv().ok())
    }

    fn serve_here(&self, inbox: &Receiver<Event>) -> Option<Event> {
        let mut serving = self.try_lock()?;
        let links = serving.as_mut()?;
        let was_slow = self.was_slow.load(Ordering::Relaxed);
        let mut until = Instant::now() + if was_slow { SPIN_LATE } else { SPIN };
        let found = loop {
            if let Ok(event) = inbox.try_recv() {
                break Some(event);
            }
            let turn = links.turn();
            let now = Instant::now();
            if turn.happens {
                // While one part arrives the next is not far.
                until = now + SPIN;
            } else if now >= until {
                break None;
            }
            std::hint::spin_loop();
        };
        // Once only: a peer that is still computing is not waited for in vain in every exchange.
        self.was_slow.store(found.is_none() && !was_slow, Ordering::Relaxed);
        let wakes_at = links.next_wake();
        let is_sooner = wakes_at.is_some_and(|at| links.wakes_at.is_none_or(|set| at < set));
        if is_sooner || links.has_ended {
            self.wake();
        }
        found
    }

    fn take_over(&self) {
        if let Some(nothing) = NOTHING
            && self.registry.reregister(&mut SourceFd(&self.sockets), SOCKETS, nothing).is_ok()
        {
            self.is_served_here.store(true, Ordering::Relaxed);
        }
    }

    /// What has arrived and was not read yet wakes the thread of the links now.
    fn hand_back(&self) {
        let sockets = &mut SourceFd(&self.sockets);
        if self.registry.reregister(sockets, SOCKETS, Interest::READABLE).is_ok() {
            self.is_served_here.store(false, Ordering::Relaxed);
        }
    }
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
            let is_readable = event.is_readable() || event.is_read_closed() || event.is_error();
            self.happens(event.token(), is_readable, event.is_writable());
        }
        self.events = events;
        let has_obeyed = self.obey_all();
        self.dial_due();
        self.flush();
        self.tell_all();
        Turn { happens: count > 0 || has_obeyed, is_full: was_interrupted || count == EVENTS }
    }

    /// Whether an exchange is under way whose members can all look for it without holding each other up.
    fn is_adding(&self) -> bool {
        self.exchanges.spins(&self.view) && self.exchanges.lock().are_under_way()
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
