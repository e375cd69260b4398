//! What the simulator promises: costs that agree, runs that say why they cannot go on, pictures of who waits.

use std::sync::Arc;

use paceline::learn::{Noise, Quadratic};
use paceline::runtime::{Line, Reader, Record};
use paceline::sim::scenario::{Crash, Rack, RingModel, Size};
use paceline::{Job, PrepareOptions, Prepared, RunResult, Scenario, Task, recipes, simulate};
use paceline_watch::Timeline;

fn prepare(strategy: &str, workers: u32) -> Prepared {
    let job = Job { strategy: strategy.into(), epochs: 5.0, ..Job::default() };
    job.prepare(workers).expect("the job is sound")
}

/// Whole rounds only: a last round with fewer samples for some is no equal start.
fn run(strategy: &str, scenario: &Scenario) -> RunResult {
    let model = Arc::new(Quadratic { curvature: vec![0.5; 1000], noise: 0.1 });
    let len = 16 * 32 * u64::from(scenario.workers);
    let task = Task { model, train: Arc::new(Noise { len }), test: Arc::new(Noise { len: 1 }) };
    let (strategy, learning_rate) = (strategy.to_owned(), Some(0.01));
    let job = Job { strategy, learning_rate, epochs: 1.0, ..Job::default() };
    let prepared = job
        .prepare_with(PrepareOptions { task: Some(task), ..PrepareOptions::new(scenario.workers) })
        .expect("it is sound");
    simulate(&prepared, scenario, 1, vec![]).expect("the run ends").result
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

/// Shared links need messages: two racks whose uplink all rings cross take longer than the ring alone.
#[test]
fn a_slow_rack_slows_the_ring_that_leaves_it() {
    let mut scenario = Scenario { workers: 4, ..Scenario::default() };
    let alone = run("ssgd", &scenario).seconds();
    let rack = Rack { workers: vec![0, 1], bytes_per_second: 1e5, latency: 0.0 };
    scenario.network.racks = vec![rack];
    assert!(run("ssgd", &scenario).seconds() > 2.0 * alone);
}

#[test]
fn a_run_that_cannot_go_on_says_why() {
    let mut scenario = Scenario { workers: 2, ..Scenario::default() };
    let crash = |worker, at| Crash { worker, at, back_after: None };
    scenario.crashes = vec![crash(0, 0.005), crash(1, 0.006)];
    for recipe in recipes() {
        let stuck = simulate(&prepare(&recipe.name, 2), &scenario, 1, vec![]).err();
        let sentence = "nothing can happen any more: no worker is left";
        let stuck = stuck.expect("no worker is left");
        assert_eq!((stuck.is_usage(), stuck.to_string().as_str()), (false, sentence));
    }
}

/// Four workers, the last at half the speed, and an exchange as long as a batch.
fn uneven() -> Scenario {
    let mut scenario = Scenario { workers: 4, ..Scenario::default() };
    scenario.compute.relative = vec![1.0, 1.0, 1.0, 2.0];
    scenario.compute.seconds_per_gradient = 0.0;
    scenario.network.bytes_per_second = 9e6;
    scenario
}

fn picture(strategy: &str) -> String {
    let mut timeline = Timeline::default();
    let prepared = prepare(strategy, 4);
    simulate(&prepared, &uneven(), 1, vec![&mut timeline]).expect("the run ends");
    let until = std::time::Duration::from_millis(24);
    timeline.text(72, 8, Some(until)).lines().take(4).map(|line| format!("{line}\n")).collect()
}

#[test]
fn all_reduce_waits_for_the_slowest_and_for_the_wires() {
    let expected = "
   0 #####...........#####...........#####..........+#####..........+####+...
   1 #####...........#####+..........#####...........#####..........+#####...
   2 #####..........+####+..........#####+..........#####...........#####....
   3 ##########.....+#########+.....+#########+.....##########+.....#########
";
    assert_eq!(format!("\n{}", picture("ssgd")), expected, "\n{}", picture("ssgd"));
}

#[test]
fn abs_sgd_waits_for_nobody() {
    let expected = "
   0 ########################################################################
   1 ########################################################################
   2 ########################################################################
   3 ########################################################################
";
    assert_eq!(format!("\n{}", picture("abs")), expected, "\n{}", picture("abs"));
}

#[test]
fn a_job_whose_workers_are_all_lost_starts_over_and_says_what_that_cost() {
    for recipe in recipes() {
        let mut scenario = Scenario { workers: 2, ..Scenario::default() };
        let prepared = prepare(&recipe.name, 2);
        let calm = simulate(&prepared, &scenario, 1, vec![]).expect("the run ends").result;
        let at = 0.9 * calm.seconds();
        scenario.crashes =
            (0..2).map(|worker| Crash { worker, at, back_after: Some(0.1) }).collect();

        let outcome = simulate(&prepared, &scenario, 1, vec![]).expect("the run ends").result;

        let (name, total) = (&recipe.name, prepared.plan.samples_total);
        let ledger = outcome.ledger;
        assert_eq!((ledger.done, ledger.lost, ledger.repeated), (total, 0, 0), "{name}");
        assert!(outcome.samples_wasted > total / 2, "{name}: {}", outcome.samples_wasted);
        let apart = (outcome.loss - calm.loss).abs();
        assert!(apart < 0.25, "{name}: loss {} in calm, {}", calm.loss, outcome.loss);
    }
}

#[test]
fn numbers_that_no_cluster_has_are_refused() {
    type Change = fn(&mut Scenario);
    let set: [(&str, Change); 8] = [
        ("seconds_per_sample", |s| s.compute.seconds_per_sample = 1e300),
        ("relative", |s| s.compute.relative = vec![1e200]),
        ("network.bytes_per_second", |s| s.network.bytes_per_second = 1e-300),
        ("patience", |s| s.coordinator.patience = f64::INFINITY),
        ("latency", |s| s.network.latency = f64::NAN),
        ("jitter_every", |s| s.compute.jitter_every = 1e-12),
        ("workers", |s| s.workers = 2_000_000),
        ("relative", |s| s.compute.relative = vec![-1.0]),
    ];
    for (field, change) in set {
        let mut scenario = Scenario::default();
        change(&mut scenario);
        let sentence = scenario.check().expect_err(field);
        assert!(sentence.contains(field) && sentence.contains("give"), "{sentence}");
    }
}

/// Elastic runs are told in epochs: however fast a recipe is, each size meets the same samples.
#[test]
fn sizes_may_come_with_epochs() {
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

        simulate(&prepared, &scenario, 1, vec![&mut sizes]).expect("the run ends");

        let when = |members| sizes.0.iter().rfind(|(len, _)| *len == members).map(|(_, at)| *at);
        for (members, from) in [(6, epoch), (3, 3 * epoch)] {
            let at = when(members).expect("the size is reached");
            assert!(at.abs_diff(from) < epoch / 2, "{strategy}: {members} from {at}, not {from}");
        }
    }
}
