//! `paceline reproduce`: the papers' claims, checked.

use std::path::{Path, PathBuf};
use std::process::Command;

use clap::Args;
use indicatif::ProgressBar;
use paceline_job::{Recipe, scenarios};
use paceline_reproduce::perform::Setting;
use paceline_reproduce::report::Told;
use paceline_reproduce::runs::Runs;
use paceline_reproduce::{Experiment, Finding, Limits, Progress, Store, experiments, perform};
use paceline_sim::scenario::Pace;
use serde::Serialize;

use crate::bar::runs_bar;
use crate::flags::ThreadsFlag;
use crate::output::{Ended, Ending, print, print_json, say, say_error};

/// Check the claims of the papers that Paceline is built on
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct Reproduce {
    /// dynamic-sgd, abs-sgd, dbs, how-to-scale, adpsgd, all, or a path to a .toml file
    #[arg(default_value = "all", value_name = "EXPERIMENT")]
    experiments: Vec<String>,
    /// A few minutes: digits, at most 16 workers
    #[arg(long, group = "sized")]
    quick: bool,
    /// Many hours: the headline pairs on CIFAR-10
    #[arg(long, group = "sized")]
    long: bool,
    /// One of the sizes that the experiment names
    #[arg(long, value_name = "NAME", group = "sized", default_value = "standard")]
    size: String,
    /// Where results and pages go; runs whose results are there are not run again
    #[arg(long, value_name = "DIR", default_value = "reproduced")]
    folder: PathBuf,
    /// Only runs whose names contain one of these
    #[arg(long, value_name = "RUN,RUN", value_delimiter = ',')]
    only: Vec<String>,
    /// These seeds in place of the experiment's
    #[arg(long, value_name = "S,S", value_delimiter = ',')]
    seeds: Vec<u64>,
    /// Run everything again
    #[arg(long)]
    fresh: bool,
    /// Take what computing costs from this scenario (see `paceline calibrate`)
    #[arg(long, value_name = "FILE.toml")]
    calibrated: Option<PathBuf>,
    /// Say what would be run, and how much it is
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
  paceline reproduce --quick                   all five papers in a few minutes
  paceline reproduce dbs                       one of them on Fashion-MNIST
  paceline reproduce adpsgd --only adp4 --seeds 7
  paceline reproduce mine.toml --size quick    an experiment of one's own

Learning is real, time is that of simulated clusters. Stopped and started again, it goes on with the
runs that are missing. Each claim is decided by the rule that its experiment file gives.";

/// A claim and what came of it, for programs.
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

impl Found {
    fn of(experiment: &str, finding: &Finding) -> Found {
        Found {
            experiment: experiment.to_owned(),
            claim: finding.name.clone(),
            paper: finding.paper.clone(),
            ours: finding.ours.clone(),
            mean: finding.mean.is_finite().then_some(finding.mean),
            verdict: finding.verdict.to_string(),
            rule: finding.rule.clone(),
        }
    }
}

impl Reproduce {
    pub fn run(&self, recipes: &[Recipe]) -> Ended {
        let experiments = self.load()?;
        let limits = Limits { only: self.only.clone(), seeds: self.seeds.clone() };
        // Whatever is wrong with the last experiment is told before the first one runs.
        let runs = |experiment: &Experiment| Runs::of(experiment, self.size(), &limits);
        let planned = experiments.iter().map(runs).collect::<Result<Vec<_>, _>>();
        let planned = planned.map_err(Ending::Usage)?;
        let pace = self.calibrated.as_deref().map(pace).transpose()?;
        let mut found = Vec::new();
        for (experiment, runs) in experiments.iter().zip(&planned) {
            if self.dry_run {
                let (name, size) = (&experiment.name, self.size());
                print(&format!("{name}, {size}: {} runs\n", runs.count()))?;
                continue;
            }
            let seeds = limits.seeds(experiment.size(self.size()).map_err(Ending::Usage)?);
            let told = self.reproduce(experiment, runs, &seeds, (recipes, pace.clone()))?;
            if !self.json {
                print(&format!("{}\n", told.text()))?;
            }
            let of = |finding: &Finding| Found::of(&experiment.name, finding);
            found.extend(told.findings.iter().map(of));
        }
        if self.json && !self.dry_run { print_json(&found) } else { Ok(()) }
    }

    /// Runs an experiment and writes its page and figures.
    fn reproduce<'a>(
        &'a self,
        experiment: &'a Experiment,
        runs: &Runs,
        seeds: &'a [u64],
        (recipes, pace): (&[Recipe], Option<Pace>),
    ) -> Result<Told<'a>, Ending> {
        let (name, size) = (&experiment.name, self.size());
        let command = format!("paceline reproduce {name}{}", self.size_flag());
        let results = self.folder.join(format!("{name}-{size}.jsonl"));
        if self.fresh && results.exists() {
            std::fs::remove_file(&results).map_err(|error| {
                Ending::Failed(format!("cannot remove {}: {error}", results.display()))
            })?;
        }
        let mut store = Store::open(&results).map_err(Ending::Failed)?;
        say(&format!("{name}: {}", experiment.title));
        let watch = Watch { bar: runs_bar(!self.json) };
        let setting = Setting {
            recipes,
            threads: self.threads.count(),
            commit: commit(),
            command: command.clone(),
            pace,
            progress: &watch,
        };
        let all = perform(runs, &setting, &mut store);
        watch.bar.finish_and_clear();
        let all = all.map_err(Ending::Failed)?;
        if self.only.is_empty() && self.seeds.is_empty() {
            store.tidy(all.all()).map_err(Ending::Failed)?;
        }
        let told = Told::new(experiment, size, seeds, all).map_err(Ending::Usage)?;
        let page = results.with_extension("html");
        write(&page, &told.html(&command).map_err(Ending::Usage)?)?;
        for (i, figure) in told.figures().map_err(Ending::Usage)?.iter().enumerate() {
            write(&self.folder.join(format!("{name}-{size}-{}.svg", i + 1)), &figure.svg())?;
        }
        say(&format!(
            "{} shows the figures, {} holds every run\n",
            page.display(),
            results.display()
        ));
        Ok(told)
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

    fn load(&self) -> Result<Vec<Experiment>, Ending> {
        let mut names: Vec<&str> = Vec::new();
        for name in &self.experiments {
            match name.as_str() {
                "all" => names.extend(experiments::ALL.map(|(known, _)| known)),
                name => names.push(name),
            }
        }
        names.iter().map(|name| experiments::load(name).map_err(Ending::Usage)).collect()
    }
}

fn write(path: &Path, text: &str) -> Ended {
    std::fs::write(path, text)
        .map_err(|error| Ending::Failed(format!("cannot write {}: {error}", path.display())))
}

/// What computing costs on a calibrated cluster.
fn pace(path: &Path) -> Result<Pace, Ending> {
    let scenario = scenarios::load(&path.to_string_lossy()).map_err(Ending::Usage)?;
    Ok(scenario.compute)
}

/// The code that runs, as its repository names it; outside of one, the version.
fn commit() -> String {
    let git = |args: &[&str]| {
        let output = Command::new("git").args(args).output().ok().filter(|o| o.status.success())?;
        Some(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let version = || format!("paceline {}", env!("CARGO_PKG_VERSION"));
    let Some(commit) = git(&["rev-parse", "--short=12", "HEAD"]) else { return version() };
    let is_changed = git(&["status", "--porcelain", "--untracked-files=no", "--", "*.rs"]);
    if is_changed.is_some_and(|changes| !changes.is_empty()) { commit + "+" } else { commit }
}

struct Watch {
    bar: ProgressBar,
}

impl Progress for Watch {
    fn ahead(&self, samples: u64) {
        self.bar.set_length(self.bar.position() + samples);
    }

    fn computed(&self, samples: u64) {
        self.bar.inc(samples);
    }

    fn said(&self, sentence: &str) {
        self.bar.suspend(|| say_error(sentence));
    }
}
