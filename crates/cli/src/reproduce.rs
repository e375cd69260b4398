//! `paceline reproduce`: checks the claims of the papers.

use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use clap::Args;
use indicatif::ProgressBar;
use paceline_job::{Recipe, scenarios};
use paceline_reproduce::execute::{Planned, plan};
use paceline_reproduce::experiment::repeated;
use paceline_reproduce::report::ExperimentReport;
use paceline_reproduce::runs::Runs;
use paceline_reproduce::store::KnownResults;
use paceline_reproduce::{
    ExecuteError, Experiment, Finding, Progress, RunContext, RunFilter, Store, execute, experiments,
};
use paceline_sim::scenario::Pace;
use paceline_watch::table::{count, duration};
use serde::Serialize;

use crate::bar::runs_bar;
use crate::counted::counted;
use crate::error::{CliError, CliResult, CommandError, UsageError};
use crate::files::write;
use crate::flags::ThreadsFlag;
use crate::output::{print, print_json, say, say_error};
use crate::stop::Stop;

/// Check the claims of the papers that Paceline is built on
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct Reproduce {
    /// dynamic-sgd, abs-sgd, dbs, how-to-scale, adpsgd, all, or a path to a .toml file
    #[arg(default_value = "all", value_name = "EXPERIMENT")]
    experiments: Vec<String>,
    /// Small runs: digits, at most 16 workers; takes about a minute
    #[arg(long, group = "sized")]
    quick: bool,
    /// Large runs: the main comparisons on CIFAR-10 with resnet20; takes many hours
    #[arg(long, group = "sized")]
    long: bool,
    /// A size that the experiment file defines
    #[arg(long, value_name = "NAME", group = "sized", default_value = "standard")]
    size: String,
    /// Folder for results and pages; runs that have results there are not repeated
    #[arg(long, value_name = "DIR", default_value = "reproduced")]
    folder: PathBuf,
    /// Only these runs: a full name (with @), or a part of names (without @)
    #[arg(long, value_name = "RUN,RUN", value_delimiter = ',')]
    only: Vec<String>,
    /// Use these seeds instead of the experiment's
    #[arg(long, value_name = "S,S", value_delimiter = ',')]
    seeds: Vec<u64>,
    /// Repeat the runs even if they have results
    #[arg(long)]
    fresh: bool,
    /// Take the compute times from this scenario (see `paceline calibrate`)
    #[arg(long, value_name = "FILE.toml")]
    calibrated: Option<PathBuf>,
    /// List the runs without running them
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    threads: ThreadsFlag,
    /// Print the findings as JSON
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  paceline reproduce --quick                   all five papers, in about a minute
  paceline reproduce dbs                       one paper, on Fashion-MNIST
  paceline reproduce adpsgd --only adp4 --seeds 7
  paceline reproduce mine.toml --size quick    your own experiment

Training is real, time is simulated. If the command is stopped and started again, it continues with
the missing runs. Each claim is decided by the rule in its experiment file.";

/// A claim and its verdict, in the output of `--json`.
#[derive(Serialize)]
struct Found {
    experiment: String,
    claim: String,
    paper: String,
    ours: String,
    mean: Option<f64>,
    verdict: String,
    rule: String,
}

/// A planned run, in the output of `--dry-run --json`.
#[derive(Serialize)]
struct PlannedRun<'a> {
    experiment: &'a str,
    size: &'a str,
    run: String,
    seed: u64,
    known: bool,
}

impl Found {
    fn of(experiment: &str, finding: &Finding) -> Found {
        Found {
            experiment: experiment.to_owned(),
            claim: finding.name.clone(),
            paper: finding.paper.clone(),
            ours: finding.ours.clone(),
            mean: finding.mean.is_finite().then_some(finding.mean),
            verdict: finding.to_string(),
            rule: finding.rule.clone(),
        }
    }
}

impl Reproduce {
    pub fn run(&self, recipes: &[Recipe]) -> CliResult {
        let experiments = self.load()?;
        if let Some(seed) = repeated(&self.seeds) {
            return Err(UsageError::RepeatedSeed { seed }.into());
        }
        let filter = RunFilter { only: self.only.clone(), seeds: self.seeds.clone() };
        // All experiments are checked before the first one runs.
        let runs =
            |(_, experiment): &(&str, Experiment)| Runs::of(experiment, self.size(), &filter);
        let planned = experiments.iter().map(runs).collect::<Result<Vec<_>, _>>();
        let planned = planned.map_err(CliError::usage)?;
        if !self.only.is_empty() && planned.iter().all(|runs| runs.count() == 0) {
            return Err(UsageError::NoSuchRun { only: self.only.clone() }.into());
        }
        let pace = self.calibrated.as_deref().map(pace).transpose()?;
        if self.dry_run {
            return self.print_plans(&experiments, &planned, pace.as_ref());
        }
        Stop::at_once(format!(
            "stopped; the results of finished runs are kept in {}: the same command continues with the others",
            self.folder.display()
        ))?;
        let (mut found, mut failures) = (Vec::new(), 0);
        for ((argument, experiment), runs) in experiments.iter().zip(&planned) {
            let seeds = filter.seeds(experiment.size(self.size()).map_err(CliError::usage)?);
            let report =
                self.reproduce((argument, experiment), runs, &seeds, (recipes, pace.clone()))?;
            failures += report.results.failures.len();
            if !self.json {
                print(&format!("{}\n", report.text()))?;
            }
            let of = |finding: &Finding| Found::of(&experiment.name, finding);
            found.extend(report.findings.iter().map(of));
        }
        if self.json {
            print_json(&found)?;
        }
        match failures {
            0 => Ok(()),
            failures => Err(CommandError::ExperimentRuns { failures }.into()),
        }
    }

    /// Prints the runs of `--dry-run`.
    fn print_plans(
        &self,
        experiments: &[(&str, Experiment)],
        runs: &[Runs],
        pace: Option<&Pace>,
    ) -> CliResult {
        let mut all = vec![];
        for ((argument, experiment), runs) in experiments.iter().zip(runs) {
            let known = match self.fresh {
                true => KnownResults::default(),
                false => KnownResults::read(&self.results(argument)).map_err(CliError::failed)?,
            };
            let plan = plan(runs, pace, &known);
            if !self.json {
                print(&plan_text(&format!("{}, {}", experiment.name, self.size()), &plan))?;
            }
            all.extend(plan.into_iter().map(|Planned { run, is_known }| PlannedRun {
                experiment: &experiment.name,
                size: self.size(),
                run: run.name,
                seed: run.job.seed,
                known: is_known,
            }));
        }
        if self.json { print_json(&all) } else { Ok(()) }
    }

    /// Returns the file of an experiment's results. It is named after the experiment file, so that a modified copy does
    /// not replace the results of the original. Runs with calibrated compute times have their own file, because their
    /// results differ.
    fn results(&self, argument: &str) -> PathBuf {
        let name = Path::new(argument).file_stem().unwrap_or_default().to_string_lossy();
        let suffix = if self.calibrated.is_some() { "-calibrated" } else { "" };
        self.folder.join(format!("{name}-{}{suffix}.jsonl", self.size()))
    }

    /// Runs an experiment and writes its page and figures.
    fn reproduce<'a>(
        &'a self,
        (argument, experiment): (&str, &'a Experiment),
        runs: &Runs,
        seeds: &'a [u64],
        (recipes, pace): (&[Recipe], Option<Pace>),
    ) -> CliResult<ExperimentReport<'a>> {
        let size = self.size();
        let calibrated = match &self.calibrated {
            Some(path) => format!(" --calibrated {}", path.display()),
            None => String::new(),
        };
        let command = format!("paceline reproduce {argument}{}{calibrated}", self.size_flag());
        let results = self.results(argument);
        let mut store = Store::open(&results).map_err(CliError::failed)?;
        say(&format!("{}: {}", experiment.name, experiment.title));
        let watch = Watch::new(!self.json);
        let context = RunContext {
            recipes,
            threads: self.threads.count(),
            commit: commit(),
            command: command.clone(),
            pace,
            fresh: self.fresh,
            progress: &watch,
        };
        let all = execute(runs, &context, &mut store);
        watch.bar.finish_and_clear();
        let all = all.map_err(|error: ExecuteError| match error.is_usage() {
            true => CliError::usage(error),
            false => CliError::failed(error),
        })?;
        all.failures.iter().for_each(say_error);
        let report =
            ExperimentReport::new(experiment, size, seeds, all).map_err(CliError::usage)?;
        // The page shows all runs: it is not rewritten after only some of them.
        if !self.only.is_empty() || !self.seeds.is_empty() {
            return Ok(report);
        }
        store.replace(report.results.all()).map_err(CliError::failed)?;
        let page = results.with_extension("html");
        write("page", &page, &report.html(&command).map_err(CliError::usage)?)?;
        for (i, figure) in report.figures().map_err(CliError::usage)?.iter().enumerate() {
            let name = results.file_stem().unwrap_or_default().to_string_lossy();
            let file = self.folder.join(format!("{name}-{}.svg", i + 1));
            write("figure", &file, &figure.svg())?;
        }
        say(&format!("figures: {}; results of all runs: {}\n", page.display(), results.display()));
        Ok(report)
    }

    fn size(&self) -> &str {
        match (self.quick, self.long) {
            (true, _) => "quick",
            (_, true) => "long",
            _ => &self.size,
        }
    }

    fn size_flag(&self) -> String {
        match self.size() {
            "standard" => String::new(),
            "quick" => " --quick".to_owned(),
            "long" => " --long".to_owned(),
            size => format!(" --size {size}"),
        }
    }

    /// Loads the experiments; returns each with its name on the command line.
    fn load(&self) -> CliResult<Vec<(&str, Experiment)>> {
        let mut names: Vec<&str> = Vec::new();
        for name in &self.experiments {
            match name.as_str() {
                "all" => names.extend(experiments::ALL.map(|(known, _)| known)),
                name => names.push(name),
            }
        }
        for (i, second) in names.iter().enumerate() {
            let path = self.results(second);
            if let Some(first) = names[..i].iter().find(|first| self.results(first) == path) {
                let (first, second) = ((*first).to_owned(), (*second).to_owned());
                return Err(UsageError::SharedResults { first, second, path }.into());
            }
        }
        let load = |name| Ok((name, experiments::load(name).map_err(CliError::usage)?));
        names.into_iter().map(load).collect()
    }
}

/// Returns the number of runs, and a line for each run name.
fn plan_text(heading: &str, plan: &[Planned]) -> String {
    let known = |plan: &[Planned]| match plan.iter().filter(|planned| planned.is_known).count() {
        0 => String::new(),
        known => format!(", {known} already done"),
    };
    let mut text = format!("{heading}: {}{}\n", counted(plan.len(), "run"), known(plan));
    for alike in plan.chunk_by(|a, b| a.run.name == b.run.name) {
        let (name, seeds) = (&alike[0].run.name, counted(alike.len(), "seed"));
        text += &format!("  {name}: {seeds}{}\n", known(alike));
    }
    text
}

/// Loads the compute times of a calibrated scenario.
fn pace(path: &Path) -> CliResult<Pace> {
    let pace = scenarios::load(&path.to_string_lossy()).map_err(CliError::usage)?.compute;
    if pace.seconds_per_handover > 0.0 || pace.relative.iter().any(|factor| *factor != 1.0) {
        return Err(UsageError::EmulatedSpeeds { path: path.to_owned() }.into());
    }
    Ok(pace)
}

/// Returns the commit that the program was built from, or its version if it was built outside a repository.
fn commit() -> String {
    match env!("PACELINE_COMMIT") {
        "" => concat!("paceline ", env!("CARGO_PKG_VERSION")).to_owned(),
        commit => commit.to_owned(),
    }
}

/// A progress bar. If stderr is not a terminal, prints a line from time to time.
struct Watch {
    bar: ProgressBar,
    is_wanted: bool,
    last_line: Mutex<Instant>,
}

/// Time between lines without a terminal.
const LINE_INTERVAL: Duration = Duration::from_secs(60);

impl Watch {
    fn new(is_wanted: bool) -> Watch {
        Watch { bar: runs_bar(is_wanted), is_wanted, last_line: Mutex::new(Instant::now()) }
    }
}

impl Progress for Watch {
    fn ahead(&self, samples: u64) {
        self.bar.set_length(self.bar.position() + samples);
    }

    fn computed(&self, samples: u64) {
        self.bar.inc(samples);
        let mut last_line =
            self.last_line.lock().expect("no thread panics while it holds the lock");
        if self.is_wanted && self.bar.is_hidden() && last_line.elapsed() >= LINE_INTERVAL {
            *last_line = Instant::now();
            let (done, all) = (self.bar.position(), self.bar.length().unwrap_or(0));
            let left = all.saturating_sub(done) as f64 / done as f64;
            let left = duration(left * self.bar.elapsed().as_secs_f64());
            say(&format!("{} of {} samples, about {left} left", count(done), count(all)));
        }
    }
}
