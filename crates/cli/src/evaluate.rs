//! `paceline evaluate`: evaluates a trained model on a test set.

use std::path::PathBuf;

use clap::Args;
use paceline_data::class_name;
use paceline_job::evaluate::{Evaluation, evaluate};
use paceline_watch::table::{count, table};
use serde::Serialize;

use crate::checkpoint::weights;
use crate::error::{CliError, CliResult};
use crate::output::{print, print_json, say};

/// Evaluate a trained model on a test set
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct Evaluate {
    /// A checkpoint, or a folder of checkpoints, of which the newest intact one is used
    checkpoint: PathBuf,
    /// Evaluate on another data set of the same shape [default: the data set of the training]
    #[arg(long, value_name = "D")]
    data: Option<String>,
    /// Folder of the data sets [default: as in the training]
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  paceline train --checkpoints saved && paceline evaluate saved
  paceline evaluate saved --json";

/// Number of confused pairs of classes in the table.
const PAIRS_SHOWN: usize = 5;

/// The output of `--json`. Field names are part of the interface.
#[derive(Serialize)]
struct EvaluationReport {
    checkpoint: String,
    model: String,
    data: String,
    epochs: f64,
    /// Number of predictions: one per sample or, in a text, one per character.
    samples: u64,
    correct: u64,
    loss: f64,
    accuracy: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    bits_per_character: Option<f64>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    classes: Vec<Class>,
    /// How often each true class (row) was predicted as each class (column).
    #[serde(skip_serializing_if = "Vec::is_empty")]
    confusion: Vec<Vec<u64>>,
}

#[derive(Serialize)]
struct Class {
    name: String,
    samples: u64,
    correct: u64,
    accuracy: Option<f64>,
}

impl Evaluate {
    pub fn run(&self) -> CliResult {
        let weights = weights(&self.checkpoint)?;
        let job = &weights.manifest.job;
        let data = self.data.as_deref().unwrap_or(&job.data);
        let test =
            weights.test_set(Some(data), self.data_dir.as_deref()).map_err(CliError::usage)?;
        let model = weights.model(test.as_ref()).map_err(CliError::usage)?;
        let name = |class: usize| class_name(data, class);
        if (0..test.classes()).any(|class| name(class) != class_name(&job.data, class)) {
            say(&format!(
                "the classes of {data} differ from those of {}, the training data",
                job.data
            ));
        }
        let evaluation =
            evaluate(model.as_ref(), &weights.params, test.as_ref()).map_err(CliError::usage)?;
        // Only text models make several predictions per sample.
        let is_text = evaluation.answers > test.len();
        let report = EvaluationReport {
            checkpoint: weights.path.display().to_string(),
            model: job.model.clone(),
            data: data.to_owned(),
            epochs: weights.manifest.samples as f64 / weights.manifest.samples_per_epoch as f64,
            samples: evaluation.answers,
            correct: evaluation.correct,
            loss: evaluation.loss(),
            accuracy: evaluation.accuracy(),
            bits_per_character: is_text.then(|| evaluation.loss() / std::f64::consts::LN_2),
            classes: if is_text { vec![] } else { classes(&evaluation, name) },
            confusion: if is_text { vec![] } else { evaluation.confusion.clone() },
        };
        if self.json {
            return print_json(&report);
        }
        let tables = if is_text { String::new() } else { tables(&report, &evaluation) };
        print(&format!("{}{tables}", summary(&report)))
    }
}

fn classes(evaluation: &Evaluation, name: impl Fn(usize) -> String) -> Vec<Class> {
    let class = |(class, row): (usize, &Vec<u64>)| {
        let (samples, correct) = (row.iter().sum::<u64>(), row[class]);
        let accuracy = (samples > 0).then(|| correct as f64 / samples as f64);
        Class { name: name(class), samples, correct, accuracy }
    };
    evaluation.confusion.iter().enumerate().map(class).collect()
}

fn summary(report: &EvaluationReport) -> String {
    let EvaluationReport { checkpoint, model, data, epochs, .. } = report;
    let (samples, loss) = (count(report.samples), report.loss);
    let accuracy = percent(report.accuracy);
    let first = format!("{checkpoint}: {model} after {epochs:.2} epochs, evaluated on {data}\n");
    let second = match report.bits_per_character {
        Some(bits) => format!(
            "{samples} characters: loss {loss:.4} nats = {bits:.4} bits per character, accuracy {accuracy}\n"
        ),
        None => format!("{samples} samples: loss {loss:.4}, accuracy {accuracy}\n"),
    };
    first + second.as_str()
}

fn tables(report: &EvaluationReport, evaluation: &Evaluation) -> String {
    let confused = evaluation.confused();
    let name = |class: usize| report.classes[class].name.clone();
    let part_of = |class: usize, times: u64| times as f64 / report.classes[class].samples as f64;
    let row = |(index, class): (usize, &Class)| {
        let worst = confused.iter().find(|pair| pair.class == index);
        let taken_for = worst.map(|pair| {
            format!("{} ({})", name(pair.taken_for), percent(part_of(index, pair.times)))
        });
        let accuracy = class.accuracy.map_or_else(|| "-".to_owned(), percent);
        vec![class.name.clone(), count(class.samples), accuracy, taken_for.unwrap_or_default()]
    };
    let rows: Vec<_> = report.classes.iter().enumerate().map(row).collect();
    let header = ["class", "samples", "accuracy", "most frequent error"];
    let classes = table(&header, &rows, &[false, true, true]);
    let pair = |pair: &paceline_job::evaluate::Confused| {
        let part = percent(part_of(pair.class, pair.times));
        vec![name(pair.class), name(pair.taken_for), count(pair.times), part]
    };
    let rows: Vec<_> = confused.iter().take(PAIRS_SHOWN).map(pair).collect();
    if rows.is_empty() {
        return format!("\n{classes}");
    }
    let header = ["true class", "predicted as", "times", "of its class"];
    format!("\n{classes}\nMost confused\n{}", table(&header, &rows, &[false, false, true, true]))
}

pub fn percent(part: f64) -> String {
    format!("{:.1} %", 100.0 * part)
}
