//! Classifies samples with a trained model.

use std::cmp::Ordering;
use std::path::Path;
use std::sync::Arc;

use paceline_data::{ImageForm, Picture, image_form, load};
use paceline_learn::{Batch, Dataset, Model, Scratch, Table, Text, Vocabulary};

use crate::checkpoint::Weights;
use crate::error::{Error, InferenceError, TaskError};
use crate::{data, models};

/// A class and its predicted probability.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Guess {
    pub class: usize,
    pub probability: f64,
}

/// For each row all classes, the most likely first.
pub fn classify(
    model: &dyn Model,
    params: &[f32],
    rows: &[f32],
    features: usize,
    classes: usize,
) -> Result<Vec<Vec<Guess>>, InferenceError> {
    let mut guesses = Vec::with_capacity(rows.len() / features);
    let (mut batch, mut scratch) = (Batch::new(), Scratch::default());
    for inputs in rows.chunks(features * model.micro_batch_max()) {
        let samples = inputs.len() / features;
        batch.features = features;
        batch.inputs = inputs.to_vec();
        batch.labels = vec![0; samples];
        batch.keys = vec![0; samples];
        let logits = model.outputs(params, &batch, &mut scratch);
        if logits.len() != samples * classes {
            return Err(InferenceError::NoClassPerSample);
        }
        guesses.extend(logits.chunks_exact(classes).map(ranked));
    }
    Ok(guesses)
}

/// The classes by descending logit; equal logits in the order of the classes.
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

/// Probabilities in proportion to exp(logit / temperature).
pub(crate) fn softmax(logits: &[f32], temperature: f64) -> Vec<f64> {
    let highest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let weight = |logit: &f32| (f64::from(logit - highest) / temperature).exp();
    let weights: Vec<f64> = logits.iter().map(weight).collect();
    let sum: f64 = weights.iter().sum();
    weights.iter().map(|weight| weight / sum).collect()
}

/// The inputs for a picture, of a model that was trained on images of this form.
pub fn inputs_of(picture: &Picture, form: &ImageForm, inverted: bool) -> Vec<f32> {
    let mut levels = picture.levels(form.extent);
    if inverted {
        levels.iter_mut().for_each(|level| *level = 255.0 - *level);
    }
    form.normalize(&mut levels);
    levels
}

impl Weights {
    /// The model of these weights, for samples of this shape.
    pub fn model(&self, samples: &dyn Dataset) -> Result<Arc<dyn Model>, Error> {
        let job = &self.manifest.job;
        if job.model == "quadratic" {
            return Err(InferenceError::Noise.into());
        }
        let model = models::named(&job.model, samples, job.path()?)?;
        if model.size() != self.params.len() {
            let (params, expected) = (self.params.len(), model.size());
            let (model, data) = (job.model.clone(), job.data.clone());
            return Err(InferenceError::Params { params, model, data, expected }.into());
        }
        Ok(model)
    }

    /// The form of the images that the model was trained on, and the model; needs no data files.
    pub fn image_model(&self) -> Result<(ImageForm, Arc<dyn Model>), Error> {
        let data = self.manifest.job.data.clone();
        let form = image_form(&data).ok_or_else(|| match load::text(&data) {
            Some(_) => InferenceError::TrainedOnText { data },
            None => InferenceError::NotTrainedOnImages { data },
        })?;
        let (extent, classes) = (form.extent, form.classes);
        let model = self.model(&Table { extent, classes, inputs: vec![], labels: vec![] })?;
        Ok((form, model))
    }

    /// A text with the vocabulary that the model was trained on, and the model; needs no data files.
    pub fn text_model(&self) -> Result<(Text, Arc<dyn Model>), Error> {
        let text = Text::unknown(self.vocabulary()?, load::CONTEXT);
        let model = self.model(&text)?;
        Ok((text, model))
    }

    fn vocabulary(&self) -> Result<Vocabulary, Error> {
        if let Some(vocabulary) = &self.manifest.vocabulary {
            return Ok(vocabulary.clone());
        }
        let data = &self.manifest.job.data;
        match load::text(data) {
            Some(text) => Ok(text.map_err(TaskError::from)?.0.vocabulary().clone()),
            None => Err(InferenceError::NotTrainedOnText { data: data.clone() }.into()),
        }
    }

    /// The test set of the job, or of other data of the same shape.
    pub fn test_set(
        &self,
        other: Option<&str>,
        root: Option<&Path>,
    ) -> Result<Arc<dyn Dataset>, Error> {
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
    ) -> Result<(), Error> {
        let job = &self.manifest.job;
        if let (Ok(known), Some(other)) = (self.vocabulary(), test.vocabulary()) {
            // A token is an index into the vocabulary: in another one it is another character.
            return match known == *other {
                true => Ok(()),
                false => Err(InferenceError::OtherCharacters { data: name.to_owned() }.into()),
            };
        }
        if name == job.data {
            return Ok(());
        }
        let trained_shape = match image_form(&job.data) {
            Some(form) => (form.extent, form.classes),
            None => {
                let test = data::named(&job.data, job.seed, root)?.test;
                (test.extent(), test.classes())
            }
        };
        let shape = (test.extent(), test.classes());
        if shape == trained_shape {
            return Ok(());
        }
        let (data, trained_on) = (name.to_owned(), job.data.clone());
        Err(InferenceError::OtherShape { data, shape, trained_on, trained_shape }.into())
    }
}

#[cfg(test)]
mod tests {
    use paceline_learn::net::softmax as softmax_model;

    use super::*;

    #[test]
    fn classes_are_sorted_by_probability_and_equal_ones_by_number() {
        let guesses = ranked(&[1.0, 3.0, 3.0, -0.0, 0.0]);

        let classes: Vec<_> = guesses.iter().map(|guess| guess.class).collect();
        assert_eq!(classes, [1, 2, 0, 3, 4]);
        let sum: f64 = guesses.iter().map(|guess| guess.probability).sum();
        assert!((sum - 1.0).abs() < 1e-12);
        assert!((guesses[0].probability / guesses[2].probability - 2f64.exp()).abs() < 1e-6);
    }

    #[test]
    fn a_low_temperature_sharpens_and_huge_logits_do_not_overflow() {
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
