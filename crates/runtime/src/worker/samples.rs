//! Samples and gradients: where a worker's batches come from, and how they move its replica.

use std::sync::Arc;

use super::{Mine, Share, Total, Worker};
use crate::cluster::{Lease, Word};
use crate::executor::Wanted;
use crate::journal::Record;
use crate::spans::Spans;

/// How many base batches an open one is taken for before the first has ended.
const FIRST_EXPECTED_BATCHES: u64 = 4;

impl Worker {
    /// A gradient at the replica over the samples of `share`; `None` when no sample is free.
    pub async fn gradient(&mut self, share: Share) -> Option<Mine> {
        let is_leased = matches!(share, Share::Leased { .. });
        let spans = match share {
            Share::ByRank(shares) => {
                let mut dealt = self.state.agreed.ledger.deal(shares.iter().sum());
                self.state.dealt.add(&dealt);
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
        self.port.record(Record::Computed { who: self.id, since, samples });
        self.state.compute += self.now() - since;
        self.state.samples += samples;
        self.state.loss_sum += gradient.loss_sum;
        self.computed += samples;
        Some(Mine { gradient, spans, version: self.state.version, is_leased })
    }

    fn draw(&mut self, samples: u64) -> Spans {
        self.lane_batch = self.lane_batch.max(samples);
        let ledger = &mut self.state.agreed.ledger;
        if ledger.lane(self.id).is_none() {
            // Nobody knows yet how long a sum lasts; too much is better than to run dry.
            let samples_expected = FIRST_EXPECTED_BATCHES * samples;
            let expected: Vec<_> =
                self.view.members.iter().map(|who| (*who, samples_expected)).collect();
            ledger.fill_lanes(&expected);
        }
        let mut lane = ledger.lane(self.id).cloned().unwrap_or_default();
        lane.take(self.state.drawn);
        let spans = lane.take(samples);
        self.state.drawn += spans.len();
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

    /// Hands leased samples back unused.
    pub fn give_back(&mut self, spans: Spans) {
        self.port.tell(Word::Return { holder: self.id, spans });
    }

    /// Hands back what was leased ahead, once it is here.
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

    /// Steps along the mean gradient of everybody's samples, which are thereby applied.
    pub fn descend(&mut self, total: &Total) {
        let rate = self.rate();
        if total.sum.gradient.samples > 0 {
            let before = (self.state.params.clone(), self.state.optimizer.clone());
            let plan = self.plan.clone();
            let after = self.port.descend_once(before, &total.sum, rate, |params, state| {
                plan.optimizer.descended(params, state, &total.sum.gradient, rate, &plan.layout)
            });
            (self.state.params, self.state.optimizer) = after;
        }
        let staleness = self.state.version - total.version;
        self.updates += 1;
        self.state.version += 1;
        self.apply(total.spans.clone(), total.sum.gradient.loss_sum, staleness, rate);
    }

    /// Steps along a gradient of one's own, before any exchange. Leased samples are thereby applied;
    /// the others are when the replicas are averaged.
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
            // Never taken back, so the journal and the coordinator hear of it in the same step.
            let (who, version, spans) = (self.id, self.state.version, mine.spans.clone());
            let loss_sum = mine.gradient.loss_sum;
            self.port.tell(Word::Done { spans: spans.clone() });
            self.port.record(Record::Applied { who, version, spans, loss_sum, staleness, rate });
        }
    }

    /// Takes samples as part of the replica; the journal says so when the round is through.
    pub(super) fn apply(&mut self, spans: Spans, loss_sum: f64, staleness: u64, rate: f32) {
        self.state.agreed.ledger.finish(&spans);
        let (who, version) = (self.id, self.state.version);
        self.applied.push(Record::Applied { who, version, spans, loss_sum, staleness, rate });
    }
}
