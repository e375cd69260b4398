//! Hosts that join a coordinator over TLS: the same strategies drive them on real links, and end with the simulator's bits.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use paceline::job::processes::{
    CoordinateOptions, Coordinating, HostProgram, JoinOptions, StatePlace, WorkerSignals,
    join_hosted,
};
use paceline::runtime::journal::fingerprint;
use paceline::{
    Job, PrepareOptions, Scenario, SimulateOptions, Task, TrainOptions, WorkerId, simulate,
};

use crate::host::{Seen, at_once, host};

fn job(strategy: &str) -> Job {
    Job { strategy: strategy.into(), epochs: 1.0, seed: 5, batch: Some(8), ..Job::default() }
}

/// As the coordinator knows it: model and data are the workers' own.
fn own_job(strategy: &str) -> Job {
    Job { model: "own".into(), data: "own".into(), ..job(strategy) }
}

/// The token that a coordinator writes when it is ready.
fn token(state: &std::path::Path) -> String {
    let since = Instant::now();
    loop {
        if let Ok(text) = std::fs::read_to_string(state.join("token"))
            && text.ends_with('\n')
        {
            return text.trim().to_owned();
        }
        assert!(since.elapsed() < Duration::from_secs(30), "the coordinator writes its token");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Two hosts train `strategy` with a coordinator of their own. Returns the coordinator's result, and what the hosts have seen.
fn trained(strategy: &str) -> (paceline::OnProcesses, Seen) {
    let name = format!("paceline-hosts-{strategy}-{}", std::process::id());
    let state: PathBuf = std::env::temp_dir().join(name);
    let _ = std::fs::remove_dir_all(&state);
    // A port that is free now.
    let listen: SocketAddr = {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port is free");
        listener.local_addr().expect("it is bound")
    };
    let coordinating = {
        let (job, state) = (own_job(strategy), state.clone());
        std::thread::spawn(move || {
            let options = CoordinateOptions {
                listen,
                state: StatePlace::Folder(state),
                authority: None,
                members_first: 2,
                members_min: 2,
                members_max: None,
                patience: Duration::from_secs(5),
                insecure: false,
                token_uses: 10,
                token_lasts: Duration::from_secs(600),
                stop: Arc::default(),
                say: |_| {},
            };
            let recipes = paceline::recipes();
            let mut coordinating =
                Coordinating::open(&job, None, &recipes, options).expect("it listens");
            let first = coordinating.first_worker(&Arc::default()).expect("it listens");
            let prepared = first.expect("a worker joins");
            coordinating.train(&prepared, TrainOptions::default()).expect("it ends")
        })
    };
    let token = token(&state);
    let seen = Arc::<Mutex<Seen>>::default();
    let joining: Vec<_> = (0..2)
        .map(|_| {
            let (token, seen, job) = (token.clone(), seen.clone(), job(strategy));
            std::thread::spawn(move || {
                let task = Task::of(&job).expect("the data are built in");
                let options = PrepareOptions { task: Some(task.clone()), ..PrepareOptions::new(2) };
                let prepared = job.prepare_with(options).expect("the job is valid");
                let join = JoinOptions {
                    coordinator: listen.to_string(),
                    token: token.parse().expect("a token"),
                    advertise: None,
                    data_dir: None,
                    insecure: false,
                    signals: WorkerSignals::default(),
                    rescue: || Ok(std::env::temp_dir()),
                    say: |_| {},
                };
                let program = HostProgram { task, data: 17, addresses: Default::default() };
                join_hosted(join, program, host(&prepared, &seen, at_once)).expect("it ends");
            })
        })
        .collect();
    joining.into_iter().for_each(|it| it.join().expect("it does not panic"));
    let result = coordinating.join().expect("it does not panic");
    let _ = std::fs::remove_dir_all(&state);
    let seen = Arc::into_inner(seen).expect("all hosts have ended");
    (result, seen.into_inner().expect("no host panicked"))
}

#[test]
fn hosts_that_join_a_cluster_end_with_the_bits_of_the_simulator() {
    for strategy in ["ssgd", "adpsgd"] {
        let prepared = job(strategy).prepare(2).expect("the job is valid");
        let cluster = Scenario { workers: 2, ..Scenario::default() };
        let simulated = simulate(&prepared, &cluster, SimulateOptions::default()).expect("it ends");
        let simulated = simulated.params.map(|params| fingerprint(&params));

        let (joined, seen) = trained(strategy);

        assert_eq!(joined.fingerprint, simulated, "{strategy}");
        let ledger = joined.result.ledger;
        assert_eq!((ledger.lost, ledger.repeated), (0, 0), "{strategy}");
        assert!(seen.computed.values().all(|by| by.len() == 1), "{strategy}");
        assert_eq!(seen.computed.len() as u64, prepared.plan.samples_total, "{strategy}");
    }
}

#[test]
fn hosts_that_join_a_cluster_lease_their_samples() {
    let (joined, seen) = trained("gossip-pull");

    let ledger = joined.result.ledger;
    assert_eq!((ledger.lost, ledger.repeated), (0, 0));
    let workers: std::collections::BTreeSet<WorkerId> =
        seen.computed.values().flatten().copied().collect();
    assert_eq!(workers.len(), 2, "both have computed");
}
