//! Scheduled events, and what happens when their time has come.

use std::cmp::{Ordering, Reverse};
use std::time::Duration;

use paceline_runtime::coordination::{Input, Order, Word};
use paceline_runtime::edge::News;
use paceline_runtime::wire::{Extent, Letter, Published, Shelf};
use paceline_runtime::{Ticket, WorkerId};

use super::SimCluster;
use crate::exchanges::RingMessage;
use crate::network::Transit;
use crate::pool::Computing;
use crate::scenario::seconds;

pub(super) struct QueueEntry {
    pub at: Duration,
    pub serial: u64,
    pub scheduled: Scheduled,
}

pub(super) enum Scheduled {
    Computed {
        who: WorkerId,
        ticket: Ticket,
        /// `None`: the worker's host computes it.
        computing: Option<Computing>,
    },
    Ring(RingMessage),
    Letter {
        from: WorkerId,
        to: WorkerId,
        letter: Box<Letter>,
        transit: Transit,
    },
    /// It has passed the downlink and, if a server has to update its center by it, the letters before it.
    Received {
        from: WorkerId,
        to: WorkerId,
        letter: Box<Letter>,
    },
    Asked(Read),
    Value {
        from: WorkerId,
        to: WorkerId,
        ticket: Ticket,
        value: Published,
        /// Only this of its transit: the largest kind of event decides how much memory every event moves.
        left: Duration,
    },
    Nothing {
        to: WorkerId,
        ticket: Ticket,
    },
    ToCoordinator {
        from: WorkerId,
        generation: u64,
        number: u64,
        word: Word,
    },
    FromCoordinator {
        to: WorkerId,
        generation: u64,
        number: u64,
        order: Order,
    },
    Reconnect {
        who: WorkerId,
    },
    Kill {
        back_after: f64,
    },
    Restart,
    /// For a worker whose process was stopped.
    Deferred {
        to: WorkerId,
        news: Box<News>,
    },
    Suspect {
        between: (WorkerId, WorkerId),
        until: Duration,
    },
    Noticed(Input),
    /// The coordinator has given a worker its id.
    Admitted {
        who: WorkerId,
        restarts: u64,
    },
    Beats,
    Crash {
        who: WorkerId,
        back_after: Option<f64>,
    },
    Leave {
        who: WorkerId,
    },
    Join,
    Size {
        workers: u32,
    },
    Churn {
        who: WorkerId,
    },
}

/// A worker reads what a peer has published.
#[derive(Clone, Copy)]
pub(super) struct Read {
    pub by: WorkerId,
    pub from: WorkerId,
    pub shelf: Shelf,
    pub extent: Extent,
    pub ticket: Ticket,
    /// Until the peer has published something.
    pub waits: bool,
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
    pub(super) fn at(&mut self, at: Duration, scheduled: Scheduled) {
        self.serial += 1;
        self.due.push(Reverse(QueueEntry { at, serial: self.serial, scheduled }));
    }

    pub(super) fn happen(&mut self, scheduled: Scheduled) {
        match scheduled {
            Scheduled::Computed { who, ticket, computing } => {
                if let Some(end) = self.paused_until(who) {
                    self.at(end, Scheduled::Computed { who, ticket, computing });
                } else if self.alive.contains(&who) {
                    self.computed(who, ticket, computing);
                }
            }
            Scheduled::Ring(message) => self.pass_on(message),
            Scheduled::Letter { from, to, letter, transit } => {
                if self.was_sent(from, transit.left) {
                    self.receive(from, to, letter);
                }
            }
            Scheduled::Received { from, to, letter } => {
                self.tell(to, News::Letter { from, letter });
            }
            Scheduled::Asked(read) => self.answer(read),
            Scheduled::Value { from, to, ticket, value, left } => {
                if self.was_sent(from, left) {
                    self.tell(to, News::Value { ticket, value: Some(value) });
                }
            }
            Scheduled::Nothing { to, ticket } => self.tell(to, News::Value { ticket, value: None }),
            Scheduled::ToCoordinator { from, generation, number, word } => {
                self.word_arrives(from, generation, number, word);
            }
            Scheduled::Reconnect { who } => self.reconnect(who),
            Scheduled::Kill { back_after } => self.kill_coordinator(back_after),
            Scheduled::Restart => self.restart_coordinator(),
            Scheduled::Deferred { to, news } => self.tell(to, *news),
            Scheduled::Suspect { between, until } => {
                self.suspect(between);
                let again = self.now + self.rules.patience;
                let is_used = self.alive.contains(&between.0) && self.alive.contains(&between.1);
                if again < until && is_used && !self.coordinator.is_over() {
                    self.at(again, Scheduled::Suspect { between, until });
                }
            }
            Scheduled::Admitted { restarts, .. } if restarts < self.restarts || self.is_killed => {
                // The answer was lost with the coordinator.
                self.joining -= 1;
                self.join();
            }
            Scheduled::Admitted { who, .. } => {
                self.joining -= 1;
                self.spawn(who);
            }
            Scheduled::FromCoordinator { to, generation, number, order } => {
                match self.paused_until(to) {
                    Some(end) => {
                        self.at(end, Scheduled::FromCoordinator { to, generation, number, order });
                    }
                    None => self.order_arrives(to, generation, number, order),
                }
            }
            Scheduled::Noticed(Input::Hello) if self.is_killed => {
                let again = self.now + seconds(self.scenario.coordinator.reconnect);
                self.at(again, Scheduled::Noticed(Input::Hello));
            }
            // A restarted coordinator notices a loss by the silence.
            Scheduled::Noticed(_) if self.is_killed => {}
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
            Scheduled::Churn { who } => {
                if let Some(churn) = self.scenario.churn.clone() {
                    self.churn(who, &churn);
                }
            }
        }
    }
}
