//! Certificates for connections to etcd, from files as etcd's own tools take them.

use std::path::{Path, PathBuf};

use paceline_identity::authority_client;
use rustls::ClientConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use super::EtcdError;

/// How connections to etcd are encrypted. All files are in PEM format.
#[derive(Clone, Debug)]
pub struct EtcdTls {
    /// The authorities of which one must have signed etcd's certificate.
    pub authorities: PathBuf,
    /// The certificate that is shown to etcd, and its key, if etcd asks for one.
    pub own: Option<(PathBuf, PathBuf)>,
}

impl EtcdTls {
    pub(super) fn config(&self) -> Result<ClientConfig, EtcdError> {
        let authorities = certificates(&self.authorities)?;
        let own = match &self.own {
            None => None,
            Some((certificate, key)) => {
                let read = PrivateKeyDer::from_pem_file(key);
                let key = read.map_err(|error| failed(key, "no private key", &error))?;
                Some((certificates(certificate)?, key))
            }
        };
        authority_client(authorities, own).map_err(|error| EtcdError::Certificates {
            path: self.own.as_ref().map_or(&self.authorities, |(path, _)| path).clone(),
            why: error.to_string(),
        })
    }
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, EtcdError> {
    let no = |error: &dyn std::fmt::Display| failed(path, "no certificate", error);
    let read = CertificateDer::pem_file_iter(path).map_err(|error| no(&error))?;
    let all: Result<Vec<_>, _> = read.collect();
    let all = all.map_err(|error| no(&error))?;
    if all.is_empty() { Err(no(&"the file has none")) } else { Ok(all) }
}

fn failed(path: &Path, what: &str, error: &dyn std::fmt::Display) -> EtcdError {
    let why = format!("{what} in PEM format can be read from it: {error}");
    EtcdError::Certificates { path: path.to_owned(), why }
}
