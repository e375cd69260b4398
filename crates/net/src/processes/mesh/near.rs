//! Members of one host: how the mesh makes them known to each other, and how a worker's own thread serves a short exchange.

use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use mio::Poll;
use paceline_learn::Vector;
use paceline_learn::kernels::shared::{OwnSegment, PeerSegment};
use paceline_runtime::edge::{Event, News};
use paceline_runtime::wire::Entry;
use paceline_runtime::{Ticket, View, WorkerId};

use super::super::exchanges::{Effects, Exchanges, Shape};
use super::super::message::{Load, PeerMessage};
use super::super::near::door::{Door, Nonce, random};
use super::super::near::{Near, gradient_memory};
use super::look::{Look, Looks};
use super::{BELL, DOOR, MeshConfig, Serving};
use crate::inbox::Teller;

/// Gives memory of this length; `None` if there is none left.
pub type GradientMemory = Arc<dyn Fn(usize) -> Option<Vector> + Send + Sync>;

/// The exchanges of this process, which two threads serve: that of the links, and the worker's own.
#[derive(Clone)]
pub struct SharedExchanges {
    exchanges: Arc<Mutex<Exchanges>>,
    segment: Option<Arc<OwnSegment>>,
    me: WorkerId,
    shape: Shape,
    cores: usize,
    was_slow: Arc<AtomicBool>,
    events: Teller,
}

impl SharedExchanges {
    pub fn new(config: &MeshConfig, near: Option<Near>) -> SharedExchanges {
        let segment = near.as_ref().map(|near| near.segment().clone());
        let exchanges = Exchanges::new(config.me, config.shape, near);
        SharedExchanges {
            exchanges: Arc::new(Mutex::new(exchanges)),
            segment,
            me: config.me,
            shape: config.shape,
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            was_slow: Arc::default(),
            events: config.events.clone(),
        }
    }

    pub fn lock(&self) -> MutexGuard<'_, Exchanges> {
        self.exchanges.lock().expect("no holder panics")
    }

    pub fn gradient_memory(&self) -> Option<GradientMemory> {
        self.segment.as_ref().map(|segment| gradient_memory(segment, self.shape.size()))
    }

    /// Enters, and looks for what others tell for a moment.
    pub fn enter(&self, ticket: Ticket, view: Arc<View>, number: u64, entry: Entry) -> Effects {
        let mut exchanges = self.lock();
        let spins = self.looks(&view) == Looks::Always && exchanges.is_near(&view) && number > 0;
        if !spins {
            wants_bell(&exchanges, true);
            let mut effects = exchanges.enter(ticket, view, number, entry);
            effects.extend(exchanges.look());
            return effects;
        }
        wants_bell(&exchanges, false);
        let mut effects = exchanges.enter(ticket, view, number, entry);
        let was_slow = self.was_slow.load(Ordering::Relaxed);
        let mut look = Look::begin(was_slow);
        loop {
            effects.extend(exchanges.look());
            // What goes over links is not sent while this member looks.
            let is_over = !effects.done.is_empty() || !effects.sends.is_empty();
            if is_over || !look.on(Looks::Always) {
                break;
            }
        }
        // Nothing that members of its view tell is needed before this member enters the next exchange, and then it looks: until then nobody need
        // wake it, unless much is to be read by then.
        if exchanges.has_entered() || !self.shape.is_short() {
            wants_bell(&exchanges, true);
            // A peer that read the word before has not rung.
            effects.extend(exchanges.look());
        }
        // Once only: a peer that is still computing is not waited for in vain in every exchange.
        self.was_slow.store(effects.done.is_empty() && !was_slow, Ordering::Relaxed);
        effects
    }

    /// Whether members of a view look for what comes next without sleeping.
    pub fn looks(&self, view: &View) -> Looks {
        Looks::of(view.members.len(), self.cores)
    }

    /// Whether a worker adds with others on its own thread.
    pub fn is_short(&self, number: u64) -> bool {
        self.shape.is_short() && number > 0
    }

    /// Enters on the worker's own thread if that is all it takes; returns what is left to do.
    pub fn enter_here(
        &self,
        ticket: Ticket,
        view: Arc<View>,
        number: u64,
        entry: Entry,
    ) -> Result<Effects, (Arc<View>, Entry)> {
        if !self.is_short(number) || self.segment.is_none() || !self.lock().is_near(&view) {
            return Err((view, entry));
        }
        let mut effects = self.enter(ticket, view, number, entry);
        for (ticket, result) in effects.done.drain(..) {
            let news = News::of(ticket, result);
            drop(self.events.send(Event::For { to: self.me, news }));
        }
        Ok(effects)
    }
}

fn wants_bell(exchanges: &Exchanges, wants: bool) {
    if let Some(near) = &exchanges.near {
        near.wants_bell(wants);
    }
}

/// What is known of peers until they read each other's memory.
pub struct Neighbors {
    door: Door,
    segment: Arc<OwnSegment>,
    /// The numbers that must come with their descriptors.
    nonces: BTreeMap<WorkerId, Nonce>,
    /// Peers that have mapped our segment, and we not yet theirs.
    mapped: BTreeMap<WorkerId, u64>,
}

impl Neighbors {
    pub fn open(near: &Near, poll: &Poll) -> io::Result<Neighbors> {
        let door = Door::open()?;
        door.register(poll.registry(), DOOR, BELL)?;
        let (nonces, mapped) = (BTreeMap::new(), BTreeMap::new());
        Ok(Neighbors { door, segment: near.segment().clone(), nonces, mapped })
    }
}

impl Serving {
    /// Tells a peer where it can pass its segment, should it be on this host.
    pub(super) fn offer_memory(&mut self, who: WorkerId) {
        let Some(neighbors) = &mut self.neighbors else { return };
        let Ok(nonce) = random() else { return };
        neighbors.nonces.insert(who, nonce);
        let message = PeerMessage::Door { name: neighbors.door.name(), nonce };
        self.send(who, message, Load::None);
    }

    pub(super) fn pass_segment(&mut self, to: Nonce, nonce: Nonce) {
        if let Some(neighbors) = &self.neighbors {
            // It fails if the peer is on another host: then the link remains the only way.
            let _ = neighbors.door.pass(to, (nonce, self.config.me), &neighbors.segment);
        }
    }

    /// Maps what peers of this host have passed, if the link has told who they are.
    pub(super) fn descriptors_arrive(&mut self) {
        while let Some(neighbors) = &mut self.neighbors
            && let Some(passed) = neighbors.door.arrived()
        {
            let who = passed.from;
            if neighbors.nonces.get(&who) != Some(&passed.nonce) {
                continue;
            }
            neighbors.nonces.remove(&who);
            let mapped = neighbors.mapped.remove(&who);
            let segment = PeerSegment::new(passed.segment, neighbors.segment.bytes());
            let cursor = match (segment, &mut self.exchanges.lock().near) {
                (Ok(segment), Some(near)) => near.add(who, segment, passed.bell),
                _ => None,
            };
            let Some(cursor) = cursor else { continue };
            self.send(who, PeerMessage::Mapped { cursor }, Load::None);
            if let Some(cursor) = mapped {
                self.admit_reader(who, cursor);
            }
        }
    }

    /// A peer has mapped our segment.
    pub(super) fn admit_reader(&mut self, who: WorkerId, cursor: u64) -> Option<()> {
        let from = self.exchanges.lock().near.as_mut()?.admit(who, cursor);
        match from {
            Ok(Some(from)) => self.send(who, PeerMessage::Board { from }, Load::None),
            Ok(None) => drop(self.neighbors.as_mut()?.mapped.insert(who, cursor)),
            Err(()) => return None,
        }
        Some(())
    }

    /// A peer of this host has told something.
    pub(super) fn look(&mut self) {
        let Some(neighbors) = &self.neighbors else { return };
        neighbors.door.quiet();
        self.look_at_boards();
    }

    /// Takes what members of this host have told; returns whether anything follows from it.
    pub(super) fn look_at_boards(&mut self) -> bool {
        let effects = self.exchanges.lock().look();
        let follows = !effects.is_empty();
        self.carry_out(effects);
        follows
    }

    pub(super) fn forget_neighbor(&mut self, who: WorkerId) {
        if let Some(neighbors) = &mut self.neighbors {
            neighbors.nonces.remove(&who);
            neighbors.mapped.remove(&who);
            if let Some(near) = &mut self.exchanges.lock().near {
                near.forget(who);
            }
        }
    }
}
