//! What a strategy sees of the cluster: its replica, its samples, its peers.

use std::sync::Arc;
use std::time::Duration;

use paceline_learn::rescale::Parts;
use paceline_learn::vector::{add, add_scaled, norm_squared, scale};
use paceline_learn::{Dice, Gradient, OptimizerState, Rescale, Rescaler, Vector};
use serde::{Deserialize, Serialize};

use crate::cluster::{
    Entry, Lease, Letter, Outcome, Published, Shelf, Standing, Sum, Tail, Ticket, View, Word,
    WorkerId,
};
use crate::codec::Payload;
use crate::executor::{Interrupt, Port, Result, Wanted};
use crate::journal::{Record, fingerprint};
use crate::ledger::Ledger;
use crate::plan::Plan;
use crate::spans::Spans;

/// Where the samples of a gradient come from.
#[derive(Clone, Debug, PartialEq)]
pub enum Share {
    /// The next positions, so many for each rank: all members take theirs at the same time.
    ByRank(Vec<u64>),
    /// So many from this worker's own lane.
    Lane(u64),
    /// So many leased from the coordinator; `ahead` asks for the next ones while these are computed.
    Leased { samples: u64, ahead: bool },
}

/// A gradient of this worker's own samples.
#[derive(Clone, Debug)]
pub struct Mine {
    pub gradient: Gradient,
    pub spans: Spans,
    /// How many updates the replica had seen when this was computed.
    pub version: u64,
    is_leased: bool,
}

impl Mine {
    /// Takes in more samples, computed at the same parameters.
    pub fn add(&mut self, more: Mine) {
        assert_eq!(self.version, more.version, "one gradient is computed at one replica");
        self.gradient.add(&more.gradient);
        self.spans.add(&more.spans);
    }
}

/// The gradient over everybody's samples.
#[derive(Clone, Debug)]
pub struct Total {
    pub sum: Arc<Sum>,
    pub spans: Spans,
    pub version: u64,
}

/// The mean of everybody's replicas.
#[derive(Clone, Debug)]
pub struct Average {
    pub mean: Arc<Vector>,
    pub sum: Arc<Sum>,
}

/// What all members agree on besides replica and strategy.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Agreed {
    pub ledger: Ledger,
    pub rescaler: Rescaler,
    pub stopped: bool,
}

/// Everything that a lost round takes back.
#[derive(Clone)]
pub struct State {
    pub round: u64,
    pub version: u64,
    pub params: Arc<Vector>,
    pub optimizer: Arc<OptimizerState>,
    pub agreed: Agreed,
    /// The replica at the start of the round.
    pub anchor: Arc<Vector>,
    /// What encoding lost, to be sent later.
    residual: Arc<Vector>,
    /// The sum under way.
    summing: Option<Summing>,
    /// How many of the lane's positions are in gradients not yet applied.
    drawn: u64,
    /// What was dealt to all members since the last exchange.
    dealt: Spans,
    /// Samples, loss and time of this worker's gradients since the last exchange.
    samples: u64,
    loss_sum: f64,
    compute: Duration,
}

#[derive(Clone)]
struct Summing {
    ticket: Ticket,
    view: Arc<View>,
    number: u64,
    entered: Duration,
    bytes: u64,
    /// What the sum holds, where all know it beforehand; with lanes the counts tell.
    dealt: Spans,
    samples: u64,
}

pub struct Worker {
    pub id: WorkerId,
    pub view: Arc<View>,
    pub plan: Arc<Plan>,
    pub(crate) port: Port,
    pub(crate) state: State,
    /// The newest view that any member of the last exchange had heard of.
    pub(crate) heard: u64,
    /// The coordinator has no more samples for asynchronous workers.
    pub(crate) out_of_samples: bool,
    /// Samples of the job applied when the round began, as all members know, or as the lease said.
    clock: u64,
    /// What one step of all members stands for, and how many steps this round has dealt.
    nominal_batch: f64,
    deals: u64,
    factor: f32,
    exchanges: u64,
    updates: u32,
    lease: Option<Ticket>,
    computed: u64,
    applied: Vec<Record>,
}

impl Worker {
    pub(crate) fn new(plan: Arc<Plan>, port: Port, view: Arc<View>) -> Worker {
        let agreed = Agreed {
            ledger: Ledger::new(plan.samples_total),
            rescaler: Rescaler::new(plan.rescale, plan.batch_reference),
            stopped: false,
        };
        let state = State {
            round: 0,
            version: 0,
            params: plan.initial.clone(),
            optimizer: plan.blank.clone(),
            agreed,
            anchor: plan.initial.clone(),
            residual: Arc::default(),
            summing: None,
            drawn: 0,
            dealt: Spans::new(),
            samples: 0,
            loss_sum: 0.0,
            compute: Duration::ZERO,
        };
        Worker {
            id: port.worker,
            view,
            plan,
            port,
            state,
            heard: 0,
            out_of_samples: false,
            clock: 0,
            nominal_batch: 0.0,
            deals: 0,
            factor: 1.0,
            exchanges: 0,
            updates: 0,
            lease: None,
            computed: 0,
            applied: Vec::new(),
        }
    }

    pub fn now(&self) -> Duration {
        self.port.now()
    }

    pub fn round(&self) -> u64 {
        self.state.round
    }

    /// This worker's place in its view.
    pub fn rank(&self) -> usize {
        self.view.rank(self.id).expect("a worker is in its own view")
    }

    pub fn params(&self) -> &Arc<Vector> {
        &self.state.params
    }

    pub fn params_mut(&mut self) -> &mut Vector {
        Arc::make_mut(&mut self.state.params)
    }

    pub fn set_params(&mut self, params: Arc<Vector>) {
        self.state.params = params;
    }

    /// The replica as it was at the start of the round.
    pub fn anchor(&self) -> &Arc<Vector> {
        &self.state.anchor
    }

    /// The learning rate now: base schedule x rescale factor.
    pub fn rate(&self) -> f32 {
        // Members may differ in samples, but never in the rate: steps count as all members' batches.
        let samples = self.clock_after(self.deals.saturating_sub(1));
        self.plan.schedule.rate(samples, self.plan.samples_total) * self.factor
    }

    /// The learning rate before it decays.
    pub fn rate_at_peak(&self) -> f32 {
        self.plan.schedule.base * self.factor
    }

    pub fn is_warming_up(&self) -> bool {
        (self.samples_seen() as f64) < self.plan.schedule.warm_up * self.plan.samples_total as f64
    }

    /// Samples that all members know to be applied.
    pub fn samples_done(&self) -> u64 {
        self.state.agreed.ledger.done().len()
    }

    /// Samples of the job seen so far: the clock of schedules and periods.
    pub fn samples_seen(&self) -> u64 {
        self.clock_after(self.deals)
    }

    fn clock_after(&self, steps: u64) -> u64 {
        self.clock + (steps as f64 * self.nominal_batch) as u64
    }

    /// Whether every sample of the job has been applied.
    pub fn is_done(&self) -> bool {
        self.state.agreed.ledger.is_done()
    }

    /// Whether all of the job's samples are applied or dealt.
    pub fn has_free_samples(&self) -> bool {
        self.state.agreed.ledger.has_free()
    }

    /// Dice of this worker's own; the same `purpose` in the same round gives the same dice.
    pub fn dice(&self, purpose: u64) -> Dice {
        Dice::keyed(&[self.plan.seed, u64::from(self.id.0), self.state.round, purpose])
    }

    /// A member drawn at random, oneself included.
    pub fn random_member(&self) -> WorkerId {
        let members = &self.view.members;
        members[self.dice(PEER).below(members.len() as u64) as usize]
    }

    /// Notes a number that the journal cannot see by itself.
    pub fn note(&self, name: &str, value: f64) {
        self.port.record(Record::Note { who: self.id, name: name.to_owned(), value });
    }
}

const PEER: u64 = 1;
const ENCODING: u64 = 2;

/// Samples and gradients.
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
        let ledger = &mut self.state.agreed.ledger;
        if ledger.lane(self.id).is_none() {
            let appetites: Vec<_> = self.view.members.iter().map(|who| (*who, samples)).collect();
            ledger.fill_lanes(&appetites);
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
        match port.until(Wanted::Lease, |inbox| inbox.lease(ticket)).await {
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
                plan.optimizer.descend(params, state, &total.sum.gradient, rate, &plan.undecayed);
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
        plan.optimizer.descend(params, optimizer, &mine.gradient, rate, &plan.undecayed);
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
    fn apply(&mut self, spans: Spans, loss_sum: f64, staleness: u64, rate: f32) {
        self.state.agreed.ledger.finish(&spans);
        let (who, version) = (self.id, self.state.version);
        self.applied.push(Record::Applied { who, version, spans, loss_sum, staleness, rate });
    }
}

/// Exchanges among all members.
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
                norm_squared(&vector) / (self.state.samples as f64).powi(2)
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
        !self.port.look(|inbox| inbox.has_outcome(summing.ticket))
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
                square_of_mean: norm_squared(&sum.gradient.sum)
                    / (sum.gradient.samples as f64).powi(2),
            });
        }
        Ok(Some(Total { sum, spans, version }))
    }

    fn advance_lanes(&mut self, sum: &Sum) -> Spans {
        let members = self.view.members.iter().copied();
        let counts: Vec<_> = members.zip(sum.tails.iter().map(|tail| tail.samples)).collect();
        let ledger = &mut self.state.agreed.ledger;
        let spans = ledger.advance_lanes(&counts);
        // What a round took is what the next one is expected to take.
        let appetites: Vec<_> = counts.iter().map(|(who, count)| (*who, 1.max(*count))).collect();
        ledger.fill_lanes(&appetites);
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
            Outcome::Gathered(all) => Ok(all),
            Outcome::Summed(_) => unreachable!("members enter the same kind of exchange"),
        }
    }

    fn encode(&mut self, vector: Vector) -> Payload {
        if vector.is_empty() {
            // Nothing to add, said in the form of those who have something.
            let mut nothing = Vector::new();
            return self.plan.codec.encode(vector, &mut nothing, &mut self.dice(ENCODING));
        }
        let mut dice = self.dice(ENCODING);
        let residual = Arc::make_mut(&mut self.state.residual);
        self.plan.codec.encode(vector, residual, &mut dice)
    }

    fn enter(&mut self, payload: Payload, version: u64, number: f64) -> Summing {
        let (samples, round) = (self.state.samples, self.state.round);
        let mut compute = std::mem::take(&mut self.state.compute);
        if let Some(replay) = &self.plan.replay
            && let Some((_, recorded)) = replay.entries.get(&(self.id, round))
        {
            compute = *recorded;
        }
        let (view, stop) = self
            .port
            .look(|inbox| (inbox.view.as_ref().map_or(0, |view| view.number), inbox.stop_wished));
        let loss_sum = std::mem::take(&mut self.state.loss_sum);
        self.state.samples = 0;
        let tail = Tail { view, samples, loss_sum, version, compute, number, stop };
        let entry = Entry::Sum { payload, tail };
        let bytes = self.bytes_of(&entry);
        let exchange = self.next_exchange();
        let (who, view) = (self.id, self.view.number);
        if samples > 0 {
            self.port.record(Record::Entered { who, view, exchange, round, samples, compute });
        }
        Summing {
            ticket: self.port.exchange(self.view.clone(), exchange, entry),
            view: self.view.clone(),
            number: exchange,
            entered: self.now(),
            bytes,
            dealt: std::mem::take(&mut self.state.dealt),
            samples,
        }
    }

    async fn outcome(&mut self, summing: &Summing) -> Result<Arc<Sum>> {
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
        let Outcome::Summed(sum) = outcome else {
            unreachable!("members enter the same kind of exchange")
        };
        self.heard = self.heard.max(sum.newest_view);
        self.state.agreed.stopped |= sum.stop;
        Ok(sum)
    }

    async fn wait_for(&self, ticket: Ticket, view: &View, number: u64) -> Result<Outcome> {
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

/// Letters and reads: nothing here waits for more than one peer.
impl Worker {
    pub fn send(&self, to: WorkerId, letter: Letter) {
        self.port.send(to, letter);
    }

    /// The letters that are here, in order of arrival.
    pub fn received(&self) -> Vec<Arc<Vector>> {
        std::iter::from_fn(|| self.port.look(|inbox| inbox.letter(|_, _| true)))
            .filter_map(|(_, letter)| match letter {
                Letter::Params { params, .. } => Some(params),
                _ => None,
            })
            .collect()
    }

    /// The member that hosts the center.
    pub fn server(&self) -> WorkerId {
        self.view.first()
    }

    /// Sends a letter to the server and waits for the center in return.
    pub async fn call(&mut self, letter: Letter) -> Result<Arc<Vector>> {
        Ok(self.call_center(letter).await?.0)
    }

    async fn call_center(&mut self, letter: Letter) -> Result<(Arc<Vector>, u64)> {
        let (server, since) = (self.server(), self.now());
        self.send(server, letter);
        let answer = self
            .port
            .until(Wanted::Letter { from: Some(server) }, |inbox| {
                let gone = !inbox.is_member(server) || inbox.over;
                let letter =
                    inbox.letter(|from, l| from == server && matches!(l, Letter::Params { .. }));
                letter.map(Ok).or(gone.then_some(Err(Interrupt::PeerLost)))
            })
            .await?;
        self.port.record(Record::Waited { who: self.id, whom: server, since });
        let (_, Letter::Params { params, version, done }) = answer else {
            unreachable!("only the center was asked for")
        };
        let (copy, optimizer) = (params.clone(), Arc::default());
        self.port.publish(Shelf::Copy, Published { params: copy, optimizer, version, done });
        Ok((params, version))
    }

    /// Pushes a gradient to the server and waits for the center in return.
    pub async fn push(&mut self, mine: Mine) -> Result<Arc<Vector>> {
        let Mine { gradient, spans, version, .. } = mine;
        let (samples, loss_sum) = (gradient.samples, gradient.loss_sum);
        let payload = self.encode(gradient.sum);
        let tail = Tail { version, samples, loss_sum, ..Tail::default() };
        let letter = Letter::Push { payload, tail, spans: spans.clone() };
        match self.call_center(letter).await {
            Ok((params, version)) => {
                self.state.version = version;
                Ok(params)
            }
            Err(interrupt) => {
                self.give_back(spans);
                Err(interrupt)
            }
        }
    }

    /// A peer's last published replica, read without disturbing it.
    pub async fn read(&self, from: WorkerId) -> Result<Arc<Vector>> {
        let value = self.read_shelf(from, Shelf::Replica).await?;
        let bytes = 4 * value.params.len() as u64 + crate::cluster::HEADER_BYTES;
        self.port.record(Record::Sent { who: from, to: self.id, bytes });
        Ok(value.params)
    }

    pub(crate) async fn read_shelf(&self, from: WorkerId, shelf: Shelf) -> Result<Published> {
        read_shelf(&self.port, from, shelf).await
    }
}

pub(crate) async fn read_shelf(port: &Port, from: WorkerId, shelf: Shelf) -> Result<Published> {
    let ticket = port.read(from, shelf);
    port.until(Wanted::Value { from }, |inbox| {
        let gone = inbox.lost.contains(&from) || inbox.over;
        let value = inbox.value(ticket).map(|value| value.ok_or(Interrupt::PeerLost));
        value.or(gone.then_some(Err(Interrupt::PeerLost)))
    })
    .await
}

/// What the loop around rounds does with a worker.
impl Worker {
    /// Sets the clock and the learning rate's factor for the round that begins.
    pub(crate) fn begin_round(&mut self, nominal_batch: f64, together: bool) {
        self.factor = self.state.agreed.rescaler.factor(nominal_batch);
        self.state.anchor = self.state.params.clone();
        (self.computed, self.deals, self.nominal_batch) = (0, 0, nominal_batch);
        if together {
            self.clock = self.state.agreed.ledger.done().len();
        }
    }

    pub(crate) fn has_sum_under_way(&self) -> bool {
        self.state.summing.is_some()
    }

    pub(crate) fn commit(&mut self) {
        self.state.round += 1;
        for record in std::mem::take(&mut self.applied) {
            self.port.record(record);
        }
        let fingerprint = self.plan.fingerprints.then(|| fingerprint(&self.state.params));
        let (who, round) = (self.id, self.state.round);
        self.port.record(Record::Committed { who, round, fingerprint });
    }

    /// Puts the replica where peers can read it.
    pub fn publish(&self) {
        let (params, optimizer) = (self.state.params.clone(), self.state.optimizer.clone());
        let done = Arc::default();
        self.port.publish(Shelf::Replica, Published { params, optimizer, version: 0, done });
    }

    pub(crate) fn roll_back(&mut self, before: State) {
        self.applied.clear();
        let (who, round, samples) = (self.id, before.round, self.computed);
        self.port.record(Record::RolledBack { who, round, samples });
        self.state = before;
    }

    /// Takes on a new view: what was under way in the old one is dropped, and its samples are free.
    pub(crate) fn enter_view(&mut self, view: Arc<View>) {
        self.view = view;
        self.exchanges = 0;
        if let Some(summing) = self.state.summing.take()
            && summing.samples > 0
        {
            let (who, round, samples) = (self.id, self.state.round, summing.samples);
            self.port.record(Record::RolledBack { who, round, samples });
        }
        self.state.drawn = 0;
        self.state.dealt = Spans::new();
        (self.state.samples, self.state.loss_sum) = (0, 0.0);
        self.state.compute = Duration::ZERO;
        self.state.agreed.ledger.release_all();
    }
}
