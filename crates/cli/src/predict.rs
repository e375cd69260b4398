//! `paceline predict`: classifies pictures or test samples, or continues a text.

use std::fs::File;
use std::io::{self, IsTerminal, Read};
use std::num::NonZero;
use std::path::{Path, PathBuf};

use clap::{ArgGroup, Args};
use paceline_data::{ImageForm, Picture, class_name, picture};
use paceline_job::checkpoint::Weights;
use paceline_job::predict::{Guess, classify, inputs_of};
use paceline_job::write::{self, Sampling};
use paceline_watch::table::table;
use serde::Serialize;

use crate::checkpoint::weights;
use crate::error::{CliError, CliResult, UsageError};
use crate::evaluate::percent;
use crate::output::{print, print_json, say, say_error};
use crate::sketch::sketch;

/// Classify pictures or continue a text with a trained model
#[derive(Args)]
#[command(after_help = EXAMPLES, override_usage = USAGE, allow_negative_numbers = true)]
#[command(group(ArgGroup::new("what").required(true).args(["files", "test", "text"])))]
pub struct Predict {
    /// A checkpoint, or a folder of checkpoints, of which the newest intact one is used
    checkpoint: PathBuf,
    /// Pictures: PNG, PGM, PPM, or IDX files of many pictures
    #[arg(value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Use only the first N pictures of each IDX file
    #[arg(long, value_name = "N", conflicts_with_all = ["test", "text"])]
    first: Option<NonZero<usize>>,
    /// Invert the pictures: MNIST and similar data sets are white on black
    #[arg(long, conflicts_with_all = ["test", "text"])]
    invert: bool,
    /// Classify the first N samples of the test set and show their labels
    #[arg(long, value_name = "N")]
    test: Option<NonZero<u64>>,
    /// Show the K most likely classes
    #[arg(long, value_name = "K", default_value = "3", conflicts_with = "text")]
    top: NonZero<usize>,
    /// Continue this text (for models that were trained on text)
    #[arg(long, value_name = "PROMPT")]
    text: Option<String>,
    /// Number of characters to generate
    #[arg(long, value_name = "N", default_value_t = 200, conflicts_with_all = ["files", "test"])]
    length: usize,
    /// Sampling temperature: 0 always picks the most likely character, 1 samples from the model's probabilities
    #[arg(long, value_name = "T", default_value_t = 0.8, conflicts_with_all = ["files", "test"])]
    temperature: f64,
    /// Random seed of the sampling
    #[arg(long, value_name = "S", default_value_t = 1, conflicts_with_all = ["files", "test"])]
    seed: u64,
    /// Folder of the data sets [default: as in the training]
    #[arg(long, value_name = "DIR", conflicts_with_all = ["files", "text"])]
    data_dir: Option<PathBuf>,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

const USAGE: &str = "\
paceline predict [OPTIONS] <CHECKPOINT> <FILE>...
       paceline predict [OPTIONS] <CHECKPOINT> --test <N>
       paceline predict [OPTIONS] <CHECKPOINT> --text <PROMPT>";

const EXAMPLES: &str = "\
Examples:
  paceline predict saved cat.png dog.png
  paceline predict saved scan.pgm --invert
  paceline predict saved --test 5
  paceline predict alice --text \"Alice was\" --length 500";

/// The prediction for one image. Field names are part of the interface.
#[derive(Serialize)]
struct Prediction {
    image: String,
    class: usize,
    name: String,
    /// The true class, if known.
    #[serde(skip_serializing_if = "Option::is_none")]
    label: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    label_name: Option<String>,
    top: Vec<Likely>,
}

#[derive(Serialize)]
struct Likely {
    class: usize,
    name: String,
    probability: f64,
}

#[derive(Serialize)]
struct Written<'a> {
    prompt: &'a str,
    text: &'a str,
}

impl Predict {
    pub fn run(&self) -> CliResult {
        if self.first.is_some() && self.files.iter().all(|path| is_one_picture(path)) {
            return Err(UsageError::FirstWithoutIdx { path: self.files[0].clone() }.into());
        }
        let weights = weights(&self.checkpoint)?;
        match (&self.text, self.test) {
            (Some(prompt), _) => self.continue_text(&weights, prompt),
            (None, Some(samples)) => self.classify_test_set(&weights, samples.get()),
            (None, None) => self.classify_files(&weights),
        }
    }

    fn classify_files(&self, weights: &Weights) -> CliResult {
        let (form, model) = weights.image_model().map_err(CliError::usage)?;
        let (mut names, mut rows, mut unread) = (vec![], vec![], vec![]);
        for path in &self.files {
            let pictures = match picture::read(path, self.first.map(NonZero::get)) {
                Ok(pictures) => pictures,
                // One picture that cannot be read must not cost the results of the others.
                Err(error) => {
                    unread.push(error);
                    continue;
                }
            };
            let path = path.display().to_string();
            pictures.iter().take(1).for_each(|picture| say_resized(&path, picture, &form));
            for (index, picture) in pictures.iter().enumerate() {
                let many = pictures.len() > 1;
                names.push(if many { format!("{path}[{index}]") } else { path.clone() });
                rows.extend(inputs_of(picture, &form, self.invert));
            }
        }
        let (features, classes) = (form.extent.len(), form.classes);
        let guesses = classify(model.as_ref(), &weights.params, &rows, features, classes);
        let guesses = guesses.map_err(CliError::usage)?;
        let predictions = names.into_iter().zip(&guesses);
        let predictions: Vec<_> = predictions
            .map(|(image, guesses)| self.prediction(weights, image, guesses, None))
            .collect();
        if !predictions.is_empty() {
            self.show(&predictions)?;
        }
        let last = unread.pop();
        unread.iter().for_each(say_error);
        last.map_or(Ok(()), |error| Err(CliError::usage(error)))
    }

    fn classify_test_set(&self, weights: &Weights, samples: u64) -> CliResult {
        let test = weights.test_set(None, self.data_dir.as_deref()).map_err(CliError::usage)?;
        let model = weights.model(test.as_ref()).map_err(CliError::usage)?;
        let (features, classes) = (test.features(), test.classes());
        let (mut rows, mut labels) = (vec![], vec![]);
        for index in 0..samples.min(test.len()) {
            let start = rows.len();
            rows.resize(start + features, 0.0);
            labels.push(test.read(index, 0, &mut rows[start..]) as usize);
        }
        let guesses = classify(model.as_ref(), &weights.params, &rows, features, classes);
        let guesses = guesses.map_err(CliError::usage)?;
        let predictions = guesses.iter().zip(labels).enumerate();
        let predictions: Vec<_> = predictions
            .map(|(index, (guesses, label))| {
                self.prediction(weights, format!("test[{index}]"), guesses, Some(label))
            })
            .collect();
        let extent = test.extent();
        if !self.json && extent.height > 1 && io::stdout().is_terminal() {
            for (prediction, row) in predictions.iter().zip(rows.chunks_exact(features)) {
                let picture = sketch(row, extent.width, extent.channels);
                print(&format!("{}\n{picture}\n", prediction.image))?;
            }
        }
        self.show(&predictions)
    }

    fn prediction(
        &self,
        weights: &Weights,
        image: String,
        guesses: &[Guess],
        label: Option<usize>,
    ) -> Prediction {
        let name = |class| class_name(&weights.manifest.job.data, class);
        let likely = |guess: &Guess| Likely {
            class: guess.class,
            name: name(guess.class),
            probability: guess.probability,
        };
        Prediction {
            image,
            class: guesses[0].class,
            name: name(guesses[0].class),
            label,
            label_name: label.map(name),
            top: guesses.iter().take(self.top.get()).map(likely).collect(),
        }
    }

    fn show(&self, predictions: &[Prediction]) -> CliResult {
        if self.json {
            return print_json(&predictions);
        }
        let row = |prediction: &Prediction| {
            let likely = |one: &Likely| format!("{} ({})", one.name, percent(one.probability));
            let top: Vec<_> = prediction.top.iter().map(likely).collect();
            let mut row = vec![prediction.image.clone(), prediction.name.clone()];
            row.extend(prediction.label_name.clone());
            row.push(top.join(", "));
            row
        };
        let header: &[&str] = match self.test {
            Some(_) => &["image", "class", "label", "most likely"],
            None => &["image", "class", "most likely"],
        };
        print(&table(header, &predictions.iter().map(row).collect::<Vec<_>>(), &[]))
    }

    fn continue_text(&self, weights: &Weights, prompt: &str) -> CliResult {
        let (text, model) = weights.text_model().map_err(CliError::usage)?;
        let sampling =
            Sampling { length: self.length, temperature: self.temperature, seed: self.seed };
        let written =
            write::continue_text(model.as_ref(), &weights.params, &text, prompt, &sampling);
        let written = written.map_err(CliError::usage)?;
        match self.json {
            true => print_json(&Written { prompt, text: &written }),
            false => print(&format!("{prompt}{written}\n")),
        }
    }
}

/// Whether the file begins like PNG, PGM or PPM, which contain a single picture.
fn is_one_picture(path: &Path) -> bool {
    let mut magic = [0; 2];
    let read = File::open(path).and_then(|mut file| file.read_exact(&mut magic));
    read.is_ok() && matches!(&magic, b"\x89P" | b"P5" | b"P6")
}

/// Reports that a picture is resized to the size of the training images.
fn say_resized(path: &str, picture: &Picture, form: &ImageForm) {
    let (from, to) = ((picture.width, picture.height), (form.extent.width, form.extent.height));
    if from == to {
        return;
    }
    let is_stretched = from.0 * to.1 != from.1 * to.0;
    let stretched = if is_stretched { ", which changes its aspect ratio" } else { "" };
    say(&format!(
        "{path}: resized from {} x {} to {} x {} pixels{stretched}",
        from.0, from.1, to.0, to.1
    ));
}
