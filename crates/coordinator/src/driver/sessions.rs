//! Sessions of workers: they open, break, and carry what is said and ordered.

use paceline_runtime::WorkerId;
use paceline_runtime::coordination::{Addressed, Input, Order};

use super::{After, Driver, Happened, Session};
use crate::incoming::Lane;
use crate::messages::{Down, Peer, Said};

impl Driver {
    pub(super) fn connect(&mut self, from: WorkerId, session: u64, received: u64, lane: Lane) {
        let now = self.clock.now();
        self.lanes.insert(from, Session { number: session, lane });
        self.closed.remove(&from);
        self.happening.push(Happened::Connected(from));
        self.coordinator.acknowledged(from, received);
        let orders = self.coordinator.reconnected(now, from);
        let heard = self.memory.heard.get(&from).copied().unwrap_or(0);
        let incarnation = self.coordinator.state().incarnation();
        let coordinators = self.coordinators.clone();
        let message = Down::Welcome { heard, now, incarnation, coordinators };
        self.after(After::Tell { to: from, session, message });
        orders.into_iter().for_each(|order| self.order(order));
    }

    pub(super) fn disconnect(&mut self, from: WorkerId) {
        self.lanes.remove(&from);
        self.happening.push(Happened::Disconnected(from));
        self.wants_commit(self.lines_wait);
        if self.coordinator.state().is_enrolled(from) {
            // The connections of a process that dies close at once. One that closes after a silence was cut off, and its worker
            // needs time to connect again.
            let (now, patience) = (self.clock.now(), self.config.rules.patience);
            let was_silent = self.coordinator.silence(from, now) > patience / 2;
            let grace = if was_silent { patience } else { self.config.grace };
            self.closed.insert(from, now + grace);
        }
    }

    pub(super) fn lose(&mut self, who: WorkerId) {
        self.closed.remove(&who);
        if self.coordinator.state().is_enrolled(who) && !self.coordinator.is_over() {
            let output = self.coordinator.step(self.clock.now(), Input::Lost(who));
            self.carry_out(output);
        }
    }

    pub(super) fn hear(&mut self, from: WorkerId, number: u64, said: Said) {
        let now = self.clock.now();
        let _ = self.coordinator.step(now, Input::Beat(from));
        let heard = self.memory.heard.entry(from).or_default();
        if number > *heard + 1 {
            // Something is missing: the worker connects again and sends what was not acknowledged.
            return self.disconnect(from);
        }
        if number == *heard + 1 {
            *heard = number;
            self.batch.heard.insert(from, number);
            match said {
                Said::Word(word) => {
                    // Nothing of the stream is missing or doubled, so the next word has the next number.
                    let number = self.coordinator.received(from) + 1;
                    let output = self.coordinator.step(now, Input::Word { from, number, word });
                    self.carry_out(output);
                }
                Said::Line(line) => {
                    if (self.keeps_line)(&line) {
                        self.line(line);
                    }
                }
                Said::Note(note) => self.happening.push(Happened::Note { from, note }),
            }
        }
        self.wants_commit(self.lines_wait);
        let Some(session) = self.lanes.get(&from).map(|session| session.number) else { return };
        let is_same = |after: &After| matches!(after, After::Heard { to, session: it } if (*to, *it) == (from, session));
        if !self.after.iter().any(is_same) {
            self.after.push(After::Heard { to: from, session });
        }
    }

    /// An order to a worker that is not connected is sent when it has connected again.
    pub(super) fn order(&mut self, Addressed { to, number, order }: Addressed) {
        let Some(session) = self.lanes.get(&to).map(|session| session.number) else { return };
        let members = match &order {
            Order::Start { view, .. } | Order::View { view, .. } | Order::Plan { view } => {
                &view.members[..]
            }
            _ => &[],
        };
        let address = |who: &WorkerId| {
            Some(Peer { who: *who, address: self.memory.addresses.get(who)?.clone() })
        };
        let peers = members.iter().filter_map(address).collect();
        self.after(After::Tell { to, session, message: Down::Order { number, order, peers } });
    }
}
