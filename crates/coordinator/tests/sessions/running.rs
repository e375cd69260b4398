//! A coordinator with its service on a thread, and the folder in which it stores its state.

use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::mpsc as channel;
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime};

use paceline_coordinator::{
    Clock, Coordinators, Disk, Driver, DriverConfig, Happened, Incoming, Invitation, Place, Proof,
    Service, ServiceConfig,
};
use paceline_identity::{Authority, Token, coordinator_server};
use paceline_runtime::Spans;
use paceline_runtime::coordination::{Coordination, Rules};

pub const VERSION: &str = "1.2.3";
pub const LONG: Duration = Duration::from_secs(20);
/// Longer than any test waits: no worker is lost because it is silent.
const PATIENCE: Duration = Duration::from_secs(60);

pub struct Folder(pub PathBuf);

impl Folder {
    pub fn new() -> Folder {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("paceline-sessions-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).expect("the temporary folder can be written");
        Folder(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A coordinator with its service, on a thread.
pub struct Running {
    pub address: SocketAddr,
    pub sender: tokio::sync::mpsc::Sender<Incoming>,
    pub clock: Clock,
    stop: channel::Sender<()>,
    thread: Option<JoinHandle<Vec<Happened>>>,
    pub token: Token,
    pub others: Vec<Token>,
}

#[derive(Clone, Copy)]
pub struct Options {
    pub workers: usize,
    pub is_plain: bool,
    /// 0: any that is free.
    pub port: u16,
    pub grace: Duration,
}

pub const OPTIONS: Options =
    Options { workers: 1, is_plain: false, port: 0, grace: Duration::from_millis(300) };

/// A job whose workers must know the same of it.
fn same_as_first(first: Option<&str>, facts: &str) -> Result<u64, String> {
    match first.is_none_or(|first| first == facts) {
        true => Ok(10_000),
        false => Err("the data of this worker differ".to_owned()),
    }
}

pub fn open(folder: &Folder, options: Options) -> Driver {
    let authority = Authority::open(&folder.0.join("authority.pem"), SystemTime::now());
    let rules =
        Rules { patience: PATIENCE, ..Rules::new(0, options.workers, Coordination::Asynchronous) };
    let config = DriverConfig {
        text: "a job".to_owned(),
        rules,
        done: Spans::new(),
        elapsed: Duration::ZERO,
        check_facts: Box::new(same_as_first),
        version: VERSION.to_owned(),
        authority: (!options.is_plain).then(|| authority.expect("an authority")),
        grace: options.grace,
    };
    Driver::open(config, Disk::open(&folder.0).expect("the folder is free")).expect("a job")
}

impl Running {
    pub fn start(folder: &Folder, options: Options) -> Running {
        let mut driver = open(folder, options);
        let listen = SocketAddr::from(([127, 0, 0, 1], options.port));
        let config = ServiceConfig {
            listen,
            tls: driver.credentials().map(coordinator_server),
            files: folder.0.join("files"),
            file_bytes_max: Arc::new(AtomicU64::new(1 << 20)),
            beat: Duration::from_millis(200),
            clock: driver.clock(),
            dials_back: true,
        };
        let service = Service::start(config, driver.sender()).expect("the port is free");
        let hour = Duration::from_secs(3600);
        let token = driver.make_token(hour, 100).expect("a token");
        let once = driver.make_token(hour, 1).expect("a token");
        let expired = driver.make_token(Duration::ZERO, 100).expect("a token");
        let revoked = driver.make_token(hour, 100).expect("a token");
        driver.revoke_token(revoked.id).expect("revoked");
        let (stop, stopped) = channel::channel::<()>();
        let (address, sender, clock) = (service.address(), driver.sender(), driver.clock());
        let run = move || {
            let mut happened = vec![];
            while stopped.try_recv() != Err(channel::TryRecvError::Disconnected) {
                happened.extend(driver.turn(Duration::from_millis(20)).expect("the disk works"));
            }
            // As after a kill: what is not on the disk is lost, and all connections close.
            drop(service);
            happened
        };
        let thread = Some(std::thread::spawn(run));
        let others = vec![once, expired, revoked];
        Running { address, sender, clock, stop, thread, token, others }
    }

    /// Ends it without writing anything more.
    pub fn kill(mut self) -> Vec<Happened> {
        let (unused, _) = channel::channel();
        drop(std::mem::replace(&mut self.stop, unused));
        self.thread.take().expect("it runs").join().expect("it does not panic")
    }

    pub fn coordinators(&self) -> Coordinators {
        Coordinators::new([self.address.to_string()])
    }

    pub fn invitation(&self, token: &Token, is_plain: bool) -> Invitation {
        let proof = Proof::Token(token.clone());
        Invitation::new(&self.coordinators(), proof, VERSION, is_plain)
    }

    pub fn join(&self) -> (Place, TcpListener) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address").to_string();
        let invitation = self.invitation(&self.token, false);
        assert_eq!(invitation.look(LONG).expect("it may join").text, "a job");
        (invitation.join(&address, "data", LONG).expect("it joins"), listener)
    }
}
