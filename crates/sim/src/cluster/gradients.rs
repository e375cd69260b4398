//! Gradients: how long they take, and who computes them.

use paceline_runtime::edge::{Ask, News, Place};
use paceline_runtime::{Spans, Ticket, WorkerId};

use super::SimCluster;
use super::queue::Scheduled;
use crate::hosts::Hosts;
use crate::pool::Computing;

impl SimCluster {
    pub(super) fn compute(
        &mut self,
        who: WorkerId,
        ticket: Ticket,
        at: Place,
        spans: Spans,
        updates: u32,
    ) {
        while let Some((sample, workers)) = self.sizes.front().copied()
            && spans.intervals().last().is_some_and(|(_, end)| *end > sample)
        {
            self.sizes.pop_front();
            self.at(self.now, Scheduled::Size { workers });
        }
        let size = match &at {
            Place::Ours(params) => params.len(),
            Place::Theirs { size, .. } => *size,
        };
        let encoded = self.encoded.remove(&who).unwrap_or(0);
        let cost = self.speed.cost(who, self.now, spans.len(), (updates, size), encoded);
        let computing = match at {
            Place::Ours(params) => Some(self.pool.start(params, spans)),
            Place::Theirs { ahead, moment, .. } => {
                self.hosts().ask(who, ticket, Ask::Compute { spans, ahead, moment });
                None
            }
        };
        self.at(self.now + cost, Scheduled::Computed { who, ticket, computing });
    }

    /// How long a host took is virtual, as for all gradients.
    pub(super) fn computed(&mut self, who: WorkerId, ticket: Ticket, computing: Option<Computing>) {
        let gradient = match computing {
            Some(computing) => Some(computing.finish()),
            None => match self.hosts().answer(who) {
                Some(News::Computed { gradient, .. }) => Some(gradient),
                _ => None,
            },
        };
        match gradient {
            Some(gradient) => self.tell(who, News::Computed { ticket, gradient, took: None }),
            // A worker is lost with its host.
            None => self.crash(who),
        }
    }

    pub(super) fn hosts(&self) -> &Hosts {
        self.hosts.as_ref().expect("workers whose replicas are with hosts have hosts")
    }
}
