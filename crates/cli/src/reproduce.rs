//! `paceline reproduce`: the papers' claims, checked.

use std::path::{Path, PathBuf};
use std::process::Command;

use clap::Args;
use indicatif::ProgressBar;
use paceline_job::{Recipe, scenarios};
use paceline_reproduce::perform::Setting;
use paceline_reproduce::report::Told;
use paceline_reproduce::runs::Runs;
use paceline_reproduce::{Experiment, Limits, Progress, Store, experiments, perform};
use serde::Serialize;

use crate::bar::progress;
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
struct Found<'a> {
    experiment: &'a str,
    claim: &'a str,
    paper: &'a str,
    ours: &'a str,
    mean: Option<f64>,
    verdict: String,
    rule: &'a str,
}

impl Reproduce {
    pub fn run(&self, recipes: &[Recipe]) -> Ended {
        let experiments = self.load()?;
        let size = self.size();
        let limits = Limits { only: self.only.clone(), seeds: self.seeds.clone() };
        // Whatever is wrong with the last experiment is told before the first one runs.
        let mut planned = Vec::new();
        for experiment in &experiments {
            planned.push(Runs::of(experiment, size, &limits).map_err(Ending::Usage)?);
        }
        let pace = self.calibrated.as_deref().map(pace).transpose()?;
        let mut found = Vec::new();
        let mut told = Vec::new();
        for (experiment, runs) in experiments.iter().zip(&planned) {
            let seeds = limits.seeds(experiment.size(size).map_err(Ending::Usage)?);
            if self.dry_run {
                let tuned = runs.tunings.iter();
                let count: usize = tuned.map(|t| t.candidates.len() + t.then.len()).sum();
                let name = &experiment.name;
                print(&format!("{name}, {size}: {} runs\n", count + runs.plain.len()))?;
                continue;
            }
            let command = format!("paceline reproduce {}{}", experiment.name, self.size_flag());
            let path = self.folder.join(format!("{}-{size}.jsonl", experiment.name));
            if self.fresh && path.exists() {
                std::fs::remove_file(&path).map_err(|error| {
                    Ending::Failed(format!("cannot remove {}: {error}", path.display()))
                })?;
            }
            let mut store = Store::open(&path).map_err(Ending::Failed)?;
            say(&format!("{}: {}", experiment.name, experiment.title));
            let watch = Watch { bar: progress(0, !self.json) };
            let setting = Setting {
                recipes,
                threads: self.threads.count(),
                commit: commit(),
                command: command.clone(),
                pace: pace.clone(),
                progress: &watch,
            };
            let results = perform(runs, &setting, &mut store).map_err(Ending::Failed)?;
            watch.bar.finish_and_clear();
            if limits.only.is_empty() && limits.seeds.is_empty() {
                store.tidy(results.all()).map_err(Ending::Failed)?;
            }
            let one = Told::new(experiment, size, &seeds, results).map_err(Ending::Usage)?;
            let page = path.with_extension("html");
            let html = one.html(&command).map_err(Ending::Usage)?;
            std::fs::write(&page, html).map_err(|error| {
                Ending::Failed(format!("cannot write {}: {error}", page.display()))
            })?;
            if self.json {
                found.extend(
                    one.findings
                        .clone()
                        .into_iter()
                        .map(|finding| (experiment.name.clone(), finding)),
                );
            } else {
                print(&format!("{}\n", one.text()))?;
                say(&format!(
                    "{} holds the figures, {} every run\n",
                    page.display(),
                    path.display()
                ));
            }
            told.push(page);
        }
        if self.json {
            let found: Vec<Found> = found
                .iter()
                .map(|(experiment, finding)| Found {
                    experiment,
                    claim: &finding.name,
                    paper: &finding.paper,
                    ours: &finding.ours,
                    mean: finding.mean.is_finite().then_some(finding.mean),
                    verdict: finding.verdict.to_string(),
                    rule: &finding.rule,
                })
                .collect();
            print_json(&found)?;
        }
        Ok(())
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

/// What computing costs on a calibrated cluster.
fn pace(path: &Path) -> Result<paceline_sim::scenario::Pace, Ending> {
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
