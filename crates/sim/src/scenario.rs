//! What a simulated cluster is like, as a scenario file says it. Plain data.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// A simulated cluster: its workers, links and mishaps. All times are virtual seconds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    #[serde(default)]
    pub name: String,
    #[serde(default)]
    pub description: String,
    /// How many workers there are at first; their ids are 0, 1, 2, ...
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
    /// The wanted number of workers from some time on.
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
    /// What a gradient costs besides its samples.
    pub seconds_per_gradient: f64,
    /// What an update costs, for each parameter.
    pub seconds_per_param: f64,
    /// What handing a gradient over costs, the same for everybody, however slow.
    pub seconds_per_handover: f64,
    /// Each worker's seconds per sample relative to the above; repeated if there are more workers.
    pub relative: Vec<f64>,
    /// Computing takes up to this much longer, by chance: 0.3 is up to 30 %.
    pub jitter: f64,
    /// How long a chance lasts.
    pub jitter_every: f64,
    /// Changes of a worker's pace at set times.
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

/// Random disturbances as DBS describes them: once per interval a healthy worker is slowed with some
/// chance, for a random number of intervals, by a random factor.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Disturbance {
    pub every: f64,
    pub chance: f64,
    /// Least and most intervals that it lasts.
    pub lasts: (u32, u32),
    /// Least and most factor.
    pub factor: (f64, f64),
}

/// A straggler that moves: in each interval another worker takes `factor` times as long.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Straggler {
    pub every: f64,
    pub factor: f64,
}

/// Links: every worker has an uplink of its own, over which its messages leave one after another.
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

/// How exchanges of all members are simulated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RingModel {
    /// Every message of the ring.
    Messages,
    /// By the ring's cost, as one event: fast, and equal for uniform links and equal starts.
    ClosedForm,
}

/// Workers whose messages to other racks share one uplink.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rack {
    pub workers: Vec<u32>,
    pub bytes_per_second: f64,
    /// Added to the latency of messages that leave the rack, or come into it from elsewhere.
    #[serde(default)]
    pub latency: f64,
}

/// One worker's own uplink, if it differs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Link {
    pub worker: u32,
    pub bytes_per_second: f64,
    #[serde(default)]
    pub latency: f64,
}

/// The coordinator: how soon it notices things, and when it is away.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CoordinatorModel {
    /// How long after a crash its broken connection is noticed.
    pub detection: f64,
    /// How long a silent worker (behind a cut) is kept.
    pub patience: f64,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub away: Vec<During>,
}

impl Default for CoordinatorModel {
    fn default() -> CoordinatorModel {
        CoordinatorModel { detection: 0.01, patience: 0.5, away: vec![] }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct During {
    pub from: f64,
    pub to: f64,
}

/// A worker dies without a word, and comes back under a new id if it says when.
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

/// So many new workers come.
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
    /// In place of `at`: when the first sample of this epoch is taken up; 1.5 is the middle of the second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at_epoch: Option<f64>,
    pub workers: u32,
}

/// Nothing passes between these workers and the others for a while. What was sent arrives after it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cut {
    pub workers: Vec<u32>,
    pub from: f64,
    pub to: f64,
    /// Whether they are cut off from the coordinator too.
    #[serde(default = "yes")]
    pub coordinator: bool,
}

fn yes() -> bool {
    true
}

/// Workers come and go by chance, as on spot machines.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Churn {
    pub lifetime_mean: f64,
    pub back_after_mean: f64,
    /// Nobody goes when so few are left.
    pub members_min: u32,
    /// The part of those who go that say goodbye.
    #[serde(default)]
    pub leave_chance: f64,
}

impl Default for Scenario {
    /// Four equal workers on a good network, and no mishap.
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
    /// Checks what types cannot; one sentence says what is wrong and where.
    pub fn check(&self) -> Result<(), String> {
        if self.workers == 0 {
            return Err("workers = 0: a cluster needs at least one worker".into());
        }
        few_enough("workers", self.workers)?;
        self.check_compute()?;
        self.check_network()?;
        self.check_faults()
    }

    fn check_compute(&self) -> Result<(), String> {
        let pace = &self.compute;
        positive("compute.seconds_per_sample", pace.seconds_per_sample)?;
        not_negative("compute.seconds_per_gradient", pace.seconds_per_gradient)?;
        not_negative("compute.seconds_per_param", pace.seconds_per_param)?;
        not_negative("compute.seconds_per_handover", pace.seconds_per_handover)?;
        not_negative("compute.jitter", pace.jitter)?;
        interval("compute.jitter_every", pace.jitter_every)?;
        if pace.relative.is_empty() {
            return Err("compute.relative is empty: give at least one number, e.g. [1.0]".into());
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
            chance("compute.disturbance.chance", d.chance)?;
            positive("compute.disturbance.factor", d.factor.0)?;
            positive("compute.disturbance.factor", d.factor.1)?;
            if d.factor.1 < d.factor.0 || d.lasts.1 < d.lasts.0 || d.lasts.0 == 0 {
                return Err("compute.disturbance: give the least first, then the most".into());
            }
        }
        if let Some(straggler) = &pace.straggler {
            interval("compute.straggler.every", straggler.every)?;
            positive("compute.straggler.factor", straggler.factor)?;
        }
        Ok(())
    }

    fn check_network(&self) -> Result<(), String> {
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
            return Err(format!(
                "network.racks: worker {} stands in two places: give it one",
                pair[0]
            ));
        }
        for link in &network.links {
            positive("network.link.bytes_per_second", link.bytes_per_second)?;
            not_negative("network.link.latency", link.latency)?;
        }
        if network.sums == RingModel::ClosedForm && !network.racks.is_empty() {
            return Err(
                "network.sums = \"closed_form\" knows no shared links: use \"messages\" with racks"
                    .into(),
            );
        }
        not_negative("coordinator.detection", self.coordinator.detection)?;
        positive("coordinator.patience", self.coordinator.patience)?;
        self.coordinator
            .away
            .iter()
            .try_for_each(|away| during("coordinator.away", away.from, away.to))
    }

    fn check_faults(&self) -> Result<(), String> {
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
                return Err("size: at and at_epoch both say when: give one of them".into());
            }
            few_enough("size.workers", size.workers)?;
            if size.workers == 0 {
                return Err("size.workers = 0: at least one worker must stay".into());
            }
        }
        self.cuts.iter().try_for_each(|cut| during("cut", cut.from, cut.to))?;
        if let Some(churn) = &self.churn {
            interval("churn.lifetime_mean", churn.lifetime_mean)?;
            not_negative("churn.back_after_mean", churn.back_after_mean)?;
            chance("churn.leave_chance", churn.leave_chance)?;
            if churn.members_min == 0 {
                return Err("churn.members_min = 0: at least one worker must stay".into());
            }
        }
        Ok(())
    }
}

/// Nothing in a cluster is shorter, slower or larger than this.
const LEAST: f64 = 1e-9;
const MOST: f64 = 1e15;
/// More workers than anybody has simulated.
const WORKERS_MAX: u32 = 100_000;

fn positive(field: &str, value: f64) -> Result<(), String> {
    if (LEAST..=MOST).contains(&value) {
        return Ok(());
    }
    let range =
        if value > 0.0 { format!(" from {LEAST:e} to {MOST:e}") } else { " above zero".into() };
    Err(format!("{field} = {value}: give a number{range}"))
}

/// Intervals and lifetimes: shorter ones than a microsecond only cost time.
fn interval(field: &str, value: f64) -> Result<(), String> {
    if (1e-6..=MOST).contains(&value) {
        return Ok(());
    }
    Err(format!("{field} = {value}: give at least a microsecond, 1e-6"))
}

fn few_enough(field: &str, workers: u32) -> Result<(), String> {
    if workers <= WORKERS_MAX {
        return Ok(());
    }
    Err(format!("{field} = {workers}: give at most {WORKERS_MAX}"))
}

fn not_negative(field: &str, value: f64) -> Result<(), String> {
    if value.is_finite() && (0.0..1e9).contains(&value) {
        return Ok(());
    }
    Err(format!("{field} = {value}: give a number from 0 to below 1e9"))
}

fn chance(field: &str, value: f64) -> Result<(), String> {
    if (0.0..=1.0).contains(&value) {
        return Ok(());
    }
    Err(format!("{field} = {value}: give a number from 0 to 1"))
}

fn during(field: &str, from: f64, to: f64) -> Result<(), String> {
    not_negative(&format!("{field}.from"), from)?;
    not_negative(&format!("{field}.to"), to)?;
    if from < to {
        Ok(())
    } else {
        Err(format!("{field}: from = {from} must lie before to = {to}"))
    }
}

pub(crate) fn seconds(value: f64) -> Duration {
    // Thirty years: longer than any run, and short enough to be added up.
    Duration::from_secs_f64(value.clamp(0.0, 1e9))
}
