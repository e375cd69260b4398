//! Reports, journals and traces of a run, and what happens if they cannot be written.

use std::fs;

use serde_json::Value;

use super::{assert_refused, command, outcome, paceline, work_dir};

#[test]
fn a_report_shows_the_summary_and_all_figures() {
    let call = paceline(
        "simulate elastic --strategy async --epochs 6 --report drawn.html --trace drawn.json --tensorboard drawn",
    );

    assert_eq!((call.code, call.stderr.as_str()), (0, "\nReport: drawn.html\n"));
    let page = fs::read_to_string(work_dir().join("drawn.html")).unwrap();
    for line in call.stdout.lines().skip(2).take_while(|line| !line.is_empty()) {
        let (name, value) = line.split_at(10);
        let row = format!("<th scope=\"row\">{}</th><td>{value}</td>", name.trim());
        assert!(page.contains(&row), "no {row} in {page}");
    }
    for part in [
        "async on elastic",
        "Loss over epochs",
        "Test accuracy over time",
        "Members over time",
        "Staleness",
        "Worker timelines",
        "waited longest for <b>worker ",
    ] {
        assert!(page.contains(part), "no {part} in {page}");
    }
    let trace: Value =
        serde_json::from_slice(&fs::read(work_dir().join("drawn.json")).unwrap()).unwrap();
    let slices = trace.as_array().unwrap().iter().filter(|event| event["ph"] == "X").count();
    assert!(slices > 500, "{slices} slices");
    let events = fs::read_dir(work_dir().join("drawn")).unwrap().next().expect("an event file");
    let events = events.unwrap();
    assert!(events.file_name().to_str().unwrap().starts_with("events.out.tfevents."));
    assert!(events.metadata().unwrap().len() > 10_000);
    fs::remove_file(events.path()).unwrap();
}

#[test]
fn train_without_flags_writes_a_report() {
    let folder = work_dir().join("no-flags");
    fs::create_dir_all(&folder).unwrap();

    let output = command("train").current_dir(&folder).output().expect("the program starts");

    assert_eq!(output.status.code(), Some(0));
    // A run of more than some seconds also prints its progress.
    assert!(output.stderr.ends_with(b"\nReport: report.html\n"));
    let summary = String::from_utf8(output.stdout).unwrap();
    assert!(summary.starts_with("dbs on threads: 4 workers, batch 16"), "{summary}");
    let page = fs::read_to_string(folder.join("report.html")).unwrap();
    assert!(page.contains("dbs on threads") && page.contains("<td>paceline train</td>"));
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn a_run_that_diverges_leaves_a_report_that_says_so() {
    let call = paceline("train --learning-rate 100 --report diverged.html");

    assert_eq!((call.code, call.stdout.as_str()), (1, ""));
    assert!(call.stderr.contains("\n\nReport: diverged.html\nerror: dbs diverged: "), "{call:?}");
    let page = fs::read_to_string(work_dir().join("diverged.html")).unwrap();
    assert!(page.contains("<p class=\"remark\">the training loss diverged after"), "{page}");
}

#[test]
fn a_truncated_journal_is_drawn_up_to_its_end() {
    let call = paceline("simulate --strategy adpsgd --epochs 2 --journal whole.jsonl");
    let whole = fs::read_to_string(work_dir().join("whole.jsonl")).unwrap();
    fs::write(work_dir().join("cut.jsonl"), &whole[..whole.len() / 2]).unwrap();

    let drawn = paceline("report whole.jsonl --out whole.html");
    let cut = paceline("report cut.jsonl --out cut.html");

    assert_eq!((drawn.code, drawn.stderr.as_str()), (0, "Report: whole.html\n"));
    let page = fs::read_to_string(work_dir().join("whole.html")).unwrap();
    assert!(call.stdout.contains("samples   2,586 = 2.00 epochs"));
    assert!(page.contains("<td>2,586 = 2.00 epochs</td>"), "{page}");
    assert!(page.contains("Period: local steps between averages"), "{page}");
    assert_eq!(cut.code, 0);
    assert!(cut.stderr.starts_with("The journal ends early: cut.jsonl, line "), "{}", cut.stderr);
    assert!(fs::read_to_string(work_dir().join("cut.html")).unwrap().contains("ends early"));
}

#[test]
fn a_journal_with_impossible_times_is_drawn_or_refused_without_a_panic() {
    paceline("simulate spot --strategy async --epochs 1 --journal timely.jsonl");
    let whole = fs::read_to_string(work_dir().join("timely.jsonl")).unwrap();
    for (field, code) in [("since", 0), ("entered", 0), ("blocked", 0), ("at", 2)] {
        for time in ["99999.0", "1.8e19"] {
            let is_near = time == "99999.0";
            let pieces: Vec<&str> = whole.split(&format!("\"{field}\":")).collect();
            let later = pieces[1..].iter().map(|piece| {
                let end = piece.find([',', '}']).expect("a number ends");
                format!("\"{field}\":{time}{}", &piece[end..])
            });
            let text = format!("{}{}", pieces[0], later.collect::<String>());
            fs::write(work_dir().join("untimely.jsonl"), text).unwrap();

            let call = paceline("report untimely.jsonl --out untimely.html");

            let expected = if is_near { 0 } else { code };
            assert_eq!(call.code, expected, "{field} {time}: {}", call.stderr);
        }
    }
}

#[test]
fn a_journal_is_drawn_up_to_a_damaged_line_or_a_second_journal() {
    paceline("simulate --epochs 1 --journal first.jsonl");
    let whole = fs::read_to_string(work_dir().join("first.jsonl")).unwrap();
    let lines: Vec<&str> = whole.lines().collect();
    let garbage = [&lines[..5], &["garbage"], &lines[5..]].concat().join("\n");
    fs::write(work_dir().join("garbage.jsonl"), garbage).unwrap();
    fs::write(work_dir().join("twice.jsonl"), whole.repeat(2)).unwrap();

    for (journal, remark) in [
        (
            "garbage.jsonl",
            "The journal is drawn up to a damaged line: garbage.jsonl, line 6: expected value."
                .to_owned(),
        ),
        (
            "twice.jsonl",
            format!(
                "Another journal begins at twice.jsonl, line {}: only the first one is drawn.",
                lines.len() + 1
            ),
        ),
    ] {
        let call = paceline(&format!("report {journal} --out odd-journal.html"));

        assert_eq!(call.code, 0);
        assert_eq!(call.stderr, format!("{remark}\nReport: odd-journal.html\n"));
        let page = fs::read_to_string(work_dir().join("odd-journal.html")).unwrap();
        assert!(page.contains(&remark), "{page}");
        assert!(!page.contains("2.00 epochs"), "{page}");
    }
}

#[test]
fn unwritable_files_fail_before_the_run() {
    fs::create_dir_all(work_dir().join("a-folder")).unwrap();
    fs::write(work_dir().join("a-file"), "").unwrap();

    assert_refused(
        1,
        &[
            (
                "train --report missing/page.html",
                "cannot write the report missing/page.html: No such file or directory (os error 2)",
            ),
            (
                "simulate --report a-folder",
                "cannot write the report a-folder: Is a directory (os error 21)",
            ),
            (
                "simulate --trace a-folder",
                "cannot write the trace a-folder: Is a directory (os error 21)",
            ),
            (
                "simulate --tensorboard a-file",
                "cannot write TensorBoard events to a-file: it is a file, name a folder",
            ),
            (
                "compare --plot missing/drawn.svg",
                "cannot write the plot missing/drawn.svg: No such file or directory (os error 2)",
            ),
        ],
    );
    assert_refused(
        2,
        &[
            (
                "report missing.jsonl",
                "cannot read the journal missing.jsonl: No such file or directory (os error 2)",
            ),
            ("report a-file", "the journal a-file is empty"),
        ],
    );
}

#[test]
fn no_input_file_is_overwritten_and_no_file_is_written_twice() {
    fs::write(work_dir().join("my.toml"), "workers = 2\n").unwrap();
    fs::write(work_dir().join("my-job.toml"), "epochs = 1\n").unwrap();
    fs::write(work_dir().join("verse-apart.txt"), "to be or not to be. ".repeat(200)).unwrap();
    fs::write(work_dir().join("recorded"), "not even read").unwrap();
    let _ = fs::remove_file(work_dir().join("linked"));
    fs::hard_link(work_dir().join("recorded"), work_dir().join("linked")).unwrap();
    let all = ["my.toml", "my-job.toml", "verse-apart.txt", "recorded"];
    let before = all.map(|name| fs::read(work_dir().join(name)).unwrap());

    for (arguments, files) in [
        ("simulate --trace same --journal same", "--journal and --trace both name same"),
        ("simulate --journal same --trace ./same", "--journal and --trace both name ./same"),
        ("train --journal ./report.html", "--journal and the report both name report.html"),
        ("simulate --journal recorded --trace linked", "--journal and --trace both name linked"),
        ("simulate my.toml --journal ./my.toml", "the scenario and --journal both name ./my.toml"),
        ("train --job my-job.toml --trace my-job.toml", "--job and --trace both name my-job.toml"),
        (
            "simulate --model charlm --data verse-apart.txt --report verse-apart.txt",
            "the data and --report both name verse-apart.txt",
        ),
        ("compare my.toml --plot my.toml", "the scenario and --plot both name my.toml"),
        ("calibrate --job my-job.toml --out my-job.toml", "--job and --out both name my-job.toml"),
        ("report recorded --out linked", "the journal and --out both name linked"),
    ] {
        assert_refused(2, &[(arguments, &format!("{files}: give each its own file"))]);
    }
    assert_eq!(all.map(|name| fs::read(work_dir().join(name)).unwrap()), before);
    // A built-in scenario is not a file, even if a file has its name.
    fs::write(work_dir().join("uniform"), "").unwrap();
    assert_eq!(paceline("simulate uniform --epochs 1 --journal uniform").code, 0);
    fs::remove_file(work_dir().join("uniform")).unwrap();
}

#[test]
fn a_refused_run_overwrites_no_files_of_an_earlier_run() {
    let _ = fs::remove_dir_all(work_dir().join("kept-saves"));
    fs::write(work_dir().join("kept-no-folder"), "").unwrap();
    let files = "--journal kept.jsonl --trace kept.json --report kept.html";
    let train = format!("train --samples 300 --epochs 1 --json {files}");
    let first = paceline(&format!("{train} --checkpoints kept-saves"));
    assert_eq!(first.code, 0, "{}", first.stderr);
    let names = ["kept.jsonl", "kept.json", "kept.html"];
    let before = names.map(|name| fs::read(work_dir().join(name)).unwrap());

    for (flags, code) in [
        ("--checkpoints kept-saves", 2),
        ("--checkpoints kept-no-folder", 2),
        ("--tensorboard kept-no-folder", 1),
    ] {
        let second = paceline(&format!("{train} {flags}"));

        assert_eq!(second.code, code, "{}", second.stderr);
        assert_eq!(names.map(|name| fs::read(work_dir().join(name)).unwrap()), before, "{flags}");
    }
}

#[cfg(target_os = "linux")]
#[test]
fn names_need_not_be_utf8_unless_a_checkpoint_stores_them() {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;
    let odd = OsStr::from_bytes(b"odd\xff");
    let call = |arguments: &str, odd_flag: &str| {
        let output = command(arguments).arg(odd_flag).arg(odd).output().expect("it starts");
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };

    for flag in ["--journal", "--trace", "--data-dir"] {
        let (code, stderr) = call("simulate --samples 300 --epochs 5 --report odd.html", flag);
        assert_eq!((code, stderr.as_str()), (Some(0), "\nReport: odd.html\n"), "{flag}");
        fs::remove_file(work_dir().join(odd)).ok();
    }
    let page = fs::read_to_string(work_dir().join("odd.html")).unwrap();
    assert!(page.contains("--data-dir odd\u{fffd}</td>"), "{page}");
    let message = "a checkpoint cannot store the folder name odd\u{fffd}, which is not UTF-8: rename the folder";
    for (flags, flag) in [("", "--checkpoints"), ("--checkpoints odd-saves", "--data-dir")] {
        let refused = call(&format!("train --samples 300 --epochs 1 --no-report {flags}"), flag);
        assert_eq!(refused, (Some(2), format!("error: {message}\n")));
    }
}

#[test]
fn an_unwritable_default_report_or_plot_is_not_a_failure() {
    let folder = work_dir().join("no-drawing");
    fs::create_dir_all(folder.join("report.html")).unwrap();
    fs::create_dir_all(folder.join("paceline-compare.svg")).unwrap();

    for (arguments, message) in [
        ("train --epochs 1 --workers 4", "no report: cannot write the report report.html"),
        (
            "compare --strategies ssgd --epochs 1",
            "no plot: cannot write the plot paceline-compare.svg",
        ),
    ] {
        let output = command(arguments).current_dir(&folder).output().expect("it starts");

        assert_eq!(output.status.code(), Some(0));
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(stderr, format!("{message}: Is a directory (os error 21)\n"));
    }
    fs::remove_dir_all(folder).unwrap();
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_fails_the_report_but_not_the_summary() {
    for (flag, message) in [
        ("--report", "cannot write the report /dev/full"),
        ("--trace", "the trace /dev/full is incomplete"),
    ] {
        let call = paceline(&format!("simulate --epochs 1 {flag} /dev/full"));

        let expected = format!("error: {message}: No space left on device (os error 28)\n");
        assert_eq!((call.code, call.stderr), (1, expected));
        assert!(call.stdout.contains("samples   1,293 = 1.00 epochs"), "{}", call.stdout);
    }
}

#[test]
fn a_journal_that_cannot_be_opened_fails_before_the_run() {
    assert_refused(
        1,
        &[(
            "simulate --journal missing/run.jsonl",
            "cannot write the journal missing/run.jsonl: No such file or directory (os error 2)",
        )],
    );
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_is_reported_and_the_result_still_printed() {
    let call = paceline("simulate --epochs 1 --json --journal /dev/full");

    let message = "the journal /dev/full is incomplete: No space left on device (os error 28)";
    assert_eq!((call.code, call.stderr), (1, format!("error: {message}\n")));
    let outcome: Value = serde_json::from_str(&call.stdout).expect("the result is printed");
    assert_eq!(outcome["samples"], 1293);
}

#[test]
fn a_recorded_journal_can_be_read_again() {
    let recorded = outcome("simulate --epochs 1 --json --journal run.jsonl");

    let lines = paceline::job::journal_file::read(work_dir().join("run.jsonl"));
    let mut account = paceline::job::run::totals::RunTotals::default();
    for line in lines {
        paceline::Reader::read(&mut account, &line.expect("every line can be read"));
    }
    assert_eq!(recorded["samples"], account.samples());
    assert_eq!(recorded["bytes_sent"], account.bytes_sent);
}
