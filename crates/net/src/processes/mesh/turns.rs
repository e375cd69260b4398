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

use super::near::Looks;
use super::{Command, Serving};
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
    /// Where the worker sleeps.
    bed: Mutex<(Poll, Events)>,
    /// Whether the worker serves, and the thread of the links is not woken by sockets.
    is_served_here: AtomicBool,
    /// Whether the worker wants to serve, and waits for the other thread to let it.
    is_wanted: AtomicBool,
    /// Whether the worker has left something to do.
    has_more: AtomicBool,
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

/// So long a thread looks for what comes next of a sum before it sleeps. A peer needs some of it to write what it has to say.
const SPIN: Duration = Duration::from_micros(100);
/// So long a worker looks if a peer was late last time. That peer may be late because it had to be woken, as this worker then is; if one of
/// them does not wait for the other, both wake each other in every exchange from then on.
const SPIN_LATE: Duration = Duration::from_micros(400);
/// How often a worker tries to have the links, while the other thread is about to let go of them.
const TRIES: usize = 64;

impl Links {
    /// Starts the thread that serves while the worker does not.
    pub fn start(serving: Serving) -> io::Result<(Arc<Links>, JoinHandle<()>)> {
        let (poll, bed) = (Poll::new()?, Poll::new()?);
        let waker = Waker::new(poll.registry(), WAKE)?;
        serving.config.events.set_waker(Waker::new(bed.registry(), WAKE)?);
        let sockets = serving.poll.as_raw_fd();
        let registry = poll.registry().try_clone()?;
        for watching in [&registry, bed.registry()] {
            watching.register(&mut SourceFd(&sockets), SOCKETS, Interest::READABLE)?;
        }
        let links = Arc::new(Links {
            serving: Mutex::new(Some(serving)),
            registry,
            sockets,
            waker,
            bed: Mutex::new((bed, Events::with_capacity(2))),
            is_served_here: AtomicBool::new(false),
            is_wanted: AtomicBool::new(false),
            has_more: AtomicBool::new(false),
            was_slow: AtomicBool::new(false),
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

    /// What the thread of the links does.
    fn serve(&self, mut poll: Poll) {
        let mut events = Events::with_capacity(2);
        let mut timeout = None;
        loop {
            let polled = poll.poll(&mut events, timeout);
            let mut serving = self.lock();
            let Some(links) = serving.as_mut() else { return };
            let mut until = Instant::now() + SPIN;
            loop {
                let turn = links.turn();
                if turn.happens {
                    until = Instant::now() + SPIN;
                }
                // While members add a long vector, the next piece is never far.
                let is_looking = Instant::now() < until && links.look_on();
                // What is left is done by the worker, which waits for nothing else.
                let is_wanted = self.is_wanted.load(Ordering::Relaxed);
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
            timeout = links.wakes_at.map(|at| at.saturating_duration_since(Instant::now()));
        }
    }

    /// Enters a short exchange on the worker's own thread; returns the command if the other one serves just now.
    pub fn enter_here(&self, command: Command) -> Option<Command> {
        let lock = (0..TRIES).find_map(|_| {
            std::hint::spin_loop();
            self.serving.try_lock().ok()
        });
        let Some(mut serving) = lock else { return Some(command) };
        let Some(links) = serving.as_mut() else { return Some(command) };
        self.take_over();
        // What the coordinator ordered before comes first.
        links.obey_all();
        links.obey(command);
        links.flush();
        links.tell_all();
        self.has_more.store(links.has_more(), Ordering::Relaxed);
        if links.wakes_sooner() {
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
        self.hand_back();
        found.or_else(|| inbox.wait())
    }

    fn serve_here(&self, inbox: &Inbox) -> Option<Event> {
        if !self.is_served_here.load(Ordering::Relaxed) {
            return None;
        }
        let (poll, events) = &mut *self.bed.lock().expect("no holder panics");
        let was_slow = self.was_slow.load(Ordering::Relaxed);
        let mut until = Instant::now() + if was_slow { SPIN_LATE } else { SPIN };
        let mut is_slow = false;
        loop {
            self.is_wanted.store(true, Ordering::Relaxed);
            let mut serving = self.lock();
            self.is_wanted.store(false, Ordering::Relaxed);
            let links = serving.as_mut()?;
            let found = loop {
                if let Some(event) = inbox.take() {
                    break Some(event);
                }
                let turn = links.turn();
                if links.has_ended {
                    self.wake();
                    return None;
                }
                if turn.happens || turn.is_full {
                    // While one part arrives the next is not far.
                    until = Instant::now() + SPIN;
                } else if !links.look_on() {
                    break None;
                } else if Instant::now() >= until {
                    is_slow = true;
                    break None;
                }
            };
            self.has_more.store(links.has_more(), Ordering::Relaxed);
            let is_sooner = links.wakes_sooner();
            let wakes_at = links.next_wake();
            drop(serving);
            let timeout = wakes_at.map(|at| at.saturating_duration_since(Instant::now()));
            let found = found.or_else(|| {
                inbox.sleep(|| {
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
        let has_obeyed = self.obey_all();
        let is_busy = self.has_more();
        self.dial_due();
        self.read_all();
        self.flush();
        self.tell_all();
        let is_full = was_interrupted || count == EVENTS || self.has_more();
        Turn { happens: count > 0 || has_obeyed || is_busy, is_full }
    }

    /// Whether something must be done before the thread of the links wakes on its own.
    fn wakes_sooner(&self) -> bool {
        self.next_wake().is_some_and(|at| self.wakes_at.is_none_or(|set| at < set))
    }

    /// Writes as much as the sockets take.
    fn flush_all(&mut self) {
        while !self.dirty.is_empty() {
            self.flush();
        }
    }

    /// Whether links can be read or written.
    fn has_more(&self) -> bool {
        !self.readable.is_empty() || !self.dirty.is_empty()
    }

    /// Whether the next part of a sum is worth looking for without sleeping. Where members share cores, others run first.
    fn look_on(&self) -> bool {
        let looks = self.exchanges.looks(&self.view);
        if looks == Looks::No || !self.exchanges.lock().are_under_way() {
            return false;
        }
        match looks {
            Looks::InTurns => std::thread::yield_now(),
            _ => std::hint::spin_loop(),
        }
        true
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
