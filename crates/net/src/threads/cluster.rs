//! What one worker's executor runs against.

use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::Duration;

use paceline_runtime::coordination::{Input, Word};
use paceline_runtime::edge::{
    Action, Answer, Ask, Cluster, ClusterOutput, Event, News, published, some_evenly,
};
use paceline_runtime::wire::Shelf;
use paceline_runtime::{Spans, Ticket, WorkerId};

use super::{Life, Read, ThreadHub};
use crate::gradients::Computing;
use crate::inbox::Inbox;

/// What one worker sees of the cluster.
pub struct ThreadCluster {
    pub(super) me: WorkerId,
    pub(super) hub: Arc<ThreadHub>,
    pub(super) inbox: Inbox,
    pub(super) computing: Computing,
    pub(super) outputs: Sender<ClusterOutput>,
    pub(super) life: Arc<Life>,
    pub(super) ended: bool,
}

impl ThreadCluster {
    /// The id that the coordinator has given this worker.
    pub fn id(&self) -> WorkerId {
        self.me
    }

    pub fn life(&self) -> Arc<Life> {
        self.life.clone()
    }
}

impl Cluster for ThreadCluster {
    fn now(&self) -> Duration {
        self.hub.now()
    }

    fn submit(&mut self, by: WorkerId, action: Action) {
        if !self.life.is_running() {
            return;
        }
        match action {
            Action::Compute { ticket, at, spans, .. } => {
                self.computing.compute(ticket, at, spans);
            }
            Action::Exchange { ticket, view, number, entry } => {
                self.hub.meet(by, (view, number), (ticket, entry));
            }
            Action::Send { to, letter } => {
                self.hub.state().tell(to, News::Letter { from: by, letter });
            }
            Action::Publish { shelf, value } => self.hub.publish(by, shelf, value),
            Action::Read { ticket, from, shelf, extent, waits } => {
                self.hub.read(Read { by, from, shelf, extent, ticket }, waits);
            }
            Action::Evaluate { samples, ends_epoch, of, shelf } => {
                let replicas = published(&self.hub.shelves(), &some_evenly(&of), shelf);
                let (at, parts) = (self.now(), 1);
                self.emit(ClusterOutput::Evaluate { by, at, samples, ends_epoch, parts, replicas });
            }
            Action::EvaluatePart { samples, with } => {
                let replicas = published(&self.hub.shelves(), &[by], Shelf::Replica);
                let (at, parts, ends_epoch) = (self.now(), with.len(), false);
                self.emit(ClusterOutput::Evaluate { by, at, samples, ends_epoch, parts, replicas });
            }
            Action::Save { part, done } => self.hub.hand_in(by, *part, done),
            Action::Tell(word) => {
                let is_gone = word == Word::Gone;
                self.ended |= is_gone;
                self.hub.coordinate(Input::Word { from: by, number: 0, word });
                if is_gone && !self.hub.state().coordinator.is_over() {
                    self.hub.forget(by);
                }
            }
        }
    }

    fn ask_host(&mut self, _: WorkerId, ticket: Ticket, ask: Ask) -> Option<Answer> {
        if self.life.is_running() {
            self.computing.ask(ticket, ask);
        }
        None
    }

    fn show_host(&mut self, _: WorkerId, ahead: Spans) {
        self.computing.show(ahead);
    }

    fn next(&mut self) -> Option<Event> {
        // Without the thread of its gradients nothing more can happen to a worker, nor when it was killed.
        let event = self.inbox.wait().filter(|event| !matches!(event, Event::Crashed { .. }));
        event.filter(|_| self.life.is_running())
    }

    fn is_over(&self) -> bool {
        self.ended
    }

    /// What a worker did is in the journal before anything that its words cause.
    fn emit(&mut self, output: ClusterOutput) {
        drop(self.outputs.send(output));
    }
}

impl Drop for ThreadCluster {
    fn drop(&mut self) {
        // A worker that ends without saying so is lost, and the others must be told.
        if !self.ended {
            self.hub.lost(self.me);
        }
    }
}
