//! The edge between workers and the coordinator, and the coordinator itself: a state machine that decides views,
//! leases samples and knows when a snapshot is complete. Every cluster runs the same one.
//!
//! [`Coordinator::step`] takes one [`Input`] and returns an [`Output`]: entries to store, and the orders that may
//! be sent once they are stored. [`State`] is what the entries add up to and knows no time. Heartbeats,
//! ticks and suspicions are volatile: after a restart all workers get a grace of one patience.

pub mod collection;
mod leases;
mod messages;
pub mod session;
mod state;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::ids::WorkerId;
use crate::spans::Spans;
use crate::view::View;

pub use messages::{
    Addressed, Collected, Coordination, Entry, Input, Lease, Order, Output, Saved, Why, Word,
};
pub use state::State;

/// What the coordinator is told when the job begins.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Rules {
    /// The first view is decided when this many workers have said hello.
    pub members_first: usize,
    /// With fewer members, synchronous ones wait at the next boundary between rounds.
    pub members_min: usize,
    /// More workers wait until there is room; `None`: all take part.
    pub members_max: Option<usize>,
    /// A worker that sends no heartbeat for this long is lost.
    pub patience: Duration,
    /// Workers that join within this time are taken in together.
    pub gathering: Duration,
    /// 0 if only workers know it: [`Input::Sized`] says it before the first one joins.
    pub samples_total: u64,
    pub coordination: Coordination,
    /// The job is given up when every replica was lost more often than this.
    pub restarts_max: u32,
    /// Whether entries outlive the process. If not, [`Output::log`] stays empty and messages have no numbers.
    pub keeps_log: bool,
}

impl Rules {
    /// Rules for a job of this many samples and workers; everything else has its default.
    pub fn new(samples_total: u64, workers: usize, coordination: Coordination) -> Rules {
        Rules {
            members_first: workers,
            members_min: 1,
            members_max: None,
            patience: Duration::MAX,
            gathering: Duration::ZERO,
            samples_total,
            coordination,
            restarts_max: 20,
            keeps_log: false,
        }
    }
}

pub struct Coordinator {
    rules: Rules,
    state: State,
    beats: BTreeMap<WorkerId, Duration>,
    /// When most workers seemed silent: it is more likely that the coordinator was deaf.
    doubts_itself: Option<Duration>,
    /// When workers that wait are taken into a plan.
    plan_at: Option<Duration>,
    suspicions: Suspicions,
}

/// Which members say that they cannot reach which.
#[derive(Default)]
struct Suspicions {
    /// When the first of them was heard of which nothing has followed yet.
    since: Option<Duration>,
    accused: BTreeMap<WorkerId, BTreeSet<WorkerId>>,
    /// Members that were accused in an earlier view; another accusation counts double.
    before: BTreeSet<WorkerId>,
}

impl Coordinator {
    /// A coordinator for a new job. `done`: the samples that an earlier run had applied.
    pub fn new(rules: Rules, done: Spans) -> Coordinator {
        let mut coordinator = Coordinator::of(rules, State::new(rules, done), Duration::ZERO);
        let _ = coordinator.state.apply(&Entry::Started);
        coordinator
    }

    /// A coordinator that starts again, from a stored state and the entries logged since. Everyone that it knows
    /// gets a grace of one patience from `now` on. The new entry must be logged, too.
    pub fn restart(
        rules: Rules,
        mut state: State,
        entries: impl IntoIterator<Item = Entry>,
        now: Duration,
    ) -> (Coordinator, Output) {
        entries.into_iter().for_each(|entry| drop(state.apply(&entry)));
        let mut coordinator = Coordinator::of(rules, state, now);
        let mut output = coordinator.decide(Entry::Started);
        coordinator.plan_at = coordinator.state.wants_plan().then_some(now);
        output.wake = Some(now.saturating_add(rules.patience));
        (coordinator, output)
    }

    fn of(rules: Rules, state: State, now: Duration) -> Coordinator {
        let beats = state.enrolled().map(|who| (who, now)).collect();
        let suspicions = Suspicions::default();
        Coordinator { rules, state, beats, doubts_itself: None, plan_at: None, suspicions }
    }

    /// What must be stored to start again without the entries logged so far.
    pub fn state(&self) -> &State {
        &self.state
    }

    pub fn view(&self) -> &View {
        self.state.view()
    }

    pub fn is_over(&self) -> bool {
        self.state.is_over()
    }

    /// The number of the snapshot that is being collected.
    pub fn collecting(&self) -> Option<u64> {
        self.state.collecting()
    }

    /// A worker has obeyed all orders up to this number; they are not sent again.
    pub fn acknowledged(&mut self, who: WorkerId, number: u64) {
        self.state.acknowledged(who, number);
    }

    /// A worker has connected again: the orders that it may have missed. One that is no longer enrolled is put out.
    pub fn reconnected(&mut self, now: Duration, who: WorkerId) -> Vec<Addressed> {
        if !self.state.is_enrolled(who) {
            // One that joined when the job was over has been told so.
            let told = self.state.unacknowledged(who);
            return if told.is_empty() { vec![put_out(who)] } else { told };
        }
        self.beats.insert(who, now);
        self.state.unacknowledged(who)
    }

    /// For how long nothing was heard of a worker.
    pub fn silence(&self, who: WorkerId, now: Duration) -> Duration {
        self.beats.get(&who).map_or(Duration::ZERO, |beat| now.saturating_sub(*beat))
    }

    /// How many words of a worker are logged; it sends the later ones again.
    pub fn received(&self, from: WorkerId) -> u64 {
        self.state.received(from)
    }

    /// Takes one input and decides.
    pub fn step(&mut self, now: Duration, input: Input) -> Output {
        match input {
            Input::Beat(who) => {
                if let Some(beat) = self.beats.get_mut(&who) {
                    *beat = now;
                }
                Output::default()
            }
            Input::Hello => {
                let output = self.decide(Entry::Joined);
                self.beats.extend(output.admitted.map(|who| (who, now)));
                self.with_plan(now, output)
            }
            Input::Sized { samples_total } => self.decide(Entry::Sized { samples_total }),
            Input::Lost(who) => self.lose(now, who, Why::Disconnected),
            Input::PutOut(who) => self.lose(now, who, Why::Unwanted),
            Input::Ban(who) => self.lose(now, who, Why::Banned),
            Input::Tick => self.tick(now),
            Input::Word { from, number, word } => self.word(now, from, number, word),
            Input::Stop => self.decide(Entry::Stopped),
            Input::Save => self.decide(Entry::SaveWished),
            Input::Saved(saved) => self.decide(Entry::Saved(saved)),
        }
    }

    fn lose(&mut self, now: Duration, who: WorkerId, why: Why) -> Output {
        let output = self.decide(Entry::Lost { workers: vec![who], why });
        self.with_plan(now, output)
    }

    fn word(&mut self, now: Duration, from: WorkerId, number: u64, word: Word) -> Output {
        if !self.state.is_enrolled(from) {
            let is_known = self.state.is_over() || word == Word::Gone;
            let orders = if is_known { vec![] } else { vec![put_out(from)] };
            return Output { orders, ..Output::default() };
        }
        if !self.state.is_new(from, number) {
            let acknowledged = Some((from, self.state.received(from)));
            return Output { acknowledged, ..Output::default() };
        }
        if let Word::Suspect { peer, view } = word
            && self.state.is_current(view)
        {
            self.suspicions.accused.entry(peer).or_default().insert(from);
            self.suspicions.since.get_or_insert(now);
        }
        let changes_members = match &word {
            Word::Settled { .. }
            | Word::Finished
            | Word::Bye
            | Word::Gone
            | Word::Restored { .. } => true,
            // One that wants to leave may hold nothing now.
            Word::Done { .. } => self.state.wants_to_leave(from),
            Word::Return { holder, .. } => self.state.wants_to_leave(*holder),
            _ => false,
        };
        let mut output = self.decide(Entry::Word { from, number, word });
        if changes_members {
            output = self.with_plan(now, output);
        }
        output.wake = earlier(output.wake, self.judges_at());
        output
    }

    /// When it is decided who is put out of those that cannot reach each other.
    fn judges_at(&self) -> Option<Duration> {
        self.suspicions.since.map(|since| since.saturating_add(self.rules.patience / 4))
    }

    /// Applies an entry and logs it.
    fn decide(&mut self, entry: Entry) -> Output {
        let mut output = self.state.apply(&entry);
        if self.rules.keeps_log {
            output.log.push(entry);
        }
        // Looked at only when somebody has gone: most words change nothing here, and there may be thousands of workers.
        if self.beats.len() > self.state.enrolled_count() {
            self.beats.retain(|who, _| self.state.is_enrolled(*who));
        }
        output
    }

    /// Sees to workers that wait for a plan. It is made at a tick, when those that come or go with them have been given
    /// time to say so.
    fn with_plan(&mut self, now: Duration, mut output: Output) -> Output {
        if self.state.wants_plan() {
            let at = *self.plan_at.get_or_insert(now.saturating_add(self.rules.gathering));
            output.wake = earlier(output.wake, Some(at));
        } else {
            self.plan_at = None;
        }
        output
    }

    fn tick(&mut self, now: Duration) -> Output {
        let mut output = Output::default();
        if self.plan_at.is_some_and(|at| at <= now) {
            self.plan_at = None;
            merge(&mut output, self.decide(Entry::Planned));
        }
        // Members that have ended close their links.
        if self.judges_at().is_some_and(|at| at <= now)
            && !self.state.is_over()
            && let Some(who) = self.suspicions.take(&self.state, &self.beats)
        {
            let lost = Entry::Lost { workers: vec![who], why: Why::Suspected };
            merge(&mut output, self.decide(lost));
        }
        let silent = self.silent(now, &mut output);
        if !silent.is_empty() {
            let lost = Entry::Lost { workers: silent, why: Why::Silent };
            merge(&mut output, self.decide(lost));
        }
        self.with_plan(now, output)
    }

    /// Who has been silent for too long. If that is more than half of all, or everyone who holds a replica, or if nobody
    /// at all has been heard lately, the coordinator suspects itself first and waits for another patience after it has
    /// heard somebody; it never puts out everyone, unless the job is to stop.
    fn silent(&mut self, now: Duration, output: &mut Output) -> Vec<WorkerId> {
        let patience = self.rules.patience;
        let is_silent = |beat: &Duration| beat.saturating_add(patience) < now;
        let silent: Vec<WorkerId> =
            self.beats.iter().filter(|(_, beat)| is_silent(beat)).map(|(who, _)| *who).collect();
        // Newcomers that are heard first, after the coordinator was away, must not cost the replicas of all others.
        let loses_all = self.state.are_last_holders(&silent);
        // A coordinator that is cut off misses the worker first that happened to be the first one to be due again.
        let newest = self.beats.values().max().copied().unwrap_or(now);
        let hears_nobody = newest.saturating_add(patience / 2) < now;
        let is_likely = 2 * silent.len() <= self.beats.len() && !loses_all && !hears_nobody;
        // It was asked to stop, and there is nobody who could finish a round: a coordinator that is cut off can do no more for its workers, either.
        if self.state.is_stopped() && !silent.is_empty() && silent.len() == self.beats.len() {
            return silent;
        }
        // A coordinator that was away hears one worker after the other: the last one is not silent.
        if silent.is_empty() || (is_likely && self.doubts_itself.is_none()) {
            self.doubts_itself = None;
            return silent;
        }
        if hears_nobody {
            self.doubts_itself = Some(now);
        }
        let since = *self.doubts_itself.get_or_insert(now);
        let decides = since.saturating_add(patience);
        if now < decides || hears_nobody {
            let again = decides.max(now.saturating_add(patience / 2));
            output.wake = earlier(output.wake, Some(again));
            return vec![];
        }
        self.doubts_itself = None;
        silent
    }
}

impl Suspicions {
    /// The member that most others accuse; of several the one with the highest id. Between two members that
    /// cannot reach each other that is the younger one. One that is leaving and cannot hand over the center goes first, and then one of which
    /// nothing was heard since: it accuses nobody because it is dead, and after a restart the coordinator does not know that yet.
    fn take(&mut self, state: &State, beats: &BTreeMap<WorkerId, Duration>) -> Option<WorkerId> {
        let since = self.since.take();
        let accused = std::mem::take(&mut self.accused);
        let accusers: BTreeSet<WorkerId> = accused.values().flatten().copied().collect();
        // A newcomer that cannot reach a member boards nothing, and all would wait for it.
        let is_member = |who: &WorkerId| state.takes_part(*who);
        let mut weights: BTreeMap<WorkerId, usize> = BTreeMap::new();
        for (accused, accusers) in accused {
            let accusers: Vec<_> = accusers.into_iter().filter(is_member).collect();
            if !state.is_enrolled(accused) || accusers.is_empty() {
                continue;
            }
            let times = if self.before.insert(accused) { 1 } else { 2 };
            *weights.entry(accused).or_default() += times * accusers.len();
            // A broken link has two ends: the accuser may be the one that is cut off.
            accusers.into_iter().for_each(|who| *weights.entry(who).or_default() += times);
        }
        let is_heard = |who: &WorkerId| {
            accusers.contains(who) || beats.get(who).is_some_and(|beat| since <= Some(*beat))
        };
        let rank = |(who, weight): &(WorkerId, usize)| {
            (state.is_leaving(*who), !is_heard(who), *weight, *who)
        };
        // Newcomers that cannot reach the last member with a replica are of no use; without it training would start over.
        let candidates = weights.into_iter().filter(|(who, _)| !state.are_last_holders(&[*who]));
        candidates.max_by_key(rank).map(|(who, _)| who)
    }
}

fn put_out(to: WorkerId) -> Addressed {
    let why = "counted as lost".to_owned();
    Addressed { to, number: 0, order: Order::PutOut { why, banned: false } }
}

fn earlier(a: Option<Duration>, b: Option<Duration>) -> Option<Duration> {
    a.into_iter().chain(b).min()
}

/// Appends what came of one more decision.
fn merge(output: &mut Output, more: Output) {
    let Output { log, orders, records, snapshot, admitted, wake, acknowledged } = more;
    output.log.extend(log);
    output.orders.extend(orders);
    output.records.extend(records);
    output.snapshot = output.snapshot.take().or(snapshot);
    output.admitted = output.admitted.or(admitted);
    output.wake = earlier(output.wake, wake);
    output.acknowledged = output.acknowledged.or(acknowledged);
}

#[cfg(test)]
mod tests;
