//! A job as a file or flags describe it; [`Job::prepare`] checks it.

use std::path::PathBuf;

use paceline_learn::{Optimizer, Path, Shape};
use serde::{Deserialize, Serialize};

use crate::checkpoint_config::Checkpoints;
use crate::choices::{Choices, kind};
use crate::description::{DescriptionError, TomlError, read_description};
use crate::error::{JobError, TaskError};

/// What to train, on which data, and how. Omitted fields have defaults.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Job {
    /// The name of a recipe.
    pub strategy: String,
    /// A training algorithm given axis by axis; it replaces the one of the recipe.
    pub choices: Option<Choices>,
    pub model: String,
    pub data: String,
    /// The folder of the data sets; omitted, the default one.
    pub data_dir: Option<PathBuf>,
    /// Train only on the first N samples; omitted, on all.
    pub samples: Option<u64>,
    /// The part of the training data that is held out for validation: targets are judged on it. At most 1,000 samples.
    #[serde(skip_serializing_if = "is_default_validation")]
    pub validation: f64,
    pub epochs: f64,
    /// The batch of one worker.
    pub batch: Option<u64>,
    /// The batch of all workers of the first view together, instead of `batch`; rounded up to equal batches.
    pub batch_total: Option<u64>,
    pub seed: u64,
    /// For a total batch of `batch_reference`; omitted, the recipe's.
    pub learning_rate: Option<f32>,
    /// The total batch that the learning rate is meant for; omitted, that of the first view.
    pub batch_reference: Option<f64>,
    #[serde(deserialize_with = "kind")]
    pub schedule: Shape,
    /// The fraction of the job over which the learning rate rises.
    pub warm_up: f64,
    pub optimizer: Option<Optimizer>,
    /// The vector instructions that gradients use; omitted, the best that this processor has.
    pub kernels: Option<Path>,
    /// The run reports when the validation loss of the model that would be deployed falls to this.
    pub target_loss: Option<f64>,
    /// The run reports when the validation accuracy of that model rises to this.
    pub target_accuracy: Option<f64>,
    /// The run reports when the training loss, smoothed over half an epoch of samples, falls to this. A job has one target.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target_training_loss: Option<f64>,
    /// Where and how often checkpoints are saved; only on real clusters.
    pub checkpoints: Option<Checkpoints>,
}

/// The batch of one worker, unless a job says otherwise.
const BATCH: u64 = 16;
const BATCH_MAX: u64 = 1 << 24;
const VALIDATION: f64 = 0.1;

fn is_default_validation(part: &f64) -> bool {
    *part == VALIDATION
}

impl Default for Job {
    fn default() -> Job {
        Job {
            strategy: "ssgd".into(),
            choices: None,
            model: "mlp".into(),
            data: "digits".into(),
            data_dir: None,
            samples: None,
            validation: VALIDATION,
            epochs: 20.0,
            batch: None,
            batch_total: None,
            seed: 1,
            learning_rate: None,
            batch_reference: None,
            schedule: Shape::Step { at: vec![0.5, 0.75], factor: 0.1 },
            warm_up: 0.0,
            optimizer: None,
            kernels: None,
            target_loss: None,
            target_accuracy: None,
            target_training_loss: None,
            checkpoints: None,
        }
    }
}

/// The name of a model and of data that are not ours: programs of the user's own hold them, and join as workers.
pub const OWN: &str = "own";

impl Job {
    /// Whether model and data are those of the user's own program.
    pub fn is_own(&self) -> Result<bool, TaskError> {
        match (self.model == OWN, self.data == OWN) {
            (true, true) => Ok(true),
            (false, false) => Ok(false),
            _ => Err(TaskError::HalfOwn),
        }
    }

    /// Reads a job from TOML; an error names the line and the field.
    pub fn from_toml(text: &str) -> Result<Job, TomlError> {
        toml::from_str(text).map_err(|error| TomlError::new(text, &error))
    }

    /// Reads a job from a TOML file; an error names the file, the line and the field.
    pub fn load(path: impl AsRef<std::path::Path>) -> Result<Job, DescriptionError> {
        let text = read_description("job", &path)?;
        let from = path.as_ref().display().to_string();
        Job::from_toml(&text).map_err(|source| DescriptionError::Malformed { from, source })
    }

    /// The kernels that gradients use.
    pub(crate) fn path(&self) -> Result<Path, JobError> {
        match self.kernels {
            Some(path) if !path.is_here() => Err(JobError::NoSuchKernels(path.name())),
            path => Ok(path.unwrap_or_else(Path::best)),
        }
    }

    /// The batch of one worker, if the first view has this many.
    pub(crate) fn batch_of_one(&self, workers: u32) -> Result<u64, JobError> {
        let too_large = |field, batch| JobError::BatchTooLarge { field, batch, most: BATCH_MAX };
        match (self.batch, self.batch_total) {
            _ if workers == 0 => Err(JobError::NoWorkers),
            (Some(_), Some(_)) => Err(JobError::TwoBatches),
            (Some(0), _) => Err(JobError::BatchZero),
            (Some(batch), None) if batch > BATCH_MAX => Err(too_large("batch", batch)),
            (Some(batch), None) => Ok(batch),
            (None, Some(total)) if total < u64::from(workers) => {
                Err(JobError::BatchTotalTooSmall { total, workers })
            }
            (None, Some(total)) => match total.div_ceil(u64::from(workers)) {
                batch if batch > BATCH_MAX => Err(too_large("batch_total", total)),
                batch => Ok(batch),
            },
            (None, None) => Ok(BATCH),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_malformed_job_is_refused_with_line_and_field() {
        let error = |text: &str| Job::from_toml(text).expect_err("it is malformed").to_string();

        let message = error("epochs = 3\nbatch = \"x\"\n");
        assert!(message.starts_with("line 2:") && message.contains("batch"), "{message}");
        assert!(error("[choices]\nstrategy = \"delayed\"\nshares = \"opn\"\n").contains("opn"));
        assert!(error(&format!("epochs = 3\nbatch = \"{}\"\n", "x".repeat(5000))).len() < 600);
    }

    #[test]
    fn a_kind_without_parameters_needs_no_table() {
        let job = Job::from_toml("schedule = \"constant\"\n").expect("it is complete");

        assert_eq!(job.schedule, Shape::Constant);
    }

    #[test]
    fn misspelled_fields_are_refused_at_every_depth() {
        for misspelled in [
            "[choices]\nstrategy = \"delayed\"\nshares = { kind = \"by_speed\", smothing = 0.5 }\n",
            "[choices]\nstrategy = \"all_reduce\"\ncodec = { kind = \"qsgd\", bits = 4, bukcet = 8 }\n",
            "[choices]\nstrategy = \"periodic_average\"\nperiod = { kind = \"adaptive\", steps_first = 4, max = 8 }\n",
            "[optimizer]\nrule = { kind = \"sgd\", momentum = 0.9, nestrov = true }\n",
            "schedule = { kind = \"cosine\", floor = 0.1, flor = 0.2 }\n",
        ] {
            assert!(Job::from_toml(misspelled).is_err(), "{misspelled}");
        }
    }

    /// Whatever is wrong in a job file, no word of the parser or of the program's types is in the message.
    #[test]
    fn no_message_about_a_job_names_a_type() {
        let fields = [
            "strategy",
            "choices",
            "model",
            "data_dir",
            "samples",
            "epochs",
            "batch",
            "seed",
            "learning_rate",
            "schedule",
            "warm_up",
            "optimizer",
            "kernels",
            "checkpoints",
        ];
        let values = [
            "true",
            "-1",
            "1.5",
            "\"x\"",
            "[]",
            "{}",
            "{ kind = 3 }",
            "{ rule = [] }",
            "99999999999999999999",
        ];
        let words = ["i128", "u64", "f64", "f32", "enum", "struct", "variant", "untagged"];
        for field in fields {
            for value in values {
                let Err(error) = Job::from_toml(&format!("{field} = {value}\n")) else { continue };
                let message = error.to_string();
                let found = words.iter().find(|word| message.contains(*word));
                assert_eq!(found, None, "{field} = {value}: {message}");
            }
        }
    }
}
