//! The runs that an experiment of some size asks for, each with its whole job and cluster.

use paceline_job::Job;
use paceline_runtime::journal;
use paceline_sim::Scenario;
use toml::{Table, Value};

use crate::experiment::{Best, Experiment, Group, Size, belongs};

/// One training on one cluster with one seed.
#[derive(Clone, Debug)]
pub struct Run {
    /// `recipe@cluster`, or `recipe/rate@cluster`.
    pub name: String,
    pub job: Job,
    pub scenario: Scenario,
    /// So many times the slowest worker's gradient a dense exchange takes, in place of a bandwidth.
    pub exchange: Option<f64>,
    pub until_target: bool,
}

/// A rate to be found: the runs among which it is, and the runs that then take it.
#[derive(Clone, Debug)]
pub struct Tuning {
    pub best: Best,
    pub candidates: Vec<Run>,
    pub then: Vec<Run>,
}

/// What an experiment asks for.
#[derive(Clone, Debug, Default)]
pub struct Runs {
    pub plain: Vec<Run>,
    pub tunings: Vec<Tuning>,
}

/// Which of the runs are wanted, and with which seeds; empty: all.
#[derive(Clone, Debug, Default)]
pub struct Limits {
    pub only: Vec<String>,
    pub seeds: Vec<u64>,
}

/// Learning rates are chosen with a seed that no claim is decided by.
pub const SEED_TUNING: u64 = 1_000;

impl Limits {
    fn wants(&self, name: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|only| is_meant(only, name))
    }

    /// Whether a run that is only for finding a rate is wanted for its own sake.
    fn asks_for(&self, name: &str) -> bool {
        self.only.iter().any(|only| only == name)
    }

    pub fn seeds(&self, size: &Size) -> Vec<u64> {
        if self.seeds.is_empty() { size.seeds.clone() } else { self.seeds.clone() }
    }
}

/// A whole name means that run; a part of one, all that have it.
fn is_meant(only: &str, name: &str) -> bool {
    if only.contains('@') && !only.starts_with('@') { only == name } else { name.contains(only) }
}

impl Runs {
    /// How many there are, those for finding rates included.
    pub fn count(&self) -> usize {
        let tunings = self.tunings.iter();
        let tuned: usize = tunings.map(|tuning| tuning.candidates.len() + tuning.then.len()).sum();
        self.plain.len() + tuned
    }

    pub fn of(experiment: &Experiment, size_name: &str, limits: &Limits) -> Result<Runs, String> {
        let size = experiment.size(size_name)?;
        let mut runs = Runs::default();
        for group in experiment.runs.iter().filter(|group| belongs(&group.sizes, size_name)) {
            let is_in = |name: &&String| !size.without.contains(name);
            for recipe in group.recipes.iter().filter(is_in) {
                let clusters: Vec<&String> = group.clusters.iter().filter(is_in).collect();
                let maker = Maker { experiment, size, group, recipe };
                maker.add(&clusters, limits, &mut runs)?;
            }
        }
        Ok(runs)
    }
}

/// Makes the runs of one recipe of one group.
struct Maker<'a> {
    experiment: &'a Experiment,
    size: &'a Size,
    group: &'a Group,
    recipe: &'a str,
}

impl Maker<'_> {
    fn add(&self, clusters: &[&String], limits: &Limits, runs: &mut Runs) -> Result<(), String> {
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
                if !limits.wants(&name) {
                    continue;
                }
                for seed in limits.seeds(self.size) {
                    then.push(self.run(name.clone(), cluster, rate, seed)?);
                }
            }
        }
        let Some(best) = self.group.best else {
            runs.plain.extend(then);
            return Ok(());
        };
        // Each cluster has its own best rate, unless one stands for all.
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
                if limits.asks_for(&name) {
                    for seed in limits.seeds(self.size) {
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

    /// What the best rate is chosen from.
    fn grid(&self) -> &[f64] {
        if self.size.rates.is_empty() { &self.group.rates } else { &self.size.rates }
    }

    fn run(
        &self,
        name: String,
        cluster: &str,
        rate: Option<f64>,
        seed: u64,
    ) -> Result<Run, String> {
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
                return Err(format!(
                    "cluster {cluster}: exchange = {other}: give a number above zero, as 0.3"
                ));
            }
        };
        let mut job: Job = job.try_into().map_err(|error: toml::de::Error| {
            format!("recipe {}: {}", self.recipe, error.message())
        })?;
        let mut scenario: Scenario = scenario
            .try_into()
            .map_err(|error: toml::de::Error| format!("cluster {cluster}: {}", error.message()))?;
        scenario.name = cluster.to_owned();
        scenario.check().map_err(|sentence| format!("cluster {cluster}: {sentence}"))?;
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

    /// The same for the same job on the same cluster: what has been run need not be run again.
    pub fn key(&self) -> String {
        let parts = (&self.job, &self.scenario, self.exchange, self.until_target);
        digest(&serde_json::to_string(&parts).expect("plain data has a JSON form"))
    }

    /// The same for runs that learn the same if they read no clock.
    pub fn training_key(&self) -> String {
        let parts = (&self.job, self.scenario.workers, self.until_target);
        digest(&serde_json::to_string(&parts).expect("plain data has a JSON form"))
    }

    /// Whether all workers stay from beginning to end.
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

/// What `over` says takes the place of what `table` says; tables in tables likewise.
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

    fn runs(limits: &Limits) -> Runs {
        let experiment = Experiment::from_toml("small", SMALL).expect("it is sound");
        Runs::of(&experiment, "quick", limits).expect("it is sound")
    }

    #[test]
    fn every_recipe_meets_every_cluster_with_every_seed() {
        let runs = runs(&Limits::default());

        let names: Vec<&str> = runs.plain.iter().map(|run| run.name.as_str()).collect();
        assert_eq!(names, ["ssgd@slow", "ssgd@slow", "ssgd@fast", "ssgd@fast"]);
        let slow = &runs.plain[0];
        assert_eq!((slow.job.epochs, slow.job.seed, slow.exchange), (1.0, 1, Some(0.5)));
        assert_eq!(slow.scenario.compute.relative, [1.0, 2.0]);
        assert_eq!(slow.scenario.compute.jitter, 0.1);
    }

    #[test]
    fn a_rate_is_chosen_with_a_seed_that_decides_nothing() {
        let runs = runs(&Limits::default());

        assert_eq!(runs.tunings.len(), 2);
        let tuning = &runs.tunings[0];
        assert_eq!((tuning.candidates.len(), tuning.then.len()), (3, 2));
        assert!(tuning.candidates.iter().all(|run| run.job.seed == SEED_TUNING));
        assert_eq!(tuning.candidates[1].name, "abs/0.2@slow");
    }

    #[test]
    fn runs_that_differ_in_the_network_alone_learn_the_same() {
        let runs = runs(&Limits::default());
        let (slow, fast) = (&runs.plain[0], &runs.plain[2]);

        assert_ne!(slow.key(), fast.key());
        assert_eq!(slow.training_key(), fast.training_key());
        assert_ne!(
            slow.training_key(),
            runs.plain[1].training_key(),
            "other seeds learn otherwise"
        );
    }

    #[test]
    fn only_what_is_wanted_is_run() {
        let limits = Limits { only: vec!["abs@fast".into()], seeds: vec![7] };
        let runs = runs(&limits);

        assert!(runs.plain.is_empty());
        assert_eq!(runs.tunings.len(), 1);
        assert_eq!(runs.tunings[0].then.len(), 1);
    }

    #[test]
    fn what_an_experiment_gets_wrong_is_told_in_a_sentence() {
        for (right, wrong, sentence) in [
            (
                "recipes = [\"ssgd\"]",
                "recipes = [\"sgd\"]",
                "there is no recipe `sgd`; did you mean `ssgd`?",
            ),
            ("seeds = [1, 2]", "seeds = []", "size.quick: give at least one seed"),
            (
                "seeds = [1, 2]",
                "seeds = [1, 2, 1]",
                "size.quick: the seed 1 is there twice, give each once",
            ),
            ("best = \"time\"", "bset = \"time\"", "unknown field `bset`"),
        ] {
            let error = Experiment::from_toml("small", &SMALL.replace(right, wrong)).unwrap_err();
            assert!(error.contains(sentence), "{error}");
        }
        let wrong = SMALL.replace("jitter = 0.1", "jiter = 0.1");
        let experiment = Experiment::from_toml("small", &wrong).expect("tables are read later");
        let error = Runs::of(&experiment, "quick", &Limits::default()).unwrap_err();
        assert!(error.starts_with("cluster slow: unknown field `jiter`"), "{error}");
    }
}
