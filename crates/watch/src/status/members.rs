//! What each worker of a run has done so far, and lately.

use std::collections::BTreeMap;
use std::time::Duration;

use paceline_runtime::{Line, Record, WorkerId};

use super::recent::{Recent, covered};
use super::snapshot::{Committed, State};

/// The workers that take part, and the newest of those that are gone.
#[derive(Clone, Debug, Default)]
pub struct Members {
    pub view: Vec<WorkerId>,
    pub known: BTreeMap<WorkerId, Member>,
    /// In the order in which they went.
    gone: Vec<WorkerId>,
}

#[derive(Clone, Debug, Default)]
pub struct Member {
    /// When it was first heard of, or became a member again.
    pub since: Duration,
    /// Its times are wrong by this much at most, if that was measured.
    pub clock_error: Option<Duration>,
    /// When the journal last had a line of it.
    pub heard: Duration,
    pub fate: Option<(State, Duration)>,
    pub rounds: u64,
    /// The sums when its last round ended; and how long a round usually takes.
    pub committed: Option<Committed>,
    pub round_usual: Duration,
    pub samples: u64,
    pub compute: Duration,
    pub bytes: u64,
    pub waited: Duration,
    pub waited_for: Duration,
    pub recent: RecentOf,
}

/// Sums over the last seconds.
#[derive(Clone, Copy, Debug, Default)]
pub struct RecentOf {
    pub samples: Recent,
    pub compute: Recent,
    pub waited: Recent,
    pub waited_for: Recent,
}

/// So many workers that are gone are still shown.
const GONE_MAX: usize = 8;
/// A worker that never took part and is not heard of any more is forgotten when there are more than this.
const KNOWN_MAX: usize = 4096;

impl Members {
    pub fn read(&mut self, line: &Line) {
        let at = line.at;
        match &line.record {
            Record::View { members, .. } => return self.change(at, members),
            Record::Freed { who, .. } | Record::Crashed { who } => {
                return self.end(*who, State::Lost, at, false);
            }
            Record::Left { who } => return self.end(*who, State::Left, at, true),
            Record::PutOut { who } => return self.end(*who, State::PutOut, at, true),
            _ => {}
        }
        let Some(who) = line.record.worker() else { return };
        if self.known.len() >= KNOWN_MAX && !self.known.contains_key(&who) {
            return;
        }
        let member =
            self.known.entry(who).or_insert_with(|| Member { since: at, ..Member::default() });
        if let Record::ClockSet { error, .. } = &line.record {
            // Its connection lives; the worker may hang nevertheless.
            member.clock_error = Some(*error);
            return;
        }
        member.heard = member.heard.max(at);
        match &line.record {
            Record::Computed { since, samples, .. } => {
                let time = at.saturating_sub(*since);
                member.samples = member.samples.saturating_add(*samples);
                member.compute += time;
                member.recent.samples.add(at, *samples as f64);
                member.recent.compute.add(at, time.as_secs_f64());
            }
            Record::Exchanged { bytes, .. }
            | Record::Sent { bytes, .. }
            | Record::Interrupted { bytes, .. } => {
                member.bytes = member.bytes.saturating_add(*bytes);
            }
            Record::Committed { round, .. } => {
                member.rounds = member.rounds.max(*round);
                let committed = Committed {
                    at: at.as_secs_f64(),
                    rounds: member.rounds,
                    samples: member.samples,
                    compute_seconds: member.compute.as_secs_f64(),
                    waited_seconds: member.waited.as_secs_f64(),
                };
                if let Some(before) = member.committed.replace(committed) {
                    let took = at.saturating_sub(Duration::from_secs_f64(before.at));
                    // A mean that follows changes within some rounds.
                    member.round_usual = match member.round_usual {
                        Duration::ZERO => took,
                        usual => (7 * usual + took) / 8,
                    };
                }
            }
            Record::Settled { round, .. } => member.rounds = member.rounds.max(*round),
            Record::Finished { .. } => self.end(who, State::Finished, at, true),
            _ => {}
        }
    }

    pub fn waited(&mut self, at: Duration, who: WorkerId, whom: WorkerId, time: Duration) {
        let seconds = time.as_secs_f64();
        if let Some(member) = self.known.get_mut(&who) {
            member.waited += time;
            member.recent.waited.add(at, seconds);
        }
        if let Some(member) = self.known.get_mut(&whom) {
            member.waited_for += time;
            member.recent.waited_for.add(at, seconds);
        }
    }

    fn change(&mut self, at: Duration, members: &[WorkerId]) {
        for who in std::mem::replace(&mut self.view, members.to_vec()) {
            if !members.contains(&who) {
                self.end(who, State::Left, at, false);
            }
        }
        for who in members {
            let new = || Member { since: at, heard: at, ..Member::default() };
            let member = self.known.entry(*who).or_insert_with(new);
            member.heard = member.heard.max(at);
            // After a job has started over, one that was counted as lost may be a member.
            member.fate = None;
            self.gone.retain(|gone| gone != who);
        }
    }

    /// A worker has ended. What it says of itself counts more than what the coordinator concludes: one that leaves is freed, too.
    fn end(&mut self, who: WorkerId, state: State, at: Duration, says_so: bool) {
        let Some(member) = self.known.get_mut(&who) else { return };
        if member.fate.is_none() || says_so {
            member.fate = Some((state, at));
        }
        if state.is_gone() && !self.gone.contains(&who) {
            self.gone.push(who);
            let too_many = self.gone.len().saturating_sub(GONE_MAX);
            for forgotten in self.gone.drain(..too_many).collect::<Vec<_>>() {
                self.known.remove(&forgotten);
            }
        }
    }

    /// Members, then newcomers, then those that are gone, the newest first.
    pub fn in_order(&self) -> impl Iterator<Item = WorkerId> + '_ {
        let is_newcomer = |who: &WorkerId| !self.view.contains(who) && !self.gone.contains(who);
        let newcomers = self.known.keys().copied().filter(is_newcomer);
        let gone = self.gone.iter().rev().copied().filter(|who| !self.view.contains(who));
        self.view.iter().copied().chain(newcomers).chain(gone)
    }

    pub fn rounds_max(&self) -> u64 {
        let rounds = |who: &WorkerId| self.known.get(who).map(|member| member.rounds);
        self.view.iter().filter_map(rounds).max().unwrap_or(0)
    }

    pub fn samples_recent(&self, now: Duration) -> f64 {
        let samples = |who: &WorkerId| self.known.get(who).map(|it| it.recent.samples.sum(now));
        self.view.iter().filter_map(samples).sum()
    }
}

impl Member {
    /// The time that the recent sums cover.
    pub fn covered(&self, now: Duration) -> f64 {
        covered(now, self.since).as_secs_f64()
    }

    /// Samples per second while it computes, lately.
    pub fn speed(&self, now: Duration) -> Option<f64> {
        let seconds = self.recent.compute.sum(now);
        (seconds > 0.0).then(|| self.recent.samples.sum(now) / seconds)
    }
}
