//! Exchanges among all members: sums, averages, and how they end when a member is lost.

use std::sync::Arc;
use std::time::Duration;

use paceline_learn::rescale::Parts;
use paceline_learn::vector::{add, add_scaled, norm_squared, scale};
use paceline_learn::{Rescale, Vector};

use super::{Average, ENCODING, Mine, Total, Worker};
use crate::codec::Payload;
use crate::exchange::Sum;
use crate::executor::{Interrupt, Wanted};
use crate::ids::WorkerId;
use crate::journal::Record;
use crate::private::{PendingSum, Progress};
use crate::spans::Spans;
use crate::wire::{Entry, Extra, Standing, Tail};

impl Worker {
    /// The gradient over the samples of all members.
    pub async fn sum(&mut self, mine: Option<Mine>) -> Result<Total, Interrupt> {
        self.start_sum(mine);
        Ok(self.finish_sum().await?.expect("a sum was started"))
    }

    /// Starts a sum that is under way while the worker does something else.
    pub fn start_sum(&mut self, mine: Option<Mine>) {
        assert!(self.state.private.pending.is_none(), "one sum at a time");
        let version = mine.as_ref().map_or(self.state.version, |mine| mine.version);
        let vector = mine.map(|mine| mine.gradient.sum).unwrap_or_default();
        let samples = self.state.private.samples;
        let extra = match self.plan.rescale {
            Rescale::Adascale if samples > 0 => Extra::GradientSquare(
                norm_squared(self.learned(&vector)) / (samples as f64).powi(2),
            ),
            _ => Extra::None,
        };
        let payload = self.encode(vector);
        self.state.private.pending = Some(self.enter(payload, version, extra));
    }

    /// Whether a sum is under way that has not ended yet.
    pub fn is_summing(&self) -> bool {
        let Some(pending) = &self.state.private.pending else { return false };
        if let Some(replay) = &self.plan.replay {
            let recorded = replay.entries.get(&(self.id, self.state.round));
            return recorded.is_some_and(|(samples, _)| self.state.private.samples < *samples);
        }
        match pending.progress {
            Progress::Underway { ticket, .. } => {
                !self.port.look(|inbox| inbox.known_sum(ticket).is_some())
            }
            Progress::Finished(_) => false,
        }
    }

    /// Waits for the sum under way; `None` if there is none.
    pub async fn finish_sum(&mut self) -> Result<Option<Total>, Interrupt> {
        let Some(pending) = self.state.private.pending.clone() else { return Ok(None) };
        let sum = self.result_of(&pending).await?;
        self.state.private.pending = None;
        let version = sum.version;
        let lanes = self.state.agreed.ledger.has_lanes();
        let spans = if lanes { self.advance_lanes(&sum) } else { pending.dealt };
        if self.plan.rescale == Rescale::Adascale && sum.gradient.samples > 0 {
            let n = sum.tails.len() as f64;
            self.state.agreed.rescaler.observe(&Parts {
                members: sum.tails.len() as u64,
                mean_of_squares: sum.tails.iter().map(|tail| tail.extra.number()).sum::<f64>() / n,
                square_of_mean: norm_squared(self.learned(&sum.gradient.sum))
                    / (sum.gradient.samples as f64).powi(2),
            });
        }
        Ok(Some(Total { sum, spans, version }))
    }

    /// The gradient of the learned parameters; statistics of buffers follow it.
    fn learned<'a>(&self, gradient: &'a [f32]) -> &'a [f32] {
        &gradient[..gradient.len().min(self.plan.layout.params)]
    }

    fn advance_lanes(&mut self, sum: &Sum) -> Spans {
        let members = self.view.members.iter().copied();
        let counts: Vec<_> = members.zip(sum.tails.iter().map(|tail| tail.samples)).collect();
        let ledger = &mut self.state.agreed.ledger;
        let spans = ledger.advance_lanes(&counts);
        // The next round is expected to take what this one took. Only agreed numbers may be used here,
        // because all members must change the ledger alike.
        let base = self.lane_batch;
        let expected: Vec<_> = counts.iter().map(|(who, count)| (*who, base.max(*count))).collect();
        ledger.fill_lanes(&expected);
        self.state.private.drawn -= sum.tails[self.rank()].samples;
        spans
    }

    /// The weighted mean of the members' replicas. Samples that members learned from alone are thereby applied.
    ///
    /// Lossy codecs encode the difference from the anchor, which all members have.
    pub async fn average(&mut self, weight: f64) -> Result<Average, Interrupt> {
        let lossy = self.plan.codec.is_lossy();
        let mut vector = (*self.state.params).clone();
        if lossy {
            add_scaled(&mut vector, -1.0, &self.state.anchor);
        }
        if weight != 1.0 {
            scale(&mut vector, weight as f32);
        }
        let payload = self.encode(vector);
        let pending = self.enter(payload, self.state.version, Extra::Weight(weight));
        let sum = self.result_of(&pending).await?;
        let weights: f64 = sum.tails.iter().map(|tail| tail.extra.number()).sum();
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
        self.apply(pending.dealt, sum.gradient.loss_sum, 0, rate);
        Ok(Average { mean, sum })
    }

    /// The mean of a number over the members.
    pub async fn mean_of(&mut self, number: f64) -> Result<f64, Interrupt> {
        let nothing = Payload::Dense(Vector::new());
        let pending = self.enter(nothing, self.state.version, Extra::Value(number));
        let sum = self.result_of(&pending).await?;
        if let Some(replay) = &self.plan.replay
            && let Some(recorded) = replay.means.get(&self.state.round)
        {
            return Ok(*recorded);
        }
        Ok(sum.tails.iter().map(|tail| tail.extra.number()).sum::<f64>() / sum.tails.len() as f64)
    }

    pub(crate) async fn gather(
        &mut self,
        standing: Standing,
    ) -> Result<Arc<Vec<Standing>>, Interrupt> {
        let entry = Entry::Gather { standing };
        let bytes = self.bytes_of(&entry);
        let (view, number, entered) = (self.view.clone(), self.next_exchange(), self.now());
        let ticket = self.port.exchange(view.clone(), number, entry);
        let wanted = Wanted::Exchange { view: view.number, number };
        let standings = self
            .port
            .until(wanted, |inbox| {
                if let Some(standings) = inbox.gathered(ticket) {
                    return Some(Ok(standings));
                }
                (inbox.has_lost_one_of(&view) || inbox.over).then(|| {
                    inbox.abandon(ticket);
                    Err(Interrupt::ViewChanged)
                })
            })
            .await?;
        let blocked = entered;
        let (who, view, exchange) = (self.id, view.number, number);
        self.port.record(Record::Exchanged { who, view, exchange, entered, blocked, bytes });
        Ok(standings)
    }

    pub(super) fn encode(&mut self, vector: Vector) -> Payload {
        let mut dice = self.dice(ENCODING);
        if vector.is_empty() {
            // A member without samples sends an empty payload of the same kind as the others.
            return self.plan.codec.encode(vector, &mut Vector::new(), &mut dice);
        }
        let residual = Arc::make_mut(&mut self.state.private.residual);
        self.plan.codec.encode(vector, residual, &mut dice)
    }

    fn enter(&mut self, payload: Payload, version: u64, extra: Extra) -> PendingSum {
        let (samples, round) = (self.state.private.samples, self.state.round);
        let mut compute = std::mem::take(&mut self.state.private.compute);
        if let Some(replay) = &self.plan.replay
            && let Some((_, recorded)) = replay.entries.get(&(self.id, round))
        {
            compute = *recorded;
        }
        let (newest_view, stop, save_ordered) = self.port.look(|inbox| {
            let newest = inbox.view.as_ref().map_or(0, |view| view.number);
            (newest, inbox.stop_ordered, inbox.save_ordered)
        });
        // Only rank 0 passes the request on; members that receive it in different rounds would trigger two snapshots.
        let save = save_ordered > self.save_served && self.rank() == 0;
        if save {
            self.save_served = save_ordered;
        }
        let loss_sum = std::mem::take(&mut self.state.private.loss_sum);
        self.state.private.samples = 0;
        let tail = Tail { newest_view, samples, loss_sum, version, compute, extra, stop, save };
        let entry = Entry::Sum { payload, tail };
        let bytes = self.bytes_of(&entry);
        let number = self.next_exchange();
        let (who, view, exchange) = (self.id, self.view.number, number);
        if samples > 0 {
            self.port.record(Record::Entered { who, view, exchange, round, samples, compute });
        }
        let ticket = self.port.exchange(self.view.clone(), number, entry);
        PendingSum {
            number,
            bytes,
            dealt: std::mem::take(&mut self.state.private.dealt),
            samples,
            entered: self.now(),
            progress: Progress::Underway { ticket, view: self.view.clone() },
        }
    }

    /// Waits for a sum and takes over what its members agreed on.
    async fn result_of(&mut self, pending: &PendingSum) -> Result<Arc<Sum>, Interrupt> {
        let blocked = self.now();
        let sum = self.wait_for(pending, true).await?;
        let view = match &pending.progress {
            Progress::Underway { view, .. } => view.number,
            Progress::Finished(_) => self.view.number,
        };
        let (who, exchange, entered, bytes) =
            (self.id, pending.number, pending.entered, pending.bytes);
        self.port.record(Record::Exchanged { who, view, exchange, entered, blocked, bytes });
        self.newest_view_agreed = self.newest_view_agreed.max(sum.newest_view);
        self.state.agreed.stopped |= sum.stop;
        self.save_agreed |= sum.save;
        Ok(sum)
    }

    /// Waits until a sum has ended; `take` removes it from the inbox.
    pub(super) async fn wait_for(
        &self,
        pending: &PendingSum,
        take: bool,
    ) -> Result<Arc<Sum>, Interrupt> {
        let (ticket, view) = match &pending.progress {
            Progress::Underway { ticket, view } => (*ticket, view),
            Progress::Finished(sum) => return Ok(sum.clone()),
        };
        let wanted = Wanted::Exchange { view: view.number, number: pending.number };
        self.port
            .until(wanted, |inbox| {
                let sum = if take { inbox.sum(ticket) } else { inbox.known_sum(ticket).cloned() };
                if let Some(sum) = sum {
                    return Some(Ok(sum));
                }
                (inbox.has_lost_one_of(view) || inbox.over).then(|| {
                    inbox.abandon(ticket);
                    Err(Interrupt::ViewChanged)
                })
            })
            .await
    }

    /// Drops a sum whose result will not be used.
    pub(super) fn abandon(&self, pending: &PendingSum) {
        if let Progress::Underway { ticket, .. } = pending.progress {
            self.port.look(|inbox| inbox.abandon(ticket));
        }
    }

    fn next_exchange(&mut self) -> u64 {
        self.state.private.exchanges += 1;
        self.state.private.exchanges
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
