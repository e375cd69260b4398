use std::time::Duration;

use paceline_runtime::journal::ResultName;
use paceline_runtime::{Line, Reader, Record, Spans, WorkerId};

use super::events::EVENTS_MAX;
use super::*;
use crate::testing::{began, line, milliseconds, read_all, two_workers, view};

fn status(lines: &[Line]) -> Status {
    let mut status = Status::default();
    read_all(&mut status, lines);
    status
}

fn at(status: &Status, now: u64) -> Snapshot {
    status.snapshot(milliseconds(now), &Surroundings::default())
}

fn entered(at: u64, who: u32, exchange: u64) -> Line {
    let (view, round, samples, compute) = (1, exchange, 10, Duration::ZERO);
    line(at, Record::Entered { who: WorkerId(who), view, exchange, round, samples, compute })
}

fn applied(at: u64, first: u64, view: u64) -> Line {
    let record = Record::Applied {
        who: WorkerId(0),
        version: first,
        spans: Spans::one(first, first + 20),
        loss_sum: 20.0,
        weight: None,
        staleness: 0,
        rate: 0.1,
        round: None,
        result: Some(ResultName { exchange: first + 1000, view }),
    };
    line(at, record)
}

#[test]
fn progress_speed_and_time_left_follow_from_the_lines() {
    let status = status(&two_workers(20));

    let it = at(&status, 200);

    assert_eq!((it.samples, it.samples_total, it.rounds), (400, 1000, 19));
    assert_eq!((it.epochs, it.phase), (4.0, Phase::Training));
    assert_eq!(it.samples_per_second, 2000.0);
    assert!((it.seconds_left.expect("it is known") - 0.3).abs() < 1e-9);
    assert_eq!(it.accuracy, Some(0.75));
    assert!(!it.curves.loss.is_empty() && it.curves.loss.len() <= 401);
}

/// Worker 1 takes 9 ms of each round of 10 ms, worker 0 takes 4 ms and waits for 5.
#[test]
fn the_worker_that_the_others_wait_for_is_named_with_what_it_costs() {
    let status = status(&two_workers(20));

    let it = at(&status, 200);

    let [fast, slow] = &it.workers[..] else { panic!("two workers, not {:?}", it.workers) };
    assert!((slow.waited_for - 0.5).abs() < 1e-9 && fast.waited_for == 0.0);
    assert!((fast.waited_seconds - 0.1).abs() < 1e-9 && slow.waited_seconds == 0.0);
    assert_eq!((fast.share, slow.share), (0.5, 0.5));
    assert!((fast.busy - 0.4).abs() < 1e-9 && (slow.busy - 0.9).abs() < 1e-9);
    let Verdicts { slow, hangs, cost } = &it.verdicts;
    assert!(slow.sentence.starts_with("Worker 1 is slow: the others waited for it 50 %"));
    assert_eq!(hangs.sentence, "No worker hangs.");
    assert_eq!(cost.sentence, "Waiting costs 25 % of the members' time.");
    assert_eq!(
        (slow.level, hangs.level, cost.level),
        (Level::Warning, Level::Fine, Level::Warning)
    );
}

/// On a busy machine each is the last one now and then.
#[test]
fn nobody_is_slow_if_all_wait_for_each_other_in_turn() {
    let mut lines = two_workers(20);
    for line in &mut lines {
        let round = (line.at.as_millis().saturating_sub(1) / 10) as u64;
        if let Record::Computed { who, .. }
        | Record::Entered { who, .. }
        | Record::Exchanged { who, .. } = &mut line.record
            && !round.is_multiple_of(2)
        {
            *who = WorkerId(1 - who.0);
        }
    }

    let Verdicts { slow, cost, .. } = at(&status(&lines), 200).verdicts;

    assert_eq!(slow.sentence, "No single worker is slow: the members wait for each other in turn.");
    assert_eq!(cost.sentence, "Waiting costs 25 % of the members' time.");
}

/// A worker learns the time when it joins, and may learn it late: by more than a round takes.
#[test]
fn who_is_slow_does_not_depend_on_how_well_clocks_agree() {
    let mut lines = two_workers(20);
    for line in &mut lines {
        let is_late = line.record.worker() == Some(WorkerId(0));
        let late = if is_late { milliseconds(70) } else { Duration::ZERO };
        line.at += late;
        match &mut line.record {
            Record::Exchanged { entered, blocked, .. } => {
                (*entered, *blocked) = (*entered + late, *blocked + late);
            }
            Record::Computed { since, .. } => *since += late,
            _ => {}
        }
    }

    let it = at(&status(&lines), 270);

    assert!((it.workers[0].waited_seconds - 0.1).abs() < 1e-9, "{:?}", it.workers);
    assert!(it.verdicts.slow.sentence.starts_with("Worker 1 is slow"), "{:?}", it.verdicts);
}

#[test]
fn a_worker_that_does_not_enter_hangs_and_the_others_are_seen_to_wait() {
    let mut lines = two_workers(20);
    lines.push(entered(205, 0, 20));
    let status = status(&lines);

    let soon = at(&status, 600);
    let late = at(&status, 5_205);

    assert_eq!(soon.waits, [Wait { who: vec![0], whom: vec![1], seconds: 0.395 }]);
    assert_eq!(soon.verdicts.hangs.level, Level::Fine);
    assert_eq!(
        late.workers.iter().map(|it| it.state).collect::<Vec<_>>(),
        [State::Waiting, State::Hanging]
    );
    assert_eq!(
        late.verdicts.hangs.sentence,
        "Worker 1 hangs: nothing was heard of it for 5.00 s, and worker 0 waits."
    );
}

#[test]
fn what_waiting_costs_does_not_fall_while_a_worker_hangs() {
    let mut lines = two_workers(20);
    lines.push(entered(205, 0, 20));
    let status = status(&lines);

    let costs: Vec<f64> =
        [600, 5_000, 25_000, 120_000].map(|ms| at(&status, ms).workers[1].waited_for).into();

    assert!(costs.is_sorted(), "{costs:?}");
    assert_eq!(costs[3], 1.0);
    let cost = at(&status, 120_000).verdicts.cost;
    assert_eq!(cost.sentence, "Waiting costs 50 % of the members' time.");
}

#[test]
fn how_well_a_clock_is_known_is_shown_and_is_no_sign_of_life() {
    let mut lines = two_workers(20);
    lines.push(entered(205, 0, 20));
    let error = milliseconds(3);
    lines.push(line(5_200, Record::ClockSet { who: WorkerId(1), error }));
    let it = at(&status(&lines), 5_205);

    assert_eq!(it.workers[1].clock_error_seconds, Some(0.003));
    assert_eq!(it.workers[0].clock_error_seconds, None);
    assert_eq!(it.workers[1].state, State::Hanging);
}

#[test]
fn a_worker_that_computes_while_its_sum_is_under_way_does_not_wait() {
    let mut lines = two_workers(1);
    let record = Record::Exchanged {
        who: WorkerId(0),
        view: 1,
        exchange: 1,
        entered: milliseconds(1000),
        blocked: milliseconds(3000),
        bytes: 1,
    };
    lines.extend([line(3000, record), entered(4000, 0, 2)]);
    let status = status(&lines);

    assert_eq!(at(&status, 5_500).waits, []);
    assert_eq!(at(&status, 6_500).waits.len(), 1);
}

#[test]
fn a_loss_says_why_and_how_long_training_stood_still() {
    let mut lines = vec![line(0, began(true)), line(0, view(1, &[0, 1, 2]))];
    let members = vec![WorkerId(0), WorkerId(1)];
    let reason = "worker 2 was silent for too long".to_owned();
    lines.extend([
        applied(1_000, 0, 1),
        line(3_000, Record::Freed { who: WorkerId(2), spans: Spans::new() }),
        line(3_000, Record::View { number: 2, members, reason }),
        // A survivor takes a result of before.
        applied(3_100, 20, 1),
        applied(4_500, 40, 2),
        line(5_000, view(3, &[0, 1, 3])),
    ]);
    let it = at(&status(&lines), 5_000);

    let lost: Vec<String> = it.events.iter().map(Event::sentence).collect();
    assert_eq!(
        lost,
        [
            "workers 0, 1 and 2 joined",
            "worker 2 was silent for too long; training went on after 3.50 s",
            "worker 3 joined"
        ]
    );
    let Counts { joined, lost, recovered, recovery_seconds, .. } = it.counts;
    assert_eq!((joined, lost, recovered, recovery_seconds), (4, 1, 1, 3.5));
    let states: Vec<_> = it.workers.iter().map(|it| (it.id, it.state)).collect();
    let working = State::Working;
    assert_eq!(states, [(0, working), (1, working), (3, working), (2, State::Lost)]);
}

#[test]
fn who_leaves_in_good_order_has_left() {
    let mut lines = vec![line(0, began(true)), line(0, view(1, &[0, 1]))];
    lines.extend([line(10, view(2, &[0])), line(11, Record::Left { who: WorkerId(1) })]);

    let it = at(&status(&lines), 20);

    assert_eq!(it.workers[1].state, State::Left);
    assert_eq!((it.counts.left, it.counts.lost), (1, 0));
    assert_eq!(it.events[1].text, "worker 1 left");
}

/// Thousands of workers come and go, exchanges are interrupted, notes have ever new names.
#[test]
fn memory_is_bounded_whatever_happens() {
    let mut status = status(&[line(0, began(true))]);
    for n in 0..20_000u32 {
        let now = u64::from(n);
        status.read(&line(now, view(now + 1, &[n, n + 1])));
        status.read(&entered(now, n, now));
        let note = Record::Note { who: WorkerId(n), name: format!("{n}"), value: 1.0, round: None };
        status.read(&line(now, note));
        status.read(&line(now, Record::Freed { who: WorkerId(n), spans: Spans::new() }));
        status.read(&applied(now, 20 * now, now + 1));
    }

    let it = at(&status, 20_000);

    assert!(it.workers.len() < 16, "{} workers", it.workers.len());
    assert_eq!(it.events.len(), EVENTS_MAX);
    assert!(it.curves.loss.len() <= 401);
    let json = serde_json::to_string(&it).expect("it is plain data");
    assert!(json.len() < 64 << 10, "{} bytes", json.len());
}

#[test]
fn a_snapshot_is_read_back_as_it_was_written() {
    let it = at(&status(&two_workers(20)), 200);

    let text = serde_json::to_string(&it).expect("it is plain data");
    let back: Snapshot = serde_json::from_str(&text).expect("it is read");

    assert_eq!(back, it);
}

#[test]
fn a_diverged_run_has_no_loss_rather_than_one_that_is_no_number() {
    let mut lines = two_workers(2);
    let mut nan = applied(30, 40, 1);
    if let Record::Applied { loss_sum, result, .. } = &mut nan.record {
        (*loss_sum, *result) = (f64::NAN, None);
    }
    lines.push(nan);

    let text = serde_json::to_string(&at(&status(&lines), 40)).expect("it is plain data");

    assert!(serde_json::from_str::<Snapshot>(&text).is_ok(), "{text}");
}

#[test]
fn metrics_escape_names_and_say_what_they_are() {
    let mut it = at(&status(&two_workers(20)), 200);
    it.model = "a\"b\\c\nd".to_owned();

    let text = metrics(&it);

    assert!(text.contains("model=\"a\\\"b\\\\c\\nd\""));
    assert!(text.contains("paceline_samples_applied_total 400\n"));
    assert!(text.contains("paceline_worker_samples_computed_total{worker=\"1\"} 200\n"));
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let name = line.split(['{', ' ']).next().unwrap_or("");
        let kind = if name.ends_with("_total") { "counter" } else { "gauge" };
        assert!(text.contains(&format!("# TYPE {name} {kind}\n")), "{line}");
    }
}

#[test]
fn the_terminal_shows_the_three_answers_and_every_worker() {
    let text = terminal(&at(&status(&two_workers(20)), 200));

    assert!(text.starts_with("any: training\nepoch 4.0 of 10 (40 %), loss "), "{text}");
    assert!(text.contains("!  Worker 1 is slow"), "{text}");
    assert!(text.contains("   No worker hangs."), "{text}");
    assert!(text.contains("\n     1  working"), "{text}");
    assert!(text.lines().all(|line| line.chars().count() <= 120), "{text}");
}

#[test]
fn with_too_few_members_training_waits() {
    let status = status(&two_workers(20));
    let around = Surroundings { members_min: 3, ..Surroundings::default() };

    let it = status.snapshot(milliseconds(200), &around);

    assert_eq!((it.phase, it.seconds_left), (Phase::Waiting, None));
    assert!(terminal(&it).starts_with("any: waiting for workers\n"), "{}", terminal(&it));
}

#[test]
fn before_the_first_line_there_is_something_to_show() {
    let it = at(&Status::default(), 0);

    assert_eq!((it.phase, it.seconds_left), (Phase::Waiting, None));
    assert!(terminal(&it).starts_with("waiting for workers\n"));
    assert!(!metrics(&it).is_empty());
}
