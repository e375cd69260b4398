//! Evaluates expressions over the runs of one seed.

use std::sync::Arc;

use paceline_job::suggest::unknown;
use paceline_learn::Rescale;
use rhai::{Array, Dynamic, Engine, EvalAltResult, Position, Scope};

use crate::error::ExpressionError;
use crate::noise;
use crate::result::{Measurement, Results};
use crate::summary::{deviation, extreme, mean};

/// Evaluates an expression over the runs of one seed; `None` if a run has no result.
pub fn evaluate(
    expression: &str,
    seed: u64,
    results: &Arc<Results>,
) -> Result<Option<f64>, ExpressionError> {
    match value(&engine(seed, results), expression) {
        Err(ExpressionError::MissingRun { .. }) => Ok(None),
        value => value.map(Some),
    }
}

/// Checks expressions before any run, with a placeholder result for every run of the experiment.
pub struct Checker {
    engine: Engine,
    placeholders: Arc<Results>,
}

impl Checker {
    pub fn new(runs: impl Iterator<Item = String>) -> Checker {
        let mut placeholders = Results::default();
        runs.for_each(|run| placeholders.add(Measurement::placeholder(run)));
        let placeholders = Arc::new(placeholders);
        let mut engine = engine(0, &placeholders);
        // The real function takes long to compute.
        engine.register_fn("step_noise", |_: f64, _: &str| 1.0);
        Checker { engine, placeholders }
    }

    /// Whether some size of the experiment has this run.
    pub fn has_run(&self, run: &str) -> bool {
        self.placeholders.get(run, 0).is_some()
    }

    /// Whether all runs of the expression exist in some size; an error if it is invalid otherwise.
    pub fn has_value(&self, expression: &str) -> Result<bool, ExpressionError> {
        match value(&self.engine, expression) {
            Err(ExpressionError::MissingRun { .. }) => Ok(false),
            value => value.map(|_| true),
        }
    }

    pub fn check_value(&self, expression: &str) -> Result<(), ExpressionError> {
        value(&self.engine, expression).map(drop).map_err(|error| self.with_suggestion(error))
    }

    pub fn check_rule(&self, text: &str, known: &[(&str, f64)]) -> Result<(), ExpressionError> {
        let decided = rule(&self.engine, text, &mut scope(known));
        decided.map(drop).map_err(|error| self.with_suggestion(error))
    }

    /// A run without a placeholder exists in no size.
    fn with_suggestion(&self, error: ExpressionError) -> ExpressionError {
        match error {
            ExpressionError::MissingRun { run } => self.unknown_run(&run),
            error => error,
        }
    }

    pub fn unknown_run(&self, run: &str) -> ExpressionError {
        let otherwise = "runs are called recipe@cluster, or recipe/rate@cluster";
        let message = unknown("run", run, self.placeholders.names(), otherwise);
        ExpressionError::UnknownRun(message.to_string())
    }
}

/// The value of an expression; true and false count as 1 and 0.
pub fn value(engine: &Engine, expression: &str) -> Result<f64, ExpressionError> {
    let invalid = |message| ExpressionError::Evaluation { expression: expression.into(), message };
    let value = engine
        .eval_expression::<Dynamic>(expression)
        .map_err(|error| missing_run(&error).unwrap_or_else(|| invalid(error.to_string())))?;
    number(&value).ok_or_else(|| ExpressionError::NotANumber { expression: expression.to_owned() })
}

fn number(value: &Dynamic) -> Option<f64> {
    let whole = value.as_int().ok().map(|whole| whole as f64);
    let truth = value.as_bool().ok().map(|truth| f64::from(u8::from(truth)));
    value.as_float().ok().or(whole).or(truth)
}

/// Whether a rule holds for the variables in `scope`.
pub fn rule(engine: &Engine, rule: &str, scope: &mut Scope) -> Result<bool, ExpressionError> {
    let invalid = |message| ExpressionError::Rule { rule: rule.to_owned(), message };
    engine
        .eval_expression_with_scope::<bool>(scope, rule)
        .map_err(|error| missing_run(&error).unwrap_or_else(|| invalid(error.to_string())))
}

pub fn scope(variables: &[(&str, f64)]) -> Scope<'static> {
    let mut scope = Scope::new();
    for (name, value) in variables {
        scope.push((*name).to_owned(), *value);
    }
    scope
}

type Answer<T = f64> = Result<T, Box<EvalAltResult>>;

/// The name of a run without a result, as the value of a Rhai runtime error.
#[derive(Clone)]
struct MissingRun(String);

fn missing(run: &str) -> Box<EvalAltResult> {
    let value = Dynamic::from(MissingRun(run.to_owned()));
    Box::new(EvalAltResult::ErrorRuntime(value, Position::NONE))
}

/// The error `MissingRun` if evaluation failed because of `missing`.
fn missing_run(error: &EvalAltResult) -> Option<ExpressionError> {
    let EvalAltResult::ErrorRuntime(value, _) = error.unwrap_inner() else { return None };
    let MissingRun(run) = value.clone().try_cast()?;
    Some(ExpressionError::MissingRun { run })
}

/// An engine whose functions read the runs of one seed.
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
    register_curves(&mut engine, seed, results);
    register_several_runs(&mut engine, seed, results);
    engine.register_fn("least", |values: Array| over(&values, f64::min));
    engine.register_fn("greatest", |values: Array| over(&values, f64::max));
    engine.register_fn("average", |values: Array| -> Answer { Ok(mean(&numbers(&values)?)) });
    engine.register_fn("step_noise", move |k: f64, rescale: &str| -> Answer {
        let rescale = match rescale {
            "linear" => Rescale::Linear,
            "smooth" => Rescale::Smooth,
            other => return Err(format!("step_noise takes linear or smooth, not {other}").into()),
        };
        Ok(noise::peak(rescale, k, seed))
    });
    engine
}

/// Functions that read the curves of one run.
fn register_curves(engine: &mut Engine, seed: u64, results: &Arc<Results>) {
    for (function, curve) in
        [("loss_at", "loss"), ("accuracy_at", "accuracy"), ("test_loss_at", "test_loss")]
    {
        let results = results.clone();
        engine.register_fn(function, move |run: &str, seconds: f64| -> Answer {
            Ok(get(&results, run, seed)?.value_at(curve, 0, seconds))
        });
    }
    // The training loss after a fraction of the job.
    let here = results.clone();
    engine.register_fn("loss_at_part", move |run: &str, part: f64| -> Answer {
        let run = get(&here, run, seed)?;
        Ok(run.value_at("loss", 1, part * run.epochs))
    });
    let here = results.clone();
    engine.register_fn("epoch_seconds", move |run: &str, k: i64| -> Answer {
        let result = get(&here, run, seed)?;
        // An epoch that the run did not reach takes infinitely long.
        Ok(usize::try_from(k).ok().and_then(|k| result.epoch_seconds(k)).unwrap_or(f64::INFINITY))
    });
}

/// Functions that read a metric of several runs.
fn register_several_runs(engine: &mut Engine, seed: u64, results: &Arc<Results>) {
    // A metric of several recipes on one cluster.
    let here = results.clone();
    engine.register_fn("all", move |name: &str, recipes: Array, cluster: &str| -> Answer<Array> {
        let of = |recipe: Dynamic| {
            let run = format!("{}@{cluster}", recipe.into_string()?);
            metric(&here, &run, seed, name).map(Dynamic::from_float)
        };
        recipes.into_iter().map(of).collect()
    });
    // The standard deviation of a metric over the seeds, and its mean.
    for (function, of) in [("noise", deviation as fn(&[f64]) -> f64), ("typical", mean)] {
        let here = results.clone();
        engine.register_fn(function, move |name: &str, run: &str| -> Answer {
            let seeds: Vec<u64> = here.seeds(run).map(|result| result.seed).collect();
            let values = seeds.iter().map(|seed| metric(&here, run, *seed, name));
            let values = values.collect::<Answer<Vec<f64>>>()?;
            if values.is_empty() { Err(missing(run)) } else { Ok(of(&values)) }
        });
    }
}

fn get<'a>(results: &'a Results, run: &str, seed: u64) -> Answer<&'a Measurement> {
    results.get(run, seed).ok_or_else(|| missing(run))
}

fn metric(results: &Results, run: &str, seed: u64, name: &str) -> Answer {
    let value = get(results, run, seed)?.metric(name);
    value.ok_or_else(|| format!("there is no metric `{name}`").into())
}

fn numbers(values: &Array) -> Answer<Vec<f64>> {
    let numbers: Option<Vec<f64>> = values.iter().map(number).collect();
    numbers.ok_or_else(|| "the list must contain only numbers".into())
}

fn over(values: &Array, choose: fn(f64, f64) -> f64) -> Answer {
    match numbers(values)?.as_slice() {
        [] => Err("the list is empty".into()),
        numbers => Ok(extreme(numbers, choose)),
    }
}
