//! `paceline worker`: a worker process of `paceline train --processes`, which speaks with its parent through its standard
//! input and output. Users do not call it.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use clap::Args;
use paceline_job::Recipe;
use paceline_job::processes::{WorkerSignals, work};

use crate::error::{CliResult, CommandError};
use crate::stop::Stop;

/// Work for the process that started this one
#[derive(Args)]
pub struct Worker {}

impl Worker {
    pub fn run(&self, recipes: &[Recipe]) -> CliResult {
        // The parent says what there is to say.
        let signals = signals(Stop::quietly()?)?;
        Ok(work(std::io::stdin(), std::io::stdout(), recipes, signals)?)
    }
}

/// A signal that stops other commands makes a worker leave at the next boundary; SIGUSR1 asks for a checkpoint.
pub fn signals(stop: Stop) -> CliResult<WorkerSignals> {
    let signals = WorkerSignals { leave: stop.requested, ..WorkerSignals::default() };
    #[cfg(unix)]
    on_usr1(&signals.save)
        .map_err(|error| CommandError::Signal { signal: "SIGUSR1", source: error.into() })?;
    Ok(signals)
}

#[cfg(unix)]
fn on_usr1(save: &Arc<AtomicBool>) -> std::io::Result<()> {
    signal_hook::flag::register(signal_hook::consts::SIGUSR1, save.clone()).map(drop)
}
