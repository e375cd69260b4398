//! Text for a language model of characters: windows of tokens, each the number of a byte in the vocabulary.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::dataset::Dataset;
use crate::error::DataError;

/// A part of a text, as overlapping windows.
///
/// A sample is `context + 1` consecutive tokens as numbers: at each of the first `context` a model tells the next one.
/// Its label is the last token.
#[derive(Clone, Debug, PartialEq)]
pub struct Text {
    vocabulary: Vocabulary,
    tokens: Arc<[u8]>,
    /// Where this part begins in the whole text.
    start: usize,
    len: usize,
    window: usize,
    stride: usize,
}

/// The distinct bytes of a text in order; a token is a place in it. Any text has at most 256.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "Vec<u8>", try_from = "Vec<u8>")]
pub struct Vocabulary(Vec<u8>);

impl From<Vocabulary> for Vec<u8> {
    fn from(vocabulary: Vocabulary) -> Vec<u8> {
        vocabulary.0
    }
}

impl TryFrom<Vec<u8>> for Vocabulary {
    type Error = DataError;

    fn try_from(bytes: Vec<u8>) -> Result<Vocabulary, DataError> {
        match !bytes.is_empty() && bytes.is_sorted_by(|before, after| before < after) {
            true => Ok(Vocabulary(bytes)),
            false => Err(DataError::Vocabulary),
        }
    }
}

/// *Alice's Adventures in Wonderland*, built in. See data/README.md for source and licence.
pub const ALICE: &str = include_str!("../data/alice.txt");

/// A tenth of the text, its end, is for testing.
const TEST_PART: usize = 10;

/// A text as (train, test). Windows to learn from overlap by half; those to be judged by only touch, so that every
/// character counts once.
pub fn texts(text: &[u8], context: usize) -> Result<(Text, Text), DataError> {
    assert!(context > 0, "the first character has nothing before it");
    let window = context + 1;
    let test = text.len() / TEST_PART;
    if test < window {
        let bytes_min = window.saturating_mul(TEST_PART);
        return Err(DataError::TextTooShort { bytes: text.len(), window, bytes_min });
    }
    let vocabulary = Vocabulary::of(text);
    let tokens: Arc<[u8]> = text.iter().filter_map(|byte| vocabulary.token(*byte)).collect();
    let part = |start, end, stride| Text {
        vocabulary: vocabulary.clone(),
        tokens: tokens.clone(),
        start,
        len: (end - start - window) / stride + 1,
        window,
        stride,
    };
    let middle = text.len() - test;
    let halves = context.div_ceil(2);
    Ok((part(0, middle, halves), part(middle, text.len(), context)))
}

impl Text {
    /// A text of which only the characters are known.
    pub fn unknown(vocabulary: Vocabulary, context: usize) -> Text {
        let tokens = Arc::default();
        Text { vocabulary, tokens, start: 0, len: 0, window: context + 1, stride: 1 }
    }

    pub fn vocabulary(&self) -> &Vocabulary {
        &self.vocabulary
    }

    /// How many tokens a model sees before the last one it tells.
    pub fn context(&self) -> usize {
        self.window - 1
    }
}

impl Dataset for Text {
    fn len(&self) -> u64 {
        self.len as u64
    }

    fn features(&self) -> usize {
        self.window
    }

    fn classes(&self) -> usize {
        self.vocabulary.0.len()
    }

    fn vocabulary(&self) -> Option<&Vocabulary> {
        Some(&self.vocabulary)
    }

    fn read(&self, index: u64, _epoch: u64, into: &mut [f32]) -> u32 {
        let window = &self.tokens[self.start + index as usize * self.stride..][..self.window];
        for (to, token) in into.iter_mut().zip(window) {
            *to = f32::from(*token);
        }
        u32::from(window[self.window - 1])
    }
}

impl Vocabulary {
    fn of(text: &[u8]) -> Vocabulary {
        let mut occurs = [false; 256];
        text.iter().for_each(|byte| occurs[usize::from(*byte)] = true);
        Vocabulary((0..=255).filter(|byte| occurs[usize::from(*byte)]).collect())
    }

    /// The byte of each token.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// The tokens of a text; a character that the vocabulary lacks is named.
    pub fn encode(&self, text: &str) -> Result<Vec<u8>, DataError> {
        let mut tokens = Vec::with_capacity(text.len());
        for character in text.chars() {
            for byte in character.encode_utf8(&mut [0; 4]).bytes() {
                tokens.push(self.token(byte).ok_or(DataError::UnknownCharacter(character))?);
            }
        }
        Ok(tokens)
    }

    /// The text of tokens; what is no token, or no UTF-8, becomes a replacement character.
    pub fn decode(&self, tokens: &[u8]) -> String {
        let byte = |token: &u8| self.0.get(usize::from(*token)).copied().unwrap_or(0xff);
        String::from_utf8_lossy(&tokens.iter().map(byte).collect::<Vec<_>>()).into_owned()
    }

    fn token(&self, byte: u8) -> Option<u8> {
        self.0.binary_search(&byte).ok().map(|place| place as u8)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &Text, index: u64) -> (String, u32) {
        let mut into = vec![f32::NAN; text.features()];
        let label = text.read(index, 0, &mut into);
        let tokens: Vec<u8> = into.iter().map(|x| *x as u8).collect();
        (text.vocabulary().decode(&tokens), label)
    }

    #[test]
    fn windows_overlap_by_half_in_training_and_touch_in_testing() {
        let text: String = ('A'..='Z').chain('a'..='z').collect::<String>().repeat(2);
        let (train, test) = texts(text.as_bytes(), 4).unwrap();

        assert_eq!(read(&train, 0), ("ABCDE".into(), 4));
        assert_eq!(read(&train, 1), ("CDEFG".into(), 6));
        assert_eq!(read(&train, train.len() - 1).0, "klmno");
        assert_eq!(read(&test, 0).0, "qrstu");
        assert_eq!(read(&test, 1).0, "uvwxy");
        assert_eq!((train.len(), test.len()), (45, 2));
        assert_eq!((train.classes(), train.features(), train.context()), (52, 5, 4));
    }

    #[test]
    fn every_window_lies_within_its_part() {
        for len in 30..80 {
            for context in 1..=2 {
                let text: Vec<u8> = (0..len).collect();
                let (train, test) = texts(&text, context).unwrap();
                let middle = usize::from(len - len / 10);

                let end = |part: &Text| part.start + (part.len - 1) * part.stride + part.window;
                assert!(end(&train) <= middle && end(&train) + train.stride > middle);
                assert!(end(&test) <= text.len() && end(&test) + test.stride > text.len());
            }
        }
    }

    #[test]
    fn what_is_encoded_can_be_decoded() {
        let (train, test) = texts("Grün ist gut. ".repeat(20).as_bytes(), 8).unwrap();
        let vocabulary = train.vocabulary();

        let tokens = vocabulary.encode("gut ist Grün").unwrap();

        assert_eq!(vocabulary.decode(&tokens), "gut ist Grün");
        assert_eq!(vocabulary, test.vocabulary());
        assert!(vocabulary.bytes().is_sorted() && vocabulary.bytes().contains(&b'G'));
        assert_eq!(vocabulary.encode("rot"), Err(DataError::UnknownCharacter('o')));
        assert_eq!(vocabulary.decode(&[200]), "\u{fffd}");
    }

    #[test]
    fn a_text_that_is_too_short_says_how_long_it_must_be() {
        let error = texts(&[b'x'; 49], 4).unwrap_err();

        assert_eq!(error, DataError::TextTooShort { bytes: 49, window: 5, bytes_min: 50 });
        assert!(texts(&[b'x'; 50], 4).is_ok());
        assert!(texts(b"", 4).is_err());
    }

    #[test]
    fn the_built_in_book_is_plain_text_and_whole() {
        let (train, test) = texts(ALICE.as_bytes(), 64).unwrap();

        assert!(ALICE.starts_with("                ALICE'S ADVENTURES IN WONDERLAND\n"));
        assert!(ALICE.ends_with("THE END\n"));
        assert_eq!((train.classes(), train.len(), test.len()), (70, 4173, 231));
    }
}
