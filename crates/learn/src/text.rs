//! Texts for character-level language models: windows of tokens, each the index of a byte in the vocabulary.

use std::sync::Arc;

use crate::dataset::Dataset;
use crate::error::DataError;
use crate::vocabulary::Vocabulary;

/// The windows of a part of a text.
///
/// A sample is `context + 1` consecutive tokens: at each of the first `context`, a model predicts the next one. Its
/// label is the last token.
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

/// *Alice's Adventures in Wonderland*, built in. See data/README.md for source and licence.
pub const ALICE: &str = include_str!("../data/alice.txt");

/// One of this many parts of the text, the last one, is the test set.
const TEST_PART: usize = 10;

/// Splits a text into (train, test). Training windows overlap by half; test windows overlap only by the first token,
/// which is not predicted, so that every character is predicted once.
pub fn texts(text: &[u8], context: usize) -> Result<(Text, Text), DataError> {
    assert!(context > 0, "the context is at least one character");
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
    /// A text without samples, for a model of which only the vocabulary is known.
    pub fn unknown(vocabulary: Vocabulary, context: usize) -> Text {
        let tokens = Arc::default();
        Text { vocabulary, tokens, start: 0, len: 0, window: context + 1, stride: 1 }
    }

    pub fn vocabulary(&self) -> &Vocabulary {
        &self.vocabulary
    }

    /// The number of tokens that a model has read when it predicts the last one of a window.
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
        self.vocabulary.bytes().len()
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
    fn training_windows_overlap_by_half_and_test_windows_by_one_token() {
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
    fn every_window_is_within_its_part() {
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
    fn encoded_text_can_be_decoded() {
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
    fn the_error_of_a_short_text_says_how_long_it_must_be() {
        let error = texts(&[b'x'; 49], 4).unwrap_err();

        assert_eq!(error, DataError::TextTooShort { bytes: 49, window: 5, bytes_min: 50 });
        assert!(texts(&[b'x'; 50], 4).is_ok());
        assert!(texts(b"", 4).is_err());
    }

    #[test]
    fn the_built_in_book_is_complete() {
        let (train, test) = texts(ALICE.as_bytes(), 64).unwrap();

        assert!(ALICE.starts_with("                ALICE'S ADVENTURES IN WONDERLAND\n"));
        assert!(ALICE.ends_with("THE END\n"));
        assert_eq!((train.classes(), train.len(), test.len()), (70, 4173, 231));
    }
}
