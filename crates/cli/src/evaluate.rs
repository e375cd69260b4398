//! `paceline evaluate`: how good what was learned is on a test set.

use std::path::PathBuf;

use clap::Args;
use paceline_data::class_name;
use paceline_job::evaluate::{Evaluation, evaluate};
use paceline_watch::table::{count, table};
use serde::Serialize;

use crate::checkpoint::weights;
use crate::output::{Ended, Ending, print, print_json, say};

/// Judge what was learned on a test set
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct Evaluate {
    /// A checkpoint, or a folder of them: then the newest whole one
    checkpoint: PathBuf,
    /// Another data set of the same shape [default: the one that was learned]
    #[arg(long, value_name = "D")]
    data: Option<String>,
    /// Where data sets lie [default: as when it was learned]
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  paceline train --checkpoints saved && paceline evaluate saved
  paceline evaluate saved/round-000900 --json";

/// So many confused pairs are told.
const PAIRS: usize = 5;

/// The result as programs read it; field names are a promise.
#[derive(Serialize)]
struct Judged {
    checkpoint: String,
    model: String,
    data: String,
    epochs: f64,
    /// Answers that were judged: samples or, in a text, characters.
    samples: u64,
    correct: u64,
    loss: f64,
    accuracy: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    bits_per_character: Option<f64>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    classes: Vec<Class>,
    /// How often each class (row) was taken for each (column).
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
    pub fn run(&self) -> Ended {
        let weights = weights(&self.checkpoint)?;
        let job = &weights.manifest.job;
        let data = self.data.as_deref().unwrap_or(&job.data);
        let test = weights.test_set(Some(data), self.data_dir.as_deref()).map_err(Ending::of)?;
        let model = weights.model(test.as_ref()).map_err(Ending::of)?;
        let name = |class: usize| class_name(data, class);
        if (0..test.classes()).any(|class| name(class) != class_name(&job.data, class)) {
            say(&format!("the classes of {data} are not those of {}, which was learned", job.data));
        }
        let evaluation =
            evaluate(model.as_ref(), &weights.params, test.as_ref()).map_err(Ending::of)?;
        // Only in a text there is more than one answer to a sample.
        let is_text = evaluation.answers > test.len();
        let judged = Judged {
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
            return print_json(&judged);
        }
        let tables = if is_text { String::new() } else { tables(&judged, &evaluation) };
        print(&format!("{}{tables}", summary(&judged)))
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

fn summary(judged: &Judged) -> String {
    let Judged { checkpoint, model, data, epochs, .. } = judged;
    let (samples, loss) = (count(judged.samples), judged.loss);
    let accuracy = percent(judged.accuracy);
    let first = format!("{checkpoint}: {model} after {epochs:.2} epochs, judged by {data}\n");
    let second = match judged.bits_per_character {
        Some(bits) => format!(
            "{samples} characters: loss {loss:.4} nats, {bits:.4} bits per character; {accuracy} of them told right\n"
        ),
        None => format!("{samples} samples: loss {loss:.4}, accuracy {accuracy}\n"),
    };
    first + second.as_str()
}

fn tables(judged: &Judged, evaluation: &Evaluation) -> String {
    let confused = evaluation.confused();
    let name = |class: usize| judged.classes[class].name.clone();
    let part_of = |class: usize, times: u64| times as f64 / judged.classes[class].samples as f64;
    let row = |(index, class): (usize, &Class)| {
        let worst = confused.iter().find(|pair| pair.class == index);
        let taken_for = worst.map(|pair| {
            format!("{} ({})", name(pair.taken_for), percent(part_of(index, pair.times)))
        });
        let accuracy = class.accuracy.map_or_else(|| "-".to_owned(), percent);
        vec![class.name.clone(), count(class.samples), accuracy, taken_for.unwrap_or_default()]
    };
    let rows: Vec<_> = judged.classes.iter().enumerate().map(row).collect();
    let header = ["class", "samples", "right", "else most often"];
    let classes = table(&header, &rows, &[false, true, true]);
    let pair = |pair: &paceline_job::evaluate::Confused| {
        let part = percent(part_of(pair.class, pair.times));
        vec![name(pair.class), name(pair.taken_for), count(pair.times), part]
    };
    let rows: Vec<_> = confused.iter().take(PAIRS).map(pair).collect();
    if rows.is_empty() {
        return format!("\n{classes}");
    }
    let header = ["most confused", "taken for", "times", "of its class"];
    format!("\n{classes}\n{}", table(&header, &rows, &[false, false, true, true]))
}

pub fn percent(part: f64) -> String {
    format!("{:.1} %", 100.0 * part)
}
