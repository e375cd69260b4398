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
    decide_at: Option<Duration>,
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
            self.suspicions.decide_at.get_or_insert(now.saturating_add(self.rules.patience / 4));
        }
        let changes_members = matches!(
            word,
            Word::Settled { .. } | Word::Finished | Word::Bye | Word::Gone | Word::Restored { .. }
        );
        let mut output = self.decide(Entry::Word { from, number, word });
        if changes_members {
            output = self.with_plan(now, output);
        }
        output.wake = earlier(output.wake, self.suspicions.decide_at);
        output
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
        if self.suspicions.decide_at.is_some_and(|at| at <= now)
            && !self.state.is_over()
            && let Some(who) = self.suspicions.take(&self.state)
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
    /// heard somebody; it never puts out everyone.
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
    /// cannot reach each other that is the younger one. One that is leaving and cannot hand over the center goes first.
    fn take(&mut self, state: &State) -> Option<WorkerId> {
        self.decide_at = None;
        let accused = std::mem::take(&mut self.accused);
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
        let rank = |(who, weight): &(WorkerId, usize)| (state.is_leaving(*who), *weight, *who);
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
mod tests {
    use paceline_learn::Dice;

    use super::*;
    use crate::journal::Record;

    const PATIENCE: Duration = Duration::from_millis(100);

    fn rules(coordination: Coordination) -> Rules {
        let (patience, keeps_log) = (PATIENCE, true);
        Rules { patience, keeps_log, ..Rules::new(60, 2, coordination) }
    }

    /// Something that a worker, the network or the user could tell the coordinator.
    fn draw(dice: &mut Dice, known: u64, words: &mut BTreeMap<WorkerId, u64>, view: u64) -> Input {
        let who = WorkerId(dice.below(known + 1) as u32);
        let spans = Spans::one(dice.below(30), 30 + dice.below(30));
        let word = match dice.below(12) {
            0 | 1 => Word::Lease { request: dice.below(1000), samples: 1 + dice.below(9) },
            2 => Word::Done { spans },
            3 => Word::Return { holder: who, spans },
            4 => Word::Restored { reign: view, done: spans },
            5 | 6 => Word::Settled { view: view + dice.below(2), exchange: 1 },
            7 => Word::HandedIn { snapshot: 1, digest: 1, done: None },
            8 => Word::Finished,
            9 => Word::Bye,
            10 => Word::Suspect { peer: WorkerId(dice.below(known + 1) as u32), view },
            _ => Word::Gone,
        };
        match dice.below(20) {
            0..=2 => Input::Hello,
            3 => Input::Lost(who),
            4 | 5 => Input::Beat(who),
            6 | 7 => Input::Tick,
            8 => Input::Save,
            9 => Input::Saved(Saved { round: 1, version: 0, done: Spans::one(0, dice.below(60)) }),
            _ => {
                let number = words.entry(who).or_default();
                *number += 1;
                Input::Word { from: who, number: *number, word }
            }
        }
    }

    #[test]
    fn any_prefix_of_the_log_replays_to_the_same_state() {
        let centered = |applies_samples| Coordination::Centered { applies_samples };
        let kinds = [
            Coordination::Synchronous,
            Coordination::Asynchronous,
            centered(true),
            centered(false),
        ];
        for seed in 0..200 {
            let mut dice = Dice::keyed(&[seed, 5]);
            let rules = rules(kinds[seed as usize % kinds.len()]);
            let (mut coordinator, mut words) =
                (Coordinator::new(rules, Spans::new()), BTreeMap::new());
            let (mut log, mut now, mut known) = (vec![Entry::Started], Duration::ZERO, 0);
            for _ in 0..60 {
                now += Duration::from_millis(dice.below(40));
                let view = coordinator.view().number;
                let input = draw(&mut dice, known, &mut words, view);
                let output = coordinator.step(now, input);
                known += u64::from(output.admitted.is_some());
                log.extend(output.log);

                let mut replayed = State::new(rules, Spans::new());
                for entry in &log {
                    let _ = replayed.apply(entry);
                }

                assert_eq!(&replayed, coordinator.state(), "seed {seed}, {} entries", log.len());
            }
        }
    }

    #[test]
    fn what_changes_the_state_is_logged_in_the_step_that_orders_it() {
        let mut coordinator = Coordinator::new(rules(Coordination::Asynchronous), Spans::new());
        let mut step = |input| coordinator.step(Duration::ZERO, input);
        let _ = step(Input::Hello);
        let began = step(Input::Hello);
        assert!(!began.log.is_empty() && began.orders.len() == 2, "{began:?}");
        let lease = Word::Lease { request: 1, samples: 4 };
        let leased = step(Input::Word { from: WorkerId(0), number: 1, word: lease });
        assert!(leased.orders.iter().any(|it| matches!(it.order, Order::Lease { .. })));
        assert_eq!((leased.log.len(), leased.acknowledged), (1, Some((WorkerId(0), 1))));
        assert_eq!(step(Input::Beat(WorkerId(0))), Output::default(), "beats are volatile");
    }

    #[test]
    fn a_coordinator_that_hears_nobody_puts_out_nobody() {
        let mut coordinator = Coordinator::new(rules(Coordination::Synchronous), Spans::new());
        for _ in 0..2 {
            let _ = coordinator.step(Duration::ZERO, Input::Hello);
        }
        for silence in [2, 4, 8, 100] {
            let output = coordinator.step(silence * PATIENCE, Input::Tick);
            assert_eq!((output.orders.len(), output.log.len()), (0, 0), "after {silence}");
        }
        // One that is heard again shows that the other is the one that is gone.
        let now = 101 * PATIENCE;
        let _ = coordinator.step(now, Input::Beat(WorkerId(1)));
        let output = coordinator.step(now, Input::Tick);
        assert!(output.orders.iter().any(|it| it.to == WorkerId(0)), "{output:?}");
        assert_eq!(coordinator.view().members, [WorkerId(1)]);
    }

    #[test]
    fn a_coordinator_that_was_away_waits_for_the_last_worker_as_for_the_first() {
        let mut coordinator = Coordinator::new(rules(Coordination::Asynchronous), Spans::new());
        let who: Vec<WorkerId> = (0..3)
            .map(|_| coordinator.step(Duration::ZERO, Input::Hello).admitted.expect("room"))
            .collect();
        let mut puts_out = |now, heard: &[usize]| {
            for i in heard {
                let _ = coordinator.step(now, Input::Beat(who[*i]));
            }
            let orders = coordinator.step(now, Input::Tick).orders;
            orders.iter().any(|it| matches!(it.order, Order::PutOut { .. }))
        };
        let away = 10 * PATIENCE;
        assert!(!puts_out(away, &[]), "it hears nobody");
        assert!(!puts_out(away, &[0, 1]), "the third one is on its way");
        assert!(!puts_out(away + PATIENCE / 2, &[2]));
        assert!(!puts_out(away + PATIENCE, &[0, 1, 2]));
        // A coordinator that has no reason to doubt itself waits no longer than it should.
        assert!(!puts_out(away + 2 * PATIENCE, &[0, 1]), "just heard");
        assert!(puts_out(away + 2 * PATIENCE + PATIENCE / 2, &[0, 1]), "the third one is silent");
    }

    #[test]
    fn a_coordinator_that_is_cut_off_does_not_put_out_the_worker_that_it_misses_first() {
        let mut coordinator = Coordinator::new(rules(Coordination::Synchronous), Spans::new());
        let who: Vec<WorkerId> = (0..3)
            .map(|_| coordinator.step(Duration::ZERO, Input::Hello).admitted.expect("room"))
            .collect();
        let mut puts_out = |now, heard: &[usize]| {
            for i in heard {
                let _ = coordinator.step(now, Input::Beat(who[*i]));
            }
            let orders = coordinator.step(now, Input::Tick).orders;
            orders.iter().any(|it| matches!(it.order, Order::PutOut { .. }))
        };

        // The cable is pulled after the heartbeats of the others, and before that of worker 0.
        assert!(!puts_out(PATIENCE / 5, &[1, 2]));
        assert!(!puts_out(PATIENCE + PATIENCE / 10, &[]), "only worker 0 is overdue");
        assert!(!puts_out(5 * PATIENCE, &[]), "all are");
        // The cable is back; worker 0 is the last one to be heard.
        assert!(!puts_out(5 * PATIENCE, &[1, 2]));
        assert!(!puts_out(5 * PATIENCE + PATIENCE / 5, &[0, 1, 2]));
    }

    #[test]
    fn a_banned_worker_is_told_so_and_the_others_go_on() {
        let mut coordinator = Coordinator::new(rules(Coordination::Synchronous), Spans::new());
        for _ in 0..2 {
            let _ = coordinator.step(Duration::ZERO, Input::Hello);
        }
        let output = coordinator.step(Duration::ZERO, Input::Ban(WorkerId(0)));
        let told = |it: &Addressed| {
            it.to == WorkerId(0) && matches!(it.order, Order::PutOut { banned: true, .. })
        };
        assert!(output.orders.iter().any(told), "{output:?}");
        assert_eq!(coordinator.view().members, [WorkerId(1)]);
    }

    #[test]
    fn a_newcomer_that_cannot_reach_a_member_voids_the_plan_that_waits_for_it() {
        let mut coordinator = Coordinator::new(rules(Coordination::Synchronous), Spans::new());
        for _ in 0..3 {
            let _ = coordinator.step(Duration::ZERO, Input::Hello);
        }
        let planned = coordinator.step(Duration::ZERO, Input::Tick);
        let plan = planned.orders.iter().find_map(|it| match &it.order {
            Order::Plan { view } => Some(view.number),
            _ => None,
        });
        let word = Word::Suspect { peer: WorkerId(0), view: plan.expect("a plan is made") };
        let _ = coordinator.step(PATIENCE, Input::Word { from: WorkerId(2), number: 1, word });

        let output = coordinator.step(2 * PATIENCE, Input::Tick);

        let is_out = |it: &Addressed| matches!(it.order, Order::PutOut { .. });
        let out: Vec<WorkerId> =
            output.orders.iter().filter(|it| is_out(it)).map(|it| it.to).collect();
        assert_eq!(out, [WorkerId(2)]);
        assert_eq!(coordinator.view().members, [WorkerId(0), WorkerId(1)]);
    }

    #[test]
    fn the_last_member_with_a_replica_is_not_put_out_because_newcomers_cannot_reach_it() {
        let mut coordinator = Coordinator::new(rules(Coordination::Asynchronous), Spans::new());
        for _ in 0..5 {
            let _ = coordinator.step(Duration::ZERO, Input::Hello);
        }
        let _ = coordinator.step(Duration::ZERO, Input::Tick);
        let _ = coordinator.step(Duration::ZERO, Input::Lost(WorkerId(1)));
        let view = coordinator.view().number;
        assert_eq!(coordinator.view().members, [0, 2, 3, 4].map(WorkerId));
        for from in [2, 3, 4].map(WorkerId) {
            let word = Word::Suspect { peer: WorkerId(0), view };
            let _ = coordinator.step(Duration::ZERO, Input::Word { from, number: 1, word });
        }

        let output = coordinator.step(PATIENCE / 2, Input::Tick);

        assert!(!output.records.contains(&Record::StartedOver), "{output:?}");
        assert_eq!(coordinator.view().members, [0, 2, 3].map(WorkerId));
    }

    #[test]
    fn nobody_is_put_out_when_the_job_is_over() {
        let mut coordinator = Coordinator::new(rules(Coordination::Synchronous), Spans::new());
        for _ in 0..2 {
            let _ = coordinator.step(Duration::ZERO, Input::Hello);
        }
        for who in [0, 1] {
            let (from, word) = (WorkerId(who), Word::Finished);
            let _ = coordinator.step(Duration::ZERO, Input::Word { from, number: 1, word });
        }
        assert!(coordinator.is_over());
        // The first one has ended, and its links are closed.
        let word = Word::Suspect { peer: WorkerId(0), view: coordinator.view().number };
        let _ =
            coordinator.step(Duration::ZERO, Input::Word { from: WorkerId(1), number: 2, word });

        let output = coordinator.step(PATIENCE, Input::Tick);

        assert!(!output.orders.iter().any(|it| matches!(it.order, Order::PutOut { .. })));
    }

    /// As a user who asks for a checkpoint just when a worker dies.
    #[test]
    fn a_snapshot_that_a_loss_prevents_is_asked_for_again() {
        for kind in [Coordination::Synchronous, Coordination::Asynchronous] {
            let mut coordinator =
                Coordinator::new(Rules { members_first: 3, ..rules(kind) }, Spans::new());
            let mut step = |input| coordinator.step(Duration::ZERO, input);
            (0..3).for_each(|_| drop(step(Input::Hello)));
            let asked = |output: &Output| {
                let is_save = |it: &&Addressed| matches!(it.order, Order::Save { .. });
                output.orders.iter().filter(is_save).count()
            };
            assert_eq!(asked(&step(Input::Save)), 3);
            let part = Word::HandedIn { snapshot: 1, digest: 1, done: Some(Spans::new()) };
            let handed_in = step(Input::Word { from: WorkerId(1), number: 1, word: part });
            assert_eq!(handed_in.snapshot, None);
            assert_eq!(asked(&step(Input::Lost(WorkerId(0)))), 2, "{kind:?}");
        }
    }

    #[test]
    fn a_worker_that_may_not_leave_yet_changes_no_view() {
        let mut coordinator = Coordinator::new(rules(Coordination::Asynchronous), Spans::new());
        let mut step = |input| {
            let _ = coordinator.step(Duration::ZERO, input);
            (coordinator.view().number, coordinator.view().members.clone())
        };
        for _ in 0..3 {
            let _ = step(Input::Hello);
        }
        // Worker 2 is taken in, but has not adopted a replica yet when the only worker with one says goodbye.
        let _ = step(Input::Tick);
        let before = step(Input::Lost(WorkerId(1)));
        let _ = step(Input::Word { from: WorkerId(0), number: 1, word: Word::Bye });

        assert_eq!([step(Input::Tick), step(Input::Tick)], [before.clone(), before]);

        let settled = Word::Settled { view: 3, exchange: 0 };
        let _ = step(Input::Word { from: WorkerId(2), number: 1, word: settled });
        assert_eq!(step(Input::Tick).1, [WorkerId(2)]);
    }

    #[test]
    fn a_word_that_is_sent_again_counts_once() {
        let mut coordinator = Coordinator::new(rules(Coordination::Asynchronous), Spans::new());
        for _ in 0..2 {
            let _ = coordinator.step(Duration::ZERO, Input::Hello);
        }
        let ask = |number| {
            let word = Word::Lease { request: number, samples: 4 };
            Input::Word { from: WorkerId(0), number, word }
        };
        let mut leases = |number| {
            let output = coordinator.step(Duration::ZERO, ask(number));
            output.orders.iter().filter(|it| matches!(it.order, Order::Lease { .. })).count()
        };
        assert_eq!([leases(1), leases(1), leases(3), leases(2), leases(3)], [1, 0, 0, 1, 1]);
    }
}
