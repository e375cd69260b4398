//! Statistics of several values.

/// Statistics over the seeds.
pub struct Summary {
    pub mean: f64,
    pub low: f64,
    pub high: f64,
    /// The standard deviation.
    pub spread: f64,
}

impl Summary {
    pub fn of(values: &[f64]) -> Summary {
        Summary {
            mean: mean(values),
            low: extreme(values, f64::min),
            high: extreme(values, f64::max),
            spread: deviation(values),
        }
    }
}

pub fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// The minimum or maximum; NaN if any value is NaN.
pub fn extreme(values: &[f64], of: fn(f64, f64) -> f64) -> f64 {
    if values.iter().any(|x| x.is_nan()) {
        return f64::NAN;
    }
    values.iter().copied().reduce(of).unwrap_or(f64::NAN)
}

/// The sample standard deviation; NaN for a single value.
pub fn deviation(values: &[f64]) -> f64 {
    let mean = mean(values);
    let squares: f64 = values.iter().map(|x| (x - mean) * (x - mean)).sum();
    (squares / (values.len() as f64 - 1.0)).sqrt()
}
