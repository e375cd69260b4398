//! The real program: killed, interrupted, told to save, and called with wrong arguments.

use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant, SystemTime};

use paceline::Dice;

use super::*;

pub fn paceline(arguments: &str, dir: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_paceline"));
    command.args(arguments.split_whitespace()).current_dir(dir);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

pub fn call(arguments: &str, dir: &Path) -> (i32, String, String) {
    ended(paceline(arguments, dir).output().expect("the program starts"))
}

pub fn ended(output: Output) -> (i32, String, String) {
    let text = |bytes| String::from_utf8(bytes).expect("the output is UTF-8");
    (output.status.code().unwrap_or(-1), text(output.stdout), text(output.stderr))
}

pub fn signal(child: &Child, name: &str) {
    let id = child.id().to_string();
    let sent = Command::new("kill").args([format!("-{name}"), id]).status();
    assert!(sent.expect("there is a kill command").success());
}

fn wait_for_checkpoint(dir: &Path) {
    wait_until("there is a checkpoint", || !visible(dir).is_empty());
}

pub fn wait_until(what: &str, holds: impl Fn() -> bool) {
    let since = Instant::now();
    while !holds() {
        assert!(since.elapsed() < Duration::from_secs(60), "not yet: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Asserts that every sample was applied once; returns the number of epochs.
fn assert_exact(expected: i32, call: (i32, String, String)) -> f64 {
    let (code, stdout, stderr) = call;
    assert_eq!(code, expected, "{stderr}");
    let outcome: serde_json::Value = serde_json::from_str(&stdout).expect("stdout is JSON");
    let ledger = &outcome["ledger"];
    assert_eq!((ledger["lost"].as_u64(), ledger["repeated"].as_u64()), (Some(0), Some(0)));
    assert_eq!(ledger["done"], outcome["samples"]);
    outcome["epochs"].as_f64().expect("it is a number")
}

fn assert_finished(call: (i32, String, String)) {
    assert_eq!(assert_exact(0, call), 16.0);
}

/// Rounds take some milliseconds, and so does writing a checkpoint, so that one is written nearly all the time.
const SAVING: &str = "--epochs 16 --speeds 1,1,1 --json --checkpoint-rounds 1 --keep 2";

#[test]
fn a_killed_program_resumes_and_ends_with_the_same_bits() {
    let seed = std::env::var("SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or_else(|| {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        now.map_or(0, |now| now.subsec_nanos().into())
    });
    println!("SEED={seed} cargo test --test resume a_killed_program");
    for strategy in ["pipe", "qsgd"] {
        let dir = test_folder(&format!("kill-{strategy}"));
        let uninterrupted = format!("train --strategy {strategy} {SAVING} --checkpoints whole");
        assert_finished(call(&uninterrupted, &dir));
        let (_, whole) = load_params(dir.join("whole")).expect("there is a last checkpoint");

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
                child.kill().expect("the process can be killed");
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
                let found = Checkpoint::load(&saved).expect("a visible checkpoint is complete");
                assert!(found.passed_over.is_empty(), "{:?}", found.passed_over);
                assert!(found.manifest.round >= round, "no saved round is lost");
                round = found.manifest.round;
            }
        }
        println!("{strategy}: {kills} kills, {while_writing} while a checkpoint was written");
        let (manifest, params) =
            load_params(dir.join("saved")).expect("there is a last checkpoint");
        assert_eq!(manifest.samples, manifest.samples_total);
        assert_eq!(fingerprint(&params), fingerprint(&whole), "{strategy}, {kills} kills");
        assert!(kills > 0);
    }
}

#[test]
fn ctrl_c_saves_and_prints_how_to_resume() {
    let dir = test_folder("ctrl-c");
    let long = "train --strategy adpsgd --epochs 16 --speeds 1,1,1 --json --checkpoints";
    assert_finished(call(&format!("{long} whole"), &dir));
    let child = paceline(&format!("{long} saved --checkpoint-rounds 1"), &dir).spawn();
    let child = child.expect("the program starts");
    wait_for_checkpoint(&dir.join("saved"));

    signal(&child, "INT");
    let (code, stdout, stderr) = ended(child.wait_with_output().expect("it ends"));

    assert_eq!(code, 130, "{stderr}");
    let outcome: serde_json::Value = serde_json::from_str(&stdout).expect("stdout is JSON");
    let (manifest, _) = load_params(dir.join("saved")).expect("there is a checkpoint");
    assert_eq!(outcome["samples"], manifest.samples, "the last round is in the checkpoint");
    let said: Vec<&str> = stderr.lines().collect();
    assert!(said[1].ends_with("resume with: paceline train --resume saved"), "{stderr}");
    assert!(said[2].starts_with("stopped at epoch ") && said[2].ends_with(" of 16"), "{stderr}");
    assert_finished(call("train --resume saved --json", &dir));
    let params = |name: &str| load_params(dir.join(name)).expect("there is a last checkpoint").1;
    assert_eq!(fingerprint(&params("whole")), fingerprint(&params("saved")));
}

/// `timeout` signals the process and then its group, so that the program gets SIGTERM twice.
#[test]
fn two_signals_at_once_are_one_request() {
    let dir = test_folder("twice");
    let long = "train --epochs 1000 --speeds 1,1 --json --checkpoints saved --journal journal";
    let child = paceline(long, &dir).spawn().expect("the program starts");
    wait_until("training has started", || dir.join("journal").exists());

    signal(&child, "TERM");
    signal(&child, "TERM");

    let (code, _, stderr) = ended(child.wait_with_output().expect("it ends"));
    assert_eq!(code, 143, "{stderr}");
    assert!(load_params(dir.join("saved")).is_ok(), "it saved before it ended: {stderr}");
}

#[test]
fn sigusr1_saves_at_once_and_training_continues() {
    for strategy in ["ssgd", "gossip-pull", "async"] {
        let dir = test_folder(&format!("usr1-{strategy}"));
        let arguments = format!(
            "train --strategy {strategy} --epochs 1000 --speeds 1,1 --json --checkpoints saved --journal journal"
        );
        let child = paceline(&arguments, &dir).spawn().expect("the program starts");
        // The journal is created after the signal handler is installed.
        wait_until("training has started", || dir.join("journal").exists());
        std::thread::sleep(Duration::from_millis(200));
        assert!(visible(&dir.join("saved")).is_empty());

        signal(&child, "USR1");

        wait_for_checkpoint(&dir.join("saved"));
        signal(&child, "INT");
        assert_exact(130, ended(child.wait_with_output().expect("it ends")));
    }
}

#[test]
fn changes_that_a_checkpoint_does_not_allow_are_refused_with_a_message() {
    let dir = test_folder("refused");
    for name in ["saved", "others"] {
        let arguments = format!("train --epochs 1 --checkpoints {name} --batch 8");
        assert_eq!(call(&arguments, &dir).0, 0);
    }
    let (code, _, stderr) = call("train --resume saved --json", &dir);
    assert_eq!(
        (code, stderr.as_str()),
        (0, "all 1 epochs are already done: give more --epochs to continue\n")
    );
    let cannot = |field: &str, was: &str, now: &str| {
        format!(
            "a resumed job cannot change {field} from {was} to {now}: keep the old value, or start a new run"
        )
    };
    let calls = [
        ("--resume saved --seed 9", 2, cannot("seed", "1", "9")),
        ("--resume saved --model softmax", 2, cannot("model", "\"mlp\"", "\"softmax\"")),
        ("--resume saved --data blobs", 2, cannot("data", "\"digits\"", "\"blobs\"")),
        ("--resume saved --strategy abs", 2, cannot("strategy", "\"dbs\"", "\"abs\"")),
        ("--resume saved --batch 4", 2, cannot("batch", "8", "4")),
        ("--resume saved --batch-total 16", 2, cannot("batch", "8", "4")),
        ("--resume saved --epochs 0.5", 2, "1.00 epochs are already done: give at least that many epochs".into()),
        ("--resume nowhere", 2, "cannot read nowhere: No such file or directory (os error 2)".into()),
        ("--checkpoints saved", 2, "saved holds checkpoints of another run: resume that run with --resume saved, or choose another folder".into()),
        ("--resume saved --checkpoints others", 2, "others holds checkpoints of another run: resume that run with --resume others, or choose another folder".into()),
        ("--keep 2", 2, "checkpoint settings without a folder: name one with --checkpoints DIR".into()),
        ("--checkpoints x --checkpoint-minutes 0", 2, "checkpoints every 0 minutes: give a number above zero, below a million".into()),
    ];
    for (arguments, code, message) in calls {
        let (ended, stdout, stderr) = call(&format!("train {arguments}"), &dir);
        let last = stderr.lines().last().unwrap_or_default();
        assert_eq!((ended, stdout.as_str()), (code, ""), "{arguments}");
        assert_eq!(last, format!("error: {message}"), "{arguments}");
    }
    let call = call("train --resume saved --seed 1 --epochs 2 --workers 3 --json", &dir);
    let said = "the job has 2 epochs instead of 1: the learning rate stays at 0.002, where its schedule ended (--restart-schedule plans it anew over all epochs)\n";
    assert_eq!((call.0, call.2.as_str()), (0, said), "repeating a value is not a change");
}

#[test]
fn a_job_file_may_ask_for_checkpoints() {
    let dir = test_folder("job-file");
    let text = "epochs = 1\n[checkpoints]\nfolder = \"saved\"\nrounds = 5\nkeep = 2\n";
    fs::write(dir.join("job.toml"), text).expect("it can be written");

    assert_eq!(call("train --job job.toml", &dir).0, 0);

    assert!(load_params(dir.join("saved")).is_ok());
    assert!(visible(&dir.join("saved")).len() <= 2);
}
