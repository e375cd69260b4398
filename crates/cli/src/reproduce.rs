//! `paceline reproduce`: the papers' claims, checked.

use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use clap::Args;
use indicatif::ProgressBar;
use paceline_job::{Recipe, scenarios};
use paceline_reproduce::experiment::repeated;
use paceline_reproduce::perform::{Performance, Planned, plan};
use paceline_reproduce::report::Told;
use paceline_reproduce::runs::Runs;
use paceline_reproduce::store::Known;
use paceline_reproduce::{Experiment, Finding, Limits, Progress, Store, experiments, perform};
use paceline_sim::scenario::Pace;
use paceline_watch::table::{count, duration};
use serde::Serialize;

use crate::bar::runs_bar;
use crate::flags::ThreadsFlag;
use crate::output::{Ended, Ending, print, print_json, say, say_error, some};

/// Check the claims of the papers that Paceline is built on
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct Reproduce {
    /// dynamic-sgd, abs-sgd, dbs, how-to-scale, adpsgd, all, or a path to a .toml file
    #[arg(default_value = "all", value_name = "EXPERIMENT")]
    experiments: Vec<String>,
    /// About a minute: digits, at most 16 workers
    #[arg(long, group = "sized")]
    quick: bool,
    /// Many hours: CIFAR-10 with resnet20, the headline pairs
    #[arg(long, group = "sized")]
    long: bool,
    /// One of the sizes that the experiment names
    #[arg(long, value_name = "NAME", group = "sized", default_value = "standard")]
    size: String,
    /// Where results and pages go; runs whose results are there are not run again
    #[arg(long, value_name = "DIR", default_value = "reproduced")]
    folder: PathBuf,
    /// Only these runs: whole names, or parts of names without an @
    #[arg(long, value_name = "RUN,RUN", value_delimiter = ',')]
    only: Vec<String>,
    /// These seeds in place of the experiment's
    #[arg(long, value_name = "S,S", value_delimiter = ',')]
    seeds: Vec<u64>,
    /// Run what is asked for again, even if its results are there
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
  paceline reproduce --quick                   all five papers in about a minute
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

/// A run that would be made, for programs.
#[derive(Serialize)]
struct Wanted<'a> {
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
            verdict: finding.verdict.to_string(),
            rule: finding.rule.clone(),
        }
    }
}

impl Reproduce {
    pub fn run(&self, recipes: &[Recipe]) -> Ended {
        let experiments = self.load()?;
        if let Some(seed) = repeated(&self.seeds) {
            return Err(Ending::Usage(format!("--seeds: {seed} is there twice, give each once")));
        }
        let limits = Limits { only: self.only.clone(), seeds: self.seeds.clone() };
        // Whatever is wrong with the last experiment is told before the first one runs.
        let runs =
            |(_, experiment): &(&str, Experiment)| Runs::of(experiment, self.size(), &limits);
        let planned = experiments.iter().map(runs).collect::<Result<Vec<_>, _>>();
        let planned = planned.map_err(Ending::Usage)?;
        if !self.only.is_empty() && planned.iter().all(|runs| runs.count() == 0) {
            return Err(Ending::Usage(format!(
                "--only {}: no run is called so; --dry-run lists them",
                self.only.join(" --only ")
            )));
        }
        let pace = self.calibrated.as_deref().map(pace).transpose()?;
        if self.dry_run {
            return self.tell_plans(&experiments, &planned, pace.as_ref());
        }
        let (mut found, mut failures) = (Vec::new(), 0);
        for ((asked, experiment), runs) in experiments.iter().zip(&planned) {
            let seeds = limits.seeds(experiment.size(self.size()).map_err(Ending::Usage)?);
            let told =
                self.reproduce((asked, experiment), runs, &seeds, (recipes, pace.clone()))?;
            failures += told.results.failures.len();
            if !self.json {
                print(&format!("{}\n", told.text()))?;
            }
            let of = |finding: &Finding| Found::of(&experiment.name, finding);
            found.extend(told.findings.iter().map(of));
        }
        if self.json {
            print_json(&found)?;
        }
        match failures {
            0 => Ok(()),
            1 => Err(Ending::Failed("a run failed; see above".into())),
            n => Err(Ending::Failed(format!("{n} runs failed; see above"))),
        }
    }

    /// Says what would be run.
    fn tell_plans(
        &self,
        experiments: &[(&str, Experiment)],
        runs: &[Runs],
        pace: Option<&Pace>,
    ) -> Ended {
        let mut all = vec![];
        for ((asked, experiment), runs) in experiments.iter().zip(runs) {
            let known = match self.fresh {
                true => Known::default(),
                false => Known::read(&self.results(asked)).map_err(Ending::Failed)?,
            };
            let plan = plan(runs, pace, &known);
            if !self.json {
                print(&told_plan(&format!("{}, {}", experiment.name, self.size()), &plan))?;
            }
            all.extend(plan.into_iter().map(|Planned { run, is_known }| Wanted {
                experiment: &experiment.name,
                size: self.size(),
                run: run.name,
                seed: run.job.seed,
                known: is_known,
            }));
        }
        if self.json { print_json(&all) } else { Ok(()) }
    }

    /// Where results are kept. An own file's bear its own name: a changed copy does not sweep away
    /// those of the experiment it was copied from. Other costs make other results: they have a
    /// place of their own.
    fn results(&self, asked: &str) -> PathBuf {
        let name = Path::new(asked).file_stem().unwrap_or_default().to_string_lossy();
        let place = if self.calibrated.is_some() { "-calibrated" } else { "" };
        self.folder.join(format!("{name}-{}{place}.jsonl", self.size()))
    }

    /// Runs an experiment and writes its page and figures.
    fn reproduce<'a>(
        &'a self,
        (asked, experiment): (&str, &'a Experiment),
        runs: &Runs,
        seeds: &'a [u64],
        (recipes, pace): (&[Recipe], Option<Pace>),
    ) -> Result<Told<'a>, Ending> {
        let size = self.size();
        let calibrated = match &self.calibrated {
            Some(path) => format!(" --calibrated {}", path.display()),
            None => String::new(),
        };
        let command = format!("paceline reproduce {asked}{}{calibrated}", self.size_flag());
        let results = self.results(asked);
        let mut store = Store::open(&results).map_err(Ending::Failed)?;
        say(&format!("{}: {}", experiment.name, experiment.title));
        let watch = Watch::new(!self.json);
        let setting = Performance {
            recipes,
            threads: self.threads.count(),
            commit: commit(),
            command: command.clone(),
            pace,
            fresh: self.fresh,
            progress: &watch,
        };
        let all = perform(runs, &setting, &mut store);
        watch.bar.finish_and_clear();
        let all = all?;
        all.failures.iter().for_each(|sentence| say_error(sentence));
        let told = Told::new(experiment, size, seeds, all).map_err(Ending::Usage)?;
        // A part of the runs leaves the page of all of them as it is.
        if !self.only.is_empty() || !self.seeds.is_empty() {
            return Ok(told);
        }
        store.tidy(told.results.all()).map_err(Ending::Failed)?;
        let page = results.with_extension("html");
        write(&page, &told.html(&command).map_err(Ending::Usage)?)?;
        for (i, figure) in told.figures().map_err(Ending::Usage)?.iter().enumerate() {
            let name = results.file_stem().unwrap_or_default().to_string_lossy();
            let file = self.folder.join(format!("{name}-{}.svg", i + 1));
            write(&file, &figure.svg())?;
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

    /// The experiments, with the names by which they were asked for.
    fn load(&self) -> Result<Vec<(&str, Experiment)>, Ending> {
        let mut names: Vec<&str> = Vec::new();
        for name in &self.experiments {
            match name.as_str() {
                "all" => names.extend(experiments::ALL.map(|(known, _)| known)),
                name => names.push(name),
            }
        }
        for (i, name) in names.iter().enumerate() {
            let results = self.results(name);
            if let Some(other) = names[..i].iter().find(|other| self.results(other) == results) {
                let results = results.display();
                return Err(Ending::Usage(format!(
                    "the results of {other} and {name} would both go to {results}: run them one by one, with a --folder for each"
                )));
            }
        }
        let load = |name| Ok((name, experiments::load(name).map_err(Ending::Usage)?));
        names.into_iter().map(load).collect()
    }
}

/// How many runs there are, and a line for each name.
fn told_plan(heading: &str, plan: &[Planned]) -> String {
    let known = |plan: &[Planned]| match plan.iter().filter(|planned| planned.is_known).count() {
        0 => String::new(),
        known => format!(", {known} known already"),
    };
    let mut text = format!("{heading}: {}{}\n", some(plan.len(), "run"), known(plan));
    for alike in plan.chunk_by(|a, b| a.run.name == b.run.name) {
        let (name, seeds) = (&alike[0].run.name, some(alike.len(), "seed"));
        text += &format!("  {name}: {seeds}{}\n", known(alike));
    }
    text
}

fn write(path: &Path, text: &str) -> Ended {
    std::fs::write(path, text)
        .map_err(|error| Ending::Failed(format!("cannot write {}: {error}", path.display())))
}

/// What computing costs on a calibrated cluster.
fn pace(path: &Path) -> Result<Pace, Ending> {
    let pace = scenarios::load(&path.to_string_lossy()).map_err(Ending::of)?.compute;
    if pace.seconds_per_handover > 0.0 || pace.relative.iter().any(|factor| *factor != 1.0) {
        return Err(Ending::Usage(format!(
            "{} was calibrated with emulated speeds; give one without: `paceline calibrate --workers 1 --model cnn --data fashion-mnist`",
            path.display()
        )));
    }
    Ok(pace)
}

/// The code that runs, as its repository named it when it was built; outside of one, the version.
fn commit() -> String {
    match env!("PACELINE_COMMIT") {
        "" => concat!("paceline ", env!("CARGO_PKG_VERSION")).to_owned(),
        commit => commit.to_owned(),
    }
}

/// A bar; without a terminal, a line now and then.
struct Watch {
    bar: ProgressBar,
    is_wanted: bool,
    said: Mutex<Instant>,
}

/// How long nothing is said without a terminal.
const PATIENCE: Duration = Duration::from_secs(60);

impl Watch {
    fn new(is_wanted: bool) -> Watch {
        Watch { bar: runs_bar(is_wanted), is_wanted, said: Mutex::new(Instant::now()) }
    }
}

impl Progress for Watch {
    fn ahead(&self, samples: u64) {
        self.bar.set_length(self.bar.position() + samples);
    }

    fn computed(&self, samples: u64) {
        self.bar.inc(samples);
        let mut said = self.said.lock().expect("nobody panics here");
        if self.is_wanted && self.bar.is_hidden() && said.elapsed() >= PATIENCE {
            *said = Instant::now();
            let (done, all) = (self.bar.position(), self.bar.length().unwrap_or(0));
            let left = all.saturating_sub(done) as f64 / done as f64;
            let left = duration(left * self.bar.elapsed().as_secs_f64());
            say(&format!("{} of {} samples, about {left} left", count(done), count(all)));
        }
    }
}
