//! TLS configurations, one for each kind of connection. All use TLS 1.3 only, without early data and without resumption:
//! every connection is authenticated by certificates of its own.
//!
//! Addresses say nothing: workers have no host names. What counts is that the authority signed the certificate, and the
//! job and role in it.

use std::fmt;
use std::sync::Arc;

use paceline_runtime::WorkerId;
use rustls::client::Resumption;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::NoServerSessionStorage;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, DistinguishedName, Error, RootCertStore,
    ServerConfig, SignatureScheme,
};
use webpki::{KeyUsage, anchor_from_trusted_cert};

use crate::credentials::Credentials;
use crate::hex::Digest;
use crate::name::Role;
use crate::trust::{Trust, algorithms, bad_encoding, name_of, refused, verify_signed};

/// Whether a worker is one that a peer may talk to now: a member of its view, or of the one to come.
pub type IsMember = Arc<dyn Fn(WorkerId) -> bool + Send + Sync>;

/// The coordinator's port. A client without a certificate may only ask to join: the service sees to that.
pub fn coordinator_server(credentials: &Credentials) -> ServerConfig {
    let is_member: IsMember = Arc::new(|_| true);
    let verifier = Workers { trust: credentials.trust().clone(), is_member, is_mandatory: false };
    server(credentials, verifier)
}

/// For joining: the coordinator is the one whose authority has this fingerprint, and the client is a stranger.
pub fn join_client(fingerprint: Digest) -> ClientConfig {
    client(Expected::Fingerprint(fingerprint)).with_no_client_auth().into_config()
}

/// For a worker's connection to its coordinator.
pub fn stream_client(credentials: &Credentials) -> ClientConfig {
    let expected = Expected::Role(credentials.trust().clone(), Role::Coordinator);
    client(expected).with_client_cert_resolver(Arc::new(credentials.clone())).into_config()
}

/// For a server of another kind, whose certificate one of these authorities has signed for its host's name. `own`: what this
/// process shows, if it is asked for a certificate.
pub fn authority_client(
    authorities: Vec<CertificateDer<'static>>,
    own: Option<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>)>,
) -> Result<ClientConfig, Error> {
    let mut roots = RootCertStore::empty();
    for authority in authorities {
        roots.add(authority)?;
    }
    let config = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .expect("the provider knows TLS 1.3")
        .with_root_certificates(roots);
    match own {
        Some((certificates, key)) => config.with_client_auth_cert(certificates, key),
        None => Ok(config.with_no_client_auth()),
    }
}

/// For links that peers dial. `is_member` is asked at every handshake. Links encrypt by themselves with the keys of a handshake, so that they may take
/// them out of rustls.
pub fn peer_server(credentials: &Credentials, is_member: IsMember) -> ServerConfig {
    let verifier = Workers { trust: credentials.trust().clone(), is_member, is_mandatory: true };
    let mut config = server(credentials, verifier);
    config.enable_secret_extraction = true;
    config
}

/// For a link to this peer.
pub fn peer_client(credentials: &Credentials, peer: WorkerId) -> ClientConfig {
    let expected = Expected::Role(credentials.trust().clone(), Role::Worker(peer));
    let config = client(expected).with_client_cert_resolver(Arc::new(credentials.clone()));
    let mut config = config.into_config();
    config.enable_secret_extraction = true;
    config
}

fn server(credentials: &Credentials, verifier: Workers) -> ServerConfig {
    let mut config = ServerConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .expect("the provider knows TLS 1.3")
        .with_client_cert_verifier(Arc::new(verifier))
        .with_cert_resolver(Arc::new(credentials.clone()));
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    config.max_early_data_size = 0;
    config
}

type Builder = rustls::ConfigBuilder<ClientConfig, rustls::client::WantsClientCert>;

fn client(expected: Expected) -> Builder {
    ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .expect("the provider knows TLS 1.3")
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(expected))
}

trait IntoConfig {
    fn into_config(self) -> ClientConfig;
}

impl IntoConfig for ClientConfig {
    fn into_config(mut self) -> ClientConfig {
        self.resumption = Resumption::disabled();
        self.enable_early_data = false;
        self.enable_sni = false;
        self
    }
}

/// AES-128 first: it is the fastest where processors have instructions for it.
fn provider() -> Arc<CryptoProvider> {
    use ring::cipher_suite::{
        TLS13_AES_128_GCM_SHA256, TLS13_AES_256_GCM_SHA384, TLS13_CHACHA20_POLY1305_SHA256,
    };
    let cipher_suites =
        vec![TLS13_AES_128_GCM_SHA256, TLS13_AES_256_GCM_SHA384, TLS13_CHACHA20_POLY1305_SHA256];
    Arc::new(CryptoProvider { cipher_suites, ..ring::default_provider() })
}

/// The server that a client expects.
#[derive(Debug)]
enum Expected {
    Fingerprint(Digest),
    Role(Trust, Role),
}

impl ServerCertVerifier for Expected {
    fn verify_server_cert(
        &self,
        leaf: &CertificateDer<'_>,
        chain: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let (name, role) = match self {
            Expected::Role(trust, role) => {
                (trust.verify_at(leaf, KeyUsage::server_auth(), now)?, *role)
            }
            Expected::Fingerprint(fingerprint) => {
                let authority = chain.iter().find(|it| Digest::of(it) == *fingerprint);
                let authority =
                    authority.ok_or(Error::InvalidCertificate(CertificateError::UnknownIssuer))?;
                let anchor = anchor_from_trusted_cert(authority).map_err(|_| bad_encoding())?;
                verify_signed(leaf, &anchor, KeyUsage::server_auth(), now)?;
                (name_of(leaf)?, Role::Coordinator)
            }
        };
        if name.role == role { Ok(ServerCertVerified::assertion()) } else { Err(refused()) }
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(only_tls13())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, cert, signed, &algorithms())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        algorithms().supported_schemes()
    }
}

/// The clients that a server accepts: workers of its job.
struct Workers {
    trust: Trust,
    is_member: IsMember,
    is_mandatory: bool,
}

impl fmt::Debug for Workers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Workers({:?})", self.trust)
    }
}

impl ClientCertVerifier for Workers {
    fn client_auth_mandatory(&self) -> bool {
        self.is_mandatory
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        leaf: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        match self.trust.verify_at(leaf, KeyUsage::client_auth(), now)?.role {
            Role::Worker(who) if (self.is_member)(who) => Ok(ClientCertVerified::assertion()),
            _ => Err(refused()),
        }
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(only_tls13())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, cert, signed, &algorithms())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        algorithms().supported_schemes()
    }
}

fn only_tls13() -> Error {
    Error::General("only TLS 1.3 is spoken here".to_owned())
}
