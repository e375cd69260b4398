//! Sums of processes have the bits of sums in one place, whether members use links, read each other's memory, or both.

mod hosts;

use std::collections::VecDeque;

use paceline_learn::kernels::shared::PeerSegment;
use paceline_learn::{Dice, Vector};
use paceline_runtime::Sum;
use paceline_runtime::wire::Standing;

use super::*;
use crate::processes::frame::Slice;
use crate::processes::near::board::Place;
use crate::processes::near::door::Door;

/// Who reads whose memory.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Host {
    None,
    All,
    /// Members with an even number and those with an odd one are on two hosts.
    Parity,
}

impl Host {
    fn is_shared(self, one: usize, other: usize) -> bool {
        match self {
            Host::None => false,
            Host::All => true,
            Host::Parity => one % 2 == other % 2,
        }
    }
}

/// The exchanges of n members; those of one host read each other's memory.
fn members(n: u32, shape: Shape, host: Host) -> Vec<Exchanges> {
    let near = |_| Some(Near::new(shape.size()).expect("memory can be shared"));
    let mut members: Vec<Exchanges> = (0..n)
        .map(|i| {
            Exchanges::new(WorkerId(i), shape, (host != Host::None).then(|| near(i)).flatten())
        })
        .collect();
    for (i, j) in (0..n as usize).flat_map(|i| (0..n as usize).map(move |j| (i, j))) {
        if i != j && host.is_shared(i, j) {
            meet(&mut members, i, j);
        }
    }
    members
}

/// Member i reads the memory of member j.
fn meet(members: &mut [Exchanges], i: usize, j: usize) {
    let (here, there) = (Door::open().expect("it opens"), Door::open().expect("it opens"));
    let segment = members[j].near.as_ref().expect("it shares memory").segment().clone();
    there.pass(here.name(), ([1, 2], WorkerId(j as u32)), &segment).expect("it is here");
    let passed = here.arrived().expect("it was passed");
    let mapped = PeerSegment::new(passed.segment, segment.bytes()).expect("it is well formed");
    let near = members[i].near.as_mut().expect("it shares memory");
    near.add(passed.from, mapped, passed.bell).expect("there is room");
    let near =
        |members: &mut [Exchanges], i: usize, from: usize, f: &dyn Fn(&mut Near, WorkerId)| {
            f(members[i].near.as_mut().expect("it shares memory"), WorkerId(from as u32));
        };
    if i > j {
        // Both have mapped each other now. The words that say how far they have read are the first ones of each peer.
        for (i, j) in [(i, j), (j, i)] {
            let cursor =
                members[j].near.as_ref().expect("it shares memory").cursor_of(WorkerId(i as u32));
            near(members, i, j, &|near, who| {
                assert_eq!(near.admit(who, cursor.expect("it was added")), Ok(Some(1)));
            });
            near(members, j, i, &|near, who| near.begin(who, 1).expect("it was added"));
        }
    }
}

fn shape(codec: Codec, size: usize) -> Shape {
    Shape { seed: 3, params: size - size / 10, buffers: size / 10, codec }
}

fn segments(load: &Load) -> Vec<Segment> {
    let own = |slice: Slice<'_>| match slice {
        Slice::Floats(floats) => Segment::Floats(floats.into()),
        Slice::Bytes(bytes) => Segment::Bytes(bytes.to_vec()),
    };
    load.slices().into_iter().map(own).collect()
}

fn view(n: u32) -> Arc<View> {
    Arc::new(View { incarnation: 1, number: 4, members: (0..n).map(WorkerId).collect() })
}

type Wires = BTreeMap<(usize, usize), VecDeque<(PeerMessage, Vec<Segment>)>>;

fn settle_effects(
    at: usize,
    effects: Effects,
    wires: &mut Wires,
    results: &mut [Option<ExchangeResult>],
) {
    assert!(effects.wrong.is_empty(), "{:?}", effects.wrong);
    for (to, message, load) in effects.sends {
        let wire = wires.entry((at, to.0 as usize)).or_default();
        wire.push_back((message, segments(&load)));
    }
    for (ticket, result) in effects.done {
        assert_eq!(ticket, Ticket(at as u64));
        assert!(results[at].replace(result).is_none(), "one result each");
    }
}

/// All members enter; messages between two members keep their order, all else is random.
fn run(shape: Shape, host: Host, entries: &[Entry], seed: u64) -> Vec<ExchangeResult> {
    run_with(&mut members(entries.len() as u32, shape, host), 7, entries, seed)
}

fn run_with(
    members: &mut [Exchanges],
    exchange: u64,
    entries: &[Entry],
    seed: u64,
) -> Vec<ExchangeResult> {
    let n = entries.len();
    let view = view(n as u32);
    let mut dice = Dice::keyed(&[seed, 9]);
    let mut waiting: Vec<usize> = (0..n).collect();
    let mut wires = Wires::new();
    let mut results: Vec<Option<ExchangeResult>> = vec![None; n];
    let mut idle = 0;
    loop {
        // A member may look at the boards of others at any time, or late.
        for (at, member) in members.iter_mut().enumerate() {
            if dice.below(2) == 0
                || wires.values().all(|wire| wire.is_empty()) && waiting.is_empty()
            {
                let effects = member.look();
                settle_effects(at, effects, &mut wires, &mut results);
            }
        }
        let busy: Vec<(usize, usize)> =
            wires.iter().filter(|(_, it)| !it.is_empty()).map(|(wire, _)| *wire).collect();
        let choices = waiting.len() + busy.len();
        if choices == 0 {
            if results.iter().all(Option::is_some) {
                break;
            }
            idle += 1;
            assert!(idle < 100, "members wait for each other");
            continue;
        }
        let pick = dice.below(choices as u64) as usize;
        let (at, effects) = if pick < waiting.len() {
            let at = waiting.swap_remove(pick);
            let entry = entries[at].clone();
            let number = if matches!(entry, Entry::Gather { .. }) { 0 } else { exchange };
            (at, members[at].enter(Ticket(at as u64), view.clone(), number, entry))
        } else {
            let wire = busy[pick - waiting.len()];
            let (message, parts) =
                wires.get_mut(&wire).and_then(|it| it.pop_front()).expect("it is busy");
            let from = WorkerId(wire.0 as u32);
            // Numbers may be read to where they belong, as links do if they come one by one.
            let mut parts = parts;
            if let Some(Segment::Floats(numbers)) = parts.first_mut()
                && dice.below(2) == 0
                && let Some(mut room) = members[wire.1].room(from, &message, numbers.len())
            {
                room.copy_from_slice(numbers);
                *numbers = room;
            }
            let effects = members[wire.1].receive(from, message, parts);
            (wire.1, effects.expect("members of one version understand each other"))
        };
        settle_effects(at, effects, &mut wires, &mut results);
    }
    assert!(members.iter().all(|it| it.count() == 0), "nothing is left behind");
    results.into_iter().map(|result| result.expect("all members get the result")).collect()
}

#[test]
fn sums_have_the_bits_of_a_meeting_in_one_place() {
    let codecs = [
        Codec::Dense,
        Codec::Half,
        Codec::Qsgd { bits: 4, bucket: 64 },
        Codec::TopK { fraction: 0.1 },
    ];
    for seed in 0..240 {
        let mut dice = Dice::keyed(&[seed, 1]);
        let codec = codecs[seed as usize % codecs.len()];
        let host = [Host::None, Host::All, Host::Parity][seed as usize / codecs.len() % 3];
        let size = [50, 5000, 70_001, 300_000][dice.below(4) as usize];
        let shape = shape(codec, size);
        let n = 1 + dice.below(6) as usize;
        let entries: Vec<Entry> = (0..n)
            .map(|i| {
                // Some members have nothing to add; sometimes none has.
                let is_empty = dice.below(4) == 0 || seed % 13 == 5;
                let length = if is_empty { 0 } else { size };
                let vector: Vector = (0..length).map(|_| dice.unit() as f32 - 0.5).collect();
                let params = if is_empty { 0 } else { shape.params };
                let payload = codec.encode(vector, params, &mut Vector::new(), &mut dice);
                let tail = Tail { samples: i as u64, loss_sum: f64::NAN, ..Tail::default() };
                Entry::Sum { payload: Arc::new(payload), tail }
            })
            .collect();
        let mut meeting = Meeting::new(n);
        entries.iter().enumerate().for_each(|(i, entry)| meeting.enter(i, entry.clone()));
        let ExchangeResult::Summed(expected) = meeting.end(3, view(n as u32), 7) else {
            panic!("it is a sum")
        };

        for result in run(shape, host, &entries, seed) {
            let ExchangeResult::Summed(sum) = result else { panic!("it is a sum") };
            let bits =
                |sum: &Sum| -> Vec<u32> { sum.gradient.sum.iter().map(|x| x.to_bits()).collect() };
            assert_eq!(
                bits(&sum),
                bits(&expected),
                "seed {seed}, {codec:?}, {n} members, {host:?}"
            );
            assert_eq!(sum.tails.len(), n);
            assert_eq!(sum.tails[n - 1].samples, n as u64 - 1, "in rank order");
        }
    }
}

#[test]
fn standings_reach_everyone_in_rank_order() {
    let standing = |completed| Standing { completed, digest: 1, newcomer: false };
    let entries: Vec<Entry> = (0..4).map(|i| Entry::Gather { standing: standing(i) }).collect();
    for result in run(shape(Codec::Dense, 5000), Host::All, &entries, 2) {
        let ExchangeResult::Gathered(all) = result else { panic!("it is gathered") };
        assert_eq!(all.iter().map(|it| it.completed).collect::<Vec<_>>(), [0, 1, 2, 3]);
    }
}

fn chunk_message(name: ExchangeName, length: u64) -> PeerMessage {
    PeerMessage::Chunk { name, tail: Tail::default(), form: Form::Dense, length, is_free: true }
}

/// The segments of a dense payload.
fn dense(values: usize) -> Vec<Segment> {
    vec![Segment::Floats(Vector::filled(1.0, values)), Segment::Floats(Vector::new())]
}

#[test]
fn parts_of_closed_views_are_dropped_and_wrong_ones_refused() {
    let shape = shape(Codec::Dense, 5000);
    let mut member = Exchanges::new(WorkerId(0), shape, None);
    let name = ExchangeName { view: view(3).name(), exchange: 7 };
    let peer = WorkerId(1);
    let chunk = |length: u64, values: usize| (chunk_message(name, length), dense(values));
    let (message, parts) = chunk(4999, 10);
    assert!(member.receive(peer, message, parts).is_err(), "another length");
    let (message, parts) = chunk(5000, 10);
    assert!(member.receive(peer, message, parts).is_ok(), "the view is not known yet");
    let payload = Arc::new(Payload::dense(Vector::filled(1.0, 5000)));
    let mine = Entry::Sum { payload, tail: Tail::default() };
    let effects = member.enter(Ticket(1), view(3), 7, mine.clone());
    assert_eq!(effects.wrong.len(), 1, "the chunk is too short");

    member.close_before(5);

    assert_eq!(member.count(), 0);
    let (message, parts) = chunk(5000, 10);
    assert!(member.receive(peer, message, parts).is_ok());
    assert!(member.enter(Ticket(2), view(3), 7, mine).sends.is_empty());
    assert_eq!(member.count(), 0, "nothing is kept for a closed view");
    for exchange in 0..200 {
        let name = ExchangeName {
            view: paceline_runtime::view::ViewName { incarnation: 1, number: 9 },
            exchange,
        };
        let is_kept = member.receive(peer, chunk_message(name, 0), dense(0)).is_ok();
        assert!(is_kept && member.count() <= 2, "exchanges that are over by now are forgotten");
    }
}

#[test]
fn pieces_come_in_order_and_none_is_longer_or_shorter_than_it_must_be() {
    // Two whole pieces and a short one.
    let shape = shape(Codec::Dense, 2 * PIECE + 5);
    let name = ExchangeName { view: view(2).name(), exchange: 7 };
    let first = || (chunk_message(name, shape.size() as u64), dense(PIECE));
    let piece = |of_sum, start: usize, values| {
        (PeerMessage::Piece { name, start: start as u64, of_sum }, dense(values))
    };
    let good = || vec![first(), piece(false, PIECE, PIECE), piece(false, 2 * PIECE, 5)];
    let replaced = |at: usize, by: Vec<(PeerMessage, Vec<Segment>)>| {
        let mut all = good();
        all.splice(at.., by);
        all
    };
    let cases = [
        (good(), true),
        (replaced(0, vec![piece(false, 0, PIECE)]), false),
        (replaced(0, vec![(chunk_message(name, shape.size() as u64), dense(5))]), false),
        (replaced(0, vec![(chunk_message(name, shape.size() as u64), dense(PIECE + 1))]), false),
        (replaced(0, vec![(chunk_message(name, 0), dense(PIECE))]), false),
        (replaced(1, vec![piece(false, 0, PIECE)]), false),
        (replaced(1, vec![piece(false, PIECE, PIECE - 1)]), false),
        (replaced(1, vec![piece(false, PIECE, PIECE + 1)]), false),
        (replaced(1, vec![piece(false, usize::MAX, PIECE)]), false),
        (replaced(2, vec![piece(false, 2 * PIECE, 0)]), false),
        (replaced(2, vec![piece(true, 2 * PIECE, 5)]), false),
        // What comes after the end is not looked at.
        (replaced(0, vec![(chunk_message(name, 0), dense(0)), piece(false, 0, PIECE)]), true),
        (replaced(3, vec![piece(false, 2 * PIECE + 5, 5)]), true),
    ];
    for (i, (messages, is_right)) in cases.into_iter().enumerate() {
        for enters_first in [true, false] {
            let mut member = Exchanges::new(WorkerId(0), shape, None);
            let mine = dense_entries(2, shape.size(), 7).swap_remove(0);
            let (mut done, mut wrong) = (0, 0);
            if enters_first {
                member.enter(Ticket(0), view(2), 7, mine.clone());
            }
            for (message, segments) in messages.clone() {
                match member.receive(WorkerId(1), message, segments) {
                    Ok(effects) => done += effects.done.len(),
                    Err(_) => wrong += 1,
                }
            }
            if !enters_first {
                let effects = member.enter(Ticket(0), view(2), 7, mine);
                (done, wrong) = (done + effects.done.len(), wrong + effects.wrong.len());
            }
            assert_eq!((done == 1, wrong == 0), (is_right, is_right), "case {i}, {enters_first}");
        }
    }
}

#[test]
fn sums_of_several_pieces_have_the_bits_of_a_meeting_in_one_place() {
    for (n, host) in [(2, Host::None), (3, Host::None), (4, Host::Parity), (3, Host::All)] {
        // Each member adds two pieces and a short one.
        let shape = shape(Codec::Dense, n * (2 * PIECE + 77));
        let entries = dense_entries(n, shape.size(), 7);
        let expected = expected(&entries);
        for seed in 0..2 {
            let results = run(shape, host, &entries, seed);
            assert!(results.iter().all(|it| bits(it) == expected), "{n}, {host:?}, seed {seed}");
        }
    }
}

#[test]
fn two_members_add_a_short_vector_where_it_has_come() {
    let shape = shape(Codec::Dense, PIECE + 77);
    let entries = dense_entries(2, shape.size(), 7);
    let name = ExchangeName { view: view(2).name(), exchange: 7 };
    for rank in [0, 1] {
        let (me, peer) = (rank as usize, 1 - rank as usize);
        let Entry::Sum { payload, .. } = &entries[peer] else { panic!("it is a sum") };
        let Encoded::Dense(theirs) = &payload.learned else { panic!("it is dense") };
        let theirs = theirs.clone();
        let place = theirs.as_ptr();
        let segments = vec![Segment::Floats(theirs), Segment::Floats(Vector::new())];
        let mut member = Exchanges::new(WorkerId(rank), shape, None);
        member.enter(Ticket(0), view(2), 7, entries[me].clone());
        let message = chunk_message(name, shape.size() as u64);

        let effects = member.receive(WorkerId(1 - rank), message, segments).expect("it is right");

        let (_, result) = &effects.done[0];
        assert!(bits(result) == expected(&entries), "rank {rank}");
        let ExchangeResult::Summed(sum) = result else { panic!("it is a sum") };
        assert_eq!(sum.gradient.sum.as_ptr(), place, "without memory of its own");
    }
}

#[test]
fn a_piece_of_a_sum_has_one_place_and_nothing_else_has() {
    let size = 3 * 1024 * 5;
    let sum = |exchange| {
        let name = ExchangeName { view: view(3).name(), exchange };
        PeerMessage::Sum { name, form: Form::Dense, in_slot: false }
    };
    let peer = WorkerId(1);
    let mut member = Exchanges::new(WorkerId(0), shape(Codec::Dense, size), None);
    assert!(member.room(peer, &sum(7), size / 3).is_none(), "this member has not entered");
    member.enter(Ticket(1), view(3), 7, dense_entries(3, size, 7)[0].clone());
    assert!(member.room(peer, &sum(8), size / 3).is_none(), "another exchange");
    assert!(member.room(peer, &sum(7), size / 3 - 1).is_none(), "another length");
    assert!(member.room(WorkerId(9), &sum(7), size / 3).is_none(), "not a member");
    assert!(member.room(WorkerId(0), &sum(7), size / 3).is_none(), "this member adds it itself");
    let name = ExchangeName { view: view(3).name(), exchange: 7 };
    assert!(member.room(peer, &chunk_message(name, size as u64), size / 3).is_none(), "no sum");
    for start in [1, size as u64 / 3, u64::MAX] {
        let piece = PeerMessage::Piece { name, start, of_sum: true };
        assert!(member.room(peer, &piece, size / 3).is_none(), "from {start} on");
    }
    let mut room = member.room(peer, &sum(7), size / 3).expect("it is expected");
    assert!(member.room(peer, &sum(7), size / 3).is_none(), "it was given");
    room.fill(5.0);
    // Another one in other memory, while that is being read.
    assert!(member.receive(peer, sum(7), dense(size / 3)).is_err(), "it cannot be written twice");
    let parts = vec![Segment::Floats(room), Segment::Floats(Vector::new())];
    assert!(member.receive(peer, sum(7), parts).is_ok());

    let mut pair = Exchanges::new(WorkerId(0), shape(Codec::Dense, size), None);
    pair.enter(Ticket(1), view(2), 7, dense_entries(2, size, 7)[0].clone());
    let name = ExchangeName { view: view(2).name(), exchange: 7 };
    let message = PeerMessage::Sum { name, form: Form::Dense, in_slot: false };
    assert!(pair.room(peer, &message, size / 3).is_none(), "two members send no sums");
}

#[test]
fn a_peer_can_send_only_so_much_before_this_member_enters() {
    let shape = shape(Codec::Dense, 2 * PIECE + 5);
    let name = ExchangeName { view: view(2).name(), exchange: 7 };
    let mut member = Exchanges::new(WorkerId(0), shape, None);
    let piece = || PeerMessage::Piece { name, start: 0, of_sum: false };
    let is_taken = |_: &usize| member.receive(WorkerId(1), piece(), dense(1)).is_ok();

    assert_eq!((0..1000).take_while(is_taken).count(), 6);
}

/// Entries of one dense exchange; the numbers depend on the member and the exchange.
fn dense_entries(n: usize, size: usize, exchange: u64) -> Vec<Entry> {
    (0..n)
        .map(|i| {
            let number = |k: usize| (k % 89) as f32 * 0.37 + i as f32 + exchange as f32 * 0.01;
            let payload = Arc::new(Payload::dense((0..size).map(number).collect()));
            Entry::Sum { payload, tail: Tail { samples: 1, ..Tail::default() } }
        })
        .collect()
}

fn expected(entries: &[Entry]) -> Vec<u32> {
    let mut meeting = Meeting::new(entries.len());
    entries.iter().enumerate().for_each(|(i, entry)| meeting.enter(i, entry.clone()));
    let ExchangeResult::Summed(sum) = meeting.end(3, view(entries.len() as u32), 1) else {
        panic!("it is a sum")
    };
    sum.gradient.sum.iter().map(|x| x.to_bits()).collect()
}

fn bits(result: &ExchangeResult) -> Vec<u32> {
    let ExchangeResult::Summed(sum) = result else { panic!("it is a sum") };
    sum.gradient.sum.iter().map(|x| x.to_bits()).collect()
}
