//! Goes on with a text, character by character, as a trained model of a language would.

use paceline_learn::kernels::loops::highest;
use paceline_learn::{Batch, Dataset, Dice, Model, Scratch, Text};

use crate::predict::softmax;

/// How a text goes on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampling {
    /// So many bytes.
    pub length: usize,
    /// Below one the likely gets likelier; at zero the likeliest is always taken.
    pub temperature: f64,
    pub seed: u64,
}

/// No text goes on for longer.
const LENGTH_MAX: usize = 1_000_000;

/// Keeps these dice apart from others with the same seed.
const WRITE: u64 = 0x7772_6974;

/// What comes after the prompt, by a model that learned from `text`.
pub fn go_on(
    model: &dyn Model,
    params: &[f32],
    text: &Text,
    prompt: &str,
    sampling: &Sampling,
) -> Result<String, String> {
    let Sampling { length, temperature, .. } = *sampling;
    if !(0.0..=100.0).contains(&temperature) {
        return Err(format!("temperature = {temperature}: give a number from 0 to 100"));
    }
    if length > LENGTH_MAX {
        return Err(format!("length = {length}: give at most {LENGTH_MAX}"));
    }
    if prompt.is_empty() {
        return Err("there is nothing to go on from: give at least one character".into());
    }
    let prompt = text.vocabulary().encode(prompt).map_err(|error| error.to_string())?;
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
) -> Result<Vec<u8>, String> {
    let mut dice = Dice::keyed(&[sampling.seed, WRITE]);
    let (mut batch, mut scratch) = (Batch::new(), Scratch::default());
    batch.features = context + 1;
    batch.labels = vec![0];
    batch.keys = vec![0];
    let mut tokens = prompt.to_vec();
    for _ in 0..sampling.length {
        let seen = &tokens[tokens.len().saturating_sub(context)..];
        // A place sees only what stands before it, so what fills the rest does not matter.
        batch.inputs.clear();
        batch.inputs.extend(seen.iter().map(|token| f32::from(*token)));
        batch.inputs.resize(context + 1, 0.0);
        let logits = model.outputs(params, &batch, &mut scratch);
        if logits.len() != context * classes {
            return Err("the model does not tell the next character at each place: it cannot go on with a text".into());
        }
        let last = &logits[(seen.len() - 1) * classes..][..classes];
        tokens.push(drawn(last, sampling.temperature, &mut dice));
    }
    Ok(tokens.split_off(prompt.len()))
}

fn drawn(logits: &[f32], temperature: f64, dice: &mut Dice) -> u8 {
    if temperature == 0.0 {
        return highest(logits) as u8;
    }
    let mut left = dice.unit();
    let drawn = softmax(logits, temperature).iter().position(|probability| {
        left -= probability;
        left < 0.0
    });
    // Rounding may leave a little.
    drawn.unwrap_or_else(|| highest(logits)) as u8
}

#[cfg(test)]
pub(crate) mod stand_in {
    use paceline_learn::{Gradient, Score, Vector};

    use super::*;

    /// Tells the next token by a table, at every place.
    pub struct Bigrams {
        pub context: usize,
        pub logits: Vec<Vec<f32>>,
    }

    impl Model for Bigrams {
        fn params(&self) -> usize {
            0
        }

        fn initial(&self, _: u64) -> Vector {
            vec![]
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

    const LIKELIEST: Sampling = Sampling { length: 7, temperature: 0.0, seed: 1 };

    fn abc() -> (Text, Bigrams) {
        let (text, _) = texts("abc".repeat(30).as_bytes(), 4).unwrap();
        let one_hot = |hot: usize| (0..3).map(|i| if i == hot { 2.0 } else { 0.0 }).collect();
        (text, Bigrams { context: 4, logits: [1, 2, 0].map(one_hot).to_vec() })
    }

    fn written(prompt: &str, sampling: Sampling) -> Result<String, String> {
        let (text, model) = abc();
        go_on(&model, &[], &text, prompt, &sampling)
    }

    #[test]
    fn prompts_shorter_and_longer_than_the_context_go_on_from_their_last_character() {
        for (prompt, expected) in
            [("a", "bcabcab"), ("ab", "cabcabc"), ("abca", "bcabcab"), ("cbacbaccb", "cabcabc")]
        {
            assert_eq!(written(prompt, LIKELIEST).as_deref(), Ok(expected), "{prompt}");
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
    fn characters_come_as_often_as_the_temperature_says() {
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
    fn what_cannot_be_gone_on_from_is_refused_in_a_sentence() {
        let refused = |prompt, sampling| written(prompt, sampling).unwrap_err();

        let said = refused("abxy", LIKELIEST);
        assert_eq!(said, "the training text has no 'x': remove it or replace it");
        assert!(refused("", LIKELIEST).contains("at least one character"));
        for temperature in [-1.0, f64::NAN, f64::INFINITY] {
            let said = refused("a", Sampling { temperature, ..LIKELIEST });
            assert!(said.ends_with("give a number from 0 to 100"), "{said}");
        }
        assert!(refused("a", Sampling { length: usize::MAX, ..LIKELIEST }).contains("at most"));
    }

    #[test]
    fn a_model_that_tells_something_else_is_refused() {
        let (text, model) = abc();
        let model = Bigrams { context: 3, ..model };

        let said = go_on(&model, &[], &text, "a", &LIKELIEST).unwrap_err();

        assert!(said.contains("cannot go on with a text"), "{said}");
    }
}
