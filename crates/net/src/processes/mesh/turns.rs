//! Who serves the links: a thread of their own, or the worker's while it waits for a short sum.
//!
//! Waking a thread takes longer than a short sum, so a worker that has nothing else to do writes and reads on its own. Sockets are
//! watched by a poll that is itself watched by the one which the thread of the links waits on; a worker that serves turns this
//! off, and nobody is woken by what it is about to read.

use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Registry, Token, Waker};
use paceline_runtime::edge::Event;

use super::near::{SPIN, SPIN_LATE};
use super::{Command, Serving};

/// The links of one process, which two threads serve in turns.
pub struct Links {
    serving: Mutex<Serving>,
    /// Of the poll that the thread of the links waits on.
    registry: Registry,
    /// The poll that watches the sockets.
    sockets: RawFd,
    waker: Waker,
    to_worker: Sender<Event>,
    /// Whether the worker serves, and the thread of the links is not woken by sockets.
    is_served_here: AtomicBool,
    /// Whether a peer was late last time.
    was_slow: AtomicBool,
}

const WAKE: Token = Token(0);
const SOCKETS: Token = Token(1);

/// What the poll of the links watches the sockets for, while they are the worker's: such an event never comes.
#[cfg(any(target_os = "linux", target_os = "android"))]
const NOTHING: Option<Interest> = Some(Interest::PRIORITY);
#[cfg(not(any(target_os = "linux", target_os = "android")))]
const NOTHING: Option<Interest> = None;

impl Links {
    /// Starts the thread that serves while the worker does not.
    pub fn start(serving: Serving) -> io::Result<(Arc<Links>, std::thread::JoinHandle<()>)> {
        let poll = Poll::new()?;
        let waker = Waker::new(poll.registry(), WAKE)?;
        let sockets = serving.poll.as_raw_fd();
        let registry = poll.registry().try_clone()?;
        registry.register(&mut SourceFd(&sockets), SOCKETS, Interest::READABLE)?;
        let (is_served_here, was_slow) = (AtomicBool::new(false), AtomicBool::new(false));
        let (to_worker, serving) = (serving.config.events.clone(), Mutex::new(serving));
        let links = Arc::new(Links {
            serving,
            registry,
            sockets,
            waker,
            to_worker,
            is_served_here,
            was_slow,
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

    fn lock(&self) -> MutexGuard<'_, Serving> {
        self.serving.lock().expect("no holder panics")
    }

    /// What the thread of the links does.
    fn serve(&self, mut poll: Poll) {
        let mut events = Events::with_capacity(2);
        let mut timeout = None;
        loop {
            if let Err(error) = poll.poll(&mut events, timeout)
                && error.kind() != io::ErrorKind::Interrupted
            {
                return;
            }
            let mut serving = self.lock();
            while serving.turn().is_full {}
            if serving.has_ended {
                return;
            }
            serving.wakes_at = serving.next_wake();
            timeout = serving.wakes_at.map(|at| at.saturating_duration_since(Instant::now()));
            let told = std::mem::take(&mut serving.told);
            drop(serving);
            self.tell(told);
        }
    }

    fn tell(&self, told: Vec<Event>) {
        for event in told {
            // Nobody listens any more when the worker has ended.
            drop(self.to_worker.send(event));
        }
    }

    /// Enters an exchange on the worker's own thread; returns the command if the other one serves just now. `looks`: the answer is worth
    /// waiting for without sleeping.
    pub fn enter_here(&self, command: Command, looks: bool) -> Option<Command> {
        let Ok(mut serving) = self.serving.try_lock() else { return Some(command) };
        if looks {
            self.take_over();
        }
        // What the coordinator ordered before comes first.
        serving.obey_all();
        serving.obey(command);
        serving.flush();
        let told = std::mem::take(&mut serving.told);
        drop(serving);
        self.tell(told);
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
        let mut serving = self.serving.try_lock().ok()?;
        let was_slow = self.was_slow.load(Ordering::Relaxed);
        let mut until = Instant::now() + if was_slow { SPIN_LATE } else { SPIN };
        let found = loop {
            if let Ok(event) = inbox.try_recv() {
                break Some(event);
            }
            let turn = serving.turn();
            serving.told.drain(..).for_each(|event| drop(self.to_worker.send(event)));
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
        let wakes_at = serving.next_wake();
        let is_sooner = wakes_at.is_some_and(|at| serving.wakes_at.is_none_or(|set| at < set));
        if is_sooner || serving.has_ended {
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
        Turn { happens: count > 0 || has_obeyed, is_full: was_interrupted || count == EVENTS }
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
