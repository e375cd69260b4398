//! The driver without sockets: what is stored, and what is told when.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use bytes::Bytes;
use paceline_runtime::Record;
use paceline_runtime::coordination::{Coordination, Lease, Order, Word};
use tonic::Status;

use super::*;
use crate::messages::{Join, Said, decode};
use crate::store::{Disk, LogError};
use crate::testing::Folder;

type Told = mpsc::UnboundedReceiver<Result<Bytes, Status>>;

fn config() -> DriverConfig {
    let patience = Duration::from_secs(60);
    DriverConfig {
        text: "job".to_owned(),
        rules: Rules { patience, ..Rules::new(1000, 1, Coordination::Asynchronous) },
        done: Spans::new(),
        elapsed: Duration::ZERO,
        check_facts: Box::new(|_, _| Ok(1000)),
        version: "1".to_owned(),
        authority: None,
        grace: Duration::from_secs(60),
    }
}

fn open(folder: &Folder) -> Result<Driver, DriverError> {
    Driver::open(config(), Disk::open(&folder.path).map_err(StoreError::from)?)
}

/// A store without room.
struct Full(PathBuf);

impl Store for Full {
    fn begin_journal(&mut self, _: u64) -> Result<(), StoreError> {
        Ok(())
    }

    fn commit(&mut self, _: &[u8], _: &[u8]) -> Result<(), StoreError> {
        Err(LogError::Full(self.0.clone()).into())
    }

    fn size(&self) -> u64 {
        0
    }

    fn snapshot(&mut self, _: &[u8]) -> Result<(), StoreError> {
        Err(LogError::Full(self.0.clone()).into())
    }

    fn journal(&self) -> &Path {
        &self.0
    }
}

/// Counts how often the store is waited for.
struct Counted {
    store: Box<dyn Store>,
    commits: Arc<AtomicU64>,
}

impl Store for Counted {
    fn begin_journal(&mut self, length: u64) -> Result<(), StoreError> {
        self.store.begin_journal(length)
    }

    fn commit(&mut self, batch: &[u8], lines: &[u8]) -> Result<(), StoreError> {
        self.commits.fetch_add(1, Ordering::Relaxed);
        self.store.commit(batch, lines)
    }

    fn size(&self) -> u64 {
        self.store.size()
    }

    fn snapshot(&mut self, state: &[u8]) -> Result<(), StoreError> {
        self.store.snapshot(state)
    }

    fn journal(&self) -> &Path {
        self.store.journal()
    }
}

/// A driver whose commits are counted, for this number of workers and samples.
fn counted(folder: &Folder, workers: usize, samples: u64) -> (Driver, Arc<AtomicU64>) {
    let rules =
        Rules { members_min: workers, ..Rules::new(samples, workers, Coordination::Asynchronous) };
    let rules = Rules { patience: Duration::from_secs(60), ..rules };
    let mut opened = Disk::open(&folder.path).expect("a new folder");
    let commits = Arc::<AtomicU64>::default();
    opened.store = Box::new(Counted { store: opened.store, commits: commits.clone() });
    let driver = Driver::open(DriverConfig { rules, ..config() }, opened).expect("a new folder");
    (driver, commits)
}

/// A worker that has joined and is connected.
fn connect(driver: &mut Driver) -> (WorkerId, Told) {
    let output = driver.coordinator.step(driver.clock.now(), Input::Hello);
    let who = output.admitted.expect("there is room");
    driver.carry_out(output);
    (who, reconnect(driver, who, 0))
}

fn reconnect(driver: &mut Driver, who: WorkerId, received: u64) -> Told {
    let (lane, told) = Lane::new();
    let session = driver.lanes.get(&who).map_or(1, |session| session.number + 1);
    driver.take(Incoming::Connected { from: who, session, received, lane });
    driver.commit().expect("there is room on the disk");
    told
}

fn ask(driver: &mut Driver, from: WorkerId, number: u64) {
    let said = Said::Word(Word::Lease { request: number, samples: 3 });
    let session = driver.lanes[&from].number;
    driver.take(Incoming::Said { from, session, number, said });
}

fn told(lane: &mut Told) -> Vec<Down> {
    let mut messages = vec![];
    while let Ok(message) = lane.try_recv() {
        messages.push(decode(&message.expect("a message")).expect("JSON"));
    }
    messages
}

fn leases(messages: &[Down]) -> Vec<(u64, Spans)> {
    let lease = |message: &Down| match message {
        Down::Order {
            order: Order::Lease { request, lease: Lease::Yours { spans, .. } }, ..
        } => Some((*request, spans.clone())),
        _ => None,
    };
    messages.iter().filter_map(lease).collect()
}

#[test]
fn a_session_begins_with_what_was_heard_and_what_was_missed() {
    let folder = Folder::new();
    let mut driver = open(&folder).expect("a new folder");
    let (who, mut lane) = connect(&mut driver);
    ask(&mut driver, who, 1);
    driver.commit().expect("there is room on the disk");
    let first = told(&mut lane);
    let numbers = |messages: &[Down]| -> Vec<u64> {
        let number = |message: &Down| match message {
            Down::Order { number, .. } => Some(*number),
            _ => None,
        };
        messages.iter().filter_map(number).collect()
    };
    assert!(matches!(first[0], Down::Welcome { heard: 0, .. }), "{first:?}");
    assert_eq!((numbers(&first), leases(&first).len()), (vec![1, 2], 1));
    assert_eq!(first.last(), Some(&Down::Heard { number: 1 }));

    // Only the first order had arrived. What is ordered between the two sessions comes once.
    ask(&mut driver, who, 2);
    let again = told(&mut reconnect(&mut driver, who, 1));
    assert!(matches!(again[0], Down::Welcome { heard: 2, .. }), "{again:?}");
    assert_eq!(numbers(&again), [2, 3]);
    assert_eq!(told(&mut lane), [], "the older session hears nothing more");
    // A word that is sent again counts once; one that is missing closes the session.
    ask(&mut driver, who, 2);
    driver.commit().expect("there is room on the disk");
    assert_eq!(driver.coordinator.received(who), 2);
    ask(&mut driver, who, 4);
    assert!(driver.lanes.is_empty());
}

/// A worker that dies closes its connection at once; one that was cut off, after a silence.
#[test]
fn a_connection_that_closes_after_a_silence_has_the_whole_patience_to_come_back() {
    let folder = Folder::new();
    let (patience, grace) = (Duration::from_millis(400), Duration::from_millis(1));
    let config = DriverConfig { rules: Rules { patience, ..config().rules }, grace, ..config() };
    let opened = Disk::open(&folder.path).expect("a new folder");
    let mut driver = Driver::open(config, opened).expect("a new folder");
    let (who, _lane) = connect(&mut driver);

    driver.disconnect(who);
    let dies = driver.closed[&who];
    assert!(dies <= driver.clock.now() + grace);

    let _lane = reconnect(&mut driver, who, 0);
    std::thread::sleep(patience * 3 / 4);
    driver.disconnect(who);
    assert!(driver.closed[&who] > driver.clock.now() + patience / 2);
}

#[test]
fn nothing_is_told_that_is_not_stored() {
    let folder = Folder::new();
    let mut driver = open(&folder).expect("a new folder");
    let (who, mut lane) = connect(&mut driver);
    let _ = (told(&mut lane), driver.turn(Duration::ZERO).expect("there is room on the disk"));
    driver.store = Box::new(Full(folder.path.clone()));
    ask(&mut driver, who, 1);
    let error = driver.commit().expect_err("the disk is full").to_string();
    assert!(error.starts_with("the disk is full"), "{error}");
    assert_eq!(told(&mut lane), []);
    assert!(driver.turn(Duration::ZERO).is_ok_and(|happened| happened.is_empty()));
    assert!(driver.make_token(Duration::from_secs(1), 1).is_err());
}

#[test]
fn a_coordinator_that_starts_again_knows_what_it_had_told() {
    for log_bytes_max in [0, u64::MAX] {
        let folder = Folder::new();
        let (mut spans, mut at) = (Spans::new(), Duration::ZERO);
        let (mut who, mut words) = (None, 0);
        for _ in 0..4 {
            let mut driver = open(&folder).expect("the folder is free");
            driver.log_bytes_max = log_bytes_max;
            assert!(driver.now() >= at, "the clock does not go back");
            let mut lane = match who {
                None => {
                    let (first, lane) = connect(&mut driver);
                    who = Some(first);
                    lane
                }
                // All orders so far have arrived.
                Some(who) => reconnect(&mut driver, who, 1 + words),
            };
            let who = who.expect("it has joined");
            for _ in 0..3 {
                words += 1;
                ask(&mut driver, who, words);
            }
            driver.commit().expect("there is room on the disk");
            let leased = leases(&told(&mut lane));
            assert_eq!(leased.len(), 3);
            for (_, new) in leased {
                assert!(new.overlap(&spans).is_empty(), "{new:?} leased twice");
                spans.add(&new);
            }
            let state = driver.coordinator.state().clone();
            at = driver.now();
            drop(driver);
            let again = open(&folder).expect("the folder is free");
            assert_eq!(again.coordinator.received(who), state.received(who));
            assert_eq!(again.coordinator.view().members, state.view().members);
        }
    }
}

#[test]
fn a_folder_belongs_to_one_job() {
    let folder = Folder::new();
    drop(open(&folder).expect("a new folder"));
    let other = DriverConfig { text: "another job".to_owned(), ..config() };
    let opened = Disk::open(&folder.path).expect("the folder is free");
    let error = Driver::open(other, opened).err().expect("refused").to_string();
    assert!(error.contains("belongs to another job"), "{error}");
}

#[test]
fn a_line_that_is_not_kept_is_heard_all_the_same() {
    let folder = Folder::new();
    let mut driver = open(&folder).expect("a new folder");
    driver.keep_lines_if(|line| line.at == Duration::ZERO);
    let (who, _lane) = connect(&mut driver);
    let before = std::fs::read_to_string(driver.journal()).expect("a journal").lines().count();
    for number in 1..=3 {
        let at = Duration::from_secs(number % 2);
        let said = Said::Line(Line { at, record: Record::Started { who } });
        driver.take(Incoming::Said { from: who, session: 1, number, said });
    }
    driver.commit().expect("there is room on the disk");
    let after = std::fs::read_to_string(driver.journal()).expect("a journal").lines().count();
    assert_eq!((after - before, driver.memory.heard[&who]), (1, 3));
}

/// A member that is connected when a newcomer joins hears of it at once, and must know where to expect it from.
#[test]
fn the_order_that_names_a_newcomer_carries_its_address() {
    let folder = Folder::new();
    let two = Rules::new(1000, 2, Coordination::Asynchronous);
    let config = DriverConfig { rules: two, ..config() };
    let opened = Disk::open(&folder.path).expect("a new folder");
    let mut driver = Driver::open(config, opened).expect("a new folder");
    let (_, mut lane) = connect(&mut driver);
    let token = driver.make_token(Duration::from_secs(60), 1).expect("there is room on the disk");
    let join = Join {
        version: "1".to_owned(),
        token: None,
        request: paceline_identity::Key::generate().request(paceline_identity::Nonce::random()),
        address: "10.0.0.2:99".to_owned(),
        facts: "digits".to_owned(),
    };
    let _ = told(&mut lane);

    let (reply, _answer) = tokio::sync::oneshot::channel();
    driver.take(Incoming::Join { token: Some(token), known: None, join, reply });
    driver.commit().expect("there is room on the disk");

    let named = |message: &Down| match message {
        Down::Order { peers, .. } => peers.iter().map(|peer| peer.address.clone()).collect(),
        _ => vec![],
    };
    let named: Vec<String> = told(&mut lane).iter().flat_map(named).collect();
    assert_eq!(named, ["10.0.0.2:99"]);
}

/// Who waits for nothing does not make the disk work, and who waits at the same time waits for it once.
#[test]
fn leases_that_are_asked_for_together_are_stored_together_and_with_all_that_nobody_waits_for() {
    let folder = Folder::new();
    let (mut driver, commits) = counted(&folder, 16, 10_000);
    driver.lines_wait = Duration::from_secs(3600);
    let mut workers: Vec<(WorkerId, Told)> = (0..16).map(|_| connect(&mut driver)).collect();
    let since = |before: u64| commits.load(Ordering::Relaxed) - before;
    let say = |driver: &Driver, from: WorkerId, number: u64, word: Word| {
        let session = driver.lanes[&from].number;
        let said = Said::Word(word);
        let sent = driver.sender.try_send(Incoming::Said { from, session, number, said });
        sent.expect("there is room in the queue");
    };

    let before = commits.load(Ordering::Relaxed);
    for (who, _) in &workers {
        say(&driver, *who, 1, Word::Lease { request: 1, samples: 3 });
    }
    driver.turn(Duration::ZERO).expect("there is room on the disk");
    let leased: Vec<Spans> =
        workers.iter_mut().flat_map(|(_, lane)| leases(&told(lane))).map(|(_, it)| it).collect();
    assert_eq!((leased.len(), since(before)), (16, 1));

    for ((who, _), spans) in workers.iter().zip(leased) {
        say(&driver, *who, 2, Word::Done { spans });
    }
    driver.turn(Duration::ZERO).expect("there is room on the disk");
    assert_eq!(since(before), 1, "nobody waits for an answer");
    say(&driver, workers[0].0, 3, Word::Lease { request: 2, samples: 3 });
    driver.turn(Duration::ZERO).expect("there is room on the disk");
    let heard = told(&mut workers[1].1);
    assert_eq!((since(before), heard), (2, vec![Down::Heard { number: 2 }]));
    drop(driver);
    let again = open_for(&folder, 16);
    assert!(workers.iter().skip(1).all(|(who, _)| again.coordinator.received(*who) == 2));
}

fn open_for(folder: &Folder, workers: usize) -> Driver {
    counted(folder, workers, 10_000).0
}

/// Prints how often the disk is waited for, and how long workers wait between two gradients:
/// `cargo test --release -p paceline-coordinator --lib -- --ignored --nocapture waited_for`.
#[test]
#[ignore = "it measures"]
fn how_often_the_disk_is_waited_for() {
    const LEASES: u64 = 200;
    const GRADIENT: Duration = Duration::from_millis(5);
    println!("| workers | commits per lease | mean wait between two gradients |");
    for workers in [1, 4, 16] {
        let folder = Folder::new();
        let (mut driver, commits) = counted(&folder, workers, 3 * LEASES * workers as u64);
        let lanes: Vec<(WorkerId, Told)> = (0..workers).map(|_| connect(&mut driver)).collect();
        let before = commits.load(Ordering::Relaxed);
        let threads = lanes.into_iter().map(|(who, lane)| {
            let (sender, session) = (driver.sender(), driver.lanes[&who].number);
            std::thread::spawn(move || compute(who, lane, &sender, session, LEASES, GRADIENT))
        });
        let threads: Vec<_> = threads.collect();
        while threads.iter().any(|thread| !thread.is_finished()) {
            driver.turn(Duration::from_millis(20)).expect("there is room on the disk");
        }
        let waits = threads.into_iter().map(|thread| thread.join().expect("it does not panic"));
        let waited: Duration = waits.sum();
        let leases = (LEASES * workers as u64) as f64;
        let each = (commits.load(Ordering::Relaxed) - before) as f64 / leases;
        println!("| {workers} | {each:.2} | {:.2} ms |", 1e3 * waited.as_secs_f64() / leases);
    }
}

/// As a worker that asks for the next samples when it has some, and reports what it has applied. Returns how long it had none.
fn compute(
    from: WorkerId,
    mut lane: Told,
    sender: &mpsc::Sender<Incoming>,
    session: u64,
    leases: u64,
    gradient: Duration,
) -> Duration {
    let mut number = 0;
    let mut say = |said: Said| {
        number += 1;
        let sent = sender.blocking_send(Incoming::Said { from, session, number, said });
        assert!(sent.is_ok(), "the driver lives");
    };
    let mut waited = Duration::ZERO;
    say(Said::Word(Word::Lease { request: 1, samples: 3 }));
    for request in 1..=leases {
        let since = Instant::now();
        let spans = loop {
            let message = lane.blocking_recv().expect("the driver lives").expect("a message");
            if let Down::Order {
                order: Order::Lease { lease: Lease::Yours { spans, .. }, .. },
                ..
            } = decode(&message).expect("JSON")
            {
                break spans;
            }
        };
        waited += since.elapsed();
        if request < leases {
            say(Said::Word(Word::Lease { request: request + 1, samples: 3 }));
        }
        std::thread::sleep(gradient);
        say(Said::Line(Line { at: Duration::ZERO, record: Record::Started { who: from } }));
        say(Said::Word(Word::Done { spans }));
    }
    waited
}
