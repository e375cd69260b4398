//! `paceline compare`: many strategies on the same simulated cluster.

use std::cmp::Ordering;
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::thread::ScopedJoinHandle;

use clap::Args;
use indicatif::ProgressBar;
use paceline_job::{Error, PrepareOptions, Prepared, Recipe, RunResult, simulate};
use paceline_runtime::{Line, Reader};
use paceline_sim::Scenario;
use paceline_watch::table::{bytes, duration, table};
use paceline_watch::{Curves, Timeline, comparison};

use crate::bar::progress;
use crate::files::{check_apart, check_writable, write};
use crate::flags::{JobFlags, ThreadsFlag, scenario_file};
use crate::output::{Ended, Ending, print, print_json, say, say_error, some};
use crate::summary::{check_ledger, loss, percent, rate, target};

/// Compare strategies on the same simulated cluster
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct Compare {
    /// A scenario's name (see `paceline scenarios`) or a path to a .toml file
    #[arg(default_value = "stragglers")]
    scenario: String,
    /// Which training algorithms (see `paceline strategies`), separated by commas
    #[arg(long, value_name = "A,B,C", value_delimiter = ',', default_value = "all")]
    strategies: Vec<String>,
    #[command(flatten)]
    threads: ThreadsFlag,
    /// Draw the runs into this file [default: paceline-compare.svg; with --json, none]
    #[arg(long, value_name = "FILE.svg")]
    plot: Option<PathBuf>,
    /// Draw nothing
    #[arg(long, conflicts_with = "plot")]
    no_plot: bool,
    /// Print the outcomes as a JSON array
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

All meet the same workers, links and mishaps at the same virtual times.
Without a target, time is taken until the training loss first falls to 0.3.";

const TARGET_LOSS: f64 = 0.3;

/// Where the drawing goes unless somebody says otherwise.
const PLOT: &str = "paceline-compare.svg";

/// One strategy's run.
struct Run {
    name: String,
    result: Result<RunResult, Error>,
    curves: Curves,
    timeline: Timeline,
}

impl Compare {
    pub fn run(&self, recipes: &[Recipe]) -> Ended {
        let scenario = self.job.scenario(&self.scenario)?;
        let jobs = self.jobs(recipes, scenario.workers)?;
        let plot = self.plot()?;
        let samples = jobs.iter().map(|job| job.plan.samples_total).sum();
        let bar = progress(samples, !self.json);

        let runs = run_all(&jobs, &scenario, self.threads.count(), &bar);

        bar.finish_and_clear();
        let mut outcomes: Vec<&RunResult> =
            runs.iter().filter_map(|run| run.result.as_ref().ok()).collect();
        outcomes.sort_by(|a, b| by_time_to_target(a, b));
        if self.json {
            print_json(&outcomes)?;
        } else {
            print(&self.heading(&scenario, &jobs[0]))?;
            print(&rows(&outcomes))?;
        }
        let told = tell_failures(&runs);
        if let Some(path) = plot {
            draw(&path, &scenario, &runs)?;
        }
        told
    }

    /// A job for each strategy, checked before any of them runs.
    fn jobs(&self, recipes: &[Recipe], workers: u32) -> Result<Vec<Prepared>, Ending> {
        let mut job = self.job.job()?;
        if job.choices.is_some() {
            return Err(Ending::Usage(
                "the job file spells out its choices, but compare runs strategies by name: leave `choices` away, or use `paceline simulate`"
                    .into(),
            ));
        }
        if job.target_loss.or(job.target_accuracy).is_none() {
            job.target_loss = Some(TARGET_LOSS);
        }
        let mut names: Vec<&str> = vec![];
        for name in &self.strategies {
            let all = recipes.iter().map(|recipe| recipe.name.as_str());
            let meant: Vec<&str> = if name == "all" { all.collect() } else { vec![name.trim()] };
            names.extend(meant);
        }
        let mut seen: Vec<&str> = vec![];
        names.retain(|name| {
            !seen.contains(name) && {
                seen.push(name);
                true
            }
        });
        // The first one reads model and data, the others share them.
        let mut task = None;
        let check = |name: &&str| {
            job.strategy = (*name).to_owned();
            let options = PrepareOptions { workers, recipes, task: task.clone() };
            let prepared = job.prepare_with(options)?;
            task = Some(prepared.task.clone());
            Ok(prepared)
        };
        names.iter().map(check).collect()
    }

    fn heading(&self, scenario: &Scenario, job: &Prepared) -> String {
        let wanted = job.target.map_or(String::new(), target);
        format!(
            "{}: {}, seed {}; time until {wanted}\n\n",
            scenario.name,
            some(scenario.workers as usize, "worker"),
            job.plan.seed
        )
    }

    /// Where the drawing goes; one by default is none if it cannot be written.
    fn plot(&self) -> Result<Option<PathBuf>, Ending> {
        let default = (!self.json && !self.no_plot).then(|| PathBuf::from(PLOT));
        let Some(path) = self.plot.clone().or(default) else { return Ok(None) };
        let mut read = self.job.files(&self.job.job()?);
        read.extend(scenario_file(&self.scenario));
        let what = if self.plot.is_some() { "--plot" } else { "the plot" };
        check_apart(&read, &[(what, path.clone())])?;
        match check_writable("plot", &path) {
            Ok(()) => Ok(Some(path)),
            Err(sentence) if self.plot.is_some() => Err(Ending::Failed(sentence)),
            Err(sentence) => {
                say(&format!("no plot: {sentence}"));
                Ok(None)
            }
        }
    }
}

fn draw(path: &Path, scenario: &Scenario, runs: &[Run]) -> Ended {
    let has_learned = |run: &&Run| run.result.as_ref().is_ok_and(|o| o.diverged.is_none());
    let drawn: Vec<paceline_watch::Run> = runs
        .iter()
        .filter(has_learned)
        .map(|Run { name, curves, timeline, .. }| paceline_watch::Run { name, curves, timeline })
        .collect();
    let title = format!("{}: {}", scenario.name, scenario.description);
    write("plot", path, &comparison(&title, &drawn)).map_err(Ending::Failed)?;
    say(&format!("\nPlot: {}", path.display()));
    Ok(())
}

/// Runs all jobs, at most `threads` at a time; their results do not depend on it.
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
    let mut pen = Pen { curves: Curves::default(), timeline: Timeline::default(), bar, shown: 0 };
    let result = simulate(job, scenario, threads, vec![&mut pen]);
    // What a run that was given up has left counts as behind us.
    bar.inc(job.plan.samples_total.saturating_sub(pen.shown));
    let Pen { curves, timeline, .. } = pen;
    Run { name: job.name.clone(), result: result.map(|run| run.result), curves, timeline }
}

/// Reads what the drawing needs, and moves the bar.
struct Pen<'a> {
    curves: Curves,
    timeline: Timeline,
    bar: &'a ProgressBar,
    shown: u64,
}

/// So many samples are worth a move of the bar.
const SAMPLES_PER_MOVE: u64 = 256;

impl Reader for Pen<'_> {
    fn read(&mut self, line: &Line) {
        self.curves.read(line);
        self.timeline.read(line);
        let samples = self.curves.samples();
        if samples >= self.shown + SAMPLES_PER_MOVE {
            self.bar.inc(samples - self.shown);
            self.shown = samples;
        }
    }
}

/// The first to reach the target first; then those that did not; those that diverged last.
fn by_time_to_target(a: &RunResult, b: &RunResult) -> Ordering {
    let key = |outcome: &RunResult| {
        let time = outcome.time_to_target_seconds.unwrap_or(f64::INFINITY);
        (outcome.diverged.is_some(), time, outcome.loss)
    };
    let ((a_diverged, a_time, a_loss), (b_diverged, b_time, b_loss)) = (key(a), key(b));
    let (by_time, by_loss) = (a_time.total_cmp(&b_time), a_loss.total_cmp(&b_loss));
    a_diverged.cmp(&b_diverged).then(by_time).then(by_loss)
}

fn rows(outcomes: &[&RunResult]) -> String {
    let reached = |outcome: &&&RunResult| outcome.time_to_target_seconds.is_some();
    // Ratios are against plain synchronous SGD, or against the best if that is not there.
    let base = outcomes.iter().filter(reached).find(|outcome| outcome.strategy == "ssgd");
    let base = base.or(outcomes.first().filter(reached));
    let row = |outcome: &&RunResult| {
        let ratio = base
            .and_then(|base| Some(base.time_to_target_seconds? / outcome.time_to_target_seconds?));
        let to_target = match outcome.time_to_target_seconds {
            _ if outcome.diverged.is_some() => "diverged".to_owned(),
            Some(seconds) => duration(seconds),
            None => "not reached".to_owned(),
        };
        let learned = |text| if outcome.diverged.is_some() { "-".to_owned() } else { text };
        vec![
            outcome.strategy.clone(),
            to_target,
            ratio.map_or("-".to_owned(), |ratio| format!("{ratio:.2}")),
            duration(outcome.seconds()),
            learned(percent(outcome.accuracy)),
            learned(loss(outcome.loss)),
            bytes(outcome.bytes_sent),
            percent(outcome.utilization_mean()),
            rate(outcome.learning_rate),
            outcome.batch.to_string(),
        ]
    };
    let versus = base.map_or("ratio".to_owned(), |base| format!("x {}", base.strategy));
    let header = [
        "strategy",
        "to target",
        &versus,
        "in all",
        "accuracy",
        "loss",
        "sent",
        "utilization",
        "rate",
        "batch",
    ];
    let rows: Vec<Vec<String>> = outcomes.iter().map(row).collect();
    let mut align_right = [true; 10];
    align_right[0] = false;
    table(&header, &rows, &align_right)
}

/// Says which runs diverged, failed or lost samples; only a failed run fails the command.
fn tell_failures(runs: &[Run]) -> Ended {
    let mut failed = vec![];
    for Run { name, result, .. } in runs {
        match result {
            Ok(RunResult { diverged: Some(sentence), .. }) => {
                say(&format!("{name} diverged: {sentence}"));
            }
            Ok(outcome) => {
                if let Err(sentence) = check_ledger(outcome) {
                    say_error(&sentence);
                    failed.push(name.as_str());
                }
            }
            Err(failure) => {
                say_error(&format!("{name}: {failure}"));
                failed.push(name);
            }
        }
    }
    if failed.is_empty() {
        return Ok(());
    }
    Err(Ending::Failed(format!(
        "of {} runs {} failed: {}",
        runs.len(),
        failed.len(),
        failed.join(", ")
    )))
}
