//! A coordinator that is started again, or takes over from another one, continues from what was stored.

use std::time::{Duration, Instant};

use paceline_coordinator::{Client, Coordinators, Heard};
use paceline_runtime::coordination::Order;

use crate::relay::Relay;
use crate::running::{Folder, LONG, OPTIONS, Options, Running, open};
use crate::{ask, counted, leases, line, notes};

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
