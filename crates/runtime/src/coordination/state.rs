//! What the coordinator must remember: ids, views, leases, wishes. A pure state machine without a clock, so that
//! replaying its log gives the same state.

mod views;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::Rules;
use super::collection::{Collection, Part};
use super::leases::Leases;
use super::messages::{Addressed, Coordination, Entry, Order, Output, Saved, Word};
use super::session::{Outbox, is_next};
use crate::ids::WorkerId;
use crate::journal::Record;
use crate::spans::Spans;
use crate::view::View;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct State {
    rules: Rules,
    incarnation: u64,
    next_id: u32,
    /// The number of the newest view or plan.
    number: u64,
    /// The view in force; without members before the first view, and when all of its members are lost.
    in_force: Arc<View>,
    plan: Option<Plan>,
    /// Everyone that takes part or waits to do so.
    roster: BTreeMap<WorkerId, Member>,
    /// Asynchronous workers that said goodbye but may still owe something to a peer.
    leaving: BTreeSet<WorkerId>,
    /// A server that left may still have to hand over the center; if it is lost before, its successor must know.
    handing_over: bool,
    /// How often every replica was lost.
    restarts: u32,
    over: bool,
    leases: Leases,
    collection: Collection,
    /// The samples that an earlier run had applied.
    done_before: Spans,
    /// The newest snapshot of this run.
    saved: Option<Saved>,
    sessions: BTreeMap<WorkerId, Session>,
}

/// A planned view, and which of its members have boarded it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Plan {
    view: Arc<View>,
    settled: BTreeSet<WorkerId>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Member {
    /// It has a replica with everything that counts as done, as far as one replica can.
    holds: bool,
    leaves: bool,
    finished: bool,
    /// It is the last member of a job that waits for others, wants to leave, and has handed in what it holds, after so many rounds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    parts_after: Option<u64>,
}

/// The numbered messages from and to one worker.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Session {
    received: u64,
    orders: Outbox<Order>,
}

impl State {
    pub fn new(rules: Rules, done_before: Spans) -> State {
        let leases = all_leases(&rules, &done_before);
        State {
            rules,
            incarnation: 0,
            next_id: 0,
            number: 0,
            in_force: Arc::default(),
            plan: None,
            roster: BTreeMap::new(),
            leaving: BTreeSet::new(),
            handing_over: false,
            restarts: 0,
            over: false,
            leases,
            collection: Collection::default(),
            done_before,
            saved: None,
            sessions: BTreeMap::new(),
        }
    }

    /// How often a coordinator was started for this job.
    pub fn incarnation(&self) -> u64 {
        self.incarnation
    }

    pub fn view(&self) -> &View {
        &self.in_force
    }

    /// Whether this is the view in force, or the plan that is being boarded.
    pub fn is_current(&self, view: u64) -> bool {
        let is_plan = self.plan.as_ref().is_some_and(|plan| plan.view.number == view);
        is_plan || self.in_force.number == view
    }

    /// Whether a worker is in the view in force, or in the plan that is being boarded.
    pub fn takes_part(&self, who: WorkerId) -> bool {
        self.in_force.has(who) || self.plan.as_ref().is_some_and(|plan| plan.view.has(who))
    }

    /// Whether what was learned would be lost with these workers.
    pub fn are_last_holders(&self, workers: &[WorkerId]) -> bool {
        let mut holders = self.roster.iter().filter(|(_, member)| member.holds).peekable();
        holders.peek().is_some() && holders.all(|(who, _)| workers.contains(who))
    }

    /// Whether the user has asked that the job end early.
    pub fn is_stopped(&self) -> bool {
        self.leases.is_stopped()
    }

    pub fn is_over(&self) -> bool {
        self.over
    }

    pub fn collecting(&self) -> Option<u64> {
        self.collection.number()
    }

    /// Everyone that must show signs of life.
    pub fn enrolled(&self) -> impl Iterator<Item = WorkerId> + '_ {
        self.roster.keys().chain(&self.leaving).copied()
    }

    pub fn enrolled_count(&self) -> usize {
        self.roster.len() + self.leaving.len()
    }

    pub fn is_enrolled(&self, who: WorkerId) -> bool {
        self.roster.contains_key(&who) || self.leaving.contains(&who)
    }

    /// Whether a worker has said goodbye and may still owe something to a peer.
    pub fn is_leaving(&self, who: WorkerId) -> bool {
        self.leaving.contains(&who)
    }

    pub fn next_id(&self) -> WorkerId {
        WorkerId(self.next_id)
    }

    /// Whether a word is the next one of its sender.
    pub fn is_new(&self, from: WorkerId, number: u64) -> bool {
        let received = self.sessions.get(&from).map_or(0, |session| session.received);
        number == 0 || number == received + 1
    }

    /// How many words of a worker are in the log.
    pub fn received(&self, from: WorkerId) -> u64 {
        self.sessions.get(&from).map_or(0, |session| session.received)
    }

    /// A worker has obeyed all orders up to this number.
    pub fn acknowledged(&mut self, who: WorkerId, number: u64) {
        if let Some(session) = self.sessions.get_mut(&who) {
            session.orders.acknowledged(number);
        }
    }

    /// The orders that a worker must be sent again over a new connection.
    pub fn unacknowledged(&self, to: WorkerId) -> Vec<Addressed> {
        let orders = self.sessions.get(&to).map(|session| session.orders.unacknowledged());
        let orders = orders.into_iter().flatten();
        orders.map(|(number, order)| Addressed { to, number, order }).collect()
    }

    /// Whether workers wait that a plan would take in or let go.
    pub fn wants_plan(&self) -> bool {
        let is_asynchronous = self.rules.coordination != Coordination::Synchronous;
        // Members that wait because they are too few end as soon as they are told to stop: no plan may come after that.
        let are_ending = self.is_stopped()
            && self.in_force.members.len() < self.rules.members_min
            && !is_asynchronous;
        !self.over
            && !are_ending
            && self.plan.is_none()
            && !self.in_force.members.is_empty()
            && ((is_asynchronous && self.free_to_leave().is_some())
                || (!self.roster.values().any(|member| member.finished)
                    && self.next_members() != self.in_force.members))
    }

    /// Takes one entry of the log. Whatever it returns follows from the entries so far, never from a clock.
    pub fn apply(&mut self, entry: &Entry) -> Output {
        let mut output = Output::default();
        match entry {
            Entry::Started => self.incarnation += 1,
            Entry::Sized { samples_total } => {
                self.rules.samples_total = *samples_total;
                self.leases = all_leases(&self.rules, &self.done_before);
            }
            Entry::Joined => self.join(&mut output),
            Entry::Planned => self.plan(&mut output),
            Entry::Lost { workers, why } => self.lose(workers, *why, &mut output),
            Entry::Word { from, number, word } => self.hear(*from, *number, word, &mut output),
            Entry::Stopped => {
                self.leases.stop();
                self.order_members(&Order::Stop, &mut output);
                self.answer_leases(&mut output);
                if self.in_force.members.is_empty() && !self.over {
                    // Nobody computes anything: the job waits for workers, and there is no round to finish.
                    output.records.push(Record::Over);
                    self.end(&mut output);
                }
            }
            Entry::SaveWished => {
                if let Some(number) = self.collection.wish() {
                    self.order_members(&Order::Save { number }, &mut output);
                }
            }
            Entry::Saved(saved) => {
                self.saved = Some(saved.clone());
                self.part(saved.round, &mut output);
            }
        }
        output
    }

    fn join(&mut self, output: &mut Output) {
        let who = self.next_id();
        self.next_id += 1;
        output.admitted = Some(who);
        if self.rules.keeps_log {
            self.sessions.insert(who, Session::default());
        }
        if self.over || self.roster.values().any(|member| member.finished) {
            return self.order(who, Order::Over, output);
        }
        self.roster.insert(who, Member::default());
        self.start_if_possible(output);
    }

    /// Begins, or begins anew, when enough workers are there and no member is.
    fn start_if_possible(&mut self, output: &mut Output) {
        let wanted =
            if self.number == 0 { self.rules.members_first } else { self.rules.members_min };
        if self.over || !self.in_force.members.is_empty() || self.roster.len() < wanted.max(1) {
            return;
        }
        let members = self.roster.keys().copied().take(self.members_max()).collect();
        let view = self.next_view(members);
        for member in &view.members {
            self.roster.entry(*member).or_default().holds = true;
        }
        self.enforce(view.clone(), "the members begin".to_owned(), output);
        for to in view.members.clone() {
            let from_saved = self.saved.is_some();
            self.order(to, Order::Start { view: view.clone(), from_saved }, output);
        }
        self.answer_leases(output);
    }

    fn next_view(&mut self, members: Vec<WorkerId>) -> Arc<View> {
        self.number += 1;
        Arc::new(View { incarnation: self.incarnation, number: self.number, members })
    }

    /// The members change; a member that had finished may have work again, and says so again when it has none.
    fn enforce(&mut self, view: Arc<View>, reason: String, output: &mut Output) {
        self.plan = None;
        self.roster.values_mut().for_each(|member| member.finished = false);
        let (number, members) = (view.number, view.members.clone());
        output.records.push(Record::View { number, members, reason });
        self.in_force = view;
        // A snapshot that was being collected can no longer be completed; the wish for one stands.
        if let Some(number) = self.collection.wish_again() {
            self.order_members(&Order::Save { number }, output);
        }
    }

    fn members_max(&self) -> usize {
        self.rules.members_max.unwrap_or(usize::MAX)
    }

    fn hear(&mut self, from: WorkerId, number: u64, word: &Word, output: &mut Output) {
        if number > 0
            && let Some(session) = self.sessions.get_mut(&from)
        {
            is_next(&mut session.received, number);
            output.acknowledged = Some((from, number));
        }
        if *word == Word::Gone {
            self.leaving.remove(&from);
            self.sessions.remove(&from);
            return;
        }
        if !self.roster.contains_key(&from) {
            return;
        }
        match word {
            Word::Lease { request, samples } => self.leases.ask(from, *request, *samples),
            Word::Done { spans } => {
                self.collection.on_done(from, spans);
                self.leases.done(spans);
            }
            Word::Return { holder, spans } => {
                if from == *holder || self.is_server(from) {
                    self.leases.give_back(*holder, spans);
                }
            }
            Word::Restored { reign, done } => self.restored(from, *reign, done, output),
            Word::Settled { view, .. } => self.settled(from, *view, output),
            Word::HandedIn { snapshot, digest, done } => {
                self.hears_part(from, *snapshot);
                let applied = self.leases.ledger().done();
                let part = Part { number: *snapshot, digest: *digest, agreed: done.clone() };
                output.snapshot = self.collection.on_part(&self.in_force, applied, from, part);
            }
            Word::Finished => self.finished(from, output),
            Word::Bye => self.bye(from, output),
            Word::Disagreed { exchange, workers } => {
                let (exchange, workers) = (*exchange, workers.clone());
                output.records.push(Record::Disagreed { exchange, workers });
                self.end(output);
            }
            Word::Suspect { .. } | Word::Gone => {}
        }
        self.answer_leases(output);
    }

    fn bye(&mut self, from: WorkerId, output: &mut Output) {
        if self.takes_part(from) {
            self.roster.entry(from).or_default().leaves = true;
        } else {
            // It was still waiting to be taken in, and no other worker counts on it.
            let why = "it wanted to leave".to_owned();
            self.order(from, Order::PutOut { why, banned: false }, output);
            self.roster.remove(&from);
        }
    }

    fn is_server(&self, who: WorkerId) -> bool {
        self.in_force.members.first() == Some(&who)
    }

    /// The server has the center again. Samples that were leased and that the center does not hold are still
    /// with their workers, which are told: one may believe that the lost server had applied them.
    fn restored(&mut self, from: WorkerId, reign: u64, done: &Spans, output: &mut Output) {
        if !self.is_server(from) || reign > self.in_force.number {
            return;
        }
        if self.rules.coordination == (Coordination::Centered { applies_samples: true }) {
            if let Some(number) = self.collection.wish_again() {
                self.order_members(&Order::Save { number }, output);
            }
            for (to, spans) in self.leases.restored(done.clone()) {
                self.order(to, Order::Missing { reign, spans }, output);
            }
        }
        self.handing_over = false;
        self.release(output);
    }

    fn finished(&mut self, from: WorkerId, output: &mut Output) {
        let applies = self.rules.coordination == (Coordination::Centered { applies_samples: true });
        if applies && !self.leases.is_done() {
            // The center was lost since, and with it samples that must be computed again.
            return self.order(from, Order::MoreWork, output);
        }
        if let Some(member) = self.roster.get_mut(&from) {
            member.finished = true;
        }
        self.over_if_finished(output);
    }

    fn over_if_finished(&mut self, output: &mut Output) {
        let members = &self.in_force.members;
        let is_finished = |who| self.roster.get(who).is_some_and(|member: &Member| member.finished);
        if !self.over && !members.is_empty() && members.iter().all(is_finished) {
            output.records.push(Record::Over);
            self.end(output);
        }
    }

    /// Tells everyone that the job is over.
    fn end(&mut self, output: &mut Output) {
        self.over = true;
        for to in self.enrolled().collect::<Vec<_>>() {
            self.order(to, Order::Over, output);
        }
    }

    /// With too few members, requests for samples wait, and all members with them.
    fn answer_leases(&mut self, output: &mut Output) {
        if self.in_force.members.len() < self.rules.members_min && !self.leases.is_done() {
            return;
        }
        while let Some((to, request, lease)) = self.leases.next_answer() {
            self.order(to, Order::Lease { request, lease }, output);
        }
    }

    fn order_members(&mut self, order: &Order, output: &mut Output) {
        for to in self.in_force.clone().members.iter() {
            self.order(*to, order.clone(), output);
        }
    }

    fn order(&mut self, to: WorkerId, order: Order, output: &mut Output) {
        let session = self.sessions.get_mut(&to);
        let number = session.map_or(0, |session| session.orders.send(order.clone()));
        output.orders.push(Addressed { to, number, order });
    }
}

/// The samples of the job, of which an earlier run had applied some.
fn all_leases(rules: &Rules, done_before: &Spans) -> Leases {
    let has_center = rules.coordination == (Coordination::Centered { applies_samples: true });
    let mut leases = Leases::new(rules.samples_total, has_center);
    leases.restored(done_before.clone());
    leases
}
