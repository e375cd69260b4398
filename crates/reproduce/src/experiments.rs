//! Loads and checks experiments: built-in ones by name, others from files.

use paceline_job::description::read_description;
use paceline_job::suggest::unknown;

use crate::claims::{self, Checker};
use crate::error::ExperimentError;
use crate::experiment::Experiment;
use crate::figures;

/// The built-in experiments: name and TOML text.
pub const ALL: [(&str, &str); 5] = [
    ("dynamic-sgd", include_str!("../../../experiments/dynamic-sgd.toml")),
    ("abs-sgd", include_str!("../../../experiments/abs-sgd.toml")),
    ("dbs", include_str!("../../../experiments/dbs.toml")),
    ("how-to-scale", include_str!("../../../experiments/how-to-scale.toml")),
    ("adpsgd", include_str!("../../../experiments/adpsgd.toml")),
];

/// Loads a built-in experiment by name, or any experiment from a file.
pub fn load(name_or_path: &str) -> Result<Experiment, ExperimentError> {
    let is_path = name_or_path.ends_with(".toml") || name_or_path.contains(['/', '\\']);
    if is_path {
        let text = read_description("experiment", name_or_path)
            .map_err(|error| ExperimentError::Read(error.to_string()))?;
        return parse(name_or_path, &text);
    }
    let found = ALL.iter().find(|(known, _)| *known == name_or_path);
    let (name, text) = found.ok_or_else(|| {
        let names = ALL.map(|(known, _)| known).join(", ");
        let otherwise = format!("there are {names}, all, and paths to .toml files");
        let known = ALL.iter().map(|(known, _)| *known);
        unknown("experiment", name_or_path, known, &otherwise)
    })?;
    parse(name, text)
}

/// Parses and checks an experiment; `from` is its name or path, for error messages.
pub fn parse(from: &str, text: &str) -> Result<Experiment, ExperimentError> {
    let experiment = Experiment::from_toml(from, text)?;
    let checker = Checker::new(experiment.run_names());
    let mut claims = experiment.claims.iter();
    let mut figures = experiment.figures.iter();
    let checked = claims
        .try_for_each(|claim| claims::check(claim, &checker))
        .and_then(|()| figures.try_for_each(|figure| figures::check(figure, &checker)));
    checked.map_err(|source| ExperimentError::Invalid { experiment: from.to_owned(), source })?;
    Ok(experiment)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runs::{RunFilter, Runs};

    #[test]
    fn every_experiment_has_its_name_and_runs_in_every_size() {
        for (name, _) in ALL {
            let experiment = load(name).expect("built-in experiments are valid");

            assert_eq!(experiment.name, name);
            for size in ["smoke", "quick", "standard", "long"] {
                let runs =
                    Runs::of(&experiment, size, &RunFilter::default()).expect("the runs are valid");
                assert!(!runs.plain.is_empty() || !runs.tunings.is_empty(), "{name}, {size}");
            }
        }
    }

    /// With fewer rounds a single round would be too large a part of an epoch for claims about rounds.
    #[test]
    fn an_epoch_has_at_least_twenty_rounds() {
        for (name, _) in ALL {
            let experiment = load(name).expect("built-in experiments are valid");
            for size in ["smoke", "quick", "standard", "long"] {
                let runs =
                    Runs::of(&experiment, size, &RunFilter::default()).expect("the runs are valid");
                let tuned = runs.tunings.iter().flat_map(|tuning| tuning.candidates.iter());
                for run in runs.plain.iter().chain(tuned) {
                    let most = run.scenario.sizes.iter().map(|size| size.workers).max();
                    let workers = u64::from(run.scenario.workers.max(most.unwrap_or(0)));
                    let batch = run.job.batch.map(|batch| batch * workers).or(run.job.batch_total);
                    let samples = match run.job.data.as_str() {
                        "digits" => 1_437,
                        "fashion-mnist" => 60_000,
                        "cifar10" => 50_000,
                        other => panic!("the number of samples of {other} is unknown"),
                    };
                    let rounds = samples / batch.expect("the job sets a batch");
                    assert!(rounds >= 20, "{name}, {size}, {}: {rounds} rounds", run.name);
                }
            }
        }
    }

    /// Dynamic SGD's ramp takes 8 k rounds after growth by k; with fewer rounds it would not be complete.
    #[test]
    fn every_ramp_ends_before_the_next_change() {
        let experiment = load("dynamic-sgd").expect("built-in experiments are valid");
        for (size, samples) in
            [("smoke", 1437.0), ("quick", 1437.0), ("standard", 6e4), ("long", 5e4)]
        {
            let runs =
                Runs::of(&experiment, size, &RunFilter::default()).expect("the runs are valid");
            for run in &runs.plain {
                let batch = run.job.batch.expect("the job sets a batch") as f64;
                let mut workers = run.scenario.workers;
                let sizes = &run.scenario.sizes;
                for (i, change) in sizes.iter().enumerate() {
                    let at = change.at_epoch.expect("sizes change at epochs");
                    let next = sizes.get(i + 1).and_then(|next| next.at_epoch);
                    let epochs = next.unwrap_or(run.job.epochs) - at;
                    let rounds = epochs * samples / (batch * f64::from(change.workers));
                    let k = f64::from(change.workers) / f64::from(workers);
                    assert!(k <= 1.0 || rounds >= 8.0 * k, "{size}, {}: {rounds} rounds", run.name);
                    workers = change.workers;
                }
            }
        }
    }

    #[test]
    fn quick_runs_have_few_workers() {
        for (name, _) in ALL {
            let experiment = load(name).expect("built-in experiments are valid");
            let runs =
                Runs::of(&experiment, "quick", &RunFilter::default()).expect("the runs are valid");
            let tuned = runs.tunings.iter().flat_map(|tuning| tuning.candidates.iter());
            for run in runs.plain.iter().chain(tuned) {
                let most = run.scenario.sizes.iter().map(|size| size.workers).max().unwrap_or(0);
                assert!(run.scenario.workers.max(most) <= 16, "{}", run.name);
            }
        }
    }
}
