//! Who waits for whom: in exchanges that are under way, and in those that have ended.

use std::collections::BTreeMap;
use std::time::Duration;

use paceline_runtime::{Line, Record, WorkerId};

/// Shorter waits come and go with every round.
pub const WAIT_SHOWN: Duration = Duration::from_millis(300);

/// The exchanges that some members have entered.
#[derive(Clone, Debug, Default)]
pub struct Waits {
    /// By number: who entered when. An exchange that a loss interrupts keeps its number in the next view.
    open: BTreeMap<u64, BTreeMap<WorkerId, Duration>>,
    /// By number and view: who ended it, until all members have.
    ended: BTreeMap<(u64, u64), Vec<Ended>>,
    /// How long a worker usually computes after it has entered, before it has nothing to do but wait.
    head_start: BTreeMap<WorkerId, Duration>,
}

#[derive(Clone, Copy, Debug)]
struct Ended {
    who: WorkerId,
    entered: Duration,
    blocked: Duration,
    at: Duration,
}

/// One worker waited for another one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Waited {
    pub who: WorkerId,
    pub whom: WorkerId,
    pub time: Duration,
}

/// The newest exchange that not all members have entered.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Underway {
    /// Who waits, and since when.
    pub waiting: BTreeMap<WorkerId, Duration>,
    pub missing: Vec<WorkerId>,
}

impl Underway {
    /// How long others have waited for this worker in the present exchange, in seconds; of each at most so many. Sums of waits that
    /// have ended know nothing of a worker that hangs.
    pub fn waited_for(&self, who: WorkerId, now: Duration, most: f64) -> f64 {
        if !self.missing.contains(&who) {
            return 0.0;
        }
        let waits = self.waiting.values().map(|since| now.saturating_sub(*since));
        let waits =
            waits.filter(|wait| *wait >= WAIT_SHOWN).map(|wait| wait.as_secs_f64().min(most));
        // Nobody knows yet who of them will be the last one.
        waits.sum::<f64>() / self.missing.len() as f64
    }
}

/// Exchanges that lost a member never become complete; old ones are dropped.
const EXCHANGES_MAX: usize = 8;

impl Waits {
    /// Reads a line; returns the waits that it completes.
    pub fn read(&mut self, line: &Line, members: &[WorkerId]) -> Vec<Waited> {
        match &line.record {
            Record::Entered { who, exchange, .. } => {
                self.open.entry(*exchange).or_default().insert(*who, line.at);
                keep_newest(&mut self.open);
                vec![]
            }
            Record::Exchanged { who, view, exchange, entered, blocked, .. } => {
                if let Some(open) = self.open.get_mut(exchange) {
                    open.remove(who);
                    if open.is_empty() {
                        self.open.remove(exchange);
                    }
                }
                self.head_start.insert(*who, blocked.saturating_sub(*entered));
                let (entered, blocked, at) = (*entered, *blocked, line.at);
                let ended = Ended { who: *who, entered, blocked, at };
                self.end((*exchange, *view), ended, members)
            }
            Record::Waited { who, whom, since } if who != whom => {
                vec![Waited { who: *who, whom: *whom, time: line.at.saturating_sub(*since) }]
            }
            Record::View { members, .. } => {
                self.open.values_mut().for_each(|open| open.retain(|who, _| members.contains(who)));
                self.open.retain(|_, open| !open.is_empty());
                self.head_start.retain(|who, _| members.contains(who));
                vec![]
            }
            Record::StartedOver | Record::Resumed { .. } | Record::Over => {
                *self = Waits::default();
                vec![]
            }
            _ => vec![],
        }
    }

    /// When all members have ended an exchange, the last one to enter is the one that the others waited for. Clocks of machines
    /// differ by more than a short round takes, so that only times of one worker are compared: an exchange ends for all at about
    /// the same time, and the last one to enter is the one for which it was shortest.
    fn end(&mut self, name: (u64, u64), ended: Ended, members: &[WorkerId]) -> Vec<Waited> {
        let all = self.ended.entry(name).or_default();
        all.push(ended);
        if all.len() < members.len() {
            keep_newest(&mut self.ended);
            return vec![];
        }
        let all = self.ended.remove(&name).unwrap_or_default();
        let length = |ended: &Ended| ended.at.saturating_sub(ended.entered);
        let Some(last) = all.iter().min_by_key(|ended| length(ended)).copied() else {
            return vec![];
        };
        let exchange = length(&last);
        let waited = |ended: &Ended| Waited {
            who: ended.who,
            whom: last.who,
            time: ended.at.saturating_sub(ended.blocked).saturating_sub(exchange),
        };
        all.iter().filter(|ended| ended.who != last.who).map(waited).collect()
    }

    /// The newest exchange that some have entered, as it is now.
    pub fn underway(&self, now: Duration, members: &[WorkerId]) -> Underway {
        let Some((_, entered)) = self.open.last_key_value() else { return Underway::default() };
        let since = |(who, at): (&WorkerId, &Duration)| {
            let begins = *at + self.head_start.get(who).copied().unwrap_or_default();
            (begins <= now).then_some((*who, begins))
        };
        let waiting = entered.iter().filter_map(since).collect();
        let is_missing = |who: &&WorkerId| !entered.contains_key(who);
        Underway { waiting, missing: members.iter().filter(is_missing).copied().collect() }
    }
}

fn keep_newest<K: Ord, V>(map: &mut BTreeMap<K, V>) {
    while map.len() > EXCHANGES_MAX {
        map.pop_first();
    }
}
