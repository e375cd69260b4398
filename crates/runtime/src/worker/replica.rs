//! The replica, and every verb that reads or changes it. All of them are awaited: with our own engine they are done at once,
//! and where a host holds the replica, when the host has answered.

use std::cell::OnceCell;
use std::sync::Arc;

use paceline_learn::vector::{blend, distance_squared};
use paceline_learn::{OptimizerState, Vector};

use super::{Mine, Share, Total, Worker};
use crate::coordination::Word;
use crate::edge::{Along, Answer, Ask, Moment, Place, Replica};
use crate::journal::Record;
use crate::plan::{Owner, Plan};
use crate::wire::{AnyOptimizerState, Published, Shelf};

/// Who holds a worker's replica.
#[derive(Clone)]
pub enum Held {
    Ours {
        params: Arc<Vector>,
        optimizer: Arc<OptimizerState>,
    },
    /// The host does. `known`: its parameters, if it was asked for them or given them since the last step.
    Theirs {
        known: OnceCell<Arc<Vector>>,
    },
}

impl Held {
    pub(super) fn new(plan: &Plan) -> Held {
        match plan.replicas {
            Owner::Ours => {
                Held::Ours { params: plan.initial.clone(), optimizer: plan.blank.clone() }
            }
            Owner::Theirs => Held::Theirs { known: OnceCell::new() },
        }
    }

    /// The parameters, as far as they are known without asking.
    pub(super) fn known(&self) -> Option<&Arc<Vector>> {
        match self {
            Held::Ours { params, .. } => Some(params),
            Held::Theirs { known } => known.get(),
        }
    }
}

impl Worker {
    /// This worker's replica.
    pub async fn params(&self) -> &Arc<Vector> {
        match &self.state.replica {
            Held::Ours { params, .. } => params,
            Held::Theirs { known } => {
                if known.get().is_none() {
                    let Answer::Params(params) = self.port.ask_host(Ask::Export).await else {
                        panic!("a host that is asked for its parameters answers with them")
                    };
                    assert_eq!(params.len(), self.plan.initial.len(), "a host's replica is whole");
                    return known.get_or_init(|| params);
                }
                known.get().expect("it was just found")
            }
        }
    }

    /// The replica as it was at the start of the round. Where a host holds it, it is known until the first `descend` of the
    /// round: keeping a copy for strategies that never ask would cost a copy in every round.
    pub async fn anchor(&self) -> &Arc<Vector> {
        match &self.state.anchor {
            Some(anchor) => anchor,
            None => {
                assert!(!self.has_descended, "with a host, ask for the anchor before `descend`");
                self.params().await
            }
        }
    }

    /// Replaces the replica; the optimizer's state stays.
    pub async fn set_params(&mut self, params: Arc<Vector>) {
        self.keep_anchor().await;
        match &mut self.state.replica {
            Held::Ours { params: place, .. } => *place = params,
            Held::Theirs { .. } => self.load(params, None).await,
        }
    }

    /// Changes the replica by plain arithmetic, in place if nobody else holds it.
    pub async fn change_params(&mut self, change: impl FnOnce(&mut Vector)) {
        if let Held::Ours { params, .. } = &mut self.state.replica {
            return change(Arc::make_mut(params));
        }
        let mut params = Vector::clone(self.params().await);
        change(&mut params);
        self.set_params(Arc::new(params)).await;
    }

    /// Moves the replica towards another one by `part` of the way: x <- x + part (theirs - x)
    pub async fn blend(&mut self, theirs: &[f32], part: f32) {
        self.change_params(|params| blend(params, theirs, part)).await;
    }

    /// The squared distance between the learned parameters of this replica and of `mean`. Buffers do not count.
    pub async fn drift_from(&self, mean: &[f32]) -> f64 {
        let learned = ..self.plan.layout.params;
        distance_squared(&self.params().await[learned], &mean[learned])
    }

    /// Steps along the mean gradient over the samples of all members.
    pub async fn descend(&mut self, total: &Total) {
        if total.sum.gradient.samples > 0 {
            let (rate, plan) = (self.rate(), self.plan.clone());
            match &mut self.state.replica {
                Held::Ours { params, optimizer } => {
                    let before = (params.clone(), optimizer.clone());
                    let step = |(params, state): &Replica| -> Replica {
                        let gradient = &total.sum.gradient;
                        let (params, state) =
                            plan.optimizer.descended(params, state, gradient, rate, &plan.layout);
                        (Arc::new(params), Arc::new(state))
                    };
                    (*params, *optimizer) = self.port.descend(before, &total.sum, rate, &step);
                }
                Held::Theirs { .. } => self.apply(Along::Total(total.sum.clone())).await,
            }
        }
        self.updates += 1;
        self.state.version += 1;
    }

    /// Steps along this worker's own gradient, before any exchange. Leased samples are thereby applied;
    /// others are when the replicas are averaged.
    pub async fn descend_alone(&mut self, mine: &Mine) {
        let rate = self.rate();
        match &mut self.state.replica {
            Held::Ours { params, optimizer } => {
                let plan = &self.plan;
                let (params, optimizer) = (Arc::make_mut(params), Arc::make_mut(optimizer));
                plan.optimizer.descend(params, optimizer, &mine.gradient, rate, &plan.layout);
            }
            Held::Theirs { .. } => {
                self.keep_anchor().await;
                self.apply(Along::Mine(mine.gradient.clone())).await;
            }
        }
        let staleness = self.state.version - mine.version;
        self.alone.0 += 1;
        self.updates += 1;
        self.state.version += 1;
        if mine.is_leased {
            // This is never undone, so journal and coordinator are told in the same step.
            let (who, version, spans) = (self.id, self.state.version, mine.spans.clone());
            let (loss_sum, weight) = (mine.gradient.loss_sum, mine.gradient.weight);
            let round = Some(self.state.round);
            self.in_hand.subtract(&spans);
            let (done, result) = (Word::Done { spans: spans.clone() }, None);
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
        }
    }

    /// Puts the replica where peers can read it.
    pub async fn publish(&self) {
        let (params, optimizer) = (self.params().await.clone(), self.optimizer().await);
        let (reign, version, done) = (0, 0, Arc::default());
        self.port.publish(Shelf::Replica, Published { params, optimizer, reign, version, done });
    }
}

/// What the training loop does with a replica.
impl Worker {
    /// Puts the replica of a synchronous member where it is read to be evaluated. Nobody adopts from there, so that a host need not
    /// pack its optimizer's state, which may be twice as long as the replica.
    pub(crate) async fn show(&self) {
        if let Held::Ours { .. } = self.state.replica {
            return self.publish().await;
        }
        let params = self.params().await.clone();
        let (optimizer, done) = (AnyOptimizerState::Theirs(Arc::default()), Arc::default());
        let shown = Published { params, optimizer, reign: 0, version: 0, done };
        self.port.publish(Shelf::Replica, shown);
    }

    /// The optimizer's state, as a newcomer adopts it.
    pub(crate) async fn optimizer(&self) -> AnyOptimizerState {
        match &self.state.replica {
            Held::Ours { optimizer, .. } => AnyOptimizerState::Ours(optimizer.clone()),
            Held::Theirs { .. } => match self.port.ask_host(Ask::Keep).await {
                Answer::Optimizer(bytes) => AnyOptimizerState::Theirs(bytes),
                _ => panic!("a host that is asked for its optimizer's state answers with it"),
            },
        }
    }

    /// Continues with the replica and the optimizer's state of another worker, or of a snapshot.
    pub(crate) async fn adopt(&mut self, params: Arc<Vector>, optimizer: AnyOptimizerState) {
        match (&mut self.state.replica, optimizer) {
            (replica @ Held::Ours { .. }, AnyOptimizerState::Ours(optimizer)) => {
                *replica = Held::Ours { params, optimizer };
            }
            (Held::Theirs { .. }, AnyOptimizerState::Theirs(bytes)) => {
                self.load(params, Some(bytes)).await;
            }
            _ => panic!("all replicas of a job are ours, or all are held by hosts"),
        }
        self.state.anchor = self.state.replica.known().cloned();
    }

    /// Begins with the initial parameters; a host may have others.
    pub(crate) async fn begin_with_initial(&mut self) {
        if let Held::Theirs { .. } = self.state.replica {
            let blank = AnyOptimizerState::Theirs(Arc::default());
            self.adopt(self.plan.initial.clone(), blank).await;
        }
    }

    /// Whether the replica is published after this round of a synchronous strategy: always if it is ours. A host is only asked
    /// for it when it is read: to be evaluated, and at the end of the job.
    pub(crate) fn is_shown(&self) -> bool {
        let is_ours = matches!(self.state.replica, Held::Ours { .. });
        is_ours || self.is_evaluation_due() || self.is_done() || self.state.agreed.stopped
    }

    /// Where the gradient at the replica is computed, over the samples of `share`.
    pub(super) fn place(&self, share: &Share) -> Place {
        match &self.state.replica {
            Held::Ours { params, .. } => Place::Ours(params.clone()),
            Held::Theirs { .. } => {
                let ahead = self.samples_ahead(share);
                let moment = self.moment(self.deals.saturating_sub(1));
                Place::Theirs { size: self.plan.initial.len(), ahead, moment }
            }
        }
    }

    /// Keeps the replica of the start of the round, before it changes.
    async fn keep_anchor(&mut self) {
        if self.state.anchor.is_none() && !self.has_descended {
            self.state.anchor = Some(self.params().await.clone());
        }
    }

    /// Where the job stands after so many steps of this round.
    fn moment(&self, steps: u64) -> Moment {
        let (round, view) = (self.state.round, self.state.agreed.view.clone());
        let done = self.state.agreed.ledger.done().clone();
        Moment { round, samples: self.clock_after(steps), view, done }
    }

    async fn apply(&mut self, along: Along) {
        let (rate, factor, moment) = (self.rate(), self.factor, self.moment(self.deals));
        let answer = self.port.ask_host(Ask::Apply { along, rate, factor, moment }).await;
        if let Answer::Skipped = answer {
            self.note("skipped", 1.0);
        }
        self.has_descended = true;
        self.state.replica = Held::Theirs { known: OnceCell::new() };
    }

    async fn load(&mut self, params: Arc<Vector>, optimizer: Option<Arc<Vec<u8>>>) {
        let known = OnceCell::from(params.clone());
        self.port.ask_host(Ask::Load { params, optimizer }).await;
        self.state.replica = Held::Theirs { known };
    }
}
