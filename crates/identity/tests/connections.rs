//! Real TLS handshakes, in memory: who gets through, and who is refused.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use paceline_identity::{
    Authority, Certificate, Credentials, CredentialsError, Digest, IsMember, JobName, Key,
    LIFETIME, Name, Nonce, Role, coordinator_server, join_client, name_of, peer_client,
    peer_server, stream_client,
};
use paceline_runtime::WorkerId;
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, Error, ServerConfig, ServerConnection};

fn job(name: &str) -> JobName {
    JobName::try_from(name.to_owned()).expect("a valid name")
}

fn now() -> SystemTime {
    SystemTime::now()
}

fn worker_at(authority: &Authority, job: &JobName, id: u32, now: SystemTime) -> Credentials {
    let key = Key::generate();
    let name = Name { job: job.clone(), role: Role::Worker(WorkerId(id)) };
    let certificate = authority.issue(&name, &key.request(Nonce::random()), now);
    Credentials::new(key, certificate, authority.trust(job.clone())).expect("they belong together")
}

fn worker(authority: &Authority, job: &JobName, id: u32) -> Credentials {
    worker_at(authority, job, id, now())
}

fn anyone() -> IsMember {
    Arc::new(|_| true)
}

/// Lets both talk until one refuses or both are done; returns what the server knows of the client.
fn meet(client: ClientConfig, server: ServerConfig) -> Result<Option<Name>, Error> {
    let address = ServerName::try_from("coordinator.invalid").expect("a valid name");
    let mut client = ClientConnection::new(Arc::new(client), address)?;
    let mut server = ServerConnection::new(Arc::new(server))?;
    for _ in 0..20 {
        let mut bytes = vec![];
        while client.wants_write() {
            client.write_tls(&mut bytes).expect("memory can be written");
        }
        let mut from = bytes.as_slice();
        while !from.is_empty() {
            server.read_tls(&mut from).expect("memory can be read");
            server.process_new_packets()?;
        }
        let mut bytes = vec![];
        while server.wants_write() {
            server.write_tls(&mut bytes).expect("memory can be written");
        }
        let mut from = bytes.as_slice();
        while !from.is_empty() {
            client.read_tls(&mut from).expect("memory can be read");
            client.process_new_packets()?;
        }
    }
    assert!(!client.is_handshaking() && !server.is_handshaking());
    assert_eq!(client.handshake_kind(), Some(rustls::HandshakeKind::Full));
    let certificates = server.peer_certificates();
    certificates.map(|chain| name_of(&chain[0])).transpose()
}

#[test]
fn a_stranger_reaches_the_coordinator_of_its_token_and_no_other() {
    let (ours, theirs) = (Authority::new(now()), Authority::new(now()));
    let coordinator = || Credentials::of_coordinator(&ours, job("a"), now());
    let meet = |fingerprint| meet(join_client(fingerprint), coordinator_server(&coordinator()));
    assert_eq!(meet(ours.fingerprint()), Ok(None), "the server knows that it is a stranger");
    assert!(meet(theirs.fingerprint()).is_err());
    assert!(meet(Digest([0; 32])).is_err());
}

#[test]
fn a_worker_cannot_play_coordinator() {
    let authority = Authority::new(now());
    let impostor = worker(&authority, &job("a"), 3);
    let honest = worker(&authority, &job("a"), 4);
    let server = || coordinator_server(&impostor);
    assert!(meet(join_client(authority.fingerprint()), server()).is_err());
    assert!(meet(stream_client(&honest), server()).is_err());
    // And a coordinator is no peer.
    let coordinator = Credentials::of_coordinator(&authority, job("a"), now());
    assert!(meet(peer_client(&coordinator, WorkerId(4)), peer_server(&honest, anyone())).is_err());
}

#[test]
fn the_coordinator_knows_its_workers_by_their_certificates() {
    let (ours, theirs) = (Authority::new(now()), Authority::new(now()));
    let coordinator = Credentials::of_coordinator(&ours, job("a"), now());
    let meet = |worker: &Credentials| meet(stream_client(worker), coordinator_server(&coordinator));
    let honest = worker(&ours, &job("a"), 3);
    assert_eq!(meet(&honest), Ok(Some(honest.name().clone())));
    // Another authority's, and one of ours for another job.
    assert!(meet(&worker(&theirs, &job("a"), 3)).is_err());
    assert!(meet(&worker(&ours, &job("b"), 3)).is_err());
}

/// A client that trusts everyone, so that it is the server that refuses.
fn careless(certificate: Certificate, key: &rcgen::KeyPair) -> ClientConfig {
    #[derive(Debug)]
    struct Any;
    use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
    use rustls::{DigitallySignedStruct, SignatureScheme, crypto::ring, pki_types::UnixTime};
    impl ServerCertVerifier for Any {
        fn verify_server_cert(
            &self,
            _: &CertificateDer<'_>,
            _: &[CertificateDer<'_>],
            _: &ServerName<'_>,
            _: &[u8],
            _: UnixTime,
        ) -> Result<ServerCertVerified, Error> {
            Ok(ServerCertVerified::assertion())
        }
        fn verify_tls12_signature(
            &self,
            _: &[u8],
            _: &CertificateDer<'_>,
            _: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            unreachable!()
        }
        fn verify_tls13_signature(
            &self,
            _: &[u8],
            _: &CertificateDer<'_>,
            _: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            Ok(HandshakeSignatureValid::assertion())
        }
        fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
            ring::default_provider().signature_verification_algorithms.supported_schemes()
        }
    }
    let key = PrivatePkcs8KeyDer::from(key.serialize_der());
    ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("TLS 1.3")
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Any))
        .with_client_auth_cert(vec![certificate.der.into()], key.into())
        .expect("a key and a certificate")
}

#[test]
fn the_server_refuses_on_its_own() {
    let ours = Authority::new(now());
    let coordinator = Credentials::of_coordinator(&ours, job("a"), now());
    let honest = worker(&ours, &job("a"), 1);
    // A certificate that anybody can make: self-signed, with the right name in it.
    let key = rcgen::KeyPair::generate().expect("random numbers");
    let mut params = rcgen::CertificateParams::default();
    params.subject_alt_names =
        vec![rcgen::SanType::URI("paceline://a/worker/3".try_into().expect("ASCII"))];
    let forged = params.self_signed(&key).expect("valid").der().to_vec();
    let client = || careless(Certificate { der: forged.clone(), expires: now() }, &key);
    assert!(meet(client(), coordinator_server(&coordinator)).is_err());
    assert!(meet(client(), peer_server(&honest, anyone())).is_err());
    // Without a certificate there is no link to a peer.
    let server = peer_server(&honest, anyone());
    assert!(meet(join_client(ours.fingerprint()), server).is_err());
}

#[test]
fn peers_accept_only_members_and_the_set_changes() {
    let authority = Authority::new(now());
    let [a, b, c] = [0, 1, 2].map(|id| worker(&authority, &job("a"), id));
    let members = Arc::new(Mutex::new(vec![WorkerId(0), WorkerId(1)]));
    let is_member: IsMember = {
        let members = members.clone();
        Arc::new(move |who| members.lock().expect("no holder panics").contains(&who))
    };
    let server = || peer_server(&a, is_member.clone());
    assert_eq!(meet(peer_client(&b, WorkerId(0)), server()), Ok(Some(b.name().clone())));
    assert!(meet(peer_client(&c, WorkerId(0)), server()).is_err());
    members.lock().expect("no holder panics").push(WorkerId(2));
    assert_eq!(meet(peer_client(&c, WorkerId(0)), server()), Ok(Some(c.name().clone())));
    // Who dials worker 1 does not talk to worker 0 instead.
    assert!(meet(peer_client(&b, WorkerId(1)), server()).is_err());
}

#[test]
fn certificates_end_bear_skew_and_are_renewed() {
    let authority = Authority::new(now());
    let coordinator = Credentials::of_coordinator(&authority, job("a"), now());
    let meet = |worker: &Credentials| meet(stream_client(worker), coordinator_server(&coordinator));
    let minutes = |count: u64| Duration::from_secs(60 * count);
    let expired = worker_at(&authority, &job("a"), 3, now() - LIFETIME - minutes(1));
    assert!(meet(&expired).is_err());
    // The authority's clock is 9 minutes ahead of the verifier's; 11 are too many.
    assert!(meet(&worker_at(&authority, &job("a"), 3, now() + minutes(9))).is_ok());
    assert!(meet(&worker_at(&authority, &job("a"), 3, now() + minutes(11))).is_err());

    assert!(expired.is_old(now()) && !worker(&authority, &job("a"), 3).is_old(now()));
    let renewed = authority.issue(expired.name(), &expired.request(), now());
    expired.renew(renewed).expect("it is for this key and name");
    assert_eq!(meet(&expired), Ok(Some(expired.name().clone())));
    assert!(expired.expires() > now() + LIFETIME - minutes(1));

    let other_name = Name { job: job("a"), role: Role::Worker(WorkerId(4)) };
    let other = authority.issue(&other_name, &expired.request(), now());
    assert_eq!(expired.renew(other), Err(CredentialsError::Foreign));
    let other_key =
        authority.issue(expired.name(), &Key::generate().request(Nonce::random()), now());
    assert_eq!(expired.renew(other_key), Err(CredentialsError::OtherKey));
}

#[test]
fn an_authority_is_the_same_after_a_restart_and_its_file_is_private() {
    static FOLDERS: AtomicU32 = AtomicU32::new(0);
    let folder = std::env::temp_dir().join(format!(
        "paceline-identity-{}-{}",
        std::process::id(),
        FOLDERS.fetch_add(1, Ordering::Relaxed)
    ));
    std::fs::create_dir_all(&folder).expect("a folder");
    let path = folder.join("authority.pem");
    let made = Authority::open(&path, now()).expect("made");
    let loaded = Authority::open(&path, now()).expect("loaded");
    assert_eq!(made.fingerprint(), loaded.fingerprint());
    let coordinator = Credentials::of_coordinator(&loaded, job("a"), now());
    let client = stream_client(&worker(&made, &job("a"), 0));
    assert!(meet(client, coordinator_server(&coordinator)).is_ok());

    // A key of one authority beside the certificate of another, and no authority at all.
    let other = folder.join("other.pem");
    Authority::open(&other, now()).expect("made");
    let (text, other_text) = (
        std::fs::read_to_string(&path).expect("text"),
        std::fs::read_to_string(&other).expect("text"),
    );
    let cut = |text: &str| text.find("-----BEGIN CERT").expect("a certificate");
    let mixed = format!("{}{}", &text[..cut(&text)], &other_text[cut(&other_text)..]);
    for wrong in [mixed.as_str(), &text[..cut(&text)], &text[cut(&text)..], ""] {
        paceline_identity::write_private(&other, wrong).expect("written");
        let sentence = Authority::load(&other, now()).err().expect("refused").to_string();
        assert!(sentence.contains("does not hold an authority"), "{sentence}");
    }
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        let mode = std::fs::metadata(&path).expect("a file").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).expect("changed");
        let sentence = Authority::load(&path, now()).err().expect("refused").to_string();
        assert!(sentence.contains("chmod 600"), "{sentence}");
    }
    std::fs::remove_dir_all(&folder).expect("removed");
}
