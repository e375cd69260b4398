//! The vocabulary of a text: which byte each token stands for.

use serde::{Deserialize, Serialize};

use crate::error::DataError;

/// The distinct bytes of a text in ascending order, at most 256; a token is an index into them.
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

impl Vocabulary {
    pub(crate) fn of(text: &[u8]) -> Vocabulary {
        let mut occurs = [false; 256];
        text.iter().for_each(|byte| occurs[usize::from(*byte)] = true);
        Vocabulary((0..=255).filter(|byte| occurs[usize::from(*byte)]).collect())
    }

    /// The byte of each token.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// The tokens of a text; an error if a character is not in the vocabulary.
    pub fn encode(&self, text: &str) -> Result<Vec<u8>, DataError> {
        let mut tokens = Vec::with_capacity(text.len());
        for character in text.chars() {
            for byte in character.encode_utf8(&mut [0; 4]).bytes() {
                tokens.push(self.token(byte).ok_or(DataError::UnknownCharacter(character))?);
            }
        }
        Ok(tokens)
    }

    /// The text of some tokens; invalid tokens and invalid UTF-8 become replacement characters.
    pub fn decode(&self, tokens: &[u8]) -> String {
        let byte = |token: &u8| self.0.get(usize::from(*token)).copied().unwrap_or(0xff);
        String::from_utf8_lossy(&tokens.iter().map(byte).collect::<Vec<_>>()).into_owned()
    }

    pub(crate) fn token(&self, byte: u8) -> Option<u8> {
        self.0.binary_search(&byte).ok().map(|place| place as u8)
    }
}
