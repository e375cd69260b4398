//! Sums over the last seconds, in constant memory.

use std::time::Duration;

/// A sum over the last [`WIDTH`] to twice that.
#[derive(Clone, Copy, Debug, Default)]
pub struct Recent {
    began: Duration,
    before: f64,
    now: f64,
}

pub const WIDTH: Duration = Duration::from_secs(10);

impl Recent {
    pub fn add(&mut self, at: Duration, value: f64) {
        self.roll(at);
        self.now += value;
    }

    /// The sum over the last seconds.
    pub fn sum(mut self, now: Duration) -> f64 {
        self.roll(now);
        self.before + self.now
    }

    fn roll(&mut self, at: Duration) {
        let began = floor(at);
        // What arrives late belongs to the newest bucket.
        if began <= self.began {
            return;
        }
        self.before = if began == self.began + WIDTH { self.now } else { 0.0 };
        (self.began, self.now) = (began, 0.0);
    }
}

/// How long the time is that sums cover, for something that began at `since`.
pub fn covered(now: Duration, since: Duration) -> Duration {
    let first = floor(now).saturating_sub(WIDTH);
    now.saturating_sub(first.max(since))
}

fn floor(at: Duration) -> Duration {
    let width = WIDTH.as_secs();
    Duration::from_secs(at.as_secs() / width * width)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sum_covers_the_last_ten_to_twenty_seconds() {
        let seconds = Duration::from_secs;
        let mut recent = Recent::default();

        (0..40).for_each(|second| recent.add(seconds(second), 1.0));

        assert_eq!(recent.sum(seconds(39)), 20.0);
        assert_eq!(recent.sum(seconds(45)), 10.0);
        assert_eq!(recent.sum(seconds(55)), 0.0);
        assert_eq!(covered(seconds(39), seconds(0)), seconds(19));
        assert_eq!(covered(seconds(39), seconds(35)), seconds(4));
    }

    #[test]
    fn what_arrives_late_is_counted() {
        let mut recent = Recent::default();
        recent.add(Duration::from_secs(21), 1.0);

        recent.add(Duration::from_secs(9), 1.0);

        assert_eq!(recent.sum(Duration::from_secs(22)), 2.0);
    }
}
