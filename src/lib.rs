//! Distributed SGD for clusters that are uneven, unsteady and poorly connected.
//!
//! A [`Job`] says what to train and how, a [`Scenario`] what the cluster is like. [`simulate()`] runs the job on a simulated
//! cluster, with real gradients in virtual time; [`train()`] runs it on threads of this process.
//!
//! ```
//! use paceline::{Job, SimulateOptions, scenarios, simulate};
//!
//! let job = Job { strategy: "lb-bsp".into(), epochs: 3.0, target_loss: Some(1.0), ..Job::default() };
//! let cluster = scenarios::named("stragglers")?;
//! let prepared = job.prepare(cluster.workers)?;
//!
//! let result = simulate(&prepared, &cluster, SimulateOptions::default())?.result;
//!
//! assert_eq!(result.samples, 3 * 1293);
//! assert_eq!((result.ledger.lost, result.ledger.repeated), (0, 0));
//! assert!(result.seconds_to_target.is_some());
//! # Ok::<(), paceline::Error>(())
//! ```
//!
//! The same job on four threads, of which two are emulated to be half as fast:
//!
//! ```
//! use paceline::{Job, TrainOptions, train};
//!
//! let job = Job { strategy: "dbs".into(), epochs: 1.0, ..Job::default() };
//! let options = TrainOptions { speeds: vec![2.0, 2.0, 1.0, 1.0], ..TrainOptions::default() };
//!
//! let trained = train(&job.prepare(4)?, options)?;
//!
//! assert_eq!(trained.result.samples, 1293);
//! assert!(trained.params.is_some() && trained.replicas.len() == 4);
//! # Ok::<(), paceline::Error>(())
//! ```
//!
//! Your own training algorithm is a [`Strategy`]; [`Recipe::own`] adds it to the table of recipes. With the feature `cli`, which
//! is on by default, `main_with` gives it the whole command line.
//!
//! The crates behind this one are re-exported as they are: [`learn`], [`runtime`], [`strategies`], [`sim`], [`data`] and [`job`].

pub use paceline_data as data;
pub use paceline_job as job;
pub use paceline_learn as learn;
pub use paceline_runtime as runtime;
pub use paceline_sim as sim;
pub use paceline_strategies as strategies;

pub use paceline_job::{
    Choices, Error, Job, OnProcesses, PrepareOptions, Prepared, ProcessOptions, Recipe, RunResult,
    SimulateOptions, Simulated, StrategyKind, Target, Task, TrainOptions, Trained, recipes,
    scenarios, simulate, simulate_hosted, train, train_hosted, train_on_processes,
};
pub use paceline_learn::{
    Batch, Dataset, Dice, Gradient, Model, Optimizer, Rescale, Rule, Schedule, Score, Scratch,
    Shape, Table, Vector,
};
pub use paceline_runtime::{
    AnyStrategy, Average, Call, Coordination, HostLine, Interrupt, Line, Message, Mine, Reader,
    Record, Server, Share, Strategy, Total, View, Worker, WorkerId,
};
pub use paceline_sim::Scenario;

/// The whole command line, with your own strategies beside the built-in ones.
#[cfg(feature = "cli")]
pub fn main_with(own: impl IntoIterator<Item = Recipe>) -> std::process::ExitCode {
    paceline_cli::main_with(own.into_iter().collect())
}
