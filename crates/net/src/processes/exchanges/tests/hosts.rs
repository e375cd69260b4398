//! Members of one host: they read each other's memory, and may begin to do so at any time.

use super::*;

/// A member of this host that tells its sum by a notice, and begins to send it over the link as well: it is the one to blame, and not who
/// sends the last part.
#[test]
fn a_sum_that_comes_in_two_ways_is_its_owners_fault() {
    let size = 3 * 1024 * 5;
    for notice_first in [false, true] {
        let mut all = members(3, shape(Codec::Dense, size), Host::Parity);
        let entries = dense_entries(3, size, 7);
        let name = ExchangeName { view: view(3).name(), exchange: 7 };
        let sum = PeerMessage::Sum { name, form: Form::Dense, in_slot: false };
        let (victim, liar, honest) = (0, WorkerId(2), WorkerId(1));
        let mut sends = vec![];
        for (at, entry) in entries.iter().enumerate() {
            let effects = all[at].enter(Ticket(at as u64), view(3), 7, entry.clone());
            sends.extend(effects.sends.into_iter().map(|send| (at, send)));
        }
        let room = |member: &mut Exchanges| member.room(liar, &sum, size / 3);
        let held = (!notice_first).then(|| room(&mut all[victim]).expect("nothing has come yet"));
        // Everything is delivered but what the honest member sends last, its sum.
        let mut last = vec![];
        while let Some((from, (to, message, load))) = (!sends.is_empty()).then(|| sends.remove(0)) {
            let (from, to) = (WorkerId(from as u32), to.0 as usize);
            if to == victim && matches!(message, PeerMessage::Sum { .. }) {
                last.push((from, message, segments(&load)));
                continue;
            }
            let effects = all[to].receive(from, message, segments(&load)).expect("it is right");
            sends.extend(effects.sends.into_iter().map(|send| (to, send)));
            for (at, member) in all.iter_mut().enumerate().filter(|(at, _)| *at != victim) {
                sends.extend(member.look().sends.into_iter().map(|send| (at, send)));
            }
        }
        // The victim reads the sum of the liar on its board.
        let mut wrong = all[victim].look().wrong;
        if notice_first {
            assert!(room(&mut all[victim]).is_none(), "it has told its sum");
        }
        assert_eq!(last.len(), 1);
        for (from, message, parts) in last {
            assert_eq!(from, honest);
            let effects = all[victim].receive(from, message, parts).expect("it did nothing wrong");
            assert_eq!(effects.done.len(), usize::from(notice_first));
            wrong.extend(effects.wrong);
        }
        assert!(wrong.iter().all(|(who, _)| *who == liar), "{wrong:?}");
        assert_eq!(wrong.len(), usize::from(!notice_first));
        drop(held);
    }
}

/// A member of the same host may map this one's memory at any moment, also when it has got half of a sum over its link.
#[test]
fn a_peer_that_begins_to_read_our_memory_gets_each_sum_in_one_way() {
    let size = 3 * (PIECE + 1024);
    let entries = dense_entries(3, size, 7);
    for met_at in 0.. {
        let near = || Some(Near::new(size).expect("memory can be shared"));
        let shape = shape(Codec::Dense, size);
        let mut all: Vec<Exchanges> =
            (0..3).map(|i| Exchanges::new(WorkerId(i), shape, near())).collect();
        let (mut sends, mut results, mut delivered) = (VecDeque::new(), 0, 0);
        let mut follow = |at: usize, effects: Effects, sends: &mut VecDeque<_>| {
            assert!(effects.wrong.is_empty(), "met at {met_at}: {:?}", effects.wrong);
            sends.extend(effects.sends.into_iter().map(|send| (at, send)));
            results += effects.done.len();
        };
        for (at, entry) in entries.iter().enumerate() {
            let effects = all[at].enter(Ticket(at as u64), view(3), 7, entry.clone());
            follow(at, effects, &mut sends);
        }
        while let Some((from, (to, message, load))) = sends.pop_front() {
            if delivered == met_at {
                meet(&mut all, 0, 2);
                meet(&mut all, 2, 0);
            }
            delivered += 1;
            let (from, to) = (WorkerId(from as u32), to.0 as usize);
            let effects = all[to].receive(from, message, segments(&load));
            follow(to, effects.expect("all are honest"), &mut sends);
            for (at, member) in all.iter_mut().enumerate() {
                follow(at, member.look(), &mut sends);
            }
        }
        assert_eq!(results, 3, "met at {met_at}");
        if met_at == delivered {
            break;
        }
    }
}

#[test]
fn members_of_one_host_hold_one_sum_and_nothing_writes_over_it_while_they_do() {
    let shape = shape(Codec::Dense, 70_001);
    let mut members = members(3, shape, Host::All);
    let mut kept = vec![];
    for exchange in 1..=20 {
        let entries = dense_entries(3, shape.size(), exchange);
        let results = run_with(&mut members, exchange, &entries, exchange);
        let expected = expected(&entries);
        results.iter().for_each(|result| assert_eq!(bits(result), expected, "{exchange}"));
        // The first result is held for all of the job, a late one for a while: sums must then be put elsewhere.
        if exchange == 1 || exchange == 12 {
            kept.push((results[1].clone(), expected));
        }
        for (result, expected) in &kept {
            assert_eq!(bits(result), *expected, "after exchange {exchange}");
        }
        if exchange == 16 {
            kept.pop();
        }
    }
    let near = members[0].near.as_ref().expect("it shares memory");
    assert!(near.posted() > 32, "each place of the board was used again");
    assert!(near.is_next_clear(), "the next place shows no older notice while it is written");
}

#[test]
fn a_member_that_was_put_out_cannot_change_a_sum_of_a_later_view() {
    let shape = shape(Codec::Dense, 70_001);
    let mut members = members(3, shape, Host::All);
    let entries = dense_entries(3, shape.size(), 1);
    run_with(&mut members, 1, &entries, 1);
    // Two members go on without the third, which enters the next exchange of the old view late.
    let mut late = members.pop().expect("there are three");
    let next = dense_entries(3, shape.size(), 2);
    let later = Arc::new(View { number: 5, ..(*view(2)).clone() });
    let mut effects = vec![];
    for (i, member) in members.iter_mut().enumerate() {
        member.close_before(5);
        effects.push(member.enter(Ticket(i as u64), later.clone(), 2, next[i].clone()));
    }
    let _ = late.enter(Ticket(2), view(3), 2, next[2].clone());
    for _ in 0..4 {
        let _ = late.look();
        members.iter_mut().zip(&mut effects).for_each(|(it, effects)| effects.extend(it.look()));
    }

    let expected = expected(&next[..2]);
    for effects in &effects {
        assert!(effects.wrong.is_empty());
        assert_eq!(bits(&effects.done[0].1), expected);
    }
    for exchange in 2..9 {
        let entries = dense_entries(3, shape.size(), exchange);
        let _ = late.enter(Ticket(9), view(3), exchange, entries[2].clone());
    }
    assert_eq!(bits(&effects[0].done[0].1), expected, "whatever it writes now");
}

#[test]
fn a_notice_that_names_memory_outside_of_the_segment_is_a_violation() {
    let shape = shape(Codec::Dense, 70_001);
    let name = ExchangeName { view: view(2).name(), exchange: 3 };
    let place = |start, len| Place { is_floats: true, start, len };
    let nothing = place(0, 0);
    let end = members(1, shape, Host::All)[0].near.as_ref().expect("shared").segment().bytes();
    let cases = [
        ([place(end - 4, 2), nothing], "outside"),
        ([place(2, 1), nothing], "outside"),
        ([place(usize::MAX - 3, 70_001), nothing], "outside"),
        ([place(4096, usize::MAX >> 2), nothing], "outside"),
        ([place(4096, 70_000), nothing], "another length"),
    ];
    for (places, sentence) in cases {
        let mut members = members(2, shape, Host::All);
        let entries = dense_entries(2, shape.size(), 3);
        members[0].enter(Ticket(0), view(2), 3, entries[0].clone());
        let near = members[1].near.as_mut().expect("it shares memory");
        assert!(near.post(&chunk_message(name, 70_001), &places));

        let effects = members[0].look();

        assert_eq!(effects.wrong.len(), 1, "{places:?}");
        assert!(effects.wrong[0].1.to_string().contains(sentence), "{:?}", effects.wrong);
        assert!(effects.done.is_empty());
    }
}

/// One member maps the other's memory first, so that one of them tells its numbers by a notice and gets those of the other over the link.
#[test]
fn a_member_keeps_numbers_that_its_peer_has_not_read_though_it_has_the_sum() {
    let shape = shape(Codec::Dense, 70_001);
    let near = || Some(Near::new(shape.size()).expect("memory can be shared"));
    let mut pair: Vec<Exchanges> =
        (0..2).map(|i| Exchanges::new(WorkerId(i), shape, near())).collect();
    meet(&mut pair, 0, 1);
    meet(&mut pair, 1, 0);
    let [early, late] = &mut pair[..] else { panic!("there are two") };
    // Its board is full, so that it tells everything over the link.
    fill_board(late);
    let entries = [1, 2].map(|seed| dense_entries(2, shape.size(), seed));
    let over_link = late.enter(Ticket(1), view(2), 1, entries[0][1].clone()).sends;
    let posted = early.enter(Ticket(0), view(2), 1, entries[0][0].clone());
    assert!(posted.sends.is_empty(), "it has told everything by a notice");
    let mut done = vec![];
    for (_, message, load) in over_link {
        let effects = early.receive(WorkerId(1), message, segments(&load));
        done.extend(effects.expect("it is right").done);
    }
    assert_eq!(bits(&done[0].1), expected(&entries[0]));
    // It goes on before the other has looked.
    let _ = early.enter(Ticket(2), view(2), 2, entries[1][0].clone());
    let effects = late.look();
    assert!(effects.wrong.is_empty(), "{:?}", effects.wrong);
    assert_eq!(bits(&effects.done[0].1), expected(&entries[0]));
}

/// Nobody waits until somebody has read a sum who does not take part in it.
#[test]
fn who_takes_no_part_reads_no_numbers_and_blames_nobody() {
    let (codec, size) = (Codec::TopK { fraction: 0.1 }, 5000);
    let shape = shape(codec, size);
    let mut all = members(3, shape, Host::All);
    let mut dice = Dice::keyed(&[5, 1]);
    for exchange in 1..=5 {
        let mut done = 0;
        for (at, member) in all[..2].iter_mut().enumerate() {
            let vector: Vector = (0..size).map(|_| dice.unit() as f32 - 0.5).collect();
            let mut payload = codec.encode(vector, shape.params, &mut Vector::new(), &mut dice);
            if let Encoded::Sparse { indices, values, .. } = &mut payload.learned {
                // Lengths differ, so that what lay at one place is not what lies there.
                let length = 100 * (1 + exchange as usize % 3);
                indices.truncate(length);
                values.truncate(length);
            }
            let entry = Entry::Sum { payload: Arc::new(payload), tail: Tail::default() };
            done += member.enter(Ticket(at as u64), view(2), exchange, entry).done.len();
        }
        for member in &mut all[..2] {
            let effects = member.look();
            assert!(effects.wrong.is_empty(), "{:?}", effects.wrong);
            done += effects.done.len();
        }
        assert_eq!(done, 2);
    }
    let late = all[2].look();
    assert!(late.wrong.is_empty(), "{:?}", late.wrong);
}

fn fill_board(member: &mut Exchanges) {
    let name = |exchange| ExchangeName { view: view(2).name(), exchange };
    let nothing = Place { is_floats: true, start: 0, len: 0 };
    let near = member.near.as_mut().expect("it shares memory");
    let posted =
        (0..1000).filter(|i| near.post(&chunk_message(name(*i), 0), &[nothing; 2])).count();
    assert_eq!(posted, 15, "what was not read is not overwritten, and one place is prepared");
}

#[test]
fn a_board_whose_notices_nobody_reads_fills_up_and_links_take_over() {
    let shape = shape(Codec::Dense, 2 * PIECE + 1);
    let mut members = members(2, shape, Host::All);
    fill_board(&mut members[1]);

    let entry = dense_entries(2, shape.size(), 2000).swap_remove(1);
    let effects = members[1].enter(Ticket(1), view(2), 2000, entry);

    assert_eq!(effects.sends.len(), 3, "by frames instead, one for each piece");
    let effects = members[0].look();
    assert!(effects.wrong.is_empty() && members[0].count() == 2, "{:?}", effects.wrong);
}
