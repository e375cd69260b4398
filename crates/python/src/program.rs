//! The command line, so that the wheel brings `paceline`.

use std::ffi::OsString;
use std::path::PathBuf;

use paceline_cli::{Caller, main_called};
use paceline_learn::Vector;
use paceline_strategies::parts::Shares;
use pyo3::prelude::*;

use crate::flat::Flat;

/// Runs the command line. `python` starts worker processes, with `arguments` before the name of the command. Returns the exit code.
#[pyfunction]
pub fn main(
    py: Python<'_>,
    command_line: Vec<OsString>,
    python: PathBuf,
    arguments: Vec<String>,
) -> u8 {
    let caller = Caller { program: python, arguments };
    let code = py.detach(|| main_called(caller, command_line));
    // An exit code cannot be read, but compared.
    (0..=u8::MAX).find(|n| std::process::ExitCode::from(*n) == code).unwrap_or(1)
}

/// The version of the engine.
#[pyfunction]
pub fn version() -> &'static str {
    env!("CARGO_PKG_VERSION")
}

/// The names of all strategies, each with its summary, the name of its algorithm, and whether its batches are open.
#[pyfunction]
pub fn recipes() -> Vec<(String, String, &'static str, bool)> {
    let row = |recipe: paceline_job::Recipe| {
        let algorithm = recipe.choices().map_or("own", |choices| choices.strategy.name());
        let is_open = recipe.choices().is_some_and(|choices| choices.shares == Shares::Open);
        (recipe.name, recipe.summary, algorithm, is_open)
    };
    paceline_job::recipes().into_iter().map(row).collect()
}

/// The built-in digits, to train on and to test on: rows of 64 numbers, and labels.
#[pyfunction]
pub fn digits() -> [(Flat, Vec<u32>); 2] {
    let (train, test) = paceline_learn::digits();
    [train, test].map(|set| (Flat::read_only(Vector::from(set.inputs)), set.labels))
}
