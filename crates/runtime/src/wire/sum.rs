//! The result of an exchange, as its contributors hold it and send it to a member that missed it.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use paceline_learn::gradient::joint_weight;
use paceline_learn::{Gradient, Vector, mix};
use serde::{Deserialize, Serialize};

use super::{Frame, FrameError, Framed, ReceivedFrame, Tail};
use crate::ids::WorkerId;
use crate::journal::checksum;
use crate::view::View;

/// The result of an exchange: the sum over its contributors. Every one of them gets the same, and keeps it until
/// the next result, so that a member that missed it can be healed.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Sum {
    /// Which exchange of the job this is the result of; the first is 1.
    pub exchange: u64,
    /// The view in which it was made: its members are the contributors.
    pub view: Arc<View>,
    /// In rank order of the view.
    pub tails: Vec<Tail>,
    #[serde(skip)]
    pub gradient: Gradient,
    /// The sum divided by the weights; the first member that needs it computes it.
    #[serde(skip)]
    pub mean: OnceLock<Arc<Vector>>,
    /// What the tails say together. All members of a large simulation ask for it, so it is worked out once.
    #[serde(skip)]
    gist: OnceLock<Gist>,
    #[serde(skip)]
    digest: OnceLock<u64>,
    #[serde(skip)]
    dissenters: OnceLock<Vec<WorkerId>>,
    /// Whether a member has taken it. Members of one process share a result, and the first one writes the journal's line.
    #[serde(skip)]
    taken: Taken,
}

#[derive(Clone, Copy, Debug)]
struct Gist {
    version: u64,
    plan: u64,
    stop: bool,
    save: u64,
}

#[derive(Debug, Default)]
struct Taken(AtomicBool);

impl Clone for Taken {
    fn clone(&self) -> Taken {
        Taken(AtomicBool::new(self.0.load(Ordering::Relaxed)))
    }
}

impl PartialEq for Sum {
    fn eq(&self, other: &Sum) -> bool {
        (self.exchange, &self.view, &self.tails, &self.gradient.sum)
            == (other.exchange, &other.view, &other.tails, &other.gradient.sum)
    }
}

impl Sum {
    pub fn new(exchange: u64, view: Arc<View>, vector: Vector, tails: Vec<Tail>) -> Sum {
        let mut sum = Sum { exchange, view, tails, ..Sum::default() };
        sum.set_vector(vector);
        sum
    }

    fn set_vector(&mut self, vector: Vector) {
        let loss_sum = self.tails.iter().map(|tail| tail.loss_sum).sum();
        let none = (0, None);
        let (samples, weight) = self.tails.iter().fold(none, |(samples, weight), tail| {
            let weight = joint_weight((samples, weight), (tail.samples, tail.weight));
            (samples.saturating_add(tail.samples), weight)
        });
        self.gradient = Gradient { sum: vector, loss_sum, samples, weight };
    }

    fn gist(&self) -> &Gist {
        self.gist.get_or_init(|| {
            let tails = || self.tails.iter();
            Gist {
                version: tails().map(|tail| tail.version).min().unwrap_or(0),
                plan: tails().map(|tail| tail.plan).min().unwrap_or(0),
                stop: tails().any(|tail| tail.stop),
                save: tails().map(|tail| tail.save).max().unwrap_or(0),
            }
        })
    }

    /// The oldest version of the replica at which a part was computed.
    pub fn version(&self) -> u64 {
        self.gist().version
    }

    /// The newest plan that every contributor had heard of.
    pub fn plan(&self) -> u64 {
        self.gist().plan
    }

    /// Whether any contributor asks that the job end.
    pub fn stop(&self) -> bool {
        self.gist().stop
    }

    /// The newest snapshot that any contributor was asked for.
    pub fn save(&self) -> u64 {
        self.gist().save
    }

    /// Each contributor with its tail, in rank order.
    pub fn contributions(&self) -> impl Iterator<Item = (WorkerId, &Tail)> + Clone {
        self.view.members.iter().copied().zip(&self.tails)
    }

    /// Each contributor's samples.
    pub fn counts(&self) -> impl Iterator<Item = (WorkerId, u64)> + Clone + '_ {
        self.contributions().map(|(who, tail)| (who, tail.samples))
    }

    /// How long each contributor computed since the exchange before, and over how many samples.
    pub fn efforts(&self) -> impl Iterator<Item = (WorkerId, u64, Duration)> + '_ {
        self.contributions().map(|(who, tail)| (who, tail.samples, tail.compute))
    }

    /// A hash of the result, without the view in which it was made: equal inputs have equal results anywhere.
    pub fn digest(&self) -> u64 {
        *self.digest.get_or_init(|| {
            let parts = self.contributions().flat_map(|(who, tail)| {
                let always = [
                    u64::from(who.0),
                    tail.samples,
                    tail.loss_sum.to_bits(),
                    tail.extra.number().to_bits(),
                ];
                always.into_iter().chain(tail.weight.map(f64::to_bits))
            });
            let start = checksum(&self.gradient.sum) ^ self.exchange;
            parts.fold(start, |hash, part| mix(hash ^ part))
        })
    }

    /// The contributors whose digest differs from that of most; empty if all agree.
    pub fn dissenters(&self) -> &[WorkerId] {
        self.dissenters.get_or_init(|| {
            let mut counts: BTreeMap<u64, usize> = BTreeMap::new();
            for tail in self.tails.iter().filter(|tail| tail.digest != 0) {
                *counts.entry(tail.digest).or_default() += 1;
            }
            let common = counts.iter().max_by_key(|(_, count)| **count).map(|(digest, _)| *digest);
            let differs = |tail: &Tail| tail.digest != 0 && Some(tail.digest) != common;
            self.contributions().filter(|(_, tail)| differs(tail)).map(|(who, _)| who).collect()
        })
    }

    /// Whether no member of this process has taken the result before.
    pub fn is_first_taken(&self) -> bool {
        !self.taken.0.swap(true, Ordering::Relaxed)
    }

    /// Size on the wire, without a header.
    pub fn bytes(&self) -> u64 {
        4 * self.gradient.sum.len() as u64 + self.tails.iter().map(Tail::bytes).sum::<u64>()
    }
}

impl Framed for Sum {
    fn frames(&self) -> Vec<Frame<'_>> {
        vec![Frame::Floats(&self.gradient.sum)]
    }

    fn fill(&mut self, mut frames: Vec<ReceivedFrame>) -> Result<(), FrameError> {
        let received = frames.len();
        let vector = frames.pop().filter(|_| received == 1).and_then(ReceivedFrame::vector);
        self.set_vector(vector.ok_or(FrameError { expected: 1, received })?);
        Ok(())
    }
}
