//! The command line: one file per command.

mod bar;
mod calibrate;
mod chance;
mod checkpoint;
mod compare;
mod comparison;
mod coordinate;
mod counted;
mod data;
mod error;
mod evaluate;
mod files;
mod flags;
mod join;
mod launch;
mod local_workers;
mod log;
mod mpi;
mod output;
mod outputs;
mod page;
mod passing;
mod place;
mod predict;
mod processes;
mod rates;
mod readers;
mod report;
mod reproduce;
mod scenarios;
mod simulate;
mod sketch;
mod speeds;
mod status;
mod stop;
mod strategies;
mod summary;
mod token;
mod train;
mod worker;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::OnceLock;

use clap::{Parser, Subcommand};
use paceline_job::{Recipe, recipes};

use crate::error::CliResult;

/// Distributed SGD for clusters that are uneven, unsteady and poorly connected
#[derive(Parser)]
#[command(name = "paceline", version, max_term_width = 100, after_help = EXAMPLES)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

const EXAMPLES: &str = "\
Examples:
  paceline compare                              all strategies on a cluster with stragglers
  paceline simulate spot --strategy abs         one strategy on machines that join and leave
  paceline train --strategy dbs --speeds 1,1,2,4";

#[derive(Subcommand)]
enum Command {
    Simulate(simulate::Simulate),
    Compare(compare::Compare),
    Train(train::Train),
    Coordinate(coordinate::Coordinate),
    Join(join::Join),
    Launch(launch::Launch),
    Status(status::Status),
    Token(token::Token),
    Calibrate(calibrate::Calibrate),
    Evaluate(evaluate::Evaluate),
    Predict(predict::Predict),
    Report(report::Report),
    Reproduce(reproduce::Reproduce),
    Strategies(strategies::Strategies),
    Scenarios(scenarios::Scenarios),
    Data(data::Data),
    #[command(hide = true)]
    Worker(worker::Worker),
}

/// How this program is called, if it is not a program of its own: a module of an interpreter, say.
#[derive(Clone, Debug)]
pub struct Caller {
    /// What starts it again, as a worker process.
    pub program: PathBuf,
    pub arguments: Vec<String>,
}

static CALLER: OnceLock<Caller> = OnceLock::new();

/// As [`main_with`], for a program that is called in another way. `arguments`: its name, then what the user gave it.
pub fn main_called(caller: Caller, arguments: Vec<OsString>) -> ExitCode {
    // A process has one command line, so it is called in one way.
    let _ = CALLER.set(caller);
    main_of(Cli::try_parse_from(arguments), vec![])
}

/// Runs the command line with additional recipes. A recipe replaces the built-in one of the same name.
pub fn main_with(additional: Vec<Recipe>) -> ExitCode {
    main_of(Cli::try_parse(), additional)
}

fn main_of(parsed: Result<Cli, clap::Error>, additional: Vec<Recipe>) -> ExitCode {
    let cli = match parsed {
        Ok(cli) => cli,
        Err(error) => {
            // Of many ranks with the same arguments one says what is wrong with them.
            if !mpi::is_follower() {
                // A closed pipe while printing help is not a failure.
                let _ = error.print();
            }
            return if error.use_stderr() { ExitCode::from(2) } else { ExitCode::SUCCESS };
        }
    };
    let mut recipes = recipes();
    recipes.retain(|built_in| additional.iter().all(|recipe| recipe.name != built_in.name));
    recipes.extend(additional);
    output::exit_code(run(cli.command, &recipes))
}

fn run(command: Command, recipes: &[Recipe]) -> CliResult {
    match command {
        Command::Simulate(command) => command.run(recipes),
        Command::Compare(command) => command.run(recipes),
        Command::Train(command) => command.run(recipes),
        Command::Coordinate(command) => command.run(recipes),
        Command::Join(command) => command.run(recipes),
        Command::Launch(command) => launch(&command, recipes),
        Command::Status(command) => command.run(),
        Command::Token(command) => command.run(),
        Command::Calibrate(command) => command.run(recipes),
        Command::Evaluate(command) => command.run(),
        Command::Predict(command) => command.run(),
        Command::Report(command) => command.run(),
        Command::Reproduce(command) => command.run(recipes),
        Command::Strategies(command) => command.run(recipes),
        Command::Scenarios(command) => command.run(),
        Command::Data(command) => command.run(),
        Command::Worker(command) => command.run(recipes),
    }
}

/// Runs what a task of a launcher is to do, which is another command of this program.
fn launch(launch: &launch::Launch, recipes: &[Recipe]) -> CliResult {
    let planned = launch.plan()?;
    let cli = Cli::try_parse_from(&planned.arguments).unwrap_or_else(|error| error.exit());
    if let Some(done) = launch.is_done(&planned) {
        output::say(&done);
        return Ok(());
    }
    launch.begin(&planned)?;
    run(cli.command, recipes)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn flags_do_not_contradict_each_other() {
        Cli::command().debug_assert();
    }
}
