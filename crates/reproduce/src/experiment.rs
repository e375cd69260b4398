//! An experiment as its file says it: what is run, in which sizes, what is claimed, what is drawn.

use std::collections::BTreeMap;

use paceline_job::description::TomlError;
use paceline_job::suggest::unknown;
use serde::Deserialize;
use toml::Table;

use crate::claims::{self, Checker};
use crate::figures;

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Experiment {
    pub name: String,
    pub title: String,
    /// Authors, year and arXiv number.
    pub paper: String,
    /// The set-up in a few sentences, and where we had to choose.
    pub about: Vec<String>,
    /// A job, as job files say it: what all runs have in common.
    #[serde(default)]
    pub job: Table,
    /// A scenario, as scenario files say it: what all clusters have in common.
    #[serde(default)]
    pub scenario: Table,
    #[serde(rename = "size")]
    pub sizes: BTreeMap<String, Size>,
    /// What a training algorithm differs in, as in a job file.
    #[serde(rename = "recipe")]
    pub recipes: BTreeMap<String, Table>,
    /// What a cluster differs in, as in a scenario file; and `exchange`: how many times the slowest worker's
    /// gradient a dense exchange takes, in place of a bandwidth (links of single workers are then relative).
    #[serde(rename = "cluster")]
    pub clusters: BTreeMap<String, Table>,
    pub runs: Vec<Group>,
    #[serde(rename = "claim")]
    pub claims: Vec<Claim>,
    #[serde(rename = "figure", default)]
    pub figures: Vec<Figure>,
}

/// How much of it is run: quick, standard or long.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Size {
    pub seeds: Vec<u64>,
    #[serde(default)]
    pub job: Table,
    #[serde(default)]
    pub scenario: Table,
    /// What clusters are like in this size, where it differs.
    #[serde(rename = "cluster", default)]
    pub clusters: BTreeMap<String, Table>,
    /// Recipes and clusters that are left out.
    #[serde(default)]
    pub without: Vec<String>,
    /// What the best rates are chosen from, in place of the runs' own.
    #[serde(default)]
    pub rates: Vec<f64>,
}

/// Every recipe on every cluster.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Group {
    pub recipes: Vec<String>,
    pub clusters: Vec<String>,
    /// Learning rates. Each is a run of its own, called `recipe/rate@cluster`, unless the best is taken.
    #[serde(default)]
    pub rates: Vec<f64>,
    /// Only the best rate is run with all seeds: the one that does best with another seed.
    #[serde(default)]
    pub best: Option<Best>,
    /// Where the best rate is looked for, in place of each cluster.
    #[serde(default)]
    pub tuned_on: Option<String>,
    /// A run is over when its target is reached.
    #[serde(default)]
    pub until_target: bool,
    /// The sizes it belongs to; left out, all.
    #[serde(default)]
    pub sizes: Vec<String>,
}

/// What makes a learning rate the best.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Best {
    /// The target is reached first; if none reaches it, the lowest loss.
    Time,
    Accuracy,
}

/// One of the paper's claims, and the rule by which it is decided.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Claim {
    pub name: String,
    /// The paper's figure, in words.
    pub paper: String,
    /// An expression for one seed; `$` stands for each of `each`.
    pub ours: String,
    #[serde(default)]
    pub each: Vec<String>,
    /// When one of `each`, `x`, counts for `part`.
    #[serde(default)]
    pub item: Option<String>,
    /// Expressions over `mean`, `low`, `high` and `spread` of ours over the seeds, and `part`.
    pub holds: String,
    #[serde(default)]
    pub in_part: Option<String>,
    #[serde(default)]
    pub show: Show,
    /// The sizes it belongs to; left out, all.
    #[serde(default)]
    pub sizes: Vec<String>,
}

/// How a number is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Show {
    #[default]
    Number,
    /// 1.30x
    Times,
    /// 33.1 %
    Percent,
    /// Percentage points: +0.4
    Points,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Figure {
    pub title: String,
    #[serde(default)]
    pub caption: String,
    pub kind: Kind,
    /// Curves: over `seconds` or `epochs`. Points: what the groups are called.
    #[serde(default)]
    pub x: String,
    /// Curves: loss, accuracy, test_loss, members, or a strategy's own number. Else an expression where
    /// `$` stands for the run.
    pub y: String,
    #[serde(default)]
    pub y_label: String,
    /// Curves: which runs.
    #[serde(default)]
    pub runs: Vec<String>,
    /// Bars and points: each of `series` on each of `groups`; `$` stands for its name.
    #[serde(default)]
    pub series: Vec<String>,
    #[serde(default)]
    pub groups: Vec<String>,
    #[serde(default)]
    pub x_logarithmic: bool,
    #[serde(default)]
    pub y_logarithmic: bool,
    #[serde(default)]
    pub sizes: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    Curves,
    Bars,
    /// Groups are numbers, joined by lines.
    Points,
}

impl Experiment {
    /// Reads an experiment; the sentence names line and field.
    pub fn from_toml(from: &str, text: &str) -> Result<Experiment, String> {
        let experiment: Experiment = toml::from_str(text)
            .map_err(|error| format!("{from}, {}", TomlError::new(text, &error)))?;
        experiment.check().map_err(|sentence| format!("{from}: {sentence}"))?;
        Ok(experiment)
    }

    pub fn size(&self, name: &str) -> Result<&Size, String> {
        let known = || self.sizes.keys().map(String::as_str);
        let names = known().collect::<Vec<_>>().join(", ");
        let advice = format!("{} has: {names}", self.name);
        let size = self.sizes.get(name);
        size.ok_or_else(|| unknown("size", name, known(), &advice).to_string())
    }

    fn check(&self) -> Result<(), String> {
        for group in &self.runs {
            for recipe in &group.recipes {
                let known = self.recipes.keys().map(String::as_str);
                self.recipes.get(recipe).ok_or_else(|| {
                    unknown("recipe", recipe, known, "give it a [recipe.\"...\"]").to_string()
                })?;
            }
            for cluster in group.clusters.iter().chain(&group.tuned_on) {
                let known = self.clusters.keys().map(String::as_str);
                self.clusters.get(cluster).ok_or_else(|| {
                    unknown("cluster", cluster, known, "give it a [cluster.\"...\"]").to_string()
                })?;
            }
            if group.best.is_some() && group.rates.is_empty() {
                return Err("runs with `best` need `rates` to choose from".into());
            }
        }
        for (name, size) in &self.sizes {
            if size.seeds.is_empty() {
                return Err(format!("size.{name}: give at least one seed"));
            }
            if let Some(seed) = repeated(&size.seeds) {
                return Err(format!("size.{name}: the seed {seed} is there twice, give each once"));
            }
            let known = || self.recipes.keys().chain(self.clusters.keys()).map(String::as_str);
            for left_out in size.without.iter().chain(size.clusters.keys()) {
                if !known().any(|known| known == left_out) {
                    let otherwise = format!("size.{name} names recipes and clusters of this file");
                    return Err(
                        unknown("recipe or cluster", left_out, known(), &otherwise).to_string()
                    );
                }
            }
        }
        let sizes = self.runs.iter().flat_map(|group| &group.sizes);
        let sizes = sizes.chain(self.claims.iter().flat_map(|claim| &claim.sizes));
        for size in sizes.chain(self.figures.iter().flat_map(|figure| &figure.sizes)) {
            self.size(size)?;
        }
        let checker = Checker::new(self.run_names());
        self.claims.iter().try_for_each(|claim| claims::check(claim, &checker))?;
        self.figures.iter().try_for_each(|figure| figures::check(figure, &checker))
    }

    /// What runs can be called, whatever the size leaves out.
    fn run_names(&self) -> impl Iterator<Item = String> {
        self.runs.iter().flat_map(|group| {
            let grids = self.sizes.values().flat_map(|size| &size.rates);
            let grids = grids.filter(|_| group.best.is_some()).chain(&group.rates);
            let mut endings: Vec<String> = grids.map(|rate| format!("/{rate}")).collect();
            if group.best.is_some() || endings.is_empty() {
                endings.push(String::new());
            }
            let clusters = group.clusters.iter().chain(&group.tuned_on);
            let of = move |cluster: &String| -> Vec<String> {
                let of = |recipe| endings.iter().map(move |end| format!("{recipe}{end}@{cluster}"));
                group.recipes.iter().flat_map(of).collect()
            };
            clusters.flat_map(of)
        })
    }
}

/// A seed that is there more than once.
pub fn repeated(seeds: &[u64]) -> Option<u64> {
    let is_repeated = |(i, seed): &(usize, &u64)| seeds[..*i].contains(seed);
    seeds.iter().enumerate().find(is_repeated).map(|(_, seed)| *seed)
}

/// Whether something that names its sizes belongs to this one.
pub(crate) fn belongs(sizes: &[String], size: &str) -> bool {
    sizes.is_empty() || sizes.iter().any(|one| one == size)
}
