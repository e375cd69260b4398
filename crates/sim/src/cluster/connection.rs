//! The connections between workers and the coordinator: they are slow, they break, and the coordinator itself is killed
//! and starts again from its log.
//!
//! Where words and orders can be lost they are numbered: what is not acknowledged is sent again over the next connection.

use std::sync::Arc;
use std::time::Duration;

use paceline_runtime::coordination::session::{Outbox, is_next};
use paceline_runtime::coordination::{
    Addressed, Collected, Coordinator, Input, Order, Output, Word,
};
use paceline_runtime::edge::News;
use paceline_runtime::wire::Shelf;
use paceline_runtime::{Record, Snapshot, Spans, WorkerId, WorkerSnapshot};

use super::{Outgoing, Scheduled, SimCluster};
use crate::scenario::seconds;

/// One worker's connection.
#[derive(Default)]
pub(super) struct Connection {
    /// What is on its way is lost with a process that dies: it belongs to an older generation.
    generation: u64,
    is_broken: bool,
    words: Outbox<Word>,
    /// How many orders have arrived.
    received: u64,
    /// When the last message arrives, in each direction: none overtakes another.
    last_word: Duration,
    last_order: Duration,
}

/// After this many entries the coordinator stores its state and drops them.
const LOG_MAX: usize = 64;

const LOSS: u64 = 31;
const JITTER: u64 = 32;

impl SimCluster {
    pub(super) fn is_numbered(&self) -> bool {
        self.rules.keeps_log
    }

    /// A number from 0 to 1 for each message.
    fn draw(&mut self, who: WorkerId, purpose: u64) -> f64 {
        self.draws += 1;
        paceline_learn::Dice::keyed(&[self.seed, u64::from(who.0), purpose, self.draws]).unit()
    }

    fn jitter(&mut self, who: WorkerId) -> Duration {
        let most = self.scenario.coordinator.jitter;
        if most == 0.0 { Duration::ZERO } else { seconds(most * self.draw(who, JITTER)) }
    }

    /// Whether this message breaks its connection.
    fn is_lost(&mut self, who: WorkerId) -> bool {
        let loss = self.scenario.coordinator.loss;
        loss > 0.0 && self.draw(who, LOSS) < loss
    }

    /// A worker tells the coordinator something.
    pub(super) fn send_word(&mut self, from: WorkerId, word: Word) {
        let number = match self.is_numbered() {
            true => self.connections.entry(from).or_default().words.send(word.clone()),
            false => 0,
        };
        self.transmit_word(from, number, word);
    }

    fn transmit_word(&mut self, from: WorkerId, number: u64, word: Word) {
        if self.connections.entry(from).or_default().is_broken {
            return;
        }
        if number > 0 && self.is_lost(from) {
            return self.break_connection(from);
        }
        let sent = self.now + self.jitter(from);
        let arrives = self.wires.to_coordinator(sent, from);
        let connection = self.connections.entry(from).or_default();
        connection.last_word = connection.last_word.max(arrives);
        let (arrives, generation) = (connection.last_word, connection.generation);
        self.at(arrives, Scheduled::ToCoordinator { from, generation, number, word });
    }

    pub(super) fn word_arrives(
        &mut self,
        from: WorkerId,
        generation: u64,
        number: u64,
        word: Word,
    ) {
        if self.is_current(from, generation) && !self.is_killed {
            self.coordinate(Input::Word { from, number, word });
        }
    }

    /// Whether a message came over the connection that stands.
    fn is_current(&self, who: WorkerId, generation: u64) -> bool {
        self.connections.get(&who).is_none_or(|connection| connection.generation == generation)
    }

    pub(super) fn send_order(&mut self, Addressed { to, number, order }: Addressed) {
        if self.connections.entry(to).or_default().is_broken {
            // It is sent again when the worker has connected; one that was put out learns so then.
            return;
        }
        if number > 0 && self.alive.contains(&to) && self.is_lost(to) {
            return self.break_connection(to);
        }
        let sent = self.now + self.jitter(to);
        let arrives = self.wires.reply_of_coordinator(sent, to);
        let connection = self.connections.entry(to).or_default();
        connection.last_order = connection.last_order.max(arrives);
        let (arrives, generation) = (connection.last_order, connection.generation);
        self.at(arrives, Scheduled::FromCoordinator { to, generation, number, order });
    }

    pub(super) fn order_arrives(
        &mut self,
        to: WorkerId,
        generation: u64,
        number: u64,
        order: Order,
    ) {
        if !self.is_current(to, generation) || !self.alive.contains(&to) {
            return;
        }
        if number > 0 {
            let connection = self.connections.entry(to).or_default();
            if !is_next(&mut connection.received, number) {
                return;
            }
            if !self.is_killed {
                self.coordinator.acknowledged(to, number);
            }
        }
        if matches!(order, Order::PutOut { banned: false, .. }) {
            self.put_out.insert(to);
        }
        if let (Order::Start { from_saved: true, .. }, Some(snapshot)) = (&order, &self.snapshot) {
            self.tell(to, News::Snapshot(snapshot.clone()));
        }
        self.tell(to, News::Told(order));
    }

    /// A message is lost, and the connection with it. What was sent before still arrives, perhaps twice.
    pub(super) fn break_connection(&mut self, who: WorkerId) {
        let connection = self.connections.entry(who).or_default();
        if !connection.is_broken {
            connection.is_broken = true;
            let again = self.now + seconds(self.scenario.coordinator.reconnect);
            self.at(again, Scheduled::Reconnect { who });
        }
    }

    pub(super) fn reconnect(&mut self, who: WorkerId) {
        if !self.alive.contains(&who) {
            return;
        }
        let is_reachable = self.wires.reaches_coordinator(who, self.now)
            && self.wires.when_present(self.now) == self.now
            && self.paused_until(who).is_none();
        if self.is_killed || !is_reachable {
            let again = self.now + seconds(self.scenario.coordinator.reconnect);
            return self.at(again, Scheduled::Reconnect { who });
        }
        let connection = self.connections.entry(who).or_default();
        connection.is_broken = false;
        // Both ends say how much they have received; otherwise old orders would be sent again and again.
        connection.words.acknowledged(self.coordinator.received(who));
        self.coordinator.acknowledged(who, connection.received);
        let words: Vec<(u64, Word)> = connection.words.unacknowledged().collect();
        let orders = self.coordinator.reconnected(self.now, who);
        orders.into_iter().for_each(|order| self.send_order(order));
        words.into_iter().for_each(|(number, word)| self.transmit_word(who, number, word));
    }

    pub(super) fn is_connected(&self, who: WorkerId) -> bool {
        self.connections.get(&who).is_none_or(|connection| !connection.is_broken)
    }

    /// What a worker that dies had just told is lost or not.
    pub(super) fn lose_words(&mut self, who: WorkerId) {
        if self.is_numbered() && self.draw(who, LOSS) < 0.5 {
            self.connections.entry(who).or_default().generation += 1;
        }
    }

    pub(super) fn kill_coordinator(&mut self, back_after: f64) {
        if self.is_killed || self.coordinator.is_over() {
            return;
        }
        self.is_killed = true;
        let connected: Vec<WorkerId> = self.alive.iter().copied().collect();
        for who in connected {
            self.break_connection(who);
            self.connections.entry(who).or_default().generation += 1;
        }
        self.at(self.now + seconds(back_after), Scheduled::Restart);
    }

    pub(super) fn restart_coordinator(&mut self) {
        let (state, log) = (self.stored.clone(), self.log.clone());
        let (coordinator, output) = Coordinator::restart(self.rules, state, log, self.now);
        (self.coordinator, self.is_killed) = (coordinator, false);
        self.restarts += 1;
        self.out.push_back(Outgoing::record(Record::Restarted));
        self.carry_out(output);
        let patience = self.rules.patience + Duration::from_nanos(1);
        self.at(self.now + patience, Scheduled::Beats);
    }

    /// Stores what must be stored, then tells what was decided.
    pub(super) fn carry_out(&mut self, output: Output) {
        let Output { log, orders, records, snapshot, admitted, wake, acknowledged } = output;
        self.log.extend(log);
        if self.log.len() > LOG_MAX {
            self.stored = self.coordinator.state().clone();
            self.log.clear();
        }
        if let Some((who, number)) = acknowledged
            && let Some(connection) = self.connections.get_mut(&who)
        {
            connection.words.acknowledged(number);
        }
        if let Some(who) = admitted {
            let arrives = self.wires.reply_of_coordinator(self.now, who);
            self.at(arrives, Scheduled::Admitted { who, restarts: self.restarts });
        }
        if let Some(wake) = wake {
            self.at(wake.max(self.now), Scheduled::Beats);
        }
        if !records.is_empty() {
            self.exchanges.forget_old(self.alive.iter());
            self.out.extend(records.into_iter().map(Outgoing::record));
        }
        orders.into_iter().for_each(|order| self.send_order(order));
        if let Some(collected) = snapshot {
            self.store(collected);
        }
    }

    /// Keeps a worker's part of a snapshot and tells the coordinator its name.
    pub(super) fn hand_in(&mut self, from: WorkerId, part: WorkerSnapshot, done: Option<Spans>) {
        let word = part.word(done);
        self.parts.insert(from, part);
        self.send_word(from, word);
    }

    /// Puts a snapshot together and stores it, which takes no time.
    fn store(&mut self, collected: Collected) {
        let first = self.coordinator.view().first();
        let shelves = self.shelves.lock().expect("no holder panics");
        let center = shelves.get(&(first, Shelf::Center)).cloned();
        drop(shelves);
        let workers = self.parts.take(&collected);
        self.parts.keep(self.coordinator.collecting());
        let snapshot = Snapshot::assemble(collected, workers, center, self.rules.coordination);
        self.coordinate(Input::Saved(snapshot.saved()));
        self.snapshot = Some(Arc::new(snapshot));
    }

    /// When this worker's process runs again, if it is stopped now.
    pub(super) fn paused_until(&self, who: WorkerId) -> Option<Duration> {
        let pauses = self.scenario.pauses.iter().filter(|pause| pause.worker == who.0);
        let mut ends = pauses
            .filter(|pause| (seconds(pause.from)..seconds(pause.to)).contains(&self.now))
            .map(|pause| seconds(pause.to));
        ends.next()
    }

    /// Both ends of a dead link say that they cannot reach each other.
    pub(super) fn suspect(&mut self, (a, b): (WorkerId, WorkerId)) {
        let view = self.coordinator.view().number;
        for (from, peer) in [(a, b), (b, a)] {
            if self.alive.contains(&from) && self.coordinator.view().has(from) {
                self.send_word(from, Word::Suspect { peer, view });
            }
        }
    }
}
