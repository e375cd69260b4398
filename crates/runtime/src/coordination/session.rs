//! Numbered messages: what is sent again after a broken connection counts once, and nothing is lost.
//!
//! Each side of a connection keeps what it has sent until the other side acknowledges it. The coordinator
//! acknowledges a word when it is logged, a worker an order when it has obeyed it.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

/// Messages to one receiver, kept until they are acknowledged.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Outbox<T> {
    sent: u64,
    kept: VecDeque<T>,
}

impl<T> Default for Outbox<T> {
    fn default() -> Outbox<T> {
        Outbox { sent: 0, kept: VecDeque::new() }
    }
}

impl<T: Clone> Outbox<T> {
    /// Keeps a message and returns its number.
    pub fn send(&mut self, message: T) -> u64 {
        self.kept.push_back(message);
        self.sent += 1;
        self.sent
    }

    /// The receiver has everything up to this number.
    pub fn acknowledged(&mut self, number: u64) {
        let kept_from = self.sent - self.kept.len() as u64;
        let known = number.min(self.sent).saturating_sub(kept_from);
        self.kept.drain(..known as usize);
    }

    /// What must be sent again over a new connection, in order.
    pub fn unacknowledged(&self) -> impl Iterator<Item = (u64, T)> + '_ {
        let first = self.sent - self.kept.len() as u64 + 1;
        self.kept.iter().enumerate().map(move |(i, message)| (first + i as u64, message.clone()))
    }
}

/// Whether a numbered message is the next one. Returns `false` for one that was received before, and for one
/// that came over a connection on which an earlier one was lost: it will be sent again.
pub fn is_next(received: &mut u64, number: u64) -> bool {
    let is_next = number == *received + 1;
    *received += u64::from(is_next);
    is_next
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_arrive_once_and_in_order_over_a_connection_that_breaks() {
        let (mut outbox, mut received, mut got) = (Outbox::default(), 0, vec![]);
        let numbers: Vec<u64> = ["a", "b", "c"].into_iter().map(|it| outbox.send(it)).collect();
        assert_eq!(numbers, [1, 2, 3]);
        // The second is lost on the way, so the third comes too early; the first is acknowledged.
        for (number, message) in [(1, "a"), (3, "c")] {
            got.extend(is_next(&mut received, number).then_some(message));
        }
        outbox.acknowledged(1);
        outbox.send("d");

        // Sent again twice, as over two new connections.
        for _ in 0..2 {
            for (number, message) in outbox.unacknowledged() {
                got.extend(is_next(&mut received, number).then_some(message));
            }
        }

        assert_eq!(got, ["a", "b", "c", "d"]);
        outbox.acknowledged(4);
        assert_eq!(outbox.unacknowledged().count(), 0);
    }
}
