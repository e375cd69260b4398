//! Exchanges among all members: sums and averages. An exchange is a transaction: it is tried again, with the same input,
//! until it has a result, even if members are lost meanwhile.

use std::sync::Arc;
use std::time::Duration;

use paceline_learn::gradient::weight_of;
use paceline_learn::rescale::Parts;
use paceline_learn::vector::{add, add_scaled, norm_squared, scale};
use paceline_learn::{Rescale, Vector, mix};

use super::{Average, ENCODING, Mine, Total, Worker, steps};
use crate::codec::Payload;
use crate::coordination::Word;
use crate::exchange::Sum;
use crate::executor::{Interrupt, Wanted};
use crate::ids::WorkerId;
use crate::journal::{Record, ResultName};
use crate::ledger::Ledger;
use crate::private::{Input, PendingSum, Progress};
use crate::spans::Spans;
use crate::wire::{Entry, Extra, Tail};

/// What the members put into an exchange.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Holds {
    Gradients,
    Replicas,
    /// One number each, which is no update.
    Numbers,
}

impl Worker {
    /// The gradient over the samples of all members.
    pub async fn sum(&mut self, mine: Option<Mine>) -> Result<Total, Interrupt> {
        self.start_sum(mine);
        Ok(self.finish_sum().await?.expect("a sum was started"))
    }

    /// Starts a sum that is under way while the worker does something else.
    pub fn start_sum(&mut self, mine: Option<Mine>) {
        let version = mine.as_ref().map_or(self.state.version, |mine| mine.version);
        let vector = mine.map(|mine| mine.gradient.sum).unwrap_or_default();
        let weight = weight_of(self.state.private.samples, self.state.private.weight);
        let extra = match self.plan.rescale {
            Rescale::Adascale if weight > 0.0 => {
                Extra::GradientSquare(norm_squared(self.learned(&vector)) / weight.powi(2))
            }
            _ => Extra::None,
        };
        let payload = self.encode(vector);
        self.start(payload, version, extra);
    }

    /// Whether a sum is under way that has not ended yet. A sum that must be tried again, because a member was
    /// lost, is not under way: nobody can tell how long that takes.
    pub fn is_summing(&mut self) -> bool {
        self.collect();
        let Some(pending) = &self.state.private.pending else { return false };
        if let Some(replay) = &self.plan.replay {
            let recorded = replay.entries.get(&(self.id, self.state.round));
            return recorded.is_some_and(|(samples, _)| self.state.private.samples < *samples);
        }
        matches!(pending.progress, Progress::Underway { .. }) && !self.is_closed()
    }

    /// Waits for the sum under way; `None` if there is none.
    pub async fn finish_sum(&mut self) -> Result<Option<Total>, Interrupt> {
        if self.state.private.pending.is_none() {
            return Ok(None);
        }
        let (sum, spans) = self.take_result(Holds::Gradients).await?;
        if self.plan.rescale == Rescale::Adascale && sum.gradient.weight() > 0.0 {
            let n = sum.tails.len() as f64;
            self.state.agreed.rescaler.observe(&Parts {
                members: sum.tails.len() as u64,
                mean_of_squares: sum.tails.iter().map(|tail| tail.extra.number()).sum::<f64>() / n,
                square_of_mean: norm_squared(self.learned(&sum.gradient.sum))
                    / sum.gradient.weight().powi(2),
            });
        }
        let version = sum.version();
        Ok(Some(Total { sum, spans, version }))
    }

    /// The gradient of the learned parameters; statistics of buffers follow it.
    fn learned<'a>(&self, gradient: &'a [f32]) -> &'a [f32] {
        &gradient[..gradient.len().min(self.plan.layout.params)]
    }

    /// The weighted mean of the members' replicas. Samples that members learned from alone are thereby applied.
    ///
    /// Lossy codecs encode the difference from the anchor, which all members have; buffers are sent as they are.
    pub async fn average(&mut self, weight: f64) -> Result<Average, Interrupt> {
        let lossy = self.plan.codec.is_lossy();
        let mut vector = (**self.params().await).clone();
        if lossy {
            let learned = self.learned(&vector).len();
            add_scaled(&mut vector[..learned], -1.0, &self.anchor().await[..learned]);
        }
        if weight != 1.0 {
            scale(&mut vector, weight as f32);
        }
        let payload = self.encode(vector);
        self.start(payload, self.state.version, Extra::Weight(weight));
        let (sum, _) = self.take_result(Holds::Replicas).await?;
        let weights: f64 = sum.tails.iter().map(|tail| tail.extra.number()).sum();
        if weights == 0.0 {
            // No contributor has learned anything: those that have were lost.
            return Ok(Average { mean: self.anchor().await.clone(), sum });
        }
        let mean = sum.mean.get_or_init(|| {
            let mut mean = sum.gradient.sum.clone();
            scale(&mut mean, 1.0 / weights as f32);
            Arc::new(mean)
        });
        let mean = if lossy {
            let mut moved = (**mean).clone();
            let learned = self.learned(&moved).len();
            add(&mut moved[..learned], &self.anchor().await[..learned]);
            Arc::new(moved)
        } else {
            mean.clone()
        };
        Ok(Average { mean, sum })
    }

    /// The mean of a number over the members.
    pub async fn mean_of(&mut self, number: f64) -> Result<f64, Interrupt> {
        let nothing = Payload::dense(Vector::new());
        self.start(nothing, self.state.version, Extra::Value(number));
        let (sum, _) = self.take_result(Holds::Numbers).await?;
        if let Some(replay) = &self.plan.replay
            && let Some(recorded) = replay.means.get(&self.state.round)
        {
            return Ok(*recorded);
        }
        Ok(sum.tails.iter().map(|tail| tail.extra.number()).sum::<f64>() / sum.tails.len() as f64)
    }

    pub(super) fn encode(&mut self, vector: Vector) -> Payload {
        let mut dice = self.dice(ENCODING);
        if vector.is_empty() {
            // A member without samples sends an empty payload of the same kind as the others.
            return self.plan.codec.encode(vector, 0, &mut Vector::new(), &mut dice);
        }
        let residual = Arc::make_mut(&mut self.state.private.residual);
        self.plan.codec.encode(vector, self.plan.layout.params, residual, &mut dice)
    }

    /// Puts together what this worker contributes to the next exchange, and enters it. While members settle the input is
    /// only kept: it is entered in the next view.
    fn start(&mut self, payload: Payload, version: u64, extra: Extra) {
        assert!(self.state.private.pending.is_none(), "one exchange at a time");
        self.say_bye_if_ordered();
        let (samples, round) = (self.state.private.samples, self.state.round);
        let mut compute = std::mem::take(&mut self.state.private.compute);
        if let Some(replay) = &self.plan.replay
            && let Some((_, recorded)) = replay.entries.get(&(self.id, round))
        {
            compute = *recorded;
        }
        let (plan, stop, save) = self.port.look(|inbox| {
            let plan = inbox.plan_due().map_or(0, |plan| plan.number);
            (plan, inbox.stop_ordered, inbox.save_ordered)
        });
        let loss_sum = std::mem::take(&mut self.state.private.loss_sum);
        let weight = self.state.private.weight.take();
        self.state.private.samples = 0;
        let digest = mix(self.state.agreed.summary() ^ self.common.take().unwrap_or(0)).max(1);
        let tail =
            Tail { plan, samples, loss_sum, weight, version, compute, extra, stop, save, digest };
        let number = self.state.agreed.exchanges + 1;
        let (who, view, exchange) = (self.id, self.view.number, number);
        if samples > 0 {
            self.port.record(Record::Entered { who, view, exchange, round, samples, compute });
        }
        self.state.private.pending = Some(PendingSum {
            number,
            bytes: 0,
            dealt: Spans::new(),
            samples,
            entered: self.now(),
            input: Some(Arc::new(Input { payload: Arc::new(payload), tail })),
            progress: Progress::Closed,
        });
        if !self.is_closed() {
            self.enter();
        }
    }

    /// Enters the pending exchange in the view in which this worker stands.
    pub(super) fn enter(&mut self) {
        let Some(pending) = &mut self.state.private.pending else { return };
        if matches!(pending.progress, Progress::Finished(_)) {
            return;
        }
        let keeps = self.port.can_lose_members();
        let input = if keeps { pending.input.clone() } else { pending.input.take() };
        let input = input.expect("an input is kept until its result is here");
        let Input { payload, tail } = Arc::unwrap_or_clone(input);
        let entry = Entry::Sum { payload, tail };
        let steps = entry.steps(self.view.members.len());
        pending.bytes = u64::from(steps.count) * steps.bytes;
        let ticket = self.port.exchange(self.view.clone(), pending.number, entry);
        pending.progress = Progress::Underway { ticket, view: self.view.clone() };
    }

    /// Takes the result of the pending exchange out of the inbox if it has arrived.
    pub(super) fn collect(&mut self) {
        if let Some(pending) = &mut self.state.private.pending
            && let Progress::Underway { ticket, .. } = pending.progress
            && let Some(sum) = self.port.look(|inbox| inbox.sum(ticket))
        {
            pending.progress = Progress::Finished(sum);
        }
    }

    /// Gives up the pending exchange in the view in which it was entered; it is entered again in the next one.
    pub(crate) fn close(&mut self) {
        if let Some(pending) = &mut self.state.private.pending
            && let Progress::Underway { view, .. } = &pending.progress
        {
            self.port.withdraw(view.number, pending.number);
            pending.progress = Progress::Closed;
        }
    }

    /// Waits until the pending exchange has its result, through as many views as it takes.
    pub(super) async fn complete(&mut self) -> Result<Arc<Sum>, Interrupt> {
        loop {
            self.collect();
            let pending = self.state.private.pending.as_mut().expect("an exchange is pending");
            let (ticket, view) = match &pending.progress {
                Progress::Finished(sum) => return Ok(sum.clone()),
                Progress::Underway { ticket, view } => (*ticket, view.number),
                // `Err` if the job is over, or goes on without this worker.
                Progress::Closed => {
                    self.settle().await?;
                    continue;
                }
            };
            let wanted = Wanted::Exchange { view, number: pending.number };
            let is_open = self
                .port
                .until(wanted, |inbox| {
                    if inbox.known_sum(ticket).is_some() {
                        return Some(true);
                    }
                    (inbox.has_ended() || inbox.view_number() > view).then_some(false)
                })
                .await;
            if !is_open {
                self.close();
            }
        }
    }

    /// Waits for the result of the pending exchange and takes it: what its contributors put in counts from now on.
    async fn take_result(&mut self, holds: Holds) -> Result<(Arc<Sum>, Arc<Spans>), Interrupt> {
        let blocked = self.now();
        let sum = self.complete().await?;
        let pending = self.state.private.pending.take().expect("an exchange is pending");
        let (who, exchange, view) = (self.id, pending.number, sum.view.number);
        let (entered, bytes) = (pending.entered, pending.bytes);
        self.port.record(Record::Exchanged { who, view, exchange, entered, blocked, bytes });
        let spans = self.take(&sum, holds)?;
        self.state.private.drawn -= pending.samples;
        self.plan_agreed = sum.plan();
        self.save_agreed = self.save_agreed.max(sum.save());
        if self.port.can_lose_members() {
            self.last = Some(sum.clone());
        }
        Ok((sum, spans))
    }

    /// Changes what all members agree on, as every member does that takes this result.
    fn take(&mut self, sum: &Arc<Sum>, holds: Holds) -> Result<Arc<Spans>, Interrupt> {
        let dissenters = sum.dissenters();
        if !dissenters.is_empty() {
            return Err(self.disagree(sum.exchange, dissenters.to_vec()));
        }
        let (agreed, lane_batch) = (&mut self.state.agreed, self.lane_batch);
        let step = steps::TAKE ^ lane_batch.unwrap_or(0);
        let taken = self.port.once(&agreed.ledger, Some(sum), step, || {
            let mut ledger = Ledger::clone(&agreed.ledger);
            let spans = ledger.take(sum.counts());
            if let Some(base) = lane_batch {
                // The next round is expected to take what this one took.
                ledger.fill_lanes(sum.counts().map(|(who, count)| (who, count.max(base))));
            }
            (Arc::new(ledger), spans.map(Arc::new))
        });
        let (ledger, spans) = &*taken;
        let Some(spans) = spans else {
            // A contributor says that it computed more than was dealt to it.
            return Err(self.disagree(sum.exchange, sum.view.members.clone()));
        };
        agreed.ledger = ledger.clone();
        agreed.view = sum.view.clone();
        agreed.stopped |= sum.stop();
        agreed.extend(sum.digest());
        if holds != Holds::Numbers && sum.is_first_taken() {
            let (who, round) = (self.id, Some(self.state.round));
            let (loss_sum, weight) = (sum.gradient.loss_sum, sum.gradient.weight);
            let rate = self.rate();
            // An average holds steps that its members have made already.
            let (version, staleness) = match holds {
                Holds::Replicas => (self.state.version, 0),
                Holds::Gradients | Holds::Numbers => {
                    let staleness = self.state.version.saturating_sub(sum.version());
                    (self.state.version + 1, staleness)
                }
            };
            let result = Some(ResultName { exchange: sum.exchange, view: sum.view.number });
            let spans = Spans::clone(spans);
            self.port.record(Record::Applied {
                who,
                version,
                spans,
                loss_sum,
                weight,
                staleness,
                rate,
                round,
                result,
            });
        }
        Ok(spans.clone())
    }

    /// Members hold different results: whatever they would learn from now on is worth nothing.
    pub(crate) fn disagree(&self, exchange: u64, workers: Vec<WorkerId>) -> Interrupt {
        self.port.tell(Word::Disagreed { exchange, workers });
        Interrupt::Over
    }

    /// Changes memory that all members agree on, as every member does that takes this result. `change` may depend only on
    /// what all members agree on: in a simulator, members whose memory is equal share it, and change it once.
    pub fn agree<T: Clone + Send + Sync + 'static>(
        &self,
        memory: &mut Arc<T>,
        sum: &Arc<Sum>,
        change: impl FnOnce(&mut T),
    ) {
        *memory = self.port.once(memory, Some(sum), steps::AGREE, || {
            let mut changed = T::clone(memory);
            change(&mut changed);
            changed
        });
    }

    /// How long each contributor computed for an exchange, and over how many samples.
    pub fn efforts<'a>(
        &self,
        total: &'a Sum,
    ) -> impl Iterator<Item = (WorkerId, u64, Duration)> + 'a {
        total.efforts()
    }
}
