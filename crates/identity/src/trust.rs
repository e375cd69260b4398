//! What is trusted: one authority, for one job. Checks certificates, and reads the names in them.

use std::fmt;
use std::time::{Duration, SystemTime};

use rustls::crypto::{WebPkiSupportedAlgorithms, ring};
use rustls::pki_types::{CertificateDer, TrustAnchor, UnixTime};
use rustls::{CertificateError, Error};
use webpki::{EndEntityCert, KeyUsage, anchor_from_trusted_cert};

use crate::hex::Digest;
use crate::name::{JobName, Name};

/// Which authority is trusted, and for which job.
#[derive(Clone)]
pub struct Trust {
    certificate: CertificateDer<'static>,
    anchor: TrustAnchor<'static>,
    job: JobName,
}

impl Trust {
    pub fn new(certificate: Vec<u8>, job: JobName) -> Result<Trust, Error> {
        let certificate = CertificateDer::from(certificate);
        let anchor = anchor_from_trusted_cert(&certificate).map_err(|_| bad_encoding())?.to_owned();
        Ok(Trust { certificate, anchor, job })
    }

    pub fn certificate(&self) -> &[u8] {
        &self.certificate
    }

    pub fn job(&self) -> &JobName {
        &self.job
    }

    /// Checks that the authority signed this certificate, for this use and this job, and that it is valid now.
    pub(crate) fn verify(
        &self,
        leaf: &CertificateDer<'_>,
        usage: KeyUsage,
        now: SystemTime,
    ) -> Result<Name, Error> {
        let since_epoch = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO);
        self.verify_at(leaf, usage, UnixTime::since_unix_epoch(since_epoch))
    }

    pub(crate) fn verify_at(
        &self,
        leaf: &CertificateDer<'_>,
        usage: KeyUsage,
        now: UnixTime,
    ) -> Result<Name, Error> {
        verify_signed(leaf, &self.anchor, usage, now)?;
        let name = name_of(leaf)?;
        if name.job == self.job { Ok(name) } else { Err(refused()) }
    }
}

impl fmt::Debug for Trust {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Trust({}, {})", self.job, Digest::of(&self.certificate))
    }
}

/// The name in a certificate. It must have been verified: anybody can write a name.
pub fn name_of(leaf: &CertificateDer<'_>) -> Result<Name, Error> {
    let certificate = EndEntityCert::try_from(leaf).map_err(|_| bad_encoding())?;
    let mut names = certificate.valid_uri_names();
    match (names.next(), names.next()) {
        (Some(name), None) => name.parse().map_err(|_| refused()),
        _ => Err(refused()),
    }
}

pub(crate) fn verify_signed(
    leaf: &CertificateDer<'_>,
    anchor: &TrustAnchor<'_>,
    usage: KeyUsage,
    now: UnixTime,
) -> Result<(), Error> {
    let certificate = EndEntityCert::try_from(leaf).map_err(|_| bad_encoding())?;
    let anchors = std::slice::from_ref(anchor);
    let verified =
        certificate.verify_for_usage(algorithms().all, anchors, &[], now, usage, None, None);
    match verified {
        Ok(_) => Ok(()),
        Err(webpki::Error::CertExpired { .. }) => {
            Err(Error::InvalidCertificate(CertificateError::Expired))
        }
        Err(webpki::Error::CertNotValidYet { .. }) => {
            Err(Error::InvalidCertificate(CertificateError::NotValidYet))
        }
        Err(_) => Err(Error::InvalidCertificate(CertificateError::UnknownIssuer)),
    }
}

pub(crate) fn algorithms() -> WebPkiSupportedAlgorithms {
    ring::default_provider().signature_verification_algorithms
}

pub(crate) fn refused() -> Error {
    Error::InvalidCertificate(CertificateError::ApplicationVerificationFailure)
}

pub(crate) fn bad_encoding() -> Error {
    Error::InvalidCertificate(CertificateError::BadEncoding)
}
