//! Wall-clock and CPU time, and the median and range of several measurements.

use std::fmt;
use std::time::{Duration, Instant};

use serde::Deserialize;

/// Something per second of wall-clock time and of this thread's CPU time.
///
/// On an idle machine the two agree. On a busy one only the second measures the code.
#[derive(Clone, Copy, Deserialize)]
pub struct Rate {
    pub wall: f64,
    pub cpu: f64,
}

impl Rate {
    pub fn times(self, factor: f64) -> Rate {
        Rate { wall: self.wall * factor, cpu: self.cpu * factor }
    }
}

/// Steps per second: runs `step` once to warm up, then repeatedly for `seconds`.
pub fn rate(seconds: f64, mut step: impl FnMut()) -> Rate {
    step();
    let (since, mut steps) = (Stopwatch::start(), 0.0);
    while since.wall.elapsed().as_secs_f64() < seconds {
        step();
        steps += 1.0;
    }
    let (wall, cpu) = since.stop();
    Rate { wall: steps / wall, cpu: steps / cpu }
}

/// Measures wall-clock time and this thread's CPU time.
pub struct Stopwatch {
    wall: Instant,
    cpu: Option<f64>,
}

impl Stopwatch {
    pub fn start() -> Stopwatch {
        let cpu = cpu_seconds();
        Stopwatch { wall: Instant::now(), cpu }
    }

    /// Seconds since the start: (wall clock, CPU). Where the system does not report CPU time, both are wall-clock time.
    pub fn stop(self) -> (f64, f64) {
        let wall = self.wall.elapsed().as_secs_f64();
        let cpu = self.cpu.and_then(|start| cpu_seconds().map(|now| now - start));
        (wall, cpu.unwrap_or(wall))
    }
}

fn cpu_seconds() -> Option<f64> {
    // Linux updates the counter when a thread gives up its core.
    std::thread::sleep(Duration::from_micros(1));
    let statistics = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    let nanoseconds: f64 = statistics.split(' ').next()?.parse().ok()?;
    Some(nanoseconds / 1e9)
}

/// The median and the range of some measurements.
#[derive(Clone, Copy)]
pub struct Spread {
    pub median: f64,
    pub least: f64,
    pub most: f64,
}

impl Spread {
    pub fn of(values: impl IntoIterator<Item = f64>) -> Spread {
        let mut values: Vec<f64> = values.into_iter().collect();
        assert!(!values.is_empty(), "there is at least one measurement");
        values.sort_by(f64::total_cmp);
        let middle = values.len() / 2;
        let median = match values.len() % 2 {
            0 => (values[middle - 1] + values[middle]) / 2.0,
            _ => values[middle],
        };
        Spread { median, least: values[0], most: values[values.len() - 1] }
    }
}

/// "1.31 (1.28..1.35)", with the number of decimals given by the precision.
impl fmt::Display for Spread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let decimals = f.precision().unwrap_or(2);
        let Spread { median, least, most } = self;
        let text = format!("{median:.decimals$} ({least:.decimals$}..{most:.decimals$})");
        f.pad_integral(true, "", &text)
    }
}
