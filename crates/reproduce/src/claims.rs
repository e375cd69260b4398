//! Decides claims by the rules of their experiment file.

mod expressions;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;

use crate::experiment::{Claim, Experiment, Show, belongs};
use crate::result::Results;
use crate::summary::{Summary, mean};

pub use expressions::{Checker, evaluate};
use expressions::{Trouble, engine, scope, truth, value};

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
pub(crate) fn check(claim: &Claim, checker: &Checker) -> Result<(), String> {
    let told = |sentence| format!("claim \"{}\": {sentence}", claim.name);
    expressions(claim).iter().try_for_each(|ours| checker.check_value(ours)).map_err(told)?;
    let over_seeds = SUMMARY.map(|name| (name, 1.0));
    let rules = [(&claim.item, &[("x", 1.0)][..]), (&claim.in_part, &over_seeds)];
    let rules = rules.into_iter().filter_map(|(rule, known)| Some((rule.as_ref()?, known)));
    let mut rules = rules.chain([(&claim.holds, &over_seeds[..])]);
    rules.try_for_each(|(rule, known)| checker.check_truth(rule, known)).map_err(told)
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

/// The claim's expression for one seed, once for each of its `each`.
fn measure(claim: &Claim, seed: u64, results: &Arc<Results>) -> Result<Vec<f64>, Trouble> {
    let engine = engine(seed, results);
    expressions(claim).iter().map(|expression| value(&engine, expression)).collect()
}

impl Show {
    fn write(self, summary: &Summary) -> String {
        let one = |x: f64| match self {
            _ if x.is_nan() => "unknown".to_owned(),
            _ if x.is_infinite() => "infinite".to_owned(),
            Show::Number if x.abs() >= 1e15 => format!("{x:.2e}"),
            Show::Number if x.abs() >= 100.0 => format!("{x:.0}"),
            Show::Number if x.abs() < 0.1 && x != 0.0 => format!("{x:.4}"),
            Show::Number => format!("{x:.2}"),
            Show::Times => format!("{x:.2}x"),
            Show::Percent => format!("{:.1} %", 100.0 * x),
            Show::Points => format!("{:+.2}", 100.0 * x),
        };
        let Summary { mean, low, high, .. } = *summary;
        if low == high || mean.is_nan() {
            one(mean)
        } else {
            format!("{} ({} to {})", one(mean), one(low), one(high))
        }
    }
}
