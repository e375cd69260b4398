//! Whether ten thousand workers can be simulated: `cargo bench --bench ten_thousand` prints a table of all recipes.
//!
//! Each recipe learns 100,000 samples of `blobs` with `softmax` at batch size 1, with exchanges in closed form. Each runs in
//! a process of its own, so that its peak of memory is its own. Names of recipes as arguments run only these.

// The rates and spreads are used by the other benchmarks only.
#[allow(dead_code)]
#[path = "compute/clock.rs"]
mod clock;

use std::process::{Command, ExitCode, Stdio};

use clock::Stopwatch;
use paceline::sim::scenario::RingModel;
use paceline::{Job, Scenario, SimulateOptions, recipes, simulate};

const WORKERS: u32 = 10_000;
const SAMPLES: u64 = 100_000;
/// The aim for each recipe.
const SECONDS_MAX: f64 = 60.0;
const MEBIBYTES_MAX: f64 = 2048.0;

fn main() -> ExitCode {
    // Cargo adds `--bench` to the arguments of every benchmark.
    let arguments: Vec<String> = std::env::args().skip(1).filter(|it| it != "--bench").collect();
    if let [flag, name] = &arguments[..]
        && flag == "--row"
    {
        let (wall, cpu) = time(name);
        println!("{wall} {cpu} {}", resident_mebibytes());
        return ExitCode::SUCCESS;
    }
    println!("{:<12} {:>10} {:>14} {:>10}", "recipe", "seconds", "CPU seconds", "peak MiB");
    let mut is_fine = true;
    for recipe in recipes() {
        if !arguments.is_empty() && !arguments.contains(&recipe.name) {
            continue;
        }
        let Some([wall, cpu, mebibytes]) = row(&recipe.name) else {
            eprintln!("error: {} failed", recipe.name);
            return ExitCode::FAILURE;
        };
        is_fine &= cpu < SECONDS_MAX && mebibytes < MEBIBYTES_MAX;
        println!("{:<12} {wall:>10.1} {cpu:>14.1} {mebibytes:>10.0}", recipe.name);
    }
    if !is_fine {
        eprintln!("error: a recipe takes more than {SECONDS_MAX} s or {MEBIBYTES_MAX} MiB");
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

/// Runs a recipe in another process: seconds by the wall clock, of CPU time, and its peak of memory.
fn row(name: &str) -> Option<[f64; 3]> {
    let here = std::env::current_exe().ok()?;
    let mut command = Command::new(here);
    command.args(["--row", name]).stdin(Stdio::null()).stderr(Stdio::inherit());
    let output = command.output().ok().filter(|output| output.status.success())?;
    let text = String::from_utf8(output.stdout).ok()?;
    let numbers: Vec<f64> = text.split_whitespace().filter_map(|it| it.parse().ok()).collect();
    numbers.try_into().ok()
}

fn time(name: &str) -> (f64, f64) {
    let mut job = Job {
        strategy: name.into(),
        data: "blobs".into(),
        model: "softmax".into(),
        batch: Some(1),
        // As many as there are, so that the job can be prepared; the right number follows.
        epochs: f64::from(WORKERS),
        ..Job::default()
    };
    let prepared = job.prepare(WORKERS).expect("the job is valid");
    job.epochs = SAMPLES as f64 / prepared.plan.samples_per_epoch as f64;
    let prepared = job.prepare(WORKERS).expect("the job is valid");
    let mut scenario = Scenario { workers: WORKERS, ..Scenario::default() };
    scenario.network.sums = RingModel::ClosedForm;
    let stopwatch = Stopwatch::start();
    let simulated = simulate(&prepared, &scenario, SimulateOptions::default());
    let seconds = stopwatch.stop();
    assert_eq!(simulated.expect("the run ends").result.samples, SAMPLES);
    seconds
}

/// The peak memory of this process; 0 where the system does not report it.
fn resident_mebibytes() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = peak.and_then(|text| text.trim().trim_end_matches(" kB").parse::<f64>().ok());
    kib.unwrap_or(0.0) / 1024.0
}
