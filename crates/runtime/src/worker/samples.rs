//! Samples and gradients: where a worker's batches come from, and how they move its replica.

use std::sync::Arc;

use super::{Mine, Share, Total, Worker};
use crate::coordination::{Lease, Word};
use crate::edge::Replica;
use crate::executor::Wanted;
use crate::journal::Record;
use crate::spans::Spans;

/// A first guess of the base batches in an open batch, until one has been measured.
const FIRST_EXPECTED_BATCHES: u64 = 4;

impl Worker {
    /// The gradient at the replica over the samples of `share`; `None` if no sample is free.
    pub async fn gradient(&mut self, share: Share) -> Option<Mine> {
        let is_leased = matches!(share, Share::Leased { .. });
        let spans = match share {
            Share::ByRank(shares) => {
                let mut dealt = self.state.agreed.ledger.deal(shares.iter().sum());
                self.state.private.dealt.add(&dealt);
                self.deals += 1;
                let rank = self.rank();
                dealt.take(shares[..rank].iter().sum());
                dealt.take(shares[rank])
            }
            Share::Lane(samples) => self.draw(samples),
            Share::Leased { samples, ahead } => self.leased(samples, ahead).await,
        };
        if spans.is_empty() {
            return None;
        }
        let since = self.now();
        let updates = std::mem::take(&mut self.updates);
        let ticket = self.port.compute(self.state.params.clone(), spans.clone(), updates);
        let gradient = self.port.until(Wanted::Gradient, |inbox| inbox.gradient(ticket)).await;
        let samples = spans.len();
        let (who, round) = (self.id, Some(self.state.round));
        self.port.record(Record::Computed { who, since, samples, round });
        let took = self.now() - since;
        let private = &mut self.state.private;
        private.compute += took;
        private.samples += samples;
        private.loss_sum += gradient.loss_sum;
        self.computed += samples;
        Some(Mine { gradient, spans, version: self.state.version, is_leased })
    }

    fn draw(&mut self, samples: u64) -> Spans {
        let ledger = &mut self.state.agreed.ledger;
        if ledger.lane(self.id).is_none() {
            // How long a sum takes is not known yet; a lane that is too long is better than one that runs dry.
            let each = FIRST_EXPECTED_BATCHES * self.lane_batch;
            let expected: Vec<_> = self.view.members.iter().map(|who| (*who, each)).collect();
            ledger.fill_lanes(&expected);
        }
        let mut lane = ledger.lane(self.id).cloned().unwrap_or_default();
        lane.take(self.state.private.drawn);
        let spans = lane.take(samples);
        self.state.private.drawn += spans.len();
        spans
    }

    async fn leased(&mut self, samples: u64, ahead: bool) -> Spans {
        let port = self.port.clone();
        let ticket = self.lease.take().unwrap_or_else(|| port.lease(samples));
        let lease = port
            .until(Wanted::Lease, |inbox| inbox.lease(ticket).or(inbox.over.then_some(Lease::Over)))
            .await;
        match lease {
            Lease::Yours { spans, count } => {
                self.clock = count;
                if ahead {
                    self.lease = Some(self.port.lease(samples));
                }
                spans
            }
            Lease::Over => {
                self.out_of_samples = true;
                Spans::new()
            }
        }
    }

    /// Returns leased samples that will not be used.
    pub fn give_back(&mut self, spans: Spans) {
        self.port.tell(Word::Return { holder: self.id, spans });
    }

    /// Returns the samples that were leased ahead, as soon as they arrive.
    pub(crate) async fn give_back_lease(&mut self) {
        let Some(ticket) = self.lease.take() else { return };
        let leased = self
            .port
            .until(Wanted::Lease, |inbox| {
                inbox.lease(ticket).map(Some).or(inbox.over.then_some(None))
            })
            .await;
        if let Some(Lease::Yours { spans, .. }) = leased {
            self.give_back(spans);
        }
    }

    /// Steps along the mean gradient over the samples of all members, which are thereby applied.
    pub fn descend(&mut self, total: &Total) {
        let rate = self.rate();
        if total.sum.gradient.samples > 0 {
            let before = (self.state.params.clone(), self.state.optimizer.clone());
            let plan = self.plan.clone();
            let step = |(params, state): &Replica| -> Replica {
                let gradient = &total.sum.gradient;
                let (params, state) =
                    plan.optimizer.descended(params, state, gradient, rate, &plan.layout);
                (Arc::new(params), Arc::new(state))
            };
            let after = self.port.descend(before, &total.sum, rate, &step);
            (self.state.params, self.state.optimizer) = after;
        }
        let staleness = self.state.version - total.version;
        self.updates += 1;
        self.state.version += 1;
        self.apply(total.spans.clone(), total.sum.gradient.loss_sum, staleness, rate);
    }

    /// Steps along this worker's own gradient, before any exchange. Leased samples are thereby applied;
    /// others are when the replicas are averaged.
    pub fn descend_alone(&mut self, mine: &Mine) {
        let rate = self.rate();
        let plan = self.plan.clone();
        let params = Arc::make_mut(&mut self.state.params);
        let optimizer = Arc::make_mut(&mut self.state.optimizer);
        plan.optimizer.descend(params, optimizer, &mine.gradient, rate, &plan.layout);
        let staleness = self.state.version - mine.version;
        self.updates += 1;
        self.state.version += 1;
        if mine.is_leased {
            // This is never undone, so journal and coordinator are told in the same step.
            let (who, version, spans) = (self.id, self.state.version, mine.spans.clone());
            let (loss_sum, round) = (mine.gradient.loss_sum, Some(self.state.round));
            let done = Word::Done { spans: spans.clone() };
            let applied = Record::Applied { who, version, spans, loss_sum, staleness, rate, round };
            self.port.record(applied);
            self.port.tell(done);
        }
    }

    /// Marks samples as applied; the journal says so when the round is committed.
    pub(super) fn apply(&mut self, spans: Spans, loss_sum: f64, staleness: u64, rate: f32) {
        self.state.agreed.ledger.finish(&spans);
        let (who, version, round) = (self.id, self.state.version, Some(self.state.round));
        let applied = Record::Applied { who, version, spans, loss_sum, staleness, rate, round };
        self.applied.push(applied);
    }
}
