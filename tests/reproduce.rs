//! `paceline reproduce`: verdicts on papers' claims, pages, stored results, and error messages.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::Value;

/// An empty folder for a test.
fn test_folder(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("reproduce").join(name);
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).expect("a test folder can be created");
    folder
}

fn command(folder: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_paceline"));
    command.arg("reproduce").args(arguments).current_dir(folder).stdin(Stdio::null());
    command
}

/// Exit code, stdout, stderr.
fn paceline(folder: &Path, arguments: &[&str]) -> (i32, String, String) {
    let output = command(folder, arguments).output().expect("the program starts");
    let text = |bytes| String::from_utf8(bytes).expect("the output is UTF-8");
    (output.status.code().unwrap_or(-1), text(output.stdout), text(output.stderr))
}

fn findings(folder: &Path, arguments: &[&str]) -> Vec<Value> {
    let (code, stdout, stderr) = paceline(folder, arguments);
    assert_eq!(code, 0, "{stderr}");
    serde_json::from_str(&stdout).expect("stdout is JSON and nothing else")
}

fn lines(folder: &Path, file: &str) -> Vec<Value> {
    let text = fs::read_to_string(folder.join("reproduced").join(file)).expect("the results exist");
    text.lines().map(|line| serde_json::from_str(line).expect("a line is a result")).collect()
}

#[test]
fn every_claim_of_every_paper_gets_a_verdict() {
    let folder = test_folder("all");

    let found = findings(&folder, &["all", "--size", "smoke", "--json"]);

    let verdicts = [
        ["holds", "holds in part", "does not hold here"],
        ["as calibrated", "as calibrated, in part", "not as calibrated"],
        ["passes", "passes in part", "fails"],
    ];
    let verdicts = verdicts.as_flattened();
    for finding in &found {
        let verdict = finding["verdict"].as_str().expect("it has a verdict");
        assert!(verdicts.contains(&verdict), "{finding}");
        assert!(finding["rule"].as_str().is_some_and(|rule| !rule.is_empty()), "{finding}");
    }
    for name in ["dynamic-sgd", "abs-sgd", "dbs", "how-to-scale", "adpsgd"] {
        assert!(found.iter().any(|finding| finding["experiment"] == name), "{name}");
        let page = folder.join(format!("reproduced/{name}-smoke.html"));
        let page = fs::read_to_string(page).expect("there is a page");
        assert!(page.contains("<svg") && page.contains("holds if"), "{name}");
        let loads = page.matches("http").count() - page.matches("http://www.w3.org/").count();
        assert_eq!(loads, 0, "{name}: a page loads nothing");
    }
    // Mathematical claims hold for any budget.
    let noise = |finding: &&Value| {
        finding["claim"].as_str().is_some_and(|claim| claim.starts_with("noise of a step"))
    };
    assert_eq!(found.iter().filter(noise).count(), 5);
    assert!(found.iter().filter(noise).all(|finding| finding["verdict"] == "passes"), "{found:?}");
}

#[test]
fn stored_results_are_not_run_again_and_name_their_command_and_commit() {
    let folder = test_folder("again");
    let first = paceline(&folder, &["dbs", "--size", "smoke"]);
    assert_eq!(first.0, 0, "{}", first.2);
    let results = lines(&folder, "dbs-smoke.jsonl");
    assert_eq!(results.len(), 12);
    for result in &results {
        let command = result["command"].as_str().expect("a result has a command");
        let run = result["run"].as_str().expect("a result has a name");
        assert!(command.starts_with("paceline reproduce dbs --size smoke --only"), "{command}");
        assert!(command.contains(run) && command.ends_with("--seeds 1"), "{command}");
        assert!(result["commit"].as_str().is_some_and(|commit| !commit.is_empty()));
    }
    // A mark that survives only if the stored result is read instead of run again.
    let path = folder.join("reproduced/dbs-smoke.jsonl");
    let text = fs::read_to_string(&path).expect("the results exist");
    let mark = |text: &str| text.replacen("\"commit\":\"", "\"commit\":\"marked ", 1);
    // The last line is cut off, as if the program had been killed while writing it.
    let cut = mark(&text);
    fs::write(&path, &cut[..cut.len() - 40]).expect("it can be written");

    let second = paceline(&folder, &["dbs", "--size", "smoke"]);

    assert_eq!((second.0, &second.1), (0, &first.1), "{}", second.2);
    let again = lines(&folder, "dbs-smoke.jsonl");
    assert_eq!(again.len(), 12);
    assert!(again[0]["commit"].as_str().is_some_and(|commit| commit.starts_with("marked ")));
}

#[test]
fn a_killed_run_continues_and_prints_the_same_results() {
    let (killed, whole) = (test_folder("killed"), test_folder("whole"));
    let arguments = ["adpsgd", "--size", "smoke", "--threads", "1"];
    let expected = paceline(&whole, &arguments);
    assert_eq!(expected.0, 0, "{}", expected.2);
    let path = killed.join("reproduced/adpsgd-smoke.jsonl");
    let written = || fs::read_to_string(&path).map_or(0, |text| text.lines().count());

    // Killed several times, each time after more results.
    for kept in [1, 3, 6] {
        let mut running = command(&killed, &arguments);
        let running = running.stdout(Stdio::null()).stderr(Stdio::null());
        let mut running = running.spawn().expect("the program starts");
        while written() < kept && running.try_wait().expect("it is our child process").is_none() {
            std::thread::sleep(Duration::from_millis(1));
        }
        running.kill().expect("it can be killed");
        running.wait().expect("it is our child process");
    }

    let there = written();
    let ended = paceline(&killed, &arguments);
    assert_eq!((ended.0, &ended.1), (0, &expected.1), "{}", ended.2);
    assert!(there >= 6, "{there} results survived");
    // A trained and a retimed run may differ in the last digit of a loss, because it is summed in another order.
    let bare = |folder: &Path| -> Vec<[Value; 3]> {
        let of = |result: &Value| ["run", "seconds", "accuracy"].map(|field| result[field].clone());
        lines(folder, "adpsgd-smoke.jsonl").iter().map(of).collect()
    };
    assert_eq!(bare(&killed), bare(&whole));
}

#[test]
fn two_programs_do_not_write_to_the_same_file() {
    let folder = test_folder("two");
    fs::create_dir_all(folder.join("reproduced")).expect("it can be made");
    let held = fs::File::create(folder.join("reproduced/dbs-smoke.jsonl")).expect("it can be made");
    held.try_lock().expect("the lock is free");

    let (code, stdout, stderr) = paceline(&folder, &["dbs", "--size", "smoke"]);

    assert_eq!((code, stdout.as_str()), (1, ""));
    let expected = "error: another `paceline reproduce` is writing to reproduced/dbs-smoke.jsonl: wait until it ends, or use another --folder\n";
    assert_eq!(stderr, expected);
}

#[test]
fn a_dry_run_lists_stored_results_and_writes_nothing() {
    let folder = test_folder("dry");
    let arguments = ["dbs", "--size", "smoke", "--dry-run"];

    let before = paceline(&folder, &arguments);
    let made_nothing = !folder.join("reproduced").exists();
    paceline(&folder, &["dbs", "--size", "smoke", "--only", "dbs@3:3:3:1"]);
    let after = paceline(&folder, &[&arguments[..], &["--seeds", "1,2"]].concat());
    let listed = findings(&folder, &[&arguments[..], &["--json"]].concat());

    assert!(before.1.starts_with("dbs, smoke: 12 runs\n"), "{}", before.1);
    assert!(made_nothing);
    assert!(after.1.starts_with("dbs, smoke: 24 runs, 1 already done\n"), "{}", after.1);
    assert!(after.1.contains("\n  dbs@3:3:3:1: 2 seeds, 1 already done\n"), "{}", after.1);
    let known = listed.iter().filter(|run| run["known"] == true);
    assert_eq!((listed.len(), known.count()), (12, 1));
}

#[test]
fn a_changed_copy_of_an_experiment_keeps_the_results_of_the_original() {
    let folder = test_folder("copy");
    paceline(&folder, &["dbs", "--size", "smoke"]);
    let before = fs::read(folder.join("reproduced/dbs-smoke.jsonl")).expect("the results exist");
    let text = include_str!("../experiments/dbs.toml").replace("momentum = 0.9", "momentum = 0.8");
    fs::write(folder.join("mine.toml"), text).expect("it can be written");

    let (code, _, stderr) = paceline(&folder, &["mine.toml", "--size", "smoke"]);

    assert_eq!(code, 0, "{stderr}");
    assert_eq!(lines(&folder, "mine-smoke.jsonl").len(), 12);
    let after = fs::read(folder.join("reproduced/dbs-smoke.jsonl")).expect("the results exist");
    assert_eq!(before, after);
}

#[test]
fn a_single_run_can_be_repeated_with_the_same_result() {
    let folder = test_folder("alone");
    paceline(&folder, &["adpsgd", "--size", "smoke"]);
    let all = lines(&folder, "adpsgd-smoke.jsonl");
    let wanted = all.iter().find(|result| result["run"] == "adp4@r=1.26").expect("it was run");
    assert_eq!(wanted["retimed"], true, "four networks share one training");

    let alone =
        ["adpsgd", "--size", "smoke", "--only", "adp4@r=1.26", "--folder", "reproduced/alone"];
    let (code, stdout, stderr) = paceline(&folder, &alone);

    assert_eq!(code, 0, "{stderr}");
    assert!(stdout.contains("not run"), "claims about other runs have no verdict: {stdout}");
    let alone = lines(&folder, "alone/adpsgd-smoke.jsonl");
    assert_eq!(alone.len(), 1);
    for figure in ["seconds", "accuracy", "bytes", "period", "busy"] {
        assert_eq!(alone[0][figure], wanted[figure], "{figure}: retimed and trained runs agree");
    }
    assert_eq!(alone[0]["retimed"], false);
}

#[test]
fn mistakes_are_refused_with_a_message() {
    let folder = test_folder("words");
    fs::write(folder.join("mine.toml"), "name = \"mine\"\ntitel = 1\n").expect("it can be written");
    let wrong = include_str!("../experiments/dbs.toml").replacen("seconds(\"", "secnds(\"", 1);
    fs::write(folder.join("wrong.toml"), wrong).expect("it can be written");
    fs::create_dir_all(folder.join("other")).expect("it can be made");
    fs::write(folder.join("other/dbs.toml"), include_str!("../experiments/dbs.toml"))
        .expect("it can be written");
    let slip = include_str!("../experiments/dbs.toml").replacen("(\"dbs@", "(\"dsb@", 1);
    fs::write(folder.join("slip.toml"), slip).expect("it can be written");
    let drawn = include_str!("../experiments/dbs.toml");
    let drawn = drawn.replace("series = [\"ssgd\"", "series = [\"sgd\"");
    fs::write(folder.join("drawn.toml"), drawn).expect("it can be written");
    for (arguments, message) in [
        (vec!["dsb"], "there is no experiment `dsb`; did you mean `dbs`?"),
        (vec!["dbs", "--size", "quik"], "there is no size `quik`; did you mean `quick`?"),
        (
            vec!["nowhere.toml"],
            "cannot read the experiment nowhere.toml: No such file or directory (os error 2)",
        ),
        (vec!["mine.toml"], "mine.toml, line 2: unknown field `titel`"),
        (
            vec!["dbs", "--only", "nobody"],
            "--only nobody: no run has this name; --dry-run lists all runs\n",
        ),
        (
            vec!["dbs", "other/dbs.toml"],
            "the results of dbs and other/dbs.toml would both go to reproduced/dbs-standard.jsonl: run them one at a time, each with its own --folder\n",
        ),
        (vec!["dbs", "--seeds", "7,8,7"], "--seeds: 7 is given twice, give each seed once\n"),
        (
            vec!["slip.toml"],
            "slip.toml: claim \"less time, S-SGD, 3:3:3:1\": there is no run `dsb@3:3:3:1`; did you mean `dbs@3:3:3:1`?\n",
        ),
        (
            vec!["drawn.toml"],
            "drawn.toml: figure \"Time to train, by cluster\": there is no run of `sgd`, one of its series\n",
        ),
        (
            vec!["wrong.toml"],
            "wrong.toml: claim \"less time, S-SGD, 3:3:3:1\": `1.0 - secnds(\"dbs@3:3:3:1\") / seconds(\"ssgd@3:3:3:1\")`: Function not found: secnds (&str",
        ),
    ] {
        let (code, stdout, stderr) = paceline(&folder, &arguments);

        assert_eq!((code, stdout.as_str()), (2, ""), "{arguments:?}");
        assert!(stderr.starts_with(&format!("error: {message}")), "{arguments:?}: {stderr}");
    }
}
