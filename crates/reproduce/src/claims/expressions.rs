//! Expressions over the runs of one seed.

use std::sync::Arc;

use paceline_job::suggest::unknown;
use paceline_learn::Rescale;
use rhai::{Array, Dynamic, Engine, EvalAltResult, Scope};

use crate::noise;
use crate::result::{Measurement, Results};
use crate::summary::{deviation, extreme, mean};

/// Why an expression has no value.
pub enum Trouble {
    Missing(String),
    Wrong(String),
}

const MISSING: &str = "no run ";

impl Trouble {
    fn of(sentence: String) -> Trouble {
        if sentence.contains(MISSING) {
            Trouble::Missing(sentence)
        } else {
            Trouble::Wrong(sentence)
        }
    }
}

/// The value of an expression over the runs of one seed, for figures; none if a run is missing.
pub fn evaluate(
    expression: &str,
    seed: u64,
    results: &Arc<Results>,
) -> Result<Option<f64>, String> {
    match value(&engine(seed, results), expression) {
        Ok(value) => Ok(Some(value)),
        Err(Trouble::Missing(_)) => Ok(None),
        Err(Trouble::Wrong(sentence)) => Err(sentence),
    }
}

/// Tells before any run whether expressions can be evaluated: every run of the experiment is made up.
pub struct Checker {
    engine: Engine,
    made_up: Arc<Results>,
}

impl Checker {
    pub fn new(runs: impl Iterator<Item = String>) -> Checker {
        let mut made_up = Results::default();
        runs.for_each(|run| made_up.add(Measurement::made_up(run)));
        let made_up = Arc::new(made_up);
        let mut engine = engine(0, &made_up);
        // The one that computes long.
        engine.register_fn("step_noise", |_: f64, _: &str| 1.0);
        Checker { engine, made_up }
    }

    pub fn knows(&self, run: &str) -> bool {
        self.made_up.get(run, 0).is_some()
    }

    /// Whether the expression has a value; not so if a run is missing.
    pub fn value(&self, expression: &str) -> Result<bool, String> {
        match value(&self.engine, expression) {
            Ok(_) => Ok(true),
            Err(Trouble::Missing(_)) => Ok(false),
            Err(Trouble::Wrong(sentence)) => Err(sentence),
        }
    }

    pub fn check_value(&self, expression: &str) -> Result<(), String> {
        value(&self.engine, expression).map(drop).map_err(|trouble| self.told(trouble))
    }

    pub fn check_truth(&self, rule: &str, known: &[(&str, f64)]) -> Result<(), String> {
        let decided = truth(&self.engine, rule, &mut scope(known));
        decided.map(drop).map_err(|trouble| self.told(trouble))
    }

    fn told(&self, trouble: Trouble) -> String {
        match trouble {
            Trouble::Wrong(sentence) => sentence,
            Trouble::Missing(sentence) => {
                let run = sentence.split_once(MISSING).map_or("", |(_, rest)| rest);
                self.no_run(run.split('`').nth(1).unwrap_or_default())
            }
        }
    }

    pub fn no_run(&self, run: &str) -> String {
        let otherwise = "runs are called recipe@cluster, or recipe/rate@cluster";
        unknown("run", run, self.made_up.names(), otherwise).to_string()
    }
}

pub fn value(engine: &Engine, expression: &str) -> Result<f64, Trouble> {
    let value = engine
        .eval_expression::<Dynamic>(expression)
        .map_err(|error| Trouble::of(format!("`{expression}`: {error}")))?;
    number(&value).ok_or_else(|| Trouble::Wrong(format!("`{expression}` is no number")))
}

fn number(value: &Dynamic) -> Option<f64> {
    let whole = value.as_int().ok().map(|whole| whole as f64);
    let truth = value.as_bool().ok().map(|truth| f64::from(u8::from(truth)));
    value.as_float().ok().or(whole).or(truth)
}

pub fn truth(engine: &Engine, rule: &str, scope: &mut Scope) -> Result<bool, Trouble> {
    engine
        .eval_expression_with_scope::<bool>(scope, rule)
        .map_err(|error| Trouble::of(format!("the rule `{rule}` cannot be decided: {error}")))
}

pub fn scope(variables: &[(&str, f64)]) -> Scope<'static> {
    let mut scope = Scope::new();
    for (name, value) in variables {
        scope.push((*name).to_owned(), *value);
    }
    scope
}

type Answer<T = f64> = Result<T, Box<EvalAltResult>>;

/// Knows the runs of one seed by their names.
pub fn engine(seed: u64, results: &Arc<Results>) -> Engine {
    let mut engine = Engine::new();
    engine.set_max_operations(100_000);
    for name in [
        "seconds",
        "target_time",
        "target_epochs",
        "loss",
        "accuracy",
        "bytes",
        "rounds",
        "epochs",
        "period",
        "busy",
        "busy_least",
        "staleness",
        "rate",
        "diverged",
    ] {
        let results = results.clone();
        engine.register_fn(name, move |run: &str| -> Answer { metric(&results, run, seed, name) });
    }
    for (function, curve) in
        [("loss_at", "loss"), ("accuracy_at", "accuracy"), ("test_loss_at", "test_loss")]
    {
        let results = results.clone();
        engine.register_fn(function, move |run: &str, seconds: f64| -> Answer {
            Ok(get(&results, run, seed)?.value_at(curve, 0, seconds))
        });
    }
    // The training loss when a part of the job was done.
    let here = results.clone();
    engine.register_fn("loss_at_part", move |run: &str, part: f64| -> Answer {
        let run = get(&here, run, seed)?;
        Ok(run.value_at("loss", 1, part * run.epochs))
    });
    let here = results.clone();
    engine.register_fn("epoch_seconds", move |run: &str, k: i64| -> Answer {
        let result = get(&here, run, seed)?;
        // An epoch that a run never came to takes forever.
        Ok(usize::try_from(k).ok().and_then(|k| result.epoch_seconds(k)).unwrap_or(f64::INFINITY))
    });
    // A number of each of these recipes on one cluster.
    let here = results.clone();
    engine.register_fn("all", move |name: &str, recipes: Array, cluster: &str| -> Answer<Array> {
        let of = |recipe: Dynamic| {
            let run = format!("{}@{cluster}", recipe.into_string()?);
            metric(&here, &run, seed, name).map(Dynamic::from_float)
        };
        recipes.into_iter().map(of).collect()
    });
    // How much a number varies from seed to seed, and its mean over them.
    for (function, of) in [("noise", deviation as fn(&[f64]) -> f64), ("typical", mean)] {
        let here = results.clone();
        engine.register_fn(function, move |name: &str, run: &str| -> Answer {
            let seeds: Vec<u64> = here.seeds(run).map(|result| result.seed).collect();
            let values = seeds.iter().map(|seed| metric(&here, run, *seed, name));
            let values = values.collect::<Answer<Vec<f64>>>()?;
            if values.is_empty() { Err(missing(run)) } else { Ok(of(&values)) }
        });
    }
    engine.register_fn("least", |values: Array| over(&values, f64::min));
    engine.register_fn("greatest", |values: Array| over(&values, f64::max));
    engine.register_fn("average", |values: Array| -> Answer { Ok(mean(&numbers(&values)?)) });
    engine.register_fn("step_noise", move |k: f64, rescale: &str| -> Answer {
        let rescale = match rescale {
            "linear" => Rescale::Linear,
            "smooth" => Rescale::Smooth,
            other => return Err(format!("step_noise knows linear and smooth, not {other}").into()),
        };
        Ok(noise::peak(rescale, k, seed))
    });
    engine
}

fn get<'a>(results: &'a Results, run: &str, seed: u64) -> Answer<&'a Measurement> {
    results.get(run, seed).ok_or_else(|| missing(run))
}

fn missing(run: &str) -> Box<EvalAltResult> {
    format!("{MISSING}`{run}`").into()
}

fn metric(results: &Results, run: &str, seed: u64, name: &str) -> Answer {
    let value = get(results, run, seed)?.metric(name);
    value.ok_or_else(|| format!("runs have no `{name}`").into())
}

fn numbers(values: &Array) -> Answer<Vec<f64>> {
    let numbers: Option<Vec<f64>> = values.iter().map(number).collect();
    numbers.ok_or_else(|| "these are no numbers".into())
}

fn over(values: &Array, choose: fn(f64, f64) -> f64) -> Answer {
    match numbers(values)?.as_slice() {
        [] => Err("there is nothing to choose from".into()),
        numbers => Ok(extreme(numbers, choose)),
    }
}
