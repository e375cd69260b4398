//! Help texts and lists, compared with snapshots.

use std::fs;
use std::path::PathBuf;

use super::{paceline, work_dir};

#[test]
fn help_texts_and_lists_match_their_snapshots() {
    for (name, arguments) in [
        ("help", "--help"),
        ("help-simulate", "simulate --help"),
        ("help-compare", "compare --help"),
        ("help-train", "train --help"),
        ("help-coordinate", "coordinate --help"),
        ("help-join", "join --help"),
        ("help-launch", "launch --help"),
        ("help-status", "status --help"),
        ("help-token", "token --help"),
        ("help-token-new", "token new --help"),
        ("help-calibrate", "calibrate --help"),
        ("help-evaluate", "evaluate --help"),
        ("help-predict", "predict --help"),
        ("help-report", "report --help"),
        ("help-reproduce", "reproduce --help"),
        ("help-strategies", "strategies --help"),
        ("help-scenarios", "scenarios --help"),
        ("help-data", "data --help"),
        ("help-data-get", "data get --help"),
        ("data-list", "data list --dir nowhere"),
        ("strategies", "strategies"),
        ("scenarios", "scenarios"),
    ] {
        let call = paceline(arguments);

        assert_eq!((call.code, call.stderr.as_str()), (0, ""), "paceline {arguments}");
        assert_snapshot(name, &call.stdout);
    }
}

#[test]
fn the_examples_of_jobs_md_are_reproducible() {
    let document = include_str!("../../docs/jobs.md");
    let example = |command: &str, until: &str| {
        let (_, rest) = document.split_once(command).expect("the document contains the command");
        rest.split_once(until).expect("the example ends").0.trim_start().to_owned()
    };
    let outcome =
        "simulate uniform --kernels portable --strategy adpsgd --epochs 2 --target-loss 1.8 --json";
    let journal =
        "simulate uniform --kernels portable --epochs 1 --workers 2 --journal run-md.jsonl";

    assert_eq!(paceline(outcome).stdout, example(outcome, "```"));
    assert_eq!(paceline(journal).code, 0);
    let written = fs::read_to_string(work_dir().join("run-md.jsonl")).unwrap();
    assert!(document.contains(&journal.replace("run-md", "run")));
    assert!(written.starts_with(&example("$ head -11 run.jsonl", "```")), "{written}");
}

fn assert_snapshot(name: &str, text: &str) {
    let path: PathBuf = [env!("CARGO_MANIFEST_DIR"), "tests/snapshots", name].iter().collect();
    let path = path.with_extension("txt");
    if std::env::var_os("UPDATE_SNAPSHOTS").is_some() {
        fs::write(&path, text).expect("tests/snapshots can be written");
    }
    let before = fs::read_to_string(&path).unwrap_or_default();
    let path = path.display();
    assert_eq!(
        text, before,
        "if the change is intended, run again with UPDATE_SNAPSHOTS=1: {path}"
    );
}
