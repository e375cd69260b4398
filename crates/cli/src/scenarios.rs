//! `paceline scenarios`: lists the built-in simulated clusters.

use clap::Args;
use paceline_job::scenarios::{ALL, named, toml_of};
use paceline_watch::table::table;

use crate::error::{CliError, CliResult};
use crate::output::print;

/// List the simulated clusters, or print one as a template for your own
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct Scenarios {
    /// Print the TOML file of this scenario
    name: Option<String>,
}

const EXAMPLES: &str = "\
Examples:
  paceline scenarios
  paceline scenarios spot > my-cluster.toml";

impl Scenarios {
    pub fn run(&self) -> CliResult {
        if let Some(name) = &self.name {
            return print(toml_of(name).map_err(CliError::usage)?);
        }
        let mut rows = vec![];
        for (name, _) in ALL {
            let scenario = named(name).map_err(CliError::failed)?;
            rows.push(vec![name.to_owned(), scenario.description]);
        }
        print(&table(&["name", "description"], &rows, &[]))
    }
}
