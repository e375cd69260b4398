//! A job that was saved, stopped, killed or moved resumes as if it had never been interrupted.

#[cfg(unix)]
mod continued;
mod damage;
mod older;
#[cfg(unix)]
mod program;

use std::fs;
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use paceline::job::checkpoint::{Checkpoint, Checkpoints, Saving, load_params};
use paceline::runtime::journal::fingerprint;
use paceline::{Job, Line, Prepared, Reader, Record, Task, TrainOptions, Trained, recipes, train};

const CLOCK_FREE: [&str; 7] = ["ssgd", "qsgd", "dynamic", "pipe", "cpsgd", "adpsgd", "diloco"];

/// An empty folder for a test's checkpoints.
fn test_folder(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("resume").join(name);
    let _ = fs::remove_dir_all(&path);
    fs::create_dir_all(&path).expect("a test folder can be created");
    path
}

fn job(strategy: &str, folder: &Path, rounds: Option<u64>) -> Job {
    let checkpoints = Checkpoints {
        rounds: rounds.and_then(NonZero::new),
        minutes: Some(1000.0),
        keep: NonZero::new(1000).expect("not zero"),
        ..Checkpoints::into(folder.to_str().expect("the path is UTF-8"))
    };
    let checkpoints = Some(checkpoints);
    Job { strategy: strategy.into(), epochs: 3.0, seed: 5, checkpoints, ..Job::default() }
}

/// The checkpoints in a folder, oldest first.
fn visible(dir: &Path) -> Vec<PathBuf> {
    let paths = fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path());
    let is_one = |path: &PathBuf| path.file_name().unwrap().to_string_lossy().starts_with("round-");
    let mut found: Vec<_> = paths.filter(is_one).collect();
    found.sort();
    found
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

/// Runs a job with its checkpoints until it ends or `samples` have been computed.
fn run(job: &Job, prepared: &Prepared, from: Option<&Path>, samples: Option<u64>) -> Trained {
    let stop = Arc::new(AtomicBool::new(false));
    let mut stopper = Stopper { stop: stop.clone(), samples_left: samples.unwrap_or(u64::MAX) };
    let saving = job.checkpoints.clone().map(|checkpoints| Saving {
        job: job.clone(),
        checkpoints,
        from: from.map(Path::to_owned),
        now: Arc::default(),
        say: |message| panic!("{message}"),
        saved: |_| {},
    });
    let options = if saving.is_some() { paced() } else { TrainOptions::default() };
    let (saving, readers) = (saving.as_ref(), vec![&mut stopper as &mut dyn Reader]);
    train(prepared, TrainOptions { stop, saving, readers, ..options }).expect("it ends")
}

/// At full speed a job would end in milliseconds, on a busy machine before it could be stopped or saved.
fn paced<'a>() -> TrainOptions<'a> {
    let pace = Some(Duration::from_micros(200));
    TrainOptions { speeds: vec![1.0], pace, ..TrainOptions::default() }
}

fn start(job: &Job, workers: u32, samples: Option<u64>) -> Trained {
    run(job, &job.prepare(workers).expect("the job is valid"), None, samples)
}

fn resume(job: &Job, dir: &Path, workers: u32, samples: Option<u64>) -> Trained {
    let checkpoint = Checkpoint::load(dir).expect("there is a complete checkpoint");
    assert!(checkpoint.passed_over.is_empty(), "{:?}", checkpoint.passed_over);
    let from = checkpoint.path.clone();
    let prepared = checkpoint.prepare(job, workers).expect("it fits");
    run(job, &prepared, Some(&from), samples)
}

fn print(trained: &Trained) -> u64 {
    fingerprint(trained.params.as_ref().expect("there are params"))
}

fn assert_exact(trained: &Trained, what: &str) {
    let ledger = trained.result.ledger;
    assert_eq!((ledger.done, ledger.lost, ledger.repeated), (3 * 1293, 0, 0), "{what}");
    assert_eq!(trained.result.samples, 3 * 1293, "{what}");
}

#[test]
fn the_weights_of_a_checkpoint_are_named_tensors_of_the_evaluated_parameters() {
    let dir = test_folder("named");
    let trained = start(&Job { model: "mlp".into(), ..job("ssgd", &dir, None) }, 2, Some(700));

    let (manifest, params) = load_params(&dir).expect("there is a checkpoint");
    let path = Checkpoint::load(&dir).expect("it is complete").path.join("weights.safetensors");
    let bytes = fs::read(path).expect("the file exists");
    let file = safetensors::SafeTensors::deserialize(&bytes).expect("it is whole");

    assert_eq!(trained.params.expect("there are params")[..], params[..]);
    let names: Vec<&str> = manifest.weights.iter().map(|tensor| tensor.name.as_str()).collect();
    assert_eq!(names, ["fc1.weight", "fc1.bias", "fc.weight", "fc.bias"]);
    // In memory, the weights of an input follow each other; in the file, those of an output.
    let weight = file.tensor("fc1.weight").expect("it is there");
    assert_eq!(weight.shape(), [32, 64]);
    let second_input = &weight.data()[4..8];
    assert_eq!(second_input, params[32].to_le_bytes());
}

#[test]
fn recipes_that_read_no_clock_resume_bit_for_bit_from_every_checkpoint() {
    for name in CLOCK_FREE {
        let dir = test_folder(&format!("every-{name}"));
        let unsaved = Job { checkpoints: None, ..job(name, &dir, None) };
        let never_saved = start(&unsaved, 3, None);

        let saved = start(&job(name, &dir, Some(2)), 3, None);

        assert_eq!(print(&never_saved), print(&saved), "{name}: saving changes nothing");
        let checkpoints = visible(&dir);
        assert!(checkpoints.len() >= 2, "{name}: one during the run and one at the end");
        for checkpoint in checkpoints {
            let resumed = resume(&unsaved, &checkpoint, 3, None);
            assert_eq!(print(&never_saved), print(&resumed), "{name}: {}", checkpoint.display());
            assert_exact(&resumed, name);
        }
        let (manifest, params) = load_params(&dir).expect("the last checkpoint is complete");
        assert_eq!(manifest.samples, 3 * 1293);
        assert_eq!(fingerprint(&params), print(&never_saved), "{name}: the weights are the result");
    }
}

/// The running statistics of batch norm are part of a replica, but have no optimizer state, and no part in a residual.
#[test]
fn a_model_with_buffers_resumes_bit_for_bit() {
    let plain = "strategy = \"ssgd\"\n";
    let sparse =
        "[choices]\nstrategy = \"delayed\"\ncodec = { kind = \"top_k\", fraction = 0.1 }\n";
    for (name, text) in [("buffers", plain), ("buffers-top-k", sparse)] {
        let dir = test_folder(name);
        let read = Job::from_toml(text).expect("the job is valid TOML");
        let (model, samples) = ("resnet8-bn".into(), Some(256));
        let unsaved = Job { model, samples, epochs: 3.0, seed: 5, ..read };
        let never_saved = start(&unsaved, 2, None);

        let checkpoints = job("ssgd", &dir, Some(5)).checkpoints;
        let saved = start(&Job { checkpoints, ..unsaved.clone() }, 2, None);

        assert_eq!(print(&never_saved), print(&saved), "{name}");
        for checkpoint in visible(&dir) {
            let resumed = resume(&unsaved, &checkpoint, 2, None);
            assert_eq!(print(&never_saved), print(&resumed), "{name}");
        }
    }
}

#[test]
fn recipes_that_read_no_clock_may_be_stopped_repeatedly_and_end_with_the_same_bits() {
    let mut stops = 0;
    for (name, rounds) in CLOCK_FREE.into_iter().flat_map(|name| [(name, None), (name, Some(1))]) {
        let dir = test_folder(&format!("again-{name}"));
        let job = job(name, &dir, rounds);
        let whole = start(&Job { checkpoints: None, ..job.clone() }, 3, None);

        start(&job, 3, Some(700));
        for _ in 0..2 {
            let part = resume(&job, &dir, 3, Some(700));
            stops += u32::from(part.result.samples < 3 * 1293);
        }
        let end = resume(&job, &dir, 3, None);

        assert_eq!(print(&whole), print(&end), "{name}");
        assert_exact(&end, name);
    }
    // On a busy machine a run may end before it is stopped.
    assert!(stops > 0, "no run was stopped before its end");
}

/// Combinations that no recipe has, but a job may: residuals of codecs, AdaScale's noise estimates, AdamW's two moments.
#[test]
fn private_state_of_every_kind_is_saved_for_each_worker() {
    let combinations = [
        "[choices]\nstrategy = \"delayed\"\ncodec = { kind = \"top_k\", fraction = 0.1 }\n",
        "[choices]\nstrategy = \"periodic_average\"\nperiod = { kind = \"constant\", steps = 4 }\n\
         codec = { kind = \"top_k\", fraction = 0.2 }\n",
        "[choices]\nstrategy = \"periodic_average\"\nperiod = { kind = \"constant\", steps = 4 }\n\
         codec = { kind = \"qsgd\", bits = 8 }\nouter = { kind = \"slowmo\", rate = 1.0, momentum = 0.5 }\n",
        "[choices]\nstrategy = \"all_reduce\"\nrescale = \"adascale\"\n",
        "learning_rate = 0.002\n[optimizer]\nrule = { kind = \"adamw\", beta1 = 0.9, beta2 = 0.99, \
         epsilon = 1e-8, weight_decay = 0.01 }\n[choices]\nstrategy = \"periodic_average\"\n\
         period = { kind = \"constant\", steps = 3 }\n",
    ];
    for (i, text) in combinations.into_iter().enumerate() {
        let dir = test_folder(&format!("private-{i}"));
        let read = Job::from_toml(text).expect("the job is valid TOML");
        let checkpoints = job("ssgd", &dir, None).checkpoints;
        let job = Job { epochs: 3.0, checkpoints, ..read };
        let whole = start(&Job { checkpoints: None, ..job.clone() }, 4, None);

        start(&job, 4, Some(1100));
        resume(&job, &dir, 4, Some(1100));
        let end = resume(&job, &dir, 4, None);

        assert_eq!(print(&whole), print(&end), "{text}");
        assert_exact(&end, text);
    }
}

#[test]
fn every_recipe_resumes_with_any_number_of_workers_and_applies_every_sample_once() {
    for recipe in recipes() {
        let name = &recipe.name;
        for [first, second, third] in [[4, 4, 4], [4, 2, 3], [2, 4, 1]] {
            let dir = test_folder(&format!("ledger-{name}-{first}-{second}"));
            let job = job(name, &dir, None);

            start(&job, first, Some(900));
            let part = resume(&job, &dir, second, Some(900));
            let end = resume(&job, &dir, third, None);

            let what = format!("{name} on {first}, then {second}, then {third}");
            assert_eq!((part.result.ledger.lost, part.result.ledger.repeated), (0, 0), "{what}");
            assert!(part.result.samples >= 900, "{what}: the parts add up");
            assert_exact(&end, &what);
            assert!(end.result.accuracy > 0.5, "{what}: {}", end.result.accuracy);
            let (manifest, params) = load_params(&dir).expect("there is a last checkpoint");
            assert_eq!(manifest.samples, 3 * 1293, "{what}");
            let task = Task::of(&job).expect("the task is valid");
            let accuracy = task.evaluate(&params, &mut vec![], || 1).unwrap().accuracy();
            assert!(accuracy > 0.5, "{what}: the weights have {accuracy}");
        }
    }
}

#[test]
fn asynchronous_recipes_save_checkpoints_while_they_run() {
    for name in ["gossip-pull", "gossip-push", "easgd", "async", "ssp"] {
        let dir = test_folder(&format!("on-the-way-{name}"));
        let job = job(name, &dir, Some(3));

        start(&job, 4, None);

        let checkpoints = visible(&dir);
        assert!(checkpoints.len() >= 2, "{name}: one during the run and one at the end");
        for path in checkpoints {
            let unsaved = Job { checkpoints: None, ..job.clone() };
            assert_exact(&resume(&unsaved, &path, 4, None), name);
        }
    }
}

/// Also for asynchronous workers, which train on after they have published a replica.
#[test]
fn the_evaluated_params_are_the_saved_ones() {
    let every_seventh_step =
        "[choices]\nstrategy = \"gossip_pull\"\nperiod = { kind = \"constant\", steps = 7 }\n";
    let named = recipes().into_iter().map(|recipe| Job { strategy: recipe.name, ..Job::default() });
    let spelled_out = Job::from_toml(every_seventh_step).expect("the job is valid TOML");
    for (i, it) in named.chain([spelled_out]).enumerate() {
        let dir = test_folder(&format!("evaluated-{i}"));
        let checkpoints = job("ssgd", &dir, None).checkpoints;
        let job = Job { epochs: 1.0, checkpoints, ..it };

        let trained = start(&job, 3, None);

        let what = format!("{} {:?}", job.strategy, job.choices);
        let (_, params) = load_params(&dir).expect("there is a last checkpoint");
        assert_eq!(print(&trained), fingerprint(&params), "{what}");
        let elsewhere = test_folder(&format!("evaluated-{i}-elsewhere"));
        let moved = Checkpoints::into(elsewhere.to_str().expect("the path is UTF-8"));
        resume(&Job { checkpoints: Some(moved), ..job.clone() }, &dir, 3, None);
        let (_, params) = load_params(&elsewhere).expect("a finished job is saved there, too");
        assert_eq!(print(&trained), fingerprint(&params), "{what}, elsewhere");
    }
}

#[test]
fn a_finished_job_may_be_extended() {
    let dir = test_folder("longer");
    let job = job("pipe", &dir, None);
    start(&job, 2, None);

    let longer = Job { epochs: 4.0, ..job };
    let end = resume(&longer, &dir, 2, None);

    assert_eq!((end.result.samples, end.result.ledger.lost), (4 * 1293, 0));
    let shorter = Job { epochs: 2.0, ..longer };
    let found = Checkpoint::load(&dir).expect("it was saved");
    let refused = found.prepare(&shorter, 2);
    let message = refused.err().expect("a job cannot become shorter than what is done");
    assert_eq!(message.to_string(), "4.00 epochs are already done: give at least that many epochs");
}

#[test]
fn a_run_that_diverges_keeps_the_last_good_checkpoint() {
    let dir = test_folder("diverged");
    let good = job("ssgd", &dir, None);
    start(&good, 2, Some(900));
    let (before, params) = load_params(&dir).expect("there is a checkpoint");

    let mut wild = Job { learning_rate: Some(1e12), ..good };
    wild.checkpoints.as_mut().expect("it has").rounds = NonZero::new(1);
    wild.checkpoints.as_mut().expect("it has").keep = NonZero::new(1000).expect("not zero");
    let found = Checkpoint::load(&dir).expect("there is a checkpoint");
    let from = Some(found.path.clone());
    let prepared = found.prepare(&wild, 2);
    let saving = Saving {
        from,
        job: wild.clone(),
        checkpoints: wild.checkpoints.clone().expect("it has"),
        now: Arc::default(),
        say: |_| {},
        saved: |_| {},
    };
    let options = TrainOptions { saving: Some(&saving), ..TrainOptions::default() };
    let end = train(&prepared.expect("it fits"), options);

    assert!(end.expect("it ends").result.diverged.is_some());
    let place = dir.join(format!("round-{:06}", before.round));
    assert_eq!(load_params(place).expect("it is still there").1, params);
    let newest = Checkpoint::load(&dir).expect("there is one");
    assert!(newest.passed_over.is_empty());
    assert!(load_params(&dir).expect("there is one").1.iter().all(|x| x.is_finite()));
}
