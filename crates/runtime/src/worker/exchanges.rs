//! Exchanges among all members: sums, averages, and how they end when a member is lost.

use std::sync::Arc;
use std::time::Duration;

use paceline_learn::rescale::Parts;
use paceline_learn::vector::{add, add_scaled, norm_squared, scale};
use paceline_learn::{Rescale, Vector};

use super::{Average, ENCODING, Mine, PendingSum, Total, Worker};
use crate::cluster::{Entry, ExchangeResult, Standing, Sum, Tail, Ticket, View, WorkerId};
use crate::codec::Payload;
use crate::executor::{Interrupt, Result, Wanted};
use crate::journal::Record;
use crate::spans::Spans;

impl Worker {
    /// The gradient over everybody's samples.
    pub async fn sum(&mut self, mine: Option<Mine>) -> Result<Total> {
        self.start_sum(mine);
        Ok(self.finish_sum().await?.expect("a sum was started"))
    }

    /// As [`sum`](Self::sum), but under way while the worker does something else.
    pub fn start_sum(&mut self, mine: Option<Mine>) {
        assert!(self.state.summing.is_none(), "one sum at a time");
        let version = mine.as_ref().map_or(self.state.version, |mine| mine.version);
        let vector = mine.map(|mine| mine.gradient.sum).unwrap_or_default();
        let number = match self.plan.rescale {
            Rescale::Adascale if self.state.samples > 0 => {
                norm_squared(self.learned(&vector)) / (self.state.samples as f64).powi(2)
            }
            _ => 0.0,
        };
        let payload = self.encode(vector);
        self.state.summing = Some(self.enter(payload, version, number));
    }

    /// Whether a sum is under way that has not ended yet.
    pub fn is_summing(&self) -> bool {
        let Some(summing) = &self.state.summing else { return false };
        if let Some(replay) = &self.plan.replay {
            let recorded = replay.entries.get(&(self.id, self.state.round));
            return recorded.is_some_and(|(samples, _)| self.state.samples < *samples);
        }
        !self.port.look(|inbox| inbox.known_outcome(summing.ticket).is_some())
    }

    /// Waits for the sum under way; `None` if there is none.
    pub async fn finish_sum(&mut self) -> Result<Option<Total>> {
        let Some(summing) = self.state.summing.clone() else { return Ok(None) };
        let sum = self.outcome(&summing).await?;
        self.state.summing = None;
        let version = sum.version;
        let lanes = self.state.agreed.ledger.has_lanes();
        let spans = if lanes { self.advance_lanes(&sum) } else { summing.dealt };
        if self.plan.rescale == Rescale::Adascale && sum.gradient.samples > 0 {
            let n = sum.tails.len() as f64;
            self.state.agreed.rescaler.observe(&Parts {
                members: sum.tails.len() as u64,
                mean_of_squares: sum.tails.iter().map(|tail| tail.number).sum::<f64>() / n,
                square_of_mean: norm_squared(self.learned(&sum.gradient.sum))
                    / (sum.gradient.samples as f64).powi(2),
            });
        }
        Ok(Some(Total { sum, spans, version }))
    }

    /// The part of a gradient that is one; statistics of buffers follow it.
    fn learned<'a>(&self, gradient: &'a [f32]) -> &'a [f32] {
        &gradient[..gradient.len().min(self.plan.layout.params)]
    }

    fn advance_lanes(&mut self, sum: &Sum) -> Spans {
        let members = self.view.members.iter().copied();
        let counts: Vec<_> = members.zip(sum.tails.iter().map(|tail| tail.samples)).collect();
        let ledger = &mut self.state.agreed.ledger;
        let spans = ledger.advance_lanes(&counts);
        // What a round took is what the next one is expected to take.
        let base = self.lane_batch;
        let expected: Vec<_> = counts.iter().map(|(who, count)| (*who, base.max(*count))).collect();
        ledger.fill_lanes(&expected);
        self.state.drawn -= sum.tails[self.rank()].samples;
        spans
    }

    /// The mean of the members' replicas, weighted; whatever they learned alone is thereby applied.
    ///
    /// Lossy codecs encode the difference from the anchor, which all members have.
    pub async fn average(&mut self, weight: f64) -> Result<Average> {
        let lossy = self.plan.codec.is_lossy();
        let mut vector = (*self.state.params).clone();
        if lossy {
            add_scaled(&mut vector, -1.0, &self.state.anchor);
        }
        if weight != 1.0 {
            scale(&mut vector, weight as f32);
        }
        let payload = self.encode(vector);
        let averaging = self.enter(payload, self.state.version, weight);
        let sum = self.outcome(&averaging).await?;
        let weights: f64 = sum.tails.iter().map(|tail| tail.number).sum();
        let mean = sum.mean.get_or_init(|| {
            let mut mean = sum.gradient.sum.clone();
            scale(&mut mean, 1.0 / weights as f32);
            Arc::new(mean)
        });
        let mean = if lossy {
            let mut moved = (*self.state.anchor).clone();
            add(&mut moved, mean);
            Arc::new(moved)
        } else {
            mean.clone()
        };
        let rate = self.rate();
        self.apply(averaging.dealt, sum.gradient.loss_sum, 0, rate);
        Ok(Average { mean, sum })
    }

    /// The mean of a number over the members.
    pub async fn mean_of(&mut self, number: f64) -> Result<f64> {
        let exchange = self.enter(Payload::Dense(Vector::new()), self.state.version, number);
        let sum = self.outcome(&exchange).await?;
        if let Some(replay) = &self.plan.replay
            && let Some(recorded) = replay.means.get(&self.state.round)
        {
            return Ok(*recorded);
        }
        Ok(sum.tails.iter().map(|tail| tail.number).sum::<f64>() / sum.tails.len() as f64)
    }

    pub(crate) async fn gather(&mut self, standing: Standing) -> Result<Arc<Vec<Standing>>> {
        let entry = Entry::Gather { standing };
        let bytes = self.bytes_of(&entry);
        let (view, number, entered) = (self.view.clone(), self.next_exchange(), self.now());
        let ticket = self.port.exchange(view.clone(), number, entry);
        let outcome = self.wait_for(ticket, &view, number).await?;
        let blocked = entered;
        let (who, view, exchange) = (self.id, view.number, number);
        self.port.record(Record::Exchanged { who, view, exchange, entered, blocked, bytes });
        match outcome {
            ExchangeResult::Gathered(all) => Ok(all),
            ExchangeResult::Summed(_) => unreachable!("members enter the same kind of exchange"),
        }
    }

    pub(super) fn encode(&mut self, vector: Vector) -> Payload {
        if vector.is_empty() {
            // Nothing to add, said in the form of those who have something.
            let mut nothing = Vector::new();
            return self.plan.codec.encode(vector, &mut nothing, &mut self.dice(ENCODING));
        }
        let mut dice = self.dice(ENCODING);
        let residual = Arc::make_mut(&mut self.state.residual);
        self.plan.codec.encode(vector, residual, &mut dice)
    }

    fn enter(&mut self, payload: Payload, version: u64, number: f64) -> PendingSum {
        let (samples, round) = (self.state.samples, self.state.round);
        let mut compute = std::mem::take(&mut self.state.compute);
        if let Some(replay) = &self.plan.replay
            && let Some((_, recorded)) = replay.entries.get(&(self.id, round))
        {
            compute = *recorded;
        }
        let (view, stop, wished) = self.port.look(|inbox| {
            let newest = inbox.view.as_ref().map_or(0, |view| view.number);
            (newest, inbox.stop_wished, inbox.save_wished)
        });
        // One voice is enough; several, heard at different times, would ask twice.
        let save = wished > self.wish_heeded && self.rank() == 0;
        if save {
            self.wish_heeded = wished;
        }
        let loss_sum = std::mem::take(&mut self.state.loss_sum);
        self.state.samples = 0;
        let tail = Tail { view, samples, loss_sum, version, compute, number, stop, save };
        let entry = Entry::Sum { payload, tail };
        let bytes = self.bytes_of(&entry);
        let exchange = self.next_exchange();
        let (who, view) = (self.id, self.view.number);
        if samples > 0 {
            self.port.record(Record::Entered { who, view, exchange, round, samples, compute });
        }
        PendingSum {
            ticket: self.port.exchange(self.view.clone(), exchange, entry),
            view: self.view.clone(),
            number: exchange,
            entered: self.now(),
            bytes,
            dealt: std::mem::take(&mut self.state.dealt),
            samples,
        }
    }

    async fn outcome(&mut self, summing: &PendingSum) -> Result<Arc<Sum>> {
        let blocked = self.now();
        let outcome = self.wait_for(summing.ticket, &summing.view, summing.number).await?;
        self.port.record(Record::Exchanged {
            who: self.id,
            view: summing.view.number,
            exchange: summing.number,
            entered: summing.entered,
            blocked,
            bytes: summing.bytes,
        });
        let ExchangeResult::Summed(sum) = outcome else {
            unreachable!("members enter the same kind of exchange")
        };
        self.heard = self.heard.max(sum.newest_view);
        self.state.agreed.stopped |= sum.stop;
        self.save_agreed |= sum.save;
        Ok(sum)
    }

    async fn wait_for(&self, ticket: Ticket, view: &View, number: u64) -> Result<ExchangeResult> {
        let wanted = Wanted::Exchange { view: view.number, number };
        self.port
            .until(wanted, |inbox| {
                let lost = inbox.has_lost_one_of(view) || inbox.over;
                inbox.outcome(ticket).map(Ok).or(lost.then_some(Err(Interrupt::ViewChanged)))
            })
            .await
    }

    fn next_exchange(&mut self) -> u64 {
        self.exchanges += 1;
        self.exchanges
    }

    fn bytes_of(&self, entry: &Entry) -> u64 {
        let steps = entry.steps(self.view.members.len());
        u64::from(steps.count) * steps.bytes
    }

    /// How long each member computed for the last exchange, and over how many samples, by rank.
    pub fn efforts<'a>(
        &'a self,
        total: &'a Sum,
    ) -> impl Iterator<Item = (WorkerId, u64, Duration)> + 'a {
        let members = self.view.members.iter();
        members.zip(&total.tails).map(|(who, tail)| (*who, tail.samples, tail.compute))
    }
}
