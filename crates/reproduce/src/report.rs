//! The report of an experiment: a table for the terminal, and a page with tables and figures.

use std::sync::Arc;

use paceline_watch::article::{Article, CaptionedTable};
use paceline_watch::figure::Figure;
use paceline_watch::table::table;

use crate::claims::{Finding, Verdict, decide};
use crate::error::{DefinitionError, ExperimentError};
use crate::experiment::{Evidence, Experiment};
use crate::figures::draw;
use crate::result::{Measurement, Results};

/// The results and findings of an experiment.
pub struct ExperimentReport<'a> {
    pub experiment: &'a Experiment,
    pub size: &'a str,
    pub seeds: &'a [u64],
    pub results: Arc<Results>,
    pub findings: Vec<Finding>,
}

impl<'a> ExperimentReport<'a> {
    /// Decides the claims of an experiment by its results.
    pub fn new(
        experiment: &'a Experiment,
        size: &'a str,
        seeds: &'a [u64],
        results: Results,
    ) -> Result<ExperimentReport<'a>, ExperimentError> {
        let results = Arc::new(results);
        let findings = decide(experiment, size, seeds, &results);
        let findings = findings.map_err(|source| invalid(experiment, source))?;
        Ok(ExperimentReport { experiment, size, seeds, results, findings })
    }

    fn of(&self, evidence: Evidence) -> impl Iterator<Item = &Finding> {
        self.findings.iter().filter(move |finding| finding.evidence == evidence)
    }

    fn claims(&self, evidence: Evidence) -> Vec<Vec<String>> {
        let row = |finding: &Finding| {
            let Finding { name, paper, ours, .. } = finding;
            vec![name.clone(), paper.clone(), ours.clone(), finding.to_string()]
        };
        self.of(evidence).map(row).collect()
    }

    /// The claims that have to be run again, by reason.
    fn again(&self) -> Vec<String> {
        let mut reasons: Vec<&String> = vec![];
        for finding in &self.findings {
            if let Verdict::Again { reason } = &finding.verdict
                && !reasons.contains(&reason)
            {
                reasons.push(reason);
            }
        }
        reasons.into_iter().map(|reason| format!("To be run again: {reason}.")).collect()
    }

    /// The tables of claims, for the terminal.
    pub fn text(&self) -> String {
        let Experiment { title, paper, .. } = self.experiment;
        let mut tables = String::new();
        for evidence in Evidence::ALL {
            let claims = self.claims(evidence);
            if !claims.is_empty() {
                let table = table(&["claim", "paper", "ours", "verdict"], &claims, &[]);
                tables += &format!("\n{}:\n\n{table}", evidence.heading());
            }
        }
        let again = self.again();
        if !again.is_empty() {
            tables += &format!("\n{}\n", again.join("\n"));
        }
        let remarks: String =
            self.results.remarks.iter().map(|remark| format!("Note: {remark}.\n")).collect();
        format!("{title} ({paper}; {})\n{tables}{remarks}", self.size())
    }

    fn size(&self) -> String {
        match self.seeds.len() {
            1 => format!("{}, one seed", self.size),
            n => format!("{}, {n} seeds", self.size),
        }
    }

    pub fn figures(&self) -> Result<Vec<Figure>, ExperimentError> {
        let figures = draw(self.experiment, self.size, self.seeds, &self.results);
        figures.map_err(|source| invalid(self.experiment, source))
    }

    /// The page; `command` is the command line that reproduces it.
    pub fn html(&self, command: &str) -> Result<String, ExperimentError> {
        let claims = |evidence: Evidence| CaptionedTable {
            caption: format!("{} ({})", evidence.heading(), self.size()),
            header: ["claim", "paper", "ours", "verdict", "holds if"].map(str::to_owned).to_vec(),
            rows: self
                .claims(evidence)
                .into_iter()
                .zip(self.of(evidence))
                .map(|(mut row, finding)| {
                    row.push(finding.rule.clone());
                    row
                })
                .collect(),
            numbers: vec![],
        };
        let tables = Evidence::ALL.into_iter().map(claims).filter(|table| !table.rows.is_empty());
        let runs = CaptionedTable {
            caption: "All runs, means over the seeds".to_owned(),
            header: ROW_HEADER.map(str::to_owned).to_vec(),
            rows: rows(self.seeds, &self.results),
            numbers: (0..ROW_HEADER.len())
                .map(|i| (1..ROW_HEADER.len() - 1).contains(&i))
                .collect(),
        };
        let figures = self.figures()?;
        let mut notes = self.experiment.about.clone();
        notes.push(format!(
            "Times are simulated, gradients are real. To repeat the experiment: {command}"
        ));
        notes.extend(self.again());
        notes.extend(self.results.remarks.iter().map(|remark| format!("Note: {remark}.")));
        for finding in &self.findings {
            if let Verdict::NotRun { run } = &finding.verdict {
                let name = &finding.name;
                notes.push(format!("\"{name}\" was not decided: the run `{run}` has no result"));
            }
        }
        let article = Article {
            title: format!("{}: {}", self.experiment.title, self.experiment.paper),
            remarks: self.results.failures.iter().map(ToString::to_string).collect(),
            tables: tables.chain([runs]).collect(),
            figures,
            notes,
        };
        Ok(article.html())
    }
}

fn invalid(experiment: &Experiment, source: DefinitionError) -> ExperimentError {
    ExperimentError::Invalid { experiment: experiment.name.clone(), source }
}

/// One row per run, with means over the seeds.
fn rows(seeds: &[u64], results: &Results) -> Vec<Vec<String>> {
    let mut names: Vec<&str> = results.all().map(|result| result.run.as_str()).collect();
    names.dedup();
    let row = |name: &&str| {
        let runs: Vec<&Measurement> =
            seeds.iter().filter_map(|seed| results.get(name, *seed)).collect();
        let first = *runs.first()?;
        let mean = |metric: &str| {
            let values = runs.iter().filter_map(|run| run.metric(metric));
            values.sum::<f64>() / runs.len() as f64
        };
        let diverged = runs.iter().filter(|run| run.diverged.is_some()).count();
        let write = |x: f64, digits: usize| {
            if x.is_finite() { format!("{x:.digits$}") } else { "-".to_owned() }
        };
        Some(vec![
            (*name).to_owned(),
            runs.len().to_string(),
            format!("{}", first.rate),
            write(mean("seconds"), 2),
            write(mean("target_time"), 2),
            write(mean("loss"), 4),
            write(100.0 * mean("accuracy"), 2),
            write(mean("bytes") / 1e6, 1),
            write(mean("period"), 2),
            write(100.0 * mean("busy"), 1),
            if diverged > 0 { format!("{diverged} diverged") } else { String::new() },
        ])
    };
    names.iter().filter_map(row).collect()
}

const ROW_HEADER: [&str; 11] = [
    "run",
    "seeds",
    "rate",
    "seconds",
    "to target",
    "loss",
    "accuracy, %",
    "MB sent",
    "period",
    "busy, %",
    "",
];
