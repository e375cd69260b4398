//! `paceline compare`: runs many strategies on the same simulated cluster.

use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::thread::ScopedJoinHandle;

use clap::Args;
use indicatif::ProgressBar;
use paceline_job::run::totals::{RunTotals, Score};
use paceline_job::{
    Error, PrepareOptions, Prepared, Recipe, RunResult, SimulateOptions, Target, simulate,
};
use paceline_runtime::{Line, Reader};
use paceline_sim::Scenario;
use paceline_watch::{Goal, Measured, Point, Timeline, comparison_page};

use crate::bar::progress;
use crate::chance::no_better_than_chance;
use crate::comparison::Comparison;
use crate::counted::counted;
use crate::error::{CliError, CliResult, CommandError, UsageError};
use crate::files::{check_distinct, check_format, check_writable, write};
use crate::flags::{JobFlags, ThreadsFlag, scenario_file};
use crate::output::{print, print_json, say, say_error};
use crate::rates::{Rates, TunedRate, tuned_rate};
use crate::stop::Stop;
use crate::summary::{check_ledger, target};

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
    /// Run each strategy with N seeds, from --seed on, and show means and standard deviations
    #[arg(long, value_name = "N", default_value_t = SEEDS, value_parser = clap::value_parser!(u64).range(1..=SEEDS_MAX))]
    seeds: u64,
    /// Learning rates that were tuned for single strategies, such as ssgd=0.1,abs=0.3; the table says which rows have one
    #[arg(long, value_name = "A=R,B=R", value_delimiter = ',', value_parser = tuned_rate)]
    tuned_rates: Vec<TunedRate>,
    #[command(flatten)]
    threads: ThreadsFlag,
    /// Write a plot of the runs to this file, or a page with table and plots if it is named .html [default: paceline-compare.svg; with --json, none]
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
  paceline compare --seeds 5 --no-plot
  paceline compare --json | jq '.[] | [.strategy, .seconds_to_target]'

All strategies run with the same workers, links and faults at the same virtual times.
Without a target, the table shows the time until the validation loss of the deployed model falls to 0.3.";

const TARGET_LOSS: f64 = 0.3;
const SEEDS: u64 = 1;
const SEEDS_MAX: u64 = 1_000;

/// The default plot file.
const PLOT: &str = "paceline-compare.svg";
const PLOTS: &[&str] = &["svg", "html", "htm"];

/// One strategy's run.
struct Run {
    name: String,
    result: Result<RunResult, Error>,
    /// Why it has learned nothing, if so.
    learned_nothing: Option<String>,
    /// The training loss that the table shows the end of.
    loss: Vec<Point>,
    /// What the result is made of, so that curves end where the table says.
    totals: RunTotals,
    timeline: Timeline,
}

impl Run {
    /// Loss and accuracy.
    fn curves(&self, on: Measured) -> [Vec<Point>; 2] {
        let points = |scores: &[Score], value: fn(&Score) -> f64| {
            let point = |score: &Score| Point {
                at: score.at.as_secs_f64(),
                epochs: self.totals.tally.epochs(score.samples),
                value: value(score),
            };
            scores.iter().map(point).collect()
        };
        match on {
            Measured::Validation => {
                let validations = &self.totals.validations;
                [points(validations, |it| it.loss), points(validations, |it| it.accuracy)]
            }
            Measured::Training => {
                [self.loss.clone(), points(&self.totals.scores, |it| it.accuracy)]
            }
        }
    }
}

impl Compare {
    pub fn run(&self, recipes: &[Recipe]) -> CliResult {
        let scenario = self.job.scenario(&self.scenario)?;
        let rates = Rates::new(self.job.job()?.learning_rate, &self.tuned_rates, recipes)?;
        let jobs = self.jobs(recipes, &rates, scenario.workers)?;
        let plot = self.plot()?;
        let samples = jobs.iter().map(|job| job.plan.samples_total).sum();
        let bar = progress(samples, !self.json);

        let stop = Stop::on_signals("stopping; press Ctrl-C again to stop at once")?;
        let mut runs = run_all((&jobs, &scenario), self.threads.count(), &bar, &stop);

        bar.finish_and_clear();
        // Of a comparison that was stopped, only the finished runs are comparable.
        runs.retain(|run| !run.result.as_ref().is_ok_and(|result| result.stopped));
        let comparison = Comparison::new(runs.iter().filter_map(|run| run.result.as_ref().ok()));
        if self.json {
            print_json(&comparison.results().collect::<Vec<_>>())?;
        } else if !runs.is_empty() {
            print(&self.heading(&scenario, &jobs[0], &rates.summary(comparison.names())))?;
            print(&comparison.table(&rates))?;
        }
        let ended = report_failures(&runs);
        if let Some(path) = plot.filter(|_| !runs.is_empty()) {
            draw(&path, &scenario, (&comparison, &rates), &runs, jobs[0].target)?;
        }
        if runs.len() < jobs.len() && stop.is_requested() {
            let message = format!("stopped after {} of {} runs", runs.len(), jobs.len());
            return Err(CliError::Stopped { code: stop.code(), message });
        }
        ended
    }

    /// Prepares a job for each strategy, before any of them runs.
    fn jobs(&self, recipes: &[Recipe], rates: &Rates, workers: u32) -> CliResult<Vec<Prepared>> {
        let mut job = self.job.job()?;
        if job.choices.is_some() {
            return Err(UsageError::ChoicesInCompare.into());
        }
        let target = job.target_loss.or(job.target_accuracy).or(job.target_training_loss);
        if target.is_none() {
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
        let mut jobs = vec![];
        for seed in job.seed..job.seed.saturating_add(self.seeds) {
            job.seed = seed;
            // The first job of a seed loads the model and the data, the others share them.
            let mut task = None;
            for name in &names {
                (job.strategy, job.learning_rate) = ((*name).to_owned(), rates.of(name));
                let prepared =
                    job.prepare_with(PrepareOptions { workers, recipes, task: task.clone() })?;
                task = Some(prepared.task.clone());
                jobs.push(prepared);
            }
        }
        Ok(jobs)
    }

    fn heading(&self, scenario: &Scenario, job: &Prepared, rates: &str) -> String {
        let target = job.target.map_or(String::new(), target);
        let first = job.plan.seed;
        let (seeds, spread) = match self.seeds {
            1 => (format!("seed {first}"), ""),
            many => {
                (format!("seeds {first} to {}", first + many - 1), ", mean ± standard deviation")
            }
        };
        let workers = counted(scenario.workers as usize, "worker");
        let name = &scenario.name;
        format!(
            "{name}: {workers}, {seeds}; time until {target}{spread}; learning rates: {rates}\n\n"
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
        check_format(what, &path, PLOTS)?;
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

/// Draws the runs in the order of the table; of several seeds the first.
fn draw(
    path: &Path,
    scenario: &Scenario,
    (comparison, rates): (&Comparison<'_>, &Rates),
    runs: &[Run],
    target: Option<Target>,
) -> CliResult {
    let seed = comparison.results().map(|result| result.seed).min();
    let is_drawn = |result: &&RunResult| result.diverged.is_none() && Some(result.seed) == seed;
    let run_of = |result: &RunResult| {
        let is_it = |run: &&Run| run.result.as_ref().is_ok_and(|it| std::ptr::eq(it, result));
        runs.iter().find(is_it)
    };
    let drawn: Vec<&Run> = comparison.results().filter(is_drawn).filter_map(run_of).collect();
    let on = match target {
        Some(target) if target.is_validated() => Measured::Validation,
        _ => Measured::Training,
    };
    let curves: Vec<[Vec<Point>; 2]> = drawn.iter().map(|run| run.curves(on)).collect();
    let drawn: Vec<paceline_watch::Run> = drawn
        .iter()
        .zip(&curves)
        .map(|(Run { name, timeline, .. }, [loss, accuracy])| paceline_watch::Run {
            name,
            loss,
            accuracy,
            timeline,
        })
        .collect();
    let goal = target.map(|target| match target {
        Target::Loss(loss) | Target::TrainingLoss(loss) => Goal::Loss(loss),
        Target::Accuracy(accuracy) => Goal::Accuracy(accuracy),
    });
    let title = format!("{}: {}", scenario.name, scenario.description);
    let is_page = path.extension().is_some_and(|it| !it.eq_ignore_ascii_case("svg"));
    let plot = match is_page {
        true => {
            let (header, rows) = comparison.cells(rates);
            comparison_page(&title, &drawn, (on, goal), (&header, &rows))
        }
        false => paceline_watch::comparison(&title, &drawn, on, goal),
    };
    write("plot", path, &plot)?;
    say(&format!("\nPlot: {}", path.display()));
    Ok(())
}

/// Runs all jobs, at most `threads` at a time. The results do not depend on `threads`.
fn run_all(
    (jobs, scenario): (&[Prepared], &Scenario),
    threads: usize,
    bar: &ProgressBar,
    stop: &Stop,
) -> Vec<Run> {
    let at_once = threads.min(jobs.len());
    let (next, ended) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let take_turns = || {
        let mut runs = vec![];
        loop {
            let turn = next.fetch_add(1, Relaxed);
            let Some(job) = jobs.get(turn).filter(|_| !stop.is_requested()) else { return runs };
            runs.push((turn, run_one((job, scenario), threads / at_once, bar, stop)));
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

fn run_one(
    (job, scenario): (&Prepared, &Scenario),
    threads: usize,
    bar: &ProgressBar,
    stop: &Stop,
) -> Run {
    let mut reader = PlotReader {
        totals: RunTotals::default(),
        loss: vec![],
        points: 0,
        timeline: Timeline::default(),
        bar,
        shown: 0,
    };
    let stop = stop.requested.clone();
    let options = SimulateOptions { threads, stop, readers: vec![&mut reader] };
    let result = simulate(job, scenario, options);
    // A run that ended early will not compute its remaining samples.
    bar.inc(job.plan.samples_total.saturating_sub(reader.shown));
    let PlotReader { loss, totals, timeline, .. } = reader;
    let result = result.map(|run| run.result);
    let loss_first = loss.first().map(|point| point.value);
    let chance = |result: &RunResult| no_better_than_chance(job, result, loss_first);
    let learned_nothing = result.as_ref().ok().and_then(chance);
    Run { name: job.name.clone(), result, learned_nothing, loss, totals, timeline }
}

/// Collects the data of the plot and advances the progress bar.
struct PlotReader<'a> {
    totals: RunTotals,
    loss: Vec<Point>,
    /// Points of the loss so far; fewer than before once a run has started over.
    points: usize,
    timeline: Timeline,
    bar: &'a ProgressBar,
    shown: u64,
}

/// The bar is updated after this many samples.
const SAMPLES_PER_UPDATE: u64 = 256;

impl Reader for PlotReader<'_> {
    fn read(&mut self, line: &Line) {
        self.totals.read(line);
        self.timeline.read(line);
        let points = &self.totals.curve.points;
        if let Some((at, value)) = points.last().filter(|_| points.len() > self.points) {
            let epochs = self.totals.tally.epochs(self.totals.samples());
            self.loss.push(Point { at: at.as_secs_f64(), epochs, value: *value });
        }
        self.points = points.len();
        let samples = self.totals.samples();
        if samples >= self.shown + SAMPLES_PER_UPDATE {
            self.bar.inc(samples - self.shown);
            self.shown = samples;
        }
    }
}

/// Reports runs that diverged, learned nothing, failed or lost samples. The first two are no failures of the command.
fn report_failures(runs: &[Run]) -> CliResult {
    let mut failed = vec![];
    for Run { name, result, learned_nothing, .. } in runs {
        match result {
            Ok(RunResult { diverged: Some(reason), .. }) => {
                say(&format!("{name} diverged: {reason}"));
            }
            Ok(result) => {
                if let Some(reason) = learned_nothing {
                    say(&format!("{name} learned nothing: {reason}"));
                }
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

#[cfg(test)]
mod tests {
    use paceline_job::{Job, scenarios};

    use super::*;

    fn jobs(epochs: &[f64]) -> Vec<Prepared> {
        let job = |epochs: &f64| Job { epochs: *epochs, samples: Some(200), ..Job::default() };
        epochs.iter().map(|it| job(it).prepare(2).expect("the job is valid")).collect()
    }

    /// The first run is short, the second one would take very long.
    #[test]
    fn a_comparison_that_is_stopped_keeps_its_finished_runs() {
        let (jobs, stop) = (jobs(&[1.0, 100_000.0, 1.0]), Stop::never());
        let scenario =
            Scenario { workers: 2, ..scenarios::named("uniform").expect("it is built in") };
        let bar = ProgressBar::hidden();
        let (watched, requested) = (bar.clone(), stop.requested.clone());
        std::thread::spawn(move || {
            while watched.message() != "1 of 3 runs" {
                std::thread::yield_now();
            }
            requested.store(true, std::sync::atomic::Ordering::SeqCst);
        });

        let runs = run_all((&jobs, &scenario), 1, &bar, &stop);

        let stopped = |run: &Run| run.result.as_ref().expect("it ends").stopped;
        assert_eq!(runs.iter().map(stopped).collect::<Vec<_>>(), [false, true]);
    }

    #[test]
    fn curves_end_where_the_table_says() {
        let jobs: Vec<Prepared> = ["cpsgd", "diloco", "gossip-pull"]
            .map(|strategy| Job { strategy: strategy.into(), epochs: 2.3, ..Job::default() })
            .map(|job| job.prepare(8).expect("the job is valid"))
            .into();
        let scenario = scenarios::named("stragglers").expect("it is built in");

        for run in run_all((&jobs, &scenario), 1, &ProgressBar::hidden(), &Stop::never()) {
            let result = run.result.expect("it ends");
            assert_eq!(run.loss.last().map(|point| point.value), Some(result.loss), "{}", run.name);
        }
    }
}
