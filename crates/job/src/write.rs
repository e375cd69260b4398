//! Continues a text character by character with a trained language model.

use paceline_learn::kernels::loops::highest;
use paceline_learn::{Batch, Dataset, Dice, Model, Scratch, Text};

use crate::error::InferenceError;
use crate::predict::softmax;

/// How the next characters are chosen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampling {
    /// In characters.
    pub length: usize,
    /// Logits are divided by it; 0 always chooses the most likely character.
    pub temperature: f64,
    pub seed: u64,
}

/// The longest continuation.
const LENGTH_MAX: usize = 1_000_000;

/// Separates these random numbers from others with the same seed.
const WRITE: u64 = 0x7772_6974;

/// Continues the prompt with a model that was trained on `text`.
pub fn continue_text(
    model: &dyn Model,
    params: &[f32],
    text: &Text,
    prompt: &str,
    sampling: &Sampling,
) -> Result<String, InferenceError> {
    let Sampling { length, temperature, .. } = *sampling;
    if !(0.0..=100.0).contains(&temperature) {
        return Err(InferenceError::Temperature(temperature));
    }
    if length > LENGTH_MAX {
        return Err(InferenceError::Length { length, most: LENGTH_MAX });
    }
    if prompt.is_empty() {
        return Err(InferenceError::EmptyPrompt);
    }
    let prompt = text.vocabulary().encode(prompt)?;
    let tokens = tokens_after(model, params, text.context(), text.classes(), &prompt, sampling)?;
    Ok(text.vocabulary().decode(&tokens))
}

fn tokens_after(
    model: &dyn Model,
    params: &[f32],
    context: usize,
    classes: usize,
    prompt: &[u8],
    sampling: &Sampling,
) -> Result<Vec<u8>, InferenceError> {
    let mut dice = Dice::keyed(&[sampling.seed, WRITE]);
    let (mut batch, mut scratch) = (Batch::new(), Scratch::default());
    batch.features = context + 1;
    batch.labels = vec![0];
    batch.keys = vec![0];
    let mut tokens = prompt.to_vec();
    for _ in 0..sampling.length {
        let seen = &tokens[tokens.len().saturating_sub(context)..];
        // A position sees only the tokens before it, so the padding has no effect.
        batch.inputs.clear();
        batch.inputs.extend(seen.iter().map(|token| f32::from(*token)));
        batch.inputs.resize(context + 1, 0.0);
        let logits = model.outputs(params, &batch, &mut scratch);
        if logits.len() != context * classes {
            return Err(InferenceError::NoNextCharacter);
        }
        let last = &logits[(seen.len() - 1) * classes..][..classes];
        tokens.push(draw(last, sampling.temperature, &mut dice));
    }
    Ok(tokens.split_off(prompt.len()))
}

fn draw(logits: &[f32], temperature: f64, dice: &mut Dice) -> u8 {
    if temperature == 0.0 {
        return highest(logits) as u8;
    }
    let mut left = dice.unit();
    let drawn = softmax(logits, temperature).iter().position(|probability| {
        left -= probability;
        left < 0.0
    });
    // By rounding, the probabilities may add up to slightly less than one.
    drawn.unwrap_or_else(|| highest(logits)) as u8
}

#[cfg(test)]
pub(crate) mod stand_in {
    use paceline_learn::{Gradient, Score, Vector};

    use super::*;

    /// Predicts the next token from a table, at every position.
    pub struct Bigrams {
        pub context: usize,
        pub logits: Vec<Vec<f32>>,
    }

    impl Model for Bigrams {
        fn params(&self) -> usize {
            0
        }

        fn initial(&self, _: u64) -> Vector {
            Vector::new()
        }

        fn gradient(&self, _: &[f32], _: &Batch, _: &mut Scratch, _: &mut Gradient) {}

        fn evaluate(&self, _: &[f32], _: &Batch, _: &mut Scratch) -> Score {
            Score::default()
        }

        fn outputs(&self, _: &[f32], batch: &Batch, _: &mut Scratch) -> Vec<f32> {
            let places = batch.inputs.chunks_exact(batch.features);
            let seen = places.flat_map(|tokens| &tokens[..self.context]);
            seen.flat_map(|token| &self.logits[*token as usize]).copied().collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use paceline_learn::texts;

    use super::stand_in::Bigrams;
    use super::*;

    const GREEDY: Sampling = Sampling { length: 7, temperature: 0.0, seed: 1 };

    fn abc() -> (Text, Bigrams) {
        let (text, _) = texts("abc".repeat(30).as_bytes(), 4).unwrap();
        let one_hot = |hot: usize| (0..3).map(|i| if i == hot { 2.0 } else { 0.0 }).collect();
        (text, Bigrams { context: 4, logits: [1, 2, 0].map(one_hot).to_vec() })
    }

    fn written(prompt: &str, sampling: Sampling) -> Result<String, InferenceError> {
        let (text, model) = abc();
        continue_text(&model, &[], &text, prompt, &sampling)
    }

    #[test]
    fn prompts_shorter_and_longer_than_the_context_are_continued_from_their_last_character() {
        for (prompt, expected) in
            [("a", "bcabcab"), ("ab", "cabcabc"), ("abca", "bcabcab"), ("cbacbaccb", "cabcabc")]
        {
            assert_eq!(written(prompt, GREEDY).unwrap(), expected, "{prompt}");
        }
    }

    #[test]
    fn the_same_seed_writes_the_same_and_another_does_not() {
        let sampling = |seed| Sampling { length: 100, temperature: 1.0, seed };

        assert_eq!(written("a", sampling(1)), written("a", sampling(1)));
        assert_ne!(written("a", sampling(1)), written("a", sampling(2)));
    }

    /// exp(2 / T) : 1 : 1.
    #[test]
    fn characters_are_as_frequent_as_the_temperature_implies() {
        for temperature in [0.5, 1.0, 4.0] {
            let sampling = Sampling { length: 5_000, temperature, seed: 3 };
            let text = format!("a{}", written("a", sampling).unwrap());

            let follows = |pair: &[u8]| (pair[1] - b'a') == (pair[0] - b'a' + 1) % 3;
            let likely = text.as_bytes().windows(2).filter(|pair| follows(pair)).count();

            let weight = (2.0 / temperature).exp();
            let expected = weight / (weight + 2.0);
            assert!((likely as f64 / 5_000.0 - expected).abs() < 0.03, "{temperature}: {likely}");
        }
    }

    #[test]
    fn invalid_prompts_and_numbers_are_refused() {
        let refused = |prompt, sampling| written(prompt, sampling).unwrap_err().to_string();

        let message = refused("abxy", GREEDY);
        assert!(message.contains("'x'"), "{message}");
        assert!(refused("", GREEDY).contains("at least one character"));
        for temperature in [-1.0, f64::NAN, f64::INFINITY] {
            let message = refused("a", Sampling { temperature, ..GREEDY });
            assert!(message.ends_with("give a number from 0 to 100"), "{message}");
        }
        assert!(refused("a", Sampling { length: usize::MAX, ..GREEDY }).contains("at most"));
    }

    #[test]
    fn a_model_with_other_outputs_is_refused() {
        let (text, model) = abc();
        let model = Bigrams { context: 3, ..model };

        let continued = continue_text(&model, &[], &text, "a", &GREEDY);

        assert_eq!(continued, Err(InferenceError::NoNextCharacter));
    }
}
