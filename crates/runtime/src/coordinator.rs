//! The coordinator: membership and leases together, as one pure machine that every cluster runs.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use crate::cluster::{Event, Ticket, View, Word, WorkerId};
use crate::journal::Record;
use crate::leases::Leases;
use crate::membership::{Membership, Reason, Sign};
use crate::snapshot::{Collector, Snapshot, WorkerSnapshot};
use crate::spans::Spans;

pub struct Coordinator {
    membership: Membership,
    leases: Leases,
    center_applies: bool,
    /// Said goodbye, but may still owe somebody something.
    leaving: BTreeSet<WorkerId>,
    collector: Collector,
    /// What an earlier run has applied already.
    done_before: Spans,
}

/// What the coordinator is told when the job begins.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    pub members_min: usize,
    pub patience: Duration,
    pub samples_total: u64,
    /// Whether samples are applied to a center at the view's first member, and can be lost with it.
    pub center_applies: bool,
}

impl Coordinator {
    pub fn new(rules: Rules) -> Coordinator {
        Coordinator {
            membership: Membership::new(rules.members_min, rules.patience),
            leases: Leases::new(rules.samples_total),
            center_applies: rules.center_applies,
            leaving: BTreeSet::new(),
            collector: Collector::default(),
            done_before: Spans::new(),
        }
    }

    /// These samples were applied by the run that this one goes on from.
    pub fn resume(&mut self, done: Spans) {
        self.leases.restored(done.clone());
        self.done_before = done;
    }

    /// Takes a worker's portion of a snapshot; gives the snapshot when it is whole.
    pub fn collect(&mut self, from: WorkerId, portion: WorkerSnapshot) -> Option<Snapshot> {
        self.collector.on_portion(
            self.membership.view(),
            self.leases.ledger().done(),
            from,
            portion,
        )
    }

    pub fn view(&self) -> &View {
        self.membership.view()
    }

    pub fn is_over(&self) -> bool {
        self.membership.is_over()
    }

    /// Takes a sign of life or of its end; gives what is to be told to whom.
    pub fn on(&mut self, now: Duration, sign: Sign) -> Vec<Event> {
        let before = self.membership.view().clone();
        let (view, reason) = self.membership.on(now, sign);
        let mut events = Vec::new();
        let gone: Vec<WorkerId> = match &reason {
            Reason::Lost(who) => vec![*who],
            Reason::Silent(all) => all.clone(),
            Reason::Over => {
                let over = |to: &WorkerId| Event::Over { to: *to };
                let told = before.members.iter().chain(&self.leaving).map(over);
                return std::iter::once(Event::Recorded { record: Record::Over })
                    .chain(told)
                    .collect();
            }
            Reason::TooLate(who) => return vec![Event::Over { to: *who }],
            _ => vec![],
        };
        if let Sign::Lost(who) = sign
            && self.leaving.remove(&who)
        {
            // It can no longer hand over what it had; those who wait for that must know.
            return self.announce(&before, &[who], &reason);
        }
        let left = if let Reason::Left(who) = &reason { vec![*who] } else { vec![] };
        for &who in gone.iter().chain(&left) {
            let spans = self.leases.forget(who);
            if left.contains(&who) {
                self.leaving.insert(who);
            }
            if !spans.is_empty() || gone.contains(&who) {
                events.push(Event::Recorded { record: Record::Freed { who, spans } });
            }
        }
        if let Some(view) = view {
            self.collector.drop_open();
            if before.number > 0 && !view.members.iter().any(|member| before.has(*member)) {
                // Nobody is left who has learned anything: every sample must be learned again.
                self.leases.restored(self.done_before.clone());
                events.push(Event::Recorded { record: Record::StartedOver });
            }
            if self.center_applies && before.number > 0 && before.first() != view.first() {
                self.leases.center_lost();
            }
            events.extend(self.announce(&view, &gone, &reason));
        } else if !gone.is_empty() {
            // Nobody is left, but those who are leaving may wait for the lost.
            events.extend(self.announce(&before, &gone, &reason));
        }
        events.extend(self.answers());
        if let Some(who) = self.membership.free_to_leave() {
            events.extend(self.on(now, Sign::Bye(who)));
        }
        events
    }

    /// Takes a word of a worker; gives what is to be told to whom.
    pub fn hear(&mut self, now: Duration, from: WorkerId, word: Word) -> Vec<Event> {
        let counts = self.membership.is_enrolled(from);
        match word {
            Word::Bye => return self.on(now, Sign::Bye(from)),
            Word::Gone => {
                self.leaving.remove(&from);
                return vec![];
            }
            Word::Finished => {
                if self.leases.is_done() || !self.center_applies {
                    return self.on(now, Sign::Finished(from));
                }
                // The center was lost since, and with it samples that must be computed again.
                return vec![Event::Again { to: from }];
            }
            Word::Stop => {
                self.leases.stop();
                let wish = |to: &WorkerId| Event::StopWished { to: *to };
                let mut events: Vec<Event> =
                    self.membership.view().members.iter().map(wish).collect();
                events.extend(self.answers());
                return events;
            }
            Word::Save => {
                let Some(number) = self.collector.wish() else { return vec![] };
                let wish = |to: &WorkerId| Event::SaveWished { to: *to, number };
                return self.membership.view().members.iter().map(wish).collect();
            }
            // What is no longer a member's has been freed; its word comes too late.
            _ if !counts => return vec![],
            Word::Lease { ticket, samples } => self.leases.ask(from, ticket, samples),
            Word::Done { spans } => {
                self.collector.on_done(from, &spans);
                self.leases.done(from, &spans);
            }
            Word::Return { holder, spans } => self.leases.give_back(holder, &spans),
            Word::Restored { done } => {
                self.collector.drop_open();
                self.leases.restored(done);
            }
        }
        self.answers()
    }

    fn announce(&self, view: &View, lost: &[WorkerId], reason: &Reason) -> Vec<Event> {
        let (view, lost) = (Arc::new(view.clone()), Arc::new(lost.to_vec()));
        let record = Record::View {
            number: view.number,
            members: view.members.clone(),
            reason: describe(reason),
        };
        // Who leaves must hear of the view without it to know when to go, and of those lost meanwhile.
        let told = view.members.iter().chain(&self.leaving).copied();
        std::iter::once(Event::Recorded { record })
            .chain(told.map(|to| Event::ViewChanged { to, view: view.clone(), lost: lost.clone() }))
            .collect()
    }

    fn answers(&mut self) -> Vec<Event> {
        let told = |(to, ticket, lease): (WorkerId, Ticket, _)| Event::Leased { to, ticket, lease };
        self.leases.answers().into_iter().map(told).collect()
    }
}

fn describe(reason: &Reason) -> String {
    match reason {
        Reason::Joined(who) => format!("worker {who} joined"),
        Reason::Left(who) => format!("worker {who} left"),
        Reason::Lost(who) => format!("worker {who} was lost"),
        Reason::Silent(all) => {
            let names: Vec<String> = all.iter().map(WorkerId::to_string).collect();
            format!("silent for too long: {}", names.join(", "))
        }
        other => format!("{other:?}"),
    }
}
