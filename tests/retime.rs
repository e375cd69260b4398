//! A run that is told again on another cluster is the run that would have happened there.

use std::sync::Arc;

use paceline::job::Training;
use paceline::runtime::Reader;
use paceline::{Job, Scenario, simulate};

fn elsewhere() -> Scenario {
    let mut scenario = Scenario::default();
    scenario.compute.relative = vec![1.0, 3.0, 1.5, 1.0];
    scenario.compute.jitter = 0.2;
    scenario.network.bytes_per_second = 3e6;
    scenario
}

#[test]
fn what_reads_no_clock_can_be_timed_without_learning_it_again() {
    for strategy in ["ssgd", "qsgd", "pipe", "cpsgd", "adpsgd", "diloco"] {
        let job = Job {
            strategy: strategy.into(),
            epochs: 6.0,
            target_loss: Some(0.5),
            ..Job::default()
        };
        let prepared = job.prepare(4).expect("the job is sound");
        let mut training = Training::default();
        let readers: Vec<&mut dyn Reader> = vec![&mut training];
        simulate(&prepared, &Scenario::default(), 2, readers).expect("it ends");
        let there = simulate(&prepared, &elsewhere(), 2, vec![]).expect("it ends").result;

        let retimed = prepared.retimed(Arc::new(training));
        let told = simulate(&retimed, &elsewhere(), 1, vec![]).expect("it ends").result;

        assert_eq!(told.virtual_seconds, there.virtual_seconds, "{strategy}");
        assert_eq!(told.bytes_sent, there.bytes_sent, "{strategy}");
        assert_eq!(told.accuracy, there.accuracy, "{strategy}");
        assert_eq!(told.period_mean, there.period_mean, "{strategy}");
        assert_eq!(told.utilization, there.utilization, "{strategy}");
        let near = |a: f64, b: f64| (a - b).abs() <= 1e-9 * b.abs();
        assert!(near(told.loss, there.loss), "{strategy}: {} {}", told.loss, there.loss);
        let (told, there) = (told.time_to_target_seconds, there.time_to_target_seconds);
        let (told, there) = (told.expect("it is reached"), there.expect("it is reached"));
        assert!(near(told, there), "{strategy}: {told} {there}");
    }
}

#[test]
fn what_reads_the_clock_says_so() {
    for (strategy, expected) in
        [("ssgd", false), ("adpsgd", false), ("abs", true), ("dbs", true), ("easgd", true)]
    {
        let job = Job { strategy: strategy.into(), ..Job::default() };
        let prepared = job.prepare(4).expect("the job is sound");

        assert_eq!(prepared.reads_clock(), expected, "{strategy}");
    }
}

#[test]
fn a_run_may_end_where_its_target_is_reached() {
    let job = Job { target_loss: Some(0.5), ..Job::default() };
    let mut prepared = job.prepare(4).expect("the job is sound");
    let whole = simulate(&prepared, &Scenario::default(), 1, vec![]).expect("it ends").result;

    prepared.ends_at_target = true;
    let short = simulate(&prepared, &Scenario::default(), 1, vec![]).expect("it ends").result;

    assert_eq!(short.time_to_target_seconds, whole.time_to_target_seconds);
    assert!(short.samples < whole.samples / 2, "{} of {}", short.samples, whole.samples);
    assert_eq!(short.ledger.lost + short.ledger.repeated, 0, "{:?}", short.ledger);
}
