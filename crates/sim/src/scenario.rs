//! What a simulated cluster is like: the contents of a scenario file, as plain data.

mod checks;

use std::time::Duration;

use serde::{Deserialize, Serialize, Serializer};

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
    #[serde(default, rename = "dead_link", skip_serializing_if = "Vec::is_empty")]
    pub dead_links: Vec<DeadLink>,
    #[serde(default, rename = "pause", skip_serializing_if = "Vec::is_empty")]
    pub pauses: Vec<Pause>,
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
    /// The cost of an update, per parameter: of a replica, and of the center at its server, which makes one after another.
    pub seconds_per_param: f64,
    /// The cost of a lossy codec, per number of a vector and exchange: a member encodes its vector, decodes and adds the parts
    /// of its chunk, encodes that chunk again, and decodes the result.
    #[serde(skip_serializing_if = "is_default_encoding")]
    pub seconds_per_encoded: f64,
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

/// What `paceline calibrate` measures for QSGD with 8 bits on one core here (4.7e-9), rounded up for the second encoding of a chunk.
const SECONDS_PER_ENCODED: f64 = 5e-9;

fn is_default_encoding(seconds: &f64) -> bool {
    *seconds == SECONDS_PER_ENCODED
}

impl Default for Pace {
    fn default() -> Pace {
        Pace {
            seconds_per_sample: 1e-4,
            seconds_per_gradient: 1e-4,
            seconds_per_param: 1e-9,
            seconds_per_encoded: SECONDS_PER_ENCODED,
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

/// The links: each worker has its own uplink, which sends its messages one after another. Letters that reach a worker share its
/// downlink, which is as fast as its uplink.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Network {
    pub latency: f64,
    pub bytes_per_second: f64,
    #[serde(serialize_with = "write_sums")]
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
            sums: RingModel::Auto,
            racks: vec![],
            links: vec![],
        }
    }
}

/// How exchanges among all members (collectives) are simulated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RingModel {
    /// Each message of the ring is simulated; while all members are in step, one event stands for the messages of all. The
    /// journal is the same as with `Messages`.
    Auto,
    /// Each message of the ring is simulated as an event of its own.
    Messages,
    /// One event after the ring's total cost: fast, and exact if all links are equal and all members start at the same time.
    ClosedForm,
}

/// Results are named by what was written into their scenarios. `Auto` gives the same results as `Messages`, so it is
/// written as that.
// serde passes a reference.
#[expect(clippy::trivially_copy_pass_by_ref)]
fn write_sums<S: Serializer>(sums: &RingModel, to: S) -> Result<S::Ok, S::Error> {
    match sums {
        RingModel::Auto => RingModel::Messages.serialize(to),
        RingModel::Messages | RingModel::ClosedForm => sums.serialize(to),
    }
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
    #[serde(skip_serializing_if = "is_usual_gathering")]
    pub gathering: f64,
    /// With fewer members, training waits for more.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub members_min: Option<u32>,
    /// With this many members, more workers wait until there is room.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub members_max: Option<u32>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub away: Vec<During>,
    /// It is killed, and starts again from its log after a while.
    #[serde(rename = "kill", skip_serializing_if = "Vec::is_empty")]
    pub kills: Vec<Kill>,
    /// The latency of its connections to workers; that of the network if it is not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub latency: Option<f64>,
    /// The largest random addition to the latency, drawn for each message.
    #[serde(skip_serializing_if = "is_zero")]
    pub jitter: f64,
    /// The probability that a message breaks its connection: what is on its way is lost, and sent again over the next
    /// connection.
    #[serde(skip_serializing_if = "is_zero")]
    pub loss: f64,
    /// How long a worker waits before it connects again.
    #[serde(skip_serializing_if = "is_usual_reconnect")]
    pub reconnect: f64,
}

/// The coordinator's process ends at `at` and is started again.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Kill {
    pub at: f64,
    pub back_after: f64,
}

/// Two workers cannot reach each other, although both live and reach all others.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeadLink {
    pub between: (u32, u32),
    pub from: f64,
    pub to: f64,
}

/// A worker's process is stopped for a while (SIGSTOP): it neither computes, answers nor beats.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pause {
    pub worker: u32,
    pub from: f64,
    pub to: f64,
}

/// Which messages a cut holds up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Direction {
    #[default]
    Both,
    /// Only messages from the workers that are cut off.
    Out,
    /// Only messages to them.
    In,
}

fn is_both(direction: &Direction) -> bool {
    *direction == Direction::Both
}

fn is_zero(value: &f64) -> bool {
    *value == 0.0
}

const RECONNECT: f64 = 0.001;

fn is_usual_reconnect(seconds: &f64) -> bool {
    *seconds == RECONNECT
}

const GATHERING: f64 = 0.001;

/// Results are named by what was written into their scenarios, so what is usual is not written.
fn is_usual_gathering(seconds: &f64) -> bool {
    *seconds == GATHERING
}

impl Default for CoordinatorModel {
    fn default() -> CoordinatorModel {
        CoordinatorModel {
            detection: 0.01,
            patience: 0.5,
            gathering: GATHERING,
            members_min: None,
            members_max: None,
            away: vec![],
            kills: vec![],
            latency: None,
            jitter: 0.0,
            loss: 0.0,
            reconnect: RECONNECT,
        }
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
    #[serde(default)]
    pub at: f64,
    /// Instead of `at`: just before the simulation's n-th event, which tests use to crash a worker at every message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at_event: Option<u64>,
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
    #[serde(default, skip_serializing_if = "is_both")]
    pub direction: Direction,
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
            dead_links: vec![],
            pauses: vec![],
            churn: None,
        }
    }
}

impl Scenario {
    /// Whether a member can be lost, or be taken for lost.
    pub fn can_lose_members(&self) -> bool {
        let churn_crashes = self.churn.as_ref().is_some_and(|churn| churn.leave_chance < 1.0);
        churn_crashes
            || !self.crashes.is_empty()
            || self.cuts.iter().any(|cut| cut.coordinator)
            || !self.dead_links.is_empty()
            || !self.pauses.is_empty()
            || self.has_unsteady_coordinator()
    }

    /// How exchanges are simulated. Members of a ring can only be in step if nothing tells their links apart, and if no
    /// crash counts events.
    pub fn ring_model(&self) -> RingModel {
        let (network, at_event) = (&self.network, |crash: &Crash| crash.at_event.is_some());
        let is_uniform = network.racks.is_empty()
            && network.links.is_empty()
            && self.cuts.is_empty()
            && self.dead_links.is_empty()
            && self.pauses.is_empty()
            && !self.crashes.iter().any(at_event);
        match network.sums {
            RingModel::Auto if !is_uniform => RingModel::Messages,
            sums => sums,
        }
    }

    /// Whether words and orders can be lost, so that they must be numbered, and the coordinator must keep a log.
    pub fn has_unsteady_coordinator(&self) -> bool {
        !self.coordinator.kills.is_empty() || self.coordinator.loss > 0.0
    }
}

/// A duration of at most thirty years, so that adding several up cannot overflow.
pub(crate) fn seconds(value: f64) -> Duration {
    Duration::from_secs_f64(value.clamp(0.0, 1e9))
}
