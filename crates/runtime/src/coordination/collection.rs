//! Knows which members have handed in their parts of a snapshot. It sees who and which number, never vectors.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::messages::Collected;
use crate::ids::WorkerId;
use crate::spans::Spans;
use crate::view::View;

/// The number of the last part that an asynchronous worker hands in.
pub const LAST: u64 = u64::MAX;

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Collection {
    wishes: u64,
    /// A snapshot was asked for and is not complete yet.
    is_wished: bool,
    open: Option<Open>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Open {
    number: u64,
    digest: u64,
    done: Spans,
    handed_in: BTreeSet<WorkerId>,
}

impl Collection {
    /// The number of the next snapshot; `None` while one is being collected already.
    pub fn wish(&mut self) -> Option<u64> {
        if std::mem::replace(&mut self.is_wished, true) {
            return None;
        }
        self.wishes += 1;
        Some(self.wishes)
    }

    /// The number of the snapshot that is being collected.
    pub fn number(&self) -> Option<u64> {
        self.open.as_ref().map(|open| open.number)
    }

    /// `who` has applied `spans`. They are in the snapshot unless its part was handed in before.
    pub fn on_done(&mut self, who: WorkerId, spans: &Spans) {
        if let Some(open) = self.open.as_mut().filter(|open| !open.handed_in.contains(&who)) {
            open.done.add(spans);
        }
    }

    /// A member has handed in its part; returns the snapshot if it was the last one missing. `done`: what
    /// asynchronous workers have applied so far.
    pub fn on_part(
        &mut self,
        view: &View,
        done: &Spans,
        who: WorkerId,
        part: Part,
    ) -> Option<Collected> {
        let Part { number, digest, agreed } = part;
        if self.open.as_ref().is_some_and(|open| open.number > number) || !view.has(who) {
            return None;
        }
        // Parts of different states do not make a snapshot; the newest one counts.
        if self.open.as_ref().is_none_or(|open| open.number < number || open.digest != digest) {
            let done = agreed.unwrap_or_else(|| done.clone());
            self.open = Some(Open { number, digest, done, handed_in: BTreeSet::new() });
        }
        let open = self.open.as_mut()?;
        open.handed_in.insert(who);
        if open.handed_in.len() < view.members.len() {
            return None;
        }
        let Open { number, done, handed_in, .. } = self.open.take()?;
        self.is_wished = false;
        Some(Collected { number, members: handed_in.into_iter().collect(), done })
    }

    /// The members, or the samples in their replicas, have changed, so an open snapshot can no longer be
    /// completed. Returns the number of the next one if a wish stands.
    pub fn wish_again(&mut self) -> Option<u64> {
        self.open = None;
        self.wishes += u64::from(self.is_wished);
        self.is_wished.then_some(self.wishes)
    }
}

/// A member's part of a snapshot, by name: its vectors are elsewhere.
pub struct Part {
    pub number: u64,
    /// Parts belong together only if this is equal; 0 if the members agree on nothing.
    pub digest: u64,
    /// What is in all replicas, if the members know it.
    pub agreed: Option<Spans>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(number: u64) -> Part {
        Part { number, digest: 0, agreed: None }
    }

    #[test]
    fn a_snapshot_holds_what_each_worker_applied_before_its_part_and_nothing_later() {
        let [a, b] = [WorkerId(0), WorkerId(1)];
        let view = View { number: 1, members: vec![a, b], ..View::default() };
        let mut collection = Collection::default();
        assert_eq!(collection.wish(), Some(1));

        assert!(collection.on_part(&view, &Spans::one(0, 4), a, part(1)).is_none());
        collection.on_done(a, &Spans::one(4, 6));
        collection.on_done(b, &Spans::one(6, 9));
        assert_eq!(collection.wish(), None, "one is being collected");
        let collected = collection.on_part(&view, &Spans::one(0, 9), b, part(1));

        let collected = collected.expect("both have handed in");
        assert_eq!(collected.done.intervals(), [(0, 4), (6, 9)]);
        assert_eq!(collected.members, [a, b]);
        assert_eq!(collection.wish(), Some(2));
    }

    #[test]
    fn a_newer_snapshot_replaces_an_incomplete_one() {
        let [a, b] = [WorkerId(0), WorkerId(1)];
        let view = View { number: 1, members: vec![a, b], ..View::default() };
        let mut collection = Collection::default();
        let none = Spans::new();

        assert!(collection.on_part(&view, &none, a, part(1)).is_none());
        assert!(collection.on_part(&view, &none, a, part(LAST)).is_none());
        assert!(collection.on_part(&view, &none, b, part(1)).is_none());

        let collected = collection.on_part(&view, &none, b, part(LAST));
        assert_eq!(collected.expect("both have").number, LAST);
    }
}
