//! The speeds that threads emulate, for every command that runs them.

use clap::Args;

#[derive(Args)]
pub struct SpeedsFlag {
    /// Let workers be unevenly fast: 4 is four times as fast as 1
    #[arg(long, value_name = "V,V,...", value_delimiter = ',', value_parser = speed)]
    pub speeds: Vec<f64>,
}

/// Uneven workers are what this is about, so they are there unless somebody says what to have.
const SPEEDS: [f64; 4] = [4.0, 4.0, 2.0, 1.0];

impl SpeedsFlag {
    /// The speeds, where so many workers were asked for.
    pub fn speeds(&self, workers: Option<u32>) -> Vec<f64> {
        if self.speeds.is_empty() && workers.is_none() {
            SPEEDS.to_vec()
        } else {
            self.speeds.clone()
        }
    }

    /// As many workers as asked for, or one for each speed.
    pub fn workers(&self, workers: Option<u32>) -> Result<u32, String> {
        let named = self.speeds.len() as u32;
        match workers {
            Some(workers) if named > workers => Err(format!(
                "speeds names {named} workers, but workers = {workers}: give one speed for each"
            )),
            Some(workers) => Ok(workers),
            None if named > 0 => Ok(named),
            None => Ok(SPEEDS.len() as u32),
        }
    }
}

fn speed(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(speed) if speed.is_finite() && speed > 0.0 => Ok(speed),
        _ => Err("give numbers above zero, e.g. 1,1,2,4".into()),
    }
}
