//! Exchanges (collectives): what members put in, and what all of them get. The arithmetic is the same on every cluster.

use std::sync::{Arc, OnceLock};

use paceline_learn::{Dice, Gradient, Vector};

use crate::codec::Adding;
use crate::wire::{Entry, Standing, Tail};

/// The sum over all members of an exchange; every member gets the same.
#[derive(Debug, Default)]
pub struct Sum {
    pub gradient: Gradient,
    /// In rank order.
    pub tails: Vec<Tail>,
    /// The newest view that any member knows.
    pub newest_view: u64,
    /// The oldest version of the replica at which a part was computed.
    pub version: u64,
    /// Whether any member asks that the job end.
    pub stop: bool,
    /// Whether any member asks for a snapshot.
    pub save: bool,
    /// The sum divided by the weights; the first member that needs it computes it.
    pub mean: OnceLock<Arc<Vector>>,
}

impl Sum {
    pub fn new(vector: Vector, tails: Vec<Tail>) -> Sum {
        let loss_sum = tails.iter().map(|tail| tail.loss_sum).sum();
        let samples = tails.iter().map(|tail| tail.samples).sum();
        Sum {
            gradient: Gradient { sum: vector, loss_sum, samples },
            newest_view: tails.iter().map(|tail| tail.newest_view).max().unwrap_or(0),
            version: tails.iter().map(|tail| tail.version).min().unwrap_or(0),
            stop: tails.iter().any(|tail| tail.stop),
            save: tails.iter().any(|tail| tail.save),
            tails,
            mean: OnceLock::new(),
        }
    }
}

/// The result of an exchange, the same for all its members.
#[derive(Clone, Debug)]
pub enum ExchangeResult {
    Summed(Arc<Sum>),
    Gathered(Arc<Vec<Standing>>),
}

/// An exchange that not all members have entered yet.
#[derive(Debug)]
pub struct Meeting {
    entered: usize,
    adding: Adding,
    /// By rank, as are the standings; an exchange has only tails or only standings.
    tails: Vec<Option<Tail>>,
    standings: Vec<Option<Standing>>,
}

impl Meeting {
    pub fn new(members: usize) -> Meeting {
        Meeting {
            entered: 0,
            adding: Adding::new(members),
            tails: vec![None; members],
            standings: vec![None; members],
        }
    }

    /// A member enters. Its part is added to the sum as soon as all parts of lower rank are.
    pub fn enter(&mut self, rank: usize, entry: Entry) {
        self.entered += 1;
        match entry {
            Entry::Sum { payload, tail } => {
                // A member without samples has nothing to add; its tail still counts.
                self.adding.enter(rank, payload);
                self.tails[rank] = Some(tail);
            }
            Entry::Gather { standing } => self.standings[rank] = Some(standing),
        }
    }

    pub fn is_complete(&self) -> bool {
        self.entered == self.tails.len()
    }

    /// The result, once all members have entered.
    ///
    /// Dice for lossy sums are keyed by the exchange, not by the member that happens to compute it.
    pub fn end(self, seed: u64, (view, number): (u64, u64)) -> ExchangeResult {
        let all = self.tails.len();
        let tails: Vec<Tail> = self.tails.into_iter().flatten().collect();
        let standings: Vec<Standing> = self.standings.into_iter().flatten().collect();
        assert!(
            tails.len() == all || standings.len() == all,
            "all members enter the same kind of exchange"
        );
        if tails.is_empty() {
            return ExchangeResult::Gathered(Arc::new(standings));
        }
        let mut dice = Dice::keyed(&[seed, view, number, u64::from(b'x')]);
        ExchangeResult::Summed(Arc::new(Sum::new(self.adding.finish(&mut dice), tails)))
    }
}
