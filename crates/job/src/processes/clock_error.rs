//! When the journal is told how well a worker knows the time.

use std::time::{Duration, Instant};

/// What was told last. The journal is told again only if that has changed much.
#[derive(Default)]
pub(super) struct ToldError {
    heard: u32,
    told: Option<(Instant, Duration)>,
}

/// After this many heartbeats, the shortest round trip so far is close to the shortest possible one.
const FIRST: u32 = 4;
/// Longer than the heartbeats that the best one is chosen of.
const PAUSE: Duration = Duration::from_secs(60);

impl ToldError {
    /// What must be told, if anything.
    pub fn news(&mut self, now: Instant, error: Duration) -> Option<Duration> {
        self.heard = self.heard.saturating_add(1);
        let is_news = match self.told {
            None => self.heard >= FIRST,
            Some((at, told)) => {
                let is_other = error > 2 * told || error < told / 2;
                is_other && now.saturating_duration_since(at) >= PAUSE
            }
        };
        is_news.then(|| {
            self.told = Some((now, error));
            error
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_is_told_when_it_is_good_and_when_it_has_changed_much() {
        let begins = Instant::now();
        let mut told = ToldError::default();
        // Milliseconds: none is told before the fourth; later the link becomes slow, and fast again.
        let errors = |second| if (100..300).contains(&second) { 9 } else { 2 };

        let all = (0..500).filter_map(|second| {
            let error = Duration::from_millis(errors(second));
            told.news(begins + Duration::from_secs(second), error).map(|_| second)
        });

        assert_eq!(all.collect::<Vec<u64>>(), [3, 100, 300]);
    }
}
