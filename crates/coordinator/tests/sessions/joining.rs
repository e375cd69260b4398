//! Workers join with tokens and certificates, and strangers are turned away.

use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant, SystemTime};

use paceline_coordinator::{
    Client, ClientError, Driver, Happened, Heard, Incoming, Invitation, Place, Proof,
};
use paceline_identity::{Authority, Token};

use crate::running::{Folder, LONG, OPTIONS, Running, VERSION, open};

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
