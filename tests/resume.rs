//! A job that is saved, stopped, killed or moved goes on as if nothing had been.

use std::fs;
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use paceline::job::checkpoint::{Checkpoint, Checkpoints, Saving, load_params};
use paceline::job::threads::{ThreadSetting, Trained, train_saving};
use paceline::runtime::cluster::Desk;
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
    let setting = ThreadSetting::default();
    train_saving(prepared, setting, stop, saving.as_ref(), vec![&mut stopper]).expect("it ends")
}

fn begin(job: &Job, workers: u32, samples: Option<u64>) -> Trained {
    run(job, &job.check(&recipes(), workers, None).expect("the job is sound"), None, samples)
}

fn go_on(job: &Job, dir: &Path, workers: u32, samples: Option<u64>) -> Trained {
    let checkpoint = Checkpoint::load(dir).expect("there is a whole checkpoint");
    assert!(checkpoint.passed_over.is_empty(), "{:?}", checkpoint.passed_over);
    let from = checkpoint.path.clone();
    let prepared = checkpoint.prepare(job, workers, &recipes(), None).expect("it fits");
    run(job, &prepared, Some(&from), samples)
}

fn print(trained: &Trained) -> u64 {
    fingerprint(trained.params.as_ref().expect("there are params"))
}

fn assert_exact(trained: &Trained, what: &str) {
    let ledger = trained.outcome.ledger;
    assert_eq!((ledger.done, ledger.lost, ledger.repeated), (3 * 1437, 0, 0), "{what}");
    assert_eq!(trained.outcome.samples, 3 * 1437, "{what}");
}

#[test]
fn recipes_that_read_no_clock_go_on_bit_for_bit_from_every_checkpoint() {
    for name in CLOCK_FREE {
        let dir = room(&format!("every-{name}"));
        let silent = Job { checkpoints: None, ..job(name, &dir, None) };
        let never_saved = begin(&silent, 4, None);

        let saved = begin(&job(name, &dir, Some(2)), 4, None);

        assert_eq!(print(&never_saved), print(&saved), "{name}: saving changes nothing");
        let checkpoints = visible(&dir);
        assert!(checkpoints.len() >= 2, "{name}: one on the way and one at the end");
        for checkpoint in checkpoints {
            let resumed = go_on(&silent, &checkpoint, 4, None);
            assert_eq!(print(&never_saved), print(&resumed), "{name}: {}", checkpoint.display());
            assert_exact(&resumed, name);
        }
        let (manifest, params) = load_params(&dir).expect("the last one is whole");
        assert_eq!(manifest.samples, 3 * 1437);
        assert_eq!(fingerprint(&params), print(&never_saved), "{name}: the weights are the result");
    }
}

#[test]
fn recipes_that_read_no_clock_may_be_stopped_again_and_again_and_end_with_the_same_bits() {
    for name in CLOCK_FREE {
        let dir = room(&format!("again-{name}"));
        let job = job(name, &dir, None);
        let whole = begin(&Job { checkpoints: None, ..job.clone() }, 3, None);

        begin(&job, 3, Some(700));
        let part = go_on(&job, &dir, 3, Some(700));
        assert!(part.outcome.samples < 3 * 1437, "{name} was stopped on the way");
        go_on(&job, &dir, 3, Some(700));
        let end = go_on(&job, &dir, 3, None);

        assert_eq!(print(&whole), print(&end), "{name}");
        assert_exact(&end, name);
    }
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
            assert_eq!((part.outcome.ledger.lost, part.outcome.ledger.repeated), (0, 0), "{what}");
            assert!(part.outcome.samples >= 900, "{what}: the parts add up");
            assert_exact(&end, &what);
            assert!(end.outcome.accuracy > 0.5, "{what}: {}", end.outcome.accuracy);
            let (manifest, params) = load_params(&dir).expect("the end was saved");
            assert_eq!(manifest.samples, 3 * 1437, "{what}");
            let task = Task::named(&job.model, &job.data, job.seed).expect("it was made before");
            let accuracy = task.evaluate(&params, &mut Desk::default()).accuracy();
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

#[test]
fn a_job_that_is_done_may_be_made_longer() {
    let dir = room("longer");
    let job = job("pipe", &dir, None);
    begin(&job, 2, None);

    let longer = Job { epochs: 4.0, ..job };
    let end = go_on(&longer, &dir, 2, None);

    assert_eq!((end.outcome.samples, end.outcome.ledger.lost), (4 * 1437, 0));
    let shorter = Job { epochs: 2.0, ..longer };
    let refused = Checkpoint::load(&dir).and_then(|it| it.prepare(&shorter, 2, &recipes(), None));
    let sentence = refused.err().expect("what is done cannot be undone");
    assert_eq!(sentence, "4.00 epochs are done already: give at least so many epochs");
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
    let prepared = found.prepare(&wild, 2, &recipes(), None);
    let saving = Saving {
        from,
        job: wild.clone(),
        checkpoints: wild.checkpoints.clone().expect("it has"),
        now: Arc::default(),
        say: |_| {},
    };
    let (setting, stop) = (ThreadSetting::default(), Arc::default());
    let end = train_saving(&prepared.expect("it fits"), setting, stop, Some(&saving), vec![]);

    assert!(end.expect("it ends").outcome.diverged.is_some());
    let place = dir.join(format!("round-{:06}", before.round));
    assert_eq!(load_params(place).expect("it is still there").1, params);
    let newest = Checkpoint::load(&dir).expect("there is one");
    assert!(newest.passed_over.is_empty());
    assert!(load_params(&dir).expect("there is one").1.iter().all(|x| x.is_finite()));
}

mod damage {
    use super::*;

    /// Two checkpoints, of which the newer one is to be harmed.
    fn two(name: &str) -> (PathBuf, PathBuf, PathBuf) {
        let dir = room(name);
        let job = job("cpsgd", &dir, None);
        begin(&job, 2, Some(700));
        let older = Checkpoint::load(&dir).expect("it was saved").path;
        go_on(&job, &dir, 2, Some(700));
        let newer = Checkpoint::load(&dir).expect("it was saved").path;
        assert_ne!(older, newer);
        (dir, older, newer)
    }

    #[test]
    fn a_damaged_checkpoint_is_passed_over_with_a_sentence() {
        let (dir, older, newer) = two("damage");
        for name in ["manifest.json", "weights.safetensors", "state.safetensors"] {
            let path = newer.join(name);
            let whole = fs::read(&path).expect("it is there");
            let mut flipped = whole.clone();
            flipped[whole.len() / 2] ^= 4;
            let harms = [
                ("cut short", whole[..whole.len() / 2].to_vec()),
                ("one bit flipped", flipped),
                ("empty", vec![]),
                ("something else", b"\x89PNG\r\n\x1a\n and so on".to_vec()),
            ];
            for (harm, bytes) in harms {
                fs::write(&path, bytes).expect("it can be harmed");

                let found = Checkpoint::load(&dir).expect("the older one is whole");

                assert_eq!(found.path, older, "{name} {harm}");
                let [sentence] = &found.passed_over[..] else { panic!("{:?}", found.passed_over) };
                assert!(sentence.contains(name) && !sentence.contains('\n'), "{sentence}");
                assert!(load_params(&dir).is_ok(), "{name} {harm}");
                assert!(Checkpoint::load(&newer).is_err(), "asked for by name, {harm} is refused");
            }
            fs::remove_file(&path).expect("it can be lost");
            assert_eq!(Checkpoint::load(&dir).expect("the older one").path, older, "{name} lost");
            fs::write(&path, whole).expect("it can be put back");
        }
        assert_eq!(Checkpoint::load(&dir).expect("all is well again").path, newer);
    }

    #[test]
    fn every_cut_and_every_flipped_byte_of_a_manifest_is_noticed() {
        let (_, _, newer) = two("manifest");
        let path = newer.join("manifest.json");
        let whole = fs::read(&path).expect("it is there");
        for at in 0..whole.len() {
            let mut flipped = whole.clone();
            flipped[at] ^= 1 << (at % 8);
            for bytes in [flipped, whole[..at].to_vec()] {
                fs::write(&path, bytes).expect("it can be harmed");
                if let Ok((manifest, _)) = load_params(&newer) {
                    // A field of the envelope may be read as another unknown one, but never as wrong content.
                    fs::write(&path, &whole).expect("it can be put back");
                    assert_eq!(manifest, load_params(&newer).expect("it is whole").0, "byte {at}");
                }
            }
        }
    }

    #[test]
    fn a_newer_format_and_an_empty_folder_get_a_sentence() {
        let (dir, _, newer) = two("format");
        let path = newer.join("manifest.json");
        let text = fs::read_to_string(&path).expect("it is there");
        fs::write(&path, text.replacen("\"version\":1", "\"version\":7", 1)).expect("written");

        let found = Checkpoint::load(&dir).expect("the older one is whole");
        assert!(
            found.passed_over[0].ends_with(
                "manifest.json: version 7 of the format, but this program reads version 1"
            )
        );

        let empty = room("empty");
        let sentence = Checkpoint::load(&empty).err().expect("there is none");
        assert_eq!(sentence, format!("there is no checkpoint in {} yet", empty.display()));
    }

    #[test]
    fn what_was_passed_over_is_kept_under_another_name_and_never_read_again() {
        let (dir, older, newer) = two("passed-over");
        fs::write(newer.join("state.safetensors"), b"").expect("it can be harmed");
        let found = Checkpoint::load(&dir).expect("the older one is whole");
        let job = found.manifest.job.clone();
        let prepared = found.prepare(&job, 2, &recipes(), None).expect("it fits");

        run(&job, &prepared, Some(&older), None);

        let newest = Checkpoint::load(&dir).expect("the end was saved");
        assert!(newest.passed_over.is_empty() && newest.path != older);
        let name = newer.file_name().expect("a name").to_string_lossy();
        assert!(dir.join(format!("passed-over-{name}")).exists());
    }
}

/// The real program, and how it meets its end.
#[cfg(unix)]
mod program {
    use std::process::{Child, Command, Output, Stdio};
    use std::time::{Duration, Instant, SystemTime};

    use paceline::Dice;

    use super::*;

    fn paceline(arguments: &str, dir: &Path) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_paceline"));
        command.args(arguments.split_whitespace()).current_dir(dir);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    fn call(arguments: &str, dir: &Path) -> (i32, String, String) {
        ended(paceline(arguments, dir).output().expect("the program starts"))
    }

    fn ended(output: Output) -> (i32, String, String) {
        let text = |bytes| String::from_utf8(bytes).expect("words are UTF-8");
        (output.status.code().unwrap_or(-1), text(output.stdout), text(output.stderr))
    }

    fn signal(child: &Child, name: &str) {
        let id = child.id().to_string();
        let sent = Command::new("kill").args([format!("-{name}"), id]).status();
        assert!(sent.expect("there is a kill").success());
    }

    fn wait_for_checkpoint(dir: &Path) {
        let since = Instant::now();
        while since.elapsed() < Duration::from_secs(20) {
            if !visible(dir).is_empty() {
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        panic!("no checkpoint came");
    }

    fn assert_finished(call: (i32, String, String)) {
        let (code, stdout, stderr) = call;
        assert_eq!(code, 0, "{stderr}");
        let outcome: serde_json::Value = serde_json::from_str(&stdout).expect("stdout is JSON");
        let ledger = &outcome["ledger"];
        assert_eq!((ledger["lost"].as_u64(), ledger["repeated"].as_u64()), (Some(0), Some(0)));
        assert_eq!(ledger["done"], outcome["samples"]);
        assert_eq!(outcome["epochs"], 16.0);
    }

    /// Rounds take some milliseconds and so does writing a checkpoint, which goes on all the time.
    const SAVING: &str = "--epochs 16 --speeds 1,1,1 --json --checkpoint-rounds 1 --keep 2";

    #[test]
    fn whenever_the_program_is_killed_it_goes_on_and_ends_with_the_same_bits() {
        let seed =
            std::env::var("SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or_else(|| {
                let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
                now.map_or(0, |now| now.subsec_nanos().into())
            });
        println!("SEED={seed} cargo test --test resume whenever_the_program");
        for strategy in ["pipe", "qsgd"] {
            let dir = room(&format!("kill-{strategy}"));
            let uninterrupted = format!("train --strategy {strategy} {SAVING} --checkpoints whole");
            assert_finished(call(&uninterrupted, &dir));
            let (_, whole) = load_params(dir.join("whole")).expect("the end was saved");

            let (mut kills, mut while_writing, mut round) = (0, 0, 0);
            let mut dice = Dice::keyed(&[seed, kills]);
            loop {
                let saved = dir.join("saved");
                let begun = saved.exists() && Checkpoint::load(&saved).is_ok();
                let arguments = match begun {
                    true => "train --resume saved --json".to_owned(),
                    false => format!("train --strategy {strategy} {SAVING} --checkpoints saved"),
                };
                let mut child = paceline(&arguments, &dir).spawn().expect("the program starts");
                if kills < 8 {
                    std::thread::sleep(Duration::from_millis(20 + dice.below(180)));
                    child.kill().expect("SIGKILL is never refused");
                }
                let output = child.wait_with_output().expect("it has ended");
                if output.status.success() {
                    assert_finished(ended(output));
                    break;
                }
                assert_eq!(output.status.code(), None, "{:?}", ended(output));
                kills += 1;
                let entries = fs::read_dir(&saved).into_iter().flatten().flatten();
                let names: Vec<_> = entries.map(|entry| entry.file_name()).collect();
                while_writing +=
                    u64::from(names.iter().any(|name| name.to_string_lossy().starts_with(".tmp-")));
                if names.iter().any(|name| name.to_string_lossy().starts_with("round-")) {
                    let found = Checkpoint::load(&saved).expect("what is visible is whole");
                    assert!(found.passed_over.is_empty(), "{:?}", found.passed_over);
                    assert!(found.manifest.round >= round, "nothing that was saved is lost");
                    round = found.manifest.round;
                }
            }
            println!("{strategy}: {kills} kills, {while_writing} while a checkpoint was written");
            let (manifest, params) = load_params(dir.join("saved")).expect("the end was saved");
            assert_eq!(manifest.samples, manifest.samples_total);
            assert_eq!(fingerprint(&params), fingerprint(&whole), "{strategy}, {kills} kills");
            assert!(kills > 0);
        }
    }

    #[test]
    fn ctrl_c_saves_and_says_how_to_go_on() {
        let dir = room("ctrl-c");
        let long = "train --strategy adpsgd --epochs 16 --speeds 1,1,1 --json --checkpoints";
        assert_finished(call(&format!("{long} whole"), &dir));
        let child = paceline(&format!("{long} saved --checkpoint-rounds 1"), &dir).spawn();
        let child = child.expect("the program starts");
        wait_for_checkpoint(&dir.join("saved"));

        signal(&child, "INT");
        let (code, stdout, stderr) = ended(child.wait_with_output().expect("it ends"));

        assert_eq!(code, 0, "{stderr}");
        let outcome: serde_json::Value = serde_json::from_str(&stdout).expect("stdout is JSON");
        let (manifest, _) = load_params(dir.join("saved")).expect("it was saved");
        assert_eq!(outcome["samples"], manifest.samples, "the last round is in the checkpoint");
        assert!(stderr.ends_with("go on with: paceline train --resume saved\n"), "{stderr}");
        assert_finished(call("train --resume saved --json", &dir));
        let params = |name: &str| load_params(dir.join(name)).expect("the end was saved").1;
        assert_eq!(fingerprint(&params("whole")), fingerprint(&params("saved")));
    }

    #[test]
    fn sigusr1_saves_at_once_and_training_goes_on() {
        for strategy in ["ssgd", "gossip-pull", "async"] {
            let dir = room(&format!("usr1-{strategy}"));
            let arguments = format!(
                "train --strategy {strategy} --epochs 16 --speeds 1,1 --json --checkpoints saved --journal told"
            );
            let child = paceline(&arguments, &dir).spawn().expect("the program starts");
            // The journal is opened after the program has begun to listen.
            while !dir.join("told").exists() {
                std::thread::sleep(Duration::from_millis(5));
            }
            std::thread::sleep(Duration::from_millis(200));
            assert!(visible(&dir.join("saved")).is_empty());

            signal(&child, "USR1");

            wait_for_checkpoint(&dir.join("saved"));
            assert_finished(ended(child.wait_with_output().expect("it ends")));
        }
    }

    #[test]
    fn what_cannot_change_is_refused_in_a_sentence() {
        let dir = room("refused");
        for name in ["saved", "others"] {
            let arguments = format!("train --epochs 1 --checkpoints {name} --batch 8");
            assert_eq!(call(&arguments, &dir).0, 0);
        }
        let cannot = |field: &str, was: &str, now: &str| {
            format!(
                "the checkpoint is of a job with {field} = {was}, which cannot become {now} on the way: leave it as it was, or start anew"
            )
        };
        let calls = [
            ("--resume saved --seed 9", 2, cannot("seed", "1", "9")),
            ("--resume saved --model softmax", 2, cannot("model", "\"mlp\"", "\"softmax\"")),
            ("--resume saved --data blobs", 2, cannot("data", "\"digits\"", "\"blobs\"")),
            ("--resume saved --strategy abs", 2, cannot("strategy", "\"ssgd\"", "\"abs\"")),
            ("--resume saved --batch 4", 2, cannot("batch", "8", "4")),
            ("--resume saved --epochs 0.5", 2, "1.00 epochs are done already: give at least so many epochs".into()),
            ("--resume nowhere", 1, "cannot read nowhere: No such file or directory (os error 2)".into()),
            ("--checkpoints saved", 2, "saved holds checkpoints of another run: go on with it by --resume saved, or name another folder".into()),
            ("--resume saved --checkpoints others", 2, "others holds checkpoints of another run: go on with it by --resume others, or name another folder".into()),
            ("--keep 2", 2, "where should checkpoints go? name a folder with --checkpoints DIR".into()),
            ("--checkpoints x --checkpoint-minutes 0", 2, "checkpoints every 0 minutes: give a number above zero, below a million".into()),
        ];
        for (arguments, code, sentence) in calls {
            let call = call(&format!("train {arguments}"), &dir);
            assert_eq!(call, (code, String::new(), format!("error: {sentence}\n")), "{arguments}");
        }
        let call = call("train --resume saved --seed 1 --epochs 2 --workers 3 --json", &dir);
        assert_eq!((call.0, call.2.as_str()), (0, ""), "what is as it was is no change");
    }

    #[test]
    fn a_job_file_may_ask_for_checkpoints() {
        let dir = room("job-file");
        let text = "epochs = 1\n[checkpoints]\nfolder = \"saved\"\nrounds = 5\nkeep = 2\n";
        fs::write(dir.join("job.toml"), text).expect("it can be written");

        assert_eq!(call("train --job job.toml", &dir).0, 0);

        assert!(load_params(dir.join("saved")).is_ok());
        assert!(visible(&dir.join("saved")).len() <= 2);
    }
}
