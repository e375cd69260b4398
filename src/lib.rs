//! Distributed SGD for clusters that are uneven, unsteady and poorly connected.
//!
//! A [`Job`] says what is to be learned and how, a [`Scenario`] what the cluster is like; [`simulate()`] tells what
//! comes of it, with real gradients in virtual time.
//!
//! ```
//! use paceline::{Job, scenarios, simulate};
//!
//! let job = Job { strategy: "lb-bsp".into(), epochs: 3.0, target_loss: Some(1.0), ..Job::default() };
//! let cluster = scenarios::named("stragglers")?;
//! let prepared = job.prepare(cluster.workers)?;
//!
//! let outcome = simulate(&prepared, &cluster, 1, vec![])?.result;
//!
//! assert_eq!(outcome.samples, 3 * 1437);
//! assert_eq!((outcome.ledger.lost, outcome.ledger.repeated), (0, 0));
//! assert!(outcome.time_to_target_seconds.is_some());
//! # Ok::<(), paceline::Error>(())
//! ```
//!
//! A training algorithm of one's own is a [`Strategy`]; [`Recipe::own`] puts it into the table beside ours, and
//! [`main_with`] gives it the whole command line.
//!
//! The rooms of the house are here as well, whole: [`learn`], [`runtime`], [`strategies`], [`sim`],
//! [`data`] and [`job`].

pub use paceline_data as data;
pub use paceline_job as job;
pub use paceline_learn as learn;
pub use paceline_runtime as runtime;
pub use paceline_sim as sim;
pub use paceline_strategies as strategies;

pub use paceline_job::{
    Choices, Error, Job, PrepareOptions, Prepared, Recipe, RunResult, Simulated, StrategyKind,
    Target, Task, recipes, scenarios, simulate,
};
pub use paceline_learn::{
    Batch, Dataset, Dice, Gradient, Model, Optimizer, Rescale, Rule, Schedule, Score, Scratch,
    Shape, Table, Vector,
};
pub use paceline_runtime::{
    AnyStrategy, Average, Call, Coordination, Interrupt, Letter, Line, Mine, Reader, Record,
    Result, Server, Share, Strategy, Total, View, Worker, WorkerId,
};
pub use paceline_sim::Scenario;

use std::process::ExitCode;

/// The whole command line, with strategies of one's own beside ours.
pub fn main_with(own: impl IntoIterator<Item = Recipe>) -> ExitCode {
    paceline_cli::main_with(own.into_iter().collect())
}
