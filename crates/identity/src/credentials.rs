//! A process's own key and certificate, as TLS uses them. Renewing replaces the certificate in all connections to come,
//! without new configurations.

use std::fmt;
use std::sync::{Arc, RwLock};
use std::time::SystemTime;

use rustls::client::ResolvesClientCert;
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::{SignatureScheme, crypto::ring};

use crate::authority::{Authority, Certificate, LIFETIME};
use crate::hex::Nonce;
use crate::name::{JobName, Name, Role};
use crate::request::{Key, Request};
use crate::trust::{Trust, name_of};

/// Cheap to clone; clones share the certificate.
#[derive(Clone)]
pub struct Credentials(Arc<Shared>);

struct Shared {
    key: Key,
    trust: Trust,
    name: Name,
    current: RwLock<Current>,
}

struct Current {
    certified: Arc<CertifiedKey>,
    expires: SystemTime,
}

#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum CredentialsError {
    #[error("the certificate is not for this process's key")]
    OtherKey,
    #[error("the certificate is not signed by the job's authority, or names another job")]
    Foreign,
}

impl Credentials {
    /// Joins a key with the certificate that the authority made for it.
    pub fn new(
        key: Key,
        certificate: Certificate,
        trust: Trust,
    ) -> Result<Credentials, CredentialsError> {
        let leaf = CertificateDer::from(certificate.der.clone());
        let name = name_of(&leaf).map_err(|_| CredentialsError::Foreign)?;
        if name.job != *trust.job() {
            return Err(CredentialsError::Foreign);
        }
        let certified = certify(&key, certificate.der, &trust)?;
        let current = RwLock::new(Current { certified, expires: certificate.expires });
        Ok(Credentials(Arc::new(Shared { key, trust, name, current })))
    }

    /// Those of the coordinator itself, which has the authority. It makes new ones whenever it starts.
    pub fn of_coordinator(authority: &Authority, job: JobName, now: SystemTime) -> Credentials {
        let key = Key::generate();
        let name = Name { job: job.clone(), role: Role::Coordinator };
        let certificate = authority.issue(&name, &key.request(Nonce::random()), now);
        Credentials::new(key, certificate, authority.trust(job))
            .expect("the authority has just made them")
    }

    pub fn name(&self) -> &Name {
        &self.0.name
    }

    pub fn trust(&self) -> &Trust {
        &self.0.trust
    }

    pub fn expires(&self) -> SystemTime {
        self.0.current.read().expect("no holder panics").expires
    }

    /// Whether a third of the certificate's time has passed: it should be renewed.
    pub fn is_old(&self, now: SystemTime) -> bool {
        self.expires() < now + LIFETIME * 2 / 3
    }

    /// Asks for a new certificate for the same key.
    pub fn request(&self) -> Request {
        self.0.key.request(Nonce::random())
    }

    /// Connections that are made from now on show this certificate; those that stand are not touched.
    pub fn renew(&self, certificate: Certificate) -> Result<(), CredentialsError> {
        let leaf = CertificateDer::from(certificate.der.clone());
        if name_of(&leaf).as_ref() != Ok(&self.0.name) {
            return Err(CredentialsError::Foreign);
        }
        let certified = certify(&self.0.key, certificate.der, &self.0.trust)?;
        let current = Current { certified, expires: certificate.expires };
        *self.0.current.write().expect("no holder panics") = current;
        Ok(())
    }

    fn current(&self) -> Arc<CertifiedKey> {
        self.0.current.read().expect("no holder panics").certified.clone()
    }
}

fn certify(key: &Key, leaf: Vec<u8>, trust: &Trust) -> Result<Arc<CertifiedKey>, CredentialsError> {
    let private = PrivatePkcs8KeyDer::from(key.0.serialize_der());
    let signer = ring::sign::any_ecdsa_type(&private.into()).expect("the key is of this kind");
    // The authority travels along: a newcomer knows only its fingerprint.
    let chain = vec![leaf.into(), trust.certificate().to_vec().into()];
    let certified = CertifiedKey::new(chain, signer);
    certified.keys_match().map_err(|_| CredentialsError::OtherKey)?;
    Ok(Arc::new(certified))
}

impl ResolvesServerCert for Credentials {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.current())
    }
}

impl ResolvesClientCert for Credentials {
    fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        Some(self.current())
    }

    fn has_certs(&self) -> bool {
        true
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Credentials({})", self.0.name)
    }
}
