//! From a [`Job`] to its [`RunResult`]: checks jobs, runs them simulated or on threads, saves and resumes
//! them, and evaluates trained models.

pub mod calibrate;
pub mod checkpoint;
pub mod checkpoint_config;
pub mod choices;
pub mod config;
pub mod data;
pub mod description;
pub mod error;
pub mod evaluate;
pub mod facts;
mod hosts;
pub mod job;
pub mod journal_file;
pub mod models;
pub mod pace;
mod plain;
pub mod predict;
pub mod processes;
pub mod recipes;
pub mod retime;
pub mod run;
pub mod run_result;
pub mod scenarios;
pub mod simulate;
pub mod suggest;
pub mod task;
pub mod threads;
pub mod weights;
pub mod write;

pub use choices::{Choices, StrategyKind};
pub use config::Job;
pub use error::Error;
pub use facts::Facts;
pub use job::{PrepareOptions, Prepared, Target};
/// The vector instructions that `kernels` in a job may name.
pub use paceline_learn::Path as Kernels;
/// The ranks of an MPI job.
#[cfg(feature = "mpi")]
pub use paceline_mpi as mpi;
pub use processes::{OnProcesses, ProcessOptions, train_on_processes};
pub use recipes::{Recipe, recipes};
pub use retime::Training;
pub use run_result::{Losses, Recovery, RunResult};
pub use simulate::{SimulateOptions, Simulated, simulate, simulate_hosted};
pub use task::Task;
pub use threads::{TrainOptions, Trained, train, train_hosted};
