//! One worker's inbox: answers, letters, views and orders that have arrived, and which tasks wait for them.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use paceline_learn::Gradient;

use super::waiting::Wanted;
use crate::coordination::{Lease, Order};
use crate::edge::{Answer, News};
use crate::exchange::Sum;
use crate::ids::{Ticket, WorkerId};
use crate::snapshot::Snapshot;
use crate::spans::Spans;
use crate::view::View;
use crate::wire::{AnyOptimizerState, Letter, Mailbox, Message, Published, SharedState, Standing};

#[derive(Default)]
pub struct Inbox {
    /// The newest view in force that this worker has heard of.
    pub view: Option<Arc<View>>,
    /// The newest view in which members begin from the initial state.
    pub start: Option<Arc<View>>,
    /// The snapshot from which they do, if it is not what the job began with.
    pub snapshot: Option<Arc<Snapshot>>,
    /// The newest planned view.
    pub plan: Option<Arc<View>>,
    /// The views received and still needed, by number; see [`forget_views`](Self::forget_views).
    pub views: BTreeMap<u64, Arc<View>>,
    /// Four bytes for each worker that was ever lost: a letter from one may still arrive.
    pub lost: BTreeSet<WorkerId>,
    pub over: bool,
    /// The coordinator counts this worker as lost.
    pub put_out: bool,
    /// This worker said goodbye and owes nothing any more.
    pub released: bool,
    /// Leased samples that a restored center does not hold.
    pub missing: Spans,
    /// The reign in which that center was restored.
    pub missing_since: u64,
    pub stop_ordered: bool,
    pub leave_ordered: bool,
    /// The number of the newest snapshot asked for.
    pub save_ordered: u64,
    /// The coordinator has more work for a worker that had finished.
    pub more_work: bool,
    pub serving: bool,
    /// Requests whose answer is still wanted; any other answer is dropped on arrival.
    open: Vec<Ticket>,
    /// Those of them that ask for an exchange.
    exchanges: Vec<Ticket>,
    gradients: BTreeMap<Ticket, (Gradient, Option<Duration>)>,
    answers: BTreeMap<Ticket, Answer>,
    sums: BTreeMap<Ticket, Arc<Sum>>,
    gathered: BTreeMap<Ticket, Arc<Vec<Standing>>>,
    values: BTreeMap<Ticket, Option<Published>>,
    leases: BTreeMap<Ticket, Lease>,
    shared_states: Vec<(WorkerId, u64, Arc<SharedState>)>,
    results: Vec<(WorkerId, u64, Arc<Sum>)>,
    centers: VecDeque<(WorkerId, CenterReply)>,
    messages: VecDeque<(WorkerId, Message)>,
    server_mail: VecDeque<(WorkerId, Letter)>,
    pub(super) waiting: Vec<(u64, Wanted)>,
}

/// The center, as a server answers with it.
pub type CenterReply = Published;

impl Inbox {
    pub(super) fn deliver(&mut self, news: News) {
        match news {
            News::Computed { ticket, gradient, took } => {
                if self.close(ticket) {
                    self.gradients.insert(ticket, (gradient, took));
                }
            }
            News::Hosted { ticket, answer } => {
                if self.close(ticket) {
                    self.answers.insert(ticket, answer);
                }
            }
            News::Summed { ticket, sum } => {
                if self.close(ticket) {
                    self.sums.insert(ticket, sum);
                }
            }
            News::Gathered { ticket, standings } => {
                if self.close(ticket) {
                    self.gathered.insert(ticket, standings);
                }
            }
            News::Value { ticket, value } => {
                if self.close(ticket) {
                    self.values.insert(ticket, value);
                }
            }
            // Letters carry no view; they are valid until the loss of their sender is known.
            News::Letter { from, letter } if !self.lost.contains(&from) => {
                self.deliver_letter(from, *letter);
            }
            News::Letter { .. } => {}
            News::Snapshot(snapshot) => self.snapshot = Some(snapshot),
            News::Told(order) => self.obey(order),
        }
    }

    fn deliver_letter(&mut self, from: WorkerId, letter: Letter) {
        match letter {
            Letter::SharedState { view, state } => self.shared_states.push((from, view, state)),
            Letter::Result { view, sum } => self.results.push((from, view, sum)),
            Letter::Center { params, reign, version, done, .. } => {
                let optimizer = AnyOptimizerState::default();
                let center = Published { params, optimizer, reign, version, done };
                self.centers.push_back((from, center));
            }
            Letter::Message { to: Mailbox::Worker, message } => {
                self.messages.push_back((from, message));
            }
            // For the worker's cluster.
            Letter::Part { .. } => {}
            Letter::Message { to: Mailbox::Server, .. }
            | Letter::Gradient { .. }
            | Letter::Idle
            | Letter::Newcomer
            | Letter::Handover { .. } => self.server_mail.push_back((from, letter)),
        }
    }

    fn obey(&mut self, order: Order) {
        match order {
            Order::View { view, lost } => {
                self.lost.extend(lost.iter());
                if !lost.is_empty() {
                    self.shared_states.retain(|(from, ..)| !self.lost.contains(from));
                    self.results.retain(|(from, ..)| !self.lost.contains(from));
                    self.centers.retain(|(from, _)| !self.lost.contains(from));
                    self.messages.retain(|(from, _)| !self.lost.contains(from));
                    self.server_mail.retain(|(from, _)| !self.lost.contains(from));
                }
                // Nothing completes any more in a view that this one replaces.
                for ticket in std::mem::take(&mut self.exchanges) {
                    self.close(ticket);
                }
                self.in_force(view);
            }
            Order::Start { view, .. } => {
                self.start = Some(view.clone());
                self.in_force(view);
            }
            Order::Plan { view } => self.plan = Some(view),
            Order::Go { view: number } => {
                if let Some(plan) = self.plan.clone().filter(|plan| plan.number == number) {
                    self.in_force(plan);
                }
            }
            Order::PutOut { .. } => self.put_out = true,
            Order::Released => self.released = true,
            Order::Missing { reign, spans } => {
                self.missing.add(&spans);
                self.missing_since = reign;
            }
            Order::Lease { request, lease } => {
                if self.close(Ticket(request)) {
                    self.leases.insert(Ticket(request), lease);
                }
            }
            Order::Stop => self.stop_ordered = true,
            Order::Save { number } => self.save_ordered = number,
            Order::Leave => self.leave_ordered = true,
            Order::MoreWork => self.more_work = true,
            Order::Over => self.over = true,
        }
    }

    fn in_force(&mut self, view: Arc<View>) {
        self.views.insert(view.number, view.clone());
        if self.view.as_ref().is_none_or(|old| old.number < view.number) {
            self.view = Some(view);
        }
    }

    pub(super) fn open(&mut self, ticket: Ticket) {
        self.open.push(ticket);
    }

    pub(super) fn open_exchange(&mut self, ticket: Ticket) {
        self.open.push(ticket);
        self.exchanges.push(ticket);
    }

    /// Whether the answer to this request is wanted; it is answered once.
    fn close(&mut self, ticket: Ticket) -> bool {
        let found = self.open.iter().position(|open| *open == ticket);
        if let Some(at) = self.exchanges.iter().position(|open| *open == ticket) {
            self.exchanges.swap_remove(at);
        }
        found.map(|at| self.open.swap_remove(at)).is_some()
    }

    /// Whether this worker has nothing to wait for any more.
    pub fn has_ended(&self) -> bool {
        self.over || self.put_out
    }

    /// The number of the newest view in force.
    pub fn view_number(&self) -> u64 {
        self.view.as_ref().map_or(0, |view| view.number)
    }

    /// The newest plan, unless a view in force is newer.
    pub fn plan_due(&self) -> Option<&Arc<View>> {
        self.plan.as_ref().filter(|plan| plan.number > self.view_number())
    }

    /// Gives up waiting: the answer is dropped, now or when it arrives.
    pub fn abandon(&mut self, ticket: Ticket) {
        if !self.close(ticket) {
            self.sums.remove(&ticket);
            self.gathered.remove(&ticket);
            self.values.remove(&ticket);
        }
    }

    /// Forgets all views before this one, and the shared states that were sent in them.
    pub fn forget_views(&mut self, before: u64) {
        if self.views.first_key_value().is_some_and(|(number, _)| *number < before) {
            self.views = self.views.split_off(&before);
        }
        self.shared_states.retain(|(_, view, _)| *view >= before);
        self.results.retain(|(_, view, _)| *view >= before);
    }

    /// A gradient, and how long it was computed if a host says so.
    pub fn gradient(&mut self, ticket: Ticket) -> Option<(Gradient, Option<Duration>)> {
        self.gradients.remove(&ticket)
    }

    pub fn answer(&mut self, ticket: Ticket) -> Option<Answer> {
        self.answers.remove(&ticket)
    }

    pub fn sum(&mut self, ticket: Ticket) -> Option<Arc<Sum>> {
        self.sums.remove(&ticket)
    }

    /// The sum if it has arrived; it stays in the inbox.
    pub fn known_sum(&self, ticket: Ticket) -> Option<&Arc<Sum>> {
        self.sums.get(&ticket)
    }

    pub fn gathered(&mut self, ticket: Ticket) -> Option<Arc<Vec<Standing>>> {
        self.gathered.remove(&ticket)
    }

    pub fn value(&mut self, ticket: Ticket) -> Option<Option<Published>> {
        self.values.remove(&ticket)
    }

    pub fn lease(&mut self, ticket: Ticket) -> Option<Lease> {
        self.leases.remove(&ticket)
    }

    /// The samples of a lease that has arrived; it stays in the inbox.
    pub fn known_lease(&self, ticket: Ticket) -> Option<Spans> {
        match self.leases.get(&ticket) {
            Some(Lease::Yours { spans, .. }) => Some(spans.clone()),
            _ => None,
        }
    }

    /// What `source` sent to newcomers of this view.
    pub fn shared_state(&mut self, source: WorkerId, view: u64) -> Option<Arc<SharedState>> {
        let is_it = |(from, of, _): &(WorkerId, u64, _)| *from == source && *of == view;
        let at = self.shared_states.iter().position(is_it)?;
        Some(self.shared_states.swap_remove(at).2)
    }

    /// The result that `source` sent to members that missed it, in this view.
    pub fn result(&mut self, source: WorkerId, view: u64) -> Option<Arc<Sum>> {
        let is_it = |(from, of, _): &(WorkerId, u64, _)| *from == source && *of == view;
        let at = self.results.iter().position(is_it)?;
        Some(self.results.swap_remove(at).2)
    }

    /// The oldest answer of `server`.
    pub fn center(&mut self, server: WorkerId) -> Option<CenterReply> {
        let at = self.centers.iter().position(|(from, _)| *from == server)?;
        self.centers.remove(at).map(|(_, reply)| reply)
    }

    pub fn forget_centers(&mut self) {
        self.centers.clear();
    }

    /// All messages to the worker, in order of arrival.
    pub fn take_messages(&mut self) -> VecDeque<(WorkerId, Message)> {
        std::mem::take(&mut self.messages)
    }

    /// The oldest letter of a member to the server. A newcomer may have heard of the view earlier than the server has: its
    /// letters wait.
    pub fn letter_to_server(&mut self) -> Option<(WorkerId, Letter)> {
        let view = self.view.clone()?;
        let at = self.server_mail.iter().position(|(from, _)| view.has(*from))?;
        self.server_mail.remove(at)
    }

    /// The center that a leaving server hands over.
    pub fn handover(&mut self, previous: WorkerId) -> Option<Published> {
        let is_it = |(from, letter): &(WorkerId, Letter)| {
            *from == previous && matches!(letter, Letter::Handover { .. })
        };
        let at = self.server_mail.iter().position(is_it)?;
        match self.server_mail.remove(at) {
            Some((_, Letter::Handover { center })) => Some(center),
            _ => None,
        }
    }

    pub fn drop_letters_to_server(&mut self) {
        self.server_mail.clear();
    }

    /// Whether this worker hosts the center, as far as is known.
    pub fn is_server(&self, who: WorkerId) -> bool {
        self.view.as_ref().is_some_and(|view| view.members.first() == Some(&who))
    }

    pub fn is_member(&self, who: WorkerId) -> bool {
        self.view.as_ref().is_some_and(|view| view.has(who))
    }
}
