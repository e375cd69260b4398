//! Experiments by name, and those that users write themselves.

use paceline_job::description::read_description;
use paceline_job::suggest::unknown;

use crate::experiment::Experiment;

/// Every experiment that comes with Paceline: its name and its TOML.
pub const ALL: [(&str, &str); 5] = [
    ("dynamic-sgd", include_str!("../../../experiments/dynamic-sgd.toml")),
    ("abs-sgd", include_str!("../../../experiments/abs-sgd.toml")),
    ("dbs", include_str!("../../../experiments/dbs.toml")),
    ("how-to-scale", include_str!("../../../experiments/how-to-scale.toml")),
    ("adpsgd", include_str!("../../../experiments/adpsgd.toml")),
];

/// The experiment of that name, or in that file.
pub fn load(name_or_path: &str) -> Result<Experiment, String> {
    let is_path = name_or_path.ends_with(".toml") || name_or_path.contains(['/', '\\']);
    if is_path {
        let text =
            read_description("experiment", name_or_path).map_err(|error| error.to_string())?;
        return Experiment::from_toml(name_or_path, &text);
    }
    let found = ALL.iter().find(|(known, _)| *known == name_or_path);
    let (name, text) = found.ok_or_else(|| {
        let names = ALL.map(|(known, _)| known).join(", ");
        let otherwise = format!("there are {names}, all, and paths to .toml files");
        unknown("experiment", name_or_path, ALL.iter().map(|(known, _)| *known), &otherwise)
            .to_string()
    })?;
    Experiment::from_toml(name, text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runs::{Limits, Runs};

    #[test]
    fn every_experiment_bears_its_name_and_can_be_run_in_every_size() {
        for (name, _) in ALL {
            let experiment = load(name).expect("what comes with Paceline is sound");

            assert_eq!(experiment.name, name);
            for size in ["smoke", "quick", "standard", "long"] {
                let runs = Runs::of(&experiment, size, &Limits::default()).expect("it is sound");
                assert!(!runs.plain.is_empty() || !runs.tunings.is_empty(), "{name}, {size}");
            }
        }
    }

    /// Fewer, and a round is more of an epoch than claims about rounds can bear.
    #[test]
    fn an_epoch_has_at_least_twenty_rounds() {
        for (name, _) in ALL {
            let experiment = load(name).expect("it is sound");
            for size in ["smoke", "quick", "standard", "long"] {
                let runs = Runs::of(&experiment, size, &Limits::default()).expect("it is sound");
                let tuned = runs.tunings.iter().flat_map(|tuning| tuning.candidates.iter());
                for run in runs.plain.iter().chain(tuned) {
                    let most = run.scenario.sizes.iter().map(|size| size.workers).max();
                    let workers = u64::from(run.scenario.workers.max(most.unwrap_or(0)));
                    let batch = run.job.batch.map(|batch| batch * workers).or(run.job.batch_total);
                    let samples = match run.job.data.as_str() {
                        "digits" => 1_437,
                        "fashion-mnist" => 60_000,
                        "cifar10" => 50_000,
                        other => panic!("{other} is of unknown size"),
                    };
                    let rounds = samples / batch.expect("the batch is told");
                    assert!(rounds >= 20, "{name}, {size}, {}: {rounds} rounds", run.name);
                }
            }
        }
    }

    /// Dynamic SGD's ramp takes 8 k rounds after growth by k: with fewer it would never be seen to work.
    #[test]
    fn every_ramp_ends_before_the_next_change() {
        let experiment = load("dynamic-sgd").expect("it is sound");
        for (size, samples) in
            [("smoke", 1437.0), ("quick", 1437.0), ("standard", 6e4), ("long", 5e4)]
        {
            let runs = Runs::of(&experiment, size, &Limits::default()).expect("it is sound");
            for run in &runs.plain {
                let batch = run.job.batch.expect("the batch is told") as f64;
                let mut workers = run.scenario.workers;
                let sizes = &run.scenario.sizes;
                for (i, change) in sizes.iter().enumerate() {
                    let at = change.at_epoch.expect("sizes come with epochs");
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
            let experiment = load(name).expect("it is sound");
            let runs = Runs::of(&experiment, "quick", &Limits::default()).expect("it is sound");
            let tuned = runs.tunings.iter().flat_map(|tuning| tuning.candidates.iter());
            for run in runs.plain.iter().chain(tuned) {
                let most = run.scenario.sizes.iter().map(|size| size.workers).max().unwrap_or(0);
                assert!(run.scenario.workers.max(most) <= 16, "{}", run.name);
            }
        }
    }
}
