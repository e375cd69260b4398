//! How views follow from joins, leaves and losses.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::{Member, Plan, State};
use crate::coordination::messages::{Addressed, Coordination, Order, Output, Saved, Why};
use crate::ids::WorkerId;
use crate::journal::Record;
use crate::view::View;

impl State {
    /// Members that stay, and as many newcomers as there is room for. At least one member of the view in force
    /// stays: the last one leaves in a later plan, when another worker holds what it holds.
    fn planned_members(&self) -> Vec<WorkerId> {
        let leaves = |who: &WorkerId| self.roster.get(who).is_none_or(|member| member.leaves);
        let mut stay: Vec<_> =
            self.in_force.members.iter().copied().filter(|who| !leaves(who)).collect();
        if stay.is_empty() {
            stay.extend(self.in_force.members.first());
        }
        let newcomers = self.roster.keys().filter(|who| !self.in_force.has(**who) && !leaves(who));
        let room = self.members_max().saturating_sub(stay.len());
        stay.extend(newcomers.take(room));
        stay.sort_unstable();
        stay
    }

    /// The members of the next view. An asynchronous worker that wants to leave is a member until it may: a view without
    /// it that is never decided would be wanted forever.
    pub(super) fn next_members(&self) -> Vec<WorkerId> {
        if self.rules.coordination == Coordination::Synchronous {
            return self.planned_members();
        }
        let mut members = self.living(&self.in_force);
        let newcomers = self.roster.keys().filter(|who| !self.in_force.has(**who));
        let room = self.members_max().saturating_sub(members.len());
        members.extend(newcomers.take(room));
        members.sort_unstable();
        members
    }

    pub(super) fn plan(&mut self, output: &mut Output) {
        if !self.wants_plan() {
            return;
        }
        if self.rules.coordination != Coordination::Synchronous {
            if let Some(who) = self.free_to_leave() {
                self.let_go(who, output);
            }
            if self.next_members() != self.in_force.members {
                self.view_at_once(&[], output);
            }
            return self.answer_leases(output);
        }
        let members = self.planned_members();
        let view = self.next_view(members);
        self.plan = Some(Plan { view: view.clone(), settled: BTreeSet::new() });
        for to in self.roster.keys().copied().collect::<Vec<_>>() {
            if self.in_force.has(to) || view.has(to) {
                self.order(to, Order::Plan { view: view.clone() }, output);
            }
        }
    }

    pub(super) fn lose(&mut self, workers: &[WorkerId], why: Why, output: &mut Output) {
        let lost: Vec<WorkerId> =
            workers.iter().copied().filter(|who| self.is_enrolled(*who)).collect();
        if lost.is_empty() {
            return;
        }
        let names: Vec<String> = lost.iter().map(WorkerId::to_string).collect();
        let reason = match names.as_slice() {
            [name] => format!("worker {name} was {why}"),
            _ => format!("workers {} were {why}", names.join(", ")),
        };
        for &who in &lost {
            self.roster.remove(&who);
            self.sessions.remove(&who);
            let spans = self.leases.forget(who);
            output.records.push(Record::Freed { who, spans });
            let order = Order::PutOut { why: why.to_string(), banned: why == Why::Banned };
            output.orders.push(Addressed { to: who, number: 0, order });
        }
        if self.over || self.number == 0 {
            self.leaving.retain(|who| !lost.contains(who));
            return;
        }
        match self.rules.coordination {
            Coordination::Synchronous => self.loss_view(&lost, reason, output),
            _ => self.lose_asynchronous(&lost, reason, output),
        }
        self.answer_leases(output);
    }

    /// The view after a loss: the living members of the view in force, leavers included. A plan is void with it.
    fn loss_view(&mut self, lost: &[WorkerId], reason: String, output: &mut Output) {
        if !lost.iter().any(|who| self.takes_part(*who)) {
            return;
        }
        let mut members = self.living(&self.in_force);
        if members.is_empty()
            && let Some(plan) = &self.plan
        {
            // Newcomers that have boarded hold everything that the lost members held.
            members = self.living(&plan.view);
            members.retain(|who| plan.settled.contains(who));
        }
        if members.is_empty() {
            return self.start_over(reason, output);
        }
        for member in &members {
            self.roster.entry(*member).or_default().holds = true;
        }
        let view = self.next_view(members);
        self.enforce(view.clone(), reason, output);
        let lost = Arc::new(lost.to_vec());
        // Newcomers of a plan that is void must know, too.
        for to in self.roster.keys().copied().collect::<Vec<_>>() {
            self.order(to, Order::View { view: view.clone(), lost: lost.clone() }, output);
        }
        self.over_if_finished(output);
    }

    fn living(&self, view: &View) -> Vec<WorkerId> {
        view.members.iter().copied().filter(|who| self.roster.contains_key(who)).collect()
    }

    /// No replica is left that holds what counts as done: what the newest snapshot lacks must be learned again.
    fn start_over(&mut self, reason: String, output: &mut Output) {
        self.restarts += 1;
        self.handing_over = false;
        let view = self.next_view(vec![]);
        self.begin_again(view, reason, output);
        if self.rules.coordination != Coordination::Synchronous {
            // One of them may just have adopted a replica of a worker that is lost: it must not begin with that.
            for who in std::mem::take(&mut self.roster).into_keys() {
                let why = "every replica was lost: all begin anew".to_owned();
                self.sessions.remove(&who);
                let _ = self.leases.forget(who);
                let order = Order::PutOut { why, banned: false };
                output.orders.push(Addressed { to: who, number: 0, order });
            }
        }
        if self.is_stopped() {
            // As where a job that has no members is asked to stop: nobody is to begin anew.
            output.records.push(Record::Over);
            return self.end(output);
        }
        if self.restarts > self.rules.restarts_max {
            let restarts = self.restarts;
            output.records.push(Record::GaveUp { restarts });
            return self.end(output);
        }
        self.start_if_possible(output);
    }

    /// Nobody is left in this view: the job continues from its newest snapshot.
    fn begin_again(&mut self, view: Arc<View>, reason: String, output: &mut Output) {
        let done = self.saved.as_ref().map_or(&self.done_before, |saved| &saved.done);
        self.leases.restored(done.clone());
        self.roster.values_mut().for_each(|member| member.holds = false);
        self.enforce(view, reason, output);
        output.records.push(Record::StartedOver);
        if let Some(Saved { round, version, done }) = self.saved.clone() {
            output.records.push(Record::Resumed {
                round,
                version,
                spans: done,
                loss_first: None,
                loss_last: None,
                samples_total: None,
                past: None,
            });
        }
    }

    fn lose_asynchronous(&mut self, lost: &[WorkerId], reason: String, output: &mut Output) {
        for who in lost.iter().filter(|who| self.leaving.contains(who)).copied().collect::<Vec<_>>()
        {
            // It can no longer hand over what it had; members that wait for that must know.
            self.leaving.remove(&who);
        }
        if !self.roster.values().any(|member| member.holds) {
            return self.start_over(reason, output);
        }
        self.announce(lost, reason, output);
    }

    /// Asynchronous workers: everyone on the roster is a member at once.
    fn view_at_once(&mut self, lost: &[WorkerId], output: &mut Output) {
        let is_new = |who: &&WorkerId| !self.in_force.has(**who);
        let names = |all: Vec<String>| all.join(", ");
        let joined = names(self.roster.keys().filter(is_new).map(WorkerId::to_string).collect());
        let gone = self.in_force.members.iter().filter(|who| !self.roster.contains_key(who));
        let left = names(gone.map(WorkerId::to_string).collect());
        self.announce(lost, change(&joined, &left), output);
    }

    fn announce(&mut self, lost: &[WorkerId], reason: String, output: &mut Output) {
        let before = self.in_force.members.first().copied();
        let members = self.next_members();
        let view = self.next_view(members);
        let is_new_server = before != view.members.first().copied();
        if self.rules.coordination == (Coordination::Centered { applies_samples: true })
            && is_new_server
        {
            self.leases.center_lost();
        }
        self.enforce(view.clone(), reason, output);
        let lost = Arc::new(lost.to_vec());
        let told: Vec<_> = view.members.iter().chain(&self.leaving).copied().collect();
        for to in told {
            self.order(to, Order::View { view: view.clone(), lost: lost.clone() }, output);
        }
        let is_centered = matches!(self.rules.coordination, Coordination::Centered { .. });
        self.handing_over |= is_centered && is_new_server;
        if !self.handing_over {
            self.release(output);
        }
        self.over_if_finished(output);
    }

    /// Workers for which there is no room.
    pub fn beyond_max(&self) -> Vec<WorkerId> {
        let is_full = !self.over && self.in_force.members.len() >= self.members_max();
        let waits = |who: &WorkerId| is_full && !self.takes_part(*who);
        self.roster.keys().copied().filter(waits).collect()
    }

    /// The only member, if it wants to leave.
    pub fn only_member_leaves(&self) -> Option<WorkerId> {
        let [who] = self.in_force.members[..] else { return None };
        (self.wants_to_leave(who) && self.plan.is_none() && !self.over).then_some(who)
    }

    /// The last member of a job that waits for others, if it wants to leave.
    pub fn last_to_leave(&self) -> Option<WorkerId> {
        let is_paused = self.rules.coordination == Coordination::Synchronous
            && self.in_force.members.len() < self.rules.members_min;
        self.only_member_leaves().filter(|_| is_paused)
    }

    /// A member hands in what it holds. It computes nothing while the job waits, so that nothing is lost if it leaves then.
    pub(super) fn hears_part(&mut self, from: WorkerId, snapshot: u64) {
        if self.last_to_leave() == Some(from)
            && let Some(member) = self.roster.get_mut(&from)
        {
            member.parts_after = Some(snapshot);
        }
    }

    /// A snapshot is stored: a member that waited for that may leave. Whoever joins next begins with the snapshot.
    pub(super) fn part(&mut self, saved: u64, output: &mut Output) {
        let Some(who) = self.last_to_leave() else { return };
        if self.roster.get(&who).and_then(|member| member.parts_after) != Some(saved) {
            return;
        }
        let view = self.next_view(vec![]);
        self.order(who, Order::Plan { view: view.clone() }, output);
        self.order(who, Order::Go { view: view.number }, output);
        self.roster.remove(&who);
        let reason = format!("worker {who}, the last one, left when its checkpoint was saved");
        self.begin_again(view, reason, output);
        self.start_if_possible(output);
    }

    /// Workers that said goodbye owe nothing any more.
    pub(super) fn release(&mut self, output: &mut Output) {
        for who in std::mem::take(&mut self.leaving) {
            self.order(who, Order::Released, output);
        }
    }

    pub fn wants_to_leave(&self, who: WorkerId) -> bool {
        self.roster.get(&who).is_some_and(|member| member.leaves)
    }

    /// An asynchronous worker that may leave now: another one holds a replica, and it computes nothing. One that was the only member when
    /// it said goodbye has worked on since then.
    pub(super) fn free_to_leave(&self) -> Option<WorkerId> {
        let holders = self.roster.values().filter(|member| member.holds).count();
        let leaves = |(who, member): &(&WorkerId, &Member)| {
            let is_needed = member.holds && holders == 1;
            member.leaves && !is_needed && !self.leases.has_leased_to(**who)
        };
        self.roster.iter().find(leaves).map(|(who, _)| *who)
    }

    fn let_go(&mut self, who: WorkerId, output: &mut Output) {
        self.roster.remove(&who);
        self.leaving.insert(who);
        let spans = self.leases.forget(who);
        if !spans.is_empty() {
            output.records.push(Record::Freed { who, spans });
        }
    }

    pub(super) fn settled(&mut self, from: WorkerId, view: u64, output: &mut Output) {
        if self.rules.coordination != Coordination::Synchronous {
            if let Some(member) = self.roster.get_mut(&from) {
                member.holds = true;
            }
            return;
        }
        let Some(plan) = self.plan.as_mut().filter(|plan| plan.view.number == view) else { return };
        if plan.view.has(from) {
            plan.settled.insert(from);
        }
        if plan.settled.len() < plan.view.members.len() {
            return;
        }
        let (before, view) = (self.in_force.clone(), plan.view.clone());
        let names = |all: Vec<String>| all.join(", ");
        let joined = view.members.iter().filter(|who| !before.has(**who));
        let joined = names(joined.map(WorkerId::to_string).collect());
        let left: Vec<_> = before.members.iter().filter(|who| !view.has(**who)).copied().collect();
        let left_names = names(left.iter().map(WorkerId::to_string).collect());
        for member in &view.members {
            self.roster.entry(*member).or_default().holds = true;
        }
        self.enforce(view.clone(), change(&joined, &left_names), output);
        for to in view.members.iter().chain(&left).copied().collect::<Vec<_>>() {
            self.order(to, Order::Go { view: view.number }, output);
        }
        self.roster.retain(|who, _| !left.contains(who));
    }
}

/// Says why members change.
fn change(joined: &str, left: &str) -> String {
    let plural = |names: &str| if names.contains(',') { "workers" } else { "worker" };
    match (joined.is_empty(), left.is_empty()) {
        (false, true) => format!("{} {joined} joined", plural(joined)),
        (true, false) => format!("{} {left} left", plural(left)),
        _ => format!("{} {joined} joined, {} {left} left", plural(joined), plural(left)),
    }
}
