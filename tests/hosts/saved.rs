//! Jobs whose replicas live with hosts are saved and resumed: what the optimizers of hosts keep goes into the checkpoint as bytes.

use std::fs;
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use paceline::job::checkpoint::{Checkpoint, Checkpoints, Saving};
use paceline::runtime::SavePlan;
use paceline::sim::scenario::Crash;
use paceline::{
    Job, Line, Optimizer, Prepared, Reader, Record, Scenario, SimulateOptions, TrainOptions,
    Trained, simulate, simulate_hosted, train, train_hosted,
};

use crate::host::{Took, at_once, host};
use crate::uneven;

/// An empty folder for a test's checkpoints.
fn test_folder(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("hosts").join(name);
    let _ = fs::remove_dir_all(&path);
    fs::create_dir_all(&path).expect("a test folder can be created");
    path
}

/// With momentum, so that the optimizer has a state.
fn job(strategy: &str) -> Job {
    let optimizer = Some(Optimizer::sgd(0.9));
    let learning_rate = Some(0.02);
    Job {
        strategy: strategy.into(),
        epochs: 2.0,
        seed: 5,
        batch: Some(8),
        optimizer,
        learning_rate,
        ..Job::default()
    }
}

fn saving(job: &Job, dir: &Path, from: Option<PathBuf>) -> Saving {
    let checkpoints = Checkpoints {
        minutes: Some(1000.0),
        keep: NonZero::new(1000).expect("not zero"),
        ..Checkpoints::into(dir.to_str().expect("the path is UTF-8"))
    };
    let say = |message: &str| panic!("{message}");
    Saving { job: job.clone(), checkpoints, from, now: Arc::default(), say, saved: |_| {} }
}

/// Stops the job after a number of computed samples.
struct Stopper {
    stop: Arc<AtomicBool>,
    samples_left: u64,
}

impl Reader for Stopper {
    fn read(&mut self, line: &Line) {
        if let Record::Computed { samples, .. } = line.record {
            self.samples_left = self.samples_left.saturating_sub(samples);
            self.stop.fetch_or(self.samples_left == 0, Ordering::Relaxed);
        }
    }
}

/// Trains with hosts, and saves if the job is to be saved; `samples`: stops after so many.
fn run(prepared: &Prepared, saving: Option<&Saving>, samples: Option<u64>) -> Trained {
    let stop = Arc::new(AtomicBool::new(false));
    let mut stopper = Stopper { stop: stop.clone(), samples_left: samples.unwrap_or(u64::MAX) };
    // At full speed a job could end before it is stopped.
    let slowly: Took = |_, _| {
        std::thread::sleep(Duration::from_millis(1));
        Duration::from_millis(1)
    };
    let took = if samples.is_some() { slowly } else { at_once };
    let options = TrainOptions { stop, saving, readers: vec![&mut stopper], ..Default::default() };
    train_hosted(prepared, options, host(prepared, &Arc::default(), took)).expect("it ends")
}

fn resumed(job: &Job, dir: &Path, workers: u32) -> Prepared {
    let checkpoint = Checkpoint::load(dir).expect("there is a whole checkpoint");
    checkpoint.prepare(job, workers).expect("it fits")
}

/// A job that was stopped in the middle, in a folder.
fn stopped(job: &Job, dir: &Path, workers: u32) {
    let prepared = job.prepare(workers).expect("the job is valid");
    let part = run(&prepared, Some(&saving(job, dir, None)), Some(700));
    assert!(part.result.stopped, "{}: it has ended before it was stopped", job.strategy);
}

/// Which asynchronous worker meets whom, and when, is real: they have the same bits only if they are alone.
#[test]
fn a_job_that_was_saved_ends_with_the_bits_of_one_that_was_not_interrupted() {
    let together = ["ssgd", "qsgd", "pipe", "adpsgd", "diloco"].map(|name| (name, 3));
    let alone = ["gossip-pull", "gossip-push", "easgd", "async"].map(|name| (name, 1));
    for (name, workers) in together.into_iter().chain(alone) {
        let (job, dir) = (job(name), test_folder(&format!("bits-{name}")));
        let prepared = job.prepare(workers).expect("the job is valid");
        let whole = run(&prepared, None, None);

        stopped(&job, &dir, workers);
        let prepared = resumed(&job, &dir, workers);
        let trained = run(&prepared, None, None);
        let cluster = Scenario { workers, ..uneven() };
        let options = SimulateOptions::default();
        let host = host(&prepared, &Arc::default(), at_once);
        let simulated = simulate_hosted(&prepared, &cluster, options, host).expect("it ends");

        assert_eq!(whole.params, trained.params, "{name}, on threads");
        assert_eq!(whole.params, simulated.params, "{name}, simulated");
        for ledger in [trained.result.ledger, simulated.result.ledger] {
            let expected = (prepared.plan.samples_total, 0, 0);
            assert_eq!((ledger.done, ledger.lost, ledger.repeated), expected, "{name}");
        }
    }
}

#[test]
fn jobs_of_hosts_resume_with_any_number_of_workers_and_apply_every_sample_once() {
    for name in ["ssgd", "dbs", "abs", "adpsgd", "diloco", "gossip-pull", "easgd", "async"] {
        for workers in [2, 4] {
            let (job, dir) = (job(name), test_folder(&format!("workers-{name}-{workers}")));

            stopped(&job, &dir, 3);
            let prepared = resumed(&job, &dir, workers);
            let trained = run(&prepared, None, None);
            let cluster = Scenario { workers, ..uneven() };
            let host = host(&prepared, &Arc::default(), at_once);
            let options = SimulateOptions::default();
            let simulated = simulate_hosted(&prepared, &cluster, options, host).expect("it ends");

            for ledger in [trained.result.ledger, simulated.result.ledger] {
                let expected = (prepared.plan.samples_total, 0, 0);
                assert_eq!((ledger.done, ledger.lost, ledger.repeated), expected, "{name}");
            }
        }
    }
}

/// A snapshot in the memory of the simulator, from which all begin anew: as with the engine's own replicas.
#[test]
fn hosts_that_are_all_lost_begin_again_from_the_newest_snapshot() {
    for name in ["ssgd", "abs", "dbs", "adpsgd", "diloco"] {
        let mut prepared = job(name).prepare(4).expect("the job is valid");
        let calm = simulate(&prepared, &uneven(), SimulateOptions::default()).expect("it ends");
        prepared.plan.saves = Some(SavePlan { every_rounds: NonZero::new(2) });
        let at = 0.7 * calm.result.virtual_seconds.expect("it was simulated");
        let crash = |worker| Crash { worker, at, at_event: None, back_after: Some(0.01) };
        let scenario = Scenario { crashes: (0..4).map(crash).collect(), ..uneven() };

        let own = simulate(&prepared, &scenario, SimulateOptions::default()).expect("it ends");
        let host = host(&prepared, &Arc::default(), at_once);
        let hosted = simulate_hosted(&prepared, &scenario, SimulateOptions::default(), host);
        let hosted = hosted.expect("it ends");

        assert_eq!((own.result.started_over, hosted.result.started_over), (1, 1), "{name}");
        assert_eq!(own.params, hosted.params, "{name}");
        assert_eq!(own.result.journal_hash, hosted.result.journal_hash, "{name}");
    }
}

#[test]
fn what_a_host_keeps_is_bytes_of_the_checkpoint_and_not_text() {
    let (job, dir) = (job("ssgd"), test_folder("bytes"));
    stopped(&job, &dir, 3);

    let path = Checkpoint::load(&dir).expect("there is a whole checkpoint").path;
    let bytes = fs::read(path.join("state.safetensors")).expect("the file exists");
    let file = safetensors::SafeTensors::deserialize(&bytes).expect("it is whole");
    let manifest = fs::read_to_string(path.join("manifest.json")).expect("the file exists");

    // The momentum is the same everywhere, and is saved once.
    let kept = file.tensor("worker.0.optimizer").expect("it is there");
    let params = job.prepare(3).expect("the job is valid").plan.initial.len();
    assert_eq!((kept.dtype(), kept.shape()), (safetensors::Dtype::U8, &[4 * params][..]));
    assert!(file.tensor("worker.1.optimizer").is_err());
    assert_eq!(manifest.matches(r#"{"theirs":"worker.0.optimizer"}"#).count(), 3);
    assert!(manifest.len() < 20_000, "{} bytes", manifest.len());
}

/// Only hosts understand what hosts have saved, and only the engine what it has saved.
#[test]
fn a_checkpoint_is_resumed_by_those_that_made_it() {
    let job = job("ssgd");
    let [theirs, ours] = ["refused-theirs", "refused-ours"].map(test_folder);
    stopped(&job, &theirs, 2);
    let saves = saving(&job, &ours, None);
    let options = TrainOptions { saving: Some(&saves), ..TrainOptions::default() };
    train(&job.prepare(2).expect("the job is valid"), options).expect("it ends");

    let (theirs, ours) = (resumed(&job, &theirs, 2), resumed(&job, &ours, 2));
    let two = Scenario { workers: 2, ..uneven() };
    let host = || host(&ours, &Arc::default(), at_once);
    let by_engine = [
        train(&theirs, TrainOptions::default()).map(|_| ()),
        simulate(&theirs, &two, SimulateOptions::default()).map(|_| ()),
    ];
    let by_hosts = [
        train_hosted(&ours, TrainOptions::default(), host()).map(|_| ()),
        simulate_hosted(&ours, &two, SimulateOptions::default(), host()).map(|_| ()),
    ];

    for refused in by_engine {
        let message = refused.expect_err("the engine cannot load it").to_string();
        assert!(message.contains("resume it with the hosts that saved it"), "{message}");
    }
    for refused in by_hosts {
        let message = refused.expect_err("hosts cannot load it").to_string();
        assert!(message.contains("resume it without hosts"), "{message}");
    }
}
