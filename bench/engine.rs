//! How fast the simulator is: `cargo bench --bench engine` prints a table.
//!
//! The lower bounds: a virtual event costs a heap operation and a map lookup (about 0.2 us), a gradient and an update of
//! a tiny model about 0.5 us. Time well above their sum is overhead.
//!
//! To compare two commits, build this benchmark in a checkout of the other one and name its executable:
//!
//! ```text
//! (cd ../other && cargo bench --bench engine --no-run)     prints target/release/deps/engine-...
//! cargo bench --bench engine -- --against ../other/target/release/deps/engine-...
//! ```
//!
//! Both executables run each row in turn, A B A B ..., and the table shows the median of the ratios of their CPU times.
//! Only ratios within one run count: on a busy machine, two runs of the same executable differ by tens of percent.
//! If the other executable is too old to know `--row`, both run their whole tables in turn, timed by the wall clock.

// The rates are used by the other benchmark only.
#[allow(dead_code)]
#[path = "compute/clock.rs"]
mod clock;

use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::sync::Arc;

use clock::{Spread, Stopwatch};
use paceline::learn::{Noise, Quadratic};
use paceline::sim::scenario::RingModel;
use paceline::{
    Choices, Job, PrepareOptions, Prepared, Scenario, SimulateOptions, StrategyKind, Task, simulate,
};

const USAGE: &str =
    "usage: cargo bench --bench engine -- [--against EXECUTABLE | --rows | --row NAME]";

/// How often `--against` runs each row of each executable.
const REPEATS: usize = 5;

fn main() -> ExitCode {
    // Cargo adds `--bench` to the arguments of every benchmark.
    let arguments: Vec<String> = std::env::args().skip(1).filter(|it| it != "--bench").collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let rows = rows();
    match arguments[..] {
        [] => print_table(&rows),
        ["--rows"] => rows.iter().for_each(|row| println!("{}", row.name())),
        ["--row", name] => match rows.iter().find(|row| row.name() == name) {
            // CPU time: what other programs take of the machine does not count.
            Some(row) => println!("{}", row.time().1),
            None => {
                eprintln!("error: there is no row {name:?}; --rows lists them\n{USAGE}");
                return ExitCode::from(2);
            }
        },
        ["--against", other] => {
            if let Err(message) = compare(Path::new(other)) {
                eprintln!("error: {message}");
                return ExitCode::FAILURE;
            }
        }
        _ => {
            eprintln!("{USAGE}");
            return ExitCode::from(2);
        }
    }
    ExitCode::SUCCESS
}

/// A simulation to be timed: `steps` steps of one sample by each worker, on a quadratic of `size` parameters.
struct Row {
    what: &'static str,
    kind: StrategyKind,
    sums: RingModel,
    workers: u32,
    steps: u64,
    size: usize,
}

fn rows() -> Vec<Row> {
    let gossip = |workers, steps| Row {
        what: "gossip, messages",
        kind: StrategyKind::GossipPull,
        sums: RingModel::Messages,
        workers,
        steps,
        size: 16,
    };
    let ring = |workers, steps| Row {
        what: "all-reduce, messages",
        kind: StrategyKind::AllReduce,
        sums: RingModel::Messages,
        workers,
        steps,
        size: 1280,
    };
    let closed = |workers, steps, size| Row {
        what: "all-reduce, closed form",
        kind: StrategyKind::AllReduce,
        sums: RingModel::ClosedForm,
        workers,
        steps,
        size,
    };
    vec![
        gossip(128, 1000),
        gossip(64, 1000),
        gossip(128, 2000),
        gossip(1000, 100),
        ring(128, 100),
        ring(64, 100),
        closed(128, 100, 1280),
        closed(256, 100, 1280),
        closed(1000, 100, 1280),
        closed(1000, 10, 100_000),
    ]
}

impl Row {
    fn name(&self) -> String {
        let Row { what, workers, steps, size, .. } = self;
        format!("{what}: {workers} workers x {steps} rounds, {size} parameters")
    }

    /// Seconds by the wall clock, and of CPU time.
    fn time(&self) -> (f64, f64) {
        let prepared = self.prepare();
        let mut scenario = Scenario { workers: self.workers, ..Scenario::default() };
        scenario.network.sums = self.sums;
        let stopwatch = Stopwatch::start();
        let result = simulate(&prepared, &scenario, SimulateOptions::default())
            .expect("the run ends")
            .result;
        let seconds = stopwatch.stop();
        assert_eq!(result.samples, prepared.plan.samples_total);
        seconds
    }

    fn prepare(&self) -> Prepared {
        let model = Arc::new(Quadratic { curvature: vec![0.1; self.size], noise: 0.0 });
        let len = u64::from(self.workers) * self.steps;
        let task = Task {
            model,
            train: Arc::new(Noise { len }),
            validation: None,
            test: Arc::new(Noise { len: 1 }),
        };
        let job = Job {
            choices: Some(Choices::of(self.kind)),
            epochs: 1.0,
            batch: Some(1),
            learning_rate: Some(0.01),
            ..Job::default()
        };
        job.prepare_with(PrepareOptions { task: Some(task), ..PrepareOptions::new(self.workers) })
            .expect("the job is valid")
    }
}

/// `parse_table` reads this format, also that of other commits: keep it.
fn print_table(rows: &[Row]) {
    println!("{:<70} {:>9} {:>14}", "what", "seconds", "us per step");
    for row in rows {
        let (seconds, _) = row.time();
        let per_step = 1e6 * seconds / (f64::from(row.workers) * row.steps as f64);
        println!("{:<70} {seconds:>9.3} {per_step:>14.2}", row.name());
    }
    println!("memory at the peak: {:.0} MiB", resident_mebibytes());
}

/// The peak memory of this process; 0 where the system does not report it.
fn resident_mebibytes() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = peak.and_then(|text| text.trim().trim_end_matches(" kB").parse::<f64>().ok());
    kib.unwrap_or(0.0) / 1024.0
}

/// A row's name with its seconds by this executable and by the other one, one pair per repetition.
type Comparison = (String, Vec<(f64, f64)>);

fn compare(other: &Path) -> Result<(), String> {
    let here = std::env::current_exe().map_err(|error| format!("cannot find itself: {error}"))?;
    let listed = run(other, &["--rows"])?;
    // An executable that does not know `--rows` ignores it and prints its table.
    let comparisons = match parse_table(&listed).is_empty() {
        true => compare_rows(&here, other, &listed)?,
        false => compare_tables(&here, other)?,
    };
    if comparisons.is_empty() {
        return Err(format!("{} has no row of the same name", other.display()));
    }
    println!("{REPEATS} times each in turn; a ratio below 1 means that this build is faster");
    println!(
        "{:<70} {:>9} {:>9} {:>9} {:>23}",
        "what: the fastest run of each build",
        "this, s",
        "other, s",
        "ratio",
        "median ratio (range)"
    );
    for (name, pairs) in comparisons {
        let this = Spread::of(pairs.iter().map(|(this, _)| *this)).least;
        let other = Spread::of(pairs.iter().map(|(_, other)| *other)).least;
        let ratio = Spread::of(pairs.iter().map(|(this, other)| this / other));
        println!("{name:<70} {this:>9.3} {other:>9.3} {:>9.3} {ratio:>23.3}", this / other);
    }
    Ok(())
}

/// Runs the rows that both have one by one.
fn compare_rows(here: &Path, other: &Path, listed: &str) -> Result<Vec<Comparison>, String> {
    let rows = rows();
    let names = rows.iter().map(Row::name).filter(|name| listed.lines().any(|it| it == name));
    let mut comparisons: Vec<Comparison> = names.map(|name| (name, vec![])).collect();
    for _ in 0..REPEATS {
        for (name, pairs) in &mut comparisons {
            pairs.push((time_row(here, name)?, time_row(other, name)?));
        }
    }
    Ok(comparisons)
}

fn time_row(executable: &Path, name: &str) -> Result<f64, String> {
    let text = run(executable, &["--row", name])?;
    let number = text.trim().parse();
    number.map_err(|_| format!("{} --row {name:?} printed {text:?}", executable.display()))
}

/// Runs the whole tables of both in turn: a row takes another time in a fresh process than after other rows.
fn compare_tables(here: &Path, other: &Path) -> Result<Vec<Comparison>, String> {
    let mut comparisons: Vec<Comparison> = Vec::new();
    for _ in 0..REPEATS {
        let this = parse_table(&run(here, &[])?);
        let other = parse_table(&run(other, &[])?);
        for (name, seconds) in this {
            let Some((_, theirs)) = other.iter().find(|(it, _)| *it == name) else { continue };
            match comparisons.iter_mut().find(|(it, _)| *it == name) {
                Some((_, pairs)) => pairs.push((seconds, *theirs)),
                None => comparisons.push((name, vec![(seconds, *theirs)])),
            }
        }
    }
    Ok(comparisons)
}

/// The name and the seconds of each line that ends with two numbers.
fn parse_table(text: &str) -> Vec<(String, f64)> {
    let parse = |line: &str| {
        let (rest, per_step) = line.trim_end().rsplit_once(' ')?;
        let (name, seconds) = rest.trim_end().rsplit_once(' ')?;
        per_step.parse::<f64>().ok()?;
        Some((name.trim_end().to_owned(), seconds.parse().ok()?))
    };
    text.lines().filter_map(parse).collect()
}

fn run(executable: &Path, arguments: &[&str]) -> Result<String, String> {
    let mut command = Command::new(executable);
    command.args(arguments).stdin(Stdio::null()).stderr(Stdio::inherit());
    let output = command
        .output()
        .map_err(|error| format!("cannot run {}: {error}", executable.display()))?;
    if !output.status.success() {
        return Err(format!("{} {arguments:?} failed: {}", executable.display(), output.status));
    }
    String::from_utf8(output.stdout)
        .map_err(|_| format!("{} printed something that is not UTF-8", executable.display()))
}
