//! Replicas that live with hosts: the same strategies drive them, and end with the bits of the engine's own replicas. What a
//! living host has computed is never computed again.

mod host;
mod joined;
mod saved;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use paceline::runtime::Replay;
use paceline::runtime::journal::fingerprint;
use paceline::sim::checkers::GradientsOnce;
use paceline::sim::scenario::{Crash, Join, Leave, Pause};
use paceline::{
    HostLine, Job, Line, Prepared, Reader, Record, Scenario, SimulateOptions, TrainOptions,
    WorkerId, scenarios, simulate, simulate_hosted, train_hosted,
};

use host::{Seen, Took, at_once, host};

const RECIPES: [&str; 11] = [
    "ssgd",
    "qsgd",
    "dbs",
    "pipe",
    "abs",
    "adpsgd",
    "diloco",
    "gossip-pull",
    "gossip-push",
    "easgd",
    "async",
];

fn job(strategy: &str, workers: u32) -> Prepared {
    let job =
        Job { strategy: strategy.into(), epochs: 2.0, seed: 5, batch: Some(8), ..Job::default() };
    job.prepare(workers).expect("the job is valid")
}

fn uneven() -> Scenario {
    let mut scenario = Scenario { workers: 4, ..Scenario::default() };
    scenario.compute.relative = vec![1.0, 2.5, 1.0, 4.0];
    scenario.compute.jitter = 0.5;
    scenario
}

/// Members are lost, leave and join; the first one, which keeps centers, stays.
fn unsteady() -> Scenario {
    let crash = |worker, at| Crash { worker, at, at_event: None, back_after: Some(0.02) };
    Scenario {
        crashes: vec![crash(1, 0.03), crash(2, 0.05), crash(5, 0.09)],
        leaves: vec![Leave { worker: 3, at: 0.06 }],
        joins: vec![Join { at: 0.02, workers: 1 }],
        ..uneven()
    }
}

/// The workers that have died.
#[derive(Default)]
struct Deaths(BTreeSet<WorkerId>);

impl Reader for Deaths {
    fn read(&mut self, line: &Line) {
        if let Record::Crashed { who } | Record::PutOut { who } = line.record {
            self.0.insert(who);
        }
    }
}

/// Every position was computed, and at most once by a worker that lives. (A dead worker's host may compute it last: it does not
/// hear of the death before it has answered.)
fn assert_no_work_is_repeated(name: &str, prepared: &Prepared, seen: &Seen, deaths: &Deaths) {
    let positions = seen.computed.keys().copied().collect::<Vec<u64>>();
    assert!(positions.into_iter().eq(0..prepared.plan.samples_total), "{name}");
    for (position, by) in &seen.computed {
        let living = by.iter().filter(|who| !deaths.0.contains(who)).count();
        let is_once = living <= 1 && by.iter().collect::<BTreeSet<_>>().len() == by.len();
        assert!(is_once, "{name}: {position} was computed by {by:?}, dead: {:?}", deaths.0);
    }
}

#[test]
fn hosts_end_with_the_bits_of_the_engine_and_write_the_same_journal() {
    for (name, scenario) in
        RECIPES.into_iter().flat_map(|name| [(name, uneven()), (name, unsteady())])
    {
        let prepared = job(name, 4);
        let seen = Arc::<Mutex<Seen>>::default();
        let mut deaths = Deaths::default();

        let own = simulate(&prepared, &scenario, SimulateOptions::default()).expect("it ends");
        let options = SimulateOptions { readers: vec![&mut deaths], ..Default::default() };
        let host = host(&prepared, &seen, at_once);
        let hosted = simulate_hosted(&prepared, &scenario, options, host).expect("it ends");

        assert_eq!(own.params, hosted.params, "{name}");
        assert_eq!((own.replicas, own.center), (hosted.replicas.clone(), hosted.center), "{name}");
        assert_eq!(own.result.journal_hash, hosted.result.journal_hash, "{name}");
        let ledger = hosted.result.ledger;
        let expected = (prepared.plan.samples_total, 0, 0);
        assert_eq!((ledger.done, ledger.lost, ledger.repeated), expected, "{name}");
        assert_eq!(!deaths.0.is_empty(), !scenario.crashes.is_empty(), "{name}");
        let seen = seen.lock().expect("no host panicked");
        assert_no_work_is_repeated(name, &prepared, &seen, &deaths);
        for (who, replica) in &hosted.replicas {
            assert_eq!(seen.replicas[who], fingerprint(replica), "{name}, worker {who}");
        }
    }
}

/// Also where workers are cut off, put out and come back, where the coordinator is killed, and where servers are lost.
#[test]
fn hosts_write_the_journal_of_the_engine_on_hostile_clusters() {
    for (name, scenario) in RECIPES.into_iter().flat_map(|name| [(name, "hostile"), (name, "spot")])
    {
        let cluster = scenarios::named(scenario).expect("it is named");
        let prepared = job(name, cluster.workers);

        let own = simulate(&prepared, &cluster, SimulateOptions::default()).expect("it ends");
        let host = host(&prepared, &Arc::default(), at_once);
        let hosted = simulate_hosted(&prepared, &cluster, SimulateOptions::default(), host);

        let hosted = hosted.expect("it ends");
        assert_eq!(own.params, hosted.params, "{name}, {scenario}");
        assert_eq!(own.result.journal_hash, hosted.result.journal_hash, "{name}, {scenario}");
    }
}

/// The gradient is the only vector that crosses in every round.
#[test]
fn a_host_is_asked_for_its_replica_only_where_somebody_reads_it() {
    let prepared = job("ssgd", 4);
    let seen = Arc::<Mutex<Seen>>::default();

    let options = SimulateOptions::default();
    simulate_hosted(&prepared, &uneven(), options, host(&prepared, &seen, at_once))
        .expect("it ends");

    // Each of four workers at the end of two epochs.
    assert_eq!(seen.lock().expect("no host panicked").exports, 8);
}

/// Collects each worker's entry to the exchange of each round.
#[derive(Default)]
struct Recorder(Replay);

impl Reader for Recorder {
    fn read(&mut self, line: &Line) {
        if let Record::Entered { who, round, samples, compute, .. } = &line.record {
            self.0.entries.insert((*who, *round), (*samples, *compute));
        }
    }
}

/// What a host says it took counts, not how long its answer was waited for.
#[test]
fn hosts_on_threads_end_with_the_bits_of_the_engine() {
    for name in RECIPES {
        let prepared = job(name, 4);
        let seen = Arc::<Mutex<Seen>>::default();
        let mut recorder = Recorder::default();

        let options = TrainOptions { readers: vec![&mut recorder], ..TrainOptions::default() };
        let claimed: Took = |who, samples| Duration::from_micros(samples * u64::from(1 + who.0));
        let trained = train_hosted(&prepared, options, host(&prepared, &seen, claimed));
        let trained = trained.expect("training ends");

        let ledger = trained.result.ledger;
        let expected = (prepared.plan.samples_total, 0, 0);
        assert_eq!((ledger.done, ledger.lost, ledger.repeated), expected, "{name}");
        let seen = seen.lock().expect("no host panicked");
        assert_no_work_is_repeated(name, &prepared, &seen, &Deaths::default());
        for (who, replica) in &trained.replicas {
            assert_eq!(seen.replicas[who], fingerprint(replica), "{name}, worker {who}");
        }
        if ["gossip-pull", "gossip-push", "easgd", "async"].contains(&name) {
            // Who meets whom when is real.
            continue;
        }
        if name == "dbs" {
            let last = recorder.0.entries.keys().map(|(_, round)| *round).max().unwrap_or(0) - 1;
            let samples = |who| recorder.0.entries[&(WorkerId(who), last)].0;
            assert!(samples(0) > 2 * samples(3), "shares follow what hosts say");
        }
        let mut prepared =
            if prepared.reads_clock() { prepared.replaying(recorder.0) } else { prepared };
        // As for hosts on threads.
        prepared.plan.rounds_ahead = 2;
        let own = simulate(&prepared, &uneven(), SimulateOptions::default()).expect("it ends");
        assert_eq!(own.params, trained.params, "{name}");
    }
}

/// The samples that each worker was given gradients of, as the journal says.
#[derive(Default)]
struct Computed(BTreeMap<WorkerId, Vec<u64>>);

impl Reader for Computed {
    fn read(&mut self, line: &Line) {
        if let Record::Computed { who, spans: Some(spans), .. } = &line.record {
            self.0.entry(*who).or_default().extend(spans.positions());
        }
    }
}

/// What hosts count and what the journal says: a host computes exactly what its worker gets, and a gradient is computed again
/// only after the first one has died with its worker.
#[derive(Default)]
struct Count {
    deaths: Deaths,
    computed: Computed,
    once: GradientsOnce,
}

impl Count {
    fn readers(&mut self) -> Vec<&mut dyn Reader> {
        vec![&mut self.deaths, &mut self.computed, &mut self.once]
    }

    fn assert(&self, name: &str, prepared: &Prepared, seen: &Seen) {
        assert_eq!(self.once.violations, Vec::<String>::new(), "{name}");
        assert_no_work_is_repeated(name, prepared, seen, &self.deaths);
        let mut by_hosts: BTreeMap<WorkerId, Vec<u64>> = BTreeMap::new();
        for (position, who) in
            seen.computed.iter().flat_map(|(at, by)| by.iter().map(|who| (*at, *who)))
        {
            by_hosts.entry(who).or_default().push(position);
        }
        for (who, positions) in by_hosts {
            let mut given = self.computed.0.get(&who).cloned().unwrap_or_default();
            given.sort_unstable();
            if self.deaths.0.contains(&who) {
                // Its last gradient may have come too late.
                assert!(given.iter().all(|at| positions.contains(at)), "{name}, worker {who}");
            } else {
                assert_eq!(given, positions, "{name}, worker {who}");
            }
        }
    }
}

/// In the simulator members also join and leave.
#[test]
fn no_forward_pass_is_repeated_through_kills() {
    for name in RECIPES {
        let mut prepared = job(name, 4);
        prepared.plan.fingerprints = true;
        let expected = (prepared.plan.samples_total, 0, 0);

        let (seen, mut count) = (Arc::<Mutex<Seen>>::default(), Count::default());
        let options = SimulateOptions { readers: count.readers(), ..Default::default() };
        let host_of = |took: Took| host(&prepared, &seen, took);
        let simulated = simulate_hosted(&prepared, &unsteady(), options, host_of(at_once));

        let ledger = simulated.expect("it ends").result.ledger;
        assert_eq!((ledger.done, ledger.lost, ledger.repeated), expected, "{name}");
        assert!(count.deaths.0.len() >= 3, "{name}: {:?}", count.deaths.0);
        count.assert(name, &prepared, &seen.lock().expect("no host panicked"));

        let slowly: Took = |_, _| {
            std::thread::sleep(Duration::from_millis(2));
            Duration::from_millis(2)
        };
        let mut faults = Scenario { workers: 4, ..Scenario::default() };
        let crash = |worker, at| Crash { worker, at, at_event: None, back_after: Some(0.02) };
        faults.crashes = vec![crash(1, 0.03), crash(2, 0.06)];
        let (seen, mut count) = (Arc::<Mutex<Seen>>::default(), Count::default());
        let readers = count.readers();
        let options = TrainOptions { faults: Some(faults), readers, ..TrainOptions::default() };
        let trained = train_hosted(&prepared, options, host(&prepared, &seen, slowly));

        let ledger = trained.expect("training ends").result.ledger;
        assert_eq!((ledger.done, ledger.lost, ledger.repeated), expected, "{name}, threads");
        assert_eq!(count.deaths.0, [WorkerId(1), WorkerId(2)].into(), "{name}, threads");
        count.assert(
            &format!("{name}, threads"),
            &prepared,
            &seen.lock().expect("no host panicked"),
        );
    }
}

#[test]
fn a_slow_host_is_not_taken_for_a_dead_one() {
    let prepared = job("ssgd", 3);
    let seen = Arc::<Mutex<Seen>>::default();
    let mut deaths = Deaths::default();
    let slow: Took = |who, _| {
        static ONCE: std::sync::Once = std::sync::Once::new();
        if who == WorkerId(2) {
            ONCE.call_once(|| std::thread::sleep(Duration::from_millis(300)));
        }
        Duration::from_millis(1)
    };
    let mut faults = Scenario { workers: 3, ..Scenario::default() };
    faults.coordinator.patience = 0.03;
    // Far in the future: faults make the coordinator watch its workers.
    faults.pauses = vec![Pause { worker: 0, from: 1e4, to: 2e4 }];

    let readers: Vec<&mut dyn Reader> = vec![&mut deaths];
    let options = TrainOptions { faults: Some(faults), readers, ..TrainOptions::default() };
    let trained = train_hosted(&prepared, options, host(&prepared, &seen, slow)).expect("it ends");

    assert_eq!(deaths.0, BTreeSet::new());
    assert_eq!(trained.replicas.len(), 3);
}

#[test]
fn a_host_can_look_ahead_while_shares_stay_the_same() {
    let leased = ["gossip-pull", "gossip-push", "easgd", "async"];
    for name in ["ssgd", "abs", "adpsgd", "dbs"].into_iter().chain(leased) {
        let prepared = job(name, 4);
        let [simulated, threads] = [(); 2].map(|()| Arc::<Mutex<Seen>>::default());

        let options = SimulateOptions::default();
        simulate_hosted(&prepared, &uneven(), options, host(&prepared, &simulated, at_once))
            .expect("it ends");
        train_hosted(&prepared, TrainOptions::default(), host(&prepared, &threads, at_once))
            .expect("it ends");

        for seen in [simulated, threads] {
            let (foreseen, not) = seen.lock().expect("no host panicked").foreseen;
            assert!(foreseen > 50, "{name}: {foreseen}");
            // DBS changes the shares once in an epoch.
            assert!(not == 0 || (name == "dbs" && not <= 8), "{name}: {not}");
        }
    }
}

#[test]
fn a_host_that_panics_ends_the_run_with_a_message() {
    let prepared = job("ssgd", 3);
    let panics = |line: HostLine| {
        if line.worker == WorkerId(1) {
            panic!("as a host with a mistake does")
        }
        drop(line);
    };

    let simulated = simulate_hosted(&prepared, &uneven(), SimulateOptions::default(), panics);
    let trained = train_hosted(&prepared, TrainOptions::default(), panics);

    for ended in [simulated.map(|_| ()), trained.map(|_| ())] {
        let message = ended.expect_err("a host panicked").to_string();
        assert!(message.contains("the host of a worker panicked"), "{message}");
    }
}
