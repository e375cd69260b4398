//! Decides claims by the rules of their experiment file.

mod expressions;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;

use crate::error::{DefinitionError, ExpressionError};
use crate::experiment::{Claim, Evidence, Experiment, Show, is_in_size};
use crate::result::Results;
use crate::summary::{Summary, mean};

pub use expressions::{Checker, evaluate};
use expressions::{engine, rule, scope, value};

/// The result of checking a claim.
#[derive(Clone, Debug)]
pub struct Finding {
    pub name: String,
    /// The value that the paper reports.
    pub paper: String,
    /// Our value, formatted: the mean, and the range over the seeds.
    pub ours: String,
    pub mean: f64,
    pub seeds: usize,
    pub evidence: Evidence,
    pub verdict: Verdict,
    /// The rule that led to the verdict.
    pub rule: String,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Verdict {
    Holds,
    InPart,
    DoesNotHold,
    /// The stored runs no longer decide it.
    Again {
        reason: String,
    },
    /// Some runs that the claim needs have no result; this is the first of them.
    NotRun {
        run: String,
    },
}

impl fmt::Display for Finding {
    /// The verdict in words.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match (&self.verdict, self.evidence) {
            (Verdict::Again { .. }, _) => "to be run again",
            (Verdict::NotRun { .. }, _) => "not run",
            (Verdict::Holds, Evidence::Empirical) => "holds",
            (Verdict::InPart, Evidence::Empirical) => "holds in part",
            (Verdict::DoesNotHold, Evidence::Empirical) => "does not hold here",
            (Verdict::Holds, Evidence::Calibrated) => "as calibrated",
            (Verdict::InPart, Evidence::Calibrated) => "as calibrated, in part",
            (Verdict::DoesNotHold, Evidence::Calibrated) => "not as calibrated",
            (Verdict::Holds, Evidence::Check) => "passes",
            (Verdict::InPart, Evidence::Check) => "passes in part",
            (Verdict::DoesNotHold, Evidence::Check) => "fails",
        })
    }
}

/// Decides every claim of the experiment that applies to this size.
pub fn decide(
    experiment: &Experiment,
    size: &str,
    seeds: &[u64],
    results: &Arc<Results>,
) -> Result<Vec<Finding>, DefinitionError> {
    let claims = experiment.claims.iter().filter(|claim| is_in_size(&claim.sizes, size));
    let decide = |claim: &Claim| {
        let mut finding = find(claim, seeds, results)?;
        let is_run = !matches!(finding.verdict, Verdict::NotRun { .. });
        if let Some(reason) = claim.again.get(size).filter(|_| is_run) {
            finding.verdict = Verdict::Again { reason: reason.clone() };
        }
        Ok(finding)
    };
    claims.map(decide).collect()
}

/// Checks the claim's expressions against placeholder results, before any run.
pub(crate) fn check(claim: &Claim, checker: &Checker) -> Result<(), DefinitionError> {
    let in_claim = |source| DefinitionError::Claim { claim: claim.name.clone(), source };
    expressions(claim).iter().try_for_each(|ours| checker.check_value(ours)).map_err(in_claim)?;
    let over_seeds = SUMMARY.map(|name| (name, 1.0));
    let rules = [(&claim.item, &[("x", 1.0)][..]), (&claim.in_part, &over_seeds)];
    let rules = rules.into_iter().filter_map(|(rule, known)| Some((rule.as_ref()?, known)));
    let mut rules = rules.chain([(&claim.holds, &over_seeds[..])]);
    rules.try_for_each(|(rule, known)| checker.check_rule(rule, known)).map_err(in_claim)
}

/// The claim's expression, once for each element of `each`.
fn expressions(claim: &Claim) -> Vec<String> {
    match claim.each.as_slice() {
        [] => vec![claim.ours.clone()],
        each => each.iter().map(|one| claim.ours.replace('$', one)).collect(),
    }
}

/// Decides a claim; if it needs a run without a result, the verdict is `NotRun`.
fn find(claim: &Claim, seeds: &[u64], results: &Arc<Results>) -> Result<Finding, DefinitionError> {
    let mut finding = Finding {
        name: claim.name.clone(),
        paper: claim.paper.clone(),
        ours: "-".into(),
        mean: f64::NAN,
        seeds: seeds.len(),
        evidence: claim.evidence,
        verdict: Verdict::DoesNotHold,
        rule: claim.holds.clone(),
    };
    finding.verdict = match measure(claim, seeds, results, &mut finding) {
        Ok(verdict) => verdict,
        Err(ExpressionError::MissingRun { run }) => Verdict::NotRun { run },
        Err(source) => {
            return Err(DefinitionError::Claim { claim: claim.name.clone(), source });
        }
    };
    if let Some(item) = &claim.item {
        finding.rule += &format!("; an item counts if {item}");
    }
    Ok(finding)
}

/// Evaluates the claim over all seeds, fills in our value, and decides by the claim's rules.
fn measure(
    claim: &Claim,
    seeds: &[u64],
    results: &Arc<Results>,
    finding: &mut Finding,
) -> Result<Verdict, ExpressionError> {
    let mut means = Vec::new();
    let (mut counted, mut items) = (0, 0);
    for seed in seeds {
        let engine = engine(*seed, results);
        let values = expressions(claim).into_iter().map(|ours| value(&engine, &ours));
        let values = values.collect::<Result<Vec<f64>, _>>()?;
        if let Some(item) = &claim.item {
            for x in &values {
                counted += usize::from(rule(&engine, item, &mut scope(&[("x", *x)]))?);
            }
        }
        items += values.len();
        means.push(mean(&values));
    }
    let summary = Summary::of(&means);
    finding.mean = summary.mean;
    finding.ours = claim.show.format(&summary);
    if claim.item.is_some() {
        finding.ours += &format!("; in {counted} of {items}");
    }
    let part = if items > 0 { counted as f64 / items as f64 } else { 0.0 };
    let error = summary.spread / (seeds.len() as f64).sqrt();
    let Summary { mean, low, high, spread } = summary;
    let values = [mean, low, high, spread, error, part];
    let variables: Vec<(&str, f64)> = SUMMARY.into_iter().zip(values).collect();
    let engine = engine(seeds[0], results);
    let is_true = |text: &str| rule(&engine, text, &mut scope(&variables));
    match &claim.in_part {
        _ if is_true(&claim.holds)? => Ok(Verdict::Holds),
        Some(in_part) if is_true(in_part)? => {
            finding.rule = format!("in part if {in_part}; fully if {}", claim.holds);
            Ok(Verdict::InPart)
        }
        _ => Ok(Verdict::DoesNotHold),
    }
}

/// The variables of rules, computed from the values of all seeds.
const SUMMARY: [&str; 6] = ["mean", "low", "high", "spread", "error", "part"];

impl Show {
    fn format(self, summary: &Summary) -> String {
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
