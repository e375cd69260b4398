//! Which published values this rank has asked other ranks for, and who waits for them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::Sender;

use paceline_learn::Vector;
use paceline_runtime::Ticket;
use paceline_runtime::wire::Published;

#[derive(Default)]
pub struct Reads {
    requests: u64,
    open: BTreeMap<u64, (usize, Reader)>,
    collects: BTreeMap<u64, Collecting>,
}

/// Who wants a value.
enum Reader {
    Task(Ticket),
    Collect(u64),
}

/// The values of several ranks, which are wanted together.
struct Collecting {
    missing: usize,
    found: BTreeMap<usize, Arc<Vector>>,
    to: Sender<Vec<Arc<Vector>>>,
}

impl Reads {
    /// A task asks a rank; returns the number of the request.
    pub fn ask(&mut self, rank: usize, ticket: Ticket) -> u64 {
        self.open(rank, Reader::Task(ticket))
    }

    fn open(&mut self, rank: usize, reader: Reader) -> u64 {
        self.requests += 1;
        self.open.insert(self.requests, (rank, reader));
        self.requests
    }

    /// Values of these ranks are wanted together; returns the number of the request to each.
    pub fn collect(
        &mut self,
        of: Vec<usize>,
        own: Option<(usize, Arc<Vector>)>,
        to: Sender<Vec<Arc<Vector>>>,
    ) -> Vec<(usize, u64)> {
        self.requests += 1;
        let number = self.requests;
        if of.is_empty() {
            drop(to.send(own.into_iter().map(|(_, value)| value).collect()));
            return vec![];
        }
        let collecting = Collecting { missing: of.len(), found: own.into_iter().collect(), to };
        self.collects.insert(number, collecting);
        of.into_iter().map(|rank| (rank, self.open(rank, Reader::Collect(number)))).collect()
    }

    /// A rank has answered. Returns the ticket of the task that waits for it, and its value.
    pub fn answered(
        &mut self,
        rank: usize,
        request: u64,
        value: Option<Published>,
    ) -> Option<(Ticket, Option<Published>)> {
        self.open.get(&request).filter(|(asked, _)| *asked == rank)?;
        match self.open.remove(&request)?.1 {
            Reader::Task(ticket) => Some((ticket, value)),
            Reader::Collect(number) => {
                let collecting = self.collects.get_mut(&number)?;
                collecting.missing -= 1;
                collecting.found.extend(value.map(|value| (rank, value.params)));
                if collecting.missing == 0
                    && let Some(Collecting { found, to, .. }) = self.collects.remove(&number)
                {
                    drop(to.send(found.into_values().collect()));
                }
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use paceline_runtime::wire::AnyOptimizerState;

    use super::*;

    fn value(x: f32) -> Option<Published> {
        let (reign, version, done) = (0, 0, Arc::default());
        let optimizer = AnyOptimizerState::default();
        Some(Published { params: Arc::new([x].into()), optimizer, reign, version, done })
    }

    #[test]
    fn values_that_are_wanted_together_come_in_rank_order_and_strangers_answers_count_for_nothing()
    {
        let mut reads = Reads::default();
        let (to, found) = mpsc::channel();
        let own = Some((1, Arc::new([1.0].into())));

        let asked = reads.collect(vec![2, 0, 3], own, to);
        assert!(reads.answered(2, asked[1].1, value(9.0)).is_none(), "rank 0 was asked");
        assert!(found.try_recv().is_err());
        for ((rank, request), answer) in asked.into_iter().zip([value(2.0), value(0.0), None]) {
            assert!(reads.answered(rank, request, answer).is_none());
        }

        let found = found.try_recv().expect("all have answered");
        assert_eq!(found.iter().map(|it| it[0]).collect::<Vec<_>>(), [0.0, 1.0, 2.0]);
    }
}
