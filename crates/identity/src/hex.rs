//! Bytes as text: hexadecimal in messages and logs, so that these stay readable.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// A SHA-256 digest: the fingerprint of a certificate, or of a secret.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest(pub [u8; 32]);

impl Digest {
    pub fn of(bytes: &[u8]) -> Digest {
        let digest = ring::digest::digest(&ring::digest::SHA256, bytes);
        let mut array = [0; 32];
        array.copy_from_slice(digest.as_ref());
        Digest(array)
    }
}

/// Drawn by a worker for one join. A join that is sent again has the same nonce.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Nonce(pub [u8; 16]);

impl Nonce {
    pub fn random() -> Nonce {
        Nonce(crate::random())
    }
}

/// Text in which every byte is two hexadecimal digits.
pub(crate) fn encode(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

pub(crate) fn decode(text: &str) -> Option<Vec<u8>> {
    if !text.is_ascii() || !text.len().is_multiple_of(2) {
        return None;
    }
    let digit = |byte: u8| (byte as char).to_digit(16).map(|digit| digit as u8);
    text.as_bytes().chunks(2).map(|pair| Some(16 * digit(pair[0])? + digit(pair[1])?)).collect()
}

/// For `#[serde(with = "bytes")]`: a vector of bytes as hexadecimal text.
pub mod bytes {
    use super::*;

    pub fn serialize<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&encode(bytes))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
        let text = String::deserialize(deserializer)?;
        decode(&text).ok_or_else(|| de::Error::custom("not hexadecimal"))
    }
}

macro_rules! as_hexadecimal {
    ($type:ident, $length:literal) => {
        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&encode(&self.0))
            }
        }

        impl fmt::Debug for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }

        impl Serialize for $type {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                bytes::serialize(&self.0, serializer)
            }
        }

        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<$type, D::Error> {
                let bytes = bytes::deserialize(deserializer)?;
                let array = <[u8; $length]>::try_from(bytes);
                array.map($type).map_err(|_| de::Error::custom("of another length"))
            }
        }
    };
}

as_hexadecimal!(Digest, 32);
as_hexadecimal!(Nonce, 16);
