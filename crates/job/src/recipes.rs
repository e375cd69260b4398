//! The table of recipes: training algorithms under their usual names.

use std::sync::{Arc, LazyLock};

use paceline_learn::{Optimizer, Rescale, Rule};
use paceline_runtime::AnyStrategy;
use paceline_runtime::codec::Codec;
use paceline_strategies::parts::{Every, Outer, Period, Shares};

use crate::choices::{Choices, StrategyKind};
use crate::error::JobError;
use crate::suggest::unknown;

/// One row: a name, a summary, the paper, and how its strategy is made.
#[derive(Clone)]
pub struct Recipe {
    pub name: String,
    pub summary: String,
    pub paper: String,
    pub make: Make,
    /// For the default model and batch; found by experiment, not taken from the paper.
    pub learning_rate: f32,
    pub optimizer: Optimizer,
}

/// How a recipe makes its strategy.
#[derive(Clone)]
pub enum Make {
    Choices(Choices),
    /// A custom strategy, made from the batch of one worker and the number of workers.
    Own(OwnStrategy),
}

pub type OwnStrategy = Arc<dyn Fn(u64, usize) -> Box<dyn AnyStrategy> + Send + Sync>;

impl Recipe {
    /// Whether members wait for a sum of their gradients in every round: what a round takes besides computing is then the
    /// exchange.
    pub fn sums_in_every_round(&self) -> bool {
        match &self.make {
            Make::Choices(choices) => choices.strategy == StrategyKind::AllReduce,
            Make::Own(_) => false,
        }
    }

    /// A recipe for a custom strategy.
    pub fn own<S: paceline_runtime::Strategy>(
        name: &str,
        summary: &str,
        learning_rate: f32,
        make: impl Fn(u64, usize) -> S + Send + Sync + 'static,
    ) -> Recipe {
        Recipe {
            name: name.to_owned(),
            summary: summary.to_owned(),
            paper: "your own".to_owned(),
            make: Make::Own(Arc::new(move |batch, workers| Box::new(make(batch, workers)))),
            learning_rate,
            optimizer: heavy_ball(0.9),
        }
    }

    pub fn choices(&self) -> Option<&Choices> {
        match &self.make {
            Make::Choices(choices) => Some(choices),
            Make::Own(_) => None,
        }
    }
}

const DYNAMIC: &str = "Lin et al. 2019, arXiv 1904.12043";
const ABS: &str = "Zhou et al. 2023, arXiv 2308.15164";
const DBS: &str = "Ye et al. 2020, arXiv 2007.11831";
const SCALE: &str = "Jin et al. 2016, arXiv 1611.04581";
const ADPSGD: &str = "Jiang and Agrawal 2020, arXiv 2007.06134";

/// Learning rate and momentum that reached the target fast on seeds 1 to 3 of `uniform`, `spot` and
/// `stragglers`. They are not tuned with equal care: all recipes were tried at rates from 0.02 to 0.2 with
/// momentum 0.9, and only those that apply gradients late (pipe, abs, async, ssp) with less momentum, which
/// they need. `ssgd` is slightly faster at 0.4. A fair comparison tunes every recipe on the same grid.
type Rates = (f32, f32);

/// All built-in recipes.
pub fn recipes() -> Vec<Recipe> {
    let by_speed = Shares::BySpeed { every: Every::Epoch, smoothing: 1.0 };
    let by_speed_now = Shares::BySpeed { every: Every::Round, smoothing: 0.3 };
    let of = Choices::of;
    let averaging = |period: Period| Choices { period, ..of(StrategyKind::PeriodicAverage) };
    let constant = |steps| Period::Constant { steps };
    let rows: Vec<(&str, &str, &str, Rates, Choices)> = vec![
        (
            "ssgd",
            "synchronous: all sum their gradients, all take the same step",
            SCALE,
            (0.2, 0.9),
            of(StrategyKind::AllReduce),
        ),
        (
            "qsgd",
            "synchronous with gradients rounded to 8 bits",
            "Alistarh et al. 2017, arXiv 1610.02132",
            (0.2, 0.9),
            Choices { codec: Codec::Qsgd { bits: 8, bucket: 512 }, ..of(StrategyKind::AllReduce) },
        ),
        (
            "dbs",
            "synchronous, batches follow measured speed each epoch",
            DBS,
            (0.2, 0.9),
            Choices { shares: by_speed, ..of(StrategyKind::AllReduce) },
        ),
        (
            "lb-bsp",
            "synchronous, batches follow measured speed each round",
            "Chen et al. 2020, SoCC",
            (0.2, 0.9),
            Choices { shares: by_speed_now, ..of(StrategyKind::AllReduce) },
        ),
        (
            "dynamic",
            "synchronous, the learning rate follows the members smoothly",
            DYNAMIC,
            (0.2, 0.9),
            Choices { rescale: Rescale::Smooth, ..of(StrategyKind::AllReduce) },
        ),
        (
            "pipe",
            "sums run while the next batch is computed, one step late",
            "Li et al. 2018, arXiv 1811.03619",
            (0.4, 0.5),
            of(StrategyKind::Delayed),
        ),
        (
            "abs",
            "as pipe, and batches grow until the sum has ended: no worker idles",
            ABS,
            (0.3, 0.5),
            Choices { shares: Shares::Open, ..of(StrategyKind::Delayed) },
        ),
        (
            "cpsgd",
            "replicas learn alone and are averaged every 8 steps",
            ADPSGD,
            (0.2, 0.9),
            averaging(constant(8)),
        ),
        (
            "adpsgd",
            "averaged with a period that keeps their variance in check",
            ADPSGD,
            (0.2, 0.9),
            averaging(Period::adaptive(4)),
        ),
        (
            "local-dbs",
            "averaged every 8 steps, batches follow measured speed",
            DBS,
            (0.2, 0.9),
            Choices { shares: by_speed, ..averaging(constant(8)) },
        ),
        (
            "diloco",
            "averaged every 16 steps, then an outer Nesterov step",
            "Douillard et al. 2023, arXiv 2311.08105",
            (0.1, 0.9),
            Choices {
                outer: Outer::Diloco { rate: 0.7, momentum: 0.9 },
                ..averaging(constant(16))
            },
        ),
        (
            "gossip-pull",
            "each averages with a random peer's published replica",
            SCALE,
            (0.2, 0.9),
            of(StrategyKind::GossipPull),
        ),
        (
            "gossip-push",
            "each sends its replica to a random peer",
            SCALE,
            (0.2, 0.9),
            of(StrategyKind::GossipPush),
        ),
        (
            "easgd",
            "replicas and a center attract each other, asynchronously",
            SCALE,
            (0.2, 0.9),
            of(StrategyKind::ElasticAverage),
        ),
        (
            "async",
            "gradients go to a parameter server, no worker waits",
            SCALE,
            (0.2, 0.0),
            of(StrategyKind::ParameterServer),
        ),
        (
            "ssp",
            "as async, but no worker leads the slowest by more than 3 steps",
            "Ho et al. 2013, NIPS",
            (0.2, 0.0),
            Choices { lead_max: Some(3), ..of(StrategyKind::ParameterServer) },
        ),
    ];
    rows.into_iter()
        .map(|(name, summary, paper, (learning_rate, momentum), choices)| Recipe {
            name: name.to_owned(),
            summary: summary.to_owned(),
            paper: paper.to_owned(),
            make: Make::Choices(choices),
            learning_rate,
            optimizer: heavy_ball(momentum),
        })
        .collect()
}

/// As [`recipes`], made once.
pub(crate) fn built_in() -> &'static [Recipe] {
    static RECIPES: LazyLock<Vec<Recipe>> = LazyLock::new(recipes);
    &RECIPES
}

fn heavy_ball(momentum: f32) -> Optimizer {
    let rule = Rule::Sgd { momentum, nesterov: false, weight_decay: 1e-4 };
    Optimizer { rule, clip_norm: None }
}

/// The recipe of that name; an error suggests the nearest one.
pub fn find<'a>(recipes: &'a [Recipe], name: &str) -> Result<&'a Recipe, JobError> {
    let known = || recipes.iter().map(|recipe| recipe.name.as_str());
    let advice = "`paceline strategies` lists them all";
    let found = recipes.iter().find(|recipe| recipe.name == name);
    found.ok_or_else(|| unknown("strategy", name, known(), advice).into())
}
