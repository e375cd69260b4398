//! The coordinator, input by input: what it decides, and what it logs.

use paceline_learn::Dice;

use super::*;
use crate::journal::Record;

const PATIENCE: Duration = Duration::from_millis(100);

fn rules(coordination: Coordination) -> Rules {
    let (patience, keeps_log) = (PATIENCE, true);
    Rules { patience, keeps_log, ..Rules::new(60, 2, coordination) }
}

/// A coordinator and the workers that it has admitted.
struct Hearing {
    coordinator: Coordinator,
    who: Vec<WorkerId>,
}

impl Hearing {
    fn of(workers: usize, coordination: Coordination) -> Hearing {
        let mut coordinator = Coordinator::new(rules(coordination), Spans::new());
        let mut join = || coordinator.step(Duration::ZERO, Input::Hello).admitted.expect("room");
        let who = (0..workers).map(|_| join()).collect();
        Hearing { coordinator, who }
    }

    /// Whether somebody is put out at this time, when these workers have just been heard.
    fn puts_out(&mut self, now: Duration, heard: &[usize]) -> bool {
        for i in heard {
            let _ = self.coordinator.step(now, Input::Beat(self.who[*i]));
        }
        let orders = self.coordinator.step(now, Input::Tick).orders;
        orders.iter().any(|it| matches!(it.order, Order::PutOut { .. }))
    }
}

/// A job of two workers that waits, because one of them is lost.
fn paused() -> (Coordinator, WorkerId) {
    let rules = Rules { members_min: 2, ..rules(Coordination::Synchronous) };
    let mut coordinator = Coordinator::new(rules, Spans::new());
    let mut join = || coordinator.step(Duration::ZERO, Input::Hello).admitted.expect("room");
    let (last, lost) = (join(), join());
    let _ = coordinator.step(Duration::ZERO, Input::Lost(lost));
    (coordinator, last)
}

#[test]
fn the_last_member_of_a_job_that_waits_goes_when_its_part_is_stored_and_not_before() {
    let (mut coordinator, last) = paused();
    let mut number = 0;
    let mut say = |coordinator: &mut Coordinator, word| {
        number += 1;
        coordinator.step(Duration::ZERO, Input::Word { from: last, number, word })
    };
    let saved = |round| Input::Saved(Saved { round, version: 0, done: Spans::one(0, 20) });
    let goes = |output: &Output| {
        output.orders.iter().any(|it| it.to == last && matches!(it.order, Order::Go { .. }))
    };

    let _ = say(&mut coordinator, Word::Bye);
    assert_eq!(coordinator.state().last_to_leave(), Some(last));
    // It was on its way when the worker wanted to leave.
    assert!(!goes(&coordinator.step(Duration::ZERO, saved(3))), "an older snapshot");
    let _ = say(
        &mut coordinator,
        Word::HandedIn { snapshot: 5, digest: 1, done: Some(Spans::one(0, 20)) },
    );
    assert!(!goes(&coordinator.step(Duration::ZERO, saved(4))), "another snapshot");
    let output = coordinator.step(Duration::ZERO, saved(5));

    assert!(goes(&output), "{:?}", output.orders);
    assert!(coordinator.view().members.is_empty());
    let is_resumed = |record: &Record| matches!(record, Record::Resumed { round: 5, spans, .. } if spans.len() == 20);
    assert!(output.records.iter().any(is_resumed), "{:?}", output.records);
    let mut join = || coordinator.step(Duration::ZERO, Input::Hello);
    let (_, started) = (join(), join());
    let is_start = |it: &Addressed| matches!(it.order, Order::Start { from_saved: true, .. });
    assert!(started.orders.iter().any(is_start), "others begin with it: {:?}", started.orders);
}

/// Something that a worker, the network or the user could tell the coordinator.
fn draw(dice: &mut Dice, known: u64, words: &mut BTreeMap<WorkerId, u64>, view: u64) -> Input {
    let who = WorkerId(dice.below(known + 1) as u32);
    let spans = Spans::one(dice.below(30), 30 + dice.below(30));
    let word = match dice.below(12) {
        0 | 1 => Word::Lease { request: dice.below(1000), samples: 1 + dice.below(9) },
        2 => Word::Done { spans },
        3 => Word::Return { holder: who, spans },
        4 => Word::Restored { reign: view, done: spans },
        5 | 6 => Word::Settled { view: view + dice.below(2), exchange: 1 },
        7 => Word::HandedIn { snapshot: 1, digest: 1, done: None },
        8 => Word::Finished,
        9 => Word::Bye,
        10 => Word::Suspect { peer: WorkerId(dice.below(known + 1) as u32), view },
        _ => Word::Gone,
    };
    match dice.below(20) {
        0..=2 => Input::Hello,
        3 => Input::Lost(who),
        4 | 5 => Input::Beat(who),
        6 | 7 => Input::Tick,
        8 => Input::Save,
        9 => Input::Saved(Saved { round: 1, version: 0, done: Spans::one(0, dice.below(60)) }),
        _ => {
            let number = words.entry(who).or_default();
            *number += 1;
            Input::Word { from: who, number: *number, word }
        }
    }
}

#[test]
fn any_prefix_of_the_log_replays_to_the_same_state() {
    let centered = |applies_samples| Coordination::Centered { applies_samples };
    let kinds =
        [Coordination::Synchronous, Coordination::Asynchronous, centered(true), centered(false)];
    for seed in 0..200 {
        let mut dice = Dice::keyed(&[seed, 5]);
        let rules = rules(kinds[seed as usize % kinds.len()]);
        let (mut coordinator, mut words) = (Coordinator::new(rules, Spans::new()), BTreeMap::new());
        let (mut log, mut now, mut known) = (vec![Entry::Started], Duration::ZERO, 0);
        for _ in 0..60 {
            now += Duration::from_millis(dice.below(40));
            let view = coordinator.view().number;
            let input = draw(&mut dice, known, &mut words, view);
            let output = coordinator.step(now, input);
            known += u64::from(output.admitted.is_some());
            log.extend(output.log);

            let mut replayed = State::new(rules, Spans::new());
            for entry in &log {
                let _ = replayed.apply(entry);
            }

            assert_eq!(&replayed, coordinator.state(), "seed {seed}, {} entries", log.len());
        }
    }
}

#[test]
fn what_changes_the_state_is_logged_in_the_step_that_orders_it() {
    let mut coordinator = Coordinator::new(rules(Coordination::Asynchronous), Spans::new());
    let mut step = |input| coordinator.step(Duration::ZERO, input);
    let _ = step(Input::Hello);
    let began = step(Input::Hello);
    assert!(!began.log.is_empty() && began.orders.len() == 2, "{began:?}");
    let lease = Word::Lease { request: 1, samples: 4 };
    let leased = step(Input::Word { from: WorkerId(0), number: 1, word: lease });
    assert!(leased.orders.iter().any(|it| matches!(it.order, Order::Lease { .. })));
    assert_eq!((leased.log.len(), leased.acknowledged), (1, Some((WorkerId(0), 1))));
    assert_eq!(step(Input::Beat(WorkerId(0))), Output::default(), "beats are volatile");
}

#[test]
fn a_coordinator_that_hears_nobody_puts_out_nobody() {
    let mut coordinator = Coordinator::new(rules(Coordination::Synchronous), Spans::new());
    for _ in 0..2 {
        let _ = coordinator.step(Duration::ZERO, Input::Hello);
    }
    for silence in [2, 4, 8, 100] {
        let output = coordinator.step(silence * PATIENCE, Input::Tick);
        assert_eq!((output.orders.len(), output.log.len()), (0, 0), "after {silence}");
    }
    // One that is heard again shows that the other is the one that is gone.
    let now = 101 * PATIENCE;
    let _ = coordinator.step(now, Input::Beat(WorkerId(1)));
    let output = coordinator.step(now, Input::Tick);
    assert!(output.orders.iter().any(|it| it.to == WorkerId(0)), "{output:?}");
    assert_eq!(coordinator.view().members, [WorkerId(1)]);
}

#[test]
fn a_coordinator_that_was_away_waits_for_the_last_worker_as_for_the_first() {
    let mut hearing = Hearing::of(3, Coordination::Asynchronous);
    let mut puts_out = |now, heard: &[usize]| hearing.puts_out(now, heard);
    let away = 10 * PATIENCE;
    assert!(!puts_out(away, &[]), "it hears nobody");
    assert!(!puts_out(away, &[0, 1]), "the third one is on its way");
    assert!(!puts_out(away + PATIENCE / 2, &[2]));
    assert!(!puts_out(away + PATIENCE, &[0, 1, 2]));
    // A coordinator that has no reason to doubt itself waits no longer than it should.
    assert!(!puts_out(away + 2 * PATIENCE, &[0, 1]), "just heard");
    assert!(puts_out(away + 2 * PATIENCE + PATIENCE / 2, &[0, 1]), "the third one is silent");
}

#[test]
fn a_coordinator_that_is_cut_off_does_not_put_out_the_worker_that_it_misses_first() {
    let mut hearing = Hearing::of(3, Coordination::Synchronous);
    let mut puts_out = |now, heard: &[usize]| hearing.puts_out(now, heard);

    // The cable is pulled after the heartbeats of the others, and before that of worker 0.
    assert!(!puts_out(PATIENCE / 5, &[1, 2]));
    assert!(!puts_out(PATIENCE + PATIENCE / 10, &[]), "only worker 0 is overdue");
    assert!(!puts_out(5 * PATIENCE, &[]), "all are");
    // The cable is back; worker 0 is the last one to be heard.
    assert!(!puts_out(5 * PATIENCE, &[1, 2]));
    assert!(!puts_out(5 * PATIENCE + PATIENCE / 5, &[0, 1, 2]));
}

#[test]
fn a_banned_worker_is_told_so_and_the_others_go_on() {
    let mut coordinator = Coordinator::new(rules(Coordination::Synchronous), Spans::new());
    for _ in 0..2 {
        let _ = coordinator.step(Duration::ZERO, Input::Hello);
    }
    let output = coordinator.step(Duration::ZERO, Input::Ban(WorkerId(0)));
    let told = |it: &Addressed| {
        it.to == WorkerId(0) && matches!(it.order, Order::PutOut { banned: true, .. })
    };
    assert!(output.orders.iter().any(told), "{output:?}");
    assert_eq!(coordinator.view().members, [WorkerId(1)]);
}

#[test]
fn a_newcomer_that_cannot_reach_a_member_voids_the_plan_that_waits_for_it() {
    let mut coordinator = Coordinator::new(rules(Coordination::Synchronous), Spans::new());
    for _ in 0..3 {
        let _ = coordinator.step(Duration::ZERO, Input::Hello);
    }
    let planned = coordinator.step(Duration::ZERO, Input::Tick);
    let plan = planned.orders.iter().find_map(|it| match &it.order {
        Order::Plan { view } => Some(view.number),
        _ => None,
    });
    let word = Word::Suspect { peer: WorkerId(0), view: plan.expect("a plan is made") };
    let _ = coordinator.step(PATIENCE, Input::Word { from: WorkerId(2), number: 1, word });
    for who in 0..3 {
        let _ = coordinator.step(2 * PATIENCE, Input::Beat(WorkerId(who)));
    }

    let output = coordinator.step(2 * PATIENCE, Input::Tick);

    let is_out = |it: &Addressed| matches!(it.order, Order::PutOut { .. });
    let out: Vec<WorkerId> = output.orders.iter().filter(|it| is_out(it)).map(|it| it.to).collect();
    assert_eq!(out, [WorkerId(2)]);
    assert_eq!(coordinator.view().members, [WorkerId(0), WorkerId(1)]);
}

#[test]
fn a_job_that_is_to_stop_does_not_wait_for_members_that_nobody_hears() {
    for kind in [Coordination::Synchronous, Coordination::Asynchronous] {
        let mut coordinator = Coordinator::new(rules(kind), Spans::new());
        for _ in 0..2 {
            let _ = coordinator.step(Duration::ZERO, Input::Hello);
        }
        let mut now = Duration::ZERO;
        let mut pass = |coordinator: &mut Coordinator, time| {
            let until = now + time;
            while now < until {
                now += PATIENCE / 4;
                let _ = coordinator.step(now, Input::Tick);
            }
        };
        pass(&mut coordinator, 10 * PATIENCE);
        assert_eq!(coordinator.view().members.len(), 2, "it may be cut off itself");
        let _ = coordinator.step(10 * PATIENCE, Input::Stop);
        pass(&mut coordinator, PATIENCE / 2);
        assert!(coordinator.is_over(), "{kind:?}");
    }
}

#[test]
fn of_two_members_that_cannot_reach_each_other_the_silent_one_goes() {
    let rules = Rules { keeps_log: true, ..rules(Coordination::Synchronous) };
    let mut coordinator = Coordinator::new(rules, Spans::new());
    let entries = (0..2).flat_map(|_| coordinator.step(Duration::ZERO, Input::Hello).log);
    let entries: Vec<Entry> = entries.collect();
    // Worker 0 dies with the coordinator.
    let stored = Coordinator::new(rules, Spans::new()).state().clone();
    let (mut coordinator, _) = Coordinator::restart(rules, stored, entries, Duration::ZERO);
    let now = PATIENCE / 8;
    let _ = coordinator.reconnected(now, WorkerId(1));
    let word = Word::Suspect { peer: WorkerId(0), view: coordinator.view().number };
    let _ = coordinator.step(now, Input::Word { from: WorkerId(1), number: 1, word });

    let _ = coordinator.step(now + PATIENCE / 4, Input::Tick);

    assert_eq!(coordinator.view().members, [WorkerId(1)]);
}

#[test]
fn the_last_member_with_a_replica_is_not_put_out_because_newcomers_cannot_reach_it() {
    let mut coordinator = Coordinator::new(rules(Coordination::Asynchronous), Spans::new());
    for _ in 0..5 {
        let _ = coordinator.step(Duration::ZERO, Input::Hello);
    }
    let _ = coordinator.step(Duration::ZERO, Input::Tick);
    let _ = coordinator.step(Duration::ZERO, Input::Lost(WorkerId(1)));
    let view = coordinator.view().number;
    assert_eq!(coordinator.view().members, [0, 2, 3, 4].map(WorkerId));
    for from in [2, 3, 4].map(WorkerId) {
        let word = Word::Suspect { peer: WorkerId(0), view };
        let _ = coordinator.step(Duration::ZERO, Input::Word { from, number: 1, word });
    }

    let output = coordinator.step(PATIENCE / 2, Input::Tick);

    assert!(!output.records.contains(&Record::StartedOver), "{output:?}");
    assert_eq!(coordinator.view().members, [0, 2, 3].map(WorkerId));
}

#[test]
fn nobody_is_put_out_when_the_job_is_over() {
    let mut coordinator = Coordinator::new(rules(Coordination::Synchronous), Spans::new());
    for _ in 0..2 {
        let _ = coordinator.step(Duration::ZERO, Input::Hello);
    }
    for who in [0, 1] {
        let (from, word) = (WorkerId(who), Word::Finished);
        let _ = coordinator.step(Duration::ZERO, Input::Word { from, number: 1, word });
    }
    assert!(coordinator.is_over());
    // The first one has ended, and its links are closed.
    let word = Word::Suspect { peer: WorkerId(0), view: coordinator.view().number };
    let _ = coordinator.step(Duration::ZERO, Input::Word { from: WorkerId(1), number: 2, word });

    let output = coordinator.step(PATIENCE, Input::Tick);

    assert!(!output.orders.iter().any(|it| matches!(it.order, Order::PutOut { .. })));
}

/// As a user who asks for a checkpoint just when a worker dies.
#[test]
fn a_snapshot_that_a_loss_prevents_is_asked_for_again() {
    for kind in [Coordination::Synchronous, Coordination::Asynchronous] {
        let mut coordinator =
            Coordinator::new(Rules { members_first: 3, ..rules(kind) }, Spans::new());
        let mut step = |input| coordinator.step(Duration::ZERO, input);
        (0..3).for_each(|_| drop(step(Input::Hello)));
        let asked = |output: &Output| {
            let is_save = |it: &&Addressed| matches!(it.order, Order::Save { .. });
            output.orders.iter().filter(is_save).count()
        };
        assert_eq!(asked(&step(Input::Save)), 3);
        let part = Word::HandedIn { snapshot: 1, digest: 1, done: Some(Spans::new()) };
        let handed_in = step(Input::Word { from: WorkerId(1), number: 1, word: part });
        assert_eq!(handed_in.snapshot, None);
        assert_eq!(asked(&step(Input::Lost(WorkerId(0)))), 2, "{kind:?}");
    }
}

#[test]
fn a_worker_that_may_not_leave_yet_changes_no_view() {
    let mut coordinator = Coordinator::new(rules(Coordination::Asynchronous), Spans::new());
    let mut step = |input| {
        let _ = coordinator.step(Duration::ZERO, input);
        (coordinator.view().number, coordinator.view().members.clone())
    };
    for _ in 0..3 {
        let _ = step(Input::Hello);
    }
    // Worker 2 is taken in, but has not adopted a replica yet when the only worker with one says goodbye.
    let _ = step(Input::Tick);
    let before = step(Input::Lost(WorkerId(1)));
    let _ = step(Input::Word { from: WorkerId(0), number: 1, word: Word::Bye });

    assert_eq!([step(Input::Tick), step(Input::Tick)], [before.clone(), before]);

    let settled = Word::Settled { view: 3, exchange: 0 };
    let _ = step(Input::Word { from: WorkerId(2), number: 1, word: settled });
    assert_eq!(step(Input::Tick).1, [WorkerId(2)]);
}

#[test]
fn a_worker_that_worked_on_after_its_goodbye_leaves_when_it_holds_no_samples() {
    let mut coordinator = Coordinator::new(rules(Coordination::Asynchronous), Spans::new());
    let mut step = |input| {
        let outputs = [input, Input::Tick].map(|it| coordinator.step(Duration::ZERO, it));
        let is_freed = |output: &Output| {
            output.records.iter().any(|record| matches!(record, Record::Freed { .. }))
        };
        (coordinator.view().members.clone(), outputs.iter().any(is_freed))
    };
    let word = |from, number, word| Input::Word { from: WorkerId(from), number, word };
    (0..2).for_each(|_| drop(step(Input::Hello)));
    let _ = step(Input::Lost(WorkerId(1)));
    let _ = step(word(0, 1, Word::Bye));
    // The only member cannot leave, and computes.
    let _ = step(word(0, 2, Word::Lease { request: 1, samples: 4 }));
    let (both, _) = step(Input::Hello);
    let view = u64::MAX;
    let settled = step(word(2, 1, Word::Settled { view, exchange: 0 }));

    assert_eq!(settled, (both, false), "its samples are in its hands");

    let applied = step(word(0, 3, Word::Done { spans: Spans::one(0, 4) }));
    assert_eq!(applied, (vec![WorkerId(2)], false));
}

#[test]
fn a_word_that_is_sent_again_counts_once() {
    let mut coordinator = Coordinator::new(rules(Coordination::Asynchronous), Spans::new());
    for _ in 0..2 {
        let _ = coordinator.step(Duration::ZERO, Input::Hello);
    }
    let ask = |number| {
        let word = Word::Lease { request: number, samples: 4 };
        Input::Word { from: WorkerId(0), number, word }
    };
    let mut leases = |number| {
        let output = coordinator.step(Duration::ZERO, ask(number));
        output.orders.iter().filter(|it| matches!(it.order, Order::Lease { .. })).count()
    };
    assert_eq!([leases(1), leases(1), leases(3), leases(2), leases(3)], [1, 0, 0, 1, 1]);
}
