//! Decides claims by the rules of their experiment file.

use std::fmt;
use std::sync::Arc;

use paceline_learn::Rescale;
use rhai::{Array, Dynamic, Engine, EvalAltResult, Scope};

use crate::experiment::{Claim, Experiment, Show, belongs};
use crate::noise;
use crate::result::{Results, RunResult};

/// What came of a claim.
#[derive(Clone, Debug)]
pub struct Finding {
    pub name: String,
    pub paper: String,
    /// Ours, as it is written: mean, and range over the seeds.
    pub ours: String,
    pub mean: f64,
    pub seeds: usize,
    pub verdict: Verdict,
    /// The rule that decided.
    pub rule: String,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Verdict {
    Holds,
    InPart,
    DoesNotHold,
    /// Some of its runs are missing; the sentence says which.
    NotRun(String),
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Verdict::Holds => "holds",
            Verdict::InPart => "holds in part",
            Verdict::DoesNotHold => "does not hold here",
            Verdict::NotRun(_) => "not run",
        })
    }
}

/// Decides every claim of the experiment that belongs to this size.
pub fn decide(
    experiment: &Experiment,
    size: &str,
    seeds: &[u64],
    results: &Arc<Results>,
) -> Result<Vec<Finding>, String> {
    let claims = experiment.claims.iter().filter(|claim| belongs(&claim.sizes, size));
    claims.map(|claim| find(claim, seeds, results)).collect()
}

/// Whether the claim's expressions can be evaluated, as far as that is to be known before any run.
pub(crate) fn check(claim: &Claim) -> Result<(), String> {
    let told = |sentence| format!("claim \"{}\": {sentence}", claim.name);
    expressions(claim).iter().try_for_each(|ours| check_expression(ours)).map_err(told)?;
    let over_seeds = SUMMARY.map(|name| (name, 1.0));
    let rules = [(&claim.item, &[("x", 1.0)][..]), (&claim.in_part, &over_seeds)];
    let rules = rules.into_iter().filter_map(|(rule, known)| Some((rule.as_ref()?, known)));
    for (rule, known) in rules.chain([(&claim.holds, &over_seeds[..])]) {
        if let Err(Trouble::Wrong(sentence)) = truth(&bare(), rule, &mut scope(known)) {
            return Err(told(sentence));
        }
    }
    Ok(())
}

/// Whether an expression over runs can be evaluated.
pub(crate) fn check_expression(expression: &str) -> Result<(), String> {
    match value(&bare(), expression) {
        Err(Trouble::Wrong(sentence)) => Err(sentence),
        _ => Ok(()),
    }
}

/// Knows every function and no run.
fn bare() -> Engine {
    let mut engine = engine(0, &Arc::default());
    // The one that computes long.
    engine.register_fn("step_noise", |_: f64, _: &str| 1.0);
    engine
}

/// The claim's expression, once for each of its `each`.
fn expressions(claim: &Claim) -> Vec<String> {
    match claim.each.as_slice() {
        [] => vec![claim.ours.clone()],
        each => each.iter().map(|one| claim.ours.replace('$', one)).collect(),
    }
}

fn find(claim: &Claim, seeds: &[u64], results: &Arc<Results>) -> Result<Finding, String> {
    let told = |sentence: String| format!("claim \"{}\": {sentence}", claim.name);
    let mut finding = Finding {
        name: claim.name.clone(),
        paper: claim.paper.clone(),
        ours: "-".into(),
        mean: f64::NAN,
        seeds: seeds.len(),
        verdict: Verdict::Holds,
        rule: claim.holds.clone(),
    };
    let mut values = Vec::new();
    let (mut counted, mut items) = (0, 0);
    for seed in seeds {
        let each = measure(claim, *seed, results);
        let each = match each {
            Ok(each) => each,
            Err(Trouble::Missing(sentence)) => {
                finding.verdict = Verdict::NotRun(sentence);
                return Ok(finding);
            }
            Err(Trouble::Wrong(sentence)) => return Err(told(sentence)),
        };
        items += each.len();
        if let Some(item) = &claim.item {
            let engine = engine(*seed, results);
            for x in &each {
                match truth(&engine, item, &mut scope(&[("x", *x)])) {
                    Ok(counts) => counted += usize::from(counts),
                    Err(Trouble::Missing(sentence)) => {
                        finding.verdict = Verdict::NotRun(sentence);
                        return Ok(finding);
                    }
                    Err(Trouble::Wrong(sentence)) => return Err(told(sentence)),
                }
            }
        }
        values.push(mean(&each));
    }
    let summary = Summary::of(&values);
    let part = if items > 0 { counted as f64 / items as f64 } else { 0.0 };
    let error = summary.spread / (seeds.len() as f64).sqrt();
    let Summary { mean, low, high, spread } = summary;
    let values = [mean, low, high, spread, error, part];
    let variables: Vec<(&str, f64)> = SUMMARY.into_iter().zip(values).collect();
    let engine = engine(seeds[0], results);
    let decided = |rule: &str| truth(&engine, rule, &mut scope(&variables));
    let verdict = decided(&claim.holds).and_then(|holds| match &claim.in_part {
        _ if holds => Ok(Verdict::Holds),
        Some(rule) if decided(rule)? => {
            finding.rule = format!("in part if {rule}; wholly if {}", claim.holds);
            Ok(Verdict::InPart)
        }
        _ => Ok(Verdict::DoesNotHold),
    });
    finding.verdict = match verdict {
        Ok(verdict) => verdict,
        Err(Trouble::Missing(sentence)) => Verdict::NotRun(sentence),
        Err(Trouble::Wrong(sentence)) => return Err(told(sentence)),
    };
    if let Some(item) = &claim.item {
        finding.rule += &format!("; one counts if {item}");
    }
    finding.mean = summary.mean;
    finding.ours = claim.show.write(&summary);
    if claim.item.is_some() {
        finding.ours += &format!("; in {counted} of {items}");
    }
    Ok(finding)
}

/// What rules know of the values of all seeds.
const SUMMARY: [&str; 6] = ["mean", "low", "high", "spread", "error", "part"];

struct Summary {
    mean: f64,
    low: f64,
    high: f64,
    spread: f64,
}

impl Summary {
    fn of(values: &[f64]) -> Summary {
        Summary {
            mean: mean(values),
            low: extreme(values, f64::min),
            high: extreme(values, f64::max),
            spread: deviation(values),
        }
    }
}

impl Show {
    fn write(self, summary: &Summary) -> String {
        let one = |x: f64| match self {
            _ if x.is_nan() => "neither".to_owned(),
            _ if x.is_infinite() => "infinite".to_owned(),
            Show::Number if x.abs() >= 100.0 => format!("{x:.0}"),
            Show::Number if x.abs() < 0.1 && x != 0.0 => format!("{x:.4}"),
            Show::Number => format!("{x:.2}"),
            Show::Times => format!("{x:.2}x"),
            Show::Percent => format!("{:.1} %", 100.0 * x),
            Show::Points => format!("{:+.2}", 100.0 * x),
        };
        let Summary { mean, low, high, .. } = *summary;
        if low == high {
            one(mean)
        } else {
            format!("{} ({} to {})", one(mean), one(low), one(high))
        }
    }
}

pub(crate) fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// The least or the greatest; not a number if one of them is none, for then nothing is known.
pub(crate) fn extreme(values: &[f64], of: fn(f64, f64) -> f64) -> f64 {
    if values.iter().any(|x| x.is_nan()) {
        return f64::NAN;
    }
    values.iter().copied().reduce(of).unwrap_or(f64::NAN)
}

/// The standard deviation of a sample; one value alone tells nothing of it.
fn deviation(values: &[f64]) -> f64 {
    let mean = mean(values);
    let squares: f64 = values.iter().map(|x| (x - mean) * (x - mean)).sum();
    (squares / (values.len() as f64 - 1.0)).sqrt()
}

/// Why an expression has no value.
enum Trouble {
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

/// The claim's expression for one seed, once for each of its `each`.
fn measure(claim: &Claim, seed: u64, results: &Arc<Results>) -> Result<Vec<f64>, Trouble> {
    let engine = engine(seed, results);
    expressions(claim).iter().map(|expression| value(&engine, expression)).collect()
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

fn value(engine: &Engine, expression: &str) -> Result<f64, Trouble> {
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

fn truth(engine: &Engine, rule: &str, scope: &mut Scope) -> Result<bool, Trouble> {
    engine
        .eval_expression_with_scope::<bool>(scope, rule)
        .map_err(|error| Trouble::of(format!("the rule `{rule}` cannot be decided: {error}")))
}

fn scope(variables: &[(&str, f64)]) -> Scope<'static> {
    let mut scope = Scope::new();
    for (name, value) in variables {
        scope.push((*name).to_owned(), *value);
    }
    scope
}

type Answer<T = f64> = Result<T, Box<EvalAltResult>>;

/// Knows the runs of one seed by their names.
fn engine(seed: u64, results: &Arc<Results>) -> Engine {
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
            let run = get(&results, run, seed)?;
            Ok(run.at(curve, 0, seconds).map_or(f64::INFINITY, |point| point[2]))
        });
    }
    // The training loss when a part of the job was done.
    let here = results.clone();
    engine.register_fn("loss_at_part", move |run: &str, part: f64| -> Answer {
        let run = get(&here, run, seed)?;
        Ok(run.at("loss", 1, part * run.epochs).map_or(f64::INFINITY, |point| point[2]))
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

fn get<'a>(results: &'a Results, run: &str, seed: u64) -> Answer<&'a RunResult> {
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
    let numbers = numbers(values)?;
    numbers.into_iter().reduce(choose).ok_or_else(|| "there is nothing to choose from".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(ours: &str, holds: &str) -> Claim {
        let text = format!(
            "name = 'c'\npaper = 'p'\nours = '{ours}'\nholds = '{holds}'\nin_part = 'mean > 1.0'\nshow = 'times'"
        );
        toml::from_str(&text).expect("it is a claim")
    }

    fn results() -> Arc<Results> {
        let mut results = Results::default();
        for (run, seed, seconds) in
            [("a@x", 1, 4.0), ("a@x", 2, 6.0), ("b@x", 1, 2.0), ("b@x", 2, 4.0)]
        {
            let json = format!(
                r#"{{"run":"{run}","seed":{seed},"key":"","commit":"","command":"","retimed":false,"rate":0.1,
                "seconds":{seconds},"to_target":null,"loss":0.5,"accuracy":0.9,"bytes":1,"rounds":1,"epochs":1.0,
                "period":null,"busy":1.0,"busy_least":1.0,"staleness":0,"diverged":null,
                "curves":{{"loss":[[1.0,0.5,2.0],[3.0,1.0,1.0]],"accuracy":[[2.0,1.0,0.5],[3.5,2.0,0.6]]}}}}"#
            );
            results.add(serde_json::from_str(&json).expect("it is a result"));
        }
        Arc::new(results)
    }

    #[test]
    fn rules_decide_over_the_seeds() {
        let cases = [
            ("mean >= 1.7 && low >= 1.4", Verdict::Holds),
            ("low > 1.6", Verdict::InPart),
            ("spread < 0.5 && mean > 1.5", Verdict::Holds),
        ];
        for (rule, verdict) in cases {
            let claim = claim("seconds(\"a@x\") / seconds(\"b@x\")", rule);

            let finding = find(&claim, &[1, 2], &results()).expect("it can be decided");

            assert_eq!(finding.verdict, verdict, "{rule}");
            assert_eq!(finding.ours, "1.75x (1.50x to 2.00x)");
        }
        let never = find(&claim("0.5", "mean > 2.0"), &[1], &results()).expect("it can be decided");
        assert_eq!(never.verdict, Verdict::DoesNotHold);
    }

    #[test]
    fn expressions_know_runs_curves_and_lists() {
        for (expression, expected) in [
            ("least(all(\"seconds\", [\"a\", \"b\"], \"x\"))", 2.0),
            ("greatest([1, 2.5]) + average([1, 3])", 4.5),
            ("loss_at(\"a@x\", 2.0)", 1.5),
            ("loss_at_part(\"a@x\", 0.75)", 1.5),
            ("epoch_seconds(\"a@x\", 2)", 1.5),
            ("target_time(\"a@x\")", f64::INFINITY),
            ("noise(\"seconds\", \"b@x\")", 2f64.sqrt()),
            ("typical(\"seconds\", \"b@x\")", 3.0),
            ("if diverged(\"a@x\") == 0.0 { 7.0 } else { 8.0 }", 7.0),
        ] {
            let value = evaluate(expression, 1, &results()).expect("it is sound");
            assert_eq!(value, Some(expected), "{expression}");
        }
    }

    #[test]
    fn each_counts_by_its_own_rule() {
        let mut claim = claim("seconds(\"$@x\")", "part >= 0.5");
        (claim.each, claim.item) = (vec!["a".into(), "b".into()], Some("x > 3.0".into()));

        let finding = find(&claim, &[1, 2], &results()).expect("it can be decided");

        assert_eq!(finding.ours, "4.00x (3.00x to 5.00x); in 3 of 4");
        assert_eq!(finding.verdict, Verdict::Holds);
    }

    #[test]
    fn a_claim_about_runs_that_are_missing_is_not_decided() {
        let finding = find(&claim("seconds(\"c@x\")", "true"), &[1], &results()).expect("no error");

        let Verdict::NotRun(sentence) = finding.verdict else { panic!("{:?}", finding.verdict) };
        assert!(sentence.contains("no run `c@x`"), "{sentence}");
    }

    #[test]
    fn a_rule_that_makes_no_sense_is_told_with_its_claim() {
        for (ours, holds) in [("secnds(\"a@x\")", "true"), ("1.0", "mean >"), ("1.0", "mean + 1")] {
            let error = find(&claim(ours, holds), &[1], &results()).expect_err("it is wrong");
            assert!(error.starts_with("claim \"c\":"), "{error}");
        }
    }
}
