//! The flags of runs whose workers are processes.

use std::time::Duration;

use clap::{ArgGroup, Args};
use paceline_job::ProcessOptions;

use crate::error::{CliResult, CommandError, UsageError};
use crate::{CALLER, Caller};

#[derive(Args)]
#[command(group = ArgGroup::new("apart").args(["processes", "cluster"]))]
pub struct ProcessFlags {
    /// Start N worker processes instead of threads
    #[arg(long, value_name = "N", conflicts_with_all = ["workers", "faults", "cluster"])]
    pub processes: Option<u32>,
    /// Start a new worker process when one has died
    #[arg(long, requires = "processes")]
    respawn: bool,
    /// A worker that is silent for this many seconds counts as lost [default: 5; of MPI ranks, 30]
    #[arg(long, value_name = "S", requires = "apart", value_parser = seconds)]
    pub patience: Option<Duration>,
}

pub const PATIENCE: Duration = Duration::from_secs(5);
/// A machine that is busy may not let a process run for a while.
const PATIENCE_MIN: f64 = 0.1;
const PATIENCE_MAX: f64 = 86_400.0;

impl ProcessFlags {
    /// Returns how worker processes are started; `None` if workers are threads.
    pub fn options(&self) -> CliResult<Option<ProcessOptions>> {
        if self.processes.is_none() {
            return Ok(None);
        }
        let Caller { program, mut arguments } = caller()?;
        arguments.push("worker".to_owned());
        Ok(Some(ProcessOptions {
            program,
            arguments,
            respawn: self.respawn,
            patience: self.patience.unwrap_or(PATIENCE),
            started: None,
        }))
    }
}

/// How this program is started again, as a worker.
pub fn caller() -> CliResult<Caller> {
    if let Some(caller) = CALLER.get() {
        return Ok(caller.clone());
    }
    let program = std::env::current_exe().map_err(CommandError::Program)?;
    Ok(Caller { program, arguments: vec![] })
}

pub fn seconds(text: &str) -> Result<Duration, UsageError> {
    match text.parse::<f64>() {
        Ok(seconds) if (PATIENCE_MIN..=PATIENCE_MAX).contains(&seconds) => {
            Ok(Duration::from_secs_f64(seconds))
        }
        _ => Err(UsageError::Patience),
    }
}
