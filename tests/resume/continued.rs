//! A resumed run keeps the history of its job: times, traffic, journal, report and learning rate.

use paceline::job::journal_file;
use paceline::job::run::totals::RunTotals;
use serde_json::Value;

use super::program::{call, ended, paceline, signal, wait_until};
use super::*;

fn result(stdout: &str) -> Value {
    serde_json::from_str(stdout).expect("stdout is JSON")
}

fn number(result: &Value, field: &str) -> f64 {
    result[field].as_f64().unwrap_or_else(|| panic!("no {field} in {result}"))
}

/// Runs a job until its first evaluation is in the journal, then stops it with a signal; returns its result.
fn stopped(arguments: &str, dir: &Path) -> Value {
    let child = paceline(arguments, dir).spawn().expect("the program starts");
    let journal = || fs::read_to_string(dir.join("run.jsonl")).unwrap_or_default();
    wait_until("an epoch was evaluated", || journal().contains("\"record\":\"scored\""));
    signal(&child, "INT");
    let (code, stdout, stderr) = ended(child.wait_with_output().expect("it ends"));
    assert_eq!(code, 130, "{stderr}");
    result(&stdout)
}

#[test]
fn a_resumed_run_reports_the_whole_job() {
    let processes = "--processes 2";
    let places = [
        ("ssgd", ""),
        ("gossip-pull", ""),
        ("async", ""),
        ("ssgd", processes),
        ("async", processes),
    ];
    for (number_of, (strategy, place)) in places.into_iter().enumerate() {
        let dir = test_folder(&format!("continued-{number_of}"));
        let files = format!("{place} --json --journal run.jsonl --report run.html");
        let first = stopped(
            &format!(
                "train --strategy {strategy} --epochs 30 --speeds 1,1 --checkpoints saved {files}"
            ),
            &dir,
        );

        let (code, stdout, stderr) = call(&format!("train --resume saved {files}"), &dir);

        assert_eq!(code, 0, "{stderr}");
        let whole = result(&stdout);
        assert_eq!((&whole["epochs"], &whole["ledger"]["lost"]), (&30.0.into(), &0.into()));
        assert!(number(&whole, "real_seconds") > number(&first, "real_seconds"));
        assert!(number(&whole, "bytes_sent") > number(&first, "bytes_sent"));
        // One journal, appended and marked, whose times never go back.
        assert!(!dir.join("run.jsonl.old").exists());
        let lines: Vec<Line> =
            journal_file::read(dir.join("run.jsonl")).map(|line| line.expect("intact")).collect();
        let count = |is: fn(&Record) -> bool| lines.iter().filter(|l| is(&l.record)).count();
        assert_eq!(count(|record| matches!(record, Record::Began { .. })), 1);
        assert_eq!(count(|record| matches!(record, Record::Resumed { .. })), 1);
        let resumed = lines.iter().position(|l| matches!(l.record, Record::Resumed { .. }));
        let (before, after) = lines.split_at(resumed.expect("there is one"));
        let latest = before.iter().map(|line| line.at).max().expect("there are lines");
        assert!(after.iter().all(|line| line.at >= latest), "{strategy}");
        // The journal adds up to the same result.
        let mut totals = RunTotals::default();
        lines.iter().for_each(|line| totals.read(line));
        assert_eq!(whole["samples"], totals.samples(), "{strategy}");
        assert_eq!(whole["bytes_sent"], totals.bytes_sent, "{strategy}");
        assert_eq!(whole["loss"].as_f64(), totals.curve.last(), "{strategy}");
        // The report says what the result says, and its curves begin at the beginning.
        let page = fs::read_to_string(dir.join("run.html")).expect("there is a report");
        assert!(page.contains("= 30.00 epochs</td>"), "{strategy}");
        let first_score = totals.scores.first().expect("epochs are evaluated").samples;
        assert!(first_score < first["samples"].as_u64().expect("it is a number"), "{strategy}");
    }
}

#[test]
fn a_finished_job_that_is_resumed_leaves_its_files_alone() {
    let dir = test_folder("finished");
    let files = "--journal run.jsonl --report run.html --trace run.json";
    let train = format!("train --epochs 2 --speeds 1,1 --checkpoints saved {files}");
    assert_eq!(call(&train, &dir).0, 0);
    let names = ["run.jsonl", "run.html", "run.json"];
    let before = names.map(|name| fs::read(dir.join(name)).expect("it was written"));

    let (code, stdout, stderr) = call(&format!("train --resume saved {files}"), &dir);

    assert_eq!(code, 0, "{stderr}");
    assert!(stderr.contains("all 2 epochs are already done"), "{stderr}");
    assert!(stdout.contains("= 2.00 epochs\n"), "{stdout}");
    assert_eq!(names.map(|name| fs::read(dir.join(name)).expect("it is there")), before);
}

/// A cosine over four epochs, continued over eight.
#[test]
fn the_learning_rate_continues_unless_its_schedule_is_restarted() {
    let dir = test_folder("schedule");
    let text = "epochs = 4\nlearning_rate = 0.1\nstrategy = \"ssgd\"\n[schedule]\nkind = \"cosine\"\nfloor = 0.1\n";
    fs::write(dir.join("job.toml"), text).expect("it can be written");
    for (name, flag, said, rate) in [
        ("kept", "", "the learning rate stays at 0.01, where its schedule ended", 0.01),
        (
            "anew",
            " --restart-schedule",
            "the learning rate is planned anew over all of them and continues at 0.055",
            0.055,
        ),
    ] {
        let train = format!("train --job job.toml --workers 2 --json --checkpoints {name}");
        assert_eq!(call(&train, &dir).0, 0);

        let resume =
            format!("train --resume {name} --epochs 8 --json --journal {name}.jsonl{flag}");
        let (code, _, stderr) = call(&resume, &dir);

        assert_eq!(code, 0, "{stderr}");
        let sentence = format!("the job has 8 epochs instead of 4: {said}");
        assert!(stderr.starts_with(&sentence), "{stderr}");
        let lines = journal_file::read(dir.join(format!("{name}.jsonl")));
        let first = lines.map(|line| line.expect("intact")).find_map(|line| match line.record {
            Record::Applied { rate, .. } => Some(f64::from(rate)),
            _ => None,
        });
        let first = first.expect("something was learned");
        assert!((first - rate).abs() < 0.001, "{name}: {first}");
    }
}
