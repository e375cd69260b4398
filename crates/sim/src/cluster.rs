//! A cluster in virtual time.

use std::cell::Cell;
use std::cmp::{Ordering, Reverse};
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, VecDeque};
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use paceline_learn::Dice;
use paceline_runtime::cluster::{
    Action, Cluster, Compute, Event, Letter, Published, Shelf, Shelves, Ticket, Word,
};
use paceline_runtime::coordinator::{Coordinator, Rules};
use paceline_runtime::membership::Sign;
use paceline_runtime::{Spans, WorkerId};

use crate::exchanges::{Exchanges, RingMessage};
use crate::network::{Transit, Wires};
use crate::pool::{Computing, Pool};
use crate::scenario::{Churn, Scenario, seconds};
use crate::speed::Speed;

/// What the simulator is told besides the scenario.
pub struct SimConfig {
    pub seed: u64,
    pub compute: Compute,
    pub threads: usize,
    pub samples_total: u64,
    pub samples_per_epoch: u64,
    /// See [`Rules::center_applies`].
    pub center_applies: bool,
}

pub struct SimCluster {
    scenario: Scenario,
    seed: u64,
    now: Duration,
    due: BinaryHeap<Reverse<QueueEntry>>,
    serial: u64,
    out: VecDeque<Event>,
    speed: Speed,
    wires: Wires,
    exchanges: Exchanges,
    pool: Pool,
    coordinator: Coordinator,
    shelves: Arc<Mutex<Shelves>>,
    alive: BTreeSet<WorkerId>,
    /// When those who are dead died.
    died: BTreeMap<WorkerId, Duration>,
    /// Alive, but given up by the coordinator.
    evicted: BTreeSet<WorkerId>,
    leaving: BTreeSet<WorkerId>,
    /// Wanted numbers of workers, each from a sample on; the next one comes first.
    sizes: VecDeque<(u64, u32)>,
    next_id: u32,
}

struct QueueEntry {
    at: Duration,
    serial: u64,
    soon: Scheduled,
}

enum Scheduled {
    Computed { who: WorkerId, ticket: Ticket, computing: Computing },
    Ring(RingMessage),
    Letter { from: WorkerId, to: WorkerId, letter: Letter, transit: Transit },
    Asked { by: WorkerId, from: WorkerId, shelf: Shelf, ticket: Ticket },
    Value { from: WorkerId, to: WorkerId, ticket: Ticket, value: Published, transit: Transit },
    Nothing { to: WorkerId, ticket: Ticket },
    ToCoordinator { from: WorkerId, word: Word },
    FromCoordinator(Event),
    Sign(Sign),
    Beats,
    Crash { who: WorkerId, back_after: Option<f64> },
    Leave { who: WorkerId },
    Join,
    Size { workers: u32 },
    CutEnds { workers: Vec<u32> },
    Churn { who: WorkerId },
}

impl PartialEq for QueueEntry {
    fn eq(&self, other: &QueueEntry) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for QueueEntry {}

impl PartialOrd for QueueEntry {
    fn partial_cmp(&self, other: &QueueEntry) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for QueueEntry {
    fn cmp(&self, other: &QueueEntry) -> Ordering {
        (self.at, self.serial).cmp(&(other.at, other.serial))
    }
}

const CHURN: u64 = 21;

impl SimCluster {
    pub fn new(scenario: Scenario, setting: SimConfig) -> SimCluster {
        let SimConfig { seed, compute, threads, samples_total, samples_per_epoch, center_applies } =
            setting;
        let rules = Rules {
            members_min: scenario.workers as usize,
            patience: seconds(scenario.coordinator.patience),
            samples_total,
            center_applies,
        };
        let (cuts, away) = (scenario.cuts.clone(), scenario.coordinator.away.clone());
        let mut cluster = SimCluster {
            seed,
            now: Duration::ZERO,
            due: BinaryHeap::new(),
            serial: 0,
            out: VecDeque::new(),
            speed: Speed::new(seed, scenario.compute.clone(), scenario.workers),
            wires: Wires::new(scenario.network.clone(), cuts, away),
            exchanges: Exchanges::new(seed, scenario.network.sums),
            pool: Pool::new(compute, threads),
            coordinator: Coordinator::new(rules),
            shelves: Arc::default(),
            alive: BTreeSet::new(),
            died: BTreeMap::new(),
            evicted: BTreeSet::new(),
            leaving: BTreeSet::new(),
            sizes: VecDeque::new(),
            next_id: 0,
            scenario,
        };
        cluster.plan_faults(samples_per_epoch);
        // The first workers are there from the start, and so is their view.
        for _ in 0..cluster.scenario.workers {
            let who = cluster.spawn();
            for event in cluster.coordinator.on(Duration::ZERO, Sign::Hello(who)) {
                cluster.out.push_back(event);
            }
        }
        cluster
    }

    /// Where published values are; for evaluating without disturbing anybody.
    pub fn shelves(&self) -> Arc<Mutex<Shelves>> {
        self.shelves.clone()
    }

    /// Counts everything that crosses the wires, headers included.
    pub fn bytes_on_wires(&self) -> Rc<Cell<u64>> {
        self.wires.bytes.clone()
    }

    fn plan_faults(&mut self, samples_per_epoch: u64) {
        let scenario = self.scenario.clone();
        for crash in scenario.crashes {
            let (who, back_after) = (WorkerId(crash.worker), crash.back_after);
            self.at(seconds(crash.at), Scheduled::Crash { who, back_after });
        }
        for leave in scenario.leaves {
            self.at(seconds(leave.at), Scheduled::Leave { who: WorkerId(leave.worker) });
        }
        for join in scenario.joins {
            (0..join.workers).for_each(|_| self.at(seconds(join.at), Scheduled::Join));
        }
        for size in scenario.sizes {
            match size.at_epoch {
                None => self.at(seconds(size.at), Scheduled::Size { workers: size.workers }),
                Some(epoch) => {
                    let sample = (epoch * samples_per_epoch as f64).round() as u64;
                    self.sizes.push_back((sample, size.workers));
                }
            }
        }
        self.sizes.make_contiguous().sort_by_key(|(sample, _)| *sample);
        let patience = seconds(scenario.coordinator.patience) + Duration::from_nanos(1);
        for cut in scenario.cuts.into_iter().filter(|cut| cut.coordinator) {
            self.at(seconds(cut.from) + patience, Scheduled::Beats);
            self.at(seconds(cut.to), Scheduled::CutEnds { workers: cut.workers });
        }
    }

    /// A worker's life begins.
    fn spawn(&mut self) -> WorkerId {
        let who = WorkerId(self.next_id);
        self.next_id += 1;
        self.alive.insert(who);
        self.out.push_back(Event::Started { who });
        if let Some(churn) = &self.scenario.churn {
            let lives = exponential(churn.lifetime_mean, &mut self.dice(who, CHURN));
            self.at(self.now + lives, Scheduled::Churn { who });
        }
        who
    }

    fn dice(&self, who: WorkerId, purpose: u64) -> Dice {
        Dice::keyed(&[self.seed, u64::from(who.0), purpose])
    }

    fn at(&mut self, at: Duration, soon: Scheduled) {
        self.serial += 1;
        self.due.push(Reverse(QueueEntry { at, serial: self.serial, soon }));
    }

    /// What the sender had not yet sent when it died never arrives.
    fn was_sent(&self, from: WorkerId, transit: Transit) -> bool {
        self.died.get(&from).is_none_or(|died| transit.left <= *died)
    }

    fn tell(&mut self, event: Event, to: WorkerId) {
        if self.alive.contains(&to) {
            self.out.push_back(event);
        }
    }

    fn ring(&mut self, messages: impl IntoIterator<Item = RingMessage>, events: Vec<Event>) {
        for message in messages {
            self.at(message.transit.arrives, Scheduled::Ring(message));
        }
        for event in events {
            if let Event::Exchanged { to, .. } = &event {
                let to = *to;
                self.tell(event, to);
            }
        }
    }

    /// The coordinator's decisions go out to those they concern.
    fn decide(&mut self, events: Vec<Event>) {
        for event in events {
            let to = match &event {
                Event::ViewChanged { to, lost, .. } => {
                    let alive = lost.iter().filter(|who| self.alive.contains(who));
                    self.evicted.extend(alive.copied());
                    *to
                }
                Event::Leased { to, .. }
                | Event::StopWished { to }
                | Event::SaveWished { to, .. }
                | Event::Again { to }
                | Event::Over { to } => *to,
                _ => {
                    self.exchanges.forget_old(self.alive.iter());
                    self.out.push_back(event);
                    continue;
                }
            };
            self.at(
                self.wires.reply_of_coordinator(self.now, to),
                Scheduled::FromCoordinator(event),
            );
        }
    }

    fn sign(&mut self, sign: Sign) {
        let decisions = self.coordinator.on(self.now, sign);
        self.decide(decisions);
    }

    /// A dead or evicted worker is noticed by its broken connection.
    fn crash(&mut self, who: WorkerId) {
        if !self.alive.remove(&who) {
            return;
        }
        self.died.insert(who, self.now);
        self.leaving.remove(&who);
        self.out.push_back(Event::Crashed { who });
        // A connection is seen to break after the last word that came over it.
        let detected = self.now + seconds(self.scenario.coordinator.detection);
        let noticed =
            self.wires.when_present(detected).max(self.wires.to_coordinator(self.now, who));
        self.at(noticed, Scheduled::Sign(Sign::Lost(who)));
    }

    fn staying(&self) -> usize {
        self.alive.len() - self.leaving.len()
    }

    fn leave(&mut self, who: WorkerId) {
        // The last one cannot leave: there would be nobody to leave anything to.
        if self.alive.contains(&who) && self.staying() > 1 && self.leaving.insert(who) {
            self.out.push_back(Event::LeaveWished { to: who });
        }
    }

    fn join(&mut self) {
        let who = self.spawn();
        self.at(self.wires.to_coordinator(self.now, who), Scheduled::Sign(Sign::Hello(who)));
    }

    fn churn(&mut self, who: WorkerId, churn: &Churn) {
        if !self.alive.contains(&who) || self.leaving.contains(&who) {
            return;
        }
        let mut dice = self.dice(who, CHURN + 1);
        if self.staying() <= churn.members_min as usize {
            let again = exponential(churn.lifetime_mean, &mut dice);
            return self.at(self.now + again, Scheduled::Churn { who });
        }
        let back = exponential(churn.back_after_mean, &mut dice);
        if dice.unit() < churn.leave_chance {
            self.leave(who);
        } else {
            self.crash(who);
        }
        self.at(self.now + back, Scheduled::Join);
    }

    fn happen(&mut self, soon: Scheduled) {
        match soon {
            Scheduled::Computed { who, ticket, computing } => {
                if self.alive.contains(&who) {
                    let gradient = computing.finish();
                    self.out.push_back(Event::Computed { to: who, ticket, gradient });
                }
            }
            Scheduled::Ring(message) => self.pass_on(message),
            Scheduled::Letter { from, to, letter, transit } => {
                if self.was_sent(from, transit) {
                    self.tell(Event::Arrived { to, from, letter }, to);
                }
            }
            Scheduled::Asked { by, from, shelf, ticket } => self.answer(by, from, shelf, ticket),
            Scheduled::Value { from, to, ticket, value, transit } => {
                if self.was_sent(from, transit) {
                    self.tell(Event::Value { to, ticket, value: Some(value) }, to);
                }
            }
            Scheduled::Nothing { to, ticket } => {
                self.tell(Event::Value { to, ticket, value: None }, to)
            }
            Scheduled::ToCoordinator { from, word } => {
                let decisions = self.coordinator.hear(self.now, from, word);
                self.decide(decisions);
            }
            Scheduled::FromCoordinator(event) => {
                let (Event::ViewChanged { to, .. }
                | Event::Leased { to, .. }
                | Event::StopWished { to }
                | Event::SaveWished { to, .. }
                | Event::Again { to }
                | Event::Over { to }) = &event
                else {
                    unreachable!("the coordinator tells nothing else")
                };
                let to = *to;
                self.tell(event, to);
            }
            Scheduled::Sign(sign) => self.sign(sign),
            other => self.fault(other),
        }
    }

    fn fault(&mut self, soon: Scheduled) {
        match soon {
            Scheduled::Beats => self.beats(),
            Scheduled::Crash { who, back_after } => {
                if self.alive.contains(&who) {
                    self.crash(who);
                    if let Some(after) = back_after {
                        self.at(self.now + seconds(after), Scheduled::Join);
                    }
                }
            }
            Scheduled::Leave { who } => self.leave(who),
            Scheduled::Join => self.join(),
            Scheduled::Size { workers } => {
                let wanted = workers as usize;
                (self.staying()..wanted).for_each(|_| self.join());
                let staying: Vec<_> = self.alive.difference(&self.leaving).copied().collect();
                staying.into_iter().skip(wanted).for_each(|who| self.leave(who));
            }
            Scheduled::CutEnds { workers } => {
                // Whom the coordinator gave up learns so now, and comes back under a new id.
                for who in workers.into_iter().map(WorkerId) {
                    if self.evicted.contains(&who) && self.alive.contains(&who) {
                        self.crash(who);
                        self.join();
                    }
                }
            }
            Scheduled::Churn { who } => {
                if let Some(churn) = self.scenario.churn.clone() {
                    self.churn(who, &churn);
                }
            }
            _ => unreachable!("only mishaps come here"),
        }
    }

    fn pass_on(&mut self, message: RingMessage) {
        let arrives = match message.to {
            Some(_) => self.was_sent(message.from, message.transit),
            None => {
                let members = self.exchanges.members(message.name);
                members.iter().all(|member| !self.died.contains_key(member))
            }
        };
        if arrives {
            let (next, events) = self.exchanges.arrive(self.now, &mut self.wires, message);
            self.ring(next, events);
        }
    }

    /// A read is answered by the peer's shelf; its task sleeps on.
    fn answer(&mut self, by: WorkerId, from: WorkerId, shelf: Shelf, ticket: Ticket) {
        if self.died.contains_key(&from) {
            return;
        }
        let value = if self.alive.contains(&from) {
            self.shelves.lock().expect("nobody panics here").get(&(from, shelf)).cloned()
        } else {
            None
        };
        match value {
            Some(value) => {
                let bytes = match shelf {
                    Shelf::Replica => {
                        4 * value.params.len() as u64 + paceline_runtime::cluster::HEADER_BYTES
                    }
                    _ => Letter::Handover { center: value.clone() }.bytes(),
                };
                let transit = self.wires.send(self.now, from, by, bytes);
                self.at(transit.arrives, Scheduled::Value { from, to: by, ticket, value, transit });
            }
            None => {
                let arrives = self.wires.signal(self.now, from, by);
                self.at(arrives, Scheduled::Nothing { to: by, ticket });
            }
        }
    }

    /// Heartbeats matter only where somebody is cut off, so only there they are looked at.
    fn beats(&mut self) {
        let present = self.wires.when_present(self.now);
        if present > self.now {
            // Back from being away, the coordinator lets everyone show that they live first.
            let patience = seconds(self.scenario.coordinator.patience);
            return self.at(present + patience, Scheduled::Beats);
        }
        let heard: Vec<WorkerId> = self
            .alive
            .iter()
            .filter(|who| self.wires.reaches_coordinator(**who, self.now))
            .copied()
            .collect();
        heard.into_iter().for_each(|who| self.sign(Sign::Beat(who)));
        self.sign(Sign::Tick);
    }

    fn compute(
        &mut self,
        who: WorkerId,
        ticket: Ticket,
        params: Arc<Vec<f32>>,
        spans: Spans,
        updates: u32,
    ) {
        while let Some((sample, workers)) = self.sizes.front().copied()
            && spans.intervals().last().is_some_and(|(_, end)| *end > sample)
        {
            self.sizes.pop_front();
            self.at(self.now, Scheduled::Size { workers });
        }
        let cost = self.speed.cost(who, self.now, spans.len(), updates, params.len());
        let computing = self.pool.start(params, spans);
        self.at(self.now + cost, Scheduled::Computed { who, ticket, computing });
    }
}

fn exponential(mean: f64, dice: &mut Dice) -> Duration {
    seconds((-mean * (1.0 - dice.unit()).ln()).min(1e6))
}

impl Cluster for SimCluster {
    fn now(&self) -> Duration {
        self.now
    }

    fn submit(&mut self, by: WorkerId, action: Action) {
        match action {
            Action::Compute { ticket, params, spans, updates } => {
                self.compute(by, ticket, params, spans, updates);
            }
            Action::Exchange { ticket, view, number, entry } => {
                let (messages, events) = self.exchanges.enter(
                    self.now,
                    &mut self.wires,
                    by,
                    (view, number),
                    (ticket, entry),
                );
                self.ring(messages, events);
            }
            Action::Send { to, letter } => {
                let bytes = letter.bytes();
                let transit = self.wires.send(self.now, by, to, bytes);
                self.at(transit.arrives, Scheduled::Letter { from: by, to, letter, transit });
            }
            Action::Publish { shelf, value } => {
                self.shelves.lock().expect("nobody panics here").insert((by, shelf), value);
            }
            Action::Read { ticket, from, shelf } => {
                let asked = self.wires.signal(self.now, by, from);
                self.at(asked, Scheduled::Asked { by, from, shelf, ticket });
            }
            // What happens here can be had again from the seed.
            Action::Save(_) => {}
            Action::Tell(word) => {
                if word == Word::Gone {
                    self.alive.remove(&by);
                    self.leaving.remove(&by);
                }
                let arrives = self.wires.to_coordinator(self.now, by);
                self.at(arrives, Scheduled::ToCoordinator { from: by, word });
            }
        }
    }

    fn next(&mut self) -> Option<Event> {
        loop {
            if let Some(event) = self.out.pop_front() {
                return Some(event);
            }
            let Reverse(due) = self.due.pop()?;
            self.now = due.at;
            self.happen(due.soon);
        }
    }

    fn is_over(&self) -> bool {
        self.coordinator.is_over()
    }
}
