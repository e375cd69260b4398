//! A cluster in virtual time: a queue of scheduled events, the network, the coordinator, and faults.

mod faults;

use std::cell::{Cell, RefCell};
use std::cmp::{Ordering, Reverse};
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, VecDeque};
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use paceline_learn::{Dice, Vector};
use paceline_runtime::coordination::{self, Coordinator, Input, Order, Rules, Word};
use paceline_runtime::edge::{
    Action, Cluster, ClusterOutput, Compute, Event, News, Replica, Shelves, published,
};
use paceline_runtime::wire::{Extent, HEADER_BYTES, Letter, Published, Shelf};
use paceline_runtime::{Line, Record, Spans, Sum, Ticket, WorkerId};

use crate::exchanges::{Ended, Exchanges, RingMessage};
use crate::memo::Memo;
use crate::network::{Transit, Wires};
use crate::pool::{Computing, Pool};
use crate::scenario::{Scenario, seconds};
use crate::speed::Speed;

/// The configuration of a simulated cluster, besides its scenario.
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
    /// What happens at this moment, in order.
    out: VecDeque<Outgoing>,
    outputs: Outputs,
    memo: Memo,
    speed: Speed,
    wires: Wires,
    exchanges: Exchanges,
    pool: Pool,
    coordinator: Coordinator,
    shelves: Arc<Mutex<Shelves>>,
    alive: BTreeSet<WorkerId>,
    /// When each dead worker died.
    died: BTreeMap<WorkerId, Duration>,
    /// Alive, but declared lost by the coordinator.
    evicted: BTreeSet<WorkerId>,
    leaving: BTreeSet<WorkerId>,
    /// Wanted numbers of workers, each from a sample on; the next one comes first.
    sizes: VecDeque<(u64, u32)>,
    next_id: u32,
}

/// What has come out of a cluster and was not taken yet.
pub type Outputs = Rc<RefCell<VecDeque<ClusterOutput>>>;

enum Outgoing {
    Event(Event),
    /// A line of the coordinator; boxed, because records are larger than events, and rare here.
    Record(Box<Record>),
}

impl Outgoing {
    fn record(record: Record) -> Outgoing {
        Outgoing::Record(Box::new(record))
    }
}

struct QueueEntry {
    at: Duration,
    serial: u64,
    scheduled: Scheduled,
}

enum Scheduled {
    Computed { who: WorkerId, ticket: Ticket, computing: Computing },
    Ring(RingMessage),
    Letter { from: WorkerId, to: WorkerId, letter: Box<Letter>, transit: Transit },
    Asked { by: WorkerId, from: WorkerId, what: (Shelf, Extent), ticket: Ticket },
    Value { from: WorkerId, to: WorkerId, ticket: Ticket, value: Published, transit: Transit },
    Nothing { to: WorkerId, ticket: Ticket },
    ToCoordinator { from: WorkerId, word: Word },
    FromCoordinator { to: WorkerId, order: Order },
    Noticed(Input),
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

impl SimCluster {
    pub fn new(scenario: Scenario, setting: SimConfig) -> SimCluster {
        let SimConfig { seed, compute, threads, samples_total, samples_per_epoch, center_applies } =
            setting;
        let rules = Rules {
            members_min: scenario.workers as usize,
            patience: seconds(scenario.coordinator.patience),
            samples_total,
            center_applies,
            keeps_log: false,
        };
        let (cuts, away) = (scenario.cuts.clone(), scenario.coordinator.away.clone());
        let mut cluster = SimCluster {
            seed,
            now: Duration::ZERO,
            due: BinaryHeap::new(),
            serial: 0,
            out: VecDeque::new(),
            outputs: Outputs::default(),
            memo: Memo::default(),
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
            let output = cluster.coordinator.step(Duration::ZERO, Input::Hello(who));
            cluster.out.extend(output.records.into_iter().map(Outgoing::record));
            for (to, order) in output.orders {
                cluster.tell(to, News::Told(order));
            }
        }
        cluster
    }

    /// Where published values are; for evaluating without disturbing anybody.
    pub fn shelves(&self) -> Arc<Mutex<Shelves>> {
        self.shelves.clone()
    }

    /// Where lines of the journal come out.
    pub fn outputs(&self) -> Outputs {
        self.outputs.clone()
    }

    /// Counts everything that crosses the wires, headers included.
    pub fn bytes_on_wires(&self) -> Rc<Cell<u64>> {
        self.wires.bytes.clone()
    }

    fn dice(&self, who: WorkerId, purpose: u64) -> Dice {
        Dice::keyed(&[self.seed, u64::from(who.0), purpose])
    }

    fn at(&mut self, at: Duration, scheduled: Scheduled) {
        self.serial += 1;
        self.due.push(Reverse(QueueEntry { at, serial: self.serial, scheduled }));
    }

    /// What the sender had not yet sent when it died never arrives.
    fn was_sent(&self, from: WorkerId, transit: Transit) -> bool {
        self.died.get(&from).is_none_or(|died| transit.left <= *died)
    }

    fn tell(&mut self, to: WorkerId, news: News) {
        if self.alive.contains(&to) {
            self.out.push_back(Outgoing::Event(Event::For { to, news }));
        }
    }

    fn ring(&mut self, messages: impl IntoIterator<Item = RingMessage>, ended: Vec<Ended>) {
        for message in messages {
            self.at(message.transit.arrives, Scheduled::Ring(message));
        }
        for Ended { to, ticket, result } in ended {
            self.tell(to, News::of(ticket, result));
        }
    }

    /// The coordinator takes an input; its orders are on their way to the workers.
    fn coordinate(&mut self, input: Input) {
        let coordination::Output { orders, records, .. } = self.coordinator.step(self.now, input);
        if !records.is_empty() {
            self.exchanges.forget_old(self.alive.iter());
            self.out.extend(records.into_iter().map(Outgoing::record));
        }
        for (to, order) in orders {
            if let Order::View { lost, .. } = &order {
                let alive = lost.iter().filter(|who| self.alive.contains(who));
                self.evicted.extend(alive.copied());
            }
            let arrives = self.wires.reply_of_coordinator(self.now, to);
            self.at(arrives, Scheduled::FromCoordinator { to, order });
        }
    }

    fn happen(&mut self, scheduled: Scheduled) {
        match scheduled {
            Scheduled::Computed { who, ticket, computing } => {
                if self.alive.contains(&who) {
                    let gradient = computing.finish();
                    self.tell(who, News::Computed { ticket, gradient });
                }
            }
            Scheduled::Ring(message) => self.pass_on(message),
            Scheduled::Letter { from, to, letter, transit } => {
                if self.was_sent(from, transit) {
                    self.tell(to, News::Letter { from, letter });
                }
            }
            Scheduled::Asked { by, from, what, ticket } => self.answer(by, from, what, ticket),
            Scheduled::Value { from, to, ticket, value, transit } => {
                if self.was_sent(from, transit) {
                    self.tell(to, News::Value { ticket, value: Some(value) });
                }
            }
            Scheduled::Nothing { to, ticket } => self.tell(to, News::Value { ticket, value: None }),
            Scheduled::ToCoordinator { from, word } => self.coordinate(Input::Word { from, word }),
            Scheduled::FromCoordinator { to, order } => self.tell(to, News::Told(order)),
            Scheduled::Noticed(input) => self.coordinate(input),
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
            Scheduled::Size { workers } => self.resize(workers as usize),
            Scheduled::CutEnds { workers } => self.end_cut(workers),
            Scheduled::Churn { who } => {
                if let Some(churn) = self.scenario.churn.clone() {
                    self.churn(who, &churn);
                }
            }
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
            let (next, ended) = self.exchanges.arrive(self.now, &mut self.wires, message);
            self.ring(next, ended);
        }
    }

    /// A read is answered by the peer's shelf; its task sleeps on.
    fn answer(
        &mut self,
        by: WorkerId,
        from: WorkerId,
        (shelf, extent): (Shelf, Extent),
        ticket: Ticket,
    ) {
        if self.died.contains_key(&from) {
            return;
        }
        let value = if self.alive.contains(&from) {
            self.shelves.lock().expect("no holder panics").get(&(from, shelf)).cloned()
        } else {
            None
        };
        match value {
            Some(value) => {
                let value = value.extract(extent);
                let bytes = HEADER_BYTES + value.bytes();
                let transit = self.wires.send(self.now, from, by, bytes);
                self.at(transit.arrives, Scheduled::Value { from, to: by, ticket, value, transit });
            }
            None => {
                let arrives = self.wires.signal(self.now, from, by);
                self.at(arrives, Scheduled::Nothing { to: by, ticket });
            }
        }
    }

    fn compute(
        &mut self,
        who: WorkerId,
        ticket: Ticket,
        params: Arc<Vector>,
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
                let (messages, ended) = self.exchanges.enter(
                    self.now,
                    &mut self.wires,
                    by,
                    (view, number),
                    (ticket, entry),
                );
                self.ring(messages, ended);
            }
            Action::Send { to, letter } => {
                let bytes = letter.bytes();
                let transit = self.wires.send(self.now, by, to, bytes);
                self.at(transit.arrives, Scheduled::Letter { from: by, to, letter, transit });
            }
            Action::Publish { shelf, value } => {
                self.shelves.lock().expect("no holder panics").insert((by, shelf), value);
            }
            Action::Read { ticket, from, shelf, extent } => {
                let asked = self.wires.signal(self.now, by, from);
                self.at(asked, Scheduled::Asked { by, from, what: (shelf, extent), ticket });
            }
            Action::Evaluate { samples, of, shelf } => {
                let shelves = self.shelves.lock().expect("no holder panics");
                let replicas = published(&shelves, &of, shelf);
                drop(shelves);
                self.emit(ClusterOutput::Evaluate { at: self.now, samples, replicas });
            }
            // A simulated run can be repeated from its seed, so it is not saved.
            Action::Save { .. } => {}
            Action::Tell(word) => {
                if word == Word::Gone {
                    if !self.coordinator.is_over() {
                        self.clear_shelves(by);
                    }
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
            match self.out.pop_front() {
                Some(Outgoing::Event(event)) => return Some(event),
                Some(Outgoing::Record(record)) => {
                    self.emit(ClusterOutput::Line(Line { at: self.now, record: *record }));
                }
                None => {
                    let Reverse(next) = self.due.pop()?;
                    self.now = next.at;
                    self.happen(next.scheduled);
                }
            }
        }
    }

    fn is_over(&self) -> bool {
        self.coordinator.is_over()
    }

    fn emit(&mut self, output: ClusterOutput) {
        self.outputs.borrow_mut().push_back(output);
    }

    fn descend(
        &mut self,
        before: Replica,
        along: &Arc<Sum>,
        rate: f32,
        step: &dyn Fn(&Replica) -> Replica,
    ) -> Replica {
        self.memo.descend(before, along, rate, step)
    }

    fn fingerprint(&mut self, params: &Arc<Vector>) -> u64 {
        self.memo.fingerprint(params)
    }
}
