//! The axes of a training algorithm, and which combinations of them are valid.

use std::sync::Arc;

use paceline_learn::Rescale;
use paceline_runtime::AnyStrategy;
use paceline_runtime::codec::Codec;
use paceline_strategies::parts::{Batches, Outer, OuterStep, Period, Shares};
use paceline_strategies::{
    AllReduce, Delayed, Direction, ElasticAverage, Gossip, ParameterServer, PeriodicAverage,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize};

use crate::error::ChoicesError;

/// Which workers wait for which, and what they exchange.
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
    /// Local steps between exchanges; only for strategies that take more than one.
    #[serde(default = "every_step", deserialize_with = "kind")]
    pub period: Period,
    #[serde(default = "no_rescale")]
    pub rescale: Rescale,
    #[serde(default, deserialize_with = "kind")]
    pub codec: Codec,
    #[serde(default, deserialize_with = "kind")]
    pub outer: Outer,
    /// How strongly elastic averaging pulls replicas to the center.
    #[serde(default = "elasticity")]
    pub elasticity: f32,
    /// Open batches: the least that a worker computes for an exchange, and by how much a batch grows while the exchange lasts; as
    /// parts of the batch.
    #[serde(default = "quarter", skip_serializing_if = "is_quarter")]
    pub batch_floor: f64,
    #[serde(default = "quarter", skip_serializing_if = "is_quarter")]
    pub batch_growth: f64,
    /// The most steps by which a worker of the parameter server may be ahead of the slowest.
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

fn quarter() -> f64 {
    0.25
}

fn is_quarter(part: &f64) -> bool {
    *part == quarter()
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
            batch_floor: quarter(),
            batch_growth: quarter(),
            lead_max: None,
        }
    }

    /// Whether the axes fit together; an error says what to change.
    pub fn check(&self) -> Result<(), ChoicesError> {
        self.codec.check()?;
        self.check_numbers()?;
        self.check_shares()?;
        self.check_period()?;
        self.check_rescale()?;
        self.check_codec()
    }

    /// Whether the trained parameters depend on how long things take.
    pub fn reads_clock(&self) -> bool {
        self.strategy.is_asynchronous() || self.shares != Shares::Even
    }

    fn check_numbers(&self) -> Result<(), ChoicesError> {
        if !(self.elasticity > 0.0 && self.elasticity <= 1.0) {
            return Err(ChoicesError::Elasticity(self.elasticity));
        }
        if self.elasticity != elasticity() && self.strategy != StrategyKind::ElasticAverage {
            return Err(ChoicesError::NoElasticity { with: self.strategy.name() });
        }
        for (field, part) in
            [("batch_floor", self.batch_floor), ("batch_growth", self.batch_growth)]
        {
            if !(part > 0.0 && part <= 1.0) {
                return Err(ChoicesError::OpenPart { field, part });
            }
            if part != quarter() && self.shares != Shares::Open {
                return Err(ChoicesError::NoOpenPart { field });
            }
        }
        if let Shares::BySpeed { smoothing, .. } = self.shares
            && !(smoothing > 0.0 && smoothing <= 1.0)
        {
            return Err(ChoicesError::Smoothing(smoothing));
        }
        let (first, most) = match &self.period {
            Period::Constant { steps } | Period::PostLocal { steps } => (*steps, u64::MAX),
            Period::Adaptive(adaptive) => (adaptive.steps_first, adaptive.steps_max),
            Period::Decreasing { first } => (*first, u64::MAX),
            Period::Qsr { steps_min, growth, steps_max } => {
                if !(growth.is_finite() && *growth > 0.0) {
                    return Err(ChoicesError::PeriodGrowth(*growth));
                }
                (*steps_min, *steps_max)
            }
        };
        if first == 0 {
            return Err(ChoicesError::PeriodZero);
        }
        if first > most {
            return Err(ChoicesError::PeriodShrinks { first, most });
        }
        if let Outer::SlowMo { rate, momentum } | Outer::Diloco { rate, momentum } = self.outer
            && !(rate.is_finite() && rate > 0.0 && (0.0..1.0).contains(&momentum))
        {
            return Err(ChoicesError::Outer { rate, momentum });
        }
        Ok(())
    }

    fn check_shares(&self) -> Result<(), ChoicesError> {
        let with = self.strategy.name();
        match (self.strategy, self.shares) {
            (_, Shares::Even) | (StrategyKind::Delayed, _) => Ok(()),
            (StrategyKind::AllReduce | StrategyKind::PeriodicAverage, Shares::BySpeed { .. }) => {
                Ok(())
            }
            (StrategyKind::AllReduce | StrategyKind::PeriodicAverage, Shares::Open) => {
                Err(ChoicesError::OpenShares { with })
            }
            _ => Err(ChoicesError::SharesWithoutBarrier { with }),
        }
    }

    fn check_period(&self) -> Result<(), ChoicesError> {
        let with = self.strategy.name();
        let is_constant = matches!(self.period, Period::Constant { .. });
        match self.strategy {
            StrategyKind::PeriodicAverage => {}
            StrategyKind::GossipPull | StrategyKind::GossipPush | StrategyKind::ElasticAverage
                if is_constant => {}
            StrategyKind::GossipPull | StrategyKind::GossipPush | StrategyKind::ElasticAverage => {
                return Err(ChoicesError::PeriodNotConstant { with });
            }
            _ if self.period != every_step() => return Err(ChoicesError::NoPeriod { with }),
            _ => {}
        }
        if self.outer != Outer::None && self.strategy != StrategyKind::PeriodicAverage {
            return Err(ChoicesError::NoOuterStep { with });
        }
        if self.lead_max.is_some() && self.strategy != StrategyKind::ParameterServer {
            return Err(ChoicesError::NoLead { with });
        }
        Ok(())
    }

    fn check_rescale(&self) -> Result<(), ChoicesError> {
        let with = self.strategy.name();
        let is_exact_all_reduce =
            self.strategy == StrategyKind::AllReduce && self.shares == Shares::Even;
        match self.rescale {
            Rescale::None => Ok(()),
            _ if self.strategy == StrategyKind::ParameterServer => Err(ChoicesError::ServerRescale),
            Rescale::FixedBatch if self.strategy.is_asynchronous() => {
                Err(ChoicesError::FixedBatch { with })
            }
            Rescale::FixedBatch | Rescale::Smooth | Rescale::SmoothLiteral
                if self.shares == Shares::Open =>
            {
                Err(ChoicesError::OpenRescale)
            }
            Rescale::Adascale if !is_exact_all_reduce => Err(ChoicesError::AdascaleBatches),
            Rescale::Adascale if self.codec.is_lossy() => Err(ChoicesError::AdascaleCodec),
            _ => Ok(()),
        }
    }

    fn check_codec(&self) -> Result<(), ChoicesError> {
        match self.strategy {
            StrategyKind::GossipPull | StrategyKind::GossipPush | StrategyKind::ElasticAverage
                if self.codec.is_lossy() =>
            {
                Err(ChoicesError::LossyReplicas { with: self.strategy.name() })
            }
            _ => Ok(()),
        }
    }

    /// The strategy for a batch per worker and the number of workers in the first view.
    pub fn build(&self, batch: u64, workers: usize) -> Box<dyn AnyStrategy> {
        let total = (self.rescale == Rescale::FixedBatch).then_some(batch * workers as u64);
        // An open batch starts with a part of the batch and grows by parts until the sum has ended.
        let part = |part: f64| ((batch as f64 * part) as u64).max(1);
        let base = if self.shares == Shares::Open { part(self.batch_floor) } else { batch };
        let batches = Arc::new(Batches::new(base, total, self.shares));
        let steps = if let Period::Constant { steps } = self.period { steps } else { 1 };
        let gossip = |direction| Box::new(Gossip { batch, period: steps, direction });
        match self.strategy {
            StrategyKind::AllReduce => Box::new(AllReduce { batches }),
            // Until the sizes of open batches are known, they count as whole batches.
            StrategyKind::Delayed => Box::new(Delayed {
                batches,
                batch_growth: part(self.batch_growth),
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
