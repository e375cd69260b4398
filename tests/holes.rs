//! Ways in which a training could be lost without a word, each as it was found, and each closed.

use std::collections::{BTreeMap, VecDeque};
use std::num::NonZero;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use paceline::runtime::edge::{Action, Cluster, ClusterOutput, Event, News};
use paceline::runtime::wire::{Published, Shelf};
use paceline::runtime::{Executor, SampleTally, SavePlan, Spans, Ticket, train};
use paceline::sim::checkers::{Custody, GradientsOnce, ReplicasAgree};
use paceline::sim::scenario::{Crash, Cut, DeadLink, Direction, Join, Kill, Leave, Link, Pause};
use paceline::sim::{SimCluster, SimConfig};
use paceline::{
    Coordination, Dice, Error, Interrupt, Job, Line, PrepareOptions, Prepared, Reader, Recipe,
    Record, RunResult, Scenario, Share, SimulateOptions, Strategy, Worker, WorkerId, recipes,
    scenarios, simulate,
};
use serde::{Deserialize, Serialize};

#[derive(Default)]
struct Seen {
    started_over: u32,
    put_out: u32,
    restarted: u32,
    views: BTreeMap<u64, Vec<WorkerId>>,
    /// When samples were applied.
    applied: Vec<Duration>,
    over: Duration,
}

impl Reader for Seen {
    fn read(&mut self, line: &Line) {
        match &line.record {
            Record::StartedOver => self.started_over += 1,
            Record::PutOut { .. } => self.put_out += 1,
            Record::Restarted => self.restarted += 1,
            Record::View { number, members, .. } => {
                let known = self.views.insert(*number, members.clone());
                assert_eq!(known, None, "there is one view of a number");
            }
            Record::Applied { .. } => self.applied.push(line.at),
            Record::Over => self.over = line.at,
            _ => {}
        }
    }
}

fn run(strategy: &str, epochs: f64, scenario: &Scenario) -> Result<(RunResult, Seen), Error> {
    let job = Job { strategy: strategy.into(), epochs, ..Job::default() };
    let mut prepared = job.prepare(scenario.workers).expect("the job is valid");
    prepared.plan.fingerprints = true;
    run_prepared(&prepared, scenario)
}

fn run_prepared(prepared: &Prepared, scenario: &Scenario) -> Result<(RunResult, Seen), Error> {
    let (mut seen, mut agree) = (Seen::default(), ReplicasAgree::default());
    let (mut custody, mut once) = (Custody::default(), GradientsOnce::default());
    let readers: Vec<&mut dyn Reader> = vec![&mut seen, &mut agree, &mut custody, &mut once];
    let options = SimulateOptions { readers, ..SimulateOptions::default() };
    let result = simulate(prepared, scenario, options)?.result;
    let violations = [agree.violations, custody.violations, once.violations].concat();
    assert_eq!(violations, Vec::<String>::new(), "{}", prepared.name);
    let (ledger, strategy) = (result.ledger, &prepared.name);
    let total = prepared.plan.samples_total;
    assert_eq!((ledger.done, ledger.lost, ledger.repeated), (total, 0, 0), "{strategy}");
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

/// A small job: its runs have few events, and a fault can be tried at many of them.
fn small(strategy: &str, workers: u32) -> (Prepared, Scenario) {
    let job = Job {
        strategy: strategy.into(),
        data: "blobs".into(),
        model: "softmax".into(),
        samples: Some(200),
        batch: Some(4),
        epochs: 2.0,
        ..Job::default()
    };
    let mut prepared = job.prepare(workers).expect("the job is valid");
    prepared.plan.fingerprints = true;
    let mut scenario = Scenario { workers, ..Scenario::default() };
    scenario.coordinator.patience = 0.05;
    (prepared, scenario)
}

const KINDS: [&str; 7] = ["ssgd", "abs", "adpsgd", "gossip-pull", "gossip-push", "easgd", "async"];

/// A worker that says goodbye may be killed, or stopped, before all that it owes has arrived. The first
/// member also hands over the center.
#[test]
fn a_leaver_that_dies_or_hangs_on_its_way_out_stops_nobody() {
    for strategy in KINDS {
        for worker in [0, 2] {
            let (prepared, mut scenario) = small(strategy, 3);
            let at = 0.4 * run_prepared(&prepared, &scenario).expect("it ends").0.seconds();
            scenario.leaves = vec![Leave { worker, at }];
            for after in (0..20).map(|step| 1e-4 * f64::from(step)) {
                scenario.pauses.clear();
                let at = at + after;
                scenario.crashes = vec![Crash { worker, at, at_event: None, back_after: None }];
                let (_, seen) = run_prepared(&prepared, &scenario).expect("the run ends");
                assert_eq!(seen.started_over, 0, "{strategy}, {worker} dies after {after}");

                scenario.crashes.clear();
                scenario.pauses = vec![Pause { worker, from: at, to: at + 1.0 }];
                let (_, seen) = run_prepared(&prepared, &scenario).expect("the run ends");
                assert_eq!(seen.started_over, 0, "{strategy}, {worker} hangs after {after}");
                assert!(
                    seen.over.as_secs_f64() < 0.9 + at,
                    "{strategy}: nobody waits for {worker}"
                );
            }
        }
    }
}

/// What a server applied last is in nobody's copy, its last words are lost with it, and its successor dies as well.
#[test]
fn a_center_survives_two_servers_in_a_row() {
    for strategy in ["async", "ssp", "easgd"] {
        let (prepared, mut scenario) = small(strategy, 4);
        scenario.compute.relative = vec![1.0, 1.3, 1.7, 2.2];
        // Connections that may break carry numbered words, which a death loses.
        scenario.coordinator.loss = 1e-9;
        scenario.coordinator.detection = 1e-4;
        // A worker that hears of the death late still gets the dead server's last answer, when its successor has
        // read all copies.
        let slow = |worker| Link { worker, bytes_per_second: 1e8, latency: 5e-3 };
        scenario.network.links = vec![slow(0), slow(1)];
        scenario.coordinator.jitter = 0.01;
        let options = SimulateOptions::default();
        let calm = simulate(&prepared, &scenario, options).expect("the run ends");
        for event in (calm.events / 4..calm.events / 2).step_by(7) {
            for later in [10, 20, 30, 40, 60, 80] {
                let crash = |worker, event| Crash {
                    worker,
                    at: 0.0,
                    at_event: Some(event),
                    back_after: None,
                };
                scenario.crashes = vec![crash(0, event), crash(1, event + later)];
                let (_, seen) = run_prepared(&prepared, &scenario).expect("the run ends");
                assert_eq!(seen.started_over, 0, "{strategy}, {event} and {later} later");
            }
        }
    }
}

/// A plan that reached some members, and then the coordinator is gone: the others never hear of it.
#[test]
fn members_train_on_while_the_coordinator_that_told_some_of_a_plan_is_away() {
    for strategy in ["ssgd", "abs", "dbs", "cpsgd", "adpsgd", "diloco"] {
        let (prepared, mut scenario) = small(strategy, 4);
        let calm = run_prepared(&prepared, &scenario).expect("it ends").0.seconds();
        let join = 0.3 * calm;
        scenario.joins = vec![Join { at: join, workers: 1 }];
        scenario.coordinator.jitter = 2e-3;
        for after in (0..30).map(|step| 2e-4 * f64::from(step)) {
            let (at, back_after) = (join + after, 10.0);
            scenario.coordinator.kills = vec![Kill { at, back_after }];

            let (result, seen) = run_prepared(&prepared, &scenario).expect("the run ends");

            // A plan that all have heard of is boarded, and then the newcomer waits for `Go` with the others.
            let heard = seen.applied.iter().filter(|time| time.as_secs_f64() > at + 10.0).count();
            let before = seen.applied.len() - heard;
            assert_eq!((result.samples_wasted, seen.started_over), (0, 0), "{strategy}, {after}");
            assert!(heard == 0 || before > 0, "{strategy}, {after}: {heard} of {before}");
        }
    }
}

/// The newest whole snapshot outlives every replica.
#[test]
fn a_job_that_loses_every_replica_begins_again_from_its_newest_snapshot() {
    for strategy in ["ssgd", "abs", "dbs", "cpsgd", "adpsgd", "diloco"] {
        let (mut prepared, mut scenario) = small(strategy, 2);
        let (calm, _) = run_prepared(&prepared, &scenario).expect("the run ends");
        prepared.plan.saves = Some(SavePlan { every_rounds: NonZero::new(2) });
        let at = 0.8 * calm.seconds();
        let crash = |worker| Crash { worker, at, at_event: None, back_after: Some(0.01) };
        scenario.crashes = vec![crash(0), crash(1)];

        let (result, seen) = run_prepared(&prepared, &scenario).expect("the run ends");

        assert_eq!((seen.started_over, result.started_over), (1, 1), "{strategy}");
        let most = result.samples / 2;
        assert!(result.samples_wasted < most, "{strategy}: {} wasted", result.samples_wasted);
        assert!(result.recovery.is_some_and(|recovery| recovery.losses == 2), "{strategy}");
    }
}

/// MIN and MAX: too many workers wait for a place, and too few members wait for more.
#[test]
fn members_are_never_more_than_wanted_and_wait_when_they_are_too_few() {
    for strategy in KINDS {
        let (prepared, mut scenario) = small(strategy, 5);
        (scenario.coordinator.members_min, scenario.coordinator.members_max) = (Some(2), Some(3));
        let (calm, seen) = run_prepared(&prepared, &scenario).expect("the run ends");
        assert!(seen.views.values().all(|members| members.len() == 3), "{strategy}");

        let at = 0.4 * calm.seconds();
        let crash = |worker| Crash { worker, at, at_event: None, back_after: None };
        // Three die, two that waited take their places; then one of those dies, and one is too few.
        scenario.crashes = vec![crash(0), crash(1)];
        let third = at + 0.2;
        let late = |worker| Crash { worker, at: third, at_event: None, back_after: None };
        scenario.compute.seconds_per_sample = 5e-3;
        scenario.crashes.extend([late(2), late(3)]);
        scenario.joins = vec![Join { at: 5.0, workers: 1 }];

        let (_, seen) = run_prepared(&prepared, &scenario).expect("the run ends");

        let members: Vec<usize> = seen.views.values().map(Vec::len).collect();
        assert!(members.iter().all(|count| *count <= 3), "{strategy}: {members:?}");
        assert!(members.contains(&1), "{strategy}: {members:?}");
        let waits = |time: &&Duration| (third + 0.3..5.0).contains(&time.as_secs_f64());
        assert_eq!(
            seen.applied.iter().filter(waits).count(),
            0,
            "{strategy}: one waits for another"
        );
        assert!(seen.over.as_secs_f64() > 5.0, "{strategy}");
    }
}

/// A synchronous strategy with a mistake: from the fifth round on one member's replica is another one.
#[derive(Clone, Serialize, Deserialize)]
struct Drifts {
    batch: u64,
}

impl Strategy for Drifts {
    async fn round(&mut self, worker: &mut Worker) -> Result<(), Interrupt> {
        let shares = vec![self.batch; worker.members().len()];
        let mine = worker.gradient(Share::ByRank(shares)).await;
        let total = worker.sum(mine).await?;
        worker.descend(&total).await;
        if worker.rank() == 1 && worker.round() == 5 {
            worker.change_params(|params| params[0] += 1.0).await;
        }
        Ok(())
    }

    fn coordination(&self) -> Coordination {
        Coordination::Synchronous
    }

    fn nominal_batch(&self, members: usize) -> f64 {
        (self.batch * members as u64) as f64
    }
}

/// Members that differ, for whatever reason, do not go on adding up their gradients.
#[test]
fn members_that_hold_different_replicas_end_the_job_with_a_message() {
    let recipe = Recipe::own("drifts", "one member errs", 0.05, |batch, _| Drifts { batch });
    let job = Job { strategy: recipe.name.clone(), ..Job::default() };
    let options = PrepareOptions { recipes: &[recipe], ..PrepareOptions::new(3) };
    let prepared = job.prepare_with(options).expect("the job is valid");
    let scenario = Scenario { workers: 3, ..Scenario::default() };

    let ended = simulate(&prepared, &scenario, SimulateOptions::default());

    let message = ended.map(|_| ()).expect_err("the members disagree").to_string();
    assert!(message.contains("worker 1"), "{message}");
}

/// The lines of each worker reach a journal in their order, and the coordinator's between them; the lines of different
/// workers may overtake each other.
#[test]
fn the_tally_is_the_same_in_whatever_order_the_workers_lines_arrive() {
    let is_coordinators =
        |line: &Line| line.record.worker().is_none() || matches!(line.record, Record::Freed { .. });
    for strategy in KINDS {
        let (prepared, mut scenario) = small(strategy, 4);
        let end = run_prepared(&prepared, &scenario).expect("the run ends").0.seconds();
        let crash = |worker, part: f64| Crash {
            worker,
            at: part * end,
            at_event: None,
            back_after: Some(0.01),
        };
        scenario.crashes = vec![crash(0, 0.3), crash(2, 0.6)];
        let mut lines = Lines(vec![]);
        let options = SimulateOptions { readers: vec![&mut lines], ..SimulateOptions::default() };
        simulate(&prepared, &scenario, options).expect("the run ends");
        let judge = |lines: &[Line]| {
            let mut tally = SampleTally::default();
            lines.iter().for_each(|line| _ = tally.read(line));
            (tally.verdict(false), tally.wasted())
        };
        let expected = judge(&lines.0);
        assert_eq!((expected.0.lost, expected.0.repeated), (0, 0), "{strategy}");
        for seed in 0..20 {
            let mut dice = Dice::keyed(&[seed, 13]);
            let mut shuffled: Vec<Line> = vec![];
            for part in lines.0.chunk_by(|a, b| is_coordinators(a) == is_coordinators(b)) {
                let mut streams: BTreeMap<Option<WorkerId>, VecDeque<Line>> = BTreeMap::new();
                for line in part {
                    let of = line.record.worker().filter(|_| !is_coordinators(line));
                    streams.entry(of).or_default().push_back(line.clone());
                }
                while !streams.is_empty() {
                    let at = dice.below(streams.len() as u64) as usize;
                    let stream = streams.iter_mut().nth(at).expect("it is one of them");
                    shuffled.extend(stream.1.pop_front());
                    streams.retain(|_, left| !left.is_empty());
                }
            }
            assert_eq!(judge(&shuffled), expected, "{strategy}, seed {seed}");
        }
    }
}

struct Lines(Vec<Line>);

impl Reader for Lines {
    fn read(&mut self, line: &Line) {
        self.0.push(line.clone());
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

/// A cluster in which worker 3 reads the center just before the first server is lost, and its copy appears only after the
/// second server has asked for copies: the second one finds an older copy, and the third one finds both.
struct LateCopy {
    cluster: SimCluster,
    /// Copies that worker 3 has published in the first reign.
    copies: Vec<Published>,
    /// Reads of copies that are under way, and the server that asked.
    reads: BTreeMap<(WorkerId, Ticket), WorkerId>,
}

impl LateCopy {
    /// What `server` finds on the shelf of `member`.
    fn found(
        &self,
        server: WorkerId,
        member: WorkerId,
        value: Option<Published>,
    ) -> Option<Published> {
        match server {
            WorkerId(1) => self.copies.get(self.copies.len() / 4).cloned(),
            WorkerId(2) if member == WorkerId(3) => self.copies.last().cloned(),
            _ => value,
        }
    }
}

impl Cluster for LateCopy {
    fn now(&self) -> Duration {
        self.cluster.now()
    }

    fn submit(&mut self, by: WorkerId, action: Action) {
        match &action {
            Action::Publish { shelf: Shelf::Copy, value }
                if by == WorkerId(3) && value.reign == 1 =>
            {
                self.copies.push(value.clone());
            }
            Action::Read { ticket, from, shelf: Shelf::Copy, .. } => {
                self.reads.insert((by, *ticket), *from);
            }
            _ => {}
        }
        self.cluster.submit(by, action);
    }

    fn next(&mut self) -> Option<Event> {
        let mut event = self.cluster.next()?;
        if let Event::For { to, news: News::Value { ticket, value } } = &mut event
            && let Some(member) = self.reads.remove(&(*to, *ticket))
        {
            *value = self.found(*to, member, value.take());
        }
        Some(event)
    }

    fn is_over(&self) -> bool {
        self.cluster.is_over()
    }

    fn emit(&mut self, output: ClusterOutput) {
        self.cluster.emit(output);
    }
}

/// The third server takes the newest copy of the second one's reign, and not the copy with the most updates, which the
/// second one has never seen.
#[test]
fn a_copy_of_an_older_reign_is_older_than_any_copy_of_a_newer_one() {
    let job = Job { strategy: "async".into(), epochs: 10.0, ..Job::default() };
    let scenario = Scenario { workers: 4, ..Scenario::default() };
    let prepared = job.prepare(4).expect("the job is valid");
    let calm =
        simulate(&prepared, &scenario, SimulateOptions::default()).expect("the run ends").result;
    let crash = |worker, part: f64| Crash {
        worker,
        at: part * calm.seconds(),
        at_event: None,
        back_after: None,
    };
    let scenario = Scenario { crashes: vec![crash(0, 0.5), crash(1, 0.7)], ..scenario };

    let plan = Arc::new(prepared.plan.clone());
    let config = SimConfig {
        seed: plan.seed,
        compute: prepared.task.compute(plan.seed),
        threads: 1,
        done: Spans::new(),
        samples_total: plan.samples_total,
        samples_per_epoch: plan.samples_per_epoch,
        coordination: Coordination::Centered { applies_samples: true },
    };
    let cluster = SimCluster::new(scenario, config);
    let outputs = cluster.outputs();
    let cluster = LateCopy { cluster, copies: vec![], reads: BTreeMap::new() };
    let start = |port| -> Pin<Box<dyn Future<Output = ()>>> {
        Box::pin(train(plan.clone(), port, prepared.strategy()))
    };
    Executor::new(Box::new(cluster)).run(&mut { start }).expect("the run ends");

    let mut applied: BTreeMap<WorkerId, u64> = BTreeMap::new();
    let mut restored = vec![];
    for output in outputs.borrow_mut().drain(..) {
        match output {
            ClusterOutput::Line(Line { record: Record::Applied { who, version, .. }, .. }) => {
                applied.insert(who, version);
            }
            ClusterOutput::Line(Line { record: Record::Restored { version, .. }, .. }) => {
                restored.push(version);
            }
            _ => {}
        }
    }
    let first_reign = applied[&WorkerId(0)];
    let &[second, third] = &restored[..] else { panic!("two servers were lost: {restored:?}") };
    assert!(second < third && third < first_reign, "{second} < {third} < {first_reign}");
}
