//! The edge between workers and the coordinator, and the coordinator itself: a pure state machine that
//! decides views, leases samples and knows when a snapshot is complete. Every cluster runs the same one.
//!
//! [`Coordinator::step`] takes one [`Input`] and returns an [`Output`]: decisions to store, and the orders that
//! may be sent once they are stored.

pub mod collection;
mod leases;
mod membership;
mod messages;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use crate::ids::WorkerId;
use crate::journal::Record;
use crate::spans::Spans;
use crate::view::View;

use collection::Collection;
use leases::Leases;
use membership::{Membership, Reason, Sign};

pub use messages::{Collected, Decision, Input, Lease, Order, Output, Word};

pub struct Coordinator {
    membership: Membership,
    leases: Leases,
    center_applies: bool,
    keeps_log: bool,
    /// Workers that said goodbye but may still owe something to a peer.
    leaving: BTreeSet<WorkerId>,
    collection: Collection,
    /// The samples that an earlier run had applied.
    done_before: Spans,
}

/// What the coordinator is told when the job begins.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// The first view is decided when this many workers have said hello.
    pub members_min: usize,
    /// A worker that sends no heartbeat for this long is lost.
    pub patience: Duration,
    pub samples_total: u64,
    /// Whether samples are applied to a center at the view's first member, and can be lost with it.
    pub center_applies: bool,
    /// Whether decisions outlive the process. If not, [`Output::log`] stays empty.
    pub keeps_log: bool,
}

impl Coordinator {
    pub fn new(rules: Rules) -> Coordinator {
        Coordinator {
            membership: Membership::new(rules.members_min, rules.patience),
            leases: Leases::new(rules.samples_total),
            center_applies: rules.center_applies,
            keeps_log: rules.keeps_log,
            leaving: BTreeSet::new(),
            collection: Collection::default(),
            done_before: Spans::new(),
        }
    }

    /// Begins with the samples that an earlier run had applied.
    pub fn resume(&mut self, done: Spans) {
        self.leases.restored(done.clone());
        self.done_before = done;
    }

    pub fn view(&self) -> &View {
        self.membership.view()
    }

    pub fn is_over(&self) -> bool {
        self.membership.is_over()
    }

    /// The number of the snapshot that is being collected.
    pub fn collecting(&self) -> Option<u64> {
        self.collection.number()
    }

    /// Takes one input and decides.
    pub fn step(&mut self, now: Duration, input: Input) -> Output {
        let mut output = Output::default();
        match input {
            Input::Hello(who) => self.on_sign(now, Sign::Hello(who), &mut output),
            Input::Beat(who) => self.on_sign(now, Sign::Beat(who), &mut output),
            Input::Lost(who) => self.on_sign(now, Sign::Lost(who), &mut output),
            Input::Tick => self.on_sign(now, Sign::Tick, &mut output),
            Input::Word { from, word } => self.on_word(now, from, word, &mut output),
            Input::Stop => {
                self.leases.stop();
                self.log(&mut output, || Decision::Stopped);
                self.tell_members(&Order::Stop, &mut output);
                self.answer_leases(&mut output);
            }
            Input::Save => {
                if let Some(number) = self.collection.wish() {
                    self.log(&mut output, || Decision::SaveWished { number });
                    self.tell_members(&Order::Save { number }, &mut output);
                }
            }
        }
        output
    }

    fn on_word(&mut self, now: Duration, from: WorkerId, word: Word, output: &mut Output) {
        match word {
            Word::Bye => return self.on_sign(now, Sign::Bye(from), output),
            Word::Gone => {
                self.leaving.remove(&from);
                return;
            }
            Word::Finished => {
                if self.leases.is_done() || !self.center_applies {
                    return self.on_sign(now, Sign::Finished(from), output);
                }
                // The center was lost since, and with it samples that must be computed again.
                return output.orders.push((from, Order::MoreWork));
            }
            // What a lost worker held has been freed; its word comes too late.
            _ if !self.membership.is_enrolled(from) => return,
            Word::Lease { request, samples } => self.leases.ask(from, request, samples),
            Word::Done { spans } => {
                self.collection.on_done(from, &spans);
                self.leases.done(from, &spans);
                self.log(output, || Decision::Done { by: from, spans });
            }
            Word::Return { holder, spans } => {
                self.leases.give_back(holder, &spans);
                self.log(output, || Decision::Returned { holder, spans });
            }
            Word::Restored { done } => {
                self.collection.drop_open();
                self.leases.restored(done.clone());
                self.log(output, || Decision::Restored { done });
            }
            Word::HandedIn { snapshot, done } => {
                let (view, applied) = (self.membership.view(), self.leases.ledger().done());
                let part = (snapshot, done);
                output.snapshot = self.collection.on_part(view, applied, from, part);
                return;
            }
        }
        self.answer_leases(output);
    }

    fn on_sign(&mut self, now: Duration, sign: Sign, output: &mut Output) {
        let before = self.membership.view().clone();
        let (view, reason) = self.membership.on(now, sign);
        let lost: Vec<WorkerId> = match &reason {
            Reason::Lost(who) => vec![*who],
            Reason::Silent(all) => all.clone(),
            Reason::Over => {
                self.log(output, || Decision::Over);
                output.records.push(Record::Over);
                let told = before.members.iter().chain(&self.leaving);
                return output.orders.extend(told.map(|to| (*to, Order::Over)));
            }
            Reason::TooLate(who) => return output.orders.push((*who, Order::Over)),
            _ => vec![],
        };
        if let Sign::Lost(who) = sign
            && self.leaving.remove(&who)
        {
            // It can no longer hand over what it had; members that wait for that must know.
            return self.announce(&before, &[who], &reason, output);
        }
        let left = if let Reason::Left(who) = &reason { Some(*who) } else { None };
        self.leaving.extend(left);
        for &who in lost.iter().chain(&left) {
            let spans = self.leases.forget(who);
            if !spans.is_empty() || lost.contains(&who) {
                self.log(output, || Decision::Freed { who });
                output.records.push(Record::Freed { who, spans });
            }
        }
        if let Some(view) = view {
            self.collection.drop_open();
            if before.number > 0 && !view.members.iter().any(|member| before.has(*member)) {
                // No replica that has learned anything is left: every sample must be learned again.
                self.leases.restored(self.done_before.clone());
                self.log(output, || Decision::Restored { done: self.done_before.clone() });
                output.records.push(Record::StartedOver);
            }
            if self.center_applies && before.number > 0 && before.first() != view.first() {
                self.leases.center_lost();
            }
            self.announce(&view, &lost, &reason, output);
        } else if !lost.is_empty() {
            // No member is left, but workers that are leaving may wait for the lost ones.
            self.announce(&before, &lost, &reason, output);
        }
        self.answer_leases(output);
        if let Some(who) = self.membership.free_to_leave() {
            self.on_sign(now, Sign::Bye(who), output);
        }
    }

    fn announce(&self, view: &View, lost: &[WorkerId], reason: &Reason, output: &mut Output) {
        let (view, lost) = (Arc::new(view.clone()), Arc::new(lost.to_vec()));
        self.log(output, || Decision::View { view: view.clone(), lost: lost.clone() });
        let (number, members) = (view.number, view.members.clone());
        output.records.push(Record::View { number, members, reason: reason.to_string() });
        // A leaving worker goes when it receives the view without it; it must know of losses, too.
        let told = view.members.iter().chain(&self.leaving);
        let order = Order::View { view: view.clone(), lost };
        output.orders.extend(told.map(|to| (*to, order.clone())));
    }

    fn log(&self, output: &mut Output, decision: impl FnOnce() -> Decision) {
        if self.keeps_log {
            output.log.push(decision());
        }
    }

    fn tell_members(&self, order: &Order, output: &mut Output) {
        let members = self.membership.view().members.iter();
        output.orders.extend(members.map(|to| (*to, order.clone())));
    }

    fn answer_leases(&mut self, output: &mut Output) {
        while let Some((to, request, lease)) = self.leases.next_answer() {
            if let Lease::Yours { spans, .. } = &lease {
                self.log(output, || Decision::Leased { to, spans: spans.clone() });
            }
            output.orders.push((to, Order::Lease { request, lease }));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn coordinator(members: u32) -> Coordinator {
        let patience = Duration::from_secs(5);
        let rules = Rules {
            members_min: 2,
            patience,
            samples_total: 100,
            center_applies: false,
            keeps_log: true,
        };
        let mut coordinator = Coordinator::new(rules);
        for id in 0..members {
            let _ = coordinator.step(Duration::ZERO, Input::Hello(WorkerId(id)));
        }
        coordinator
    }

    /// Whatever a worker is told that it could act upon is in the log of the same step.
    #[test]
    fn what_is_told_is_logged_in_the_same_step() {
        let mut coordinator = coordinator(2);
        let word = |from, word| Input::Word { from: WorkerId(from), word };
        let inputs = [
            Input::Hello(WorkerId(2)),
            word(0, Word::Lease { request: 1, samples: 10 }),
            Input::Save,
            Input::Lost(WorkerId(1)),
            Input::Stop,
            word(0, Word::Finished),
            word(2, Word::Finished),
        ];
        for input in inputs {
            let Output { log, orders, .. } = coordinator.step(Duration::ZERO, input.clone());
            assert!(!orders.is_empty() || input == word(0, Word::Finished), "{input:?}");
            for (to, order) in orders {
                let is_logged = log.iter().any(|decision| match (&order, decision) {
                    (Order::View { view, .. }, Decision::View { view: logged, .. }) => {
                        view == logged
                    }
                    (
                        Order::Lease { lease: Lease::Yours { spans, .. }, .. },
                        Decision::Leased { to: holder, spans: logged },
                    ) => *holder == to && spans == logged,
                    (Order::Save { number }, Decision::SaveWished { number: logged }) => {
                        number == logged
                    }
                    (Order::Stop, Decision::Stopped) | (Order::Over, Decision::Over) => true,
                    _ => false,
                });
                assert!(is_logged, "{input:?}: {order:?} is not in {log:?}");
            }
        }
    }

    #[test]
    fn heartbeats_and_ticks_leave_no_trace_in_the_log() {
        let mut coordinator = coordinator(2);
        for input in [Input::Beat(WorkerId(0)), Input::Beat(WorkerId(1)), Input::Tick] {
            assert_eq!(coordinator.step(Duration::from_secs(1), input), Output::default());
        }
    }
}
