//! Two workers beside one, and a simulated cluster beside its gradients alone.

use std::sync::Arc;

use paceline::job::threads::{ThreadSetting, train};
use paceline::learn::net::{cnn, mlp, resnet};
use paceline::learn::{Extent, Net, patterns};
use paceline::runtime::Spans;
use paceline::runtime::cluster::Desk;
use paceline::sim::scenario::Sums;
use paceline::{Job, Prepared, Scenario, Task, recipes, simulate};

use crate::clock::{Spread, Stopwatch};
use crate::models::{BATCH, CLASSES, COLOR, GRAY};
use crate::peak;

const SAMPLES: usize = 4096;

/// Made-up images, and a test set so small that evaluation takes no time.
fn task(net: Net, image: Extent) -> Task {
    let images = |samples, seed| Arc::new(patterns(samples, image, CLASSES as u8, seed));
    Task { model: Arc::new(net), train: images(SAMPLES, 1), test: images(1, 2) }
}

/// A job of all-reduce for so many samples.
fn prepare(task: &Task, workers: u32, batch: u64, samples: u64) -> Prepared {
    let job = Job {
        strategy: "ssgd".into(),
        epochs: samples as f64 / SAMPLES as f64,
        batch: Some(batch),
        learning_rate: Some(1e-3),
        ..Job::default()
    };
    job.check(&recipes(), workers, Some(task.clone())).expect("the job is sound")
}

/// Samples per second of workers on threads.
fn trained(task: &Task, workers: u32, rounds: u64) -> f64 {
    let samples = rounds * u64::from(workers) * BATCH as u64;
    let prepared = prepare(task, workers, BATCH as u64, samples);
    let trained = train(&prepared, ThreadSetting::default(), Arc::default(), vec![]);
    let outcome = trained.unwrap_or_else(|_| panic!("the job ends")).outcome;
    assert_eq!(outcome.samples, samples);
    samples as f64 / outcome.real_seconds.expect("it ran in real time")
}

/// Prints what a second worker brings.
pub fn print_scaling(rounds: usize) {
    println!("\ntwo workers beside one, all-reduce on threads, batch {BATCH} each, by wall time");
    println!("{:<28} {:>13} {:>13} {:>22}", "what", "one", "two", "ratio");
    let tasks = [
        ("cnn, samples/s", task(cnn(GRAY, CLASSES), GRAY), 500),
        ("resnet20, samples/s", task(resnet(Net::new(COLOR), 3, CLASSES), COLOR), 25),
    ];
    let show = |name: &str, pairs: &[(f64, f64)]| {
        let one = Spread::of(pairs.iter().map(|(one, _)| *one)).median;
        let two = Spread::of(pairs.iter().map(|(_, two)| *two)).median;
        let ratio = Spread::of(pairs.iter().map(|(one, two)| two / one));
        println!("{name:<28} {one:>13.0} {two:>13.0} {ratio:>22.2}");
    };
    for (name, task, steps) in &tasks {
        let pair = |_| (trained(task, 1, *steps), trained(task, 2, *steps));
        show(name, &(0..rounds).map(pair).collect::<Vec<_>>());
    }
    let giga = |threads| peak::of_threads(threads).wall / 1e9;
    let pairs: Vec<_> = (0..rounds).map(|_| (giga(1), giga(2))).collect();
    show("the limit: peak, GFLOP/s", &pairs);
}

const WORKERS: u32 = 128;
const BATCH_SIMULATED: u64 = 32;
const ROUNDS_SIMULATED: u64 = 4;

/// Prints what simulating costs over computing the same gradients in a loop.
pub fn print_overhead(rounds: usize) {
    println!(
        "\n{WORKERS} simulated workers, all-reduce in closed form, batch {BATCH_SIMULATED}, one thread, by CPU time"
    );
    println!("{:<10} {:>15} {:>15} {:>24}", "model", "gradients, s", "simulated, s", "overhead, %");
    let tasks = [
        ("cnn", task(cnn(GRAY, CLASSES), GRAY)),
        ("mlp", task(mlp(GRAY.len(), &[256, 128], CLASSES), GRAY)),
    ];
    for (name, task) in &tasks {
        let samples = ROUNDS_SIMULATED * u64::from(WORKERS) * BATCH_SIMULATED;
        let prepared = prepare(task, WORKERS, BATCH_SIMULATED, samples);
        let pair = |_| (gradients(&prepared), simulated(&prepared));
        let pairs: Vec<(f64, f64)> = (0..rounds).map(pair).collect();
        let alone = Spread::of(pairs.iter().map(|(alone, _)| *alone)).median;
        let whole = Spread::of(pairs.iter().map(|(_, whole)| *whole)).median;
        let overhead = Spread::of(pairs.iter().map(|(alone, whole)| 100.0 * (whole / alone - 1.0)));
        println!("{name:<10} {alone:>15.2} {whole:>15.2} {overhead:>24.1}");
    }
}

/// CPU seconds of all gradients of the job, one after the other.
fn gradients(prepared: &Prepared) -> f64 {
    let compute = prepared.task.compute(prepared.plan.seed);
    let mut desk = Desk::default();
    let since = Stopwatch::start();
    for from in (0..prepared.plan.samples_total).step_by(BATCH_SIMULATED as usize) {
        let spans = Spans::one(from, from + BATCH_SIMULATED);
        std::hint::black_box(compute(&prepared.plan.initial, &spans, &mut desk));
    }
    since.stop().1
}

/// CPU seconds of simulating the job.
fn simulated(prepared: &Prepared) -> f64 {
    let mut scenario = Scenario { workers: WORKERS, ..Scenario::default() };
    scenario.network.sums = Sums::ClosedForm;
    let since = Stopwatch::start();
    let simulated = simulate(prepared, &scenario, 1, vec![]);
    let seconds = since.stop().1;
    let outcome = simulated.unwrap_or_else(|_| panic!("the run ends")).outcome;
    assert_eq!(outcome.samples, prepared.plan.samples_total);
    seconds
}
