//! The server: it keeps the center, as a second task of the view's first member.

use std::sync::Arc;

use paceline_learn::vector::blend;
use paceline_learn::{Gradient, OptimizerState, Rescaler, Vector};

use crate::codec::Payload;
use crate::coordination::Word;
use crate::executor::{Interrupt, Port, Wanted};
use crate::ids::WorkerId;
use crate::journal::Record;
use crate::plan::Plan;
use crate::spans::Spans;
use crate::view::View;
use crate::wire::{Extent, HEADER_BYTES, Letter, Mailbox, Message, Published, Shelf, Tail};

/// What the server has to deal with.
#[derive(Debug)]
pub enum Call {
    /// A gradient to be applied.
    Gradient { from: WorkerId, payload: Payload, tail: Tail, spans: Spans },
    /// A message of the strategy, sent by `worker.call`.
    Message { from: WorkerId, message: Message },
    /// A worker has no more samples.
    Idle { from: WorkerId },
    /// The members have changed.
    Members,
}

pub struct Server {
    pub view: Arc<View>,
    pub plan: Arc<Plan>,
    center: Arc<Vector>,
    optimizer: Arc<OptimizerState>,
    rescaler: Rescaler,
    factor: f32,
    version: u64,
    done: Arc<Spans>,
    /// Whether samples are applied here, and not by the workers.
    applies_samples: bool,
    port: Port,
}

impl Server {
    /// Opens the center: in the first view the initial one, or a checkpoint's; later the one that a leaving
    /// server hands over, or the newest copy that survived a lost server.
    pub(crate) async fn open(
        plan: Arc<Plan>,
        port: Port,
        view: Arc<View>,
        applies_samples: bool,
    ) -> Result<Server, Interrupt> {
        let mut server = Server {
            center: plan.initial.clone(),
            optimizer: Arc::default(),
            rescaler: Rescaler::new(plan.rescale, plan.batch_reference),
            factor: 1.0,
            version: 0,
            done: Arc::default(),
            view,
            plan,
            applies_samples,
            port,
        };
        if server.view.number > 1 {
            server.recover().await?;
        } else if let Some(center) = server.plan.resumed.as_ref().and_then(|it| it.center.clone()) {
            server.adopt(center);
        }
        server.publish();
        Ok(server)
    }

    async fn recover(&mut self) -> Result<(), Interrupt> {
        let before = self.view.number - 1;
        let previous = self.port.look(|inbox| inbox.views.get(&before).map(|view| view.first()));
        let found = match previous {
            Some(previous) => self.handed_over(previous).await?,
            None => None,
        };
        let found = match found {
            Some(center) => Some(center),
            None => self.newest_copy().await?,
        };
        if let Some(copy) = found {
            self.adopt(copy);
        }
        let (who, version) = (self.port.worker, self.version);
        self.port.record(Record::Restored { who, version });
        if self.applies_samples {
            self.port.tell(Word::Restored { done: (*self.done).clone() });
        }
        Ok(())
    }

    fn adopt(&mut self, center: Published) {
        self.center = center.params;
        self.optimizer = center.optimizer;
        self.version = center.version;
        self.done = center.done;
    }

    /// The center that the previous server hands over; `None` if that server was lost.
    async fn handed_over(&self, previous: WorkerId) -> Result<Option<Published>, Interrupt> {
        self.port
            .until(Wanted::Letter { from: Some(previous) }, |inbox| {
                if inbox.over {
                    return Some(Err(Interrupt::Over));
                }
                if let Some(center) = inbox.handover(previous) {
                    return Some(Ok(Some(center)));
                }
                inbox.lost.contains(&previous).then_some(Ok(None))
            })
            .await
    }

    async fn newest_copy(&self) -> Result<Option<Published>, Interrupt> {
        let mut newest: Option<Published> = None;
        for &member in &self.view.members {
            let Ok(copy) = self.port.read(member, Shelf::Copy, Extent::Whole).await else {
                continue;
            };
            let bytes = HEADER_BYTES + copy.bytes();
            if member != self.port.worker {
                let (who, to) = (member, self.port.worker);
                self.port.record(Record::Sent { who, to, bytes });
            }
            if newest.as_ref().is_none_or(|best| best.version < copy.version) {
                newest = Some(copy);
            }
        }
        if self.port.look(|inbox| inbox.over) { Err(Interrupt::Over) } else { Ok(newest) }
    }

    pub fn center(&self) -> &Arc<Vector> {
        &self.center
    }

    pub fn version(&self) -> u64 {
        self.version
    }

    /// Waits for the next call. `Err` if this worker is no longer the first member, or the job is over.
    pub async fn next(&mut self) -> Result<Call, Interrupt> {
        let (me, known) = (self.port.worker, self.view.number);
        self.port
            .until(Wanted::Letter { from: None }, |inbox| {
                let view = inbox.view.clone()?;
                if inbox.over || view.first() != me {
                    return Some(Err(Interrupt::Over));
                }
                if known < view.number {
                    inbox.forget_views(view.number);
                    self.view = view;
                    return Some(Ok(Call::Members));
                }
                // Letters to a server that are not calls were for a predecessor of this task.
                std::iter::from_fn(|| inbox.letter_to_server()).find_map(call_of).map(Ok)
            })
            .await
    }

    /// Applies a gradient, unless its samples have been applied already: by another worker, after the
    /// coordinator had declared this one lost.
    pub fn descend(
        &mut self,
        from: WorkerId,
        payload: Payload,
        tail: Tail,
        spans: Spans,
        nominal: f64,
    ) {
        let known = spans.overlap(&self.done);
        if !known.is_empty() {
            self.port.tell(Word::Done { spans: known.clone() });
            self.port.tell(Word::Return { holder: from, spans: spans.minus(&known) });
            return;
        }
        self.factor = self.rescaler.factor(nominal);
        let plan = self.plan.clone();
        let rate = plan.schedule.rate(self.done.len(), plan.samples_total) * self.factor;
        let Tail { version, samples, loss_sum, .. } = tail;
        let gradient = Gradient { sum: payload.into_vector(), loss_sum, samples };
        let center: &mut Vector = Arc::make_mut(&mut self.center);
        let optimizer = Arc::make_mut(&mut self.optimizer);
        plan.optimizer.descend(center, optimizer, &gradient, rate, &plan.layout);
        let staleness = self.version.saturating_sub(version);
        self.version += 1;
        Arc::make_mut(&mut self.done).add(&spans);
        let (who, version, spans_len) = (self.port.worker, self.version, spans.len());
        let (round, done) = (None, Word::Done { spans: spans.clone() });
        let applied = Record::Applied { who, version, spans, loss_sum, staleness, rate, round };
        self.port.record(applied);
        self.port.tell(done);
        self.publish();
        let (samples, per_epoch) = (self.done.len(), self.plan.samples_per_epoch.max(1));
        if (samples - spans_len) / per_epoch < samples / per_epoch {
            self.port.evaluate(samples, vec![who], Shelf::Center);
        }
    }

    /// Moves the center towards a worker's replica, c <- c + part (x - c), and replies with the center as it
    /// was before.
    pub fn draw_towards(&mut self, worker: WorkerId, params: &[f32], part: f32) {
        let answer = self.answer();
        let center: &mut Vector = Arc::make_mut(&mut self.center);
        blend(center, params, part);
        self.version += 1;
        self.publish();
        // Last, because the job may end as soon as the last worker has its answer.
        self.port.send(worker, answer);
    }

    /// Replies to a call with the center.
    pub fn reply(&self, to: WorkerId) {
        self.port.send(to, self.answer());
    }

    /// Sends a message to the strategy's `round` on a worker, by `worker.received()`.
    pub fn send(&self, to: WorkerId, message: Message) {
        self.port.send(to, Letter::Message { to: Mailbox::Worker, message });
    }

    fn answer(&self) -> Letter {
        let (params, version, done) = (self.center.clone(), self.version, self.done.clone());
        Letter::Center { params, version, done }
    }

    /// Hands the center to the next server, if this worker leaves in good order.
    pub(crate) fn hand_over(self) {
        let me = self.port.worker;
        let next = self.port.look(|inbox| {
            inbox.drop_letters_to_server();
            let after = inbox.views.values().filter(|view| view.number > self.view.number);
            after.map(|view| view.first()).find(|first| *first != me)
        });
        if let Some(next) = next {
            self.port.send(next, Letter::Handover { center: self.published() });
        }
    }

    fn published(&self) -> Published {
        Published {
            params: self.center.clone(),
            optimizer: self.optimizer.clone(),
            version: self.version,
            done: self.done.clone(),
        }
    }

    fn publish(&self) {
        self.port.publish(Shelf::Center, self.published());
    }
}

fn call_of((from, letter): (WorkerId, Letter)) -> Option<Call> {
    match letter {
        Letter::Gradient { payload, tail, spans } => {
            Some(Call::Gradient { from, payload, tail, spans })
        }
        Letter::Message { message, .. } => Some(Call::Message { from, message }),
        Letter::Idle => Some(Call::Idle { from }),
        Letter::Handover { .. } | Letter::SharedState { .. } | Letter::Center { .. } => None,
    }
}
