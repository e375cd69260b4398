//! The emulated speeds of workers, shared by all commands that run on threads.

use std::time::Duration;

use clap::Args;

use crate::error::UsageError;
use crate::flags::JobFlags;

#[derive(Args)]
pub struct SpeedsFlag {
    /// Emulate workers of these relative speeds: 4 is four times as fast as 1
    #[arg(long, value_name = "V,V,...", value_delimiter = ',', value_parser = speed)]
    pub speeds: Vec<f64>,
}

/// The default workers are uneven, because uneven clusters are what Paceline is for.
const SPEEDS: [f64; 4] = [4.0, 4.0, 2.0, 1.0];

impl SpeedsFlag {
    /// Returns the relative speeds; empty if all workers run at full speed. Only the demonstration emulates speeds
    /// that nobody asked for: whoever names a model or data wants them trained as fast as possible.
    pub fn speeds(&self, job: &JobFlags) -> Vec<f64> {
        if self.speeds.is_empty() && job.workers.is_none() && job.is_demonstration() {
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

/// "4, 4, 2, 1", repeated if there are more workers; a long list is cut.
pub fn listed(speeds: &[f64], workers: u32) -> String {
    const LISTED_MAX: usize = 16;
    let all = speeds.iter().cycle().take(workers as usize);
    let mut text: Vec<String> = all.take(LISTED_MAX).map(f64::to_string).collect();
    if workers as usize > LISTED_MAX {
        text.push("...".to_owned());
    }
    text.join(", ")
}

/// The longest time per sample that is emulated.
const PACE_MAX: f64 = 60.0;

pub fn pace(text: &str) -> Result<Duration, UsageError> {
    match text.parse::<f64>() {
        Ok(seconds) if seconds > 0.0 && seconds <= PACE_MAX => Ok(Duration::from_secs_f64(seconds)),
        _ => Err(UsageError::Pace),
    }
}

fn speed(text: &str) -> Result<f64, UsageError> {
    match text.parse::<f64>() {
        Ok(speed) if speed.is_finite() && speed > 0.0 => Ok(speed),
        _ => Err(UsageError::Speed),
    }
}
