//! The axes of a training algorithm, and which combinations make sense.

use paceline_learn::Rescale;
use paceline_runtime::AnyStrategy;
use paceline_runtime::codec::Codec;
use paceline_strategies::parts::{Batches, Outer, OuterStep, Period, Shares};
use paceline_strategies::{
    AllReduce, Delayed, Direction, ElasticAverage, Gossip, ParameterServer, PeriodicAverage,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize};

/// Who waits for whom, and what is exchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StrategyKind {
    AllReduce,
    Delayed,
    PeriodicAverage,
    GossipPull,
    GossipPush,
    ElasticAverage,
    ParameterServer,
}

impl StrategyKind {
    pub const ALL: [StrategyKind; 7] = [
        StrategyKind::AllReduce,
        StrategyKind::Delayed,
        StrategyKind::PeriodicAverage,
        StrategyKind::GossipPull,
        StrategyKind::GossipPush,
        StrategyKind::ElasticAverage,
        StrategyKind::ParameterServer,
    ];

    pub fn name(self) -> &'static str {
        match self {
            StrategyKind::AllReduce => "all_reduce",
            StrategyKind::Delayed => "delayed",
            StrategyKind::PeriodicAverage => "periodic_average",
            StrategyKind::GossipPull => "gossip_pull",
            StrategyKind::GossipPush => "gossip_push",
            StrategyKind::ElasticAverage => "elastic_average",
            StrategyKind::ParameterServer => "parameter_server",
        }
    }

    fn is_asynchronous(self) -> bool {
        !matches!(
            self,
            StrategyKind::AllReduce | StrategyKind::Delayed | StrategyKind::PeriodicAverage
        )
    }
}

/// One choice on every axis: a training algorithm.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Choices {
    pub strategy: StrategyKind,
    #[serde(default = "even", deserialize_with = "kind")]
    pub shares: Shares,
    /// Local steps between exchanges; only for strategies that have such.
    #[serde(default = "every_step", deserialize_with = "kind")]
    pub period: Period,
    #[serde(default = "no_rescale")]
    pub rescale: Rescale,
    #[serde(default, deserialize_with = "kind")]
    pub codec: Codec,
    #[serde(default, deserialize_with = "kind")]
    pub outer: Outer,
    /// The pull of elastic averaging.
    #[serde(default = "elasticity")]
    pub elasticity: f32,
    /// How many steps a worker of the parameter server may lead the slowest by.
    #[serde(default)]
    pub lead_max: Option<u64>,
}

/// `shares = "even"` is short for `shares = { kind = "even" }`.
pub(crate) fn kind<'de, D: Deserializer<'de>, T: DeserializeOwned>(from: D) -> Result<T, D::Error> {
    let whole = match serde_json::Value::deserialize(from)? {
        serde_json::Value::String(kind) => serde_json::json!({ "kind": kind }),
        table => table,
    };
    serde_json::from_value(whole).map_err(serde::de::Error::custom)
}

fn even() -> Shares {
    Shares::Even
}

fn every_step() -> Period {
    Period::Constant { steps: 1 }
}

fn no_rescale() -> Rescale {
    Rescale::None
}

fn elasticity() -> f32 {
    0.8
}

impl Choices {
    pub fn of(strategy: StrategyKind) -> Choices {
        Choices {
            strategy,
            shares: even(),
            period: every_step(),
            rescale: no_rescale(),
            codec: Codec::Dense,
            outer: Outer::None,
            elasticity: elasticity(),
            lead_max: None,
        }
    }

    /// Whether the axes fit together; if not, one sentence says what to change.
    pub fn check(&self) -> Result<(), String> {
        self.codec.check().map_err(|error| error.to_string())?;
        self.check_numbers()?;
        self.check_shares()?;
        self.check_period()?;
        self.check_rescale()?;
        self.check_codec()
    }

    /// Whether what is learned depends on how long things take.
    pub fn reads_clock(&self) -> bool {
        self.strategy.is_asynchronous() || self.shares != Shares::Even
    }

    fn check_numbers(&self) -> Result<(), String> {
        if !(self.elasticity > 0.0 && self.elasticity <= 1.0) {
            return Err(format!(
                "elasticity = {}: give a number above 0, at most 1",
                self.elasticity
            ));
        }
        if self.elasticity != elasticity() && self.strategy != StrategyKind::ElasticAverage {
            return Err(format!(
                "elasticity is the pull of elastic_average: leave it away with {}",
                self.strategy.name()
            ));
        }
        if let Shares::BySpeed { smoothing, .. } = self.shares
            && !(smoothing > 0.0 && smoothing <= 1.0)
        {
            return Err(format!(
                "shares.smoothing = {smoothing}: give the weight of the newest measurement, above 0 and at most 1"
            ));
        }
        let (steps, most) = match &self.period {
            Period::Constant { steps } | Period::PostLocal { steps } => (*steps, u64::MAX),
            Period::Adaptive(adaptive) => (adaptive.steps_first, adaptive.steps_max),
            Period::Decreasing { first } => (*first, u64::MAX),
            Period::Qsr { steps_min, growth, steps_max } => {
                if !(growth.is_finite() && *growth > 0.0) {
                    return Err(format!("period.growth = {growth}: give a number above zero"));
                }
                (*steps_min, *steps_max)
            }
        };
        if steps == 0 {
            return Err("a period of 0 steps: give at least 1".into());
        }
        if steps > most {
            return Err(format!(
                "period.steps_max = {most} is less than the {steps} steps it begins with: give at least as many"
            ));
        }
        if let Outer::SlowMo { rate, momentum } | Outer::Diloco { rate, momentum } = &self.outer
            && !(rate.is_finite() && *rate > 0.0 && (0.0..1.0).contains(momentum))
        {
            return Err(format!(
                "outer: rate = {rate}, momentum = {momentum}: give a rate above 0 and a momentum from 0 to below 1"
            ));
        }
        Ok(())
    }

    fn check_shares(&self) -> Result<(), String> {
        match (self.strategy, self.shares) {
            (_, Shares::Even) | (StrategyKind::Delayed, _) => Ok(()),
            (StrategyKind::AllReduce | StrategyKind::PeriodicAverage, Shares::BySpeed { .. }) => {
                Ok(())
            }
            (StrategyKind::AllReduce | StrategyKind::PeriodicAverage, Shares::Open) => {
                Err(format!(
                    "shares = open with {}: open batches grow while a sum is under way, so choose strategy = delayed",
                    self.strategy.name()
                ))
            }
            (kind, _) => Err(format!(
                "{} lets every worker go at its own speed already: choose shares = even",
                kind.name()
            )),
        }
    }

    fn check_period(&self) -> Result<(), String> {
        let is_one = self.period == every_step();
        match self.strategy {
            StrategyKind::PeriodicAverage => {}
            StrategyKind::GossipPull | StrategyKind::GossipPush | StrategyKind::ElasticAverage => {
                let is_constant = matches!(self.period, Period::Constant { .. });
                is_constant.then_some(()).ok_or_else(|| {
                    format!(
                        "{} knows only a constant period: members that never meet cannot agree on another",
                        self.strategy.name()
                    )
                })?;
            }
            kind if !is_one => {
                return Err(format!(
                    "{} exchanges after every step: leave period away, or choose strategy = periodic_average",
                    kind.name()
                ));
            }
            _ => {}
        }
        if self.outer != Outer::None && self.strategy != StrategyKind::PeriodicAverage {
            return Err(format!(
                "an outer step follows an average of replicas: with {} choose outer = none, or strategy = periodic_average",
                self.strategy.name()
            ));
        }
        if self.lead_max.is_some() && self.strategy != StrategyKind::ParameterServer {
            return Err(format!(
                "lead_max bounds how far a worker of parameter_server may lead: leave it away with {}",
                self.strategy.name()
            ));
        }
        Ok(())
    }

    fn check_rescale(&self) -> Result<(), String> {
        let name = self.strategy.name();
        match self.rescale {
            Rescale::None => Ok(()),
            _ if self.strategy == StrategyKind::ParameterServer => Err(
                "an update of parameter_server always stands for one worker's batch: choose rescale = none"
                    .into(),
            ),
            Rescale::FixedBatch if self.strategy.is_asynchronous() => Err(format!(
                "rescale = fixed_batch splits one total batch among members who exchange together: with {name} choose none, linear or smooth"
            )),
            Rescale::FixedBatch | Rescale::Smooth | Rescale::SmoothLiteral
                if self.shares == Shares::Open =>
            {
                Err("open batches have no nominal size to follow: choose rescale = none or linear"
                    .into())
            }
            Rescale::Adascale if self.strategy != StrategyKind::AllReduce || self.shares != Shares::Even => {
                Err("adascale compares gradients of equal batches: choose strategy = all_reduce and shares = even"
                    .into())
            }
            Rescale::Adascale if self.codec.is_lossy() => {
                Err("adascale reads the noise of exact gradients: choose codec = dense".into())
            }
            _ => Ok(()),
        }
    }

    fn check_codec(&self) -> Result<(), String> {
        match self.strategy {
            StrategyKind::GossipPull | StrategyKind::GossipPush | StrategyKind::ElasticAverage
                if self.codec.is_lossy() =>
            {
                Err(format!(
                    "{} sends whole replicas to single peers, who have no common point to encode a difference from: choose codec = dense",
                    self.strategy.name()
                ))
            }
            _ => Ok(()),
        }
    }

    /// The strategy itself. `batch` is one worker's, `workers` those of the first view.
    pub fn build(&self, batch: u64, workers: usize) -> Box<dyn AnyStrategy> {
        let total = (self.rescale == Rescale::FixedBatch).then_some(batch * workers as u64);
        // An open batch has a floor of a quarter, and grows by quarters until the sum has ended.
        let quarter = (batch / 4).max(1);
        let base = if self.shares == Shares::Open { quarter } else { batch };
        let batches = Batches::new(base, total, self.shares);
        let steps = if let Period::Constant { steps } = self.period { steps } else { 1 };
        let gossip = |direction| Box::new(Gossip { batch, period: steps, direction });
        match self.strategy {
            StrategyKind::AllReduce => Box::new(AllReduce { batches }),
            // Until it is known what open batches come to, they count as whole ones.
            StrategyKind::Delayed => Box::new(Delayed {
                batches,
                batch_growth: quarter,
                batch_usual: (batch * workers as u64) as f64,
            }),
            StrategyKind::PeriodicAverage => Box::new(PeriodicAverage {
                batches,
                period: self.period.clone(),
                outer: OuterStep::new(self.outer.clone()),
            }),
            StrategyKind::GossipPull => gossip(Direction::Pull),
            StrategyKind::GossipPush => gossip(Direction::Push),
            StrategyKind::ElasticAverage => {
                Box::new(ElasticAverage { batch, period: steps, elasticity: self.elasticity })
            }
            StrategyKind::ParameterServer => {
                Box::new(ParameterServer { batch, lead_max: self.lead_max })
            }
        }
    }
}
