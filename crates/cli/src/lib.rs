//! The command line: one file per command.

mod bar;
mod calibrate;
mod checkpoint;
mod compare;
mod counted;
mod data;
mod error;
mod evaluate;
mod files;
mod flags;
mod output;
mod outputs;
mod predict;
mod readers;
mod report;
mod reproduce;
mod scenarios;
mod simulate;
mod sketch;
mod speeds;
mod strategies;
mod summary;
mod train;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use paceline_job::{Recipe, recipes};

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
    Calibrate(calibrate::Calibrate),
    Evaluate(evaluate::Evaluate),
    Predict(predict::Predict),
    Report(report::Report),
    Reproduce(reproduce::Reproduce),
    Strategies(strategies::Strategies),
    Scenarios(scenarios::Scenarios),
    Data(data::Data),
}

/// Runs the command line with additional recipes. A recipe replaces the built-in one of the same name.
pub fn main_with(additional: Vec<Recipe>) -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // A closed pipe while printing help is not a failure.
            let _ = error.print();
            return if error.use_stderr() { ExitCode::from(2) } else { ExitCode::SUCCESS };
        }
    };
    let mut recipes = recipes();
    recipes.retain(|built_in| additional.iter().all(|recipe| recipe.name != built_in.name));
    recipes.extend(additional);
    output::exit_code(match cli.command {
        Command::Simulate(command) => command.run(&recipes),
        Command::Compare(command) => command.run(&recipes),
        Command::Train(command) => command.run(&recipes),
        Command::Calibrate(command) => command.run(&recipes),
        Command::Evaluate(command) => command.run(),
        Command::Predict(command) => command.run(),
        Command::Report(command) => command.run(),
        Command::Reproduce(command) => command.run(&recipes),
        Command::Strategies(command) => command.run(&recipes),
        Command::Scenarios(command) => command.run(),
        Command::Data(command) => command.run(),
    })
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
