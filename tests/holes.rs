//! Ways in which a training could be lost without a word, each as it was found, and each closed.

use paceline::sim::checkers::{Custody, GradientsOnce};
use paceline::sim::scenario::{Crash, Cut, DeadLink, Direction, Join, Kill, Leave, Pause};
use paceline::{
    Error, Job, Line, Reader, Record, RunResult, Scenario, SimulateOptions, recipes, scenarios,
    simulate,
};

#[derive(Default)]
struct Seen {
    started_over: u32,
    put_out: u32,
    restarted: u32,
}

impl Reader for Seen {
    fn read(&mut self, line: &Line) {
        match line.record {
            Record::StartedOver => self.started_over += 1,
            Record::PutOut { .. } => self.put_out += 1,
            Record::Restarted => self.restarted += 1,
            _ => {}
        }
    }
}

fn run(strategy: &str, epochs: f64, scenario: &Scenario) -> Result<(RunResult, Seen), Error> {
    let job = Job { strategy: strategy.into(), epochs, ..Job::default() };
    let mut prepared = job.prepare(scenario.workers).expect("the job is valid");
    prepared.plan.fingerprints = true;
    let (mut seen, mut custody) = (Seen::default(), Custody::default());
    let mut once = GradientsOnce::default();
    let readers: Vec<&mut dyn Reader> = vec![&mut seen, &mut custody, &mut once];
    let options = SimulateOptions { readers, ..SimulateOptions::default() };
    let result = simulate(&prepared, scenario, options)?.result;
    let ledger = result.ledger;
    let total = prepared.plan.samples_total;
    assert_eq!((ledger.done, ledger.lost, ledger.repeated), (total, 0, 0), "{strategy}");
    let violations = [custody.violations, once.violations].concat();
    assert!(violations.is_empty(), "{strategy}: {violations:?}");
    Ok((result, seen))
}

/// A newcomer that has adopted nothing is left alone: it must not go on from the initial parameters while the samples of
/// the worker that died count as done.
#[test]
fn a_newcomer_that_finds_nobody_to_adopt_from_does_not_pretend_to_have_learned() {
    for strategy in ["gossip-pull", "gossip-push", "easgd", "async", "ssgd", "cpsgd"] {
        let mut scenario = Scenario { workers: 1, ..Scenario::default() };
        scenario.network.latency = 1e-3;
        scenario.network.bytes_per_second = 1e7;
        let (calm, _) = run(strategy, 10.0, &scenario).expect("the run ends");
        let join = 0.97 * calm.seconds();
        scenario.joins = vec![Join { at: join, workers: 1 }];
        let mut began_anew = 0;
        for delay in [0.5e-3, 1.5e-3, 2.5e-3, 3.5e-3, 5e-3] {
            let at = join + delay;
            scenario.crashes = vec![Crash { worker: 0, at, at_event: None, back_after: None }];

            let (result, seen) = run(strategy, 10.0, &scenario).expect("the run ends");

            let fall = calm.accuracy - result.accuracy;
            assert!(fall < 0.05, "{strategy}, {delay}: {} and {}", calm.accuracy, result.accuracy);
            assert_eq!(seen.started_over > 0, result.samples_wasted > result.samples / 2);
            began_anew += seen.started_over;
        }
        assert!(
            began_anew > 0,
            "{strategy}: one of these crashes leaves nobody that holds anything"
        );
    }
}

/// A coordinator that hears nobody suspects itself first.
#[test]
fn a_coordinator_that_loses_sight_of_everybody_throws_nothing_away() {
    for strategy in ["ssgd", "abs", "gossip-pull"] {
        let mut scenario = Scenario { workers: 4, ..Scenario::default() };
        scenario.coordinator.patience = 0.1;
        let workers = vec![0, 1, 2, 3];
        let (coordinator, direction) = (true, Direction::Both);
        scenario.cuts = vec![Cut { workers, from: 0.1, to: 0.3, coordinator, direction }];

        let (result, seen) = run(strategy, 5.0, &scenario).expect("the run ends");

        assert_eq!(
            (result.samples_wasted, seen.started_over, seen.put_out),
            (0, 0, 0),
            "{strategy}"
        );
    }
}

#[test]
fn a_worker_that_was_put_out_is_told_so_and_comes_back() {
    for strategy in ["ssgd", "abs", "adpsgd", "gossip-pull", "async", "easgd"] {
        let mut scenario = Scenario { workers: 4, ..Scenario::default() };
        scenario.coordinator.patience = 0.02;
        scenario.pauses = vec![Pause { worker: 2, from: 0.05, to: 0.12 }];

        let (_, seen) = run(strategy, 5.0, &scenario).expect("the run ends");

        assert_eq!((seen.put_out, seen.started_over), (1, 0), "{strategy}");
    }
}

#[test]
fn a_dead_link_between_two_members_stops_nobody_for_long() {
    for strategy in ["ssgd", "abs", "adpsgd", "gossip-pull", "async"] {
        let mut scenario = Scenario { workers: 4, ..Scenario::default() };
        scenario.coordinator.patience = 0.02;
        scenario.dead_links = vec![DeadLink { between: (1, 2), from: 0.03, to: 1e6 }];

        let (result, seen) = run(strategy, 5.0, &scenario).expect("the run ends");

        assert!(
            result.seconds() < 5.0 && seen.started_over == 0,
            "{strategy}: {}",
            result.seconds()
        );
    }
}

/// Killed at any moment, the coordinator goes on from its log.
#[test]
fn a_coordinator_that_is_killed_loses_repeats_and_forgets_nothing() {
    for recipe in recipes() {
        let mut scenario = Scenario { workers: 3, ..Scenario::default() };
        scenario.coordinator.patience = 0.05;
        scenario.joins = vec![Join { at: 0.06, workers: 1 }];
        scenario.leaves = vec![Leave { worker: 1, at: 0.11 }];
        for at in [0.0, 0.061, 0.0625, 0.1115, 0.15, 0.2] {
            scenario.coordinator.kills = vec![Kill { at, back_after: 0.01 }];

            let (result, seen) = run(&recipe.name, 2.0, &scenario).expect("the run ends");

            let wasted = result.samples_wasted;
            assert_eq!((wasted, seen.started_over), (0, 0), "{} killed at {at}", recipe.name);
            assert_eq!(seen.restarted, u32::from(result.seconds() > at), "{}", recipe.name);
        }
    }
}

#[test]
fn workers_that_live_shorter_than_a_round_end_the_job_with_a_message() {
    let mut scenario = Scenario { workers: 2, ..Scenario::default() };
    scenario.compute.seconds_per_sample = 1e-2;
    // Both die again and again, and come back under new ids.
    scenario.crashes = (0..200)
        .map(|worker| {
            let at = 0.05 * f64::from(worker / 2 + 1);
            Crash { worker, at, at_event: None, back_after: Some(0.001) }
        })
        .collect();

    let failure = run("ssgd", 5.0, &scenario).map(|_| ()).expect_err("no round can end");

    let message = failure.to_string();
    assert!(message.contains("every replica was lost 21 times"), "{message}");
}

#[test]
fn faults_of_workers_that_can_never_be_are_refused() {
    let crash = |worker| Crash { worker, at: 1.0, at_event: None, back_after: None };
    let mut scenario = Scenario { workers: 4, crashes: vec![crash(99)], ..Scenario::default() };
    let message = scenario.check().expect_err("there is no worker 99").to_string();
    assert_eq!(message, "crash.worker = 99: there is no such worker, their ids are 0 to 3");
    scenario.crashes = vec![crash(3)];
    assert_eq!(scenario.check(), Ok(()));
}

/// Everything at once, for every recipe.
#[test]
fn every_recipe_survives_the_hostile_cluster() {
    let scenario = scenarios::named("hostile").expect("it is built in");
    for recipe in recipes() {
        let (result, seen) = run(&recipe.name, 3.0, &scenario).expect("the run ends");
        assert!(result.accuracy > 0.5, "{}: {}", recipe.name, result.accuracy);
        assert_eq!(seen.started_over, 0, "{}", recipe.name);
    }
}
