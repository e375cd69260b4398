//! Workers and a coordinator over real sockets, in one process: nothing that is said is lost or doubled when connections
//! break and coordinators are killed, and strangers are turned away.

mod joining;
mod relay;
mod restarts;
mod running;

use std::collections::BTreeMap;
use std::net::TcpListener;
use std::time::{Duration, Instant};

use paceline_coordinator::{
    Client, ClientError, ClockReading, Coordinators, Happened, Heard, Incoming, Invitation, Place,
    Proof, Said,
};
use paceline_runtime::coordination::{Input, Lease, Order, Word};
use paceline_runtime::{Line, Record, WorkerId};

use relay::Relay;
use running::{Folder, LONG, OPTIONS, Options, Running, VERSION};

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
