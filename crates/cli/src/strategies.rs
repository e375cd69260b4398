//! `paceline strategies`: lists the training algorithms.

use clap::Args;
use paceline_job::{Choices, Recipe};
use paceline_watch::table::table;
use serde::Serialize;

use crate::error::CliResult;
use crate::output::{print, print_json};

/// List the training algorithms
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct Strategies {
    /// Print the list as JSON, with the choices that make up each algorithm
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  paceline strategies
  paceline strategies --json | jq '.[] | select(.choices.shares.kind == \"open\")'";

#[derive(Serialize)]
struct Row<'a> {
    name: &'a str,
    summary: &'a str,
    paper: &'a str,
    learning_rate: f32,
    choices: Option<&'a Choices>,
}

impl Row<'_> {
    fn of(recipe: &Recipe) -> Row<'_> {
        let Recipe { name, summary, paper, learning_rate, .. } = recipe;
        Row { name, summary, paper, learning_rate: *learning_rate, choices: recipe.choices() }
    }
}

impl Strategies {
    pub fn run(&self, recipes: &[Recipe]) -> CliResult {
        if self.json {
            return print_json(&recipes.iter().map(Row::of).collect::<Vec<Row>>());
        }
        let row = |recipe: &Recipe| {
            vec![recipe.name.clone(), recipe.summary.clone(), recipe.paper.clone()]
        };
        let rows: Vec<Vec<String>> = recipes.iter().map(row).collect();
        print(&table(&["name", "description", "paper"], &rows, &[]))
    }
}
