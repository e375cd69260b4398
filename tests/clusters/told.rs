//! What users are told at the coordinator's and at the workers' terminals, where they could not know it otherwise.

use std::net::TcpListener;
use std::time::Duration;

use crate::program::{Cluster, Process, stop, wait_until};

/// Kills all workers but one, and waits until the journal shows it.
fn leave_one(cluster: &Cluster, mut workers: Vec<Process>) -> Process {
    cluster.wait_for_line("\"record\":\"applied\"");
    let first = workers.remove(0);
    workers.into_iter().for_each(Process::kill);
    wait_until("one member is left", || {
        let journal = cluster.journal();
        (0..3).any(|who| journal.contains(&format!("\"members\":[{who}],")))
    });
    std::thread::sleep(Duration::from_millis(300));
    first
}

#[test]
fn a_job_that_waits_for_workers_saves_when_it_is_asked_to() {
    for strategy in ["ssgd", "pipe", "easgd", "async", "adpsgd"] {
        let flags = format!("--workers 2 --strategy {strategy} --patience 1 --epochs 4000");
        let cluster = Cluster::new(&format!("saves-{strategy}"), &flags);
        let coordinator = cluster.coordinator();
        let _last = leave_one(&cluster, vec![cluster.worker(), cluster.worker()]);
        assert!(cluster.checkpoints("state/checkpoints").is_empty(), "{strategy}");

        coordinator.signal("-USR1");

        wait_until(&format!("{strategy} is saved"), || {
            !cluster.checkpoints("state/checkpoints").is_empty()
        });
    }
}

#[test]
fn the_last_worker_of_a_job_that_waits_is_saved_and_leaves_and_others_continue() {
    for strategy in ["ssgd", "pipe"] {
        let flags = format!("--workers 2 --strategy {strategy} --patience 1 --epochs 100000");
        let cluster = Cluster::new(&format!("last-{strategy}"), &flags);
        let coordinator = cluster.coordinator();
        let last = leave_one(&cluster, vec![cluster.worker(), cluster.worker()]);

        last.signal("-TERM");
        last.succeed();
        assert!(!cluster.checkpoints("state/checkpoints").is_empty(), "{strategy}");
        let applied = || cluster.journal().matches("\"record\":\"applied\"").count();
        let before = applied();
        let others = [cluster.worker(), cluster.worker()];
        wait_until("others have continued", || applied() > before);

        let (result, _) = stop(coordinator);
        Process::all_succeed(others);
        assert_eq!(result.started_over, 1, "{strategy}: from the checkpoint");
        // What was learned before is in the checkpoint, so that nothing is computed twice.
        assert_eq!(result.ledger.done, result.samples, "{strategy}");
    }
}

#[test]
fn a_worker_leaves_a_job_that_waits_while_another_one_stays() {
    for strategy in ["ssgd", "easgd", "adpsgd"] {
        let flags = format!("--workers 3 --strategy {strategy} --patience 1 --epochs 4000");
        let cluster = Cluster::new(&format!("one-leaves-{strategy}"), &flags);
        let _coordinator = cluster.coordinator();
        let [first, second, third] = [cluster.worker(), cluster.worker(), cluster.worker()];
        cluster.wait_for_line("\"record\":\"applied\"");
        third.kill();
        wait_until("two members are left", || {
            let journal = cluster.journal();
            ["[0,1]", "[0,2]", "[1,2]"]
                .iter()
                .any(|members| journal.contains(&format!("\"members\":{members},")))
        });
        std::thread::sleep(Duration::from_millis(300));

        second.signal("-TERM");

        second.succeed();
        drop(first);
    }
}

#[test]
fn a_last_worker_that_cannot_be_saved_is_told_why_it_stays() {
    for flags in ["--strategy ssgd --no-save", "--strategy easgd"] {
        let name = flags.replace(' ', "");
        let flags = format!("--workers 2 --patience 1 --epochs 4000 {flags}");
        let cluster = Cluster::new(&format!("stays{name}"), &flags);
        let coordinator = cluster.coordinator();
        let last = leave_one(&cluster, vec![cluster.worker(), cluster.worker()]);

        last.signal("-TERM");
        std::thread::sleep(Duration::from_secs(1));
        coordinator.signal("-INT");

        let ended = last.succeed();
        assert!(ended.err.contains("this is the last worker"), "{flags}: {}", ended.err);
        assert_eq!(coordinator.end().code, Some(130));
    }
}

#[test]
fn losses_and_leaves_are_said_at_the_coordinators_terminal() {
    let cluster = Cluster::new("says", "--workers 1:3 --strategy ssgd --patience 1 --epochs 4000");
    let coordinator = cluster.coordinator();
    let [first, second, third] = [cluster.worker(), cluster.worker(), cluster.worker()];
    cluster.wait_for_line("\"members\":[0,1,2]");
    second.signal("-TERM");
    second.succeed();
    wait_until("it has left", || cluster.journal().matches("\"record\":\"view\"").count() > 1);
    third.kill();
    wait_until("it is lost", || cluster.journal().contains("\"record\":\"freed\""));
    std::thread::sleep(Duration::from_millis(300));

    coordinator.signal("-INT");

    let ended = coordinator.end();
    first.succeed();
    let lines = |part: &str| ended.err.lines().filter(|line| line.contains(part)).count();
    assert_eq!((lines(" left"), lines(" was lost")), (1, 1), "{}", ended.err);
}

#[test]
fn a_worker_beyond_the_maximum_is_told_that_the_job_is_full() {
    let cluster = Cluster::new("full", "--workers 1:1 --strategy ssgd --patience 1 --epochs 4000");
    let coordinator = cluster.coordinator();
    let first = cluster.worker();
    cluster.wait_for_line("\"record\":\"applied\"");
    let second = cluster.worker();
    std::thread::sleep(Duration::from_secs(1));

    coordinator.signal("-INT");

    assert_eq!(coordinator.end().code, Some(130));
    let [first, second] = [first.succeed(), second.succeed()];
    assert!(second.err.contains("the job is full: it has 1 member, as many"), "{}", second.err);
    assert_eq!(second.err.matches("the job is full").count(), 1);
    assert!(!first.err.contains("full"), "{}", first.err);
}

#[test]
fn insecure_on_one_side_only_is_explained() {
    let secure = Cluster::new("secure", "--workers 1 --strategy ssgd --epochs 3");
    let _coordinator = secure.coordinator();
    let ended = secure.worker_with(&["--insecure"]).end();
    assert_eq!(ended.code, Some(1));
    assert!(
        ended.err.contains("encrypts its connections, and --insecure was given here"),
        "{}",
        ended.err
    );

    let insecure = Cluster::new("insecure", "--workers 1 --strategy ssgd --epochs 3 --insecure");
    let _coordinator = insecure.coordinator();
    let ended = insecure.worker().end();
    assert_eq!(ended.code, Some(1));
    assert!(
        ended.err.contains("was started with --insecure: give --insecure here, too"),
        "{}",
        ended.err
    );
}

#[test]
fn a_state_of_another_job_names_the_setting_that_differs() {
    let job = |epochs| {
        let flags = format!("--workers 1 --strategy ssgd --seed 5 --epochs {epochs}");
        Cluster::new("other-job", &flags)
    };
    let first = job(3);
    let coordinator = first.coordinator();
    first.token();
    coordinator.kill();
    let address = first.address.clone();
    let arguments = "coordinate --state state --no-report --workers 1 --strategy ssgd --seed 5 --epochs 4 --model softmax --data blobs --listen";
    let arguments: Vec<&str> = arguments.split(' ').chain([address.as_str()]).collect();

    let ended = Process::start(&first.folder, &arguments).end();

    assert_eq!(ended.code, Some(1));
    assert!(
        ended.err.contains("belongs to another job (epochs is 3.0 there and 4.0 here)"),
        "{}",
        ended.err
    );
}

#[test]
fn a_log_has_a_line_for_every_checkpoint() {
    let flags = "--workers 1 --strategy ssgd --epochs 3 --log text";
    let cluster = Cluster::new("log", flags);
    let coordinator = cluster.coordinator();
    let worker = cluster.worker();

    let ended = coordinator.succeed();
    worker.succeed();

    let saved = ended.err.lines().filter(|line| line.contains("a checkpoint was saved")).count();
    assert!(saved >= 1, "{}", ended.err);
    assert_eq!(saved, cluster.checkpoints("state/checkpoints").len(), "{}", ended.err);
}

#[test]
fn nobody_is_invited_when_the_port_of_the_page_is_taken() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let page = taken.local_addr().expect("it is bound");
    let cluster = Cluster::new("page-taken", &format!("--workers 1 --strategy ssgd --page {page}"));

    let ended = cluster.coordinator().end();

    assert_eq!(ended.code, Some(1));
    assert!(ended.err.contains(&page.to_string()), "{}", ended.err);
    assert!(!ended.err.contains("paceline join"), "{}", ended.err);
    assert_eq!(ended.err.lines().count(), 1, "{}", ended.err);
}

/// A batch system may start all tasks again, after the job has ended.
#[test]
fn a_job_that_is_done_is_launched_again_and_says_so() {
    let cluster = Cluster::new("launched-again", "");
    let (_, port) = cluster.address.rsplit_once(':').expect("an address has a port");
    let launch = |rank: &str| {
        let flags = "--strategy ssgd --model softmax --data blobs --epochs 5 --no-report";
        let mut arguments = vec!["launch", "--state", "state", "--port", port, "--"];
        arguments.extend(flags.split(' '));
        let tasks = [("RANK", rank), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "127.0.0.1")];
        Process::start_as(&cluster.folder, &arguments, &tasks)
    };
    Process::all_succeed([launch("0"), launch("1")]);

    let again = [launch("0"), launch("1")].map(Process::end);

    for ended in again {
        assert_eq!(ended.code, Some(0), "{}", ended.err);
        assert!(ended.err.contains("is done"), "{}", ended.err);
    }
}
