//! One worker's access to the executor and its cluster.

use std::any::Any;
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use paceline_learn::Vector;

use super::inbox::Inbox;
use super::waiting::{Interrupt, Wanted};
use super::{Shared, Task};
use crate::coordination::Word;
use crate::edge::{Action, Answer, Ask, Place, Replica, Shareable};
use crate::exchange::Sum;
use crate::ids::{Ticket, WorkerId};
use crate::journal::Record;
use crate::snapshot::WorkerSnapshot;
use crate::spans::Spans;
use crate::view::View;
use crate::wire::{Entry, Extent, Letter, Published, Shelf};

#[derive(Clone)]
pub struct Port {
    pub worker: WorkerId,
    inbox: Rc<RefCell<Inbox>>,
    shared: Rc<RefCell<Shared>>,
}

impl Port {
    pub(super) fn new(
        worker: WorkerId,
        inbox: Rc<RefCell<Inbox>>,
        shared: Rc<RefCell<Shared>>,
    ) -> Port {
        Port { worker, inbox, shared }
    }

    pub fn now(&self) -> Duration {
        self.shared.borrow().cluster.now()
    }

    /// Looks at the inbox, or takes something out of it, without waiting.
    pub fn look<T>(&self, look: impl FnOnce(&mut Inbox) -> T) -> T {
        look(&mut self.inbox.borrow_mut())
    }

    /// Changes the inbox, and wakes this worker's other task to see it.
    pub fn set(&self, change: impl FnOnce(&mut Inbox)) {
        let mut inbox = self.inbox.borrow_mut();
        change(&mut inbox);
        let woken = inbox.waiting.drain(..).map(|(task, _)| task);
        self.shared.borrow_mut().ready.extend(woken);
    }

    /// Sleeps until `look` finds what is wanted.
    pub async fn until<T>(
        &self,
        wanted: Wanted,
        mut look: impl FnMut(&mut Inbox) -> Option<T>,
    ) -> T {
        std::future::poll_fn(|_| {
            let mut inbox = self.inbox.borrow_mut();
            match look(&mut inbox) {
                Some(found) => Poll::Ready(found),
                None => {
                    let running = self.shared.borrow().running;
                    inbox.waiting.push((running, wanted.clone()));
                    Poll::Pending
                }
            }
        })
        .await
    }

    /// Starts a task of this worker.
    pub fn start(&self, task: Task) {
        let mut shared = self.shared.borrow_mut();
        let id = shared.next_serial();
        shared.started.push((id, self.worker, task));
        shared.ready.push_back(id);
    }

    pub fn record(&self, record: Record) {
        self.shared.borrow_mut().record(record);
    }

    pub fn compute(&self, at: Place, spans: Spans, updates: u32) -> Ticket {
        self.ask(|ticket| Action::Compute { ticket, at, spans, updates })
    }

    /// Asks the host of this worker, and waits for its answer.
    pub async fn ask_host(&self, ask: Ask) -> Answer {
        let ticket = {
            let mut shared = self.shared.borrow_mut();
            let ticket = Ticket(shared.next_serial());
            if let Some(answer) = shared.cluster.ask_host(self.worker, ticket, ask) {
                return answer;
            }
            self.inbox.borrow_mut().open(ticket);
            ticket
        };
        self.until(Wanted::Host, |inbox| inbox.answer(ticket)).await
    }

    /// Tells the host of this worker which samples probably follow.
    pub fn show_host(&self, ahead: Spans) {
        self.shared.borrow_mut().cluster.show_host(self.worker, ahead);
    }

    pub fn exchange(&self, view: Arc<View>, number: u64, entry: Entry) -> Ticket {
        let mut shared = self.shared.borrow_mut();
        let ticket = Ticket(shared.next_serial());
        self.inbox.borrow_mut().open_exchange(ticket);
        shared.cluster.submit(self.worker, Action::Exchange { ticket, view, number, entry });
        ticket
    }

    pub fn lease(&self, samples: u64) -> Ticket {
        self.ask(|ticket| Action::Tell(Word::Lease { request: ticket.0, samples }))
    }

    pub fn send(&self, to: WorkerId, letter: Letter) {
        let bytes = if to == self.worker { 0 } else { letter.bytes() };
        self.record(Record::Sent { who: self.worker, to, bytes });
        self.submit(Action::Send { to, letter: Box::new(letter) });
    }

    pub fn publish(&self, shelf: Shelf, value: Published) {
        self.submit(Action::Publish { shelf, value });
    }

    /// Reads a peer's last published value. `Err`: the peer is lost, or has published nothing.
    pub async fn read(
        &self,
        from: WorkerId,
        shelf: Shelf,
        extent: Extent,
    ) -> Result<Published, Interrupt> {
        let waits = false;
        let ticket = self.ask(|ticket| Action::Read { ticket, from, shelf, extent, waits });
        self.until(Wanted::Value { from }, |inbox| {
            if let Some(value) = inbox.value(ticket) {
                return Some(value.ok_or(Interrupt::PeerLost));
            }
            let is_gone = inbox.lost.contains(&from) || !inbox.is_member(from);
            (is_gone || inbox.has_ended()).then(|| {
                inbox.abandon(ticket);
                Err(Interrupt::PeerLost)
            })
        })
        .await
    }

    /// Reads from all of these peers and returns the first value that comes, also if none has published anything yet.
    /// `None`: the members have changed.
    pub async fn read_any(
        &self,
        peers: impl Iterator<Item = WorkerId>,
        shelf: Shelf,
        extent: Extent,
    ) -> Option<(WorkerId, Published)> {
        let (known, waits) = (self.look(|inbox| inbox.view_number()), true);
        let read =
            |from| (from, self.ask(|ticket| Action::Read { ticket, from, shelf, extent, waits }));
        let asked: Vec<(WorkerId, Ticket)> = peers.map(read).collect();
        let found = self
            .until(Wanted::View, |inbox| {
                let mut values = asked.iter().map(|(from, ticket)| (*from, inbox.value(*ticket)));
                let value = values.find_map(|(from, value)| Some((from, value??)));
                let is_void = inbox.has_ended() || inbox.view_number() > known;
                value.map(Some).or(is_void.then_some(None))
            })
            .await;
        self.look(|inbox| asked.iter().for_each(|(_, ticket)| inbox.abandon(*ticket)));
        found
    }

    pub fn save(&self, part: WorkerSnapshot, done: Option<Spans>) {
        self.submit(Action::Save { part: Box::new(part), done });
    }

    pub fn evaluate(&self, samples: u64, ends_epoch: bool, of: Vec<WorkerId>, shelf: Shelf) {
        self.submit(Action::Evaluate { samples, ends_epoch, of, shelf });
    }

    /// Asks that the mean of the published replicas of the members `with`, this worker among them, be evaluated.
    pub fn evaluate_part(&self, samples: u64, with: Vec<WorkerId>) {
        self.submit(Action::EvaluatePart { samples, with });
    }

    pub fn tell(&self, word: Word) {
        self.submit(Action::Tell(word));
    }

    /// One step of a replica along a sum.
    pub fn descend(
        &self,
        before: Replica,
        along: &Arc<Sum>,
        rate: f32,
        step: &dyn Fn(&Replica) -> Replica,
    ) -> Replica {
        self.shared.borrow_mut().cluster.descend(before, along, rate, step)
    }

    /// Computes what all members compute alike; see [`Cluster::once`](crate::edge::Cluster::once).
    pub fn once<T: Any + Send + Sync, U: Any + Send + Sync>(
        &self,
        before: &Arc<T>,
        along: Option<&Arc<Sum>>,
        step: u64,
        make: impl FnOnce() -> U,
    ) -> Arc<U> {
        let before: Shareable = before.clone();
        let mut make = Some(make);
        let mut make = || -> Shareable { Arc::new((make.take().expect("it is made once"))()) };
        let after = self.shared.borrow_mut().cluster.once(&before, along, step, &mut make);
        after.downcast().expect("a step has one type")
    }

    /// Withdraws from an exchange that cannot end any more.
    pub fn withdraw(&self, view: u64, exchange: u64) {
        let bytes = self.shared.borrow_mut().cluster.withdraw(self.worker, view, exchange);
        if bytes > 0 {
            let who = self.worker;
            self.record(Record::Interrupted { who, view, exchange, bytes });
        }
    }

    pub fn can_lose_members(&self) -> bool {
        self.shared.borrow().cluster.can_lose_members()
    }

    pub fn fingerprint(&self, params: &Arc<Vector>) -> u64 {
        self.shared.borrow_mut().cluster.fingerprint(params)
    }

    fn submit(&self, action: Action) {
        self.shared.borrow_mut().cluster.submit(self.worker, action);
    }

    /// Submits an action whose answer will carry the ticket.
    fn ask(&self, action: impl FnOnce(Ticket) -> Action) -> Ticket {
        let mut shared = self.shared.borrow_mut();
        let ticket = Ticket(shared.next_serial());
        self.inbox.borrow_mut().open(ticket);
        shared.cluster.submit(self.worker, action(ticket));
        ticket
    }
}
