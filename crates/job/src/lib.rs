//! Joins the rooms: from what the user asks for to what came of it.

pub mod account;
pub mod calibrate;
pub mod checkpoint;
pub mod choices;
pub mod data;
pub mod evaluate;
pub mod job;
pub mod journal_file;
pub mod judge;
pub mod models;
pub mod observe;
pub mod outcome;
pub mod pace;
pub mod predict;
pub mod recipes;
pub mod retime;
pub mod scenarios;
pub mod simulate;
pub mod task;
pub mod threads;
pub mod write;

pub use choices::{Choices, Kind};
pub use job::{Job, Prepared, Target};
pub use outcome::{Failure, Outcome};
/// What `kernels` in a job may be.
pub use paceline_learn::Path as Kernels;
pub use recipes::{Recipe, recipes};
pub use retime::Training;
pub use simulate::{Simulated, simulate};
pub use task::Task;
