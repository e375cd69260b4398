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
        worker.set_params(center);
        Ok(())
    }

    async fn serve(&mut self, server: &mut Server) -> Result<(), Interrupt> {
        let mut pace = Pace::default();
        loop {
            pace.admit(&server.view.members);
            match server.next().await? {
                Call::Gradient { from, payload, tail, spans } => {
                    server.descend(from, payload, tail, spans, self.batch as f64);
                    pace.step(from);
                }
                Call::Idle { from } => pace.rest(from),
                Call::Message { .. } | Call::Members => {}
            }
            pace.keep(&server.view.members);
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
#[derive(Default)]
struct Pace {
    steps: BTreeMap<WorkerId, u64>,
    waiting: BTreeSet<WorkerId>,
    /// Workers without samples, which no other worker waits for.
    resting: BTreeSet<WorkerId>,
}

impl Pace {
    /// A newcomer starts where the slowest is.
    fn admit(&mut self, members: &[WorkerId]) {
        let slowest = self.slowest().unwrap_or(0);
        for who in members {
            self.steps.entry(*who).or_insert(slowest);
        }
    }

    fn keep(&mut self, members: &[WorkerId]) {
        let is_member = |who: &WorkerId| members.binary_search(who).is_ok();
        self.steps.retain(|who, _| is_member(who));
        self.waiting.retain(is_member);
        self.resting.retain(is_member);
    }

    fn step(&mut self, who: WorkerId) {
        self.resting.remove(&who);
        *self.steps.entry(who).or_default() += 1;
        self.waiting.insert(who);
    }

    fn rest(&mut self, who: WorkerId) {
        self.resting.insert(who);
    }

    fn slowest(&self) -> Option<u64> {
        let working = self.steps.iter().filter(|(who, _)| !self.resting.contains(who));
        working.map(|(_, steps)| *steps).min()
    }

    /// Takes the workers that may continue.
    fn free(&mut self, lead_max: Option<u64>) -> Vec<WorkerId> {
        let slowest = self.slowest().unwrap_or(u64::MAX);
        let may_go = |who: &&WorkerId| match lead_max {
            Some(lead) => self.steps[who] <= slowest.saturating_add(lead),
            None => true,
        };
        let free: Vec<WorkerId> = self.waiting.iter().filter(may_go).copied().collect();
        self.waiting.retain(|who| !free.contains(who));
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
        pace.admit(&[a, b]);
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
        pace.admit(&[a, b, c]);
        pace.step(a);
        assert_eq!(pace.free(Some(0)), []);
        pace.rest(b);
        assert_eq!(pace.free(Some(0)), []);
        pace.keep(&[a, b]);
        assert_eq!(pace.free(Some(0)), [a]);
    }
}
