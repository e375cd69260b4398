//! What a worker knows of the coordinator's clock: measured by the round trips of its heartbeats, as NTP does.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// What the coordinator's clock showed at a moment of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockReading {
    pub at: Instant,
    pub shown: Duration,
    /// `shown` is wrong by this much at most.
    pub error: Duration,
}

impl ClockReading {
    /// A question left at `sent` and its answer was here at `back`; by the coordinator's clock the question arrived at `received`
    /// and the answer left at `answered`. Nobody knows how much of the way was the way back, so half of it is assumed: that is
    /// wrong by half of it at most.
    pub fn of_round_trip(
        sent: Instant,
        received: Duration,
        answered: Duration,
        back: Instant,
    ) -> ClockReading {
        let away = answered.saturating_sub(received);
        let half = back.saturating_duration_since(sent).saturating_sub(away) / 2;
        ClockReading { at: back, shown: answered.saturating_add(half), error: half }
    }

    /// What the coordinator's clock shows now.
    pub fn now(&self) -> Duration {
        self.shown.saturating_add(self.at.elapsed())
    }

    /// As it must be judged at a later moment: two clocks drift apart.
    fn aged(self, now: Instant) -> ClockReading {
        let drift = now.saturating_duration_since(self.at) / DRIFT;
        ClockReading { error: self.error + drift, ..self }
    }
}

/// Two clocks drift apart by at most one second in this many; quartz clocks of computers do better.
const DRIFT: u32 = 10_000;
/// Of the heartbeats of half a minute at least one meets no queue.
const READINGS_MAX: usize = 32;

/// The newest readings. One that was held up on its way says little; the best of them says what the coordinator's clock shows.
#[derive(Default)]
pub(crate) struct Readings(VecDeque<ClockReading>);

impl Readings {
    /// Adds the newest reading, and returns the best one.
    pub fn add(&mut self, newest: ClockReading) -> ClockReading {
        self.0.push_back(newest);
        if self.0.len() > READINGS_MAX {
            self.0.pop_front();
        }
        let aged = self.0.iter().map(|reading| reading.aged(newest.at));
        aged.min_by_key(|reading| reading.error).unwrap_or(newest)
    }

    /// Another coordinator has another clock.
    pub fn forget(&mut self) {
        self.0.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Round trips over a link whose ways differ: there 1 ms; back 2 ms, and two times in three up to 0.3 s more. The coordinator's clock is
    /// `skew` ahead of this process's, and gains `drift` on it.
    struct Link {
        begins: Instant,
        skew: Duration,
        drift: f64,
        dice: u64,
    }

    impl Link {
        fn dice(&mut self) -> f64 {
            self.dice =
                self.dice.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (self.dice >> 33) as f64 / (1u64 << 31) as f64
        }

        fn shown(&self, local: Duration) -> Duration {
            self.skew + local.mul_f64(1.0 + self.drift)
        }

        fn round_trip(&mut self, sent: Duration) -> ClockReading {
            let late = if self.dice() < 0.67 { 0.3 * self.dice() } else { 0.0 };
            let (there, back) = (Duration::from_millis(1), Duration::from_secs_f64(0.002 + late));
            let arrives = sent + there;
            let shown = self.shown(arrives);
            let (sent, back) = (self.begins + sent, self.begins + arrives + back);
            ClockReading::of_round_trip(sent, shown, shown, back)
        }
    }

    fn off(link: &Link, reading: &ClockReading, at: Instant) -> Duration {
        let truth = link.shown(at.duration_since(link.begins));
        truth.abs_diff(reading.shown + at.duration_since(reading.at))
    }

    #[test]
    fn the_clock_is_known_within_the_bound_although_most_answers_are_late() {
        let begins = Instant::now();
        for (dice, drift) in [(1, 0.0), (2, 50e-6), (3, -50e-6)] {
            let mut link = Link { begins, skew: Duration::from_secs(4711), drift, dice };
            let mut readings = Readings::default();
            let mut worst_single = Duration::ZERO;

            for second in 0..600 {
                let newest = link.round_trip(Duration::from_secs(second));
                let best = readings.add(newest);

                let (single, known) =
                    (off(&link, &newest, newest.at), off(&link, &best, newest.at));
                worst_single = worst_single.max(single);
                assert!(known <= best.error, "seed {dice}: off by {known:?} of {:?}", best.error);
                if second > 60 {
                    // Half of the shortest way there and back, and half a minute of drift.
                    assert!(best.error < Duration::from_millis(5), "seed {dice}: {:?}", best.error);
                }
            }

            // One round trip alone would be wrong by far more.
            assert!(worst_single > Duration::from_millis(100), "seed {dice}: {worst_single:?}");
        }
    }

    #[test]
    fn the_time_that_a_coordinator_takes_for_its_answer_does_not_count() {
        let sent = Instant::now();
        let shown = |ms: u64| Duration::from_millis(1000 + ms);

        // 10 ms there, 500 ms at the coordinator, 10 ms back.
        let back = sent + Duration::from_millis(520);
        let reading = ClockReading::of_round_trip(sent, shown(10), shown(510), back);

        assert_eq!((reading.shown, reading.error), (shown(520), Duration::from_millis(10)));
    }
}
