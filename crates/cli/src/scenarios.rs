//! `paceline scenarios`: the simulated clusters that come with Paceline.

use clap::Args;
use paceline_job::scenarios::{ALL, named, toml_of};
use paceline_watch::table::table;

use crate::output::{Ended, Ending, print};

/// List the simulated clusters, or print one as a file to start from
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct Scenarios {
    /// Print this scenario's TOML
    name: Option<String>,
}

const EXAMPLES: &str = "\
Examples:
  paceline scenarios
  paceline scenarios spot > my-cluster.toml";

impl Scenarios {
    pub fn run(&self) -> Ended {
        if let Some(name) = &self.name {
            return print(toml_of(name).map_err(Ending::of)?);
        }
        let mut rows = vec![];
        for (name, _) in ALL {
            let scenario = named(name).map_err(Ending::of)?;
            rows.push(vec![name.to_owned(), scenario.description]);
        }
        print(&table(&["name", "what it is like"], &rows, &[]))
    }
}
