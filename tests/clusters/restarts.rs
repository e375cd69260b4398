//! The coordinator is killed at random moments and started again, workers are killed with it, and its disk is full.

use std::process::Command;
use std::time::{Duration, Instant};

use paceline::learn::Dice;

use super::program::{Cluster, Process, result, stop, wait_until};

#[test]
fn a_coordinator_that_is_killed_continues_from_its_log() {
    let flags =
        "--workers 2:4 --strategy ssgd --patience 1 --checkpoint-rounds 500 --epochs 100000";
    let cluster = Cluster::new("restart", flags);
    let coordinator = cluster.coordinator();
    let workers = [cluster.worker(), cluster.worker()];
    // It has saved something by then, and must know its own checkpoints again.
    let newest = || cluster.checkpoints("state/checkpoints").pop();
    wait_until("a checkpoint is written", || newest().is_some());
    let first = newest();

    coordinator.kill();
    let coordinator = cluster.coordinator();
    cluster.wait_for_line("\"record\":\"restarted\"");
    wait_until("it has saved after its restart", || newest() > first);

    let (result, _) = stop(coordinator);
    Process::all_succeed(workers);
    assert_eq!((result.started_over, result.samples_wasted), (0, 0));
}

/// Whom to believe: the one that lives says that it cannot reach the other one, of which nothing is heard.
#[test]
fn a_worker_that_dies_with_the_coordinator_is_the_one_that_is_put_out() {
    let cluster =
        Cluster::new("both", "--workers 1:2 --strategy ssgd --patience 2 --epochs 100000");
    let coordinator = cluster.coordinator();
    let first = cluster.worker();
    cluster.wait_for_line("\"record\":\"applied\"");
    let second = cluster.worker();
    cluster.wait_for_line("\"members\":[0,1]");

    coordinator.kill();
    first.kill();
    let coordinator = cluster.coordinator();
    cluster.wait_for_line("worker 0 was");

    let (result, err) = stop(coordinator);
    let second = second.succeed();
    assert_eq!((result.started_over, result.samples_wasted), (0, 0), "{err}");
    assert!(!second.err.contains("joining again"), "{}", second.err);
}

/// There is nobody who could finish a round, and a coordinator that hears nobody puts nobody out: it may be cut off itself.
#[test]
fn a_coordinator_whose_workers_died_with_it_stops_when_it_is_asked_to() {
    for strategy in ["ssgd", "async"] {
        let flags = format!("--workers 2 --strategy {strategy} --patience 0.6 --epochs 100000");
        let cluster = Cluster::new("nobody", &flags);
        let coordinator = cluster.coordinator();
        let workers = [cluster.worker(), cluster.worker()];
        cluster.wait_for_line("\"record\":\"applied\"");
        coordinator.kill();
        workers.into_iter().for_each(Process::kill);
        let coordinator = cluster.coordinator();
        cluster.wait_for_line("\"record\":\"restarted\"");

        coordinator.signal("-INT");

        let ended = coordinator.end();
        assert_eq!(ended.code, Some(130), "{}", ended.err);
    }
}

#[test]
fn a_worker_that_hangs_just_when_the_job_is_over_does_not_keep_the_others() {
    // Its first member evaluates for a while when the job is over, before it reads what the others have learned.
    let flags =
        "--workers 3 --strategy ssgd --patience 0.6 --epochs 1 --model resnet20 --data digits";
    let cluster = Cluster::new("hangs-last", flags);
    let coordinator = cluster.coordinator();
    let [first, second, last] = [cluster.worker(), cluster.worker(), cluster.worker()];
    cluster.wait_for_line("\"record\":\"over\"");

    last.signal("-STOP");
    let result = result(coordinator);

    Process::all_succeed([first, second]);
    assert_eq!(result.ledger.done, result.samples);
    // It reads that nothing is left to do, or finds the connection broken; either way it ends.
    last.signal("-CONT");
    let last = last.end();
    assert!(last.code == Some(0) || last.err.contains("finished without it"), "{}", last.err);
}

/// As a user does who types the same command again.
#[test]
fn a_coordinator_that_was_stopped_says_how_to_continue_its_job() {
    let cluster = Cluster::new("stopped", "--workers 1:2 --strategy ssgd --epochs 100000");
    let coordinator = cluster.coordinator();
    let worker = cluster.worker();
    cluster.wait_for_line("\"record\":\"scored\"");

    coordinator.signal("-INT");
    let stopped = coordinator.end();
    let again = cluster.coordinator().end();

    worker.succeed();
    assert_eq!(stopped.code, Some(130), "{}", stopped.err);
    assert!(stopped.err.contains("paceline coordinate"), "{}", stopped.err);
    assert_eq!(again.code, Some(130), "{}", again.err);
    assert!(again.err.contains("this job was stopped; to continue it"), "{}", again.err);
    assert!(!again.err.contains("lost") && !again.err.contains("paceline join"), "{}", again.err);
}

/// Others read what a system keeps of a program's log.
#[test]
fn a_token_is_in_no_log_and_one_that_was_revoked_is_not_offered() {
    let cluster = Cluster::new("token-log", "--workers 1:2 --log json --epochs 100000");
    let coordinator = cluster.coordinator();
    let (token, state) = (cluster.token(), cluster.state());
    let worker = cluster.worker();
    cluster.wait_for_line("\"record\":\"applied\"");
    let revoke = ["token", "revoke", "0", "--state", state.to_str().expect("a plain name")];
    assert_eq!(Process::start(&state, &revoke).end().code, Some(0));
    coordinator.signal("-KILL");
    let first = coordinator.end().err;
    let coordinator = cluster.coordinator();
    cluster.wait_for_line("\"record\":\"restarted\"");
    let (_, second) = stop(coordinator);
    worker.succeed();

    assert!(first.contains("--token-file") && first.contains("paceline join"), "{first}");
    assert!(second.contains("was revoked") && !second.contains("paceline join"), "{second}");
    assert!(!first.contains(&token) && !second.contains(&token), "{first}{second}");
}

/// Without it, nothing would be left of what was learned.
#[test]
fn the_only_member_cannot_be_banned() {
    let cluster = Cluster::new("banned", "--workers 1:2 --strategy ssgd --epochs 100000");
    let coordinator = cluster.coordinator();
    let worker = cluster.worker();
    cluster.wait_for_line("\"record\":\"applied\"");

    let state = cluster.state();
    let ban = ["token", "ban", "0", "--state", state.to_str().expect("a plain name")];
    let banned = Process::start(&state, &ban).end();
    coordinator.signal("-INT");

    assert_eq!(banned.code, Some(1), "{}", banned.err);
    assert!(banned.err.contains("worker 0 is the only member"), "{}", banned.err);
    worker.succeed();
    coordinator.end();
}

/// `SOAK_SECONDS=3600` goes on for an hour.
#[test]
fn random_kills_of_the_coordinator_and_of_workers_lose_and_repeat_nothing() {
    let seconds = std::env::var("SOAK_SECONDS").ok().and_then(|text| text.parse().ok());
    let lasts = Duration::from_secs(seconds.unwrap_or(8));
    let since = Instant::now();
    let (mut kills, mut runs) = ([0, 0], 0);
    for (number, strategy) in ["ssgd", "async", "abs", "easgd"].into_iter().cycle().enumerate() {
        if runs > 1 && since.elapsed() > lasts {
            break;
        }
        let epochs = if ["async", "easgd"].contains(&strategy) { 12 } else { 120 };
        let flags = format!(
            "--workers 2:4 --strategy {strategy} --patience 1 --epochs {epochs} --checkpoint-rounds 50"
        );
        let cluster = Cluster::new(&format!("soak-{number}"), &flags);
        let mut coordinator = cluster.coordinator();
        let mut workers = vec![cluster.worker(), cluster.worker(), cluster.worker()];
        cluster.wait_for_line("\"record\":\"applied\"");
        let mut dice = Dice::keyed(&[number as u64, u64::from(std::process::id())]);
        for _ in 0..3 + dice.below(4) {
            std::thread::sleep(Duration::from_millis(100 + dice.below(500)));
            if !coordinator.runs() {
                break;
            }
            if dice.below(3) > 0 {
                coordinator.kill();
                std::thread::sleep(Duration::from_millis(dice.below(300)));
                coordinator = cluster.coordinator();
                kills[0] += 1;
            } else {
                let victim = dice.below(workers.len() as u64) as usize;
                workers.swap_remove(victim).kill();
                workers.push(cluster.worker());
                kills[1] += 1;
            }
        }
        let result = result(coordinator);
        println!(
            "{strategy}: {} samples, {} wasted, started over {} times",
            result.samples, result.samples_wasted, result.started_over
        );
        for worker in workers {
            // One that came when the job was over finds nobody.
            let ended = worker.end();
            assert!(ended.code.is_some(), "{}", ended.err);
        }
        runs += 1;
    }
    println!("{runs} runs, {} kills of the coordinator and {} of workers", kills[0], kills[1]);
}

/// Needs the right to mount a file system of its own.
#[test]
fn a_coordinator_whose_disk_is_full_says_so_and_its_workers_go_on() {
    let cluster =
        Cluster::new("full", "--workers 2 --strategy ssgd --epochs 150 --no-save --patience 5");
    let state = cluster.state();
    std::fs::create_dir_all(&state).expect("it can be made");
    let mount = |options: &str| {
        let mut command = Command::new("mount");
        command.args(["-t", "tmpfs", "-o", options, "paceline-test"]).arg(&state);
        command.stderr(std::process::Stdio::null()).status().is_ok_and(|status| status.success())
    };
    if !mount("size=192k") {
        println!("skipped: this user may not mount a small file system");
        return;
    }
    struct Unmount(std::path::PathBuf);
    impl Drop for Unmount {
        fn drop(&mut self) {
            let _ = Command::new("umount").arg("-l").arg(&self.0).status();
        }
    }
    let _mounted = Unmount(state.clone());
    let coordinator = cluster.coordinator();
    let mut workers = [cluster.worker(), cluster.worker()];

    let ended = coordinator.end();

    assert_eq!(ended.code, Some(1), "{}", ended.err);
    assert!(ended.err.contains("the disk is full"), "{}", ended.err);
    std::thread::sleep(Duration::from_millis(300));
    assert!(workers.iter_mut().all(Process::runs), "they go on without it");
    // With more room, the same command continues.
    assert!(mount("remount,size=64m"));
    result(cluster.coordinator());
    Process::all_succeed(workers);
}
