//! The coordinator's own certificate authority: one key that signs the certificates of one coordinator's jobs.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rcgen::string::Ia5String;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose, PKCS_ECDSA_P256_SHA256, SanType, SerialNumber,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use serde::{Deserialize, Serialize};
use time::OffsetDateTime;

use crate::hex::{Digest, bytes};
use crate::name::{JobName, Name, Role};
use crate::request::{Key, Request};
use crate::trust::Trust;

/// How long a certificate lasts; it is renewed long before.
pub const LIFETIME: Duration = Duration::from_secs(24 * 3600);

/// Certificates are valid from this long before they are made: clocks of machines differ.
pub const BACK_DATED: Duration = Duration::from_secs(600);

const AUTHORITY_LIFETIME: Duration = Duration::from_secs(10 * 365 * 24 * 3600);
const AUTHORITY_NAME: &str = "Paceline authority";

/// A certificate, with the time at which it ends.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Certificate {
    #[serde(with = "bytes")]
    pub der: Vec<u8>,
    pub expires: SystemTime,
}

pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    certificate: CertificateDer<'static>,
}

#[derive(Debug, thiserror::Error)]
pub enum AuthorityError {
    #[error("cannot read the authority {path}: {source}")]
    Read { path: PathBuf, source: io::Error },
    #[error("cannot write the authority {path}: {source}")]
    Write { path: PathBuf, source: io::Error },
    #[error("others can read the private key in {path}: allow only its owner (chmod 600)")]
    Exposed { path: PathBuf },
    #[error(
        "{path} does not hold an authority: a private key and a certificate that 'paceline coordinate' made"
    )]
    Foreign { path: PathBuf },
}

impl Authority {
    /// A new authority with a new key.
    pub fn new(now: SystemTime) -> Authority {
        Authority::make(now).0
    }

    /// A new authority, and the text of its file.
    fn make(now: SystemTime) -> (Authority, String) {
        let key =
            KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).expect("the system has random numbers");
        let mut params = issuer_params();
        params.not_before = OffsetDateTime::from(now - LIFETIME);
        params.not_after = OffsetDateTime::from(now + AUTHORITY_LIFETIME);
        let certificate = params.self_signed(&key).expect("the fields are valid");
        let text = key.serialize_pem() + &certificate.pem();
        let certificate = certificate.der().clone();
        (Authority { issuer: Issuer::new(params, key), certificate }, text)
    }

    /// Loads the authority of this file, or makes one and stores it there.
    pub fn open(path: &Path, now: SystemTime) -> Result<Authority, AuthorityError> {
        if fs::exists(path)
            .map_err(|source| AuthorityError::Read { path: path.to_owned(), source })?
        {
            return Authority::load(path, now);
        }
        let (authority, text) = Authority::make(now);
        write_private(path, &text)
            .map_err(|source| AuthorityError::Write { path: path.to_owned(), source })?;
        Ok(authority)
    }

    pub fn load(path: &Path, now: SystemTime) -> Result<Authority, AuthorityError> {
        let path = path.to_owned();
        let read = || -> io::Result<(String, bool)> {
            let is_exposed = is_exposed(&fs::metadata(&path)?);
            Ok((fs::read_to_string(&path)?, is_exposed))
        };
        let (text, is_exposed) = match read() {
            Ok(read) => read,
            Err(source) => return Err(AuthorityError::Read { path, source }),
        };
        if is_exposed {
            return Err(AuthorityError::Exposed { path });
        }
        Authority::parse(&text, now).ok_or(AuthorityError::Foreign { path })
    }

    fn parse(text: &str, now: SystemTime) -> Option<Authority> {
        let certificate = CertificateDer::from_pem_slice(text.as_bytes()).ok()?;
        let key = PrivateKeyDer::from_pem_slice(text.as_bytes()).ok()?;
        let key = KeyPair::from_der_and_sign_algo(&key, &PKCS_ECDSA_P256_SHA256).ok()?;
        let authority = Authority { issuer: Issuer::new(issuer_params(), key), certificate };
        // The file may hold another program's authority, or a key and a certificate that do not belong together.
        let name = Name { job: JobName::random(), role: Role::Coordinator };
        let trial = authority.issue(&name, &Key::generate().request(crate::Nonce::random()), now);
        let trust = authority.trust(name.job.clone());
        let verified =
            trust.verify(&CertificateDer::from(trial.der), webpki::KeyUsage::server_auth(), now);
        (verified == Ok(name)).then_some(authority)
    }

    pub fn certificate(&self) -> &[u8] {
        &self.certificate
    }

    /// A secret that follows from the authority's key, and from which the key does not follow.
    pub fn derive(&self, purpose: &str) -> Digest {
        let key = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, &self.issuer.key().serialize_der());
        let label = format!("paceline first token\n{purpose}");
        let tag = ring::hmac::sign(&key, label.as_bytes());
        Digest(*tag.as_ref().first_chunk().expect("SHA-256 has 32 bytes"))
    }

    pub fn fingerprint(&self) -> Digest {
        Digest::of(&self.certificate)
    }

    /// What members of this job trust: this authority, for this job.
    pub fn trust(&self, job: JobName) -> Trust {
        Trust::new(self.certificate.to_vec(), job)
            .expect("the authority's own certificate can be read")
    }

    /// Certifies the key of a request, under a name that the authority decides. The caller has checked the request.
    pub fn issue(&self, name: &Name, request: &Request, now: SystemTime) -> Certificate {
        let expires = now + LIFETIME;
        let mut params = CertificateParams::default();
        params.not_before = OffsetDateTime::from(now - BACK_DATED);
        params.not_after = OffsetDateTime::from(expires);
        params.serial_number = Some(SerialNumber::from(crate::random::<16>().to_vec()));
        params.distinguished_name = common_name("Paceline");
        let uri = Ia5String::try_from(name.to_string()).expect("names are ASCII");
        params.subject_alt_names = vec![SanType::URI(uri)];
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        // A coordinator only answers; workers dial each other.
        params.extended_key_usages = match name.role {
            Role::Coordinator => vec![ExtendedKeyUsagePurpose::ServerAuth],
            Role::Worker(_) => {
                vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth]
            }
        };
        params.use_authority_key_identifier_extension = true;
        let certificate = params.signed_by(request, &self.issuer).expect("the fields are valid");
        Certificate { der: certificate.der().to_vec(), expires }
    }
}

/// What all authorities have in common.
fn issuer_params() -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = common_name(AUTHORITY_NAME);
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    params
}

fn common_name(text: &str) -> DistinguishedName {
    let mut name = DistinguishedName::new();
    name.push(DnType::CommonName, text);
    name
}

/// Writes a file aside and renames it, so that it is complete or not there. Only its owner can read it.
pub fn write_private(path: &Path, text: &str) -> io::Result<()> {
    let aside = path.with_extension("new");
    let _ = fs::remove_file(&aside);
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let mut file = options.open(&aside)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    fs::rename(&aside, path)?;
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
}

#[cfg(unix)]
fn is_exposed(file: &fs::Metadata) -> bool {
    use std::os::unix::fs::MetadataExt;
    file.mode() & 0o077 != 0
}

#[cfg(not(unix))]
fn is_exposed(_: &fs::Metadata) -> bool {
    false
}
