//! Papers' claims by the real program: tables, pages, results that are kept, and words for what is wrong.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

/// A folder of its own for each test.
fn room(name: &str) -> PathBuf {
    let room = Path::new(env!("CARGO_TARGET_TMPDIR")).join("reproduce").join(name);
    let _ = fs::remove_dir_all(&room);
    fs::create_dir_all(&room).expect("there is a place for the tests");
    room
}

/// Exit code, stdout, stderr.
fn paceline(room: &Path, arguments: &[&str]) -> (i32, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_paceline"));
    command.arg("reproduce").args(arguments).current_dir(room).stdin(Stdio::null());
    let output = command.output().expect("the program starts");
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
    for (arguments, sentence) in [
        (vec!["dsb"], "there is no experiment `dsb`; did you mean `dbs`?"),
        (vec!["dbs", "--size", "quik"], "there is no size `quik`; did you mean `quick`?"),
        (
            vec!["nowhere.toml"],
            "cannot read the experiment nowhere.toml: No such file or directory (os error 2)",
        ),
        (vec!["mine.toml"], "mine.toml, line 2: unknown field `titel`"),
    ] {
        let (code, stdout, stderr) = paceline(&room, &arguments);

        assert_eq!((code, stdout.as_str()), (2, ""), "{arguments:?}");
        assert!(stderr.starts_with(&format!("error: {sentence}")), "{arguments:?}: {stderr}");
    }
}
