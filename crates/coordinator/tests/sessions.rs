//! Workers and a coordinator over real sockets, in one process: nothing that is said is lost or doubled when connections
//! break and coordinators are killed, and strangers are turned away.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::mpsc as channel;
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use paceline_coordinator::{
    Client, ClientError, Clock, ClockReading, Coordinators, Disk, Driver, DriverConfig, Happened,
    Heard, Incoming, Invitation, Place, Proof, Said, Service, ServiceConfig,
};
use paceline_identity::{Authority, Token, coordinator_server};
use paceline_runtime::coordination::{Coordination, Input, Lease, Order, Rules, Word};
use paceline_runtime::{Line, Record, Spans, WorkerId};

const VERSION: &str = "1.2.3";
const LONG: Duration = Duration::from_secs(20);
/// Longer than any test waits: no worker is lost because it is silent.
const PATIENCE: Duration = Duration::from_secs(60);

struct Folder(PathBuf);

impl Folder {
    fn new() -> Folder {
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
struct Running {
    address: SocketAddr,
    sender: tokio::sync::mpsc::Sender<Incoming>,
    clock: Clock,
    stop: channel::Sender<()>,
    thread: Option<JoinHandle<Vec<Happened>>>,
    token: Token,
    others: Vec<Token>,
}

#[derive(Clone, Copy)]
struct Options {
    workers: usize,
    is_plain: bool,
    /// 0: any that is free.
    port: u16,
    grace: Duration,
}

const OPTIONS: Options =
    Options { workers: 1, is_plain: false, port: 0, grace: Duration::from_millis(300) };

/// A job whose workers must know the same of it.
fn same_as_first(first: Option<&str>, facts: &str) -> Result<u64, String> {
    match first.is_none_or(|first| first == facts) {
        true => Ok(10_000),
        false => Err("the data of this worker differ".to_owned()),
    }
}

fn open(folder: &Folder, options: Options) -> Driver {
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
    fn start(folder: &Folder, options: Options) -> Running {
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
    fn kill(mut self) -> Vec<Happened> {
        let (unused, _) = channel::channel();
        drop(std::mem::replace(&mut self.stop, unused));
        self.thread.take().expect("it runs").join().expect("it does not panic")
    }

    fn coordinators(&self) -> Coordinators {
        Coordinators::new([self.address.to_string()])
    }

    fn invitation(&self, token: &Token, is_plain: bool) -> Invitation {
        let proof = Proof::Token(token.clone());
        Invitation::new(&self.coordinators(), proof, VERSION, is_plain)
    }

    fn join(&self) -> (Place, TcpListener) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address").to_string();
        let invitation = self.invitation(&self.token, false);
        assert_eq!(invitation.look(LONG).expect("it may join").text, "a job");
        (invitation.join(&address, "data", LONG).expect("it joins"), listener)
    }
}

/// A relay between workers and a coordinator that can cut all its connections.
struct Relay {
    address: SocketAddr,
    cut: channel::Sender<()>,
}

impl Relay {
    fn to(target: SocketAddr) -> Relay {
        Relay::delaying(target, [Duration::ZERO; 2])
    }

    /// What is sent to the coordinator arrives later by the first delay, what it sends by the second.
    fn delaying(target: SocketAddr, [there, back]: [Duration; 2]) -> Relay {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let (cut, cuts) = channel::channel::<()>();
        listener.set_nonblocking(true).expect("a socket");
        std::thread::spawn(move || {
            let mut open: Vec<TcpStream> = vec![];
            loop {
                match cuts.try_recv() {
                    Ok(()) => open
                        .drain(..)
                        .for_each(|stream| drop(stream.shutdown(std::net::Shutdown::Both))),
                    Err(channel::TryRecvError::Disconnected) => return,
                    Err(channel::TryRecvError::Empty) => {}
                }
                if let Ok((near, _)) = listener.accept() {
                    near.set_nonblocking(false).expect("a socket");
                    let Ok(far) = TcpStream::connect(target) else { continue };
                    for (from, to, delay) in [(&near, &far, there), (&far, &near, back)] {
                        let clone = |it: &TcpStream| it.try_clone().expect("a socket");
                        pass_on(clone(from), clone(to), delay);
                    }
                    open.extend([near, far]);
                }
                std::thread::sleep(Duration::from_millis(2));
            }
        });
        Relay { address, cut }
    }
}

/// Passes on what comes in, so much later.
fn pass_on(mut from: TcpStream, mut to: TcpStream, delay: Duration) {
    let (sender, pieces) = channel::channel::<(Instant, Vec<u8>)>();
    std::thread::spawn(move || {
        let mut buffer = vec![0; 1 << 16];
        while let Ok(length @ 1..) = from.read(&mut buffer) {
            let _ = sender.send((Instant::now() + delay, buffer[..length].to_vec()));
        }
    });
    std::thread::spawn(move || {
        for (due, piece) in pieces {
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
            if to.write_all(&piece).is_err() {
                break;
            }
        }
        let _ = to.shutdown(std::net::Shutdown::Both);
    });
}

fn line(n: u64) -> Said {
    let record =
        Record::Note { who: WorkerId(0), name: "n".into(), value: n as f64, round: Some(n) };
    Said::Line(Line { at: Duration::from_millis(n), record })
}

fn ask(request: u64) -> Said {
    Said::Word(Word::Lease { request, samples: 1 })
}

/// Waits for this many leases; returns the requests that they answer, and how often the connection broke.
fn leases(client: &Client, count: usize) -> (Vec<u64>, usize) {
    let (mut requests, mut breaks, deadline) = (vec![], 0, Instant::now() + LONG);
    while requests.len() < count {
        assert!(Instant::now() < deadline, "only {requests:?}");
        match client.recv_timeout(Duration::from_millis(100)) {
            Some(Heard::Order {
                order: Order::Lease { request, lease: Lease::Yours { .. } },
                ..
            }) => {
                requests.push(request);
            }
            Some(Heard::Broken) => breaks += 1,
            Some(Heard::Refused(why)) => panic!("refused: {why}"),
            Some(Heard::GaveUp) => panic!("gave up"),
            Some(Heard::Order { order: order @ Order::PutOut { .. }, .. }) => panic!("{order:?}"),
            _ => {}
        }
    }
    (requests, breaks)
}

/// The numbers of the notes in the journal, in order.
fn notes(folder: &Folder) -> Vec<u64> {
    let text = std::fs::read_to_string(folder.0.join("journal.jsonl")).expect("a journal");
    let lines = text.lines().map(|line| serde_json::from_str::<Line>(line).expect("a whole line"));
    lines
        .filter_map(|line| if let Record::Note { round, .. } = line.record { round } else { None })
        .collect()
}

fn counted(n: u64) -> Vec<u64> {
    (1..=n).collect()
}

#[test]
fn nothing_is_lost_or_doubled_when_connections_break() {
    let folder = Folder::new();
    let running = Running::start(&folder, OPTIONS);
    let (mut place, _listener) = running.join();
    let relay = Relay::to(running.address);
    place.coordinators = Coordinators::new([relay.address.to_string()]);
    let client = Client::start(&place, LONG).expect("a thread");
    let (mut answered, mut broken) = (vec![], 0);
    for block in 0..5 {
        for n in 20 * block + 1..=20 * block + 20 {
            client.say(line(n));
            client.say(ask(n));
            if n % 20 == 7 {
                relay.cut.send(()).expect("the relay runs");
            }
            // Some of them are said before the cut, some meanwhile, some after it.
            std::thread::sleep(Duration::from_millis(1));
        }
        let (requests, breaks) = leases(&client, 20);
        answered.extend(requests);
        broken += breaks;
    }
    assert!(client.flush(LONG), "everything is acknowledged");
    assert!(broken > 0, "the relay has cut something");
    drop(client);
    running.kill();
    assert_eq!(answered, counted(100));
    assert_eq!(notes(&folder), counted(100));
}

#[test]
fn a_worker_knows_the_coordinators_clock_within_the_bound_that_it_states() {
    let folder = Folder::new();
    let running = Running::start(&folder, OPTIONS);
    let [there, back] = [10, 40].map(Duration::from_millis);
    let relay = Relay::delaying(running.address, [there, back]);
    let proof = Proof::Token(running.token.clone());
    let coordinators = Coordinators::new([relay.address.to_string()]);
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address").to_string();

    // The clock's own reading lies between two looks at the right one.
    let off = |reading: &ClockReading| {
        let (known, right) = (reading.now(), running.clock.now());
        right.abs_diff(known)
    };
    let slack = Duration::from_millis(3);
    let invitation = Invitation::new(&coordinators, proof, VERSION, false);
    let place = invitation.join(&address, "data", LONG).expect("it joins");
    assert!(off(&place.clock) <= place.clock.error + slack, "{:?}", off(&place.clock));

    let client = Client::start(&place, LONG).expect("a thread");
    let (mut readings, deadline) = (vec![], Instant::now() + LONG);
    while readings.len() < 5 {
        assert!(Instant::now() < deadline, "the beats of five seconds are echoed");
        if let Some(Heard::Clock(reading)) = client.recv_timeout(Duration::from_millis(100)) {
            assert!(off(&reading) <= reading.error + slack, "{:?}: {reading:?}", off(&reading));
            readings.push(reading);
        }
    }
    let best = readings.pop().expect("there are five");
    drop(client);
    running.kill();

    // Half of the way there and back, and what this machine adds.
    let half = (there + back) / 2;
    assert!(best.error >= half && best.error < half + Duration::from_millis(10), "{best:?}");
}

/// Two that both believe to be active: a copy of the state makes a newer one, while the older one lives.
#[test]
fn a_worker_finds_the_coordinator_that_took_over_and_does_not_go_back_to_the_older_one() {
    let (folder, copy) = (Folder::new(), Folder::new());
    let older = Running::start(&folder, OPTIONS);
    let (mut place, _listener) = older.join();
    let relay = Relay::to(older.address);
    for file in std::fs::read_dir(&folder.0).expect("a folder").flatten() {
        if file.path().is_file() {
            std::fs::copy(file.path(), copy.0.join(file.file_name())).expect("copied");
        }
    }
    let newer = Running::start(&copy, OPTIONS);
    let options = Options { port: newer.address.port(), ..OPTIONS };
    place.coordinators = Coordinators::new([relay.address, newer.address].map(|it| it.to_string()));
    let client = Client::start(&place, LONG).expect("a thread");
    let mut started = client.recv_timeout(LONG);
    while let Some(Heard::Clock(_)) = started {
        started = client.recv_timeout(LONG);
    }
    assert!(
        matches!(started, Some(Heard::Order { order: Order::Start { .. }, .. })),
        "{started:?}"
    );

    // The relay takes a moment to cut: what was said before that would be answered by the older one.
    relay.cut.send(()).expect("the relay runs");
    let deadline = Instant::now() + LONG;
    while client.recv_timeout(Duration::from_millis(100)) != Some(Heard::Broken) {
        assert!(Instant::now() < deadline, "the connection to the older one breaks");
    }
    client.say(ask(1));
    assert_eq!(leases(&client, 1).0, [1], "of the newer one");
    newer.kill();
    let until = Instant::now() + Duration::from_secs(2);
    client.say(ask(2));
    let mut is_broken = false;
    while Instant::now() < until {
        match client.recv_timeout(Duration::from_millis(50)) {
            None => {}
            Some(Heard::Broken) => is_broken = true,
            // What was on its way when the newer one was killed.
            Some(Heard::Clock(_)) if !is_broken => {}
            heard => panic!("of the older one: {heard:?}"),
        }
    }
    let newest = Running::start(&copy, options);
    assert_eq!(leases(&client, 1).0, [2], "of the newest one");
    drop(client);
    older.kill();
    newest.kill();
}

#[test]
fn a_killed_coordinator_continues_from_its_log() {
    let folder = Folder::new();
    let mut running = Running::start(&folder, OPTIONS);
    let options = Options { port: running.address.port(), ..OPTIONS };
    let (place, _listener) = running.join();
    let client = Client::start(&place, LONG).expect("a thread");
    let mut answered = vec![];
    for kill in 0..4 {
        for n in 25 * kill + 1..=25 * kill + 25 {
            client.say(line(n));
            client.say(ask(n));
        }
        // Killed while it works on them.
        std::thread::sleep(Duration::from_millis(7 * kill));
        let before = running.token.id;
        running.kill();
        let since = Instant::now();
        running = Running::start(&folder, options);
        println!("started again after {:?}", since.elapsed());
        assert!(running.token.id > before, "tokens of the one before are remembered");
        answered.extend(leases(&client, 25).0);
    }
    assert!(client.flush(LONG), "everything is acknowledged");
    assert_eq!(answered, counted(100));
    drop(client);
    running.kill();
    assert_eq!(notes(&folder), counted(100));
    let driver = open(&folder, OPTIONS);
    // Each position was leased once: the coordinator did not forget what it had promised.
    let text = std::fs::read_to_string(driver.journal()).expect("a journal");
    assert_eq!(text.matches("\"restarted\"").count(), 5);
}

#[test]
fn a_worker_that_is_killed_is_lost_soon_and_one_that_returns_is_not() {
    let folder = Folder::new();
    let running = Running::start(&folder, Options { workers: 2, ..OPTIONS });
    let [(first, _a), (second, _b)] = [running.join(), running.join()];
    let one = Client::start(&first, LONG).expect("a thread");
    let relay = Relay::to(running.address);
    let through =
        Place { coordinators: Coordinators::new([relay.address.to_string()]), ..second.clone() };
    let two = Client::start(&through, LONG).expect("a thread");
    let wait_for = |client: &Client, wanted: &dyn Fn(&Heard) -> bool| {
        let deadline = Instant::now() + LONG;
        loop {
            assert!(Instant::now() < deadline);
            if let Some(heard) = client.recv_timeout(Duration::from_millis(100))
                && wanted(&heard)
            {
                return heard;
            }
        }
    };
    let started =
        wait_for(&one, &|heard| matches!(heard, Heard::Order { order: Order::Start { .. }, .. }));
    let Heard::Order { peers, .. } = started else { unreachable!() };
    let addresses: BTreeMap<WorkerId, String> =
        peers.into_iter().map(|peer| (peer.who, peer.address)).collect();
    assert_eq!(
        addresses,
        BTreeMap::from([(first.who, first.address.clone()), (second.who, second.address.clone())])
    );

    wait_for(&two, &|heard| matches!(heard, Heard::Order { order: Order::Start { .. }, .. }));
    relay.cut.send(()).expect("the relay runs");
    wait_for(&two, &|heard| *heard == Heard::Back);
    std::thread::sleep(2 * OPTIONS.grace);
    assert!(
        !matches!(one.try_recv(), Some(Heard::Order { .. })),
        "the worker that came back is a member"
    );

    drop(two);
    let lost =
        wait_for(&one, &|heard| matches!(heard, Heard::Order { order: Order::View { .. }, .. }));
    let Heard::Order { order: Order::View { view, lost }, .. } = lost else { unreachable!() };
    assert_eq!((view.members.as_slice(), lost.as_slice()), (&[first.who][..], &[second.who][..]));

    // It lives after all: it is told, and joins anew with its certificate, under another id.
    let returned = Client::start(&second, LONG).expect("a thread");
    wait_for(&returned, &|heard| matches!(heard, Heard::Order { order: Order::PutOut { .. }, .. }));
    let again = || {
        let proof = Proof::Certificate(second.credentials.clone().expect("TLS"));
        let invitation = Invitation::new(&running.coordinators(), proof, VERSION, false);
        invitation.join(&second.address, "data", LONG)
    };
    let anew = again().expect("it may");
    assert_eq!(anew.who, WorkerId(2));

    // Banned, it may not.
    let ban =
        |who| running.sender.blocking_send(Incoming::Input(Input::Ban(who))).expect("it runs");
    [second.who, anew.who].into_iter().for_each(ban);
    let refused = again().err().expect("banned").to_string();
    assert_eq!(refused, "worker 1 was banned from this job");
    drop((one, returned));
    running.kill();
}

#[test]
fn strangers_are_turned_away_with_one_sentence() {
    let folder = Folder::new();
    let running = Running::start(&folder, OPTIONS);
    let foreign = Running::start(&Folder::new(), OPTIONS);
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let here = listener.local_addr().expect("an address").to_string();
    let sentence = |invitation: Invitation, address: &str, data: &str| match invitation.join(
        address,
        data,
        Duration::ZERO,
    ) {
        Ok(place) => panic!("worker {} joined", place.who),
        Err(error) => error.to_string(),
    };
    let decoy = TcpListener::bind("127.0.0.1:0").expect("a port");
    let there = decoy.local_addr().expect("an address").to_string();
    let join = |token: &Token| sentence(running.invitation(token, false), &there, "data");

    let [once, expired, revoked] = &running.others[..] else { unreachable!() };
    running.invitation(once, false).join(&here, "data", LONG).expect("the first use");
    assert!(join(once).starts_with("the token has been used as often"), "{}", join(once));
    assert!(join(expired).starts_with("the token has expired"));
    assert_eq!(join(revoked), "the token was revoked");
    decoy.set_nonblocking(true).expect("a socket");
    assert!(decoy.accept().is_err(), "the coordinator dialled for a stranger");
    // A token of another coordinator does not trust this one, and is not shown to it.
    let error = running.invitation(&foreign.token, false).join(&here, "data", LONG);
    assert!(matches!(error, Err(ClientError::Untrusted { .. })));
    let version = Invitation::new(
        &running.coordinators(),
        Proof::Token(running.token.clone()),
        "0.0.1",
        false,
    );
    assert_eq!(
        sentence(version, &here, "data"),
        "this worker runs version 0.0.1, the coordinator 1.2.3"
    );
    let invitation = || running.invitation(&running.token, false);
    assert!(
        sentence(invitation(), &here, "other data").starts_with("the data of this worker differ")
    );
    let too_long = sentence(invitation(), &here, &"x".repeat(300_000));
    assert!(too_long.contains("too large"), "{too_long}");
    let unreachable = sentence(invitation(), "127.0.0.1:1", "data");
    assert!(
        unreachable.starts_with("the worker cannot be reached at 127.0.0.1:1"),
        "{unreachable}"
    );
    // 0.0.0.0 is where the connection comes from.
    let port = listener.local_addr().expect("an address").port();
    let place = invitation().join(&format!("0.0.0.0:{port}"), "data", LONG).expect("it joins");
    assert_eq!(place.address, here);

    // A certificate of another job opens no session.
    let (theirs, _listener) = foreign.join();
    let lost = Place { coordinators: running.coordinators(), ..theirs };
    let client = Client::start(&lost, LONG).expect("a thread");
    assert!(matches!(client.recv_timeout(LONG), Some(Heard::Refused(_))));
    // One without a certificate does not either.
    let naked = Place { credentials: None, ..lost };
    let client = Client::start(&naked, Duration::from_millis(200)).expect("a thread");
    assert!(matches!(client.recv_timeout(LONG), Some(Heard::GaveUp | Heard::Refused(_))));

    // Connections that say nothing, or nonsense, do not keep others out.
    let idle: Vec<TcpStream> =
        (0..300).filter_map(|_| TcpStream::connect(running.address).ok()).collect();
    for mut stream in &idle[..20] {
        let _ = std::io::Write::write_all(&mut stream, &[0xff; 64]);
    }
    drop(idle);
    running.join();
    foreign.kill();
    let happened = running.kill();
    let refused = happened.iter().filter(|it| matches!(it, Happened::Refused { .. })).count();
    assert!(refused >= 9, "{refused}");
}

#[test]
fn a_join_whose_answer_was_lost_is_one_join() {
    let folder = Folder::new();
    let mut driver = open(&folder, OPTIONS);
    let token = driver.make_token(LONG, 1).expect("a token");
    let request = paceline_identity::Key::generate().request(paceline_identity::Nonce::random());
    let join = |driver: &mut Driver| {
        let join = paceline_coordinator::Join {
            version: VERSION.to_owned(),
            token: None,
            request: request.clone(),
            address: "a:1".to_owned(),
            facts: "data".to_owned(),
        };
        let (reply, mut answer) = tokio::sync::oneshot::channel();
        let incoming = Incoming::Join { token: Some(token.clone()), known: None, join, reply };
        driver.sender().try_send(incoming).expect("there is room");
        driver.turn(LONG).expect("the disk works");
        answer.try_recv().expect("an answer")
    };
    let paceline_coordinator::Answer::Yes(first) = join(&mut driver) else { panic!("refused") };
    // The coordinator is killed before the answer arrives.
    drop(driver);
    let paceline_coordinator::Answer::Yes(again) = join(&mut open(&folder, OPTIONS)) else {
        panic!("refused")
    };
    assert_eq!(first.who, again.who);
}

#[test]
fn files_are_stored_whole_and_fetched_again() {
    let folder = Folder::new();
    let running = Running::start(&folder, OPTIONS);
    let (place, _listener) = running.join();
    let client = Client::start(&place, LONG).expect("a thread");
    let bytes: Vec<u8> = (0..700_000u32).map(|i| (i.wrapping_mul(i) >> 7) as u8).collect();
    client.store("part-0", bytes.clone().into()).expect("stored");
    assert_eq!(client.fetch("part-0", 1 << 20).expect("there"), bytes);
    assert!(client.fetch("part-0", 1 << 10).is_err(), "the caller's bound holds");
    assert!(matches!(client.fetch("part-1", 1 << 20), Err(ClientError::Refused(_))));
    let refused = client.store("../part", bytes.into()).expect_err("out of the folder").to_string();
    assert!(refused.contains("is not stored"), "{refused}");
    assert!(client.store("big", vec![0; 2 << 20].into()).is_err());
    let names: Vec<_> = std::fs::read_dir(folder.0.join("files"))
        .expect("a folder")
        .map(|file| file.expect("a file").file_name())
        .collect();
    assert_eq!(names, ["part-0"]);
    drop(client);
    let happened = running.kill();
    assert!(happened.iter().any(|it| matches!(it, Happened::Stored { .. })));
}

#[test]
fn without_tls_the_same_works_in_the_clear() {
    let folder = Folder::new();
    let running = Running::start(&folder, Options { is_plain: true, ..OPTIONS });
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address").to_string();
    let place =
        running.invitation(&running.token, true).join(&address, "data", LONG).expect("it joins");
    let client = Client::start(&place, LONG).expect("a thread");
    client.say(ask(1));
    assert_eq!(leases(&client, 1).0, [1]);
    drop(client);
    running.kill();
}

#[test]
fn a_log_that_a_crash_cut_off_anywhere_opens_with_its_journal() {
    let folder = Folder::new();
    let running = Running::start(&folder, OPTIONS);
    let (place, _listener) = running.join();
    let client = Client::start(&place, LONG).expect("a thread");
    for n in 1..=12 {
        client.say(line(n));
        client.say(ask(n));
        assert!(client.flush(LONG));
    }
    drop(client);
    running.kill();
    let log =
        std::fs::read_dir(&folder.0).expect("a folder").map(|file| file.expect("a file").path());
    let log = log.into_iter().find(|path| path.to_string_lossy().contains("/log-")).expect("a log");
    let journal = folder.0.join("journal.jsonl");
    let (log_bytes, journal_bytes) =
        (std::fs::read(&log).expect("a log"), std::fs::read(&journal).expect("a journal"));
    let mut most = 0;
    for length in (0..=log_bytes.len()).step_by(61).chain([log_bytes.len()]) {
        std::fs::write(&log, &log_bytes[..length]).expect("written");
        // Written before the log, and cut off in the middle of a line.
        std::fs::write(&journal, [&journal_bytes[..], br#"{"at":1,"rec"#].concat())
            .expect("written");
        let driver = open(&folder, OPTIONS);
        let (noted, words) = (notes(&folder), driver.coordinator().received(place.who));
        assert_eq!(noted, counted(noted.len() as u64), "cut at {length}");
        assert!(words <= noted.len() as u64 && noted.len() as u64 <= words + 1, "cut at {length}");
        assert!(noted.len() >= most, "cut at {length}");
        most = noted.len();
    }
    assert_eq!(most, 12);
}

#[test]
fn a_certificate_is_renewed_on_the_session() {
    let folder = Folder::new();
    let running = Running::start(&folder, OPTIONS);
    let (place, _listener) = running.join();
    let authority =
        Authority::load(&folder.0.join("authority.pem"), SystemTime::now()).expect("loaded");
    let credentials = place.credentials.clone().expect("TLS");
    let made = SystemTime::now() - Duration::from_secs(20 * 3600);
    credentials
        .renew(authority.issue(credentials.name(), &credentials.request(), made))
        .expect("it fits");
    assert!(credentials.is_old(SystemTime::now()));
    let _client = Client::start(&place, LONG).expect("a thread");
    let deadline = Instant::now() + LONG;
    while credentials.is_old(SystemTime::now()) {
        assert!(Instant::now() < deadline, "it was not renewed");
        std::thread::sleep(Duration::from_millis(5));
    }
    running.kill();
}
