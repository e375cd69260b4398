//! `paceline calibrate`: measures this machine, or a running cluster, and writes a scenario for the simulator.

mod running;

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use paceline_job::calibrate::{
    Calibration, Cost, Point, Spread, TOLERANCE, TimingCheck, check, check_timing, toml,
};
use paceline_job::{Job, PrepareOptions, Prepared, Recipe};
use paceline_sim::Scenario;
use paceline_watch::table::{bytes, count, duration, table};
use serde::Serialize;

use crate::counted::counted;
use crate::error::{CliError, CliResult, CommandError, UsageError};
use crate::files::{check_distinct, check_writable, write};
use crate::flags::JobFlags;
use crate::output::{print, print_json, say, say_error};
use crate::speeds::SpeedsFlag;

/// Measure this machine, or a running cluster, and write a scenario for the simulator
#[derive(Args)]
#[command(after_help = EXAMPLES, allow_negative_numbers = true)]
pub struct Calibrate {
    /// Measure the cluster whose live page this is (`--page` of `train` or `coordinate`) instead of
    /// this machine
    #[arg(value_name = "HOST:PORT", conflicts_with_all = ["speeds", "check"])]
    page: Option<String>,
    /// For how long a running cluster is measured
    #[arg(long, value_name = "S", default_value = "10", requires = "page", value_parser = seconds)]
    seconds: f64,
    #[command(flatten)]
    speeds: SpeedsFlag,
    /// Write the scenario to this file
    #[arg(long, value_name = "FILE.toml", default_value = "calibrated.toml")]
    out: PathBuf,
    /// Train on threads and in the simulator, and compare the times
    #[arg(long)]
    check: bool,
    /// Training algorithms to check, separated by commas
    #[arg(
        long,
        value_name = "A,B,C",
        value_delimiter = ',',
        requires = "check",
        default_value = "ssgd,abs,dbs,adpsgd,gossip-pull"
    )]
    strategies: Vec<String>,
    /// Print the measurements as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    job: JobFlags,
}

const EXAMPLES: &str = "\
Examples:
  paceline calibrate
  paceline calibrate --check
  paceline calibrate --model cnn --data fashion-mnist --batch 32 --out cnn.toml
  paceline simulate calibrated.toml --strategy abs

With HOST:PORT, the running cluster of that live page is measured: `paceline train --processes 4 --page
8080` and then `paceline calibrate 127.0.0.1:8080`. Flags of the job do not matter then.

As in `paceline train`, there are 4 workers unless --workers or --speeds is given. Without these,
--job, --model and --data, they emulate relative speeds 4, 4, 2 and 1; otherwise none are emulated. The measurements are valid
for this model, batch size and number of workers. A check trains each strategy for 2 epochs unless
--epochs is given, and emulates gradients of at least 10 ms. Run nothing else on the machine while it
is measured.";

/// Time spent on each measurement.
const BUDGET: Duration = Duration::from_secs(1);
/// Epochs of a check without --epochs.
const CHECK_EPOCHS: f64 = 2.0;
/// The shortest gradient of a check, on the fastest of the emulated workers.
const GRADIENT_MIN: Duration = Duration::from_millis(10);

/// The output of `--json`. Field names are part of the interface.
#[derive(Serialize)]
struct Report<'a> {
    measured: &'a Calibration,
    scenario: &'a Scenario,
    #[serde(skip_serializing_if = "Option::is_none")]
    check: Option<Vec<Checked<'a>>>,
}

#[derive(Serialize)]
struct Checked<'a> {
    #[serde(flatten)]
    agreement: &'a TimingCheck,
    difference: f64,
    is_within: bool,
}

impl Calibrate {
    pub fn run(&self, recipes: &[Recipe]) -> CliResult {
        if let Some(page) = &self.page {
            return running::calibrate(page, self.seconds, &self.out, self.json, recipes);
        }
        let workers = self.speeds.workers(self.job.workers)?;
        let speeds = self.speeds.speeds(&self.job);
        check(workers, &speeds).map_err(CliError::usage)?;
        // The costs do not depend on the strategy; plain synchronous rounds show them best.
        let job = self.job.job_with(Some("ssgd"))?;
        let prepared =
            job.prepare_with(PrepareOptions { recipes, ..PrepareOptions::new(workers) })?;
        let checks = self.checks(&job, &prepared, recipes)?;

        check_distinct(&self.job.files(&job), &[("--out", self.out.clone())])?;
        check_writable("scenario", &self.out)?;

        let measured = Calibration::measure(&job, &prepared, &speeds, BUDGET, &mut say)?;

        let scenario = measured.scenario(workers, &speeds);
        write("scenario", &self.out, &toml(&measured, &scenario))?;
        if !self.json {
            print(&measurements(&measured, &scenario))?;
        }
        say(&format!("\nScenario: {}", self.out.display()));
        let (pace, checked_on) = long_enough(measured.pace(workers), &prepared, &scenario);
        let (agreements, ended) = check_all(&checks, (&speeds, pace), &checked_on);
        match (self.json, self.check) {
            (true, _) => print_json(&Report {
                measured: &measured,
                scenario: &scenario,
                check: self.check.then(|| agreements.iter().map(checked).collect()),
            })?,
            (false, true) => print(&comparison(&agreements))?,
            (false, false) => {}
        }
        ended
    }

    /// Prepares a job for each strategy to check, before anything is measured.
    fn checks(
        &self,
        job: &Job,
        prepared: &Prepared,
        recipes: &[Recipe],
    ) -> CliResult<Vec<Prepared>> {
        if !self.check {
            return Ok(vec![]);
        }
        let check = |name: &String| {
            let strategy = name.trim().to_owned();
            let epochs = self.job.epochs.unwrap_or(CHECK_EPOCHS);
            let job = Job { strategy, choices: None, epochs, ..job.clone() };
            job.prepare_with(PrepareOptions {
                workers: prepared.workers,
                recipes,
                task: Some(prepared.task.clone()),
            })
        };
        self.strategies.iter().map(|name| check(name).map_err(CliError::usage)).collect()
    }
}

fn seconds(text: &str) -> Result<f64, UsageError> {
    let seconds = text.parse().ok().filter(|it| (1.0..=3600.0).contains(it));
    seconds.ok_or(UsageError::MeasuredSeconds)
}

/// A slower pace for the check, and the scenario with that pace: gradients of at least `GRADIENT_MIN`. Shorter ones are
/// as long as the time slices of the system's scheduler, which would then decide how long an epoch takes.
fn long_enough(pace: Duration, job: &Prepared, scenario: &Scenario) -> (Duration, Scenario) {
    let mut scenario = scenario.clone();
    // Without emulated speeds, gradients take as long as they take.
    if scenario.compute.seconds_per_handover == 0.0 {
        return (pace, scenario);
    }
    let pace = pace.max(GRADIENT_MIN.div_f64(job.batch as f64));
    scenario.compute.seconds_per_sample = pace.as_secs_f64();
    (pace, scenario)
}

/// Checks one strategy after another, including those after a failure.
fn check_all(
    checks: &[Prepared],
    emulated: (&[f64], Duration),
    scenario: &Scenario,
) -> (Vec<TimingCheck>, CliResult) {
    let (mut agreements, mut ended) = (vec![], Ok(()));
    for check in checks {
        say(&format!("checking {}", check.name));
        match check_timing(check, emulated, scenario) {
            Ok(agreement) => agreements.push(agreement),
            Err(failure) => {
                say_error(format!("{}: {failure}", check.name));
                ended = Err(CommandError::Unchecked.into());
            }
        }
    }
    (agreements, ended)
}

fn checked(agreement: &TimingCheck) -> Checked<'_> {
    let (difference, is_within) = (agreement.difference(), agreement.is_within());
    Checked { agreement, difference, is_within }
}

fn measurements(measured: &Calibration, scenario: &Scenario) -> String {
    let Calibration { gradient, exchange, params, members, .. } = measured;
    let row = |what: String, Spread { median, mean, low, high, repeats }: Spread| {
        let range = format!("{} to {}", duration(low), duration(high));
        vec![what, duration(median), duration(mean), range, repeats.to_string()]
    };
    let mut rows = vec![];
    for Point { size, seconds } in &measured.gradients {
        rows.push(row(format!("gradient of {size} samples"), *seconds));
    }
    rows.push(row(format!("update of {} parameters", count(*params)), measured.update));
    rows.push(row("lossy codec in an exchange (8 bits)".into(), measured.encoding));
    rows.push(row("between two gradients, with the update".into(), measured.pause));
    for Point { size, seconds } in &measured.exchanges {
        rows.push(row(format!("sum of {}, {members} members", bytes(*size)), *seconds));
    }
    rows.push(row("delay beyond the emulated pace".into(), measured.handover));
    let header = ["measurement", "median", "mean", "10 % to 90 %", "repeats"];
    let line = |what: &str, Cost { fixed, each }: &Cost, unit: &str| {
        format!("{what}  {} + {} per {unit}\n", duration(*fixed), duration(*each))
    };
    format!(
        "{} on {}, batch {}, {}; {}, {}\n\n{}\n{}{}{}",
        measured.model,
        measured.data,
        measured.batch,
        counted(measured.workers as usize, "worker"),
        measured.processor,
        counted(measured.cores, "core"),
        table(&header, &rows, &[false, true, true, true, true]),
        line("gradient", gradient, "sample"),
        line("exchange", exchange, "byte"),
        simulated(scenario),
    )
}

fn simulated(scenario: &Scenario) -> String {
    let (compute, network) = (&scenario.compute, &scenario.network);
    format!(
        "simulated {} per sample, {} per gradient, {} per handover; latency {}, {} per second\n",
        duration(compute.seconds_per_sample),
        duration(compute.seconds_per_gradient),
        duration(compute.seconds_per_handover),
        duration(network.latency),
        bytes(network.bytes_per_second as u64)
    )
}

fn comparison(agreements: &[TimingCheck]) -> String {
    let row = |agreement: &TimingCheck| {
        vec![
            agreement.strategy.clone(),
            duration(agreement.threads),
            duration(agreement.simulated),
            format!("{:+.1} %", 100.0 * agreement.difference()),
            format!(
                "{}within {:.0} %",
                if agreement.is_within() { "" } else { "not " },
                100.0 * TOLERANCE
            ),
        ]
    };
    let rows: Vec<Vec<String>> = agreements.iter().map(row).collect();
    let header = ["strategy", "threads", "simulated", "difference", ""];
    let table = table(&header, &rows, &[false, true, true, true, false]);
    format!("\nTime per epoch; on threads, the fastest of three runs\n{table}")
}
