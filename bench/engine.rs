//! How fast the simulator is: `cargo bench --bench engine` prints a table.
//!
//! The physical limits: a virtual event costs a heap operation and a map lookup (about 0.2 us), a gradient and
//! an update of a tiny model about 0.5 us. What is well above their sum is overhead.

use std::sync::Arc;
use std::time::Instant;

use paceline::learn::{Noise, Quadratic};
use paceline::sim::scenario::RingModel;
use paceline::{Choices, Job, PrepareOptions, Prepared, Scenario, StrategyKind, Task, simulate};

fn main() {
    println!("{:<58} {:>9} {:>14}", "what", "seconds", "us per step");
    let gossip = |workers, steps| {
        row("gossip, messages", StrategyKind::GossipPull, RingModel::Messages, workers, steps, 16)
    };
    let ring = |workers, steps| {
        row(
            "all-reduce, messages",
            StrategyKind::AllReduce,
            RingModel::Messages,
            workers,
            steps,
            1280,
        )
    };
    let closed = |workers, steps| {
        row(
            "all-reduce, closed form",
            StrategyKind::AllReduce,
            RingModel::ClosedForm,
            workers,
            steps,
            1280,
        )
    };
    gossip(128, 1000);
    gossip(64, 1000);
    gossip(128, 2000);
    gossip(1000, 100);
    ring(128, 100);
    ring(64, 100);
    closed(128, 100);
    closed(256, 100);
    closed(1000, 100);
    row(
        "all-reduce, closed form",
        StrategyKind::AllReduce,
        RingModel::ClosedForm,
        1000,
        10,
        100_000,
    );
    println!("memory at the peak: {:.0} MiB", resident_mebibytes());
}

/// Simulates so many steps of every worker, one sample each, of a quadratic of that size.
fn row(what: &str, kind: StrategyKind, sums: RingModel, workers: u32, steps: u64, size: usize) {
    let prepared = prepare(kind, workers, steps, size);
    let mut scenario = Scenario { workers, ..Scenario::default() };
    scenario.network.sums = sums;
    let since = Instant::now();
    let outcome = simulate(&prepared, &scenario, 1, vec![]).expect("the run ends").result;
    let seconds = since.elapsed().as_secs_f64();
    assert_eq!(outcome.samples, prepared.plan.samples_total);
    let name = format!("{what}: {workers} workers x {steps} rounds, {size} parameters");
    let each = 1e6 * seconds / (f64::from(workers) * steps as f64);
    println!("{name:<58} {seconds:>9.3} {each:>14.2}");
}

fn prepare(kind: StrategyKind, workers: u32, steps: u64, size: usize) -> Prepared {
    let model = Arc::new(Quadratic { curvature: vec![0.1; size], noise: 0.0 });
    let len = u64::from(workers) * steps;
    let task = Task { model, train: Arc::new(Noise { len }), test: Arc::new(Noise { len: 1 }) };
    let job = Job {
        choices: Some(Choices::of(kind)),
        epochs: 1.0,
        batch: Some(1),
        learning_rate: Some(0.01),
        ..Job::default()
    };
    job.prepare_with(PrepareOptions { task: Some(task), ..PrepareOptions::new(workers) })
        .expect("the job is sound")
}

/// The most memory this process has held so far; 0 where the system does not tell.
fn resident_mebibytes() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = peak.and_then(|text| text.trim().trim_end_matches(" kB").parse::<f64>().ok());
    kib.unwrap_or(0.0) / 1024.0
}
