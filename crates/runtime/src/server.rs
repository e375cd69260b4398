//! The center's keeper: a second task of the view's first member.

use std::sync::Arc;

use paceline_learn::vector::blend;
use paceline_learn::{Gradient, OptimizerState, Rescaler, Vector};

use crate::cluster::{Letter, Published, Shelf, Tail, View, Word, WorkerId};
use crate::codec::Payload;
use crate::executor::{Interrupt, Port, Result, Wanted};
use crate::journal::Record;
use crate::plan::Plan;
use crate::spans::Spans;
use crate::worker::read_shelf;

/// What comes to the server.
#[derive(Debug)]
pub enum Call {
    /// A gradient to be applied.
    Push { from: WorkerId, payload: Payload, tail: Tail, spans: Spans },
    /// A replica to be drawn towards the center.
    Replica { from: WorkerId, params: Arc<Vector> },
    /// A worker that has no more samples.
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
    applies: bool,
    port: Port,
}

impl Server {
    /// Opens the center: the initial one, or a checkpoint's, in the first view; else the one a leaving server hands over,
    /// or the newest copy that survived a lost one.
    pub(crate) async fn open(
        plan: Arc<Plan>,
        port: Port,
        view: Arc<View>,
        applies: bool,
    ) -> Result<Server> {
        let mut server = Server {
            center: plan.initial.clone(),
            optimizer: Arc::default(),
            rescaler: Rescaler::new(plan.rescale, plan.batch_reference),
            factor: 1.0,
            version: 0,
            done: Arc::default(),
            view,
            plan,
            applies,
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

    async fn recover(&mut self) -> Result<()> {
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
        if self.applies {
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

    /// What the previous server hands over; `None` if it was lost before it could.
    async fn handed_over(&self, previous: WorkerId) -> Result<Option<Published>> {
        self.port
            .until(Wanted::Letter { from: Some(previous) }, |inbox| {
                if inbox.over {
                    return Some(Err(Interrupt::Over));
                }
                let is_it = |from: WorkerId, letter: &Letter| {
                    from == previous && matches!(letter, Letter::Handover { .. })
                };
                if let Some((_, Letter::Handover { center })) = inbox.letter_to_server(is_it) {
                    return Some(Ok(Some(center)));
                }
                inbox.lost.contains(&previous).then_some(Ok(None))
            })
            .await
    }

    async fn newest_copy(&self) -> Result<Option<Published>> {
        let mut newest: Option<Published> = None;
        for &member in &self.view.members {
            let Ok(copy) = read_shelf(&self.port, member, Shelf::Copy).await else { continue };
            let bytes = Letter::Handover { center: copy.clone() }.bytes();
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

    /// Waits for the next call. `Err` when this worker is no longer the first member, or all is over.
    pub async fn next(&mut self) -> Result<Call> {
        let (me, known) = (self.port.worker, self.view.number);
        enum News {
            View(Arc<View>),
            Mail(WorkerId, Letter),
        }
        let news = self
            .port
            .until(Wanted::Letter { from: None }, |inbox| {
                let view = inbox.view.clone()?;
                if inbox.over || view.first() != me {
                    return Some(Err(Interrupt::Over));
                }
                if known < view.number {
                    return Some(Ok(News::View(view)));
                }
                inbox
                    .letter_to_server(|_, _| true)
                    .map(|(from, letter)| Ok(News::Mail(from, letter)))
            })
            .await?;
        let (from, letter) = match news {
            News::View(view) => {
                self.view = view;
                return Ok(Call::Members);
            }
            News::Mail(from, letter) => (from, letter),
        };
        Ok(match letter {
            Letter::Push { payload, tail, spans } => Call::Push { from, payload, tail, spans },
            Letter::Replica { params } => Call::Replica { from, params },
            Letter::Idle => Call::Idle { from },
            Letter::Handover { .. } | Letter::SharedState { .. } | Letter::Params { .. } => {
                unreachable!("nobody sends this to a server at work")
            }
        })
    }

    /// Applies a pushed gradient, unless its samples have been applied already (by another worker,
    /// after the coordinator had given this one up).
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
        let (who, version) = (self.port.worker, self.version);
        self.port.tell(Word::Done { spans: spans.clone() });
        self.port.record(Record::Applied { who, version, spans, loss_sum, staleness, rate });
        self.publish();
    }

    /// Moves the center towards a worker's replica, c <- c + part (x - c), and sends the worker what it
    /// was before.
    pub fn draw_towards(&mut self, worker: WorkerId, params: &[f32], part: f32) {
        let answer = self.answer();
        let center: &mut Vector = Arc::make_mut(&mut self.center);
        blend(center, params, part);
        self.version += 1;
        self.publish();
        // Only now, for it may be all that the last worker waits for before the job ends.
        self.port.send(worker, answer);
    }

    /// Sends the center to a worker.
    pub fn reply(&self, to: WorkerId) {
        self.port.send(to, self.answer());
    }

    fn answer(&self) -> Letter {
        let (params, version, done) = (self.center.clone(), self.version, self.done.clone());
        Letter::Params { params, version, done }
    }

    /// Hands the center to whoever keeps it next, if this worker leaves in good order.
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
