//! What a trained model says of samples that it has not seen.

use std::cmp::Ordering;
use std::path::Path;
use std::sync::Arc;

use paceline_data::{ImageForm, Picture, image_form, load};
use paceline_learn::{Batch, Dataset, Extent, Model, Scratch, Table, Text, Vocabulary};

use crate::checkpoint::Weights;
use crate::{data, models};

/// A class that a sample may be of.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Guess {
    pub class: usize,
    pub probability: f64,
}

/// What the model says of each row: all classes, the likeliest first.
pub fn classify(
    model: &dyn Model,
    params: &[f32],
    rows: &[f32],
    features: usize,
    classes: usize,
) -> Result<Vec<Vec<Guess>>, String> {
    let mut guesses = Vec::with_capacity(rows.len() / features);
    let (mut batch, mut scratch) = (Batch::new(), Scratch::default());
    for some in rows.chunks(features * model.micro_batch_max()) {
        let samples = some.len() / features;
        batch.features = features;
        batch.inputs = some.to_vec();
        batch.labels = vec![0; samples];
        batch.keys = vec![0; samples];
        let logits = model.outputs(params, &batch, &mut scratch);
        if logits.len() != samples * classes {
            return Err(
                "the model gives no class to a whole sample: if it learned a text, try --text"
                    .into(),
            );
        }
        guesses.extend(logits.chunks_exact(classes).map(ranked));
    }
    Ok(guesses)
}

/// Classes by their logits, the highest first; of equals the first.
fn ranked(logits: &[f32]) -> Vec<Guess> {
    let probabilities = softmax(logits, 1.0);
    let guess = |(class, probability)| Guess { class, probability };
    let mut guesses: Vec<_> = probabilities.into_iter().enumerate().map(guess).collect();
    // Probabilities may be equal where logits are not.
    let logit = |guess: &Guess| logits[guess.class] + 0.0;
    guesses.sort_by(|one, other| match logit(other).total_cmp(&logit(one)) {
        Ordering::Equal => one.class.cmp(&other.class),
        unequal => unequal,
    });
    guesses
}

/// Probabilities, in proportion to exp(logit / temperature).
pub(crate) fn softmax(logits: &[f32], temperature: f64) -> Vec<f64> {
    let highest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let weight = |logit: &f32| (f64::from(logit - highest) / temperature).exp();
    let weights: Vec<f64> = logits.iter().map(weight).collect();
    let sum: f64 = weights.iter().sum();
    weights.iter().map(|weight| weight / sum).collect()
}

/// What a model that learned from images of this form reads of a picture.
pub fn inputs_of(picture: &Picture, form: &ImageForm, inverted: bool) -> Vec<f32> {
    let mut levels = picture.levels(form.extent);
    if inverted {
        levels.iter_mut().for_each(|level| *level = 255.0 - *level);
    }
    form.normalize(&mut levels);
    levels
}

impl Weights {
    /// The model of the weights, made to fit samples such as these.
    pub fn model(&self, samples: &dyn Dataset) -> Result<Arc<dyn Model>, String> {
        let job = &self.manifest.job;
        if job.model == "quadratic" {
            return Err("the model quadratic learned from noise: it tells no classes".into());
        }
        let model = models::named(&job.model, samples, job.path()?)?;
        if model.size() != self.params.len() {
            return Err(format!(
                "the checkpoint's {} parameters do not fit the model {} for {}, which has {}",
                self.params.len(),
                job.model,
                job.data,
                model.size()
            ));
        }
        Ok(model)
    }

    /// The images that the model learned from, by form, and the model; their files need not be there.
    pub fn image_model(&self) -> Result<(ImageForm, Arc<dyn Model>), String> {
        let learned = &self.manifest.job.data;
        let form = image_form(learned).ok_or_else(|| match load::text(learned) {
            Some(_) => {
                format!("the model learned a text ({learned}): let it go on with one by --text")
            }
            None => format!(
                "the model learned {learned}, which are no images: there is nothing to classify"
            ),
        })?;
        let (extent, classes) = (form.extent, form.classes);
        let model = self.model(&Table { extent, classes, inputs: vec![], labels: vec![] })?;
        Ok((form, model))
    }

    /// The text that the model learned from, by its characters, and the model; its file need not be there.
    pub fn text_model(&self) -> Result<(Text, Arc<dyn Model>), String> {
        let text = Text::unknown(self.vocabulary()?, load::CONTEXT);
        let model = self.model(&text)?;
        Ok((text, model))
    }

    fn vocabulary(&self) -> Result<Vocabulary, String> {
        if let Some(vocabulary) = &self.manifest.vocabulary {
            return Ok(vocabulary.clone());
        }
        let learned = &self.manifest.job.data;
        match load::text(learned) {
            Some(text) => {
                let (text, _) = text.map_err(|error| error.to_string())?;
                Ok(text.vocabulary().clone())
            }
            None => Err(format!("the model learned {learned}, which is no text")),
        }
    }

    /// The test set that the job was judged by, or that of other data of the same shape.
    pub fn test_set(
        &self,
        other: Option<&str>,
        root: Option<&Path>,
    ) -> Result<Arc<dyn Dataset>, String> {
        let job = &self.manifest.job;
        let root = root.or(job.data_dir.as_deref());
        let name = other.unwrap_or(&job.data);
        let test = data::named(name, job.seed, root)?.test;
        self.refuse_other_shape(name, test.as_ref(), root)?;
        Ok(test)
    }

    fn refuse_other_shape(
        &self,
        name: &str,
        test: &dyn Dataset,
        root: Option<&Path>,
    ) -> Result<(), String> {
        let job = &self.manifest.job;
        let learned = &job.data;
        if let (Ok(learned), Some(other)) = (self.vocabulary(), test.vocabulary()) {
            // A token is a place in the vocabulary: in another one it is another character.
            return match learned == *other {
                true => Ok(()),
                false => Err(format!(
                    "{name} has other characters than the text that the model learned: give one with the same"
                )),
            };
        }
        if name == learned {
            return Ok(());
        }
        let (extent, classes) = match image_form(learned) {
            Some(form) => (form.extent, form.classes),
            None => {
                let test = data::named(learned, job.seed, root)?.test;
                (test.extent(), test.classes())
            }
        };
        if (test.extent(), test.classes()) == (extent, classes) {
            return Ok(());
        }
        Err(format!(
            "{name} has {}, but the model learned {learned}: {}",
            in_words(test.extent(), test.classes()),
            in_words(extent, classes)
        ))
    }
}

fn in_words(Extent { height, width, channels }: Extent, classes: usize) -> String {
    match (height, width) {
        (1, 1) => format!("rows of {channels} numbers in {classes} classes"),
        _ => format!("{height} x {width} x {channels} images in {classes} classes"),
    }
}

#[cfg(test)]
mod tests {
    use paceline_learn::net::softmax as softmax_model;

    use super::*;

    #[test]
    fn classes_come_by_probability_and_equals_in_order() {
        let guesses = ranked(&[1.0, 3.0, 3.0, -0.0, 0.0]);

        let classes: Vec<_> = guesses.iter().map(|guess| guess.class).collect();
        assert_eq!(classes, [1, 2, 0, 3, 4]);
        let sum: f64 = guesses.iter().map(|guess| guess.probability).sum();
        assert!((sum - 1.0).abs() < 1e-12);
        assert!((guesses[0].probability / guesses[2].probability - 2f64.exp()).abs() < 1e-6);
    }

    #[test]
    fn a_low_temperature_sharpens_and_huge_logits_stay_numbers() {
        assert!(softmax(&[1.0, 2.0], 0.01)[1] > 0.999);
        assert_eq!(softmax(&[1e30, -1e30], 1.0), [1.0, 0.0]);
    }

    #[test]
    fn more_rows_than_a_micro_batch_are_all_classified_in_order() {
        // Class 1 where the only feature is above zero.
        let model = softmax_model(1, 2);
        let params = [0.0, 1.0, 0.0, 0.0];
        let rows: Vec<f32> = (0..1000).map(|i| if i % 3 == 0 { 1.0 } else { -1.0 }).collect();

        let guesses = classify(&model, &params, &rows, 1, 2).unwrap();

        assert_eq!(guesses.len(), 1000);
        for (i, guesses) in guesses.iter().enumerate() {
            assert_eq!(guesses[0].class, usize::from(i % 3 == 0), "{i}");
        }
    }
}
