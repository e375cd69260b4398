//! Lines of workers are placed on the coordinator's clock, whatever the way between them.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use paceline::{Line, Record};

use crate::program::{Cluster, Process, result};

/// How long everything takes between the worker and the coordinator, in each direction.
const WAY: Duration = Duration::from_millis(120);

/// Passes on what comes in, [`WAY`] later.
fn pass_on(mut from: TcpStream, mut to: TcpStream) {
    let (sender, pieces) = mpsc::channel::<(Instant, Vec<u8>)>();
    std::thread::spawn(move || {
        let mut buffer = vec![0; 1 << 16];
        while let Ok(length @ 1..) = from.read(&mut buffer) {
            let _ = sender.send((Instant::now() + WAY, buffer[..length].to_vec()));
        }
    });
    std::thread::spawn(move || {
        for (due, piece) in pieces {
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
            if to.write_all(&piece).is_err() {
                break;
            }
        }
        let _ = to.shutdown(Shutdown::Both);
    });
}

/// A long way to this address begins at the address that is returned.
fn long_way_to(target: &str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address").to_string();
    let target = target.to_owned();
    std::thread::spawn(move || {
        for near in listener.incoming().flatten() {
            let Ok(far) = TcpStream::connect(&target) else { continue };
            let clone = |it: &TcpStream| it.try_clone().expect("a socket");
            pass_on(clone(&near), clone(&far));
            pass_on(far, near);
        }
    });
    address
}

#[test]
fn a_worker_far_away_writes_its_lines_on_the_coordinators_clock() {
    let cluster = Cluster::new("far", "--workers 1 --strategy ssgd --epochs 100");
    let coordinator = cluster.coordinator();
    let (token, address) = (cluster.token(), long_way_to(&cluster.address));
    let worker = Process::start(&cluster.folder, &["join", &address, "--token", &token]);

    result(coordinator);
    worker.succeed();

    let journal = cluster.journal();
    let lines: Vec<Line> =
        journal.lines().map(|line| serde_json::from_str(line).expect("a line")).collect();
    let at = |is_it: fn(&Record) -> bool| {
        let found = lines.iter().find(|line| is_it(&line.record));
        found.expect("there is such a line").at
    };
    let ordered = at(|record| matches!(record, Record::Over));
    let heard = at(|record| matches!(record, Record::Finished { .. }));
    // The order to end was on its way for so long. A worker that takes the time in the coordinator's answers for the present time
    // would seem to hear it at once.
    let way = heard.checked_sub(ordered);
    assert!(way.is_some_and(|way| way > WAY * 3 / 4), "ordered at {ordered:?}, heard at {heard:?}");

    let mut last = Duration::ZERO;
    for line in lines.iter().filter(|line| line.record.worker().is_some()) {
        if matches!(line.record, Record::Computed { .. } | Record::Committed { .. }) {
            assert!(line.at >= last, "{line:?} after {last:?}");
            last = line.at;
        }
    }
    let error = lines.iter().find_map(|line| match line.record {
        Record::ClockSet { error, .. } => Some(error),
        _ => None,
    });
    assert!(error.is_some_and(|error| error >= WAY && error < 2 * WAY), "{error:?}");
}
