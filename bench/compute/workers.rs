//! Compares two workers with one, and a simulated cluster with computing its gradients alone.

use std::sync::Arc;

use paceline::learn::net::{charlm, cnn, mlp, resnet};
use paceline::learn::{Extent, Images, Net, patterns, vector};
use paceline::runtime::Spans;
use paceline::runtime::edge::Workspace;
use paceline::sim::scenario::RingModel;
use paceline::{
    Dataset, Job, Model, PrepareOptions, Prepared, Scenario, SimulateOptions, Task, TrainOptions,
    simulate, train,
};

use crate::clock::{Spread, Stopwatch};
use crate::models::{BATCH, CLASSES, COLOR, GRAY};
use crate::peak;

/// Generated images, repeated to any number of samples, so that one epoch is the whole job and nothing is evaluated
/// before its end.
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

/// A model and the size of its images.
type Subject = (Arc<dyn Model>, Extent);

/// An all-reduce job.
fn prepare((model, extent): &Subject, workers: u32, batch: u64, rounds: u64) -> Prepared {
    let images = |samples, len| {
        let images = patterns(samples, *extent, CLASSES as u8, 1);
        Arc::new(Repeated { images, len })
    };
    let len = rounds * u64::from(workers) * batch;
    let task = Task {
        model: model.clone(),
        train: images(512, len),
        validation: None,
        test: images(1, 1),
    };
    let job = Job {
        strategy: "ssgd".into(),
        epochs: 1.0,
        batch: Some(batch),
        learning_rate: Some(1e-3),
        ..Job::default()
    };
    job.prepare_with(PrepareOptions { task: Some(task), ..PrepareOptions::new(workers) })
        .expect("the job is valid")
}

/// Samples per second of a job on threads.
fn trained(subject: &Subject, workers: u32, rounds: u64) -> f64 {
    let prepared = prepare(subject, workers, BATCH as u64, rounds);
    let trained = train(&prepared, TrainOptions::default());
    let result = trained.unwrap_or_else(|_| panic!("the job ends")).result;
    assert_eq!(result.samples, prepared.plan.samples_total);
    result.samples as f64 / result.real_seconds.expect("it ran in real time")
}

/// Samples per second of two independent jobs at once, with one worker each: the most that the machine allows for two
/// workers.
fn apart(subject: &Subject, rounds: u64) -> f64 {
    let alone = || trained(subject, 1, rounds);
    std::thread::scope(|scope| {
        let other = scope.spawn(alone);
        alone() + other.join().expect("the job ends")
    })
}

/// Prints the speedup by a second worker.
pub fn print_scaling(rounds: usize) {
    println!("\ntwo workers beside one, all-reduce on threads, batch {BATCH} each, by wall time");
    println!("{:<28} {:>13} {:>13} {:>22}", "what", "one", "two", "ratio");
    let all: [(&str, Subject, u64); 2] = [
        ("cnn, samples/s", (Arc::new(cnn(GRAY, CLASSES)), GRAY), 500),
        ("resnet20, samples/s", (Arc::new(resnet(Net::new(COLOR), 3, CLASSES)), COLOR), 25),
    ];
    let show = |name: &str, pairs: &[(f64, f64)]| {
        let one = Spread::of(pairs.iter().map(|(one, _)| *one)).median;
        let two = Spread::of(pairs.iter().map(|(_, two)| *two)).median;
        let ratio = Spread::of(pairs.iter().map(|(one, two)| two / one));
        println!("{name:<28} {one:>13.0} {two:>13.0} {ratio:>22.2}");
    };
    for (name, subject, steps) in &all {
        let triple =
            |_| (trained(subject, 1, *steps), trained(subject, 2, *steps), apart(subject, *steps));
        let triples: Vec<_> = (0..rounds).map(triple).collect();
        let pairs = |two: fn(&(f64, f64, f64)) -> f64| {
            triples.iter().map(|triple| (triple.0, two(triple))).collect::<Vec<_>>()
        };
        show(name, &pairs(|(_, two, _)| *two));
        show("  its limit: two jobs", &pairs(|(.., apart)| *apart));
    }
    let giga = |threads| peak::of_threads(threads).wall / 1e9;
    let pairs: Vec<_> = (0..rounds).map(|_| (giga(1), giga(2))).collect();
    show("the limit: peak, GFLOP/s", &pairs);
}

const WORKERS: u32 = 128;
/// The approximate number of samples of a simulated job.
const SAMPLES_SIMULATED: u64 = 40_000;

/// Prints the overhead of simulating over computing the same gradients in a loop.
pub fn print_overhead(rounds: usize) {
    println!("\n{WORKERS} simulated workers, all-reduce in closed form, one thread, by CPU time");
    println!(
        "{:<20} {:>13} {:>13} {:>22} {:>24}",
        "model, batch", "gradients, s", "simulated, s", "overhead, %", "of it adding, %"
    );
    let small: Subject = (Arc::new(mlp(GRAY.len(), &[256, 128], CLASSES)), GRAY);
    let text: Subject = (Arc::new(charlm(64, 65)), Extent::row(65));
    let all: [(&str, Subject, u64, u64); 5] = [
        ("cnn, 32", (Arc::new(cnn(GRAY, CLASSES)), GRAY), 32, 1),
        ("resnet20, 32", (Arc::new(resnet(Net::new(COLOR), 3, CLASSES)), COLOR), 32, 8),
        ("charlm, 32", text, 32, 8),
        ("mlp, 32", small.clone(), 32, 1),
        ("mlp, 256", small, 256, 1),
    ];
    for (name, subject, batch, fewer) in &all {
        let steps = (SAMPLES_SIMULATED / fewer / (u64::from(WORKERS) * batch)).max(2);
        let prepared = prepare(subject, WORKERS, *batch, steps);
        let triple = |_| {
            let alone = gradients(&prepared, *batch);
            (alone, simulated(&prepared), added(subject.0.size(), u64::from(WORKERS) * steps))
        };
        let triples: Vec<(f64, f64, f64)> = (0..rounds).map(triple).collect();
        let spread = |of: fn(&(f64, f64, f64)) -> f64| Spread::of(triples.iter().map(of));
        let (alone, whole) = (spread(|(alone, ..)| *alone), spread(|(_, whole, _)| *whole));
        let overhead = spread(|(alone, whole, _)| 100.0 * (whole / alone - 1.0));
        let adding = spread(|(alone, _, adding)| 100.0 * adding / alone);
        let (alone, whole) = (alone.median, whole.median);
        println!("{name:<20} {alone:>13.2} {whole:>13.2} {overhead:>22.1} {adding:>24.1}");
    }
}

/// CPU seconds of adding up this many gradients in the cache: a lower bound of the overhead.
fn added(params: usize, gradients: u64) -> f64 {
    let (part, mut total) = (vec![1.0_f32; params], vec![0.0_f32; params]);
    let since = Stopwatch::start();
    for _ in 0..gradients {
        vector::add(std::hint::black_box(&mut total), std::hint::black_box(&part));
    }
    since.stop().1
}

/// CPU seconds of all gradients of the job, one after the other.
fn gradients(prepared: &Prepared, batch: u64) -> f64 {
    let compute = prepared.task.compute(prepared.plan.seed);
    let mut workspace = Workspace::default();
    let since = Stopwatch::start();
    for from in (0..prepared.plan.samples_total).step_by(batch as usize) {
        let spans = Spans::one(from, from + batch);
        std::hint::black_box(compute(&prepared.plan.initial, &spans, &mut workspace));
    }
    since.stop().1
}

/// CPU seconds of simulating the job.
fn simulated(prepared: &Prepared) -> f64 {
    let mut scenario = Scenario { workers: WORKERS, ..Scenario::default() };
    scenario.network.sums = RingModel::ClosedForm;
    let since = Stopwatch::start();
    let simulated = simulate(prepared, &scenario, SimulateOptions::default());
    let seconds = since.stop().1;
    let result = simulated.unwrap_or_else(|_| panic!("the run ends")).result;
    assert_eq!(result.samples, prepared.plan.samples_total);
    seconds
}
