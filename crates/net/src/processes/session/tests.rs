//! Sessions over real sockets: with each other, with rustls, and with strangers.

use std::net::{Shutdown, TcpListener};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant, SystemTime};

use paceline_identity::{
    Authority, Credentials, JobName, Key, Name, Nonce, Role, peer_client, peer_server,
};
use paceline_learn::Dice;
use paceline_learn::kernels::Pool;
use paceline_runtime::WorkerId;

use super::super::frame::Limits;
use super::super::link::{Got, Link, TURN};
use super::*;

/// Nothing here takes as long as this, also on a busy machine.
const ENOUGH: Duration = Duration::from_secs(20);

struct End {
    stream: TcpStream,
    session: Session,
    sent: usize,
    got: Vec<u8>,
}

fn streams() -> [TcpStream; 2] {
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("there is a port");
    let address = listener.local_addr().expect("it is bound");
    let one = std::net::TcpStream::connect(address).expect("it listens");
    let other = listener.accept().expect("somebody has dialled").0;
    [one, other].map(|it| {
        it.set_nonblocking(true).expect("it is a socket");
        TcpStream::from_std(it)
    })
}

fn any_name() -> ServerName<'static> {
    ServerName::try_from("paceline").expect("a valid name")
}

fn credentials() -> [Credentials; 2] {
    let now = SystemTime::now();
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let name = format!("paceline-session-{}-{count}", std::process::id());
    let path = std::env::temp_dir().join(name);
    let authority = Authority::open(&path, now).expect("it can be written");
    std::fs::remove_file(&path).expect("it was written");
    let job = JobName::try_from("tested".to_owned()).expect("a name");
    [0, 1].map(|who| {
        let (key, role) = (Key::generate(), Role::Worker(WorkerId(who)));
        let name = Name { job: job.clone(), role };
        let certificate = authority.issue(&name, &key.request(Nonce::random()), now);
        Credentials::new(key, certificate, authority.trust(job.clone())).expect("they fit")
    })
}

fn ends() -> [End; 2] {
    let [zero, one] = credentials();
    let server = Arc::new(peer_server(&zero, Arc::new(|_| true)));
    let client = Session::client(Arc::new(peer_client(&one, WorkerId(0))), any_name());
    let sessions = [Session::server(server), client].map(|it| it.expect("it begins"));
    let mut sessions = sessions.into_iter();
    streams().map(|stream| {
        let session = sessions.next().expect("there are two");
        End { stream, session, sent: 0, got: vec![] }
    })
}

fn unless_it_blocks(done: io::Result<usize>) -> usize {
    match done {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => 0,
        done => done.expect("nothing is wrong"),
    }
}

/// Sends some of these bytes, in pieces, and reads into memory of any length, which it returns.
fn step(end: &mut End, bytes: &[u8], dice: &mut Dice) -> Vec<u8> {
    let rest = &bytes[end.sent..];
    let (head, rest) = rest.split_at(rest.len().min(dice.below(300) as usize));
    let rest = &rest[..rest.len().min(dice.below(100_000) as usize)];
    let pieces = [IoSlice::new(head), IoSlice::new(rest)];
    if !head.is_empty() || !rest.is_empty() {
        end.sent += unless_it_blocks(end.session.write(&mut end.stream, &pieces));
    }
    unless_it_blocks(end.session.flush(&mut end.stream).map(|()| 0));
    let mut into = vec![0; 1 + dice.below(100_000) as usize];
    let count = unless_it_blocks(end.session.read(&mut end.stream, &mut into));
    end.got.extend_from_slice(&into[..count]);
    into
}

/// Sends these bytes from both ends at once.
fn exchange(ends: &mut [End; 2], bytes: &[Vec<u8>; 2], dice: &mut Dice) {
    let started = Instant::now();
    while ends.iter().zip([&bytes[1], &bytes[0]]).any(|(end, all)| end.got.len() < all.len()) {
        assert!(started.elapsed() < ENOUGH, "bytes were lost");
        for (end, bytes) in ends.iter_mut().zip(bytes) {
            step(end, bytes, dice);
        }
    }
}

/// Reads until something has come.
fn read_one(end: &mut End) -> io::Result<usize> {
    read_up_to(end, 2000)
}

fn read_up_to(end: &mut End, most: usize) -> io::Result<usize> {
    let (mut into, started) = (vec![0; most], Instant::now());
    loop {
        match end.session.read(&mut end.stream, &mut into) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                assert!(started.elapsed() < ENOUGH, "nothing has come");
            }
            result => return result,
        }
    }
}

fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut dice = Dice::keyed(&[seed]);
    (0..len).map(|_| dice.below(256) as u8).collect()
}

fn records(end: &mut End) -> &mut Records {
    match &mut end.session.stage {
        Stage::Records(records) => records,
        _ => panic!("the handshake is over"),
    }
}

#[test]
fn bytes_arrive_as_they_were_sent_also_with_keys_that_change() {
    for seed in 0..3 {
        let mut dice = Dice::keyed(&[seed]);
        let mut ends = ends();
        let first = [noise(seed, 3_000_000), noise(seed + 9, 2_000_001)];
        exchange(&mut ends, &first, &mut dice);
        assert!(ends[0].got == first[1] && ends[1].got == first[0], "seed {seed}");
        assert!(ends.iter().all(|end| end.session.certificate().is_some()));
        // From now on no key is used for more than a few records.
        ends.iter_mut().for_each(|end| {
            (end.sent, end.got) = (0, vec![]);
            records(end).records_max = 2 + seed;
        });
        let second = [noise(seed + 1, 500_000), noise(seed + 2, 700_000)];
        exchange(&mut ends, &second, &mut dice);
        assert!(ends[0].got == second[1] && ends[1].got == second[0], "seed {seed}");
        // A record holds at most 16 kB, and the last one of each key tells of the next key.
        let least = (500_000 >> 14) / (2 + seed);
        assert!(ends.iter_mut().all(|end| records(end).updates >= least), "seed {seed}");
    }
}

/// The other end is rustls with its own records: a session speaks TLS 1.3, not only with its like.
#[test]
fn rustls_understands_a_session_and_is_understood() {
    for seed in 0..4 {
        let mut dice = Dice::keyed(&[seed]);
        let [zero, one] = credentials();
        let server = Arc::new(peer_server(&zero, Arc::new(|_| true)));
        let client = Arc::new(peer_client(&one, WorkerId(0)));
        let (session, mut theirs): (_, rustls::Connection) = match seed % 2 {
            0 => {
                let theirs = rustls::ClientConnection::new(client, any_name());
                (Session::server(server), theirs.expect("it begins").into())
            }
            _ => {
                let theirs = rustls::ServerConnection::new(server);
                (Session::client(client, any_name()), theirs.expect("it begins").into())
            }
        };
        let [near, mut far] = streams();
        let mut end =
            End { stream: near, session: session.expect("it begins"), sent: 0, got: vec![] };
        let (ours, mut ours_come) = (noise(seed, 400_000), vec![]);
        let (other, mut other_sent) = (noise(seed + 7, 300_000), 0);
        let (mut refreshes, started) = (0, Instant::now());
        while ours_come.len() < ours.len() || end.got.len() < other.len() {
            assert!(started.elapsed() < ENOUGH, "seed {seed}: bytes were lost");
            let mut into = step(&mut end, &ours, &mut dice);
            if !theirs.is_handshaking() {
                // It changes its keys, and asks for new ones of the other end.
                if other_sent < other.len() && dice.below(2) == 0 {
                    theirs.refresh_traffic_keys().expect("it has keys");
                    refreshes += 1;
                }
                let end = other.len().min(other_sent + dice.below(30_000) as usize);
                other_sent += unless_it_blocks(theirs.writer().write(&other[other_sent..end]));
            }
            while theirs.wants_write() && unless_it_blocks(theirs.write_tls(&mut far)) > 0 {}
            if unless_it_blocks(theirs.read_tls(&mut far)) > 0 {
                theirs.process_new_packets().expect("it understands");
            }
            loop {
                let count = unless_it_blocks(theirs.reader().read(&mut into));
                ours_come.extend_from_slice(&into[..count]);
                if count == 0 {
                    break;
                }
            }
        }
        assert!(ours_come == ours && end.got == other, "seed {seed}");
        assert!(refreshes > 3, "seed {seed}: it has asked {refreshes} times");
        let updates = records(&mut end).updates;
        assert!(updates > 0, "seed {seed}: it was given new keys {updates} times");
        theirs.send_close_notify();
        while theirs.wants_write() {
            theirs.write_tls(&mut far).expect("the socket takes it");
        }
        assert_eq!(read_one(&mut end).expect("it was closed as it should be"), 0);
    }
}

#[test]
fn nothing_is_sent_before_the_handshake_and_strangers_are_refused() {
    let [mut server, mut client] = ends();
    let refused = client.session.write(&mut client.stream, &[IoSlice::new(b"early")]);
    assert_eq!(refused.map_err(|error| error.kind()), Err(io::ErrorKind::WouldBlock));

    let [mut stranger, stream] = streams();
    server.stream = stream;
    stranger.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n").expect("it is open");
    let answer = read_one(&mut server);
    assert!(answer.is_err());
}

#[test]
fn a_record_that_was_changed_on_its_way_ends_the_session() {
    // The first one, and one behind another that is whole.
    for changed in [500, 20_000] {
        for most in [2000, 2 * IN_PLACE] {
            let mut ends = ends();
            exchange(&mut ends, &[vec![1; 10], vec![2; 10]], &mut Dice::keyed(&[1]));
            let [one, other] = &mut ends;
            let plain = [IoSlice::new(&[7; 30_000])];
            one.session.write(&mut one.stream, &plain).expect("it is ready");
            let start = one.session.unsent.start;
            one.session.outgoing[start + changed] ^= 1;
            one.session.flush(&mut one.stream).expect("the socket takes it");
            let read = (0..10).try_for_each(|_| read_up_to(other, most).map(drop));
            assert!(read.is_err(), "byte {changed}, read by {most}");
        }
    }
}

#[test]
fn the_end_of_a_connection_is_the_end_of_its_session() {
    for (most, is_cut) in [(2000, false), (2000, true), (2 * IN_PLACE, false), (2 * IN_PLACE, true)]
    {
        let mut ends = ends();
        exchange(&mut ends, &[vec![1; 10], vec![2; 10]], &mut Dice::keyed(&[1]));
        let [one, other] = &mut ends;
        if is_cut {
            // In the middle of a record.
            let record = records(one).seal_any(23, &[1; 5000]);
            one.stream.write_all(&record[..3000]).expect("it is open");
        }
        one.stream.shutdown(Shutdown::Write).expect("it is open");
        assert_eq!(read_up_to(other, most).expect("nothing is wrong"), 0);
    }
}

#[test]
fn nothing_is_read_behind_the_end_of_a_session() {
    for most in [2000, 2 * IN_PLACE] {
        let mut ends = ends();
        exchange(&mut ends, &[vec![1; 10], vec![2; 10]], &mut Dice::keyed(&[1]));
        let [one, other] = &mut ends;
        let (alert, data) = (21, 23);
        let mut bytes = records(one).seal_any(data, &[7; 30]);
        bytes.extend(records(one).seal_any(alert, &[1, 0]));
        // More than a session keeps.
        (0..8).for_each(|_| bytes.extend(records(one).seal_any(data, &[8; 16_000])));
        one.stream.write_all(&bytes).expect("it is open");
        std::thread::sleep(Duration::from_millis(20));
        let counts = [0; 3].map(|_| read_up_to(other, most).expect("nothing is wrong"));
        assert_eq!(counts, [30, 0, 0]);
    }
}

#[test]
fn bytes_may_come_one_by_one() {
    for most in [2000, 2 * IN_PLACE] {
        let mut ends = ends();
        exchange(&mut ends, &[vec![1; 10], vec![2; 10]], &mut Dice::keyed(&[1]));
        let [one, other] = &mut ends;
        let plain = noise(1, 1000);
        let (record, mut got) = (records(one).seal_any(23, &plain), vec![]);
        let (mut bytes, started) = (record.chunks(1), Instant::now());
        while got.is_empty() {
            assert!(started.elapsed() < ENOUGH, "bytes were lost");
            if let Some(byte) = bytes.next() {
                one.stream.write_all(byte).expect("it is open");
            }
            let mut into = vec![0; most];
            let count = unless_it_blocks(other.session.read(&mut other.stream, &mut into));
            got.extend_from_slice(&into[..count]);
        }
        assert!(got == plain);
    }
}

/// What a session of a peer says to these bytes. It must not depend on whether it decrypts them in its own memory or in the reader's; returns the
/// count for a reader that wants few of them.
fn answer_to(bytes: impl Fn(&mut End) -> Vec<u8>) -> io::Result<usize> {
    let few = answer_in(&bytes, 2000);
    let many = answer_in(&bytes, 2 * IN_PLACE);
    match (&few, &many) {
        (Ok(few), Ok(many)) => assert!(few == many || *few == 2000 && few < many),
        _ => assert_eq!(few.is_ok(), many.is_ok(), "{few:?}, {many:?}"),
    }
    few
}

fn answer_in(bytes: impl Fn(&mut End) -> Vec<u8>, most: usize) -> io::Result<usize> {
    let mut ends = ends();
    exchange(&mut ends, &[vec![1; 10], vec![2; 10]], &mut Dice::keyed(&[1]));
    let [one, other] = &mut ends;
    let bytes = bytes(one);
    one.stream.write_all(&bytes).expect("it is open");
    read_up_to(other, most)
}

#[test]
fn what_is_no_record_of_the_peer_ends_the_session_and_never_panics() {
    let mut all: Vec<Vec<u8>> = vec![
        // Empty, and too short for a tag.
        vec![23, 3, 3, 0, 0],
        [vec![23, 3, 3, 0, 15], vec![1; 15]].concat(),
        // Longer than any, and refused before it has come.
        vec![23, 3, 3, 0x41, 1],
        b"GET / HTTP/1.1\r\n".to_vec(),
    ];
    all.extend((0..20).map(|seed| {
        let len = 17 + seed as usize * 40;
        [vec![23, 3, 3, (len >> 8) as u8, len as u8], noise(seed, len)].concat()
    }));
    for bytes in all {
        let answer = answer_to(|_| bytes.clone());
        assert!(answer.is_err(), "{bytes:?}");
    }
}

/// A member has keys, so that what it encrypts is whole; it must make sense as well.
#[test]
fn what_a_member_encrypts_and_should_not_ends_the_session() {
    let with_type = |kind: u8, plain: &[u8]| {
        let plain = plain.to_vec();
        move |end: &mut End| records(end).seal_any(kind, &plain)
    };
    let wrong = |name: &str, answer: io::Result<usize>| {
        assert!(answer.is_err(), "{name}: {answer:?}");
    };
    let (alert, handshake, data) = (21, 22, 23);
    wrong("a type that nobody knows", answer_to(with_type(99, b"abc")));
    wrong("a change of ciphers", answer_to(with_type(20, &[1])));
    wrong("no type", answer_to(with_type(0, &[0; 100])));
    wrong("an alert", answer_to(with_type(alert, &[2, 40])));
    wrong("half an alert", answer_to(with_type(alert, &[1])));
    wrong("a ticket", answer_to(with_type(handshake, &[4, 0, 0, 0])));
    wrong("half a key update", answer_to(with_type(handshake, &[24, 0, 0])));
    wrong("a key update that asks for 2", answer_to(with_type(handshake, &[24, 0, 0, 1, 2])));
    let two = [24, 0, 0, 1, 0, 24, 0, 0, 1, 0];
    wrong("two key updates in one record", answer_to(with_type(handshake, &two)));
    wrong("more than a record holds", answer_to(with_type(data, &[1; (1 << 14) + 1])));
    // Behind the type, which is here the last byte that is not zero.
    let padded = [vec![1, data], vec![0; 1 << 14]].concat();
    wrong("more zeros than a record holds", answer_to(with_type(0, &padded)));
    let in_the_clear = |end: &mut End| {
        let mut record = records(end).seal_any(23, &[1; 40]);
        record[0] = 22;
        record
    };
    wrong("a record that says it is in the clear", answer_to(in_the_clear));

    assert_eq!(answer_to(with_type(alert, &[1, 0])).expect("the end"), 0);
    assert_eq!(answer_to(with_type(0, &[7, 8, data, 0, 0, 0])).expect("zeros follow"), 2);
    assert_eq!(answer_to(with_type(data, &[1; 1 << 14])).expect("a full record"), 2000);
}

#[test]
fn records_without_data_do_not_go_on_for_ever() {
    let empty = |count: usize| {
        move |end: &mut End| {
            let mut bytes: Vec<u8> =
                (0..count).flat_map(|_| records(end).seal_any(23, &[])).collect();
            bytes.extend(records(end).seal_any(23, &[1; 5]));
            bytes
        }
    };
    assert_eq!(answer_to(empty(32)).expect("a few are allowed"), 5);
    assert!(answer_to(empty(33)).is_err());
}

/// Zeros behind what a record carries are nobody's, but reading them keeps a link from others.
#[test]
fn a_turn_of_a_link_counts_what_has_come() {
    let mut ends = ends();
    exchange(&mut ends, &[vec![1; 10], vec![2; 10]], &mut Dice::keyed(&[1]));
    let [mut peer, mut end] = ends;
    assert!(end.session.arrived() > 10, "there was a handshake");
    // One byte each, which together are too few to be read as anything.
    let plain = [vec![0, 23], vec![0; 10_000]].concat();
    let bytes: Vec<u8> = (0..3).flat_map(|_| records(&mut peer).seal_any(0, &plain)).collect();
    peer.stream.write_all(&bytes).expect("it is open");
    let (limits, pool) = (Limits::for_replica(10), Pool::default());
    let mut link = Link::new(end.stream, Some(end.session), limits, pool);
    let (mut room, started) = (TURN, Instant::now());
    while TURN - room < bytes.len() && started.elapsed() < ENOUGH {
        link.wake(false);
        let got = link.read(&mut room).expect("it may be the beginning of a frame");
        assert!(matches!(got, Got::Nothing));
    }
    assert_eq!(TURN - room, bytes.len());
}
