//! A coordinator that is gone for good: the members finish what they can, and one of them saves it.

use super::program::{Cluster, Ended, Process, wait_until};

/// The coordinator and the third worker, if there is one, are killed: two are left.
fn abandoned(name: &str, strategy: &str, epochs: u32, workers: usize) -> (Cluster, Vec<Ended>) {
    let flags =
        format!("--workers {workers} --strategy {strategy} --patience 0.6 --epochs {epochs}");
    let cluster = Cluster::new(name, &flags);
    let coordinator = cluster.coordinator();
    let mut workers: Vec<Process> = (0..workers).map(|_| cluster.worker()).collect();
    cluster.wait_for_line("\"record\":\"applied\"");
    coordinator.kill();
    workers.drain(2..).for_each(Process::kill);
    (cluster, workers.into_iter().map(Process::end).collect())
}

/// Resumes what was saved, on threads, and stops again at once.
fn resume(cluster: &Cluster) -> String {
    let resumed = Process::start(
        &cluster.folder,
        &[
            "train",
            "--resume",
            "paceline-runs/rescued-1",
            "--workers",
            "2",
            "--json",
            "--no-report",
        ],
    );
    std::thread::sleep(std::time::Duration::from_millis(500));
    resumed.signal("-INT");
    resumed.end().err
}

#[test]
fn after_the_next_loss_the_lowest_member_that_is_left_saves_what_was_learned() {
    let (cluster, ended) = abandoned("lost", "ssgd", 100_000, 3);

    let all: Vec<&str> = ended.iter().map(|it| it.err.as_str()).collect();
    assert!(ended.iter().all(|it| it.code == Some(1)), "{all:?}");
    // Both save, if one had ended when the other gave the coordinator up.
    let saved = ended.iter().filter(|it| it.err.contains("what was learned is saved")).count();
    let left = ended.iter().filter(|it| it.err.contains("saves what was learned")).count();
    assert!(saved >= 1 && saved + left == 2, "{all:?}");
    let [saved] = &cluster.checkpoints("paceline-runs/rescued-1")[..] else { panic!("{all:?}") };
    assert!(saved.as_str() > "round-000000", "{saved}");
    let resumed = resume(&cluster);
    assert!(resumed.contains("stopped at epoch"), "{resumed}");
}

#[test]
fn synchronous_members_finish_the_job_without_their_coordinator() {
    let (cluster, ended) = abandoned("finished", "ssgd", 1000, 2);

    let said = |part: &str| ended.iter().filter(|it| it.err.contains(part)).count();
    let all: Vec<&str> = ended.iter().map(|it| it.err.as_str()).collect();
    assert!(ended.iter().all(|it| it.code == Some(1)), "{all:?}");
    // Both, if one had ended when the other gave the coordinator up.
    let finished = said("the job was finished without it");
    let left = said("saves what was learned");
    assert!(finished >= 1 && finished + left == 2, "{all:?}");
    assert_eq!(cluster.checkpoints("paceline-runs/rescued-1").len(), 1, "{all:?}");
    // Every sample was applied: there is nothing left to train.
    let again = Process::start(
        &cluster.folder,
        &[
            "train",
            "--resume",
            "paceline-runs/rescued-1",
            "--workers",
            "2",
            "--json",
            "--no-report",
        ],
    );
    let again = again.end();
    assert!(again.err.contains("all 1000 epochs are already done"), "{}", again.err);
}

/// Nobody is left to tell them that nothing more is needed of them.
#[test]
fn members_whose_coordinator_dies_when_the_job_is_over_end_and_save_it() {
    // The first member evaluates for a while when the job is over.
    let flags =
        "--workers 2 --strategy ssgd --patience 0.6 --epochs 1 --model resnet20 --data digits";
    let begin = |attempt: u32| {
        let cluster = Cluster::new(&format!("over-{attempt}"), flags);
        let mut coordinator = cluster.coordinator();
        let workers = [cluster.worker(), cluster.worker()];
        cluster.wait_for_line("\"record\":\"over\"");
        // On a busy machine the job may have ended before this process noticed that it was over.
        let is_in_time = coordinator.runs();
        coordinator.kill();
        is_in_time.then_some((cluster, workers))
    };

    let (cluster, workers) = (0..5).find_map(begin).expect("one of five is noticed in time");
    let ended = workers.map(Process::end);

    let all = ended.each_ref().map(|it| it.err.as_str());
    assert!(all.iter().any(|err| err.contains("the job was finished without it")), "{all:?}");
    assert_eq!(cluster.checkpoints("paceline-runs/rescued-1").len(), 1, "{all:?}");
}

/// Asynchronous members get no more samples.
fn saves(strategy: &str) {
    let (cluster, ended) = abandoned(strategy, strategy, 100_000, 2);

    let has_saved = |it: &Ended| it.err.contains("what was learned is saved");
    let all: Vec<&str> = ended.iter().map(|it| it.err.as_str()).collect();
    assert!(ended.iter().all(|it| it.code == Some(1)), "{all:?}");
    assert!(ended.iter().any(has_saved), "{all:?}");
    wait_until("it is saved", || !cluster.checkpoints("paceline-runs/rescued-1").is_empty());
    let resumed = resume(&cluster);
    assert!(resumed.contains("stopped at epoch"), "{resumed}");
}

#[test]
fn members_with_an_elastic_center_save_their_replica_and_the_center() {
    saves("easgd");
}

#[test]
fn members_with_a_parameter_server_save_the_center() {
    saves("async");
}

#[test]
fn gossiping_members_save_their_replica() {
    saves("gossip-pull");
}
