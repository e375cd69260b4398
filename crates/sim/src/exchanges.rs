//! The time that an exchange takes: message by message around a ring, or by a formula for the whole ring.
//!
//! Under [`RingModel::Auto`], members are *in step* once all n of them send the same step at the same time over equal
//! links, and nothing is scheduled between their messages: then one event stands for the n messages of a step. It has the
//! serial numbers that they would have. When something could tell members apart (a letter takes the uplink of one of them, or
//! one withdraws), and at the last step, the event becomes n messages again. So the journal is the same as with messages.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use paceline_runtime::exchange::ExchangeResult;
use paceline_runtime::wire::{Entry, Steps};
use paceline_runtime::{Meeting, Ticket, View, WorkerId};
use rustc_hash::FxHashMap;

use crate::network::{Transit, Wires};
use crate::scenario::RingModel;

/// Names an exchange: the view's number, and which of the job's exchanges it is.
pub type Name = (u64, u64);

/// A message of a ring, or an event that stands for several.
#[derive(Clone, Copy, Debug)]
pub struct RingMessage {
    pub name: Name,
    pub from: WorkerId,
    pub to: Receiver,
    pub transit: Transit,
}

#[derive(Clone, Copy, Debug)]
pub enum Receiver {
    Rank(u32),
    /// Members are in step: each receives a message. `serial` is the number of the first of these messages.
    Each {
        members: u32,
        serial: u64,
    },
    /// In closed form: the exchange ends for all members.
    All,
}

/// An exchange has ended for a member.
pub struct Ended {
    pub to: WorkerId,
    pub ticket: Ticket,
    pub result: ExchangeResult,
}

pub struct Exchanges {
    seed: u64,
    sums: RingModel,
    open: FxHashMap<Name, Ring>,
    /// Those that have ended and that some member has not reported: it may be stopped, or give up an exchange whose result
    /// is just on its way to it.
    ended: VecDeque<(Name, Ring)>,
    /// The newest view that each worker has entered.
    entered: FxHashMap<WorkerId, u64>,
}

struct Ring {
    view: Arc<View>,
    members: Vec<Member>,
    /// Until the exchange ends for the first member.
    meeting: Option<Meeting>,
    result: Option<ExchangeResult>,
    ended: usize,
    /// In closed form: all its messages are paid for.
    is_charged: bool,
    wave: Wave,
    in_step: Option<InStep>,
    /// Messages that are on their way and were counted when the members came into step.
    counted: usize,
}

/// The newest messages that are of the same step, arrive at the same time and were scheduled one after another.
#[derive(Default)]
struct Wave {
    step: u32,
    arrives: Duration,
    serial: u64,
    /// The ranks of their receivers, in order.
    receivers: Vec<u32>,
}

/// All members have sent the same step, and have received all steps before.
struct InStep {
    step: u32,
    /// The receivers of this step, in order: this many ranks after those of the wave.
    turn: u32,
    transit: Transit,
}

#[derive(Clone, Default)]
struct Member {
    ticket: Option<Ticket>,
    steps: Option<Steps>,
    sent: u32,
    received: u32,
    ended: bool,
    withdrawn: bool,
}

/// How many exchanges that have ended are remembered at most.
const ENDED: usize = 256;

impl Exchanges {
    pub fn new(seed: u64, sums: RingModel) -> Exchanges {
        Exchanges {
            seed,
            sums,
            open: FxHashMap::default(),
            ended: VecDeque::new(),
            entered: FxHashMap::default(),
        }
    }

    /// A member enters. Returns the messages to send, and the members for which the exchange has ended.
    pub fn enter(
        &mut self,
        now: Duration,
        wires: &mut Wires,
        who: WorkerId,
        (view, number): (Arc<View>, u64),
        (ticket, entry): (Ticket, Entry),
    ) -> (Vec<RingMessage>, Vec<Ended>) {
        let name = (view.number, number);
        let n = view.members.len();
        let rank = view.rank(who).expect("members enter the exchanges of their view");
        self.entered.insert(who, view.number);
        if self.open.len() > usize::from(self.open.contains_key(&name)) {
            // Messages of two exchanges would share uplinks.
            self.fall_out_of_step(wires);
        }
        let ring = self.open.entry(name).or_insert_with(|| Ring::new(view));
        let member = &mut ring.members[rank];
        (member.ticket, member.steps) = (Some(ticket), Some(entry.steps(n)));
        let meeting = ring.meeting.as_mut().expect("no exchange ends before all have entered");
        meeting.enter(rank, entry);
        let complete = meeting.is_complete();
        let messages = match self.sums {
            RingModel::Auto | RingModel::Messages => ring.send_on(now, wires, name, rank),
            RingModel::ClosedForm if n > 1 && complete => {
                ring.is_charged = true;
                let members = &ring.view.members;
                let steps = || ring.members.iter().filter_map(|m| m.steps);
                let living = ring.members.iter().filter(|member| !member.withdrawn);
                let sent = living.filter_map(|member| member.steps);
                let sent = sent.map(|steps| u64::from(steps.count) * steps.bytes).sum();
                let steps = steps().max_by_key(|steps| steps.bytes).expect("all have entered");
                let end = now + wires.ring(members, steps.count, steps.bytes, sent);
                let arrives = wires.after_all_cuts(members, end);
                let transit = Transit { left: end, arrives };
                vec![RingMessage { name, from: who, to: Receiver::All, transit }]
            }
            RingModel::ClosedForm => vec![],
        };
        let ended = if ring.has_all(rank) { self.end(name, rank) } else { None };
        (messages, ended.into_iter().collect())
    }

    /// A message arrives. Returns the messages to send, and the members for which the exchange has ended.
    pub fn arrive(
        &mut self,
        now: Duration,
        wires: &mut Wires,
        message: RingMessage,
    ) -> (Vec<RingMessage>, Vec<Ended>) {
        let name = message.name;
        let Some(ring) = self.open.get_mut(&name) else { return (vec![], vec![]) };
        let rank = match message.to {
            Receiver::Rank(rank) => rank as usize,
            Receiver::Each { .. } => return (ring.step_on(now, wires, message), vec![]),
            Receiver::All => {
                let all = 0..ring.members.len();
                return (vec![], all.filter_map(|rank| self.end(name, rank)).collect());
            }
        };
        if ring.counted > 0 {
            ring.counted -= 1;
            return (vec![], vec![]);
        }
        if ring.comes_into_step(now, wires, rank) {
            return (vec![ring.step(now, wires, message)], vec![]);
        }
        ring.members[rank].received += 1;
        let next = ring.send_on(now, wires, name, rank);
        let ended = if ring.has_all(rank) { self.end(name, rank) } else { None };
        (next, ended.into_iter().collect())
    }

    /// A message has been scheduled; `serial` is its place among events of the same time.
    pub fn scheduled(&mut self, message: &RingMessage, serial: u64) {
        if self.sums == RingModel::Auto
            && let Receiver::Rank(to) = message.to
            && let Some(ring) = self.open.get_mut(&message.name)
        {
            ring.follow_wave(to, message.transit.arrives, serial);
        }
    }

    /// A letter takes the uplink of a member, which may delay its messages: no members are in step from now on.
    pub fn fall_out_of_step(&mut self, wires: &mut Wires) {
        self.open.values_mut().for_each(|ring| ring.fall_out_of_step(wires));
    }

    /// A member gives up an exchange, or died; returns the bytes that it has sent.
    pub fn withdraw(&mut self, wires: &mut Wires, who: WorkerId, name: Name) -> u64 {
        let at = self.ended.iter().rposition(|(ended, _)| *ended == name);
        let ended = at.map(|at| &mut self.ended[at].1);
        let Some(ring) = self.open.get_mut(&name).or(ended) else { return 0 };
        let Some(rank) = ring.view.rank(who) else { return 0 };
        ring.fall_out_of_step(wires);
        let member = &mut ring.members[rank];
        if member.withdrawn {
            return 0;
        }
        member.withdrawn = true;
        let sent = member.steps.map_or(0, |steps| {
            u64::from(if ring.is_charged { steps.count } else { member.sent }) * steps.bytes
        });
        if let Some(at) = at
            && self.ended[at].1.members.iter().all(|member| member.withdrawn)
        {
            self.ended.remove(at);
        }
        sent
    }

    /// A member has reported what it sent in an exchange.
    pub fn reported(&mut self, wires: &mut Wires, who: WorkerId, name: Name) {
        let _ = self.withdraw(wires, who, name);
    }

    /// All that a member that died had sent in exchanges and not reported.
    pub fn withdraw_all(&mut self, wires: &mut Wires, who: WorkerId) -> Vec<(Name, u64)> {
        let ended = self.ended.iter().map(|(name, _)| *name);
        let mut names: Vec<Name> = self.open.keys().copied().chain(ended).collect();
        names.sort_unstable();
        let sent = names.into_iter().map(|name| (name, self.withdraw(wires, who, name)));
        sent.filter(|(_, bytes)| *bytes > 0).collect()
    }

    /// The members of an exchange in closed form, for checking that all live.
    pub fn members(&self, name: Name) -> &[WorkerId] {
        self.open.get(&name).map_or(&[], |ring| &ring.view.members)
    }

    /// Forgets exchanges of views that no living worker is in any more.
    pub fn forget_old<'a>(&mut self, alive: impl Iterator<Item = &'a WorkerId>) {
        // A worker that has entered no view yet may still enter any.
        let entered = alive.map(|who| self.entered.get(who).copied().unwrap_or(0));
        let Some(oldest) = entered.min() else { return };
        self.open.retain(|(number, _), _| *number >= oldest);
    }

    fn end(&mut self, name: Name, rank: usize) -> Option<Ended> {
        let seed = self.seed;
        let ring = self.open.get_mut(&name)?;
        if let Some(meeting) = ring.meeting.take() {
            ring.result = Some(meeting.end(seed, ring.view.clone(), name.1));
        }
        let result = ring.result.clone().expect("a meeting has a result");
        let member = &mut ring.members[rank];
        assert!(!member.ended, "an exchange ends once for each member");
        if member.withdrawn {
            return None;
        }
        member.ended = true;
        let ticket = member.ticket.expect("a member enters before its exchange ends");
        let to = ring.view.members[rank];
        ring.ended += 1;
        if ring.ended == ring.members.len()
            && let Some(mut ring) = self.open.remove(&name)
        {
            ring.result = None;
            self.ended.push_back((name, ring));
            if self.ended.len() > ENDED {
                self.ended.pop_front();
            }
        }
        Some(Ended { to, ticket, result })
    }
}

impl Ring {
    fn new(view: Arc<View>) -> Ring {
        let n = view.members.len();
        Ring {
            view,
            members: vec![Member::default(); n],
            meeting: Some(Meeting::new(n)),
            result: None,
            ended: 0,
            is_charged: false,
            wave: Wave::default(),
            in_step: None,
            counted: 0,
        }
    }

    fn has_all(&self, rank: usize) -> bool {
        let member = &self.members[rank];
        member.steps.is_some_and(|steps| member.received == steps.count)
    }

    /// A member sends step s to the next member once it has entered and has received step s - 1; a member
    /// that enters late may have received several.
    fn send_on(
        &mut self,
        now: Duration,
        wires: &mut Wires,
        name: Name,
        rank: usize,
    ) -> Vec<RingMessage> {
        let n = self.members.len();
        let member = &mut self.members[rank];
        let Some(steps) = member.steps else { return vec![] };
        let (from, next) = (self.view.members[rank], (rank + 1) % n);
        let mut messages = Vec::new();
        while !member.withdrawn && member.sent < steps.count && member.sent <= member.received {
            member.sent += 1;
            let transit = wires.send(now, from, self.view.members[next], steps.bytes);
            let to = Receiver::Rank(next as u32);
            messages.push(RingMessage { name, from, to, transit });
        }
        messages
    }

    /// Extends the wave by a message that was just scheduled, or begins a new one with it.
    fn follow_wave(&mut self, to: u32, arrives: Duration, serial: u64) {
        let n = self.members.len();
        let step = self.members[(to as usize + n - 1) % n].sent;
        let wave = &mut self.wave;
        if (wave.step, wave.arrives, wave.serial + 1) != (step, arrives, serial) {
            (wave.step, wave.arrives) = (step, arrives);
            wave.receivers.clear();
        }
        wave.serial = serial;
        wave.receivers.push(to);
    }

    /// Whether all members are in step from now on: this is the first message of a wave of all members, all have as much to
    /// send, and none of them sends anything else.
    fn comes_into_step(&self, now: Duration, wires: &Wires, rank: usize) -> bool {
        let (wave, n) = (&self.wave, self.members.len());
        let is_wave = wave.receivers.len() == n
            && wave.receivers[0] as usize == rank
            && wave.arrives == now
            && self.members[rank].received + 1 == wave.step;
        let Some(steps) = self.members[rank].steps.filter(|_| is_wave) else { return false };
        let is_alike = |member: &Member| {
            !member.withdrawn && member.steps == Some(steps) && member.sent == wave.step
        };
        wave.step < steps.count
            && self.members.iter().all(is_alike)
            && self.view.members.iter().all(|who| wires.is_free(*who, now))
    }

    /// Members come into step: the whole wave has arrived, and all send the next step.
    fn step(&mut self, now: Duration, wires: &mut Wires, message: RingMessage) -> RingMessage {
        self.counted = self.members.len() - 1;
        let before = InStep { step: self.wave.step, turn: 0, transit: message.transit };
        self.next_step(now, wires, message, before)
    }

    /// A step has arrived at all members, and they send the next one. The last one is received message by message,
    /// since the exchange ends for one member after another.
    fn step_on(
        &mut self,
        now: Duration,
        wires: &mut Wires,
        message: RingMessage,
    ) -> Vec<RingMessage> {
        let last = self.members[0].steps.map_or(0, |steps| steps.count);
        if let Some(before) = self.in_step.take_if(|it| it.step < last) {
            return vec![self.next_step(now, wires, message, before)];
        }
        self.fall_out_of_step(wires);
        let n = self.members.len();
        let messages = self.wave.receivers.iter().map(|&to| {
            let from = self.view.members[(to as usize + n - 1) % n];
            RingMessage { from, to: Receiver::Rank(to), ..message }
        });
        messages.collect()
    }

    fn next_step(
        &mut self,
        now: Duration,
        wires: &mut Wires,
        message: RingMessage,
        before: InStep,
    ) -> RingMessage {
        let bytes = self.members[0].steps.map_or(0, |steps| steps.bytes);
        let members = self.members.len() as u32;
        let transit = wires.send_each(now, &self.view.members, bytes);
        let (step, turn) = (before.step + 1, (before.turn + 1) % members);
        self.in_step = Some(InStep { step, turn, transit });
        RingMessage { to: Receiver::Each { members, serial: 0 }, transit, ..message }
    }

    /// Each member has sent and received its own messages again.
    fn fall_out_of_step(&mut self, wires: &mut Wires) {
        let Some(InStep { step, turn, transit }) = self.in_step.take() else { return };
        let n = self.members.len() as u32;
        for member in &mut self.members {
            (member.sent, member.received) = (step, step - 1);
        }
        self.wave.receivers.iter_mut().for_each(|to| *to = (*to + turn) % n);
        wires.occupy(&self.view.members, transit.left);
    }
}
