//! Training on real processes: the same bits as in the simulator and on threads, and every sample applied once while worker
//! processes are killed, stopped and asked to leave.

#![cfg(unix)]

use std::collections::BTreeMap;
use std::process::{Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};

use paceline::runtime::codec::Codec;
use paceline::runtime::journal::fingerprint;
use paceline::sim::checkers::{Custody, ReplicasAgree};
use paceline::strategies::parts::Period;
use paceline::{
    Choices, Job, Line, OnProcesses, Prepared, ProcessOptions, Reader, Record, Scenario,
    SimulateOptions, StrategyKind, TrainOptions, recipes, simulate, train_on_processes,
};

const PATIENCE: Duration = Duration::from_millis(500);

fn options() -> (ProcessOptions, Receiver<u32>) {
    let (started, pids) = mpsc::channel();
    let options = ProcessOptions {
        program: env!("CARGO_BIN_EXE_paceline").into(),
        arguments: vec!["worker".to_owned()],
        respawn: false,
        patience: PATIENCE,
        started: Some(started),
    };
    (options, pids)
}

/// How worker processes reach each other.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Memory {
    Shared,
    Links,
    /// One process uses only links, the others share memory among themselves.
    Mixed,
}

impl Memory {
    /// Runs workers with the environment that makes them do so.
    fn set(self, options: &mut ProcessOptions) {
        let worker = options.program.display().to_string();
        let off = "export PACELINE_SHARED_MEMORY=off";
        let first = {
            static COUNT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
            let count = COUNT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            let folder = std::path::Path::new(env!("CARGO_TARGET_TMPDIR"));
            folder.join(format!("first-{}-{count}", std::process::id())).display().to_string()
        };
        let setting = match self {
            Memory::Shared => String::new(),
            Memory::Links => format!("{off}; "),
            Memory::Mixed => format!("if mkdir '{first}' 2>/dev/null; then {off}; fi; "),
        };
        options.program = "/bin/sh".into();
        options.arguments = vec!["-c".to_owned(), format!("{setting}exec '{worker}' worker")];
    }
}

/// How many segments of shared memory a process has mapped whole: its own and those of its peers.
#[cfg(target_os = "linux")]
fn segments(pid: u32) -> usize {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
    let segments = maps.lines().filter(|line| line.contains("memfd:paceline"));
    let from_start = segments.filter(|line| line.split(' ').nth(2) == Some("00000000"));
    let inode = |line: &str| line.split_whitespace().nth(4).map(str::to_owned);
    from_start.filter_map(inode).collect::<std::collections::BTreeSet<String>>().len()
}

fn signal(name: &str, pid: u32) {
    let status = Command::new("kill").args([name, &pid.to_string()]).status();
    assert!(status.expect("kill can be run").success(), "process {pid} lives");
}

/// A job that takes about a second on three workers.
fn job(strategy: &str, epochs: f64) -> (Job, Prepared) {
    let job = Job {
        strategy: strategy.into(),
        data: "blobs".into(),
        model: "softmax".into(),
        epochs,
        ..Job::default()
    };
    let mut prepared = job.prepare(3).expect("the job is valid");
    prepared.plan.fingerprints = true;
    (job, prepared)
}

/// Does something to the worker processes when the run has gone this far.
struct Intervene<'a> {
    at: u64,
    samples: u64,
    act: Option<Box<dyn FnOnce() + 'a>>,
}

impl Reader for Intervene<'_> {
    fn read(&mut self, line: &Line) {
        if let Record::Applied { spans, .. } = &line.record {
            self.samples += spans.len();
        }
        if self.samples >= self.at
            && let Some(act) = self.act.take()
        {
            act();
        }
    }
}

/// What happened in a run.
#[derive(Default)]
struct Seen {
    put_out: usize,
    left: usize,
    settled_late: usize,
    views: Vec<usize>,
}

impl Reader for Seen {
    fn read(&mut self, line: &Line) {
        match &line.record {
            Record::PutOut { .. } => self.put_out += 1,
            Record::Left { .. } => self.left += 1,
            Record::Settled { adopted: Some(_), .. } => self.settled_late += 1,
            Record::View { members, .. } => self.views.push(members.len()),
            _ => {}
        }
    }
}

/// Runs a job, does something to its processes in the middle, and checks that nothing is lost or repeated.
fn run(job: &(Job, Prepared), respawn: bool, act: impl FnOnce(&[u32])) -> (OnProcesses, Seen) {
    run_with(job, Memory::Shared, respawn, act)
}

fn run_with(
    (job, prepared): &(Job, Prepared),
    memory: Memory,
    respawn: bool,
    act: impl FnOnce(&[u32]),
) -> (OnProcesses, Seen) {
    let (mut options, pids) = options();
    memory.set(&mut options);
    options.respawn = respawn;
    let (mut agree, mut custody) = (ReplicasAgree::default(), Custody::default());
    let mut seen = Seen::default();
    let act = move || act(&pids.try_iter().collect::<Vec<u32>>());
    let at = prepared.plan.samples_total / 3;
    let mut intervene = Intervene { at, samples: 0, act: Some(Box::new(act)) };
    let readers: Vec<&mut dyn Reader> = vec![&mut agree, &mut custody, &mut seen, &mut intervene];
    let train = TrainOptions {
        speeds: vec![1.0],
        pace: Some(Duration::from_micros(40)),
        readers,
        ..TrainOptions::default()
    };
    let trained = train_on_processes(job, prepared, train, options).expect("the job ends");
    let (ledger, total) = (trained.result.ledger, prepared.plan.samples_total);
    assert_eq!((ledger.done, ledger.lost, ledger.repeated), (total, 0, 0), "{}", prepared.name);
    assert_eq!((agree.violations, custody.violations), (vec![], vec![]), "{}", prepared.name);
    assert!(intervene.act.is_none(), "{}: something was done to it", prepared.name);
    (trained, seen)
}

#[test]
fn recipes_that_read_no_clock_end_with_the_same_bits_simulated_and_on_processes() {
    let names = ["ssgd", "qsgd", "dynamic", "pipe", "cpsgd", "adpsgd", "diloco"];
    let plain = |name: &str| Job { strategy: name.into(), epochs: 2.0, seed: 5, ..Job::default() };
    // A model that is long enough to be summed in chunks.
    let long = Job { model: "cnn".into(), samples: Some(640), epochs: 1.0, ..plain("ssgd") };
    for job in names.into_iter().map(plain).chain([long]) {
        let name = &job.strategy;
        let prepared = job.prepare(4).expect("the job is valid");
        let (options, _) = options();
        let real = train_on_processes(&job, &prepared, TrainOptions::default(), options);
        let real = real.expect("training on processes ends");
        let ledger = real.result.ledger;
        let all = prepared.plan.samples_total;
        assert_eq!((ledger.done, ledger.lost, ledger.repeated), (all, 0, 0), "{name}");

        let cluster = Scenario { workers: 4, ..Scenario::default() };
        let simulated = simulate(&prepared, &cluster, SimulateOptions::default()).expect("it ends");

        let params = simulated.params.expect("there are params");
        assert_eq!(real.fingerprint, Some(fingerprint(&params)), "{name}");
        assert_eq!(real.result.accuracy, simulated.result.accuracy, "{name}");
    }
}

/// Every evaluation on held-out samples: after how many samples of the job, and the loss.
#[derive(Default)]
struct Validations(BTreeMap<u64, f64>);

impl Reader for Validations {
    fn read(&mut self, line: &Line) {
        if let Record::Validated { samples, loss, .. } = line.record {
            self.0.insert(samples, loss);
        }
    }
}

/// Members average every 60 steps, which are two epochs, and are judged every 1/20 epoch in between.
#[test]
fn long_rounds_are_judged_within_and_the_bytes_are_counted() {
    let period = Period::Constant { steps: 60 };
    let job = Job {
        choices: Some(Choices { period, ..Choices::of(StrategyKind::PeriodicAverage) }),
        target_loss: Some(0.001),
        ..Job { epochs: 6.0, ..job("cpsgd", 6.0).0 }
    };
    let prepared = job.prepare(3).expect("the job is valid");
    let mut simulated = Validations::default();
    let options_of = |reader| SimulateOptions { readers: vec![reader], ..Default::default() };
    let cluster = Scenario { workers: 3, ..Scenario::default() };
    let run = simulate(&prepared, &cluster, options_of(&mut simulated)).expect("it ends");
    let bytes = run.result.bytes_evaluated;
    assert!(simulated.0.len() > 100 && bytes > 0, "{} and {bytes}", simulated.0.len());

    for memory in [Memory::Links, Memory::Shared] {
        let (mut options, _pids) = options();
        memory.set(&mut options);
        let mut real = Validations::default();
        let train = TrainOptions { readers: vec![&mut real], ..TrainOptions::default() };
        let result = train_on_processes(&job, &prepared, train, options).expect("it ends").result;

        for (samples, loss) in &real.0 {
            assert_eq!(simulated.0.get(samples), Some(loss), "{memory:?} after {samples}");
        }
        // A round ends, or an epoch, nine times. Of what waits to be evaluated, 16 are never skipped.
        assert!(real.0.len() > 16, "{memory:?}: {:?}", real.0.keys());
        // Replicas that arrive after the end of their round was evaluated are not evaluated, and not counted.
        let counted = result.bytes_evaluated;
        assert!((bytes / 2..=bytes).contains(&counted), "{memory:?}: {counted} of {bytes}");
        let two_replicas = 2 * 4 * prepared.plan.initial.len() as u64;
        assert_eq!(counted % two_replicas, 0, "{memory:?}: {counted}");
    }
}

/// Rounds that ended, and messages between workers.
#[derive(Default)]
struct Sent {
    rounds: usize,
    messages: usize,
}

impl Reader for Sent {
    fn read(&mut self, line: &Line) {
        self.rounds += usize::from(matches!(line.record, Record::Committed { .. }));
        self.messages += usize::from(matches!(line.record, Record::Sent { .. }));
    }
}

/// The mean of what members have published is evaluated: their replicas are read by the first one.
#[test]
fn replicas_that_are_read_to_be_evaluated_are_counted_once_on_processes() {
    // A worker reads a replica after 20 steps; 40 times, two replicas are evaluated.
    let period = Period::Constant { steps: 20 };
    let job = Job {
        choices: Some(Choices { period, ..Choices::of(StrategyKind::GossipPull) }),
        target_loss: Some(0.001),
        ..job("gossip-pull", 2.0).0
    };
    let prepared = job.prepare(3).expect("the job is valid");
    let (options, _pids) = options();
    let mut sent = Sent::default();
    let train = TrainOptions { readers: vec![&mut sent], ..TrainOptions::default() };
    let result = train_on_processes(&job, &prepared, train, options).expect("it ends").result;

    let replica = 4 * prepared.plan.initial.len() as u64;
    assert!(result.bytes_evaluated > 0 && result.bytes_evaluated.is_multiple_of(replica));
    // Each of the three workers may have begun another round when the job ended.
    assert!(sent.messages <= sent.rounds + 3, "{} in {} rounds", sent.messages, sent.rounds);
}

fn all_reduce(codec: Codec) -> Choices {
    Choices { codec, ..Choices::of(StrategyKind::AllReduce) }
}

/// Jobs whose vectors are long enough to be summed in chunks.
fn long_jobs() -> Vec<Job> {
    let cnn = |strategy: &str| Job {
        strategy: strategy.into(),
        model: "cnn".into(),
        samples: Some(640),
        epochs: 1.0,
        seed: 5,
        ..Job::default()
    };
    let codec = |codec| Job { choices: Some(all_reduce(codec)), ..cnn("ssgd") };
    let qsgd = Codec::Qsgd { bits: 4, bucket: 512 };
    vec![
        cnn("pipe"),
        cnn("cpsgd"),
        codec(Codec::Half),
        codec(qsgd),
        codec(Codec::TopK { fraction: 0.1 }),
    ]
}

#[test]
fn shared_memory_links_and_both_end_with_the_bits_of_the_simulator() {
    for job in long_jobs() {
        let name = format!("{} {:?}", job.strategy, job.choices.as_ref().map(|it| it.codec));
        let prepared = job.prepare(3).expect("the job is valid");
        let cluster = Scenario { workers: 3, ..Scenario::default() };
        let simulated = simulate(&prepared, &cluster, SimulateOptions::default()).expect("it ends");
        let params = simulated.params.expect("there are params");
        for memory in [Memory::Shared, Memory::Links, Memory::Mixed] {
            let (mut options, pids) = options();
            memory.set(&mut options);
            let mut mapped = vec![];
            let look = || mapped.extend(pids.try_iter().map(segments));
            let at = prepared.plan.samples_total / 2;
            let mut intervene = Intervene { at, samples: 0, act: Some(Box::new(look)) };
            let train = TrainOptions { readers: vec![&mut intervene], ..TrainOptions::default() };
            let real = train_on_processes(&job, &prepared, train, options).expect("it ends");
            drop(intervene);

            let ledger = real.result.ledger;
            let all = prepared.plan.samples_total;
            assert_eq!(
                (ledger.done, ledger.lost, ledger.repeated),
                (all, 0, 0),
                "{name} {memory:?}"
            );
            assert_eq!(real.fingerprint, Some(fingerprint(&params)), "{name} {memory:?}");
            mapped.sort_unstable();
            let expected = match memory {
                Memory::Shared => [3, 3, 3],
                Memory::Links => [0, 0, 0],
                Memory::Mixed => [0, 2, 2],
            };
            assert_eq!(mapped, expected, "{name} {memory:?}: segments of each process");
        }
    }
}

#[test]
fn a_process_that_dies_in_the_middle_of_a_long_sum_loses_and_repeats_nothing() {
    for (i, memory) in [Memory::Shared, Memory::Mixed].into_iter().enumerate() {
        for codec in [Codec::Dense, Codec::Qsgd { bits: 4, bucket: 512 }] {
            let choices = Some(all_reduce(codec));
            let cnn = Job { model: "cnn".into(), samples: Some(640), choices, ..Job::default() };
            let job = Job { epochs: 6.0, ..cnn };
            let mut prepared = job.prepare(3).expect("the job is valid");
            prepared.plan.fingerprints = true;
            let seen = run_with(&(job, prepared), memory, true, |pids| signal("-KILL", pids[i])).1;
            assert!(seen.views.contains(&2), "{memory:?}: {:?}", seen.views);
        }
    }
}

#[test]
fn every_recipe_survives_a_killed_worker_process() {
    for recipe in recipes() {
        let job = job(&recipe.name, 8.0);
        // The first worker hosts the center, the others do not.
        for victim in [0, 2] {
            let start = Instant::now();
            let (trained, seen) = run(&job, true, |pids| signal("-KILL", pids[victim]));
            println!("{} without {victim}: {:?}", recipe.name, start.elapsed());
            assert!(seen.views.contains(&2), "{}: {:?}", recipe.name, seen.views);
            assert_eq!(trained.result.started_over, 0, "{}", recipe.name);
        }
    }
}

#[test]
fn a_worker_process_that_was_stopped_for_too_long_is_put_out_and_comes_back() {
    for name in ["ssgd", "gossip-pull"] {
        let (_, seen) = run(&job(name, 40.0), false, |pids| {
            let pid = pids[1];
            signal("-STOP", pid);
            std::thread::spawn(move || {
                std::thread::sleep(2 * PATIENCE);
                signal("-CONT", pid);
            });
        });
        assert_eq!((seen.put_out, seen.settled_late), (1, 1), "{name}: {:?}", seen.views);
        assert_eq!(seen.views.last(), Some(&3), "{name}");
    }
}

/// Does something when the job is over, before anybody evaluates what is deployed.
struct AtTheEnd<'a>(Box<dyn FnMut() + 'a>);

impl Reader for AtTheEnd<'_> {
    fn read(&mut self, line: &Line) {
        if line.record == Record::Over {
            (self.0)();
        }
    }
}

#[test]
fn a_worker_process_that_hangs_just_when_the_job_is_over_does_not_keep_the_others() {
    for (name, which) in [("ssgd", 0), ("ssgd", 2), ("gossip-pull", 0), ("gossip-pull", 2)] {
        let (job, prepared) = job(name, 2.0);
        let (options, pids) = options();
        let mut stop = AtTheEnd(Box::new(|| {
            let pids: Vec<u32> = pids.try_iter().collect();
            signal("-STOP", pids[which]);
        }));
        let train = TrainOptions { readers: vec![&mut stop], ..TrainOptions::default() };

        let trained = train_on_processes(&job, &prepared, train, options).expect("it ends");

        assert!(trained.fingerprint.is_some(), "{name}: two are left to answer");
        assert_eq!(trained.result.ledger.done, prepared.plan.samples_total, "{name}");
    }
}

#[test]
fn a_worker_process_that_is_asked_to_leave_wastes_nothing() {
    for name in ["ssgd", "adpsgd", "easgd"] {
        let (trained, seen) = run(&job(name, 20.0), false, |pids| signal("-TERM", pids[0]));
        assert_eq!((seen.left, trained.result.samples_wasted), (1, 0), "{name}");
        assert_eq!(seen.views.last(), Some(&2), "{name}");
    }
}

/// Kills and stops random processes at random moments. Two runs take some seconds; with `SOAK_SECONDS=3600` it goes through all recipes, again
/// and again, and prints how many were killed and how long training stood still. `bench/soak.sh` does the same to `coordinate` and `join`.
#[test]
fn random_kills_and_stops_lose_and_repeat_nothing() {
    let budget = std::env::var("SOAK_SECONDS").ok().and_then(|text| text.parse::<f64>().ok());
    let (start, mut seed, mut kills) = (Instant::now(), 0, 0);
    let names: Vec<String> = recipes().into_iter().map(|recipe| recipe.name).collect();
    let names = if budget.is_some() { names } else { vec!["adpsgd".into(), "async".into()] };
    for name in names.iter().cycle() {
        let is_done = match budget {
            Some(seconds) => start.elapsed().as_secs_f64() > seconds,
            None => seed == names.len() as u64,
        };
        if is_done {
            break;
        }
        let mut dice = paceline::Dice::keyed(&[seed, 77]);
        let (job, prepared) = &job(name, 60.0);
        let (mut options, pids) = options();
        options.respawn = true;
        let (over, is_over) = mpsc::channel::<()>();
        let trouble = std::thread::spawn(move || {
            let (mut living, mut killed): (Vec<u32>, usize) = (vec![], 0);
            let pause = |dice: &mut paceline::Dice| Duration::from_millis(150 + dice.below(500));
            while is_over.recv_timeout(pause(&mut dice)) == Err(mpsc::RecvTimeoutError::Timeout) {
                living.extend(pids.try_iter());
                if living.len() < 2 {
                    continue;
                }
                let at = dice.below(living.len() as u64) as usize;
                let tell = |name: &str, pid: u32| {
                    // It may have ended by itself.
                    drop(Command::new("kill").args([name, &pid.to_string()]).output());
                };
                if dice.below(4) == 0 {
                    tell("-STOP", living[at]);
                    std::thread::sleep(PATIENCE.mul_f64(dice.between(0.1, 1.8)));
                    tell("-CONT", living[at]);
                } else {
                    tell("-KILL", living.swap_remove(at));
                    killed += 1;
                }
            }
            killed
        });
        let (mut agree, mut custody) = (ReplicasAgree::default(), Custody::default());
        let readers: Vec<&mut dyn Reader> = vec![&mut agree, &mut custody];
        let (speeds, pace) = (vec![1.0], Some(Duration::from_micros(40)));
        let train = TrainOptions { speeds, pace, readers, ..TrainOptions::default() };
        let trained = train_on_processes(job, prepared, train, options).expect("the job ends");
        let _ = over.send(());
        kills += trouble.join().expect("it ends");
        let (ledger, total) = (trained.result.ledger, prepared.plan.samples_total);
        let recovery = trained.result.recovery;
        println!("{name}, seed {seed}: {kills} kills so far, {recovery:?}");
        assert_eq!((ledger.done, ledger.lost, ledger.repeated), (total, 0, 0), "{name}, {seed}");
        assert_eq!((agree.violations, custody.violations), (vec![], vec![]), "{name}, {seed}");
        seed += 1;
    }
}

#[test]
fn worker_processes_end_with_their_parent() {
    let mut parent = Command::new(env!("CARGO_BIN_EXE_paceline"))
        .args(["train", "--processes", "2", "--epochs", "100000", "--no-report"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("the program can be started");
    let children = format!("/proc/{0}/task/{0}/children", parent.id());
    let since = Instant::now();
    let mut workers: Vec<String> = vec![];
    while workers.len() < 2 && since.elapsed() < Duration::from_secs(20) {
        let text = std::fs::read_to_string(&children).unwrap_or_default();
        workers = text.split_whitespace().map(str::to_owned).collect();
        std::thread::sleep(Duration::from_millis(20));
    }
    parent.kill().expect("it runs");
    parent.wait().expect("it has ended");
    assert_eq!(workers.len(), 2);
    let lives = |pid: &String| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        !stat.is_empty() && !stat.contains(") Z ")
    };
    while workers.iter().any(lives) && since.elapsed() < Duration::from_secs(30) {
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(!workers.iter().any(lives), "they end when their input does");
}
