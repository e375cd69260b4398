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
use crate::wire::{AnyOptimizerState, Extent, Letter, Mailbox, Message, Published, Shelf, Tail};

/// What the server has to deal with.
#[derive(Debug)]
pub enum Call {
    /// A gradient to be applied.
    Gradient { from: WorkerId, payload: Arc<Payload>, tail: Tail, spans: Spans },
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
    /// The number of the view that made this worker the server.
    reign: u64,
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
            reign: view.number,
            version: 0,
            done: Arc::default(),
            view,
            plan,
            applies_samples,
            port,
        };
        let saved = server.port.look(|inbox| inbox.snapshot.clone());
        let snapshot = saved.or(server.plan.resumed.clone());
        if let Some(center) = snapshot.and_then(|snapshot| snapshot.center.clone()) {
            server.adopt(center);
        }
        let is_start = server.port.look(|inbox| {
            inbox.start.as_ref().is_some_and(|start| start.number == server.view.number)
        });
        if !is_start {
            server.recover().await?;
        }
        server.publish();
        Ok(server)
    }

    async fn recover(&mut self) -> Result<(), Interrupt> {
        let previous = self.port.look(|inbox| {
            let before = inbox.views.range(..self.reign).next_back();
            before.and_then(|(_, view)| view.members.first().copied())
        });
        let found = match previous {
            Some(previous) => self.handed_over(previous).await?,
            None => None,
        };
        let found = match found {
            Some(center) => Some(center),
            None => self.newest_copy().await?,
        };
        match found {
            Some(copy) => self.adopt(copy),
            // Nobody has seen the center. Where workers learn alone, any replica is better than the first center.
            None if !self.applies_samples => {
                let (me, shelf) = (self.port.worker, Shelf::Replica);
                if let Ok(own) = self.port.read(me, shelf, Extent::Params).await {
                    self.center = own.params;
                }
            }
            None => {}
        }
        let (who, version, reign) = (self.port.worker, self.version, self.reign);
        self.port.record(Record::Restored { who, version, reign });
        self.port.tell(Word::Restored { reign, done: (*self.done).clone() });
        Ok(())
    }

    fn adopt(&mut self, center: Published) {
        self.center = center.params;
        if let AnyOptimizerState::Ours(state) = center.optimizer {
            self.optimizer = state;
        }
        self.version = center.version;
        self.done = center.done;
    }

    /// The center that the previous server hands over; `None` if that server was lost.
    async fn handed_over(&self, previous: WorkerId) -> Result<Option<Published>, Interrupt> {
        self.port
            .until(Wanted::Letter { from: Some(previous) }, |inbox| {
                if inbox.has_ended() {
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
            let age = |copy: &Published| (copy.reign, copy.version);
            if newest.as_ref().is_none_or(|best| age(best) < age(&copy)) {
                newest = Some(copy);
            }
        }
        if self.port.look(|inbox| inbox.has_ended()) { Err(Interrupt::Over) } else { Ok(newest) }
    }

    pub fn center(&self) -> &Arc<Vector> {
        &self.center
    }

    pub fn version(&self) -> u64 {
        self.version
    }

    /// Waits for the next call. `Err` if this worker is no longer the first member, or the job is over.
    pub async fn next(&mut self) -> Result<Call, Interrupt> {
        loop {
            match self.next_letter().await? {
                Some((from, Letter::Newcomer)) => self.reply(from),
                Some((from, letter)) => {
                    // Letters to a server that are not calls were for a predecessor of this task.
                    if let Some(call) = call_of(from, letter) {
                        return Ok(call);
                    }
                }
                None => return Ok(Call::Members),
            }
        }
    }

    /// The next letter; `None` if the members have changed.
    async fn next_letter(&mut self) -> Result<Option<(WorkerId, Letter)>, Interrupt> {
        let (me, known) = (self.port.worker, self.view.number);
        self.port
            .until(Wanted::Letter { from: None }, |inbox| {
                let view = inbox.view.clone()?;
                if inbox.has_ended() || !inbox.is_server(me) {
                    return Some(Err(Interrupt::Over));
                }
                if known < view.number {
                    inbox.forget_views(view.number);
                    self.view = view;
                    return Some(Ok(None));
                }
                inbox.letter_to_server().map(|letter| Ok(Some(letter)))
            })
            .await
    }

    /// Applies a gradient, unless its samples have been applied already: by another worker, after the
    /// coordinator had declared this one lost.
    pub fn descend(
        &mut self,
        from: WorkerId,
        payload: Arc<Payload>,
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
        let Tail { version, samples, loss_sum, weight, .. } = tail;
        let sum = Arc::unwrap_or_clone(payload).into_vector();
        let gradient = Gradient { sum, loss_sum, samples, weight };
        let center: &mut Vector = Arc::make_mut(&mut self.center);
        let optimizer = Arc::make_mut(&mut self.optimizer);
        plan.optimizer.descend(center, optimizer, &gradient, rate, &plan.layout);
        let staleness = self.version.saturating_sub(version);
        self.version += 1;
        Arc::make_mut(&mut self.done).add(&spans);
        let (who, version, spans_len) = (self.port.worker, self.version, spans.len());
        let (round, result, done) = (None, None, Word::Done { spans: spans.clone() });
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
        self.port.tell(done);
        self.publish();
        let samples = self.done.len();
        let (before, ended) = (self.plan.ended(samples - spans_len), self.plan.ended(samples));
        if before != ended {
            let ends_epoch = before.epochs < ended.epochs;
            self.port.evaluate(samples, ends_epoch, vec![who], Shelf::Center);
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
        let (params, reign, version) = (self.center.clone(), self.reign, self.version);
        let (done, left_out) = match self.port.can_lose_members() {
            true => (self.done.clone(), 0),
            false => (Arc::default(), self.done.intervals().len()),
        };
        Letter::Center { params, reign, version, done, left_out }
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
            optimizer: AnyOptimizerState::Ours(self.optimizer.clone()),
            reign: self.reign,
            version: self.version,
            done: self.done.clone(),
        }
    }

    fn publish(&self) {
        self.port.publish(Shelf::Center, self.published());
    }
}

fn call_of(from: WorkerId, letter: Letter) -> Option<Call> {
    match letter {
        Letter::Gradient { payload, tail, spans } => {
            Some(Call::Gradient { from, payload, tail, spans })
        }
        Letter::Message { message, .. } => Some(Call::Message { from, message }),
        Letter::Idle => Some(Call::Idle { from }),
        Letter::Newcomer
        | Letter::Handover { .. }
        | Letter::SharedState { .. }
        | Letter::Result { .. }
        | Letter::Center { .. }
        | Letter::Part { .. } => None,
    }
}
