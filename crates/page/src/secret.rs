//! The token with which somebody may act on a run.

use std::fmt;

use ring::hmac;
use ring::rand::{SecureRandom, SystemRandom};

/// Random text. It is compared in constant time, and never written into a page or an address.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

#[derive(Debug, PartialEq, Eq)]
pub struct SecretError;

const BYTES: usize = 16;

impl Secret {
    pub fn random() -> Secret {
        Secret(random_text())
    }

    /// As it was written by [`text`](Self::text).
    pub fn parse(text: &str) -> Result<Secret, SecretError> {
        let text = text.trim();
        let is_it = text.len() == 2 * BYTES && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        if is_it { Ok(Secret(text.to_owned())) } else { Err(SecretError) }
    }

    pub fn text(&self) -> &str {
        &self.0
    }

    /// Whether these bytes are the secret. How long this takes does not depend on where they differ: codes under a fresh key
    /// are compared, and those in constant time.
    pub fn is(&self, given: &[u8]) -> bool {
        let mut key = [0; 32];
        if SystemRandom::new().fill(&mut key).is_err() {
            return false;
        }
        let key = hmac::Key::new(hmac::HMAC_SHA256, &key);
        hmac::verify(&key, given, hmac::sign(&key, self.0.as_bytes()).as_ref()).is_ok()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

impl fmt::Display for SecretError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a token of the page has {} hexadecimal digits", 2 * BYTES)
    }
}

impl std::error::Error for SecretError {}

/// 128 random bits as text.
pub fn random_text() -> String {
    let mut bytes = [0; BYTES];
    SystemRandom::new().fill(&mut bytes).expect("the operating system has random numbers");
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_secret_itself_is_the_secret() {
        let secret = Secret::random();
        let text = secret.text();

        assert!(secret.is(text.as_bytes()));
        for other in ["", &text[1..], &format!("{text}0"), Secret::random().text()] {
            assert!(!secret.is(other.as_bytes()));
        }
        assert_eq!(Secret::parse(&format!("{text}\n")), Ok(secret.clone()));
        assert_eq!(Secret::parse("short"), Err(SecretError));
        assert!(!format!("{secret:?}").contains(text));
    }
}
