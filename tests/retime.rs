//! Retiming a training for another cluster has the same result as running it there.

use std::sync::Arc;

use paceline::job::Training;
use paceline::runtime::Reader;
use paceline::{Job, RunResult, Scenario, SimulateOptions, simulate};

fn elsewhere() -> Scenario {
    let mut scenario = Scenario::default();
    scenario.compute.relative = vec![1.0, 3.0, 1.5, 1.0];
    scenario.compute.jitter = 0.2;
    scenario.network.bytes_per_second = 3e6;
    scenario
}

#[test]
fn recipes_that_read_no_clock_can_be_retimed_without_training_again() {
    for strategy in ["ssgd", "qsgd", "pipe", "cpsgd", "adpsgd", "diloco"] {
        let job = Job {
            strategy: strategy.into(),
            epochs: 6.0,
            target_loss: Some(0.5),
            ..Job::default()
        };
        let prepared = job.prepare(4).expect("the job is valid");
        let mut training = Training::default();
        let readers: Vec<&mut dyn Reader> = vec![&mut training];
        simulate(
            &prepared,
            &Scenario::default(),
            SimulateOptions { threads: 2, readers, ..Default::default() },
        )
        .expect("it ends");
        let there =
            simulate(&prepared, &elsewhere(), SimulateOptions { threads: 2, ..Default::default() })
                .expect("it ends")
                .result;

        let retimed = prepared.retimed(Arc::new(training));
        let retimed =
            simulate(&retimed, &elsewhere(), SimulateOptions::default()).expect("it ends").result;

        assert_eq!(retimed.virtual_seconds, there.virtual_seconds, "{strategy}");
        assert_eq!(retimed.bytes_sent, there.bytes_sent, "{strategy}");
        assert_eq!(retimed.accuracy, there.accuracy, "{strategy}");
        assert_eq!(retimed.period_mean, there.period_mean, "{strategy}");
        assert_eq!(retimed.utilization, there.utilization, "{strategy}");
        let near = |a: f64, b: f64| (a - b).abs() <= 1e-9 * b.abs();
        assert!(near(retimed.loss, there.loss), "{strategy}: {} {}", retimed.loss, there.loss);
        let reached = |result: &RunResult| result.seconds_to_target.expect("the target is reached");
        let (retimed, there) = (reached(&retimed), reached(&there));
        assert!(near(retimed, there), "{strategy}: {retimed} {there}");
    }
}

#[test]
fn recipes_that_read_the_clock_report_it() {
    for (strategy, expected) in
        [("ssgd", false), ("adpsgd", false), ("abs", true), ("dbs", true), ("easgd", true)]
    {
        let job = Job { strategy: strategy.into(), ..Job::default() };
        let prepared = job.prepare(4).expect("the job is valid");

        assert_eq!(prepared.reads_clock(), expected, "{strategy}");
    }
}

#[test]
fn a_run_may_end_when_it_reaches_its_target() {
    let job = Job { target_loss: Some(0.5), ..Job::default() };
    let mut prepared = job.prepare(4).expect("the job is valid");
    let whole = simulate(&prepared, &Scenario::default(), SimulateOptions::default())
        .expect("it ends")
        .result;

    prepared.ends_at_target = true;
    let short = simulate(&prepared, &Scenario::default(), SimulateOptions::default())
        .expect("it ends")
        .result;

    assert_eq!(short.seconds_to_target, whole.seconds_to_target);
    assert!(short.samples < whole.samples / 2, "{} of {}", short.samples, whole.samples);
    assert_eq!(short.ledger.lost + short.ledger.repeated, 0, "{:?}", short.ledger);
}
