//! What crosses the wires between workers: messages of rings, letters, and reads of published values.

use std::cmp::Reverse;
use std::time::Duration;

use paceline_runtime::edge::News;
use paceline_runtime::wire::{HEADER_BYTES, Letter};
use paceline_runtime::{Record, WorkerId};

use super::queue::{QueueEntry, Read, Scheduled};
use super::{Outgoing, SimCluster};
use crate::exchanges::{Ended, Receiver, RingMessage};

impl SimCluster {
    /// What the sender had not yet sent when it died never arrives.
    pub(super) fn was_sent(&self, from: WorkerId, left: Duration) -> bool {
        self.died.get(&from).is_none_or(|died| left <= *died)
    }

    pub(super) fn ring(
        &mut self,
        messages: impl IntoIterator<Item = RingMessage>,
        ended: Vec<Ended>,
    ) {
        for mut message in messages {
            let (at, first) = (message.transit.arrives, self.serial + 1);
            if let Receiver::Each { members, serial } = &mut message.to {
                // The event has the numbers of all messages that it stands for.
                (*serial, self.serial) = (first, self.serial + u64::from(*members));
            } else {
                self.serial = first;
            }
            self.exchanges.scheduled(&message, first);
            let scheduled = Scheduled::Ring(message);
            self.due.push(Reverse(QueueEntry { at, serial: first, scheduled }));
        }
        for Ended { to, ticket, result } in ended {
            self.tell(to, News::of(ticket, result));
        }
    }

    pub(super) fn pass_on(&mut self, message: RingMessage) {
        if !self.scenario.pauses.is_empty() {
            let members = self.exchanges.members(message.name);
            let receivers: Vec<WorkerId> = match message.to {
                Receiver::Rank(rank) => members.get(rank as usize).copied().into_iter().collect(),
                Receiver::Each { .. } | Receiver::All => members.to_vec(),
            };
            if let Some(end) = receivers.into_iter().filter_map(|who| self.paused_until(who)).max()
            {
                return self.at(end, Scheduled::Ring(message));
            }
        }
        let arrives = match message.to {
            Receiver::Rank(_) => self.was_sent(message.from, message.transit.left),
            Receiver::Each { .. } => true,
            Receiver::All => {
                let members = self.exchanges.members(message.name);
                members.iter().all(|member| !self.died.contains_key(member))
            }
        };
        if arrives {
            let (next, ended) = self.exchanges.arrive(self.now, &mut self.wires, message);
            match (message.to, next.first().map(|next| next.to)) {
                (Receiver::Each { serial, .. }, Some(Receiver::Rank(_))) => {
                    // The members are no longer in step: the messages that the event stood for arrive one by one.
                    for (serial, message) in (serial..).zip(next) {
                        let (at, scheduled) = (self.now, Scheduled::Ring(message));
                        self.due.push(Reverse(QueueEntry { at, serial, scheduled }));
                    }
                }
                _ => self.ring(next, ended),
            }
        }
    }

    /// A read is answered by the peer's shelf; its task sleeps on.
    pub(super) fn answer(&mut self, read: Read) {
        let Read { by, from, shelf, extent, ticket, waits } = read;
        if self.died.contains_key(&from) {
            return;
        }
        if let Some(end) = self.paused_until(from) {
            return self.at(end, Scheduled::Asked(read));
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
                self.exchanges.fall_out_of_step(&mut self.wires);
                let transit = self.wires.send(self.now, from, by, bytes);
                if from != by {
                    self.out.push_back(Outgoing::record(Record::Sent { who: from, to: by, bytes }));
                }
                let left = transit.left;
                self.at(transit.arrives, Scheduled::Value { from, to: by, ticket, value, left });
            }
            None if waits && self.alive.contains(&from) => self.unanswered.push(read),
            None => {
                let arrives = self.wires.signal(self.now, from, by);
                self.at(arrives, Scheduled::Nothing { to: by, ticket });
            }
        }
    }

    /// The last byte of a letter would arrive now, if nobody else sent to this worker.
    pub(super) fn receive(&mut self, from: WorkerId, to: WorkerId, letter: Box<Letter>) {
        let mut at = self.wires.receive(self.now, from, to, letter.bytes());
        // A server handles one call after another, and each update of its center takes time.
        if let Some(numbers) = letter.numbers_for_server() {
            let free = self.server_free.entry(to).or_default();
            *free = at.max(*free) + self.speed.serving(to, numbers);
            at = *free;
        }
        if at > self.now {
            self.at(at, Scheduled::Received { from, to, letter });
        } else {
            self.tell(to, News::Letter { from, letter });
        }
    }
}
