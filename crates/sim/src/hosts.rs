//! Hosts of simulated workers: they hold replicas and compute gradients on their own threads, in no virtual time.

use std::collections::BTreeMap;
use std::sync::mpsc::{self, Receiver};

use paceline_runtime::edge::{Ask, News};
use paceline_runtime::host::{HostAsks, ToHost};
use paceline_runtime::{HostLine, Spans, Ticket, WorkerId};

/// Gives a worker that starts its host.
pub type StartHost = Box<dyn FnMut(HostLine)>;

pub struct Hosts {
    start: StartHost,
    ends: BTreeMap<WorkerId, End>,
}

/// The cluster's end of a line.
struct End {
    asks: HostAsks,
    answers: Receiver<Option<News>>,
}

impl Hosts {
    pub fn new(start: StartHost) -> Hosts {
        Hosts { start, ends: BTreeMap::new() }
    }

    pub fn open(&mut self, who: WorkerId) {
        let (reply, answers) = mpsc::channel();
        // An answer that nobody waits for any more is dropped.
        let reply = Box::new(move |news| drop(reply.send(news)));
        let (asks, line) = HostLine::new(who, reply);
        self.ends.insert(who, End { asks, answers });
        (self.start)(line);
    }

    /// A worker's life has ended; so does its host.
    pub fn close(&mut self, who: WorkerId) {
        self.ends.remove(&who);
    }

    pub fn ask(&self, who: WorkerId, ticket: Ticket, ask: Ask) {
        if let Some(end) = self.ends.get(&who) {
            // A host that is gone says so with its last answer.
            drop(end.asks.send(ToHost::Asked(ticket, ask)));
        }
    }

    pub fn show(&self, who: WorkerId, ahead: Spans) {
        if let Some(end) = self.ends.get(&who) {
            drop(end.asks.send(ToHost::Ahead(ahead)));
        }
    }

    /// Waits for the answer to the last question; `None` if the host is gone.
    pub fn answer(&self, who: WorkerId) -> Option<News> {
        self.ends.get(&who)?.answers.recv().ok().flatten()
    }
}
