//! Replicas that live with hosts: the same strategies drive them, and end with the bits of the engine's own replicas. What a
//! living host has computed is never computed again.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use paceline::learn::OptimizerState;
use paceline::runtime::edge::{Answer, Ask, Workspace};
use paceline::runtime::journal::fingerprint;
use paceline::runtime::{Replay, Spans};
use paceline::sim::scenario::{Crash, Join, Leave, Pause};
use paceline::{
    HostLine, Job, Line, Prepared, Reader, Record, Scenario, SimulateOptions, TrainOptions, Vector,
    WorkerId, scenarios, simulate, simulate_hosted, train_hosted,
};

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

/// What all hosts of a run have done.
#[derive(Default)]
struct Seen {
    /// The workers that computed each position, in order.
    computed: BTreeMap<u64, Vec<WorkerId>>,
    /// The replica that each host held in the end.
    replicas: BTreeMap<WorkerId, u64>,
    exports: u64,
    /// How often what `peek` had shown was asked for next, and how often it was not.
    foreseen: (u64, u64),
}

/// Says how long a worker takes for this many samples; it may sleep.
type Took = fn(WorkerId, u64) -> Duration;

fn at_once(_: WorkerId, _: u64) -> Duration {
    Duration::from_micros(100)
}

/// A host with parameters, an optimizer and data of its own. Its parameters are not the job's until it is given them.
fn host(prepared: &Prepared, seen: &Arc<Mutex<Seen>>, took: Took) -> impl Fn(HostLine) + use<> {
    let (plan, compute) = (prepared.plan.clone(), prepared.task.compute(prepared.plan.seed));
    let seen = seen.clone();
    move |mut line: HostLine| {
        let who = line.worker;
        let (mut params, mut state) = (Arc::new(Vector::new()), OptimizerState::default());
        let (mut workspace, mut ahead) = (Workspace::default(), Spans::new());
        while let Some(ask) = line.next() {
            match ask {
                Ask::Compute { spans, .. } => {
                    let gradient = compute(&params, &spans, &mut workspace);
                    let mut seen = seen.lock().expect("no host panics");
                    for at in spans.positions() {
                        seen.computed.entry(at).or_default().push(who);
                    }
                    if !ahead.is_empty() {
                        let is_next = ahead.positions().zip(spans.positions()).all(|(a, b)| a == b);
                        seen.foreseen.0 += u64::from(is_next);
                        seen.foreseen.1 += u64::from(!is_next);
                    }
                    drop(seen);
                    ahead = line.peek(2);
                    line.computed(gradient, took(who, spans.len()));
                }
                Ask::Apply { along, rate, .. } => {
                    let params = Arc::make_mut(&mut params);
                    let gradient = along.gradient();
                    plan.optimizer.descend(params, &mut state, gradient, rate, &plan.layout);
                    line.done(Answer::Done);
                }
                Ask::Export => {
                    seen.lock().expect("no host panics").exports += 1;
                    line.done(Answer::Params(params.clone()));
                }
                Ask::Load { params: given, optimizer } => {
                    params = given;
                    if let Some(bytes) = optimizer {
                        state = unpack(&bytes, plan.layout.params);
                    }
                    line.done(Answer::Done);
                }
                Ask::Keep => line.done(Answer::Optimizer(Arc::new(pack(&state)))),
            }
        }
        seen.lock().expect("no host panics").replicas.insert(who, fingerprint(&params));
    }
}

/// The momentum of SGD does not depend on the number of steps.
fn pack(state: &OptimizerState) -> Vec<u8> {
    state.slots.iter().flatten().flat_map(|x| x.to_le_bytes()).collect()
}

fn unpack(bytes: &[u8], len: usize) -> OptimizerState {
    let numbers = bytes.as_chunks().0.iter().map(|x| f32::from_le_bytes(*x));
    let slots = numbers.collect::<Vector>().chunks(len).map(<[f32]>::to_vec).collect();
    OptimizerState { slots, ..OptimizerState::default() }
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
        let prepared =
            if prepared.reads_clock() { prepared.replaying(recorder.0) } else { prepared };
        let own = simulate(&prepared, &uneven(), SimulateOptions::default()).expect("it ends");
        assert_eq!(own.params, trained.params, "{name}");
    }
}

#[test]
fn no_living_host_computes_a_sample_twice_through_kills_on_threads() {
    for name in ["ssgd", "dbs", "abs", "adpsgd", "gossip-pull", "easgd", "async"] {
        let prepared = job(name, 4);
        let seen = Arc::<Mutex<Seen>>::default();
        let mut deaths = Deaths::default();
        let slowly: Took = |_, _| {
            std::thread::sleep(Duration::from_millis(2));
            Duration::from_millis(2)
        };
        let mut faults = Scenario { workers: 4, ..Scenario::default() };
        let crash = |worker, at| Crash { worker, at, at_event: None, back_after: Some(0.02) };
        faults.crashes = vec![crash(1, 0.03), crash(2, 0.06)];

        let readers: Vec<&mut dyn Reader> = vec![&mut deaths];
        let options = TrainOptions { faults: Some(faults), readers, ..TrainOptions::default() };
        let trained = train_hosted(&prepared, options, host(&prepared, &seen, slowly));

        let ledger = trained.expect("training ends").result.ledger;
        let expected = (prepared.plan.samples_total, 0, 0);
        assert_eq!((ledger.done, ledger.lost, ledger.repeated), expected, "{name}");
        assert_eq!(deaths.0, [WorkerId(1), WorkerId(2)].into(), "{name}");
        let seen = seen.lock().expect("no host panicked");
        assert_no_work_is_repeated(name, &prepared, &seen, &deaths);
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
    for (name, seldom_wrong) in [("ssgd", false), ("abs", false), ("adpsgd", false), ("dbs", true)]
    {
        let prepared = job(name, 4);
        let seen = Arc::<Mutex<Seen>>::default();

        let options = SimulateOptions::default();
        simulate_hosted(&prepared, &uneven(), options, host(&prepared, &seen, at_once))
            .expect("it ends");

        let (foreseen, not) = seen.lock().expect("no host panicked").foreseen;
        assert!(foreseen > 50, "{name}: {foreseen}");
        // DBS changes the shares once in an epoch.
        assert!(not == 0 || (seldom_wrong && not <= 4), "{name}: {not}");
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
