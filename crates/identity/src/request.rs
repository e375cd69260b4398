//! A worker's key, and its request to have a certificate for it. The key never leaves the process that made it.

use rcgen::{KeyPair, PKCS_ECDSA_P256_SHA256, PublicKeyData, SignatureAlgorithm, SigningKey};
use ring::signature::{ECDSA_P256_SHA256_ASN1, UnparsedPublicKey};
use serde::{Deserialize, Serialize};

use crate::hex::{Digest, Nonce, bytes};

/// An ECDSA P-256 key.
pub struct Key(pub(crate) KeyPair);

/// A public key, and the proof that its sender has the private one. It serves the purpose of a certificate signing
/// request (PKCS #10) without its syntax: the certificate's fields are the authority's decision, not the sender's.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Request {
    /// The uncompressed point.
    #[serde(with = "bytes")]
    public_key: Vec<u8>,
    pub nonce: Nonce,
    #[serde(with = "bytes")]
    signature: Vec<u8>,
}

#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum RequestError {
    #[error("the signing request is not signed with the key that it names")]
    Signature,
}

/// What is signed begins with this: a signature that was made for another purpose does not fit.
const PURPOSE: &[u8] = b"paceline signing request 1\0";

impl Key {
    pub fn generate() -> Key {
        Key(KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).expect("the system has random numbers"))
    }

    pub fn request(&self, nonce: Nonce) -> Request {
        let public_key = self.0.public_key_raw().to_vec();
        let signed = [PURPOSE, &nonce.0, &public_key].concat();
        let signature = self.0.sign(&signed).expect("a key of this kind can sign");
        Request { public_key, nonce, signature }
    }
}

impl Request {
    /// Checks that the sender has the key.
    pub fn verify(&self) -> Result<(), RequestError> {
        let signed = [PURPOSE, &self.nonce.0, &self.public_key].concat();
        UnparsedPublicKey::new(&ECDSA_P256_SHA256_ASN1, &self.public_key)
            .verify(&signed, &self.signature)
            .map_err(|_| RequestError::Signature)
    }

    /// Names the key.
    pub fn key_digest(&self) -> Digest {
        Digest::of(&self.public_key)
    }
}

/// For the authority, which certifies the key.
impl PublicKeyData for Request {
    fn der_bytes(&self) -> &[u8] {
        &self.public_key
    }

    fn algorithm(&self) -> &'static SignatureAlgorithm {
        &PKCS_ECDSA_P256_SHA256
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_bound_to_its_key_and_nonce() {
        let (key, nonce) = (Key::generate(), Nonce::random());
        let request = key.request(nonce);
        assert_eq!(request.verify(), Ok(()));
        let renamed = Request { nonce: Nonce::random(), ..request.clone() };
        let stolen =
            Request { public_key: Key::generate().request(nonce).public_key, ..request.clone() };
        let empty = Request { public_key: vec![], signature: vec![], nonce };
        for wrong in [renamed, stolen, empty] {
            assert_eq!(wrong.verify(), Err(RequestError::Signature), "{wrong:?}");
        }
    }
}
