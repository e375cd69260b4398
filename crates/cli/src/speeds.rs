//! The emulated speeds of workers, shared by all commands that run on threads.

use clap::Args;

use crate::error::UsageError;

#[derive(Args)]
pub struct SpeedsFlag {
    /// Emulate workers of these relative speeds: 4 is four times as fast as 1
    #[arg(long, value_name = "V,V,...", value_delimiter = ',', value_parser = speed)]
    pub speeds: Vec<f64>,
}

/// The default workers are uneven, because uneven clusters are what Paceline is for.
const SPEEDS: [f64; 4] = [4.0, 4.0, 2.0, 1.0];

impl SpeedsFlag {
    /// Returns the relative speeds; empty if all workers run at full speed.
    pub fn speeds(&self, workers: Option<u32>) -> Vec<f64> {
        if self.speeds.is_empty() && workers.is_none() {
            SPEEDS.to_vec()
        } else {
            self.speeds.clone()
        }
    }

    /// Returns the number of workers: the given one, or one per speed.
    pub fn workers(&self, workers: Option<u32>) -> Result<u32, UsageError> {
        let speeds = self.speeds.len() as u32;
        match workers {
            Some(workers) if speeds > workers => Err(UsageError::SpeedsCount { speeds, workers }),
            Some(workers) => Ok(workers),
            None if speeds > 0 => Ok(speeds),
            None => Ok(SPEEDS.len() as u32),
        }
    }
}

fn speed(text: &str) -> Result<f64, UsageError> {
    match text.parse::<f64>() {
        Ok(speed) if speed.is_finite() && speed > 0.0 => Ok(speed),
        _ => Err(UsageError::Speed),
    }
}
