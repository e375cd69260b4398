//! A host's line to its worker: what the worker asks comes out of it, and the host's answers go into it.
//!
//! It is here, and not in a cluster, because every cluster has hosts in the same way. The host's thread is started elsewhere;
//! the executor never calls a host, it waits for its answer.

use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::Duration;

use paceline_learn::kernels::Pool;
use paceline_learn::{Gradient, Vector};

use crate::edge::{Answer, Ask, GradientMemory, News};
use crate::ids::{Ticket, WorkerId};
use crate::spans::Spans;

/// The host's end of the line. If it is dropped before the worker's life has ended, the worker is lost with its host.
pub struct HostLine {
    pub worker: WorkerId,
    messages: Receiver<ToHost>,
    reply: Reply,
    /// A question that `peek` has found.
    found: Option<(Ticket, Ask)>,
    /// The question that is not answered yet.
    open: Option<Ticket>,
    ahead: Spans,
    /// Where gradients are made, if peers of the same host can read them there.
    memory: Option<GradientMemory>,
    pool: Pool,
}

/// Where answers go; `None`: the host is gone.
pub type Reply = Box<dyn Fn(Option<News>) + Send>;

/// The cluster's end of the line. When it is dropped, the host is told that its worker's life has ended.
pub type HostAsks = Sender<ToHost>;

/// What a cluster puts into the line.
#[derive(Debug)]
pub enum ToHost {
    Asked(Ticket, Ask),
    /// What this worker will probably compute after the last [`Ask::Compute`]: it was not known then. Nothing is answered.
    Ahead(Spans),
}

/// What came of waiting for a question.
#[derive(Debug)]
pub enum Waited {
    Asked(Ask),
    /// Nothing was asked in that time.
    Nothing,
    /// The worker's life has ended.
    Ended,
}

impl HostLine {
    pub fn new(worker: WorkerId, reply: Reply) -> (HostAsks, HostLine) {
        let (sender, messages) = mpsc::channel();
        let (found, open, ahead) = (None, None, Spans::new());
        let (memory, pool) = (None, Pool::default());
        (sender, HostLine { worker, messages, reply, found, open, ahead, memory, pool })
    }

    /// Makes gradients in this memory, as long as there is some left.
    pub fn with_memory(mut self, memory: Option<GradientMemory>) -> HostLine {
        self.memory = memory;
        self
    }

    /// Memory for a gradient of this length. What its numbers are is not said.
    pub fn room(&self, len: usize) -> Vector {
        let shared = self.memory.as_ref().and_then(|memory| memory(len));
        shared.unwrap_or_else(|| Vector::pooled(&self.pool, len))
    }

    /// Waits for the next question; `None` when the worker's life has ended. Every question is answered before the next one
    /// comes.
    #[expect(clippy::should_implement_trait, reason = "it waits, and each item must be answered")]
    pub fn next(&mut self) -> Option<Ask> {
        loop {
            match self.next_within(Duration::MAX) {
                Waited::Asked(ask) => return Some(ask),
                Waited::Ended => return None,
                Waited::Nothing => {}
            }
        }
    }

    /// As [`next`](Self::next), but waits at most for this time: for hosts that must look at something else now and then.
    pub fn next_within(&mut self, time: Duration) -> Waited {
        let (ticket, ask) = loop {
            match self.found.take() {
                Some(question) => break question,
                None => match self.messages.recv_timeout(time) {
                    Ok(message) => self.take(message),
                    Err(RecvTimeoutError::Timeout) => return Waited::Nothing,
                    Err(RecvTimeoutError::Disconnected) => return Waited::Ended,
                },
            }
        };
        self.open = Some(ticket);
        if let Ask::Compute { ahead, .. } = &ask {
            self.ahead = ahead.clone();
        }
        Waited::Asked(ask)
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

    /// Returns at most `samples` positions that this worker will probably compute after the last [`Ask::Compute`]; for
    /// reading data ahead. Empty if they are not known yet: samples that are leased become known while the host computes. It
    /// never waits.
    pub fn peek(&mut self, samples: u64) -> Spans {
        while self.found.is_none()
            && let Ok(message) = self.messages.try_recv()
        {
            self.take(message);
        }
        self.ahead.clone().take(samples)
    }

    fn take(&mut self, message: ToHost) {
        match message {
            ToHost::Asked(ticket, ask) => self.found = Some((ticket, ask)),
            ToHost::Ahead(ahead) => self.ahead = ahead,
        }
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
