//! `paceline calibrate HOST:PORT`: a scenario for a cluster that is running, from two looks at its live page.

use std::path::Path;
use std::time::Duration;

use paceline_job::Recipe;
use paceline_job::calibrate::{Observed, measured_toml, rest, scenario_of};
use paceline_sim::Scenario;
use paceline_watch::status::{Committed, Phase, Snapshot, Worker};
use paceline_watch::table::{bytes, duration, table};
use serde::Serialize;
use thiserror::Error;

use crate::error::{CliError, CliResult};
use crate::files::{check_writable, write};
use crate::output::{print, print_json, say};
use crate::status::{fetch, page_address};

#[derive(Debug, Error)]
enum Unmeasured {
    #[error("the run at {0} is not training: measure it while it trains")]
    Idle(String),
    #[error("members came or went in these seconds: measure again")]
    Changed,
    #[error("worker {worker} ended fewer than 3 rounds in {seconds} s: use --seconds with more")]
    TooShort { worker: u32, seconds: f64 },
}

/// The output of `--json`. Field names are part of the interface.
#[derive(Serialize)]
struct Report<'a> {
    measured: &'a [Observed],
    scenario: &'a Scenario,
}

/// Fewer rounds say little about their mean.
const ROUNDS_MIN: u64 = 3;

pub fn calibrate(
    page: &str,
    seconds: f64,
    out: &Path,
    json: bool,
    recipes: &[Recipe],
) -> CliResult {
    let page = &page_address(page);
    check_writable("scenario", out)?;
    let before = fetch(page).map_err(CliError::failed)?;
    say(&format!("measuring for {seconds} s"));
    std::thread::sleep(Duration::from_secs_f64(seconds));
    let after = fetch(page).map_err(CliError::failed)?;

    let observed = observe(page, &before, &after, seconds).map_err(CliError::failed)?;
    let mut scenario = scenario_of(&observed, after.params);
    let recipe = recipes.iter().find(|recipe| recipe.name == after.strategy);
    let sums = recipe.is_some_and(Recipe::sums_in_every_round);
    if !sums {
        scenario.network = Scenario::default().network;
    }
    scenario.description =
        format!("{}: {} on {}, {}", scenario.description, after.model, after.data, after.strategy);
    write("scenario", out, &measured_toml(&scenario, sums))?;
    if json {
        print_json(&Report { measured: &observed, scenario: &scenario })?;
    } else {
        print(&shown(&observed, &scenario))?;
    }
    if !sums {
        say(&format!(
            "{} does not sum gradients in every round and wait for it, so that the network was not measured: \
             the scenario has the default one",
            after.strategy
        ));
    }
    say(&format!("\nScenario: {}", out.display()));
    Ok(())
}

/// What every member did in whole rounds between two looks.
fn observe(
    page: &str,
    before: &Snapshot,
    after: &Snapshot,
    seconds: f64,
) -> Result<Vec<Observed>, Unmeasured> {
    if after.phase != Phase::Training {
        return Err(Unmeasured::Idle(page.to_owned()));
    }
    let members = |snapshot: &Snapshot| -> Vec<Worker> {
        let is_member = |it: &&Worker| !it.state.is_gone();
        let mut members: Vec<Worker> = snapshot.workers.iter().filter(is_member).cloned().collect();
        members.sort_by_key(|it| it.id);
        members
    };
    let (before, after) = (members(before), members(after));
    if before.is_empty() || !before.iter().map(|it| it.id).eq(after.iter().map(|it| it.id)) {
        return Err(Unmeasured::Changed);
    }
    let difference = |(before, after): (Worker, Worker)| {
        let worker = after.id;
        let too_short = Unmeasured::TooShort { worker, seconds };
        let none = Committed {
            at: 0.0,
            rounds: u64::MAX,
            samples: 0,
            compute_seconds: 0.0,
            waited_seconds: 0.0,
        };
        let (from, to) = (before.committed.unwrap_or(none), after.committed.unwrap_or(none));
        let rounds = to.rounds.saturating_sub(from.rounds);
        let samples = to.samples.saturating_sub(from.samples);
        if rounds < ROUNDS_MIN || samples == 0 {
            return Err(too_short);
        }
        Ok(Observed {
            worker,
            rounds,
            samples,
            seconds: to.at - from.at,
            computing: to.compute_seconds - from.compute_seconds,
            waiting: to.waited_seconds - from.waited_seconds,
        })
    };
    before.into_iter().zip(after).map(difference).collect()
}

fn shown(observed: &[Observed], scenario: &Scenario) -> String {
    let row = |it: &Observed| {
        vec![
            it.worker.to_string(),
            it.rounds.to_string(),
            it.samples.to_string(),
            duration(it.seconds_per_sample()),
            duration(it.waiting / it.rounds as f64),
            duration(it.rest()),
        ]
    };
    let rows: Vec<Vec<String>> = observed.iter().map(row).collect();
    let header =
        ["worker", "rounds", "samples", "per sample", "waits per round", "rest of a round"];
    format!(
        "{}\nsimulated: an exchange takes {}, as {} per second\n",
        table(&header, &rows, &[true; 6]),
        duration(rest(observed)),
        bytes(scenario.network.bytes_per_second as u64)
    )
}
