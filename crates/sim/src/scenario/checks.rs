//! Checks what the types of a scenario cannot express, such as positive numbers and workers that exist.

use super::{RingModel, Scenario};
use crate::error::ScenarioError;

impl Scenario {
    /// Checks what the types cannot express, such as positive numbers.
    pub fn check(&self) -> Result<(), ScenarioError> {
        if self.workers == 0 {
            return Err(ScenarioError::NoWorkers);
        }
        few_enough("workers", self.workers)?;
        self.check_compute()?;
        self.check_network()?;
        self.check_faults()
    }

    fn check_compute(&self) -> Result<(), ScenarioError> {
        let pace = &self.compute;
        positive("compute.seconds_per_sample", pace.seconds_per_sample)?;
        not_negative("compute.seconds_per_gradient", pace.seconds_per_gradient)?;
        not_negative("compute.seconds_per_param", pace.seconds_per_param)?;
        not_negative("compute.seconds_per_encoded", pace.seconds_per_encoded)?;
        not_negative("compute.seconds_per_handover", pace.seconds_per_handover)?;
        not_negative("compute.jitter", pace.jitter)?;
        interval("compute.jitter_every", pace.jitter_every)?;
        if pace.relative.is_empty() {
            return Err(ScenarioError::NoRelativeSpeeds);
        }
        for factor in &pace.relative {
            positive("compute.relative", *factor)?;
        }
        for trace in &pace.traces {
            not_negative("compute.trace.at", trace.at)?;
            positive("compute.trace.factor", trace.factor)?;
        }
        if let Some(d) = &pace.disturbance {
            interval("compute.disturbance.every", d.every)?;
            probability("compute.disturbance.chance", d.chance)?;
            positive("compute.disturbance.factor", d.factor.0)?;
            positive("compute.disturbance.factor", d.factor.1)?;
            if d.factor.1 < d.factor.0 || d.lasts.1 < d.lasts.0 || d.lasts.0 == 0 {
                return Err(ScenarioError::DisturbanceRange);
            }
        }
        if let Some(straggler) = &pace.straggler {
            interval("compute.straggler.every", straggler.every)?;
            positive("compute.straggler.factor", straggler.factor)?;
        }
        Ok(())
    }

    fn check_network(&self) -> Result<(), ScenarioError> {
        let network = &self.network;
        not_negative("network.latency", network.latency)?;
        positive("network.bytes_per_second", network.bytes_per_second)?;
        for rack in &network.racks {
            positive("network.rack.bytes_per_second", rack.bytes_per_second)?;
            not_negative("network.rack.latency", rack.latency)?;
        }
        let mut racked: Vec<u32> =
            network.racks.iter().flat_map(|rack| rack.workers.clone()).collect();
        racked.sort_unstable();
        if let Some(pair) = racked.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(ScenarioError::WorkerInTwoRacks { worker: pair[0] });
        }
        for link in &network.links {
            positive("network.link.bytes_per_second", link.bytes_per_second)?;
            not_negative("network.link.latency", link.latency)?;
        }
        if network.sums == RingModel::ClosedForm && !network.racks.is_empty() {
            return Err(ScenarioError::ClosedFormWithRacks);
        }
        not_negative("coordinator.detection", self.coordinator.detection)?;
        positive("coordinator.patience", self.coordinator.patience)?;
        not_negative("coordinator.gathering", self.coordinator.gathering)?;
        let (min, max) = (self.coordinator.members_min, self.coordinator.members_max);
        if min == Some(0) {
            return Err(ScenarioError::NoWorkerStays { field: "coordinator.members_min" });
        }
        if max.is_some_and(|max| max < min.unwrap_or(1)) {
            return Err(ScenarioError::MembersRange);
        }
        for away in &self.coordinator.away {
            not_negative("coordinator.away.from", away.from)?;
            not_negative("coordinator.away.to", away.to)?;
            in_order("coordinator.away", away.from, away.to)?;
        }
        for kill in &self.coordinator.kills {
            not_negative("coordinator.kill.at", kill.at)?;
            not_negative("coordinator.kill.back_after", kill.back_after)?;
        }
        not_negative("coordinator.latency", self.coordinator.latency.unwrap_or(0.0))?;
        not_negative("coordinator.jitter", self.coordinator.jitter)?;
        probability("coordinator.loss", self.coordinator.loss)?;
        ensure(
            self.coordinator.loss <= 0.5,
            ScenarioError::OutOfRange {
                field: "coordinator.loss",
                value: self.coordinator.loss,
                min: 0.0,
                max: 0.5,
            },
        )?;
        interval("coordinator.reconnect", self.coordinator.reconnect)?;
        Ok(())
    }

    /// Refuses faults of workers that there can never be.
    fn check_workers(&self) -> Result<(), ScenarioError> {
        if self.churn.is_some() {
            return Ok(());
        }
        // Every worker that comes back, or comes to know that it counts as lost, gets a new id.
        let joins: u32 = self.joins.iter().map(|join| join.workers).sum();
        let sizes: u32 = self.sizes.iter().map(|size| size.workers).sum();
        let cuts: u32 = self.cuts.iter().map(|cut| cut.workers.len() as u32).sum();
        let back = self.crashes.iter().filter(|crash| crash.back_after.is_some()).count();
        let others = back + self.pauses.len() + 2 * self.dead_links.len();
        let ids = self.workers + joins + sizes + cuts + others as u32;
        let named = |field, worker| {
            ensure(worker < ids, ScenarioError::NoSuchWorker { field, worker, last: ids - 1 })
        };
        self.crashes.iter().try_for_each(|it| named("crash.worker", it.worker))?;
        self.leaves.iter().try_for_each(|it| named("leave.worker", it.worker))?;
        self.pauses.iter().try_for_each(|it| named("pause.worker", it.worker))?;
        for link in &self.dead_links {
            named("dead_link.between", link.between.0.max(link.between.1))?;
        }
        let cut = self.cuts.iter().flat_map(|cut| &cut.workers);
        cut.copied().try_for_each(|worker| named("cut.workers", worker))
    }

    fn check_faults(&self) -> Result<(), ScenarioError> {
        for crash in &self.crashes {
            not_negative("crash.at", crash.at)?;
            not_negative("crash.back_after", crash.back_after.unwrap_or(0.0))?;
        }
        self.leaves.iter().try_for_each(|leave| not_negative("leave.at", leave.at))?;
        for join in &self.joins {
            not_negative("join.at", join.at)?;
            few_enough("join.workers", join.workers)?;
        }
        for size in &self.sizes {
            not_negative("size.at", size.at)?;
            not_negative("size.at_epoch", size.at_epoch.unwrap_or(0.0))?;
            if size.at_epoch.is_some() && size.at != 0.0 {
                return Err(ScenarioError::SizeAtTwoTimes);
            }
            few_enough("size.workers", size.workers)?;
            if size.workers == 0 {
                return Err(ScenarioError::NoWorkerStays { field: "size.workers" });
            }
        }
        for cut in &self.cuts {
            not_negative("cut.from", cut.from)?;
            not_negative("cut.to", cut.to)?;
            in_order("cut", cut.from, cut.to)?;
        }
        for link in &self.dead_links {
            not_negative("dead_link.from", link.from)?;
            not_negative("dead_link.to", link.to)?;
            in_order("dead_link", link.from, link.to)?;
        }
        for pause in &self.pauses {
            not_negative("pause.from", pause.from)?;
            not_negative("pause.to", pause.to)?;
            in_order("pause", pause.from, pause.to)?;
        }
        self.check_workers()?;
        if let Some(churn) = &self.churn {
            interval("churn.lifetime_mean", churn.lifetime_mean)?;
            not_negative("churn.back_after_mean", churn.back_after_mean)?;
            probability("churn.leave_chance", churn.leave_chance)?;
            if churn.members_min == 0 {
                return Err(ScenarioError::NoWorkerStays { field: "churn.members_min" });
            }
        }
        Ok(())
    }
}

/// The range of durations, rates and factors: within it, their products stay finite and above zero.
const LEAST: f64 = 1e-9;
const MOST: f64 = 1e15;
/// Far above any simulation so far; a typing error should not exhaust the memory.
const WORKERS_MAX: u32 = 100_000;

fn positive(field: &'static str, value: f64) -> Result<(), ScenarioError> {
    let (min, max) = (LEAST, MOST);
    if value > 0.0 {
        let error = ScenarioError::OutOfRange { field, value, min, max };
        ensure((min..=max).contains(&value), error)
    } else {
        Err(ScenarioError::NotPositive { field, value })
    }
}

/// Checks an interval or a lifetime: shorter than a microsecond, they would only take time to simulate.
fn interval(field: &'static str, value: f64) -> Result<(), ScenarioError> {
    let (min, max) = (1e-6, MOST);
    let error = ScenarioError::OutOfRange { field, value, min, max };
    ensure((min..=max).contains(&value), error)
}

fn few_enough(field: &'static str, workers: u32) -> Result<(), ScenarioError> {
    let max = WORKERS_MAX;
    ensure(workers <= max, ScenarioError::TooManyWorkers { field, workers, max })
}

fn not_negative(field: &'static str, value: f64) -> Result<(), ScenarioError> {
    ensure((0.0..1e9).contains(&value), ScenarioError::OutOfTimeRange { field, value })
}

fn probability(field: &'static str, value: f64) -> Result<(), ScenarioError> {
    ensure((0.0..=1.0).contains(&value), ScenarioError::NotAProbability { field, value })
}

fn in_order(field: &'static str, from: f64, to: f64) -> Result<(), ScenarioError> {
    ensure(from < to, ScenarioError::EndsBeforeItStarts { field, from, to })
}

fn ensure(holds: bool, otherwise: ScenarioError) -> Result<(), ScenarioError> {
    if holds { Ok(()) } else { Err(otherwise) }
}
