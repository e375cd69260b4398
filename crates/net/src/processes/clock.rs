//! The clock of a worker process.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Time since the job began, as this process knows it. All clones are one clock. It never goes back, and is set while it runs.
#[derive(Clone, Debug)]
pub struct Clock(Arc<Mutex<Hands>>);

/// What the clock showed at `since`, and how it goes on from there.
#[derive(Clone, Copy, Debug)]
struct Hands {
    since: Instant,
    shown: Duration,
    /// How much it is slow or fast by. It runs faster or slower until it is right.
    wrong: Wrong,
}

#[derive(Clone, Copy, Debug)]
enum Wrong {
    Slow(Duration),
    Fast(Duration),
}

/// A wrong clock is corrected by running faster or slower by one part in this many, which bounds the error of durations measured meanwhile.
const SLEW: u32 = 10;
/// A clock that is slow by more is set at once.
const STEP: Duration = Duration::from_secs(1);

impl Hands {
    fn at(&self, now: Instant) -> Duration {
        let passed = now.saturating_duration_since(self.since);
        let shown = self.shown.saturating_add(passed);
        match self.wrong {
            Wrong::Slow(by) => shown.saturating_add(by.min(passed / SLEW)),
            Wrong::Fast(by) => shown - by.min(passed / SLEW),
        }
    }

    /// `right`: what it should show at this moment.
    fn set(&mut self, now: Instant, right: Duration) {
        let shown = self.at(now);
        *self = match right.checked_sub(shown) {
            Some(by) if by > STEP => {
                Hands { since: now, shown: right, wrong: Wrong::Slow(Duration::ZERO) }
            }
            Some(by) => Hands { since: now, shown, wrong: Wrong::Slow(by) },
            None => Hands { since: now, shown, wrong: Wrong::Fast(shown - right) },
        };
    }
}

impl Clock {
    pub fn from(now: Duration) -> Clock {
        let wrong = Wrong::Slow(Duration::ZERO);
        Clock(Arc::new(Mutex::new(Hands { since: Instant::now(), shown: now, wrong })))
    }

    pub fn now(&self) -> Duration {
        let hands = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        hands.at(Instant::now())
    }

    /// Sets the clock: the right one showed this time at that moment.
    pub fn set(&self, at: Instant, shown: Duration) {
        let mut hands = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        hands.set(now, shown.saturating_add(now.saturating_duration_since(at)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    /// What a clock shows every 10 ms of ten seconds, if it begins at 20 s and is set right every second.
    fn shown(right: impl Fn(Duration) -> Duration) -> Vec<(Duration, Duration)> {
        let since = Instant::now();
        let mut hands = Hands { since, shown: ms(20_000), wrong: Wrong::Slow(Duration::ZERO) };
        let mut all = vec![];
        for step in 0..1000 {
            let passed = ms(10 * step);
            if step % 100 == 0 {
                hands.set(since + passed, right(passed));
            }
            all.push((hands.at(since + passed), right(passed)));
        }
        all
    }

    #[test]
    fn a_clock_that_is_set_becomes_right_and_never_goes_back() {
        for right in [20_000, 20_070, 19_930, 20_900, 19_100, 90_000] {
            let all = shown(|passed| ms(right) + passed);

            for pair in all.windows(2) {
                let [(before, _), (after, right)] = pair else { continue };
                assert!(before < after, "{before:?}, then {after:?}");
                let is_step = after == right;
                assert!(is_step || *after - *before <= ms(11), "{before:?}, then {after:?}");
            }
            let (last, right) = all[all.len() - 1];
            assert_eq!(last, right);
        }
    }

    #[test]
    fn a_clock_that_drifts_is_kept_right() {
        let all = shown(|passed| ms(20_000) + passed - passed / 1000);

        let worst = all.iter().map(|(shown, right)| shown.abs_diff(*right)).max();
        assert!(worst <= Some(ms(1)), "{worst:?}");
    }
}
