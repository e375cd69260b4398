//! No target: writes a first corpus of messages as they are sent, into the folder that `PACELINE_SEEDS` names, and ends.

#![no_main]
// What the macro puts behind the end.
#![allow(unreachable_code)]

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use libfuzzer_sys::fuzz_target;
use paceline_coordinator::fuzzing::{Down as Told, Up as Said, batch, begin, record, replayed};
use paceline_coordinator::{Admitted, Answer, Described, FileHead, Join, Look, Peer};
use paceline_identity::{Authority, Digest, JobName, Key, Name, Nonce, Role, Tokens};
use paceline_learn::{OptimizerState, Rescale, Rescaler, Vector};
use paceline_net::processes::frame::{Slice, WORDS, bytes_of, encode_words, write_frame};
use paceline_net::processes::fuzzing::encode_notice;
use paceline_net::processes::message::{
    Conclude, Down, EntryHead, ExchangeName, Form, JobText, PackedSnapshot, PeerMessage, Up,
};
use paceline_runtime::agreed::Agreed;
use paceline_runtime::coordination::{Entry, Lease, Order, Saved, Why, Word};
use paceline_runtime::ledger::Ledger;
use paceline_runtime::private::PrivateState;
use paceline_runtime::view::ViewName;
use paceline_runtime::wire::{
    AnyOptimizerState, Extent, Framed, Mailbox, Published, ReceivedFrame, SharedState, Shelf,
    Standing, Sum, Tail,
};
use paceline_runtime::{
    Letter, Line, Memory, Message, Record, Snapshot, Spans, View, WorkerId, WorkerSnapshot,
};
use serde::Serialize;

fuzz_target!(
    init: {
        write_all();
        std::process::exit(0);
    },
    |_data: &[u8]| {}
);

fn write(target: &str, name: &str, bytes: &[u8]) {
    let folder = std::env::var("PACELINE_SEEDS").expect("PACELINE_SEEDS names a folder");
    let folder = PathBuf::from(folder).join(target);
    fs::create_dir_all(&folder).expect("the folder can be made");
    fs::write(folder.join(format!("seed-{name}")), bytes).expect("it can be written");
}

/// A head behind the kinds and lengths of its frames, as `frames_and_head` reads them.
fn packed(value: &impl Serialize, frames: &[u8]) -> Vec<u8> {
    let mut bytes = vec![frames.len() as u8];
    bytes.extend(frames);
    bytes.extend(rmp_serde::to_vec_named(value).expect("plain data"));
    bytes
}

fn lengths(value: &impl Framed) -> Vec<u8> {
    let frames = value.frames().into_iter().map(ReceivedFrame::from);
    let length = |frame| match frame {
        ReceivedFrame::Floats(floats) => floats.len() as u8,
        ReceivedFrame::Bytes(bytes) => bytes.len() as u8 | 0x80,
    };
    frames.map(length).collect()
}

fn json(value: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(value).expect("plain data")
}

fn vector() -> Arc<Vector> {
    Arc::new([1.0, 2.0].into())
}

fn published() -> Published {
    let state = OptimizerState { slots: vec![[7.0].into(), [8.0].into()], steps: 3 };
    let optimizer = AnyOptimizerState::Ours(Arc::new(state));
    let done = Arc::new(Spans::one(0, 5));
    Published { params: vector(), optimizer, reign: 1, version: 4, done }
}

fn view() -> Arc<View> {
    Arc::new(View { incarnation: 1, number: 6, members: vec![WorkerId(0), WorkerId(1)] })
}

fn state() -> SharedState {
    let vectors = [("outer.momentum".to_owned(), vector())].into();
    SharedState {
        round: 2,
        version: 3,
        params: vector(),
        optimizer: published().optimizer,
        strategy: Memory { json: serde_json::json!({ "period": 4 }), vectors },
        agreed: Agreed {
            ledger: Arc::new(Ledger::new(9)),
            rescaler: Rescaler::new(Rescale::None, 8.0),
            stopped: false,
            view: view(),
            exchanges: 3,
            digest: 4,
        },
    }
}

fn tail() -> Tail {
    Tail { samples: 3, weight: Some(2.5), digest: 9, save: 1, ..Tail::default() }
}

fn letters() -> Vec<Letter> {
    let theirs = AnyOptimizerState::Theirs(Arc::new(vec![1, 255]));
    let message =
        Message { data: serde_json::json!({ "mine": [1, 2.5] }), vectors: vec![vector()] };
    let tails = vec![tail(), Tail::default()];
    vec![
        Letter::SharedState { view: 6, state: Arc::new(state()) },
        Letter::Center {
            params: vector(),
            reign: 1,
            version: 1,
            done: Arc::default(),
            left_out: 0,
        },
        Letter::Result { view: 6, sum: Arc::new(Sum::new(7, view(), [2.5].into(), tails)) },
        Letter::Idle,
        Letter::Newcomer,
        Letter::Handover { center: published() },
        Letter::Handover { center: Published { optimizer: theirs, ..published() } },
        Letter::Message { to: Mailbox::Server, message },
        Letter::Part { samples: 9, parts: 3, at: Duration::from_millis(40), replica: vector() },
    ]
}

fn words() -> Vec<Word> {
    let spans = Spans::one(2, 9);
    vec![
        Word::Lease { request: 1, samples: 8 },
        Word::Done { spans: spans.clone() },
        Word::Return { holder: WorkerId(1), spans: spans.clone() },
        Word::Restored { reign: 1, done: spans.clone() },
        Word::Settled { view: 2, exchange: 5 },
        Word::Suspect { peer: WorkerId(1), view: 2 },
        Word::Disagreed { exchange: 3, workers: vec![WorkerId(0)] },
        Word::HandedIn { snapshot: 1, digest: 5, done: Some(spans) },
        Word::Finished,
        Word::Bye,
        Word::Gone,
    ]
}

fn orders() -> Vec<Order> {
    let spans = Spans::one(2, 9);
    vec![
        Order::Start { view: view(), from_saved: true },
        Order::View { view: view(), lost: Arc::new(vec![WorkerId(2)]) },
        Order::Plan { view: view() },
        Order::Go { view: 6 },
        Order::PutOut { why: "silent".to_owned(), banned: false },
        Order::Missing { reign: 1, spans: spans.clone() },
        Order::Lease { request: 1, lease: Lease::Yours { spans, count: 4 } },
        Order::Save { number: 1 },
        Order::Over,
    ]
}

fn line() -> Line {
    let (who, round, spans) = (WorkerId(1), Some(3), Some(Spans::one(0, 8)));
    let record =
        Record::Computed { who, since: Duration::from_millis(5), samples: 8, round, spans };
    Line { at: Duration::from_millis(7), record }
}

fn write_all() {
    peers();
    streams();
    coordinator();
    strangers();
    for (i, letter) in letters().iter().enumerate() {
        write("letter", &i.to_string(), &packed(letter, &lengths(letter)));
    }
    write("letter", "published", &packed(&published(), &lengths(&published())));
    for (i, bytes) in
        [&b"\0\0\0\0"[..], b"\x02\x04\0\0\0\0\x08\0\0\x0a\x0f\x01\x01"].iter().enumerate()
    {
        write("replay", &i.to_string(), bytes);
    }
}

fn peers() {
    let name = ExchangeName { view: ViewName { incarnation: 3, number: 9 }, exchange: 70 };
    let forms: [(Form, &[u8]); 4] = [
        (Form::Dense, &[23, 0]),
        (Form::Half, &[40 | 0x80, 3]),
        (Form::Quantized { bits: 4, bucket: 8, length: 20 }, &[3, 10 | 0x80, 3]),
        (Form::Sparse { length: 20 }, &[20 | 0x80, 5, 3]),
    ];
    for (codec, (form, frames)) in forms.into_iter().enumerate() {
        let messages = [
            PeerMessage::Entry { name, entry: EntryHead::Sum { tail: tail(), form } },
            PeerMessage::Chunk { name, tail: tail(), form, length: 23, is_free: true },
            PeerMessage::Sum { name, form, in_slot: true },
        ];
        for (i, message) in messages.iter().enumerate() {
            let bytes = [vec![codec as u8], packed(message, frames)].concat();
            write("peer_message", &format!("{codec}-{i}"), &bytes);
            let notice = encode_notice(message, &[]).expect("it is a notice");
            let bytes: Vec<u8> = notice.iter().flat_map(|word| word.to_le_bytes()).collect();
            write("notice", &format!("{codec}-{i}"), &bytes);
        }
    }
    let standing = Standing { completed: 3, digest: 4, newcomer: false };
    let request = 5;
    let mut others = vec![
        PeerMessage::Hello { version: 3, secret: [1, 2], from: WorkerId(0), to: WorkerId(1) },
        PeerMessage::Entry { name, entry: EntryHead::Gather { standing } },
        PeerMessage::Piece { name, start: 23, of_sum: true },
        PeerMessage::Door { name: [1, 2], nonce: [3, 4] },
        PeerMessage::Mapped { cursor: 3 },
        PeerMessage::Board { from: 1 },
        PeerMessage::Read { request, shelf: Shelf::Replica, extent: Extent::Params, waits: true },
        PeerMessage::Value { request, value: Some(Box::new(published())) },
        PeerMessage::Value { request, value: None },
    ];
    let letter = |letter| PeerMessage::Letter { letter: Box::new(letter), form: None };
    others.extend(letters().into_iter().map(letter));
    for (i, message) in others.iter().enumerate() {
        let frames = match message {
            PeerMessage::Letter { letter, .. } => lengths(&**letter),
            PeerMessage::Value { value: Some(value), .. } => lengths(&**value),
            _ => vec![],
        };
        write("peer_message", &i.to_string(), &[vec![0], packed(message, &frames)].concat());
        let mut frame = vec![3];
        let segments = [Slice::Floats(&[1.5, f32::NAN]), Slice::Bytes(b"abc")];
        write_frame(&mut frame, message, &segments[..i % 3]).expect("memory");
        write("frame", &i.to_string(), &frame);
        let words = std::array::from_fn::<u64, WORDS, _>(|word| (word * i) as u64);
        let mut frame = [vec![3], encode_words(&words, &segments[..i % 3], 0).expect("few")].concat();
        segments[..i % 3].iter().for_each(|it| frame.extend_from_slice(bytes_of(*it)));
        write("frame", &format!("words-{i}"), &frame);
    }
}

fn streams() {
    let part = WorkerSnapshot { number: 1, shared: state(), private: PrivateState::default() };
    let center = Some(Box::new(published()));
    let address = ([127, 0, 0, 1], 7070).into();
    let mut ups = vec![
        Up::Hello { version: 3, data: 5, address },
        Up::Beat,
        Up::Line(line()),
        Up::Part { part: Box::new(part.clone()), done: Some(Spans::one(0, 4)) },
        Up::Center { request: 1, center },
        Up::Concluded { params: Some(3) },
        Up::Failed { why: "no data".to_owned() },
    ];
    ups.extend(words().into_iter().map(Up::Word));
    for (i, up) in ups.iter().enumerate() {
        write("stream_message", &format!("up-{i}"), &packed(up, &lengths(up)));
    }
    let snapshot = Snapshot {
        done: Spans::one(0, 4),
        workers: [(WorkerId(0), part.clone()), (WorkerId(1), part)].into(),
        center: Some(published()),
    };
    let job = JobText { json: "{}".to_owned(), workers: 2, ..JobText::default() };
    let (at, of) = (Duration::ZERO, vec![WorkerId(0)]);
    let patience = Duration::from_secs(5);
    let conclude =
        Conclude { at, samples: 5, of, shelf: Shelf::Center, is_brief: true, is_scored: false };
    let mut downs = vec![
        Down::Job(job),
        Down::Welcome { id: WorkerId(1), now: at, secret: [1, 2], patience },
        Down::Refused { why: "full".to_owned() },
        Down::Peer { who: WorkerId(1), address },
        Down::Snapshot(PackedSnapshot::pack(&snapshot)),
        Down::Conclude(conclude),
        Down::Orphaned,
    ];
    downs.extend(orders().into_iter().map(Down::Order));
    for (i, down) in downs.iter().enumerate() {
        write("stream_message", &format!("down-{i}"), &packed(down, &lengths(down)));
    }
}

fn coordinator() {
    let request = Key::generate().request(Nonce([7; 16]));
    let mut said: Vec<Said> = vec![
        Said::Hello { received: 3 },
        Said::Obeyed { number: 4 },
        Said::Beat { sent: Duration::from_millis(5) },
        Said::Renew(request),
    ];
    let number = 1;
    let word = |word| paceline_coordinator::Said::Word(word);
    said.extend(words().into_iter().map(|it| Said::Said { number, said: word(it) }));
    said.push(Said::Said { number, said: paceline_coordinator::Said::Line(line()) });
    for (i, up) in said.iter().enumerate() {
        write("coordinator_message", &format!("up-{i}"), &[vec![0], json(up)].concat());
    }
    let now = Duration::from_millis(1500);
    let note = serde_json::json!({ "note": [1, null, "x"] });
    let coordinators = vec!["10.0.0.1:7070".to_owned(), "10.0.0.2:7070".to_owned()];
    let mut told = vec![
        Told::Welcome { heard: 3, now, incarnation: 1, coordinators: coordinators.clone() },
        Told::Heard { number },
        Told::Note(note),
        Told::Coordinators(coordinators),
    ];
    let peers = vec![Peer { who: WorkerId(1), address: "10.0.0.1:7070".to_owned() }];
    let order = |order| Told::Order { number, order, peers: peers.clone() };
    told.extend(orders().into_iter().map(order));
    for (i, down) in told.iter().enumerate() {
        write("coordinator_message", &format!("down-{i}"), &[vec![2], json(down)].concat());
    }
    let head = FileHead { name: "part-3.safetensors".to_owned(), bytes: 9 };
    write("coordinator_message", "head", &[vec![5], json(&head)].concat());
    let workers = vec![WorkerId(0)];
    let saved = Saved { round: 1, version: 0, done: Spans::one(0, 4) };
    let mut entries = vec![
        Entry::Started,
        Entry::Sized { samples_total: 50 },
        Entry::Joined,
        Entry::Joined,
        Entry::Planned,
        Entry::Saved(saved),
        Entry::SaveWished,
    ];
    let from = WorkerId(0);
    entries.extend((1..).zip(words()).map(|(number, word)| Entry::Word { from, number, word }));
    entries.push(Entry::Lost { workers, why: Why::Silent });
    let batch = batch(entries);
    let snapshot = replayed([&batch[..]].into_iter()).expect("it is a batch");
    write("log", "stored", &[&[2], &snapshot[..]].concat());
    write("log", "replay", &[&[3], &batch[..]].concat());
    write("log", "records", &[&[0], &begin()[..], &record(b"first"), &record(b"")].concat());
    write("log", "cut", &[&[1], &b"first\n\nsecond"[..]].concat());
}

fn strangers() {
    let now = SystemTime::now();
    let authority = Authority::new(now);
    let (key, job) = (Key::generate(), JobName::random());
    let request = key.request(Nonce([7; 16]));
    let tokens = Tokens::default();
    let (token, change) = tokens.make(authority.fingerprint(), SystemTime::UNIX_EPOCH, 3);
    let mut made = tokens.clone();
    made.apply(&change);
    write("token", "text", token.to_string().as_bytes());
    write("token", "bytes", &Digest::of(b"x").0.repeat(3));
    write("token", "all", &json(&made));
    for role in [Role::Coordinator, Role::Worker(WorkerId(7))] {
        let name = Name { job: job.clone(), role };
        write("token", &format!("{role:?}"), name.to_string().as_bytes());
        let certificate = authority.issue(&name, &request, now);
        write("certificate", &format!("{role:?}"), &certificate.der);
        write("certificate", &format!("{role:?}-json"), &json(&certificate));
        let patience = Duration::from_secs(5);
        let admitted = Admitted {
            who: WorkerId(1),
            certificate: Some(certificate),
            authority: authority.certificate().to_vec(),
            job: job.clone(),
            address: "10.0.0.1:7070".to_owned(),
            received: patience,
            now: patience,
            patience,
            incarnation: 1,
            coordinators: vec!["10.0.0.2:7070".to_owned()],
        };
        write(
            "coordinator_message",
            &format!("{role:?}"),
            &[vec![4], json(&Answer::Yes(admitted))].concat(),
        );
    }
    write("certificate", "authority", authority.certificate());
    let (version, text) = ("0.1.0".to_owned(), "a job".to_owned());
    let look =
        Look { version: version.clone(), token: Some(token.to_string()), request: request.clone() };
    let (address, facts) = ("0.0.0.0:7071".to_owned(), "facts".to_owned());
    let join = Join { version, token: None, request: request.clone(), address, facts };
    write("join", "look", &json(&look));
    write("join", "join", &json(&join));
    write("join", "request", &json(&request));
    let described: Answer<Described> = Answer::Yes(Described { job, text });
    write("coordinator_message", "described", &[vec![4], json(&described)].concat());
}
