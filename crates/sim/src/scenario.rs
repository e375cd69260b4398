//! What a simulated cluster is like: the contents of a scenario file, as plain data.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::error::ScenarioError;

/// A simulated cluster: its workers, links and faults. All times are virtual seconds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    #[serde(default)]
    pub name: String,
    #[serde(default)]
    pub description: String,
    /// The number of workers at the start; their ids are 0, 1, 2, ...
    pub workers: u32,
    #[serde(default)]
    pub compute: Pace,
    #[serde(default)]
    pub network: Network,
    #[serde(default)]
    pub coordinator: CoordinatorModel,
    #[serde(default, rename = "crash", skip_serializing_if = "Vec::is_empty")]
    pub crashes: Vec<Crash>,
    #[serde(default, rename = "leave", skip_serializing_if = "Vec::is_empty")]
    pub leaves: Vec<Leave>,
    #[serde(default, rename = "join", skip_serializing_if = "Vec::is_empty")]
    pub joins: Vec<Join>,
    /// Changes of the number of workers at given times.
    #[serde(default, rename = "size", skip_serializing_if = "Vec::is_empty")]
    pub sizes: Vec<Size>,
    #[serde(default, rename = "cut", skip_serializing_if = "Vec::is_empty")]
    pub cuts: Vec<Cut>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub churn: Option<Churn>,
}

/// How long computing takes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Pace {
    pub seconds_per_sample: f64,
    /// The fixed cost of a gradient, whatever its number of samples.
    pub seconds_per_gradient: f64,
    /// The cost of an update, per parameter.
    pub seconds_per_param: f64,
    /// The cost of handing a gradient to the exchange; not multiplied by a worker's slowness.
    pub seconds_per_handover: f64,
    /// Each worker's factor on the costs above; the list repeats if there are more workers.
    pub relative: Vec<f64>,
    /// The largest random slowdown: with 0.3, computing takes up to 30 % longer.
    pub jitter: f64,
    /// How long a random slowdown lasts before the next one is drawn.
    pub jitter_every: f64,
    /// Changes of a worker's speed at given times.
    #[serde(rename = "trace", skip_serializing_if = "Vec::is_empty")]
    pub traces: Vec<Trace>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disturbance: Option<Disturbance>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub straggler: Option<Straggler>,
}

impl Default for Pace {
    fn default() -> Pace {
        Pace {
            seconds_per_sample: 1e-4,
            seconds_per_gradient: 1e-4,
            seconds_per_param: 1e-9,
            seconds_per_handover: 0.0,
            relative: vec![1.0],
            jitter: 0.0,
            jitter_every: 0.05,
            traces: vec![],
            disturbance: None,
            straggler: None,
        }
    }
}

/// From `at` on, `worker` takes `factor` times as long.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Trace {
    pub worker: u32,
    pub at: f64,
    pub factor: f64,
}

/// Random disturbances as DBS describes them: in each interval, each healthy worker is slowed down with probability
/// `chance`, for a random number of intervals, by a random factor.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Disturbance {
    pub every: f64,
    pub chance: f64,
    /// The smallest and the largest number of intervals.
    pub lasts: (u32, u32),
    /// The smallest and the largest factor.
    pub factor: (f64, f64),
}

/// A moving straggler: in each interval, one worker drawn at random takes `factor` times as long.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Straggler {
    pub every: f64,
    pub factor: f64,
}

/// The links: each worker has its own uplink, which sends its messages one after another.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Network {
    pub latency: f64,
    pub bytes_per_second: f64,
    pub sums: RingModel,
    #[serde(rename = "rack", skip_serializing_if = "Vec::is_empty")]
    pub racks: Vec<Rack>,
    #[serde(rename = "link", skip_serializing_if = "Vec::is_empty")]
    pub links: Vec<Link>,
}

impl Default for Network {
    fn default() -> Network {
        Network {
            latency: 1e-4,
            bytes_per_second: 1e8,
            sums: RingModel::Messages,
            racks: vec![],
            links: vec![],
        }
    }
}

/// How exchanges among all members (collectives) are simulated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RingModel {
    /// Each message of the ring is simulated.
    Messages,
    /// One event after the ring's total cost: fast, and exact if all links are equal and all members start at the same time.
    ClosedForm,
}

/// Workers that share one uplink for messages to other racks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rack {
    pub workers: Vec<u32>,
    pub bytes_per_second: f64,
    /// Added to the latency of messages that leave or enter the rack.
    #[serde(default)]
    pub latency: f64,
}

/// The uplink of one worker, where it differs from the others'.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Link {
    pub worker: u32,
    pub bytes_per_second: f64,
    #[serde(default)]
    pub latency: f64,
}

/// The coordinator: how soon it detects failures, and when it cannot be reached.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CoordinatorModel {
    /// The time from a crash until the coordinator notices the broken connection.
    pub detection: f64,
    /// How long a worker may be silent, as behind a cut, before the coordinator removes it.
    pub patience: f64,
    /// Workers that join or leave within this time do so together.
    pub gathering: f64,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub away: Vec<During>,
}

impl Default for CoordinatorModel {
    fn default() -> CoordinatorModel {
        CoordinatorModel { detection: 0.01, patience: 0.5, gathering: 0.001, away: vec![] }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct During {
    pub from: f64,
    pub to: f64,
}

/// A worker dies without notice; with `back_after`, it comes back under a new id.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Crash {
    pub worker: u32,
    pub at: f64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub back_after: Option<f64>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Leave {
    pub worker: u32,
    pub at: f64,
}

/// New workers join.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Join {
    pub at: f64,
    pub workers: u32,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Size {
    #[serde(default)]
    pub at: f64,
    /// Instead of `at`: when the first sample of this epoch is dealt; 1.5 is the middle of the second epoch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at_epoch: Option<f64>,
    pub workers: u32,
}

/// No message passes between these workers and the others for a while; messages sent in that time arrive afterwards.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cut {
    pub workers: Vec<u32>,
    pub from: f64,
    pub to: f64,
    /// Whether these workers are cut off from the coordinator, too.
    #[serde(default = "yes")]
    pub coordinator: bool,
}

fn yes() -> bool {
    true
}

/// Workers come and go at random, as on spot machines.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Churn {
    pub lifetime_mean: f64,
    pub back_after_mean: f64,
    /// No worker goes while there are this many or fewer.
    pub members_min: u32,
    /// The fraction of departing workers that leave gracefully; the others crash.
    #[serde(default)]
    pub leave_chance: f64,
}

impl Default for Scenario {
    /// Four equal workers on a good network, without faults.
    fn default() -> Scenario {
        Scenario {
            name: String::new(),
            description: String::new(),
            workers: 4,
            compute: Pace::default(),
            network: Network::default(),
            coordinator: CoordinatorModel::default(),
            crashes: vec![],
            leaves: vec![],
            joins: vec![],
            sizes: vec![],
            cuts: vec![],
            churn: None,
        }
    }
}

impl Scenario {
    /// Whether a member can be lost, or be taken for lost.
    pub fn can_lose_members(&self) -> bool {
        let churn_crashes = self.churn.as_ref().is_some_and(|churn| churn.leave_chance < 1.0);
        churn_crashes || !self.crashes.is_empty() || self.cuts.iter().any(|cut| cut.coordinator)
    }

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
        for away in &self.coordinator.away {
            not_negative("coordinator.away.from", away.from)?;
            not_negative("coordinator.away.to", away.to)?;
            in_order("coordinator.away", away.from, away.to)?;
        }
        Ok(())
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

/// A duration of at most thirty years, so that adding several up cannot overflow.
pub(crate) fn seconds(value: f64) -> Duration {
    Duration::from_secs_f64(value.clamp(0.0, 1e9))
}
