//! Papers' claims by the real program: tables, pages, results that are kept, and words for what is wrong.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::Value;

/// A folder of its own for each test.
fn room(name: &str) -> PathBuf {
    let room = Path::new(env!("CARGO_TARGET_TMPDIR")).join("reproduce").join(name);
    let _ = fs::remove_dir_all(&room);
    fs::create_dir_all(&room).expect("there is a place for the tests");
    room
}

fn command(room: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_paceline"));
    command.arg("reproduce").args(arguments).current_dir(room).stdin(Stdio::null());
    command
}

/// Exit code, stdout, stderr.
fn paceline(room: &Path, arguments: &[&str]) -> (i32, String, String) {
    let output = command(room, arguments).output().expect("the program starts");
    let text = |bytes| String::from_utf8(bytes).expect("words are UTF-8");
    (output.status.code().unwrap_or(-1), text(output.stdout), text(output.stderr))
}

fn findings(room: &Path, arguments: &[&str]) -> Vec<Value> {
    let (code, stdout, stderr) = paceline(room, arguments);
    assert_eq!(code, 0, "{stderr}");
    serde_json::from_str(&stdout).expect("stdout is JSON and nothing else")
}

fn lines(room: &Path, file: &str) -> Vec<Value> {
    let text = fs::read_to_string(room.join("reproduced").join(file)).expect("results are there");
    text.lines().map(|line| serde_json::from_str(line).expect("a line is a result")).collect()
}

#[test]
fn every_claim_of_every_paper_gets_a_verdict() {
    let room = room("all");

    let found = findings(&room, &["all", "--size", "smoke", "--json"]);

    let verdicts = ["holds", "holds in part", "does not hold here"];
    for finding in &found {
        let verdict = finding["verdict"].as_str().expect("it has a verdict");
        assert!(verdicts.contains(&verdict), "{finding}");
        assert!(finding["rule"].as_str().is_some_and(|rule| !rule.is_empty()), "{finding}");
    }
    for name in ["dynamic-sgd", "abs-sgd", "dbs", "how-to-scale", "adpsgd"] {
        assert!(found.iter().any(|finding| finding["experiment"] == name), "{name}");
        let page = room.join(format!("reproduced/{name}-smoke.html"));
        let page = fs::read_to_string(page).expect("there is a page");
        assert!(page.contains("<svg") && page.contains("holds if"), "{name}");
        let loads = page.matches("http").count() - page.matches("http://www.w3.org/").count();
        assert_eq!(loads, 0, "{name}: a page needs nothing else");
    }
    // What is mathematics must come out whatever the budget.
    let noise = |finding: &&Value| {
        finding["claim"].as_str().is_some_and(|claim| claim.starts_with("noise of a step"))
    };
    assert_eq!(found.iter().filter(noise).count(), 5);
    assert!(found.iter().filter(noise).all(|finding| finding["verdict"] == "holds"), "{found:?}");
}

#[test]
fn what_has_been_run_is_not_run_again_and_every_result_says_where_it_comes_from() {
    let room = room("again");
    let first = paceline(&room, &["dbs", "--size", "smoke"]);
    assert_eq!(first.0, 0, "{}", first.2);
    let results = lines(&room, "dbs-smoke.jsonl");
    assert_eq!(results.len(), 12);
    for result in &results {
        let command = result["command"].as_str().expect("it says how to repeat it");
        let run = result["run"].as_str().expect("it has a name");
        assert!(command.starts_with("paceline reproduce dbs --size smoke --only"), "{command}");
        assert!(command.contains(run) && command.ends_with("--seeds 1"), "{command}");
        assert!(result["commit"].as_str().is_some_and(|commit| !commit.is_empty()));
    }
    // A mark that only a file that was read, and not run again, can bear.
    let path = room.join("reproduced/dbs-smoke.jsonl");
    let text = fs::read_to_string(&path).expect("results are there");
    let mark = |text: &str| text.replacen("\"commit\":\"", "\"commit\":\"marked ", 1);
    // The last line is cut off, as if the program had been killed while it wrote.
    let cut = mark(&text);
    fs::write(&path, &cut[..cut.len() - 40]).expect("it can be written");

    let second = paceline(&room, &["dbs", "--size", "smoke"]);

    assert_eq!((second.0, &second.1), (0, &first.1), "{}", second.2);
    let again = lines(&room, "dbs-smoke.jsonl");
    assert_eq!(again.len(), 12);
    assert!(again[0]["commit"].as_str().is_some_and(|commit| commit.starts_with("marked ")));
}

#[test]
fn a_killed_run_goes_on_where_it_was_and_says_the_same() {
    let (killed, whole) = (room("killed"), room("whole"));
    let arguments = ["adpsgd", "--size", "smoke", "--threads", "1"];
    let expected = paceline(&whole, &arguments);
    assert_eq!(expected.0, 0, "{}", expected.2);
    let path = killed.join("reproduced/adpsgd-smoke.jsonl");
    let written = || fs::read_to_string(&path).map_or(0, |text| text.lines().count());

    // Killed again and again, each time after it has got a bit further.
    for kept in [1, 3, 6] {
        let mut running = command(&killed, &arguments);
        let running = running.stdout(Stdio::null()).stderr(Stdio::null());
        let mut running = running.spawn().expect("the program starts");
        while written() < kept && running.try_wait().expect("it is ours").is_none() {
            std::thread::sleep(Duration::from_millis(1));
        }
        running.kill().expect("it can be killed");
        running.wait().expect("it is ours");
    }

    let there = written();
    let ended = paceline(&killed, &arguments);
    assert_eq!((ended.0, &ended.1), (0, &expected.1), "{}", ended.2);
    assert!(there >= 6, "{there} results survived");
    // What was trained and what was only timed may differ in a loss's last digit, for it is added up in
    // another order.
    let bare = |room: &Path| -> Vec<[Value; 3]> {
        let of = |result: &Value| ["run", "seconds", "accuracy"].map(|field| result[field].clone());
        lines(room, "adpsgd-smoke.jsonl").iter().map(of).collect()
    };
    assert_eq!(bare(&killed), bare(&whole));
}

#[test]
fn two_at_once_do_not_write_to_one_file() {
    let room = room("two");
    fs::create_dir_all(room.join("reproduced")).expect("it can be made");
    let held = fs::File::create(room.join("reproduced/dbs-smoke.jsonl")).expect("it can be made");
    held.try_lock().expect("nobody else has it");

    let (code, stdout, stderr) = paceline(&room, &["dbs", "--size", "smoke"]);

    assert_eq!((code, stdout.as_str()), (1, ""));
    let expected = "error: another `paceline reproduce` is writing to reproduced/dbs-smoke.jsonl: wait until it ends, or use another --folder\n";
    assert_eq!(stderr, expected);
}

#[test]
fn a_dry_run_tells_what_is_known_and_makes_nothing() {
    let room = room("dry");
    let arguments = ["dbs", "--size", "smoke", "--dry-run"];

    let before = paceline(&room, &arguments);
    let made_nothing = !room.join("reproduced").exists();
    paceline(&room, &["dbs", "--size", "smoke", "--only", "dbs@3:3:3:1"]);
    let after = paceline(&room, &[&arguments[..], &["--seeds", "1,2"]].concat());
    let for_programs = findings(&room, &[&arguments[..], &["--json"]].concat());

    assert!(before.1.starts_with("dbs, smoke: 12 runs\n"), "{}", before.1);
    assert!(made_nothing);
    assert!(after.1.starts_with("dbs, smoke: 24 runs, 1 already done\n"), "{}", after.1);
    assert!(after.1.contains("\n  dbs@3:3:3:1: 2 seeds, 1 already done\n"), "{}", after.1);
    let known = for_programs.iter().filter(|run| run["known"] == true);
    assert_eq!((for_programs.len(), known.count()), (12, 1));
}

#[test]
fn a_changed_copy_leaves_the_results_of_its_model_alone() {
    let room = room("copy");
    paceline(&room, &["dbs", "--size", "smoke"]);
    let before = fs::read(room.join("reproduced/dbs-smoke.jsonl")).expect("results are there");
    let text = include_str!("../experiments/dbs.toml").replace("momentum = 0.9", "momentum = 0.8");
    fs::write(room.join("mine.toml"), text).expect("it can be written");

    let (code, _, stderr) = paceline(&room, &["mine.toml", "--size", "smoke"]);

    assert_eq!(code, 0, "{stderr}");
    assert_eq!(lines(&room, "mine-smoke.jsonl").len(), 12);
    let after = fs::read(room.join("reproduced/dbs-smoke.jsonl")).expect("results are there");
    assert_eq!(before, after);
}

#[test]
fn one_run_can_be_repeated_alone_and_gives_the_same() {
    let room = room("alone");
    paceline(&room, &["adpsgd", "--size", "smoke"]);
    let all = lines(&room, "adpsgd-smoke.jsonl");
    let wanted = all.iter().find(|result| result["run"] == "adp4@r=1.26").expect("it was run");
    assert_eq!(wanted["retimed"], true, "four networks, one training");

    let alone =
        ["adpsgd", "--size", "smoke", "--only", "adp4@r=1.26", "--folder", "reproduced/alone"];
    let (code, stdout, stderr) = paceline(&room, &alone);

    assert_eq!(code, 0, "{stderr}");
    assert!(stdout.contains("not run"), "claims about other runs are left open: {stdout}");
    let alone = lines(&room, "alone/adpsgd-smoke.jsonl");
    assert_eq!(alone.len(), 1);
    for figure in ["seconds", "accuracy", "bytes", "period", "busy"] {
        assert_eq!(alone[0][figure], wanted[figure], "{figure}: timed is as good as trained");
    }
    assert_eq!(alone[0]["retimed"], false);
}

#[test]
fn what_makes_no_sense_is_told_in_a_sentence() {
    let room = room("words");
    fs::write(room.join("mine.toml"), "name = \"mine\"\ntitel = 1\n").expect("it can be written");
    let wrong = include_str!("../experiments/dbs.toml").replacen("seconds(\"", "secnds(\"", 1);
    fs::write(room.join("wrong.toml"), wrong).expect("it can be written");
    fs::create_dir_all(room.join("other")).expect("it can be made");
    fs::write(room.join("other/dbs.toml"), include_str!("../experiments/dbs.toml"))
        .expect("it can be written");
    let slip = include_str!("../experiments/dbs.toml").replacen("(\"dbs@", "(\"dsb@", 1);
    fs::write(room.join("slip.toml"), slip).expect("it can be written");
    let drawn = include_str!("../experiments/dbs.toml");
    let drawn = drawn.replace("series = [\"ssgd\"", "series = [\"sgd\"");
    fs::write(room.join("drawn.toml"), drawn).expect("it can be written");
    for (arguments, sentence) in [
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
        let (code, stdout, stderr) = paceline(&room, &arguments);

        assert_eq!((code, stdout.as_str()), (2, ""), "{arguments:?}");
        assert!(stderr.starts_with(&format!("error: {sentence}")), "{arguments:?}: {stderr}");
    }
}
