//! A cluster that is left alone makes progress within a bounded time.
//!
//! Progress is a result or an update that is applied, and the end of the job. The bound follows from the scenario: how long
//! a loss stays unnoticed, how long messages and gradients take. The clock stands while a fault lasts and while no worker
//! lives, and it starts anew with each fault.

use std::collections::BTreeSet;
use std::time::Duration;

use paceline_runtime::{Line, Reader, Record, WorkerId};

use crate::scenario::{Scenario, seconds};

/// What a strategy does at most between two updates.
#[derive(Clone, Copy, Debug)]
pub struct Work {
    /// The gradients that a worker computes.
    pub gradients: u32,
    /// The samples of one of them.
    pub samples: u64,
    /// The size of the largest message.
    pub bytes: u64,
    /// Messages that a worker sends without waiting for an answer: they may still be in its uplink.
    pub unanswered: u64,
}

pub struct Liveness {
    bound: Duration,
    /// When faults begin and end.
    faults: Vec<(Duration, Duration)>,
    has_churn: bool,
    alive: BTreeSet<WorkerId>,
    /// The last progress or fault.
    last: Duration,
    is_over: bool,
    /// The longest time without progress, as a part of the bound.
    pub longest: f64,
    pub violations: Vec<String>,
}

impl Liveness {
    pub fn new(scenario: &Scenario, work: Work) -> Liveness {
        Liveness {
            bound: seconds(bound(scenario, work)),
            faults: faults(scenario),
            has_churn: scenario.churn.is_some(),
            alive: BTreeSet::new(),
            last: Duration::ZERO,
            is_over: false,
            longest: 0.0,
            violations: vec![],
        }
    }

    fn look(&mut self, now: Duration) {
        let begun = self.faults.iter().filter(|(from, _)| *from <= now);
        let quiet_since = begun.map(|(_, to)| *to).max().unwrap_or_default().max(self.last);
        let quiet = now.saturating_sub(quiet_since);
        if self.is_over || self.alive.is_empty() {
            return;
        }
        self.longest = self.longest.max(quiet.as_secs_f64() / self.bound.as_secs_f64());
        if quiet > self.bound {
            let (quiet, bound) = (quiet.as_secs_f64(), self.bound.as_secs_f64());
            let since = quiet_since.as_secs_f64();
            self.violations.push(format!(
                "no progress for {quiet:.3} s since {since:.3} s, where {bound:.3} s are enough"
            ));
            // The next one is reported by itself.
            self.last = now;
        }
    }
}

impl Reader for Liveness {
    fn read(&mut self, line: &Line) {
        self.look(line.at);
        match &line.record {
            Record::Applied { .. } => self.last = line.at,
            Record::Over => self.is_over = true,
            Record::Started { who } => {
                // A worker that was put out and comes back is no fault, but the effect of one.
                if self.alive.is_empty() || self.has_churn {
                    self.last = line.at;
                }
                self.alive.insert(*who);
            }
            Record::Crashed { who } => {
                self.last = line.at;
                self.alive.remove(who);
            }
            Record::Left { who } => {
                if self.has_churn {
                    self.last = line.at;
                }
                self.alive.remove(who);
            }
            _ => {}
        }
    }
}

/// A message is sent at most this many times: the probability that all of them are lost is below 1e-9.
fn tries(loss: f64) -> f64 {
    if loss > 0.0 { (1e-9_f64.ln() / loss.ln()).ceil() } else { 1.0 }
}

/// The longest time without progress, in seconds: the round that a fault interrupts, until the loss is noticed, until all
/// have settled or a newcomer has boarded, and the next round.
fn bound(scenario: &Scenario, work: Work) -> f64 {
    let (network, coordinator) = (&scenario.network, &scenario.coordinator);
    let most = |numbers: &mut dyn Iterator<Item = f64>| numbers.fold(0.0, f64::max);
    let returns = scenario.crashes.iter().filter(|crash| crash.back_after.is_some()).count();
    let joins: u32 = scenario.joins.iter().map(|join| join.workers).sum();
    let members = f64::from(scenario.workers + joins) + returns as f64;

    let pace = &scenario.compute;
    let slowness = most(&mut pace.relative.iter().copied())
        * (1.0 + pace.jitter)
        * pace.straggler.as_ref().map_or(1.0, |straggler| straggler.factor)
        * most(&mut pace.traces.iter().map(|trace| trace.factor)).max(1.0)
        * pace.disturbance.as_ref().map_or(1.0, |it| it.factor.1);
    let gradient = pace.seconds_per_gradient + work.samples as f64 * pace.seconds_per_sample;
    let compute = f64::from(work.gradients) * gradient * slowness;

    let latency = network.latency
        + 2.0 * most(&mut network.links.iter().map(|link| link.latency))
        + 2.0 * most(&mut network.racks.iter().map(|rack| rack.latency));
    let links = network.links.iter().map(|link| link.bytes_per_second);
    // The members of a rack share its uplink.
    let racks = network.racks.iter().map(|rack| rack.bytes_per_second / members);
    let bytes_per_second = links.chain(racks).fold(network.bytes_per_second, f64::min);
    let message = latency + work.bytes as f64 / bytes_per_second;
    let ring = 2.0 * members * message;
    let backlog = work.unanswered as f64 * work.bytes as f64 / bytes_per_second;

    let hop = coordinator.latency.unwrap_or(network.latency) + coordinator.jitter;
    let word = tries(coordinator.loss) * (hop + coordinator.reconnect);
    // A coordinator that hears less than half of all workers waits for another patience, and looks again half of one later.
    let noticed = coordinator.detection + 3.0 * coordinator.patience + word;
    let boarded = coordinator.gathering + ring + members * message + 4.0 * word;
    // A round may need two exchanges, and a result of an interrupted one is passed on.
    let round = compute + 2.0 * ring + 2.0 * word + members * message;
    noticed + boarded + 2.0 * round + backlog
}

fn faults(scenario: &Scenario) -> Vec<(Duration, Duration)> {
    let coordinator = &scenario.coordinator;
    // One end of a dead link is put out, and comes back as a worker that the fault does not concern.
    let dead = |from: f64, to: f64| (from, to.min(from + 2.0 * coordinator.patience));
    let moment = |at: f64| (at, at);
    let crashes = scenario.crashes.iter().filter(|crash| crash.at_event.is_none());
    let all = crashes.map(|it| moment(it.at + it.back_after.unwrap_or(0.0)));
    let all = all.chain(scenario.leaves.iter().map(|it| moment(it.at)));
    let all = all.chain(scenario.joins.iter().map(|it| moment(it.at)));
    let all = all.chain(scenario.sizes.iter().map(|it| moment(it.at)));
    let all = all.chain(scenario.cuts.iter().map(|it| (it.from, it.to)));
    let all = all.chain(scenario.pauses.iter().map(|it| (it.from, it.to)));
    let all = all.chain(scenario.dead_links.iter().map(|it| dead(it.from, it.to)));
    let all = all.chain(coordinator.away.iter().map(|it| (it.from, it.to)));
    let all = all.chain(coordinator.kills.iter().map(|it| (it.at, it.at + it.back_after)));
    all.map(|(from, to)| (seconds(from), seconds(to))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::Pause;
    use paceline_runtime::Spans;

    const WORK: Work = Work { gradients: 1, samples: 10, bytes: 1000, unanswered: 0 };

    fn scenario() -> Scenario {
        let mut scenario = Scenario::default();
        scenario.coordinator.patience = 0.01;
        scenario
    }

    fn applied() -> Record {
        let (who, spans) = (WorkerId(0), Spans::one(0, 1));
        let (loss_sum, staleness, rate, round, result) = (0.0, 0, 0.1, None, None);
        Record::Applied {
            weight: None,
            who,
            version: 1,
            spans,
            loss_sum,
            staleness,
            rate,
            round,
            result,
        }
    }

    fn violations(scenario: &Scenario, records: Vec<(f64, Record)>) -> usize {
        let mut checker = Liveness::new(scenario, WORK);
        checker.read(&Line { at: Duration::ZERO, record: Record::Started { who: WorkerId(0) } });
        for (at, record) in records {
            checker.read(&Line { at: seconds(at), record });
        }
        checker.violations.len()
    }

    #[test]
    fn a_long_time_without_progress_needs_a_fault() {
        let scenario = scenario();
        let most = bound(&scenario, WORK);
        assert!(most < 0.1, "{most}");
        let paused =
            Scenario { pauses: vec![Pause { worker: 0, from: 0.01, to: 1.0 }], ..scenario.clone() };

        assert_eq!(
            violations(&scenario, vec![(0.9 * most, applied()), (1.8 * most, Record::Over)]),
            0
        );
        assert_eq!(violations(&scenario, vec![(1.1 * most, applied())]), 1);
        assert_eq!(violations(&scenario, vec![(0.0, applied()), (1.1 * most, Record::Over)]), 1);
        assert_eq!(violations(&paused, vec![(1.0 + 0.9 * most, applied())]), 0);
        assert_eq!(violations(&paused, vec![(1.0 + 1.1 * most, applied())]), 1);
    }

    #[test]
    fn nobody_is_waited_for_while_no_worker_lives() {
        let who = WorkerId(0);
        let died =
            vec![(0.0, Record::Crashed { who }), (9.0, Record::Started { who }), (9.01, applied())];
        assert_eq!(violations(&scenario(), died), 0);
    }

    #[test]
    fn a_worker_that_comes_back_all_the_time_is_no_progress() {
        let back = |i: u32| (0.05 * f64::from(i), Record::Started { who: WorkerId(i) });
        assert_ne!(violations(&scenario(), (1..20).map(back).collect()), 0);
    }
}
