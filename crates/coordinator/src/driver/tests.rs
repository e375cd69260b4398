//! The driver without sockets: what is stored, and what is told when.

use bytes::Bytes;
use paceline_runtime::coordination::{Coordination, Lease, Order, Word};
use tonic::Status;

use super::*;
use crate::messages::{Join, Said, decode};
use crate::testing::Folder;

type Told = mpsc::UnboundedReceiver<Result<Bytes, Status>>;

fn config(folder: &Folder) -> DriverConfig {
    let patience = Duration::from_secs(60);
    DriverConfig {
        folder: folder.path.clone(),
        text: "job".to_owned(),
        rules: Rules { patience, ..Rules::new(1000, 1, Coordination::Asynchronous) },
        done: Spans::new(),
        check_facts: Box::new(|_, _| Ok(1000)),
        version: "1".to_owned(),
        authority: None,
        grace: Duration::from_secs(60),
    }
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
    let mut driver = Driver::open(config(&folder)).expect("a new folder");
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

#[cfg(target_os = "linux")]
#[test]
fn nothing_is_told_that_is_not_on_the_disk() {
    let folder = Folder::new();
    let mut driver = Driver::open(config(&folder)).expect("a new folder");
    let (who, mut lane) = connect(&mut driver);
    let _ = (told(&mut lane), driver.turn(Duration::ZERO).expect("there is room on the disk"));
    driver.log.fill_disk();
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
            let mut driver = Driver::open(config(&folder)).expect("the folder is free");
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
            let again = Driver::open(config(&folder)).expect("the folder is free");
            assert_eq!(again.coordinator.received(who), state.received(who));
            assert_eq!(again.coordinator.view().members, state.view().members);
        }
    }
}

#[test]
fn a_folder_belongs_to_one_job() {
    let folder = Folder::new();
    drop(Driver::open(config(&folder)).expect("a new folder"));
    let other = DriverConfig { text: "another job".to_owned(), ..config(&folder) };
    let error = Driver::open(other).err().expect("refused").to_string();
    assert!(error.contains("belongs to another job"), "{error}");
}

#[test]
fn a_line_that_is_not_kept_is_heard_all_the_same() {
    let folder = Folder::new();
    let mut driver = Driver::open(config(&folder)).expect("a new folder");
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
    let config = DriverConfig { rules: two, ..config(&folder) };
    let mut driver = Driver::open(config).expect("a new folder");
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
