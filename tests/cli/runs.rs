//! Runs of the program and their output.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::{command, outcome, paceline, work_dir};

#[test]
fn a_job_can_train_on_part_of_the_data_or_on_a_text_file() {
    fs::write(work_dir().join("verse.txt"), "to be or not to be. ".repeat(200)).unwrap();

    let part = outcome("simulate --samples 500 --epochs 2 --json");
    let text = outcome("simulate --model charlm --data verse.txt --epochs 1 --batch 4 --json");

    assert_eq!(part["samples"], 900, "a tenth is held out");
    assert_eq!(text["samples"], 100);
}

#[test]
fn a_run_that_diverges_fails_with_one_message() {
    let call = paceline("simulate --learning-rate 100");

    assert_eq!((call.code, call.stdout.as_str()), (1, ""));
    assert!(call.stderr.starts_with("error: ssgd diverged: the training loss diverged after"));
    assert_eq!(call.stderr.lines().count(), 1, "{}", call.stderr);
}

#[test]
fn compare_continues_when_a_strategy_diverges() {
    // At this learning rate synchronous SGD converges, and asynchronous SGD diverges.
    let call = paceline(
        "compare --strategies async,ssgd --learning-rate 3.5 --epochs 1 --target-loss 2.2 --no-plot",
    );

    let rows: Vec<&str> = call.stdout.lines().skip(4).collect();
    assert_eq!(call.code, 0, "{}", call.stderr);
    assert!(rows[0].starts_with("ssgd ") && !rows[0].contains("diverged"), "{rows:?}");
    assert!(rows[1].starts_with("async ") && rows[1].contains("diverged"), "{rows:?}");
    assert!(call.stderr.starts_with("async diverged: the training loss diverged after"));
    assert_eq!(call.stderr.matches("async").count(), 1, "{}", call.stderr);
}

#[test]
fn simulate_json_has_every_documented_field() {
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
        "validation_loss",
        "validation_accuracy",
        "accuracy",
        "utilization",
        "seconds_to_target",
        "journal_hash",
    ] {
        assert!(!outcome[field].is_null(), "{field} is missing in {outcome}");
    }
    assert_eq!(outcome["ledger"], serde_json::json!({ "done": 2586, "lost": 0, "repeated": 0 }));
    assert_eq!(outcome["journal_hash"].as_str().unwrap().len(), 16);
}

#[test]
fn the_same_seed_produces_the_same_journal_for_any_number_of_threads() {
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
        work_dir().join("job.toml"),
        "strategy = \"pipe\"\nepochs = 1.0\nbatch_total = 64\nseed = 5\n",
    )
    .unwrap();

    let of_file = outcome("simulate --job job.toml --json");
    let of_flags = outcome("simulate --job job.toml --strategy dbs --batch 4 --seed 6 --json");

    let settings = |outcome: &Value| {
        ["strategy", "batch", "seed", "samples"].map(|field| outcome[field].to_string())
    };
    assert_eq!(settings(&of_file), ["\"pipe\"", "8", "5", "1293"]);
    assert_eq!(settings(&of_flags), ["\"dbs\"", "4", "6", "1293"]);
}

#[test]
fn one_worker_odd_numbers_and_control_characters_are_printed_properly() {
    fs::write(work_dir().join("odd.toml"), "name = \"od\\u001bd\"\nworkers = 1\n").unwrap();

    let call = paceline("simulate odd.toml --epochs 1 --target-loss 1e300 --learning-rate 1e-9");
    let refused = paceline("simulate no\x1bne");

    let heading = "ssgd on od\x1bd: 1 worker, batch 16, learning rate 1e-9, seed 1\n";
    assert!(
        call.stdout.starts_with(heading),
        "control characters are escaped only on a terminal: {}",
        call.stdout
    );
    assert!(
        call.stdout.contains("\ntarget    validation loss 1e300 reached after "),
        "{}",
        call.stdout
    );
    assert!(refused.stderr.starts_with("error: there is no scenario `no\\u{1b}ne`"), "{refused:?}");
}

#[test]
fn simulate_names_the_slowest_worker() {
    let call =
        paceline("simulate stragglers --epochs 2 --batch 16 --learning-rate 0.1 --target-loss 2");

    assert_eq!((call.code, call.stderr.as_str()), (0, ""));
    for part in [
        "ssgd on stragglers: 8 workers, batch 16, learning rate 0.1, seed 1\n",
        "\nsamples   2,586 = 2.00 epochs\n",
        "\ntarget    validation loss 2 reached after ",
        "\nSlowest: worker 7. Others waited ",
        "# computing",
    ] {
        assert!(call.stdout.contains(part), "no {part:?} in\n{}", call.stdout);
    }
}

#[test]
fn compare_prints_a_row_per_strategy_and_a_plot() {
    let plot = work_dir().join("drawn.svg");
    let _ = fs::remove_file(&plot);

    let call = paceline("compare uniform --strategies ssgd,cpsgd --epochs 2 --plot drawn.svg");

    assert_eq!((call.code, call.stderr.as_str()), (0, "\nPlot: drawn.svg\n"));
    assert_eq!(call.stdout.lines().count(), 6, "{}", call.stdout);
    assert!(fs::read_to_string(plot).unwrap().starts_with("<svg"));
}

#[test]
fn compare_draws_a_page_if_the_plot_is_named_so() {
    let call = paceline("compare uniform --strategies ssgd --epochs 1 --plot compared.html");

    assert_eq!((call.code, call.stderr.as_str()), (0, "\nPlot: compared.html\n"));
    let page = fs::read_to_string(work_dir().join("compared.html")).unwrap();
    for part in ["<!DOCTYPE html>", "<td>ssgd</td>", ">Validation loss over time<"] {
        assert!(page.contains(part), "no {part} in {page}");
    }
}

#[test]
fn compare_says_of_each_rate_where_it_comes_from() {
    let compare = "compare uniform --strategies ssgd,diloco --epochs 1 --no-plot";
    for (flags, heading, ssgd, diloco) in [
        ("", "learning rates: defaults\n", " 0.2 default ", " 0.1 default "),
        ("--learning-rate 0.05", "rates: set by hand\n", " 0.05 by hand ", " 0.05 by hand "),
        ("--tuned-rates ssgd=0.3", "rates: 1 tuned, 1 default\n", " 0.3 tuned ", " 0.1 default "),
        (
            "--learning-rate 0.05 --tuned-rates ssgd=0.3",
            "rates: 1 tuned, 1 set by hand\n",
            " 0.3 tuned ",
            " 0.05 by hand ",
        ),
    ] {
        let call = paceline(&format!("{compare} {flags}"));

        assert_eq!((call.code, call.stderr.as_str()), (0, ""), "{flags}");
        assert!(call.stdout.contains(heading), "{flags}: {}", call.stdout);
        for (name, rate) in [("ssgd", ssgd), ("diloco", diloco)] {
            let row = call.stdout.lines().find(|line| line.starts_with(name)).expect("a row");
            assert!(row.contains(rate), "{flags}: {row}");
        }
    }
}

#[test]
fn compare_json_is_an_array_of_results() {
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
    assert_eq!(outcome["ledger"], serde_json::json!({ "done": 2586, "lost": 0, "repeated": 0 }));
    assert!(outcome["real_seconds"].as_f64().is_some_and(|seconds| seconds > 0.0));
    assert!(outcome["virtual_seconds"].is_null());
}

#[cfg(unix)]
#[test]
fn the_first_signal_finishes_the_round_and_prints_the_result() {
    let journal = work_dir().join("stopped.jsonl");
    let _ = fs::remove_file(&journal);
    let child =
        command("train --epochs 100000 --json --journal stopped.jsonl --report stopped.html")
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the program starts");
    wait_for_start(&journal);

    kill("-INT", &child);

    let output = child.wait_with_output().expect("it ends");
    assert_eq!(output.status.code(), Some(130));
    let stderr = String::from_utf8(output.stderr).unwrap();
    let said: Vec<&str> = stderr.lines().collect();
    assert_eq!(said[0], "finishing the round; press Ctrl-C again to stop at once");
    assert_eq!(said[1], "Report: stopped.html");
    let is_said = said[2].starts_with("stopped at epoch ") && said[2].ends_with(" of 100000");
    assert!(is_said && said.len() == 3, "{stderr}");
    assert!(
        fs::read_to_string(work_dir().join("stopped.html")).unwrap().contains("Loss over time")
    );
    let outcome: Value = serde_json::from_slice(&output.stdout).expect("the result is printed");
    assert!(outcome["samples"].as_u64().is_some_and(|samples| samples > 0));
    assert_eq!((&outcome["ledger"]["lost"], &outcome["stopped"]), (&0.into(), &true.into()));
}

/// Whether this process was started with SIGHUP ignored, as by `nohup`; its children inherit that.
#[cfg(unix)]
fn ignores_hangups() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    ignored.is_some_and(|mask| u64::from_str_radix(mask.trim(), 16).is_ok_and(|mask| mask & 1 == 1))
}

/// The exit code is that of a program which the signal has ended, the result is printed, and the report says so.
#[cfg(unix)]
#[test]
fn a_stopped_run_says_where_and_exits_like_its_signal() {
    for (signal, code) in [("INT", 130), ("TERM", 143), ("HUP", 129)] {
        if signal == "HUP" && ignores_hangups() {
            // Under nohup, programs are meant to go on.
            continue;
        }
        for run in ["simulate", "train --no-save"] {
            let journal = work_dir().join("halted.jsonl");
            let _ = fs::remove_file(&journal);
            let arguments =
                format!("{run} --epochs 100000 --journal halted.jsonl --report halted.html");
            let child = command(&arguments)
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()
                .expect("the program starts");
            wait_for_start(&journal);

            kill(&format!("-{signal}"), &child);

            let output = child.wait_with_output().expect("it ends");
            let stderr = String::from_utf8(output.stderr).unwrap();
            assert_eq!(output.status.code(), Some(code), "{run}: {stderr}");
            let last = stderr.lines().last().unwrap();
            assert!(last.starts_with("stopped at epoch "), "{run}: {stderr}");
            assert!(String::from_utf8(output.stdout).unwrap().contains(last), "{run}: {last}");
            let page = fs::read_to_string(work_dir().join("halted.html")).unwrap();
            assert!(page.contains(&format!("<p class=\"remark\">{last}</p>")), "{run}: {last}");
        }
    }
}

#[test]
fn a_run_that_learns_nothing_says_so_and_fails() {
    let classes = paceline("simulate --epochs 2 --learning-rate 1e-9");
    let others =
        paceline("simulate --model quadratic --data noise --epochs 2 --learning-rate 1e-9");

    for (call, part) in [
        (&classes, "no better than guessing among 10 classes (2.3026); try another learning rate"),
        (&others, "no better than at the beginning ("),
    ] {
        assert_eq!(call.code, 1, "{}", call.stderr);
        assert!(call.stdout.contains(" = 2.00 epochs"), "the result is printed: {}", call.stdout);
        assert!(
            call.stderr.starts_with("error: ssgd learned nothing: the training loss ended at ")
        );
        assert!(call.stderr.contains(part), "{}", call.stderr);
    }
    let compared = paceline("compare --strategies ssgd --epochs 2 --learning-rate 1e-9 --no-plot");
    assert_eq!(compared.code, 0, "to compare is not to fail: {}", compared.stderr);
    assert!(compared.stderr.starts_with("ssgd learned nothing: "), "{}", compared.stderr);
}

#[test]
fn the_last_weights_are_saved_in_a_new_folder_unless_refused() {
    let folder = work_dir().join("saved-by-default");
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).unwrap();
    let call = |arguments: &str| {
        let output = command(arguments).current_dir(&folder).output().expect("it starts");
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let train = "train --epochs 1 --no-report --speeds 1,1";

    let first = call(train);
    let second = call(train);
    let refused = call(&format!("{train} --no-save"));
    let json = call(&format!("{train} --json"));

    assert!(first.contains("\nweights   paceline-runs/dbs-1\n"), "{first}");
    assert!(second.contains("\nweights   paceline-runs/dbs-2\n"), "{second}");
    assert!(!refused.contains("weights") && !json.contains("paceline-runs"), "{refused}{json}");
    let mut runs: Vec<_> = fs::read_dir(folder.join("paceline-runs"))
        .unwrap()
        .map(|run| run.unwrap().path())
        .collect();
    runs.sort();
    assert_eq!(runs.len(), 2, "{runs:?}");
    assert!(call("evaluate paceline-runs/dbs-1").contains("accuracy"));
}

/// The demonstration emulates uneven workers and says so; a model or data that the user names get full speed.
#[test]
fn emulated_speeds_are_announced_and_only_for_the_demonstration() {
    let said = |arguments: &str| {
        let call = paceline(&format!("train {arguments} --epochs 1 --no-report --no-save"));
        assert_eq!(call.code, 0, "{}", call.stderr);
        (call.stderr, call.stdout)
    };
    let (stderr, stdout) = said("");
    assert_eq!(stderr, "emulating workers of relative speeds 4, 4, 2, 1\n");
    assert!(stdout.contains("\nspeeds    4, 4, 2, 1 (emulated)\n"), "{stdout}");
    for named in ["--model softmax", "--data digits", "--workers 4"] {
        let (stderr, stdout) = said(named);
        assert_eq!(stderr, "", "{named}");
        assert!(stdout.contains(": 4 workers") && !stdout.contains("speeds"), "{stdout}");
    }
}

/// Waits until the run has written to its journal.
#[cfg(unix)]
fn wait_for_start(journal: &Path) {
    let since = Instant::now();
    while fs::metadata(journal).map_or(0, |file| file.len()) == 0 {
        assert!(since.elapsed() < Duration::from_secs(60), "{} is empty", journal.display());
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[cfg(unix)]
fn kill(signal: &str, child: &Child) {
    let status = Command::new("kill").args([signal, &child.id().to_string()]).status();
    assert!(status.expect("there is a kill").success());
}

#[cfg(unix)]
#[test]
fn a_save_signal_without_checkpoints_does_not_end_the_run() {
    let journal = work_dir().join("unsaved.jsonl");
    let _ = fs::remove_file(&journal);
    let mut child = command("train --epochs 100000 --json --journal unsaved.jsonl --no-report")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let mut stderr = BufReader::new(child.stderr.take().unwrap()).lines();
    wait_for_start(&journal);

    kill("-USR1", &child);
    let answer = stderr.next().expect("there is one").unwrap();
    kill("-INT", &child);

    assert_eq!(answer, "SIGUSR1 ignored: this run saves nothing, start with --checkpoints DIR");
    let output = child.wait_with_output().expect("it ends");
    assert_eq!(output.status.code(), Some(130));
    fs::remove_file(journal).unwrap();
}

#[test]
fn a_printed_scenario_can_be_simulated() {
    let scenario = paceline("scenarios uniform");
    fs::write(work_dir().join("mine.toml"), &scenario.stdout).unwrap();

    let built_in = outcome("simulate uniform --epochs 1 --json");
    let printed = outcome("simulate mine.toml --epochs 1 --json");

    assert_eq!(printed, built_in);
}

#[test]
fn a_closed_stdout_is_a_silent_end() {
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
    // The check emulates a slower pace, so that the scheduler of the system does not decide.
    let of = |value: &Value| value.as_f64().expect("it is a number");
    assert!(of(&report["check"][0]["simulated"]) >= of(&virtually["virtual_seconds"]));
}
