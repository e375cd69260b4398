//! A job that is saved, stopped, killed or moved goes on as if nothing had been.

mod damage;
#[cfg(unix)]
mod program;

use std::fs;
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use paceline::job::checkpoint::{Checkpoint, Checkpoints, Saving, load_params};
use paceline::job::threads::{ThreadOptions, Trained, train_saving};
use paceline::runtime::journal::fingerprint;
use paceline::{Job, Line, Prepared, Reader, Record, Task, recipes};

const CLOCK_FREE: [&str; 7] = ["ssgd", "qsgd", "dynamic", "pipe", "cpsgd", "adpsgd", "diloco"];

/// An empty place for a test's checkpoints.
fn room(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("resume").join(name);
    let _ = fs::remove_dir_all(&path);
    fs::create_dir_all(&path).expect("there is a place for checkpoints");
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

/// Asks that the job stop when so many samples have been computed.
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

/// Runs a job, saving as it says, until it ends or so many samples have been computed.
fn run(job: &Job, prepared: &Prepared, from: Option<&Path>, samples: Option<u64>) -> Trained {
    let stop = Arc::new(AtomicBool::new(false));
    let mut stopper = Stopper { stop: stop.clone(), samples_left: samples.unwrap_or(u64::MAX) };
    let saving = job.checkpoints.clone().map(|checkpoints| Saving {
        job: job.clone(),
        checkpoints,
        from: from.map(Path::to_owned),
        now: Arc::default(),
        say: |sentence| panic!("{sentence}"),
    });
    let setting = if saving.is_some() { paced() } else { ThreadOptions::default() };
    train_saving(prepared, setting, stop, saving.as_ref(), vec![&mut stopper]).expect("it ends")
}

/// As fast as it can, a job would be done in milliseconds, and on a busy machine before anybody could stop
/// or save it.
fn paced() -> ThreadOptions {
    ThreadOptions { speeds: vec![1.0], pace: Some(Duration::from_micros(200)) }
}

fn begin(job: &Job, workers: u32, samples: Option<u64>) -> Trained {
    run(job, &job.prepare(workers).expect("the job is sound"), None, samples)
}

fn go_on(job: &Job, dir: &Path, workers: u32, samples: Option<u64>) -> Trained {
    let checkpoint = Checkpoint::load(dir).expect("there is a whole checkpoint");
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
    assert_eq!((ledger.done, ledger.lost, ledger.repeated), (3 * 1437, 0, 0), "{what}");
    assert_eq!(trained.result.samples, 3 * 1437, "{what}");
}

#[test]
fn recipes_that_read_no_clock_go_on_bit_for_bit_from_every_checkpoint() {
    for name in CLOCK_FREE {
        let dir = room(&format!("every-{name}"));
        let silent = Job { checkpoints: None, ..job(name, &dir, None) };
        let never_saved = begin(&silent, 3, None);

        let saved = begin(&job(name, &dir, Some(2)), 3, None);

        assert_eq!(print(&never_saved), print(&saved), "{name}: saving changes nothing");
        let checkpoints = visible(&dir);
        assert!(checkpoints.len() >= 2, "{name}: one on the way and one at the end");
        for checkpoint in checkpoints {
            let resumed = go_on(&silent, &checkpoint, 3, None);
            assert_eq!(print(&never_saved), print(&resumed), "{name}: {}", checkpoint.display());
            assert_exact(&resumed, name);
        }
        let (manifest, params) = load_params(&dir).expect("the last one is whole");
        assert_eq!(manifest.samples, 3 * 1437);
        assert_eq!(fingerprint(&params), print(&never_saved), "{name}: the weights are the result");
    }
}

/// The statistics of batch norm are part of a replica, but not of what the optimizer remembers.
#[test]
fn a_model_with_buffers_goes_on_bit_for_bit() {
    let dir = room("buffers");
    let small = |job: Job| Job { model: "resnet8-bn".into(), samples: Some(256), ..job };
    let silent = small(Job { checkpoints: None, ..job("ssgd", &dir, None) });
    let never_saved = begin(&silent, 2, None);

    let saved = begin(&small(job("ssgd", &dir, Some(5))), 2, None);

    assert_eq!(print(&never_saved), print(&saved));
    for checkpoint in visible(&dir) {
        assert_eq!(print(&never_saved), print(&go_on(&silent, &checkpoint, 2, None)));
    }
}

#[test]
fn recipes_that_read_no_clock_may_be_stopped_again_and_again_and_end_with_the_same_bits() {
    let mut stops = 0;
    for (name, rounds) in CLOCK_FREE.into_iter().flat_map(|name| [(name, None), (name, Some(1))]) {
        let dir = room(&format!("again-{name}"));
        let job = job(name, &dir, rounds);
        let whole = begin(&Job { checkpoints: None, ..job.clone() }, 3, None);

        begin(&job, 3, Some(700));
        for _ in 0..2 {
            let part = go_on(&job, &dir, 3, Some(700));
            stops += u32::from(part.result.samples < 3 * 1437);
        }
        let end = go_on(&job, &dir, 3, None);

        assert_eq!(print(&whole), print(&end), "{name}");
        assert_exact(&end, name);
    }
    // Where the machine is busy, the wish to stop may come when a run has ended already.
    assert!(stops > 0, "none was stopped on the way");
}

/// What no recipe has, but a job may: residuals of codecs, noise that AdaScale remembers, AdamW's two moments.
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
        let dir = room(&format!("private-{i}"));
        let read = Job::from_toml(text).expect("it is a job");
        let checkpoints = job("ssgd", &dir, None).checkpoints;
        let job = Job { epochs: 3.0, checkpoints, ..read };
        let whole = begin(&Job { checkpoints: None, ..job.clone() }, 4, None);

        begin(&job, 4, Some(1100));
        go_on(&job, &dir, 4, Some(1100));
        let end = go_on(&job, &dir, 4, None);

        assert_eq!(print(&whole), print(&end), "{text}");
        assert_exact(&end, text);
    }
}

#[test]
fn every_recipe_goes_on_with_the_same_or_with_other_workers_and_applies_every_sample_once() {
    for recipe in recipes() {
        let name = &recipe.name;
        for [first, second, third] in [[4, 4, 4], [4, 2, 3], [2, 4, 1]] {
            let dir = room(&format!("ledger-{name}-{first}-{second}"));
            let job = job(name, &dir, None);

            begin(&job, first, Some(900));
            let part = go_on(&job, &dir, second, Some(900));
            let end = go_on(&job, &dir, third, None);

            let what = format!("{name} on {first}, then {second}, then {third}");
            assert_eq!((part.result.ledger.lost, part.result.ledger.repeated), (0, 0), "{what}");
            assert!(part.result.samples >= 900, "{what}: the parts add up");
            assert_exact(&end, &what);
            assert!(end.result.accuracy > 0.5, "{what}: {}", end.result.accuracy);
            let (manifest, params) = load_params(&dir).expect("the end was saved");
            assert_eq!(manifest.samples, 3 * 1437, "{what}");
            let task = Task::of(&job).expect("it was made before");
            let accuracy = task.evaluate(&params, &mut vec![], || 1).unwrap().accuracy();
            assert!(accuracy > 0.5, "{what}: the weights have {accuracy}");
        }
    }
}

#[test]
fn asynchronous_recipes_save_on_the_way_without_stopping() {
    for name in ["gossip-pull", "gossip-push", "easgd", "async", "ssp"] {
        let dir = room(&format!("on-the-way-{name}"));
        let job = job(name, &dir, Some(3));

        begin(&job, 4, None);

        let checkpoints = visible(&dir);
        assert!(checkpoints.len() >= 2, "{name}: one on the way and one at the end");
        for path in checkpoints {
            let silent = Job { checkpoints: None, ..job.clone() };
            assert_exact(&go_on(&silent, &path, 4, None), name);
        }
    }
}

/// Also that of asynchronous workers, who go on to learn after they have shown what they had.
#[test]
fn what_a_job_is_judged_by_is_what_it_is_saved_with() {
    let now_and_then =
        "[choices]\nstrategy = \"gossip_pull\"\nperiod = { kind = \"constant\", steps = 7 }\n";
    let named = recipes().into_iter().map(|recipe| Job { strategy: recipe.name, ..Job::default() });
    let spelled_out = Job::from_toml(now_and_then).expect("it is a job");
    for (i, it) in named.chain([spelled_out]).enumerate() {
        let dir = room(&format!("judged-{i}"));
        let checkpoints = job("ssgd", &dir, None).checkpoints;
        let job = Job { epochs: 1.0, checkpoints, ..it };

        let trained = begin(&job, 3, None);

        let what = format!("{} {:?}", job.strategy, job.choices);
        let (_, params) = load_params(&dir).expect("the end was saved");
        assert_eq!(print(&trained), fingerprint(&params), "{what}");
        let elsewhere = room(&format!("judged-{i}-elsewhere"));
        let moved = Checkpoints::into(elsewhere.to_str().expect("the path is UTF-8"));
        go_on(&Job { checkpoints: Some(moved), ..job.clone() }, &dir, 3, None);
        let (_, params) = load_params(&elsewhere).expect("what is done is saved there, too");
        assert_eq!(print(&trained), fingerprint(&params), "{what}, elsewhere");
    }
}

#[test]
fn a_job_that_is_done_may_be_made_longer() {
    let dir = room("longer");
    let job = job("pipe", &dir, None);
    begin(&job, 2, None);

    let longer = Job { epochs: 4.0, ..job };
    let end = go_on(&longer, &dir, 2, None);

    assert_eq!((end.result.samples, end.result.ledger.lost), (4 * 1437, 0));
    let shorter = Job { epochs: 2.0, ..longer };
    let found = Checkpoint::load(&dir).expect("it was saved");
    let refused = found.prepare(&shorter, 2).err().expect("applied samples stay applied");
    assert_eq!(refused.to_string(), "4.00 epochs are already done: give at least that many epochs");
}

#[test]
fn a_run_that_comes_apart_leaves_the_last_good_checkpoint_alone() {
    let dir = room("apart");
    let good = job("ssgd", &dir, None);
    begin(&good, 2, Some(900));
    let (before, params) = load_params(&dir).expect("it was saved");

    let mut wild = Job { learning_rate: Some(1e12), ..good };
    wild.checkpoints.as_mut().expect("it has").rounds = NonZero::new(1);
    wild.checkpoints.as_mut().expect("it has").keep = NonZero::new(1000).expect("not zero");
    let found = Checkpoint::load(&dir).expect("it was saved");
    let from = Some(found.path.clone());
    let prepared = found.prepare(&wild, 2);
    let saving = Saving {
        from,
        job: wild.clone(),
        checkpoints: wild.checkpoints.clone().expect("it has"),
        now: Arc::default(),
        say: |_| {},
    };
    let (setting, stop) = (ThreadOptions::default(), Arc::default());
    let end = train_saving(&prepared.expect("it fits"), setting, stop, Some(&saving), vec![]);

    assert!(end.expect("it ends").result.diverged.is_some());
    let place = dir.join(format!("round-{:06}", before.round));
    assert_eq!(load_params(place).expect("it is still there").1, params);
    let newest = Checkpoint::load(&dir).expect("there is one");
    assert!(newest.passed_over.is_empty());
    assert!(load_params(&dir).expect("there is one").1.iter().all(|x| x.is_finite()));
}
