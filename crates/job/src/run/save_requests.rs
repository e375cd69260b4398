//! When a run asks its workers for a snapshot.

use std::num::NonZero;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use paceline_runtime::Coordination;

use crate::checkpoint::Saving;

pub struct SaveRequests {
    /// Set when the user asks for a checkpoint.
    now: Arc<AtomicBool>,
    period: Option<Duration>,
    last: Instant,
    /// The period in rounds of asynchronous workers; synchronous ones count their rounds themselves.
    rounds: Option<u64>,
    rounds_last: Option<u64>,
}

/// How often checkpoints are made by default.
const PERIOD: Duration = Duration::from_secs(5 * 60);

impl SaveRequests {
    pub fn new(saving: &Saving, coordination: Coordination) -> SaveRequests {
        let (rounds, minutes) = (saving.checkpoints.rounds, saving.checkpoints.minutes);
        let period = minutes.map(|minutes| Duration::from_secs_f64(60.0 * minutes));
        let is_asynchronous = coordination != Coordination::Synchronous;
        SaveRequests {
            now: saving.now.clone(),
            period: period.or(rounds.is_none().then_some(PERIOD)),
            last: Instant::now(),
            rounds: rounds.map(NonZero::get).filter(|_| is_asynchronous),
            rounds_last: None,
        }
    }

    pub fn is_due(&mut self, rounds: impl FnOnce() -> u64) -> bool {
        let rounds = rounds();
        let last = *self.rounds_last.get_or_insert(rounds);
        let is_due = self.now.swap(false, Ordering::Relaxed)
            || self.period.is_some_and(|period| self.last.elapsed() >= period)
            || self.rounds.is_some_and(|every| rounds >= last.saturating_add(every));
        if is_due {
            (self.last, self.rounds_last) = (Instant::now(), Some(rounds));
        }
        is_due
    }
}
