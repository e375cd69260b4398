//! Strangers at the coordinator's port and at a worker's: each is refused in one sentence, and training goes on meanwhile.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use super::program::{Cluster, Process, stop};

/// A ClientHello begins so: a handshake record of TLS 1.0 to 1.3 with this length.
fn record(length: u16) -> Vec<u8> {
    [&[22, 3, 1][..], &length.to_be_bytes()].concat()
}

/// Whether the other side closes the connection before this time has passed.
fn is_closed(mut stream: &TcpStream, within: Duration) -> bool {
    stream.set_read_timeout(Some(Duration::from_millis(50))).expect("a socket");
    let since = Instant::now();
    let mut bytes = [0; 4096];
    while since.elapsed() < within {
        match stream.read(&mut bytes) {
            Ok(0) => return true,
            Ok(_) => {}
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(_) => return true,
        }
    }
    false
}

#[test]
fn a_run_is_right_while_strangers_knock_at_every_port() {
    let flags = "--workers 2 --strategy ssgd --patience 2 --epochs 100000 --checkpoint-rounds 500";
    let cluster = Cluster::new("knocking", flags);
    let coordinator = cluster.coordinator();
    let free = TcpListener::bind("127.0.0.1:0").and_then(|it| it.local_addr()).expect("a port");
    let workers = [cluster.worker_with(&["--advertise", &free.to_string()]), cluster.worker()];
    cluster.wait_for_line("\"record\":\"applied\"");

    let ports = [cluster.address.clone(), free.to_string()];
    let connect = |port: &String| TcpStream::connect(port).expect("the port is open");
    let nonsense: [Vec<u8>; 5] = [
        vec![0xff; 64],
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(),
        // A record of the greatest length that its header can say, and one of no length.
        [record(u16::MAX), vec![0; 70_000]].concat(),
        record(0),
        // A frame of our own links, in the clear, that announces four gigabytes.
        [&b"PLNK"[..], &[0xff; 60]].concat(),
    ];
    for port in &ports {
        for bytes in &nonsense {
            let mut stream = connect(port);
            // The other side may close before it has read everything.
            let _ = stream.write_all(bytes);
            assert!(is_closed(&stream, Duration::from_secs(8)), "{port}: {:?}", &bytes[..5]);
        }
    }
    // They send a byte now and then, and never finish.
    let slow: Vec<TcpStream> =
        ports.iter().flat_map(|port| [connect(port), connect(port)]).collect();
    let idle: Vec<TcpStream> =
        (0..1000).filter_map(|_| TcpStream::connect(&ports[0]).ok()).collect();
    let at_worker: Vec<TcpStream> =
        (0..100).filter_map(|_| TcpStream::connect(&ports[1]).ok()).collect();
    let since = Instant::now();
    for byte in record(512).into_iter().chain([1; 200]) {
        for mut stream in &slow {
            let _ = stream.write_all(&[byte]);
        }
        if since.elapsed() > Duration::from_secs(7) {
            break;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    for stream in &slow {
        assert!(is_closed(stream, Duration::from_secs(8)), "a handshake has a deadline");
    }
    drop((idle, at_worker));

    let (result, err) = stop(coordinator);
    Process::all_succeed(workers);
    assert_eq!((result.started_over, result.samples_wasted), (0, 0), "no member was lost");
    let refused = err.lines().filter(|line| line.starts_with("refused")).count();
    assert!((5..100).contains(&refused), "{refused} lines\n{err}");
}

#[test]
fn workers_without_a_good_token_are_refused_in_one_sentence() {
    let cluster = Cluster::new("strangers", "--workers 2 --strategy ssgd --epochs 100000");
    let coordinator = cluster.coordinator();
    let workers = [cluster.worker(), cluster.worker()];
    let token = |arguments: &[&str]| {
        let all = [&["token"][..], arguments, &["--state", "state"]].concat();
        Process::start(&cluster.folder, &all).succeed().out
    };
    // The fingerprint of the authority is in the token, and so is a secret.
    let wrong: String = cluster.token().chars().rev().collect();
    let expired = token(&["new", "--hours", "0.0000001"]);
    let revoked = token(&["new", "--uses", "3"]);
    token(&["revoke", "2"]);
    let spent = token(&["new", "--uses", "0"]);
    let list = token(&["list"]);
    assert!(list.contains("token 2: 0 of 3 uses, revoked"), "{list}");
    let rows = [
        (Some(wrong), "token"),
        (None, "a token is needed"),
        (Some(expired), "the token has expired"),
        (Some(revoked), "the token was revoked"),
        (Some(spent), "the token has been used as often"),
    ];
    for (token, sentence) in rows {
        let mut arguments = vec!["join", &cluster.address];
        arguments.extend(token.iter().flat_map(|token| ["--token", token.trim()]));
        let ended = Process::start(&cluster.folder, &arguments).end();
        assert_ne!(ended.code, Some(0));
        assert!(ended.err.contains(sentence), "{}", ended.err);
        assert_eq!(ended.err.trim().lines().count(), 1, "{}", ended.err);
    }
    stop(coordinator);
    Process::all_succeed(workers);
}

#[test]
fn a_banned_worker_is_put_out_and_ends() {
    let cluster = Cluster::new("banned", "--workers 1:4 --strategy ssgd --epochs 100000");
    let coordinator = cluster.coordinator();
    let first = cluster.worker();
    cluster.wait_for_line("\"record\":\"applied\"");
    let second = cluster.worker();
    cluster.wait_for_line("\"members\":[0,1]");

    Process::start(&cluster.folder, &["token", "ban", "1", "--state", "state"]).succeed();

    let ended = second.end();
    assert_eq!(ended.code, Some(1), "{}", ended.err);
    assert!(ended.err.contains("banned"), "{}", ended.err);
    stop(coordinator);
    first.succeed();
}

#[test]
fn two_coordinators_cannot_share_a_state_folder() {
    let cluster = Cluster::new("shared", "--workers 2 --strategy ssgd --epochs 10");
    let _first = cluster.coordinator();
    cluster.token();

    let second = cluster.coordinator().end();

    assert_eq!(second.code, Some(1));
    assert!(second.err.contains("another coordinator"), "{}", second.err);
}
