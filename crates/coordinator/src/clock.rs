//! The coordinator's clock.

use std::time::{Duration, Instant, SystemTime};

/// The time since the job began, over restarts. It never goes back, whatever the system's clock does.
#[derive(Clone, Copy)]
pub struct Clock {
    before: Duration,
    since: Instant,
}

impl Clock {
    pub(crate) fn since(began: SystemTime, at_least: Duration) -> Clock {
        let passed = SystemTime::now().duration_since(began).unwrap_or(Duration::ZERO);
        Clock { before: passed.max(at_least), since: Instant::now() }
    }

    pub fn now(&self) -> Duration {
        self.before + self.since.elapsed()
    }
}
