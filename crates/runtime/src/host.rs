//! A host's line to its worker: what the worker asks comes out of it, and the host's answers go into it.
//!
//! It is here, and not in a cluster, because every cluster has hosts in the same way. The host's thread is started elsewhere;
//! the executor never calls a host, it waits for its answer.

use std::sync::mpsc::{self, Receiver, Sender};
use std::time::Duration;

use paceline_learn::Gradient;

use crate::edge::{Answer, Ask, News};
use crate::ids::{Ticket, WorkerId};
use crate::spans::Spans;

/// The host's end of the line. If it is dropped before the worker's life has ended, the worker is lost with its host.
pub struct HostLine {
    pub worker: WorkerId,
    asks: Receiver<(Ticket, Ask)>,
    reply: Reply,
    /// The question that is not answered yet.
    open: Option<Ticket>,
    ahead: Spans,
}

/// Where answers go; `None`: the host is gone.
pub type Reply = Box<dyn Fn(Option<News>) + Send>;

/// The cluster's end of the line. When it is dropped, the host is told that its worker's life has ended.
pub type HostAsks = Sender<(Ticket, Ask)>;

impl HostLine {
    pub fn new(worker: WorkerId, reply: Reply) -> (HostAsks, HostLine) {
        let (sender, asks) = mpsc::channel();
        (sender, HostLine { worker, asks, reply, open: None, ahead: Spans::new() })
    }

    /// Waits for the next question; `None` when the worker's life has ended. Every question is answered before the next one
    /// comes.
    #[expect(clippy::should_implement_trait, reason = "it waits, and each item must be answered")]
    pub fn next(&mut self) -> Option<Ask> {
        let (ticket, ask) = self.asks.recv().ok()?;
        self.open = Some(ticket);
        if let Ask::Compute { ahead, .. } = &ask {
            self.ahead = ahead.clone();
        }
        Some(ask)
    }

    /// Answers [`Ask::Compute`]. `took`: how long the host computed, without waiting for its data.
    pub fn computed(&mut self, gradient: Gradient, took: Duration) {
        let ticket = self.ticket();
        (self.reply)(Some(News::Computed { ticket, gradient, took: Some(took) }));
    }

    /// Answers any other question.
    pub fn done(&mut self, answer: Answer) {
        let ticket = self.ticket();
        (self.reply)(Some(News::Hosted { ticket, answer }));
    }

    /// The positions that this worker will probably compute next, after the last [`Ask::Compute`], at most so many; for
    /// reading data ahead. Empty if they are not known yet. It never waits.
    pub fn peek(&self, samples: u64) -> Spans {
        self.ahead.clone().take(samples)
    }

    fn ticket(&mut self) -> Ticket {
        self.open.take().expect("a host answers each question once")
    }
}

impl Drop for HostLine {
    fn drop(&mut self) {
        (self.reply)(None);
    }
}
