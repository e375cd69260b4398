//! The runs of an experiment in one size, each with its complete job and scenario.

use paceline_job::Job;
use paceline_runtime::journal;
use paceline_sim::Scenario;
use toml::{Table, Value};

use crate::error::DefinitionError;
use crate::experiment::{Best, Experiment, Group, Size, is_in_size};

/// One training on one cluster with one seed.
#[derive(Clone, Debug)]
pub struct Run {
    /// `recipe@cluster`, or `recipe/rate@cluster`.
    pub name: String,
    pub job: Job,
    pub scenario: Scenario,
    /// The duration of a dense exchange as a multiple of the slowest worker's gradient; sets the bandwidth.
    pub exchange: Option<f64>,
    pub until_target: bool,
}

/// The choice of a learning rate.
#[derive(Clone, Debug)]
pub struct Tuning {
    pub best: Best,
    /// One run per learning rate.
    pub candidates: Vec<Run>,
    /// The runs that use the best rate.
    pub then: Vec<Run>,
}

/// All runs of an experiment in one size.
#[derive(Clone, Debug, Default)]
pub struct Runs {
    pub plain: Vec<Run>,
    pub tunings: Vec<Tuning>,
}

/// Selects runs and seeds; an empty list means all runs, or the seeds of the experiment.
#[derive(Clone, Debug, Default)]
pub struct RunFilter {
    /// Complete names of runs, or parts of names without an `@`.
    pub only: Vec<String>,
    pub seeds: Vec<u64>,
}

/// Learning rates are chosen with this seed, which no claim uses.
pub const SEED_TUNING: u64 = 1_000;

impl RunFilter {
    fn includes(&self, name: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|only| matches_name(only, name))
    }

    /// Whether the filter gives the complete name of this run.
    fn names(&self, name: &str) -> bool {
        self.only.iter().any(|only| only == name)
    }

    /// The seeds to run in this size.
    pub fn seeds(&self, size: &Size) -> Vec<u64> {
        if self.seeds.is_empty() { size.seeds.clone() } else { self.seeds.clone() }
    }
}

/// A complete name matches only that run; a part of a name matches all runs that contain it.
fn matches_name(only: &str, name: &str) -> bool {
    if only.contains('@') && !only.starts_with('@') { only == name } else { name.contains(only) }
}

impl Runs {
    /// The number of runs, including candidates of tunings.
    pub fn count(&self) -> usize {
        let tunings = self.tunings.iter();
        let tuned: usize = tunings.map(|tuning| tuning.candidates.len() + tuning.then.len()).sum();
        self.plain.len() + tuned
    }

    /// The runs of an experiment in one size that pass the filter.
    pub fn of(
        experiment: &Experiment,
        size_name: &str,
        filter: &RunFilter,
    ) -> Result<Runs, DefinitionError> {
        let size = experiment.size(size_name)?;
        let mut runs = Runs::default();
        for group in experiment.runs.iter().filter(|group| is_in_size(&group.sizes, size_name)) {
            let is_included = |name: &&String| !size.without.contains(name);
            for recipe in group.recipes.iter().filter(is_included) {
                let clusters: Vec<&String> = group.clusters.iter().filter(is_included).collect();
                let builder = RunBuilder { experiment, size, group, recipe };
                builder.add(&clusters, filter, &mut runs)?;
            }
        }
        Ok(runs)
    }
}

/// Builds the runs of one recipe of one group.
struct RunBuilder<'a> {
    experiment: &'a Experiment,
    size: &'a Size,
    group: &'a Group,
    recipe: &'a str,
}

impl RunBuilder<'_> {
    fn add(
        &self,
        clusters: &[&String],
        filter: &RunFilter,
        runs: &mut Runs,
    ) -> Result<(), DefinitionError> {
        let recipe = self.recipe;
        let mut then = Vec::new();
        for cluster in clusters {
            let rates: Vec<Option<f64>> = match self.group.best {
                None if !self.group.rates.is_empty() => {
                    self.group.rates.iter().copied().map(Some).collect()
                }
                _ => vec![None],
            };
            for rate in rates {
                let name = match rate {
                    Some(rate) => format!("{recipe}/{rate}@{cluster}"),
                    None => format!("{recipe}@{cluster}"),
                };
                if !filter.includes(&name) {
                    continue;
                }
                for seed in filter.seeds(self.size) {
                    then.push(self.run(name.clone(), cluster, rate, seed)?);
                }
            }
        }
        let Some(best) = self.group.best else {
            runs.plain.extend(then);
            return Ok(());
        };
        self.add_tunings(clusters, (best, then), filter, runs)
    }

    fn add_tunings(
        &self,
        clusters: &[&String],
        (best, then): (Best, Vec<Run>),
        filter: &RunFilter,
        runs: &mut Runs,
    ) -> Result<(), DefinitionError> {
        let recipe = self.recipe;
        // Each cluster has its own best rate, unless `tuned_on` names one cluster for all.
        let groups: Vec<(String, Vec<Run>)> = match &self.group.tuned_on {
            Some(on) => vec![(on.clone(), then)],
            None => {
                let of = |cluster: &&String| {
                    let name = format!("{recipe}@{cluster}");
                    let of = then.iter().filter(|run| run.name == name).cloned().collect();
                    ((*cluster).clone(), of)
                };
                clusters.iter().map(of).collect()
            }
        };
        for (on, then) in groups {
            for rate in self.grid() {
                let name = format!("{recipe}/{rate}@{on}");
                if filter.names(&name) {
                    for seed in filter.seeds(self.size) {
                        runs.plain.push(self.run(name.clone(), &on, Some(*rate), seed)?);
                    }
                }
            }
            if then.is_empty() {
                continue;
            }
            let candidate = |rate: &f64| {
                let name = format!("{recipe}/{rate}@{on}");
                self.run(name, &on, Some(*rate), SEED_TUNING)
            };
            let candidates = self.grid().iter().map(candidate).collect::<Result<_, _>>()?;
            runs.tunings.push(Tuning { best, candidates, then });
        }
        Ok(())
    }

    /// The candidates for the best rate.
    fn grid(&self) -> &[f64] {
        if self.size.rates.is_empty() { &self.group.rates } else { &self.size.rates }
    }

    fn run(
        &self,
        name: String,
        cluster: &str,
        rate: Option<f64>,
        seed: u64,
    ) -> Result<Run, DefinitionError> {
        let (experiment, size) = (self.experiment, self.size);
        let mut job = experiment.job.clone();
        merge(&mut job, &size.job);
        merge(&mut job, &experiment.recipes[self.recipe]);
        let mut scenario = experiment.scenario.clone();
        merge(&mut scenario, &size.scenario);
        merge(&mut scenario, &experiment.clusters[cluster]);
        if let Some(here) = size.clusters.get(cluster) {
            merge(&mut scenario, here);
        }
        let exchange = match scenario.remove("exchange") {
            None => None,
            Some(Value::Float(exchange)) if exchange > 0.0 && exchange < 1e6 => Some(exchange),
            Some(Value::Integer(exchange @ 1..1_000_000)) => Some(exchange as f64),
            Some(other) => {
                let (cluster, value) = (cluster.to_owned(), other.to_string());
                return Err(DefinitionError::Exchange { cluster, value });
            }
        };
        let mut job: Job =
            job.try_into().map_err(|error: toml::de::Error| DefinitionError::Recipe {
                recipe: self.recipe.to_owned(),
                message: error.message().to_owned(),
            })?;
        let in_cluster =
            |message| DefinitionError::Cluster { cluster: cluster.to_owned(), message };
        let mut scenario: Scenario = scenario
            .try_into()
            .map_err(|error: toml::de::Error| in_cluster(error.message().to_owned()))?;
        scenario.name = cluster.to_owned();
        scenario.check().map_err(|error| in_cluster(error.to_string()))?;
        job.seed = seed;
        if let Some(rate) = rate {
            job.learning_rate = Some(rate as f32);
        }
        Ok(Run { name, job, scenario, exchange, until_target: self.group.until_target })
    }
}

impl Run {
    pub fn rate(&self) -> f32 {
        self.job.learning_rate.unwrap_or(f32::NAN)
    }

    /// A digest of job and cluster; a stored result with the same key is still valid.
    pub fn key(&self) -> String {
        let parts = (&self.job, &self.scenario, self.exchange, self.until_target);
        digest(&serde_json::to_string(&parts).expect("plain data has a JSON form"))
    }

    /// A digest that is equal for runs with the same training, provided that the strategy does not read the clock.
    pub fn training_key(&self) -> String {
        let parts = (&self.job, self.scenario.workers, self.until_target);
        digest(&serde_json::to_string(&parts).expect("plain data has a JSON form"))
    }

    /// Whether the members never change.
    pub fn is_steady(&self) -> bool {
        let s = &self.scenario;
        s.crashes.is_empty()
            && s.leaves.is_empty()
            && s.joins.is_empty()
            && s.sizes.is_empty()
            && s.cuts.is_empty()
            && s.churn.is_none()
    }
}

fn digest(text: &str) -> String {
    format!("{:016x}", journal::digest(text))
}

/// Merges `over` into `table`, recursively; a table with a `kind` replaces the old one entirely.
fn merge(table: &mut Table, over: &Table) {
    for (name, value) in over {
        match (table.get_mut(name), value) {
            (Some(Value::Table(below)), Value::Table(above)) if !above.contains_key("kind") => {
                merge(below, above);
            }
            _ => drop(table.insert(name.clone(), value.clone())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: &str = r#"
        name = "small"
        title = "t"
        paper = "p"
        about = []
        claim = []
        job = { model = "softmax", epochs = 2.0 }
        scenario = { workers = 2, compute = { relative = [1.0, 2.0] } }
        [size.quick]
        seeds = [1, 2]
        job = { epochs = 1.0 }
        [recipe.ssgd]
        strategy = "ssgd"
        [recipe.abs]
        strategy = "abs"
        [cluster.slow]
        exchange = 0.5
        compute = { jitter = 0.1 }
        [cluster.fast]
        [[runs]]
        recipes = ["ssgd"]
        clusters = ["slow", "fast"]
        [[runs]]
        recipes = ["abs"]
        clusters = ["slow", "fast"]
        rates = [0.1, 0.2, 0.4]
        best = "time"
    "#;

    fn runs(filter: &RunFilter) -> Runs {
        let experiment = Experiment::from_toml("small", SMALL).expect("the experiment is valid");
        Runs::of(&experiment, "quick", filter).expect("the runs are valid")
    }

    #[test]
    fn every_recipe_runs_on_every_cluster_with_every_seed() {
        let runs = runs(&RunFilter::default());

        let names: Vec<&str> = runs.plain.iter().map(|run| run.name.as_str()).collect();
        assert_eq!(names, ["ssgd@slow", "ssgd@slow", "ssgd@fast", "ssgd@fast"]);
        let slow = &runs.plain[0];
        assert_eq!((slow.job.epochs, slow.job.seed, slow.exchange), (1.0, 1, Some(0.5)));
        assert_eq!(slow.scenario.compute.relative, [1.0, 2.0]);
        assert_eq!(slow.scenario.compute.jitter, 0.1);
    }

    #[test]
    fn a_rate_is_chosen_with_a_separate_seed() {
        let runs = runs(&RunFilter::default());

        assert_eq!(runs.tunings.len(), 2);
        let tuning = &runs.tunings[0];
        assert_eq!((tuning.candidates.len(), tuning.then.len()), (3, 2));
        assert!(tuning.candidates.iter().all(|run| run.job.seed == SEED_TUNING));
        assert_eq!(tuning.candidates[1].name, "abs/0.2@slow");
    }

    #[test]
    fn runs_that_differ_only_in_the_network_share_a_training() {
        let runs = runs(&RunFilter::default());
        let (slow, fast) = (&runs.plain[0], &runs.plain[2]);

        assert_ne!(slow.key(), fast.key());
        assert_eq!(slow.training_key(), fast.training_key());
        assert_ne!(
            slow.training_key(),
            runs.plain[1].training_key(),
            "other seeds need another training"
        );
    }

    #[test]
    fn a_filter_selects_runs_and_seeds() {
        let filter = RunFilter { only: vec!["abs@fast".into()], seeds: vec![7] };
        let runs = runs(&filter);

        assert!(runs.plain.is_empty());
        assert_eq!(runs.tunings.len(), 1);
        assert_eq!(runs.tunings[0].then.len(), 1);
    }

    #[test]
    fn mistakes_in_an_experiment_are_reported() {
        for (right, wrong, message) in [
            (
                "recipes = [\"ssgd\"]",
                "recipes = [\"sgd\"]",
                "there is no recipe `sgd`; did you mean `ssgd`?",
            ),
            ("seeds = [1, 2]", "seeds = []", "size.quick: give at least one seed"),
            (
                "seeds = [1, 2]",
                "seeds = [1, 2, 1]",
                "size.quick: the seed 1 is listed twice; list each seed once",
            ),
            ("best = \"time\"", "bset = \"time\"", "unknown field `bset`"),
        ] {
            let error = Experiment::from_toml("small", &SMALL.replace(right, wrong)).unwrap_err();
            assert!(error.to_string().contains(message), "{error}");
        }
        let wrong = SMALL.replace("jitter = 0.1", "jiter = 0.1");
        let experiment = Experiment::from_toml("small", &wrong).expect("clusters are parsed later");
        let error = Runs::of(&experiment, "quick", &RunFilter::default()).unwrap_err();
        assert!(error.to_string().starts_with("cluster slow: unknown field `jiter`"), "{error}");
    }
}
