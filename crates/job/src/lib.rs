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
mod hosts;
pub mod job;
pub mod journal_file;
pub mod models;
pub mod pace;
pub mod predict;
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
pub use job::{PrepareOptions, Prepared, Target};
/// The vector instructions that `kernels` in a job may name.
pub use paceline_learn::Path as Kernels;
pub use recipes::{Recipe, recipes};
pub use retime::Training;
pub use run_result::{Losses, Recovery, RunResult};
pub use simulate::{SimulateOptions, Simulated, simulate, simulate_hosted};
pub use task::Task;
pub use threads::{TrainOptions, Trained, train, train_hosted};
