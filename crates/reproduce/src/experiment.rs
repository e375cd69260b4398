//! The format of experiment files: runs, sizes, claims and figures.

use std::collections::BTreeMap;

use paceline_job::suggest::unknown;
use serde::Deserialize;
use toml::Table;

use paceline_job::description::TomlError;

use crate::error::{DefinitionError, ExperimentError};

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Experiment {
    pub name: String,
    pub title: String,
    /// Authors, year and arXiv number.
    pub paper: String,
    /// The setup in a few sentences, and the choices that the paper leaves open.
    pub about: Vec<String>,
    /// The job fields that all runs have in common, as in a job file.
    #[serde(default)]
    pub job: Table,
    /// The scenario fields that all clusters have in common, as in a scenario file.
    #[serde(default)]
    pub scenario: Table,
    #[serde(rename = "size")]
    pub sizes: BTreeMap<String, Size>,
    /// The job fields of each training algorithm.
    #[serde(rename = "recipe")]
    pub recipes: BTreeMap<String, Table>,
    /// The scenario fields of each cluster. `exchange` sets the bandwidth indirectly: the duration of a dense
    /// exchange as a multiple of the slowest worker's gradient (links of single workers are then relative to it).
    #[serde(rename = "cluster")]
    pub clusters: BTreeMap<String, Table>,
    pub runs: Vec<Group>,
    #[serde(rename = "claim")]
    pub claims: Vec<Claim>,
    #[serde(rename = "figure", default)]
    pub figures: Vec<Figure>,
}

/// A size of the experiment, for example quick, standard or long.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Size {
    pub seeds: Vec<u64>,
    #[serde(default)]
    pub job: Table,
    #[serde(default)]
    pub scenario: Table,
    /// Fields of clusters that differ in this size.
    #[serde(rename = "cluster", default)]
    pub clusters: BTreeMap<String, Table>,
    /// Recipes and clusters that this size omits.
    #[serde(default)]
    pub without: Vec<String>,
    /// Candidates for the best learning rate, replacing those of the runs.
    #[serde(default)]
    pub rates: Vec<f64>,
}

/// A group of runs: every recipe on every cluster.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Group {
    pub recipes: Vec<String>,
    pub clusters: Vec<String>,
    /// Learning rates. Without `best`, each rate is a separate run called `recipe/rate@cluster`.
    #[serde(default)]
    pub rates: Vec<f64>,
    /// Run only the best rate with all seeds. It is chosen with a separate seed.
    #[serde(default)]
    pub best: Option<Best>,
    /// The cluster on which the best rate is chosen for all clusters; by default each cluster has its own.
    #[serde(default)]
    pub tuned_on: Option<String>,
    /// End a run when it reaches its target.
    #[serde(default)]
    pub until_target: bool,
    /// The sizes that have these runs; empty means all.
    #[serde(default)]
    pub sizes: Vec<String>,
}

/// The criterion for the best learning rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Best {
    /// Shortest time to the target; if no run reaches it, lowest loss.
    Time,
    Accuracy,
}

/// One of the paper's claims, and the rule by which it is decided.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Claim {
    pub name: String,
    /// The paper's value, as text.
    pub paper: String,
    /// What its verdict says.
    #[serde(default)]
    pub evidence: Evidence,
    /// By size: why the stored runs no longer decide the claim, and have to be run again.
    #[serde(default)]
    pub again: BTreeMap<String, String>,
    /// Our value for one seed, as an expression; `$` is replaced by each element of `each`.
    pub ours: String,
    #[serde(default)]
    pub each: Vec<String>,
    /// Whether a single value `x` counts towards `part`, the fraction of values that count.
    #[serde(default)]
    pub item: Option<String>,
    /// The rule, an expression over `mean`, `low`, `high`, `spread` and `error` of our values over the seeds, and `part`.
    pub holds: String,
    #[serde(default)]
    pub in_part: Option<String>,
    #[serde(default)]
    pub show: Show,
    /// The sizes that have this claim; empty means all.
    #[serde(default)]
    pub sizes: Vec<String>,
}

/// What the verdict on a claim says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Evidence {
    /// It could have come out otherwise.
    #[default]
    Empirical,
    /// The set-up was computed from the paper's figures, so that agreement with them is no evidence.
    Calibrated,
    /// It follows from arithmetic or from the clock, and would fail only if the simulator were wrong.
    Check,
}

impl Evidence {
    pub const ALL: [Evidence; 3] = [Evidence::Empirical, Evidence::Calibrated, Evidence::Check];

    /// The heading of its table.
    pub fn heading(self) -> &'static str {
        match self {
            Evidence::Empirical => "Empirical claims",
            Evidence::Calibrated => "Calibrated: the set-up was computed from the paper's figures",
            Evidence::Check => {
                "Checks of the simulator: they follow from arithmetic, or cannot tell methods apart"
            }
        }
    }
}

/// The number format of a claim's value.
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
    /// Curves: `seconds` or `epochs`. Points: the label of the axis.
    #[serde(default)]
    pub x: String,
    /// Curves: loss, accuracy, test_loss, rate, members, or a strategy metric. Bars and points: an expression
    /// in which `$` is replaced by the name of the run.
    pub y: String,
    #[serde(default)]
    pub y_label: String,
    /// Curves: the runs.
    #[serde(default)]
    pub runs: Vec<String>,
    /// Bars and points: the runs `series@group` of every series and every group.
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
    /// Like bars, but groups are numbers on the x axis and each series is a line.
    Points,
}

impl Experiment {
    /// Parses an experiment and checks its structure, but not yet the expressions in its claims and figures;
    /// `from` is its name or path, for error messages.
    pub(crate) fn from_toml(from: &str, text: &str) -> Result<Experiment, ExperimentError> {
        let experiment: Experiment =
            toml::from_str(text).map_err(|error| ExperimentError::Syntax {
                experiment: from.to_owned(),
                message: TomlError::new(text, &error).to_string(),
            })?;
        let invalid = |source| ExperimentError::Invalid { experiment: from.to_owned(), source };
        experiment.check().map_err(invalid)?;
        Ok(experiment)
    }

    pub fn size(&self, name: &str) -> Result<&Size, DefinitionError> {
        let known = || self.sizes.keys().map(String::as_str);
        let names = known().collect::<Vec<_>>().join(", ");
        let otherwise = format!("{} has: {names}", self.name);
        self.sizes.get(name).ok_or_else(|| unknown_name("size", name, known(), &otherwise))
    }

    fn check(&self) -> Result<(), DefinitionError> {
        for group in &self.runs {
            for recipe in &group.recipes {
                let known = self.recipes.keys().map(String::as_str);
                self.recipes.get(recipe).ok_or_else(|| {
                    unknown_name("recipe", recipe, known, "add a table [recipe.\"...\"]")
                })?;
            }
            for cluster in group.clusters.iter().chain(&group.tuned_on) {
                let known = self.clusters.keys().map(String::as_str);
                self.clusters.get(cluster).ok_or_else(|| {
                    unknown_name("cluster", cluster, known, "add a table [cluster.\"...\"]")
                })?;
            }
            if group.best.is_some() && group.rates.is_empty() {
                return Err(DefinitionError::NoRates);
            }
        }
        self.check_sizes()
    }

    fn check_sizes(&self) -> Result<(), DefinitionError> {
        for (name, size) in &self.sizes {
            if size.seeds.is_empty() {
                return Err(DefinitionError::NoSeeds { size: name.clone() });
            }
            if let Some(seed) = repeated(&size.seeds) {
                return Err(DefinitionError::RepeatedSeed { size: name.clone(), seed });
            }
            let known = || self.recipes.keys().chain(self.clusters.keys()).map(String::as_str);
            for named in size.without.iter().chain(size.clusters.keys()) {
                if !known().any(|known| known == named) {
                    let otherwise = format!("size.{name} names recipes and clusters of this file");
                    return Err(unknown_name("recipe or cluster", named, known(), &otherwise));
                }
            }
        }
        let sizes = self.runs.iter().flat_map(|group| &group.sizes);
        let sizes = sizes.chain(self.claims.iter().flat_map(|claim| &claim.sizes));
        for size in sizes.chain(self.figures.iter().flat_map(|figure| &figure.sizes)) {
            self.size(size)?;
        }
        Ok(())
    }

    /// The names of all runs of all sizes.
    pub(crate) fn run_names(&self) -> impl Iterator<Item = String> {
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

fn unknown_name<'a>(
    what: &'static str,
    name: &str,
    known: impl Iterator<Item = &'a str>,
    otherwise: &str,
) -> DefinitionError {
    unknown(what, name, known, otherwise).into()
}

/// The first seed that is listed more than once.
pub fn repeated(seeds: &[u64]) -> Option<u64> {
    let is_repeated = |(i, seed): &(usize, &u64)| seeds[..*i].contains(seed);
    seeds.iter().enumerate().find(is_repeated).map(|(_, seed)| *seed)
}

/// Whether a list of sizes contains this one; an empty list means all sizes.
pub(crate) fn is_in_size(sizes: &[String], size: &str) -> bool {
    sizes.is_empty() || sizes.iter().any(|one| one == size)
}
