//! `paceline coordinate` and `paceline join`, as a user runs them.

#![cfg(unix)]

mod clocks;
mod gone;
mod program;
mod restarts;
mod strangers;
mod terminal;
mod told;

use std::time::{Duration, Instant};

use program::{Cluster, Process, result, stop, wait_until};

const USUAL: &str = "--workers 2:4 --strategy ssgd --patience 1 --epochs";

#[test]
fn workers_join_over_tls_also_in_mid_run_and_one_is_killed() {
    let cluster = Cluster::new("joins", &format!("{USUAL} 100000"));
    let coordinator = cluster.coordinator();
    let (first, second) = (cluster.worker(), cluster.worker());
    cluster.wait_for_line("\"record\":\"applied\"");
    let third = cluster.worker();
    cluster.wait_for_line("\"members\":[0,1,2]");

    second.kill();
    wait_until("two members are left", || {
        let journal = cluster.journal();
        journal.contains("\"members\":[0,2]") || journal.contains("\"members\":[1,2]")
    });

    let (result, _) = stop(coordinator);
    Process::all_succeed([first, third]);
    assert_eq!(result.started_over, 0);
}

/// The coordinator cannot have the data: they are in a file of the workers' folder, which it does not read.
#[test]
fn a_coordinator_needs_no_data_and_workers_must_have_the_same() {
    let cluster = Cluster::new("no-data", &format!("{USUAL} 3 --model charlm --data book.txt"));
    let folder = |name: &str, text: String| {
        let folder = cluster.folder.join(name);
        std::fs::create_dir_all(&folder).expect("it can be made");
        std::fs::write(folder.join("book.txt"), text).expect("it can be written");
        folder
    };
    let here = folder("here", "the quick brown fox jumps over the lazy dog. ".repeat(120));
    let other = folder("other", "the quick brown dog jumps over the lazy fox. ".repeat(120));
    let shorter = folder("shorter", "the quick brown fox jumps over the lazy dog. ".repeat(60));
    let coordinator = cluster.coordinator();
    let token = cluster.token();
    let join = |folder| Process::start(folder, &["join", &cluster.address, "--token", &token]);

    let first = join(&here);
    wait_until("the first worker has joined", || cluster.state().join("token").exists());
    std::thread::sleep(Duration::from_millis(500));
    let refused = [join(&other), join(&shorter)].map(Process::end);
    let second = join(&here);

    let result = result_of_text(coordinator);
    first.succeed();
    second.succeed();
    for (ended, differs) in refused.iter().zip(["other contents", "samples per epoch here"]) {
        assert_eq!(ended.code, Some(1), "{}", ended.err);
        assert!(ended.err.contains(differs), "{}", ended.err);
    }
    assert_eq!(result.epochs, 3.0);
}

/// Three epochs of a few sentences teach a model little.
fn result_of_text(coordinator: Process) -> paceline::RunResult {
    let ended = coordinator.end();
    let result: paceline::RunResult = serde_json::from_str(&ended.out).expect(&ended.err);
    assert_eq!((result.ledger.lost, result.ledger.repeated), (0, 0));
    result
}

#[test]
fn a_job_that_waits_for_workers_is_saved_and_ends_at_the_first_interrupt() {
    for strategy in ["ssgd", "easgd"] {
        let flags = format!("--workers 2 --strategy {strategy} --patience 1 --epochs 4000");
        let cluster = Cluster::new(&format!("paused-{strategy}"), &flags);
        let coordinator = cluster.coordinator();
        let (first, second) = (cluster.worker(), cluster.worker());
        cluster.wait_for_line("\"record\":\"applied\"");
        second.kill();
        wait_until("one member is left", || {
            let journal = cluster.journal();
            journal.contains("\"members\":[0],") || journal.contains("\"members\":[1],")
        });

        std::thread::sleep(Duration::from_millis(300));
        let since = Instant::now();
        coordinator.signal("-INT");
        let ended = coordinator.end();

        assert_eq!(ended.code, Some(130), "{strategy}: {}", ended.err);
        assert!(since.elapsed() < Duration::from_secs(10), "{strategy}");
        first.succeed();
        assert!(!cluster.checkpoints("state/checkpoints").is_empty(), "{strategy}: {}", ended.err);
    }
}

#[test]
fn a_coordinator_nobody_joins_ends_at_the_first_interrupt() {
    for workers in [0, 1] {
        let cluster = Cluster::new(&format!("nobody-{workers}"), &format!("{USUAL} 10"));
        let coordinator = cluster.coordinator();
        let token = cluster.token();
        assert!(token.starts_with("paceline1"));
        let first = (workers == 1).then(|| {
            let worker = cluster.worker();
            std::thread::sleep(Duration::from_millis(700));
            worker
        });

        coordinator.signal("-INT");
        let ended = coordinator.end();

        assert_eq!(ended.code, Some(130), "{}", ended.err);
        if let Some(first) = first {
            first.succeed();
        }
    }
}

#[test]
fn a_saved_job_is_resumed_with_more_epochs_on_a_new_coordinator() {
    let cluster = Cluster::new("resumed", &format!("{USUAL} 2000"));
    let coordinator = cluster.coordinator();
    let workers = [cluster.worker(), cluster.worker()];
    cluster.wait_for_line("\"record\":\"applied\"");
    coordinator.signal("-INT");
    assert_eq!(coordinator.end().code, Some(130));
    Process::all_succeed(workers);

    // The new one has neither the data nor the old state, only the checkpoint.
    let flags = "--workers 2 --resume state/checkpoints --checkpoints more --epochs 100";
    let arguments: Vec<&str> =
        ["coordinate", "--state", "second", "--json", "--no-report", "--listen", &cluster.address]
            .into_iter()
            .chain(flags.split(' '))
            .collect();
    let again = Process::start(&cluster.folder, &arguments);
    wait_until("there is a token", || cluster.folder.join("second/token").exists());
    let join = ["join", &cluster.address, "--token-file", "second/token"];
    let workers = [0, 1].map(|_| Process::start(&cluster.folder, &join));

    let ended = again.end();
    assert_eq!(ended.code, Some(0), "{}", ended.err);
    Process::all_succeed(workers);
    // The time of the job goes on, and does not begin anew.
    let times = |journal: &str| -> Vec<f64> {
        let text = std::fs::read_to_string(cluster.folder.join(journal)).expect("a journal");
        let lines = text.lines().filter(|line| !line.contains("\"began\""));
        let lines = lines.map(|line| serde_json::from_str(line).expect("a line"));
        lines.filter_map(|line: serde_json::Value| line["at"].as_f64()).collect()
    };
    let [before, after] = ["state/journal.jsonl", "second/journal.jsonl"].map(times);
    let applied = before.iter().copied().fold(0.0, f64::max);
    let first = after.iter().copied().fold(f64::MAX, f64::min);
    assert!(first > 0.0 && first > 0.5 * applied, "{first} after {applied}");
}

#[test]
fn workers_on_the_coordinators_machine_and_commands_of_the_user() {
    let cluster = Cluster::new("here", "--workers 3 --strategy ssgd --epochs 30 --workers-here 2");
    let coordinator = cluster.coordinator();
    let show = "echo \"$PACELINE_JOIN $PACELINE_TOKEN\" > shown; exit 7";
    let command = cluster.worker_with(&["--", "sh", "-c", show]).end();
    let third = cluster.worker();

    result(coordinator);

    third.succeed();
    assert_eq!(command.code, Some(7), "{}", command.err);
    let shown = std::fs::read_to_string(cluster.folder.join("shown")).expect("it was written");
    assert_eq!(shown.trim(), format!("{} {}", cluster.address, cluster.token()));
}

/// The same command in every task, as `torchrun --no-python` or `srun` starts it.
#[test]
fn the_first_task_of_a_launcher_coordinates_and_the_others_join_it() {
    let cluster = Cluster::new("launch", "");
    let (_, port) = cluster.address.rsplit_once(':').expect("an address has a port");
    let launch = |rank: &str| {
        let flags = "--strategy lb-bsp --model softmax --data blobs --epochs 20 --json --no-report";
        let mut arguments = vec!["launch", "--state", "state", "--port", port, "--"];
        arguments.extend(flags.split(' '));
        let tasks = [("RANK", rank), ("WORLD_SIZE", "3"), ("MASTER_ADDR", "127.0.0.1")];
        Process::start_as(&cluster.folder, &arguments, &tasks)
    };
    // A task may be there before the one that coordinates.
    let joins = [launch("2"), launch("1")];

    let result = result(launch("0"));

    Process::all_succeed(joins);
    assert_eq!(result.strategy, "lb-bsp");
    assert!(cluster.journal().contains("\"members\":[0,1,2]"));
    let alone = Process::start(&cluster.folder, &["launch", "--state", "other"]).end();
    assert_eq!(alone.code, Some(2));
    assert!(alone.err.contains("no launcher has started this program"), "{}", alone.err);
}
