//! Exchanges (collectives): what members put in, and what all of them get. The arithmetic is the same on every cluster.

use std::sync::Arc;

use crate::codec::{Adding, dice_of};
use crate::view::View;
use crate::wire::{Entry, Standing, Tail};

pub use crate::wire::Sum;

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

    pub fn has_entered(&self, rank: usize) -> bool {
        self.tails[rank].is_some() || self.standings[rank].is_some()
    }

    pub fn is_complete(&self) -> bool {
        self.entered == self.tails.len()
    }

    /// The result, once all members have entered.
    pub fn end(self, seed: u64, view: Arc<View>, exchange: u64) -> ExchangeResult {
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
        let vector = self.adding.finish(&mut dice_of(seed, exchange));
        ExchangeResult::Summed(Arc::new(Sum::new(exchange, view, vector, tails)))
    }
}
