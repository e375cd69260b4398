//! `paceline compare`: runs many strategies on the same simulated cluster.

use std::cmp::Ordering;
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::thread::ScopedJoinHandle;

use clap::Args;
use indicatif::ProgressBar;
use paceline_job::{Error, PrepareOptions, Prepared, Recipe, RunResult, SimulateOptions, simulate};
use paceline_runtime::{Line, Reader};
use paceline_sim::Scenario;
use paceline_watch::table::{bytes, duration, table};
use paceline_watch::{Curves, Timeline, comparison};

use crate::bar::progress;
use crate::counted::counted;
use crate::error::{CliResult, CommandError, UsageError};
use crate::files::{check_distinct, check_writable, write};
use crate::flags::{JobFlags, ThreadsFlag, scenario_file};
use crate::output::{print, print_json, say, say_error};
use crate::summary::{check_ledger, loss, percent, rate, target};

/// Compare strategies on the same simulated cluster
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct Compare {
    /// A scenario's name (see `paceline scenarios`) or a path to a .toml file
    #[arg(default_value = "stragglers")]
    scenario: String,
    /// Training algorithms (see `paceline strategies`), separated by commas
    #[arg(long, value_name = "A,B,C", value_delimiter = ',', default_value = "all")]
    strategies: Vec<String>,
    #[command(flatten)]
    threads: ThreadsFlag,
    /// Write a plot of the runs to this file [default: paceline-compare.svg; with --json, none]
    #[arg(long, value_name = "FILE.svg")]
    plot: Option<PathBuf>,
    /// Write no plot
    #[arg(long, conflicts_with = "plot")]
    no_plot: bool,
    /// Print the results as a JSON array
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    job: JobFlags,
}

const EXAMPLES: &str = "\
Examples:
  paceline compare
  paceline compare slow-network --strategies ssgd,qsgd,cpsgd,adpsgd
  paceline compare spot --target-accuracy 0.9 --epochs 30 --plot spot.svg
  paceline compare --json | jq '.[] | [.strategy, .time_to_target_seconds]'

All strategies run with the same workers, links and faults at the same virtual times.
Without a target, the table shows the time until the training loss first falls to 0.3.";

const TARGET_LOSS: f64 = 0.3;

/// The default plot file.
const PLOT: &str = "paceline-compare.svg";

/// One strategy's run.
struct Run {
    name: String,
    result: Result<RunResult, Error>,
    curves: Curves,
    timeline: Timeline,
}

impl Compare {
    pub fn run(&self, recipes: &[Recipe]) -> CliResult {
        let scenario = self.job.scenario(&self.scenario)?;
        let jobs = self.jobs(recipes, scenario.workers)?;
        let plot = self.plot()?;
        let samples = jobs.iter().map(|job| job.plan.samples_total).sum();
        let bar = progress(samples, !self.json);

        let runs = run_all(&jobs, &scenario, self.threads.count(), &bar);

        bar.finish_and_clear();
        let mut results: Vec<&RunResult> =
            runs.iter().filter_map(|run| run.result.as_ref().ok()).collect();
        results.sort_by(|a, b| by_time_to_target(a, b));
        if self.json {
            print_json(&results)?;
        } else {
            print(&self.heading(&scenario, &jobs[0]))?;
            print(&rows(&results))?;
        }
        let ended = report_failures(&runs);
        if let Some(path) = plot {
            draw(&path, &scenario, &runs)?;
        }
        ended
    }

    /// Prepares a job for each strategy, before any of them runs.
    fn jobs(&self, recipes: &[Recipe], workers: u32) -> CliResult<Vec<Prepared>> {
        let mut job = self.job.job()?;
        if job.choices.is_some() {
            return Err(UsageError::ChoicesInCompare.into());
        }
        if job.target_loss.or(job.target_accuracy).is_none() {
            job.target_loss = Some(TARGET_LOSS);
        }
        let mut names: Vec<&str> = vec![];
        for name in &self.strategies {
            let all = recipes.iter().map(|recipe| recipe.name.as_str());
            if name == "all" {
                names.extend(all);
            } else {
                names.push(name.trim());
            }
        }
        let mut seen: Vec<&str> = vec![];
        names.retain(|name| {
            !seen.contains(name) && {
                seen.push(name);
                true
            }
        });
        // The first job loads the model and the data, the others share them.
        let mut task = None;
        let check = |name: &&str| {
            job.strategy = (*name).to_owned();
            let prepared =
                job.prepare_with(PrepareOptions { workers, recipes, task: task.clone() })?;
            task = Some(prepared.task.clone());
            Ok(prepared)
        };
        names.iter().map(check).collect()
    }

    fn heading(&self, scenario: &Scenario, job: &Prepared) -> String {
        let target = job.target.map_or(String::new(), target);
        format!(
            "{}: {}, seed {}; time until {target}\n\n",
            scenario.name,
            counted(scenario.workers as usize, "worker"),
            job.plan.seed
        )
    }

    /// Returns the plot's path. If the default path is not writable, no plot is written.
    fn plot(&self) -> CliResult<Option<PathBuf>> {
        let default = (!self.json && !self.no_plot).then(|| PathBuf::from(PLOT));
        let Some(path) = self.plot.clone().or(default) else { return Ok(None) };
        let mut read = self.job.files(&self.job.job()?);
        read.extend(scenario_file(&self.scenario));
        let what = if self.plot.is_some() { "--plot" } else { "the plot" };
        check_distinct(&read, &[(what, path.clone())])?;
        match check_writable("plot", &path) {
            Ok(()) => Ok(Some(path)),
            Err(error) if self.plot.is_some() => Err(error.into()),
            Err(error) => {
                say(&format!("no plot: {error}"));
                Ok(None)
            }
        }
    }
}

fn draw(path: &Path, scenario: &Scenario, runs: &[Run]) -> CliResult {
    let has_converged = |run: &&Run| run.result.as_ref().is_ok_and(|o| o.diverged.is_none());
    let drawn: Vec<paceline_watch::Run> = runs
        .iter()
        .filter(has_converged)
        .map(|Run { name, curves, timeline, .. }| paceline_watch::Run { name, curves, timeline })
        .collect();
    let title = format!("{}: {}", scenario.name, scenario.description);
    write("plot", path, &comparison(&title, &drawn))?;
    say(&format!("\nPlot: {}", path.display()));
    Ok(())
}

/// Runs all jobs, at most `threads` at a time. The results do not depend on `threads`.
fn run_all(jobs: &[Prepared], scenario: &Scenario, threads: usize, bar: &ProgressBar) -> Vec<Run> {
    let at_once = threads.min(jobs.len());
    let (next, ended) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let take_turns = || {
        let mut runs = vec![];
        loop {
            let turn = next.fetch_add(1, Relaxed);
            let Some(job) = jobs.get(turn) else { return runs };
            runs.push((turn, run_one(job, scenario, threads / at_once, bar)));
            let ended = ended.fetch_add(1, Relaxed) + 1;
            bar.set_message(format!("{ended} of {} runs", jobs.len()));
        }
    };
    let mut runs: Vec<(usize, Run)> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..at_once).map(|_| scope.spawn(take_turns)).collect();
        let join = |thread: ScopedJoinHandle<_>| thread.join().unwrap_or_else(|e| resume_unwind(e));
        threads.into_iter().flat_map(join).collect()
    });
    runs.sort_by_key(|(turn, _)| *turn);
    runs.into_iter().map(|(_, run)| run).collect()
}

fn run_one(job: &Prepared, scenario: &Scenario, threads: usize, bar: &ProgressBar) -> Run {
    let (curves, timeline) = (Curves::default(), Timeline::default());
    let mut reader = PlotReader { curves, timeline, bar, shown: 0 };
    let result = simulate(job, scenario, SimulateOptions { threads, readers: vec![&mut reader] });
    // A run that ended early will not compute its remaining samples.
    bar.inc(job.plan.samples_total.saturating_sub(reader.shown));
    let PlotReader { curves, timeline, .. } = reader;
    Run { name: job.name.clone(), result: result.map(|run| run.result), curves, timeline }
}

/// Collects the data of the plot and advances the progress bar.
struct PlotReader<'a> {
    curves: Curves,
    timeline: Timeline,
    bar: &'a ProgressBar,
    shown: u64,
}

/// The bar is updated after this many samples.
const SAMPLES_PER_UPDATE: u64 = 256;

impl Reader for PlotReader<'_> {
    fn read(&mut self, line: &Line) {
        self.curves.read(line);
        self.timeline.read(line);
        let samples = self.curves.samples();
        if samples >= self.shown + SAMPLES_PER_UPDATE {
            self.bar.inc(samples - self.shown);
            self.shown = samples;
        }
    }
}

/// Orders by time to target; runs that did not reach it follow, runs that diverged come last.
fn by_time_to_target(a: &RunResult, b: &RunResult) -> Ordering {
    let key = |result: &RunResult| {
        let time = result.time_to_target_seconds.unwrap_or(f64::INFINITY);
        (result.diverged.is_some(), time, result.loss)
    };
    let ((a_diverged, a_time, a_loss), (b_diverged, b_time, b_loss)) = (key(a), key(b));
    let (by_time, by_loss) = (a_time.total_cmp(&b_time), a_loss.total_cmp(&b_loss));
    a_diverged.cmp(&b_diverged).then(by_time).then(by_loss)
}

fn rows(results: &[&RunResult]) -> String {
    let reached = |result: &&&RunResult| result.time_to_target_seconds.is_some();
    // Speedups are relative to plain synchronous SGD, or to the fastest run if ssgd did not reach the target.
    let base = results.iter().filter(reached).find(|result| result.strategy == "ssgd");
    let base = base.or(results.first().filter(reached));
    let row = |result: &&RunResult| {
        let speedup = base
            .and_then(|base| Some(base.time_to_target_seconds? / result.time_to_target_seconds?));
        let to_target = match result.time_to_target_seconds {
            _ if result.diverged.is_some() => "diverged".to_owned(),
            Some(seconds) => duration(seconds),
            None => "not reached".to_owned(),
        };
        let score = |text| if result.diverged.is_some() { "-".to_owned() } else { text };
        vec![
            result.strategy.clone(),
            to_target,
            speedup.map_or("-".to_owned(), |speedup| format!("{speedup:.2}")),
            duration(result.seconds()),
            score(percent(result.accuracy)),
            score(loss(result.loss)),
            bytes(result.bytes_sent),
            percent(result.utilization_mean()),
            rate(result.learning_rate),
            result.batch.to_string(),
        ]
    };
    let speedup = base.map_or("speedup".to_owned(), |base| format!("x {}", base.strategy));
    let header = [
        "strategy",
        "to target",
        &speedup,
        "total",
        "accuracy",
        "loss",
        "sent",
        "utilization",
        "rate",
        "batch",
    ];
    let rows: Vec<Vec<String>> = results.iter().map(row).collect();
    let mut align_right = [true; 10];
    align_right[0] = false;
    table(&header, &rows, &align_right)
}

/// Reports runs that diverged, failed or lost samples. A run that diverged is not a failure of the command.
fn report_failures(runs: &[Run]) -> CliResult {
    let mut failed = vec![];
    for Run { name, result, .. } in runs {
        match result {
            Ok(RunResult { diverged: Some(reason), .. }) => {
                say(&format!("{name} diverged: {reason}"));
            }
            Ok(result) => {
                if let Err(error) = check_ledger(result) {
                    say_error(error);
                    failed.push(name.clone());
                }
            }
            Err(failure) => {
                say_error(format!("{name}: {failure}"));
                failed.push(name.clone());
            }
        }
    }
    if failed.is_empty() {
        return Ok(());
    }
    Err(CommandError::RunsFailed { failed, runs: runs.len() }.into())
}
