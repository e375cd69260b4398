//! Asynchronous SGD with a parameter server: workers push gradients and get the newest parameters;
//! no worker waits for another.
//!
//! Dean et al. 2012 (Downpour), as Jin et al. 2016 (arXiv 1611.04581) describe it. With a bound on
//! staleness it is SSP (Ho et al. 2013): a worker that leads the slowest by more than the bound gets its answer
//! only when the slowest has caught up.

use std::collections::{BTreeMap, BTreeSet};

use paceline_runtime::{Call, Coordination, Interrupt, Server, Share, Strategy, Worker, WorkerId};
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ParameterServer {
    pub batch: u64,
    /// How many steps a worker may lead the slowest by; `None`: any number.
    pub lead_max: Option<u64>,
}

impl Strategy for ParameterServer {
    async fn round(&mut self, worker: &mut Worker) -> Result<(), Interrupt> {
        // A worker that may have to wait for the slowest must not hold samples that the slowest needs.
        let share = Share::Leased { samples: self.batch, ahead: self.lead_max.is_none() };
        let Some(mine) = worker.gradient(share).await else { return Ok(()) };
        let center = worker.push(mine).await?;
        worker.set_params(center).await;
        Ok(())
    }

    async fn serve(&mut self, server: &mut Server) -> Result<(), Interrupt> {
        let mut pace = Pace::default();
        pace.follow(&server.view.members);
        loop {
            match server.next().await? {
                Call::Gradient { from, payload, tail, spans } => {
                    server.descend(from, payload, tail, spans, self.batch as f64);
                    pace.step(from);
                }
                Call::Idle { from } => pace.rest(from),
                Call::Members => pace.follow(&server.view.members),
                Call::Message { .. } => {}
            }
            pace.free(self.lead_max).into_iter().for_each(|worker| server.reply(worker));
        }
    }

    fn coordination(&self) -> Coordination {
        Coordination::Centered { applies_samples: true }
    }

    fn nominal_batch(&self, _members: usize) -> f64 {
        self.batch as f64
    }
}

/// How many steps each worker has made, and which ones wait for the slowest.
///
/// A server may have thousands of workers, so none of them is looked at unless it concerns the call.
#[derive(Default)]
struct Pace {
    steps: BTreeMap<WorkerId, u64>,
    /// Workers that others wait for, by their steps: all but those without samples. The slowest comes first.
    working: BTreeSet<(u64, WorkerId)>,
    /// Workers that wait for their answer, by their steps.
    waiting: BTreeSet<(u64, WorkerId)>,
}

impl Pace {
    /// The members are these. A newcomer starts where the slowest is.
    fn follow(&mut self, members: &[WorkerId]) {
        let is_member = |who: &WorkerId| members.binary_search(who).is_ok();
        self.steps.retain(|who, _| is_member(who));
        self.working.retain(|(_, who)| is_member(who));
        self.waiting.retain(|(_, who)| is_member(who));
        let slowest = self.slowest().unwrap_or(0);
        for who in members {
            if !self.steps.contains_key(who) {
                self.steps.insert(*who, slowest);
                self.working.insert((slowest, *who));
            }
        }
    }

    fn step(&mut self, who: WorkerId) {
        let steps = self.steps.entry(who).or_default();
        self.working.remove(&(*steps, who));
        self.waiting.remove(&(*steps, who));
        *steps += 1;
        self.working.insert((*steps, who));
        self.waiting.insert((*steps, who));
    }

    fn rest(&mut self, who: WorkerId) {
        if let Some(steps) = self.steps.get(&who) {
            self.working.remove(&(*steps, who));
        }
    }

    fn slowest(&self) -> Option<u64> {
        self.working.first().map(|(steps, _)| *steps)
    }

    /// Takes the workers that may continue.
    fn free(&mut self, lead_max: Option<u64>) -> Vec<WorkerId> {
        let slowest = self.slowest().unwrap_or(u64::MAX);
        let most = lead_max.map_or(u64::MAX, |lead| slowest.saturating_add(lead));
        let mut free = Vec::new();
        while self.waiting.first().is_some_and(|(steps, _)| *steps <= most) {
            free.extend(self.waiting.pop_first().map(|(_, who)| who));
        }
        free.sort_unstable();
        free
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ho et al. 2013: a worker leads the slowest by at most the bound.
    #[test]
    fn a_worker_too_far_ahead_waits_for_the_slowest() {
        let [a, b] = [WorkerId(0), WorkerId(1)];
        let mut pace = Pace::default();
        pace.follow(&[a, b]);
        pace.step(a);
        assert_eq!(pace.free(Some(1)), [a]);
        pace.step(a);
        assert_eq!(pace.free(Some(1)), []);
        pace.step(b);
        assert_eq!(pace.free(Some(1)), [a, b]);
    }

    #[test]
    fn no_worker_waits_for_one_that_rests_or_is_gone() {
        let [a, b, c] = [WorkerId(0), WorkerId(1), WorkerId(2)];
        let mut pace = Pace::default();
        pace.follow(&[a, b, c]);
        pace.step(a);
        assert_eq!(pace.free(Some(0)), []);
        pace.rest(b);
        assert_eq!(pace.free(Some(0)), []);
        pace.follow(&[a, b]);
        assert_eq!(pace.free(Some(0)), [a]);
    }
}
