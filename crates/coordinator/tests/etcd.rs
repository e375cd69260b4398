//! The store in etcd, with a real one. `.ci/standby` installs it and runs these tests.

use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use paceline_coordinator::{Etcd, EtcdConfig, EtcdError, EtcdTls, Opened, StoreError};

const NEEDS: &str = "etcd can be started: `apt-get install etcd-server`";

/// A server of its own, which ends with the test.
struct Server {
    child: Child,
    folder: PathBuf,
    port: u16,
    arguments: Vec<String>,
}

fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    listener.local_addr().expect("it is bound").port()
}

/// An authority, a certificate of the server and one of a client, all in files.
fn certificates(folder: &Path) {
    let file = |name: &str| folder.join(name).display().to_string();
    let openssl = |arguments: &[&str]| {
        let mut command = Command::new("openssl");
        let command = command.args(arguments).stdout(Stdio::null()).stderr(Stdio::null());
        assert!(command.status().expect("openssl can be run").success(), "{arguments:?}");
    };
    let key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"];
    let new = |name: &str, more: &[&str]| {
        let (key_file, out, subject) =
            (file(&format!("{name}.key")), file(name), format!("/CN={name}"));
        let rest = ["-keyout", &key_file, "-out", &out, "-subj", &subject];
        openssl(&[&["req"], &key[..], &rest, more].concat());
    };
    new("ca", &["-x509", "-days", "2"]);
    new("other-ca", &["-x509", "-days", "2"]);
    for (name, extension) in
        [("server", "subjectAltName=IP:127.0.0.1\n"), ("client", "extendedKeyUsage=clientAuth\n")]
    {
        new(name, &[]);
        let (asked, made, extensions) =
            (file(name), file(&format!("{name}.pem")), file("extensions"));
        std::fs::write(&extensions, extension).expect("it can be written");
        let (ca, ca_key) = (file("ca"), file("ca.key"));
        openssl(&[
            "x509",
            "-req",
            "-in",
            &asked,
            "-CA",
            &ca,
            "-CAkey",
            &ca_key,
            "-CAcreateserial",
            "-days",
            "2",
            "-extfile",
            &extensions,
            "-out",
            &made,
        ]);
    }
}

impl Server {
    fn start() -> Server {
        Server::start_with("http", |_| vec![])
    }

    /// A server that encrypts, and wants to see a certificate of the client.
    fn start_encrypted() -> Server {
        Server::start_with("https", |folder| {
            certificates(folder);
            let file = |name: &str| folder.join(name).display().to_string();
            vec![
                format!("--cert-file={}", file("server.pem")),
                format!("--key-file={}", file("server.key")),
                format!("--trusted-ca-file={}", file("ca")),
                "--client-cert-auth".to_owned(),
            ]
        })
    }

    fn start_with(scheme: &str, more: impl FnOnce(&Path) -> Vec<String>) -> Server {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("paceline-etcd-{}-{number}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        let (port, peer) = (free_port(), free_port());
        let here = format!("{scheme}://127.0.0.1:{port}");
        let data = folder.join("data").display().to_string();
        let mut arguments: Vec<String> = [
            ("--data-dir", data),
            ("--listen-client-urls", here.clone()),
            ("--advertise-client-urls", here),
            ("--listen-peer-urls", format!("http://127.0.0.1:{peer}")),
        ]
        .into_iter()
        .flat_map(|(flag, value)| [flag.to_owned(), value])
        .collect();
        std::fs::create_dir_all(&folder).expect("the temporary folder can be written");
        arguments.extend(more(&folder));
        let child = launch(&arguments, port);
        Server { child, folder, port, arguments }
    }

    /// Ends it for so long.
    fn pause(&mut self, lasts: Duration) {
        self.child.kill().expect("it runs");
        self.child.wait().expect("it ends");
        std::thread::sleep(lasts);
        self.child = launch(&self.arguments, self.port);
    }

    fn config(&self, address: &str) -> EtcdConfig {
        EtcdConfig {
            // The first server is not there.
            place: format!("etcd://127.0.0.1:1,127.0.0.1:{}/job", self.port)
                .parse()
                .expect("a place"),
            tls: None,
            address: address.to_owned(),
            folder: self.folder.join(address),
            lease: Duration::from_secs(2),
            waits: Duration::from_secs(20),
            job: "a job".to_owned(),
            authority: "its authority".to_owned(),
            stop: Arc::default(),
            say: |_| {},
        }
    }

    fn open(&self, address: &str) -> Opened {
        Etcd::open(self.config(address)).expect("etcd answers")
    }

    fn open_aside(&self, address: &str) -> JoinHandle<Opened> {
        let config = self.config(address);
        std::thread::spawn(move || Etcd::open(config).expect("etcd answers"))
    }
}

fn launch(arguments: &[String], port: u16) -> Child {
    let mut command = Command::new("etcd");
    let child =
        command.args(arguments).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect(NEEDS);
    let since = Instant::now();
    while TcpStream::connect(("127.0.0.1", port)).is_err() {
        assert!(since.elapsed() < Duration::from_secs(20), "{NEEDS}");
        std::thread::sleep(Duration::from_millis(20));
    }
    child
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

fn bytes(length: usize, seed: u8) -> Vec<u8> {
    (0..length).map(|i| b'a' + ((i as u8) ^ seed) % 16).collect()
}

#[test]
#[ignore = "needs etcd: .ci/standby runs it"]
fn connections_to_etcd_are_encrypted_and_both_sides_show_certificates() {
    let server = Server::start_encrypted();
    let file = |name: &str| server.folder.join(name);
    let own = Some((file("client.pem"), file("client.key")));
    let config = |authorities: &str, own: &Option<(PathBuf, PathBuf)>| {
        let tls = EtcdTls { authorities: file(authorities), own: own.clone() };
        let place = format!("etcd://127.0.0.1:{}/job", server.port);
        let config = server.config("a:1");
        let waits = Duration::from_secs(3);
        EtcdConfig { tls: Some(tls), place: place.parse().expect("a place"), waits, ..config }
    };
    let opened = Etcd::open(config("ca", &own));
    let mut opened = opened.map_err(|error| error.to_string()).expect("etcd answers");
    opened.store.snapshot(b"first").expect("stored");
    drop(opened);

    let again = Etcd::open(config("ca", &own)).map_err(|error| error.to_string());
    assert_eq!(again.expect("etcd answers").snapshot.as_deref(), Some(&b"first"[..]));
    let other = Etcd::open(config("other-ca", &own)).err().map(|error| error.to_string());
    assert!(other.as_ref().is_some_and(|why| why.contains("--etcd-ca")), "{other:?}");
    assert!(Etcd::open(config("ca", &None)).is_err(), "etcd wants to see a certificate");
    let plain = EtcdConfig { tls: None, ..config("ca", &own) };
    assert!(Etcd::open(plain).is_err(), "etcd encrypts");
    let missing = Etcd::open(config("nothing", &own)).err().map(|error| error.to_string());
    assert!(missing.as_ref().is_some_and(|why| why.contains("nothing")), "{missing:?}");
}

#[test]
#[ignore = "needs etcd: .ci/standby runs it"]
fn what_was_stored_is_found_by_the_next_also_if_it_is_long() {
    let server = Server::start();
    let mut opened = server.open("a:1");
    assert!(opened.snapshot.is_none() && opened.batches.is_empty());
    let store = &mut opened.store;
    // Several pieces each: etcd refuses more than 1.5 MB at once.
    let (state, batch, lines) = (bytes(3_000_000, 1), bytes(2_500_000, 2), bytes(1_800_000, 3));
    store.snapshot(b"first").expect("stored");
    store.begin_journal(0).expect("written");
    store.commit(b"old", b"line 1\n").expect("stored");
    store.snapshot(&state).expect("stored");
    assert_eq!(store.size(), 0);
    store.commit(&batch, b"line 2\n").expect("stored");
    store.commit(b"short", b"").expect("stored");
    store.commit(b"with lines", &lines).expect("stored");
    drop(opened);

    let since = Instant::now();
    let mut again = server.open("b:2");
    assert!(since.elapsed() < Duration::from_secs(2), "who ends in good order is not waited for");
    assert!(again.snapshot.as_ref() == Some(&state), "the newest snapshot");
    assert!(again.batches == [&batch[..], b"short", b"with lines"], "all since");
    let length = 14 + lines.len() as u64;
    again.store.begin_journal(length).expect("written");
    let journal = std::fs::read(again.store.journal()).expect("a copy");
    assert!(journal == [b"line 1\nline 2\n", &lines[..]].concat());
    // And once more, over another snapshot that moves the lines.
    again.store.snapshot(b"last").expect("stored");
    again.store.commit(b"new", b"line 3\n").expect("stored");
    drop(again);
    let mut last = server.open("a:1");
    assert_eq!((last.snapshot.as_deref(), last.batches.len()), (Some(&b"last"[..]), 1));
    assert!(last.store.begin_journal(length).is_err(), "a line would be missing");
}

/// The lease of the first one ends although it lives: it is stopped, or cut off.
#[test]
#[ignore = "needs etcd: .ci/standby runs it"]
fn who_has_lost_the_job_stores_nothing_more_and_is_told_who_has_it() {
    let server = Server::start();
    let mut first = server.open("a:1");
    first.store.snapshot(b"state").expect("stored");
    first.store.commit(b"one", b"").expect("stored");
    let second = server.open_aside("b:2");
    let since = Instant::now();
    while first.store.coordinators() != ["a:1", "b:2"] {
        assert!(since.elapsed() < Duration::from_secs(10), "{:?}", first.store.coordinators());
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(!second.is_finished(), "it waits");

    revoke_lease_of("a:1", &server);
    let second = second.join().expect("it does not panic");

    assert_eq!(second.batches, [b"one"]);
    let superseded = |result: Result<(), StoreError>| match result {
        Err(StoreError::Etcd(EtcdError::Superseded { by })) => by == "b:2",
        _ => false,
    };
    assert!(superseded(first.store.confirm()));
    assert!(matches!(first.store.commit(b"two", b""), Err(StoreError::Etcd(EtcdError::Failed))));
    let since = Instant::now();
    while !superseded(first.store.check()) {
        assert!(since.elapsed() < Duration::from_secs(10), "it notices by itself");
        std::thread::sleep(Duration::from_millis(20));
    }
    drop((first, second));
    assert_eq!(server.open("c:3").batches, [b"one"], "nothing of the first one was added");
}

fn revoke_lease_of(address: &str, server: &Server) {
    let etcdctl = |arguments: &[&str]| {
        let endpoint = format!("--endpoints=127.0.0.1:{}", server.port);
        let mut command = Command::new("etcdctl");
        let output = command.env("ETCDCTL_API", "3").arg(endpoint).args(arguments).output();
        String::from_utf8(output.expect("apt-get install etcd-client").stdout).expect("text")
    };
    let keys = etcdctl(&["get", "--prefix", "paceline/job/coordinators/"]);
    let lines: Vec<&str> = keys.lines().collect();
    let found = lines.chunks(2).find(|pair| pair[1] == address).expect("it is known")[0];
    let lease = found.rsplit('/').next().expect("a key").trim_start_matches('0');
    etcdctl(&["lease", "revoke", lease]);
}

#[test]
#[ignore = "needs etcd: .ci/standby runs it"]
fn of_two_that_start_at_once_one_waits_and_it_ends_when_it_is_told_to() {
    let server = Server::start();
    let first = server.open("a:1");
    let stop = Arc::<AtomicBool>::default();
    let config = EtcdConfig { stop: stop.clone(), ..server.config("b:2") };
    let waiting = std::thread::spawn(move || Etcd::open(config).err());
    std::thread::sleep(Duration::from_millis(500));
    assert!(!waiting.is_finished());
    stop.store(true, Ordering::Relaxed);
    assert!(matches!(waiting.join(), Ok(Some(EtcdError::Stopped))));
    drop(first);
}

#[test]
#[ignore = "needs etcd: .ci/standby runs it"]
fn another_job_and_another_authority_are_refused_before_they_wait() {
    let server = Server::start();
    let mut first = server.open("a:1");
    first.store.snapshot(b"state").expect("stored");
    let other = EtcdConfig { job: "another".to_owned(), ..server.config("b:2") };
    assert!(matches!(Etcd::open(other), Err(EtcdError::OtherJob(_))));
    let other = EtcdConfig { authority: "another".to_owned(), ..server.config("b:2") };
    assert!(matches!(Etcd::open(other), Err(EtcdError::OtherAuthority(_))));
}

#[test]
#[ignore = "needs etcd: .ci/standby runs it"]
fn a_server_that_is_away_is_waited_for() {
    let mut server = Server::start();
    let mut first = server.open("a:1");
    first.store.snapshot(b"state").expect("stored");
    server.pause(Duration::from_millis(1500));
    first.store.commit(b"later", b"").expect("stored, when it is back");
    drop(first);
    assert_eq!(server.open("b:2").batches, [b"later"]);
}
