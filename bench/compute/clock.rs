//! Times of wall and CPU, and what many measurements say together.

use std::fmt;
use std::time::{Duration, Instant};

use serde::Deserialize;

/// Something per second: of wall time, and of the time that this thread had a core.
///
/// On a quiet machine they agree. On a busy one only the second says what the code can do.
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

/// Repeats a step for so many seconds, after once to warm up; gives steps per second.
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

/// Wall time and this thread's CPU time.
pub struct Stopwatch {
    wall: Instant,
    cpu: Option<f64>,
}

impl Stopwatch {
    pub fn start() -> Stopwatch {
        let cpu = cpu_seconds();
        Stopwatch { wall: Instant::now(), cpu }
    }

    /// Seconds since the start: (wall, CPU). Where the system does not tell the latter, it is the former.
    pub fn stop(self) -> (f64, f64) {
        let wall = self.wall.elapsed().as_secs_f64();
        let cpu = self.cpu.and_then(|start| cpu_seconds().map(|now| now - start));
        (wall, cpu.unwrap_or(wall))
    }
}

fn cpu_seconds() -> Option<f64> {
    // The system brings the account up to date when a thread lets go of its core.
    std::thread::sleep(Duration::from_micros(1));
    let account = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    let nanoseconds: f64 = account.split(' ').next()?.parse().ok()?;
    Some(nanoseconds / 1e9)
}

/// The median of some measurements, and the range they lie in.
#[derive(Clone, Copy)]
pub struct Spread {
    pub median: f64,
    pub least: f64,
    pub most: f64,
}

impl Spread {
    pub fn of(values: impl IntoIterator<Item = f64>) -> Spread {
        let mut values: Vec<f64> = values.into_iter().collect();
        assert!(!values.is_empty(), "something was measured");
        values.sort_by(f64::total_cmp);
        let middle = values.len() / 2;
        let median = match values.len() % 2 {
            0 => (values[middle - 1] + values[middle]) / 2.0,
            _ => values[middle],
        };
        Spread { median, least: values[0], most: values[values.len() - 1] }
    }
}

/// "1.31 (1.28..1.35)", with as many decimals as asked for.
impl fmt::Display for Spread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let decimals = f.precision().unwrap_or(2);
        let Spread { median, least, most } = self;
        let text = format!("{median:.decimals$} ({least:.decimals$}..{most:.decimals$})");
        f.pad_integral(true, "", &text)
    }
}
