//! Two workers beside one, and a simulated cluster beside its gradients alone.

use std::sync::Arc;

use paceline::job::threads::{ThreadSetting, train};
use paceline::learn::net::{cnn, mlp, resnet};
use paceline::learn::{Extent, Images, Net, patterns};
use paceline::runtime::Spans;
use paceline::runtime::cluster::Desk;
use paceline::sim::scenario::Sums;
use paceline::{Dataset, Job, Model, Prepared, Scenario, Task, recipes, simulate};

use crate::clock::{Spread, Stopwatch};
use crate::models::{BATCH, CLASSES, COLOR, GRAY};
use crate::peak;

/// Some made-up images over and over: as many samples as a job wants, so that an epoch is the whole job and nothing is
/// evaluated on the way.
struct Repeated {
    images: Images,
    len: u64,
}

impl Dataset for Repeated {
    fn len(&self) -> u64 {
        self.len
    }

    fn features(&self) -> usize {
        self.images.features()
    }

    fn classes(&self) -> usize {
        self.images.classes()
    }

    fn extent(&self) -> Extent {
        self.images.extent()
    }

    fn read(&self, index: u64, epoch: u64, into: &mut [f32]) -> u32 {
        self.images.read(index % self.images.len(), epoch, into)
    }
}

/// A model, and the images it sees.
type Seen = (Arc<dyn Model>, Extent);

/// A job of all-reduce.
fn prepare((model, extent): &Seen, workers: u32, batch: u64, rounds: u64) -> Prepared {
    let images = |samples, len| {
        let images = patterns(samples, *extent, CLASSES as u8, 1);
        Arc::new(Repeated { images, len })
    };
    let len = rounds * u64::from(workers) * batch;
    let task = Task { model: model.clone(), train: images(512, len), test: images(1, 1) };
    let job = Job {
        strategy: "ssgd".into(),
        epochs: 1.0,
        batch: Some(batch),
        learning_rate: Some(1e-3),
        ..Job::default()
    };
    job.check(&recipes(), workers, Some(task)).expect("the job is sound")
}

/// Samples per second of workers on threads.
fn trained(seen: &Seen, workers: u32, rounds: u64) -> f64 {
    let prepared = prepare(seen, workers, BATCH as u64, rounds);
    let trained = train(&prepared, ThreadSetting::default(), Arc::default(), vec![]);
    let outcome = trained.unwrap_or_else(|_| panic!("the job ends")).outcome;
    assert_eq!(outcome.samples, prepared.plan.samples_total);
    outcome.samples as f64 / outcome.real_seconds.expect("it ran in real time")
}

/// Prints what a second worker brings.
pub fn print_scaling(rounds: usize) {
    println!("\ntwo workers beside one, all-reduce on threads, batch {BATCH} each, by wall time");
    println!("{:<28} {:>13} {:>13} {:>22}", "what", "one", "two", "ratio");
    let all: [(&str, Seen, u64); 2] = [
        ("cnn, samples/s", (Arc::new(cnn(GRAY, CLASSES)), GRAY), 500),
        ("resnet20, samples/s", (Arc::new(resnet(Net::new(COLOR), 3, CLASSES)), COLOR), 25),
    ];
    let show = |name: &str, pairs: &[(f64, f64)]| {
        let one = Spread::of(pairs.iter().map(|(one, _)| *one)).median;
        let two = Spread::of(pairs.iter().map(|(_, two)| *two)).median;
        let ratio = Spread::of(pairs.iter().map(|(one, two)| two / one));
        println!("{name:<28} {one:>13.0} {two:>13.0} {ratio:>22.2}");
    };
    for (name, seen, steps) in &all {
        let pair = |_| (trained(seen, 1, *steps), trained(seen, 2, *steps));
        show(name, &(0..rounds).map(pair).collect::<Vec<_>>());
    }
    let giga = |threads| peak::of_threads(threads).wall / 1e9;
    let pairs: Vec<_> = (0..rounds).map(|_| (giga(1), giga(2))).collect();
    show("the limit: peak, GFLOP/s", &pairs);
}

const WORKERS: u32 = 128;
const BATCH_SIMULATED: u64 = 32;
const ROUNDS_SIMULATED: u64 = 10;

/// Prints what simulating costs over computing the same gradients in a loop.
pub fn print_overhead(rounds: usize) {
    println!(
        "\n{WORKERS} simulated workers, all-reduce in closed form, batch {BATCH_SIMULATED}, one thread, by CPU time"
    );
    println!("{:<10} {:>15} {:>15} {:>24}", "model", "gradients, s", "simulated, s", "overhead, %");
    let all: [(&str, Seen); 2] = [
        ("cnn", (Arc::new(cnn(GRAY, CLASSES)), GRAY)),
        ("mlp", (Arc::new(mlp(GRAY.len(), &[256, 128], CLASSES)), GRAY)),
    ];
    for (name, seen) in &all {
        let prepared = prepare(seen, WORKERS, BATCH_SIMULATED, ROUNDS_SIMULATED);
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
