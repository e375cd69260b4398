//! The simulator: consistent costs, errors of runs that are stuck, timelines, refused scenarios.

use std::sync::Arc;

use paceline::learn::{Noise, Quadratic};
use paceline::runtime::{Line, Reader, Record};
use paceline::sim::checkers::Traffic;
use paceline::sim::scenario::{
    Crash, Cut, Direction, Disturbance, During, Join, Leave, Rack, RingModel, Size,
};
use paceline::{
    Coordination, Job, PrepareOptions, Prepared, RunResult, Scenario, SimulateOptions, Task,
    recipes, simulate,
};
use paceline_watch::Timeline;

fn prepare(strategy: &str, workers: u32) -> Prepared {
    let job = Job { strategy: strategy.into(), epochs: 5.0, ..Job::default() };
    job.prepare(workers).expect("the job is valid")
}

/// Whole rounds only: in a last round with fewer samples for some workers, they would not start the sum together.
fn run(strategy: &str, scenario: &Scenario) -> RunResult {
    let model = Arc::new(Quadratic { curvature: vec![0.5; 1000], noise: 0.1 });
    let len = 16 * 32 * u64::from(scenario.workers);
    let task = Task {
        model,
        train: Arc::new(Noise { len }),
        validation: None,
        test: Arc::new(Noise { len: 1 }),
    };
    let (strategy, learning_rate) = (strategy.to_owned(), Some(0.01));
    let job = Job { strategy, learning_rate, epochs: 1.0, ..Job::default() };
    let prepared = job
        .prepare_with(PrepareOptions { task: Some(task), ..PrepareOptions::new(scenario.workers) })
        .expect("the job is valid");
    simulate(&prepared, scenario, SimulateOptions::default()).expect("the run ends").result
}

#[test]
fn a_ring_costs_the_same_in_messages_and_in_closed_form_when_links_and_starts_are_equal() {
    for workers in [1, 2, 3, 8] {
        for strategy in ["ssgd", "qsgd", "cpsgd", "pipe"] {
            let mut scenario = Scenario { workers, ..Scenario::default() };
            let messages = run(strategy, &scenario);
            scenario.network.sums = RingModel::ClosedForm;
            let closed = run(strategy, &scenario);

            let apart = (messages.seconds() - closed.seconds()).abs();
            assert!(apart < 1e-6 * messages.seconds(), "{strategy}, {workers} workers: {apart}");
            assert_eq!(messages.bytes_sent, closed.bytes_sent, "{strategy}, {workers} workers");
            assert_eq!(messages.loss.to_bits(), closed.loss.to_bits());
        }
    }
}

/// Worker 0 is ordered to leave while it computes; before it can say goodbye, the other worker is lost.
#[test]
fn a_worker_that_is_left_alone_while_it_leaves_works_on() {
    let mut scenario = Scenario { workers: 2, ..Scenario::default() };
    scenario.coordinator.detection = 1e-4;
    scenario.leaves = vec![Leave { worker: 0, at: 0.1 }];
    scenario.crashes = vec![Crash { worker: 1, at: 0.1001, at_event: None, back_after: None }];
    for recipe in recipes() {
        let prepared = prepare(&recipe.name, 2);
        if prepared.strategy().coordination() == Coordination::Synchronous {
            // It says goodbye at another time, between two rounds.
            continue;
        }
        let simulated = simulate(&prepared, &scenario, SimulateOptions::default());
        let ledger = simulated.unwrap_or_else(|e| panic!("{}: {e}", recipe.name)).result.ledger;
        let expected = (prepared.plan.samples_total, 0, 0);
        assert_eq!((ledger.done, ledger.lost, ledger.repeated), expected, "{}", recipe.name);
    }
}

/// Also what a newcomer reads: parameters, and the state of the optimizer.
#[test]
fn the_journal_counts_the_bytes_that_cross_the_network_through_joins_and_leaves() {
    let mut scenario = Scenario { workers: 3, ..Scenario::default() };
    scenario.joins = vec![Join { at: 0.1, workers: 2 }];
    scenario.leaves = vec![Leave { worker: 1, at: 0.2 }];
    for recipe in recipes() {
        let mut traffic = Traffic::default();
        let options = SimulateOptions { readers: vec![&mut traffic], ..SimulateOptions::default() };
        let simulated = simulate(&prepare(&recipe.name, 3), &scenario, options);
        let sent = simulated.expect("the run ends").bytes_on_wires;
        assert_eq!(traffic.bytes, sent, "{}", recipe.name);
    }
}

/// The ring crosses the shared uplink of a rack, which only the simulation by messages models.
#[test]
fn a_slow_rack_slows_the_ring_that_leaves_it() {
    let mut scenario = Scenario { workers: 4, ..Scenario::default() };
    let alone = run("ssgd", &scenario).seconds();
    scenario.network.racks = vec![rack()];
    assert!(run("ssgd", &scenario).seconds() > 2.0 * alone);
}

#[test]
fn a_run_without_workers_ends_with_a_message() {
    let mut scenario = Scenario { workers: 2, ..Scenario::default() };
    let crash = |worker, at| Crash { worker, at, at_event: None, back_after: None };
    scenario.crashes = vec![crash(0, 0.005), crash(1, 0.006)];
    for recipe in recipes() {
        let prepared = prepare(&recipe.name, 2);
        let error = simulate(&prepared, &scenario, SimulateOptions::default()).err();
        let error = error.expect("the run fails");
        let message = "nothing can happen any more: no worker is left";
        assert_eq!((error.to_string().as_str(), error.is_usage()), (message, false));
    }
}

/// Four workers, the last at half speed, and a sum that takes as long as a batch.
fn uneven() -> Scenario {
    let mut scenario = Scenario { workers: 4, ..Scenario::default() };
    scenario.compute.relative = vec![1.0, 1.0, 1.0, 2.0];
    scenario.compute.seconds_per_gradient = 0.0;
    scenario.network.bytes_per_second = 9e6;
    scenario
}

fn timeline(strategy: &str) -> String {
    let mut timeline = Timeline::default();
    let prepared = prepare(strategy, 4);
    simulate(
        &prepared,
        &uneven(),
        SimulateOptions { readers: vec![&mut timeline], ..Default::default() },
    )
    .expect("the run ends");
    let until = std::time::Duration::from_millis(24);
    timeline.text(72, 8, Some(until)).lines().take(4).map(|line| format!("{line}\n")).collect()
}

#[test]
fn all_reduce_waits_for_the_slowest_worker_and_for_the_network() {
    let expected = "
   0 #####...........#####...........#####..........+#####..........+#####...
   1 #####...........#####+..........#####+..........#####...........#####...
   2 #####..........+####+..........#####+..........#####+..........#####....
   3 ##########.....+#########+.....+#########+.....+#########+.....#########
";
    assert_eq!(format!("\n{}", timeline("ssgd")), expected, "\n{}", timeline("ssgd"));
}

#[test]
fn abs_sgd_never_waits() {
    let expected = "
   0 ########################################################################
   1 ########################################################################
   2 ########################################################################
   3 ########################################################################
";
    assert_eq!(format!("\n{}", timeline("abs")), expected, "\n{}", timeline("abs"));
}

#[test]
fn a_job_that_loses_all_workers_starts_over_and_reports_the_wasted_samples() {
    for recipe in recipes() {
        let mut scenario = Scenario { workers: 2, ..Scenario::default() };
        let prepared = prepare(&recipe.name, 2);
        let calm = simulate(&prepared, &scenario, SimulateOptions::default())
            .expect("the run ends")
            .result;
        let at = 0.9 * calm.seconds();
        scenario.crashes = (0..2)
            .map(|worker| Crash { worker, at, at_event: None, back_after: Some(0.1) })
            .collect();

        let outcome = simulate(&prepared, &scenario, SimulateOptions::default())
            .expect("the run ends")
            .result;

        let (name, total) = (&recipe.name, prepared.plan.samples_total);
        let ledger = outcome.ledger;
        assert_eq!((ledger.done, ledger.lost, ledger.repeated), (total, 0, 0), "{name}");
        assert!(outcome.samples_wasted > total / 2, "{name}: {}", outcome.samples_wasted);
        let difference = (outcome.loss - calm.loss).abs();
        assert!(difference < 0.25, "{name}: loss {} without faults, {}", calm.loss, outcome.loss);
    }
}

fn rack() -> Rack {
    Rack { workers: vec![0, 1], bytes_per_second: 1e5, latency: 0.0 }
}

#[test]
fn impossible_scenarios_are_refused() {
    type Change = fn(&mut Scenario);
    let changes: [(&str, Change); 17] = [
        ("seconds_per_sample", |s| s.compute.seconds_per_sample = 1e300),
        ("relative", |s| s.compute.relative = vec![1e200]),
        ("network.bytes_per_second", |s| s.network.bytes_per_second = 1e-300),
        ("patience", |s| s.coordinator.patience = f64::INFINITY),
        ("latency", |s| s.network.latency = f64::NAN),
        ("jitter_every", |s| s.compute.jitter_every = 1e-12),
        ("workers", |s| s.workers = 2_000_000),
        ("relative", |s| s.compute.relative = vec![-1.0]),
        ("relative", |s| s.compute.relative = vec![]),
        ("disturbance", |s| {
            let (lasts, factor) = ((1, 2), (3.0, 2.0));
            s.compute.disturbance = Some(Disturbance { every: 0.1, chance: 0.1, lasts, factor });
        }),
        ("rack", |s| s.network.racks = vec![rack(), rack()]),
        ("closed_form", |s| {
            (s.network.racks, s.network.sums) = (vec![rack()], RingModel::ClosedForm);
        }),
        ("away", |s| s.coordinator.away = vec![During { from: 2.0, to: 1.0 }]),
        ("cut", |s| {
            s.cuts = vec![Cut {
                workers: vec![0],
                from: 1.0,
                to: 1.0,
                coordinator: true,
                direction: Direction::Both,
            }];
        }),
        ("size", |s| s.sizes = vec![Size { at: 1.0, at_epoch: Some(1.0), workers: 2 }]),
        ("size.workers", |s| s.sizes = vec![Size { at: 1.0, at_epoch: None, workers: 0 }]),
        ("join.workers", |s| s.joins = vec![Join { at: 1.0, workers: 2_000_000 }]),
    ];
    for (field, change) in changes {
        let mut scenario = Scenario::default();
        change(&mut scenario);
        let message = scenario.check().expect_err(field).to_string();
        assert!(message.contains(field) && message.contains(':'), "{message}");
    }
}

/// With sizes by epoch, each size trains on the same samples, whatever the speed of the recipe.
#[test]
fn sizes_may_change_at_epochs() {
    struct Sizes(Vec<(usize, u64)>, u64);
    impl Reader for Sizes {
        fn read(&mut self, line: &Line) {
            match &line.record {
                Record::View { members, .. } => self.0.push((members.len(), self.1)),
                Record::Applied { spans, .. } => {
                    let end = spans.intervals().last().map_or(0, |(_, end)| *end);
                    self.1 = self.1.max(end);
                }
                _ => {}
            }
        }
    }
    let size = |epoch, workers| Size { at: 0.0, at_epoch: Some(epoch), workers };
    for strategy in ["ssgd", "adpsgd", "gossip-pull"] {
        let mut scenario = Scenario { workers: 2, ..Scenario::default() };
        scenario.sizes = vec![size(3.0, 3), size(1.0, 6)];
        let prepared = prepare(strategy, 2);
        let (mut sizes, epoch) = (Sizes(vec![], 0), prepared.plan.samples_per_epoch);

        simulate(
            &prepared,
            &scenario,
            SimulateOptions { readers: vec![&mut sizes], ..Default::default() },
        )
        .expect("the run ends");

        let when = |members| sizes.0.iter().rfind(|(len, _)| *len == members).map(|(_, at)| *at);
        for (members, from) in [(6, epoch), (3, 3 * epoch)] {
            let at = when(members).expect("the size is reached");
            assert!(
                at.abs_diff(from) < epoch * 6 / 10,
                "{strategy}: {members} from {at}, not {from}"
            );
        }
    }
}

/// With costs this large, the server of `async` is the bottleneck, and a lossy codec costs what its numbers say.
#[test]
fn updates_of_a_server_and_lossy_codecs_take_time() {
    let mut scenario = Scenario { workers: 4, ..Scenario::default() };
    scenario.compute.seconds_per_param = 0.0;
    let free = run("async", &scenario).seconds();
    scenario.compute.seconds_per_param = 1e-3;
    let slow = run("async", &scenario);
    let params = 1000.0;
    let updates = (slow.samples / slow.batch) as f64;
    let serving = updates * params * 1e-3;
    assert!(slow.seconds() >= serving && serving > 2.0 * free, "{} {serving}", slow.seconds());

    let mut scenario = Scenario { workers: 4, ..Scenario::default() };
    scenario.compute.seconds_per_encoded = 0.0;
    let [free, dense] = ["qsgd", "ssgd"].map(|strategy| run(strategy, &scenario).seconds());
    scenario.compute.seconds_per_encoded = 1e-3;
    let slow = run("qsgd", &scenario);
    // What is encoded after the last gradient is not charged.
    let encoding = (slow.rounds - 1) as f64 * params * 1e-3;
    let apart = slow.seconds() - free - encoding;
    assert!(apart.abs() < 1e-6 * slow.seconds(), "{} {free} {encoding}", slow.seconds());
    assert_eq!(run("ssgd", &scenario).seconds(), dense, "nothing is encoded");
}
