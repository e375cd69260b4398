//! Joins the rooms: from what the user asks for to what came of it.

pub mod calibrate;
pub mod checkpoint;
pub mod choices;
pub mod data;
pub mod evaluate;
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
pub mod task;
pub mod threads;
pub mod write;

pub use choices::{Choices, StrategyKind};
pub use job::{Job, Prepared, Target};
/// What `kernels` in a job may be.
pub use paceline_learn::Path as Kernels;
pub use recipes::{Recipe, recipes};
pub use retime::Training;
pub use run_result::{Failure, Losses, RunResult};
pub use simulate::{Simulated, simulate};
pub use task::Task;
