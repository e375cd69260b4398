//! An exchange under way: what its members have put into it. Its arithmetic is the same on every cluster.

use std::sync::Arc;

use paceline_learn::Dice;

use crate::cluster::{Entry, ExchangeResult, Standing, Sum, Tail};
use crate::codec::Adding;

/// An exchange that not all members have entered yet.
#[derive(Debug)]
pub struct Meeting {
    entered: usize,
    adding: Adding,
    /// By rank, as are the standings; of one exchange all are the one or the other.
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

    /// A member comes in. What it brings is added to the sum at once, if those of lower rank are there.
    pub fn enter(&mut self, rank: usize, entry: Entry) {
        self.entered += 1;
        match entry {
            Entry::Sum { payload, tail } => {
                // A member without samples sends nothing to add; its tail still counts.
                self.adding.enter(rank, payload);
                self.tails[rank] = Some(tail);
            }
            Entry::Gather { standing } => self.standings[rank] = Some(standing),
        }
    }

    pub fn is_complete(&self) -> bool {
        self.entered == self.tails.len()
    }

    /// What all members get, once all have entered.
    ///
    /// Dice for lossy sums are keyed by the exchange, not by who happens to do the sum.
    pub fn end(self, seed: u64, (view, number): (u64, u64)) -> ExchangeResult {
        let all = self.tails.len();
        let tails: Vec<Tail> = self.tails.into_iter().flatten().collect();
        let standings: Vec<Standing> = self.standings.into_iter().flatten().collect();
        assert!(
            tails.len() == all || standings.len() == all,
            "a meeting ends when all members have entered the same kind of exchange"
        );
        if tails.is_empty() {
            return ExchangeResult::Gathered(Arc::new(standings));
        }
        let mut dice = Dice::keyed(&[seed, view, number, u64::from(b'x')]);
        ExchangeResult::Summed(Arc::new(Sum::new(self.adding.finish(&mut dice), tails)))
    }
}
