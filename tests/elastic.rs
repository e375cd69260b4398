//! One training on real processes whose number changes from 2 to 6 to 3: the learning rate of `dynamic` follows the paper's
//! formula, and the run ends with the parameters of a simulation in which the same workers come and go before the same rounds.

#![cfg(unix)]

mod machines;

use std::fs;

use machines::{Cluster, Process};
use paceline::runtime::journal::fingerprint;
use paceline::sim::scenario::{Join, Leave};
use paceline::{Job, Line, Reader, Record, Scenario, SimulateOptions, WorkerId, simulate};

const BATCH: f64 = 16.0;
const RATE: f64 = 0.02;
/// The virtual time of a simulated round.
const ROUND: f64 = 1.0;

const JOB: &str = r#"
strategy = "dynamic"
batch = 16
epochs = 100
learning_rate = 0.02
schedule = "constant"
"#;

/// A result: the round, the members that made it, and the learning rate with which it was applied.
#[derive(Clone, Debug, PartialEq)]
struct Step {
    round: u64,
    members: Vec<WorkerId>,
    rate: f32,
}

fn steps(lines: &[Line]) -> Vec<Step> {
    let members_of = |view: u64| {
        lines.iter().find_map(|line| match &line.record {
            Record::View { number, members, .. } if *number == view => Some(members.clone()),
            _ => None,
        })
    };
    let step = |line: &Line| match &line.record {
        Record::Applied { round: Some(round), result: Some(result), rate, .. } => {
            let members = members_of(result.view).expect("the view was decided");
            Some(Step { round: *round, members, rate: *rate })
        }
        _ => None,
    };
    let mut steps: Vec<Step> = lines.iter().filter_map(step).collect();
    steps.sort_by_key(|step| step.round);
    steps
}

/// The rounds before which the members changed, with the members from then on.
fn changes(steps: &[Step]) -> Vec<(u64, Vec<WorkerId>)> {
    let changed = steps.windows(2).filter(|pair| pair[0].members != pair[1].members);
    changed.map(|pair| (pair[1].round, pair[1].members.clone())).collect()
}

/// Lin et al. 2019, eq. 6 with T = 8 k: if the batch grows k times, the rate grows linearly to k times its value in T rounds. If
/// the batch shrinks, the rate drops at once.
fn expected_rates(steps: &[Step]) -> Vec<f64> {
    let reference = steps[0].members.len() as f64 * BATCH;
    let (mut from, mut to, mut ramp, mut since) = (reference, reference, 0.0, 0.0);
    let mut current = reference;
    let mut rates = vec![];
    for step in steps {
        let batch = step.members.len() as f64 * BATCH;
        if batch != to {
            let ratio = batch / current;
            (from, to, since) = (current, batch, 0.0);
            ramp = if ratio > 1.0 { (8.0 * ratio).ceil() } else { 0.0 };
        }
        current = if since < ramp { from + since / ramp * (to - from) } else { to };
        since += 1.0;
        rates.push(RATE * current / reference);
    }
    rates
}

#[derive(Default)]
struct Lines(Vec<Line>);

impl Reader for Lines {
    fn read(&mut self, line: &Line) {
        self.0.push(line.clone());
    }
}

/// A cluster in which the members change before the same rounds. A worker that comes in the middle of a round is a member from the
/// next one on; a worker that is asked to leave says so at the end of the round, and contributes to one more.
fn simulated(changes: &[(u64, Vec<WorkerId>)], first: &[WorkerId]) -> Scenario {
    let mut scenario = Scenario { workers: first.len() as u32, ..Scenario::default() };
    scenario.compute.seconds_per_sample = ROUND / BATCH;
    scenario.compute.seconds_per_gradient = 0.0;
    scenario.compute.seconds_per_param = 0.0;
    scenario.network.latency = 0.0;
    scenario.network.bytes_per_second = 1e15;
    let mut before = first.to_vec();
    for (round, members) in changes {
        let at = (*round as f64 - 0.5) * ROUND;
        let newcomers = members.iter().filter(|who| !before.contains(who)).count() as u32;
        if newcomers > 0 {
            scenario.joins.push(Join { at, workers: newcomers });
        }
        let leavers = before.iter().filter(|who| !members.contains(who));
        scenario.leaves.extend(leavers.map(|who| Leave { worker: who.0, at: at - ROUND }));
        before.clone_from(members);
    }
    scenario
}

#[test]
fn two_workers_become_six_and_then_three_and_learn_as_simulated() {
    let port = machines::free_port();
    let mut cluster = Cluster::new("elastic", format!("127.0.0.1:{port}"), "--workers 2:6");
    let file = cluster.folder.join("job.toml");
    fs::write(&file, JOB).expect("a file can be written");
    cluster.arguments.extend(["--job".into(), file.display().to_string()]);

    let mut coordinator = cluster.coordinator(None);
    let mut workers: Vec<Process> = (0..2).map(|_| cluster.worker(None)).collect();
    let mut journal = cluster.journal();
    let mut members_become = |count: usize, rounds: usize| {
        journal.wait_until(&format!("{count} workers train"), |lines| {
            let is_so = machines::last_view(lines).len() == count;
            is_so && steps(lines).iter().filter(|it| it.members.len() == count).count() >= rounds
        });
    };
    members_become(2, 20);
    workers.extend((0..4).map(|_| cluster.worker(None)));
    members_become(6, 40);
    workers.iter().take(3).for_each(|worker| worker.signal("-TERM"));
    members_become(3, 20);
    let real = cluster.result(&mut coordinator);
    for worker in &mut workers {
        assert!(worker.end().success(), "{}", worker.messages());
    }

    let mut journal = cluster.journal();
    let lines = &journal.read().lines;
    let steps_made = steps(lines);
    let changed = changes(&steps_made);
    let sizes: Vec<usize> = changed.iter().map(|(_, members)| members.len()).collect();
    println!("members: 2, then {sizes:?}; before rounds {changed:?}");
    assert!(sizes.contains(&6) && sizes.last() == Some(&3), "{sizes:?}");
    for (step, expected) in steps_made.iter().zip(expected_rates(&steps_made)) {
        let rate = f64::from(step.rate);
        assert!((rate - expected).abs() < 1e-6, "{step:?}: the paper says {expected}");
    }
    assert_eq!((real.started_over, real.samples_wasted), (0, 0));

    let job = Job::from_toml(JOB).expect("a job");
    let prepared = job.prepare(2).expect("the job is valid");
    let scenario = simulated(&changed, &steps_made[0].members);
    let mut read = Lines::default();
    let options = SimulateOptions { readers: vec![&mut read], ..SimulateOptions::default() };
    let simulated = simulate(&prepared, &scenario, options).expect("it ends");

    assert_eq!(changes(&steps(&read.0)), changed, "the same members, from the same rounds on");
    assert_eq!(steps(&read.0), steps_made, "the same rates");
    let params = fingerprint(&simulated.params.expect("there are params"));
    let ends = lines.iter().filter_map(|line| match line.record {
        Record::Finished { fingerprint, .. } => Some(fingerprint),
        _ => None,
    });
    assert_eq!(ends.collect::<Vec<u64>>(), [params; 3], "the same parameters");
    assert_eq!(real.accuracy, simulated.result.accuracy);
    println!("accuracy {:.4} on processes and simulated", real.accuracy);
}
