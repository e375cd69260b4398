//! Times single actions on the threads that training runs on.

use std::hint::black_box;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::thread::ScopedJoinHandle;
use std::time::{Duration, Instant};

use paceline_learn::{Dice, Gradient, OptimizerState, Vector};
use paceline_net::{ThreadCluster, ThreadConfig, ThreadHub};
use paceline_runtime::codec::{Codec, Payload};
use paceline_runtime::coordination::Word;
use paceline_runtime::edge::{Action, ClusterOutput, Event, News, Place};
use paceline_runtime::wire::{Entry, Tail};
use paceline_runtime::{Cluster, Line, Record, Spans, Ticket, View, WorkerId};

use super::fit::{Point, Spread};
use crate::error::RunError;
use crate::job::Prepared;
use crate::threads::start_worker;

/// Every timing is repeated this often at least and at most, whatever the budget.
const REPEATS_MIN: usize = 5;
const REPEATS_MAX: usize = 2000;

/// Repeats before those that count: threads start, and memory is mapped.
const WARM_UP: usize = 2;

/// The time of a gradient at several batch sizes, from the request to the result, for a single worker.
pub fn gradients(prepared: &Prepared, budget: Duration) -> Result<Vec<Point>, RunError> {
    let (batch, total) = (prepared.batch, prepared.plan.samples_total);
    let mut sizes =
        [batch / 4, batch / 2, batch, 2 * batch].map(|size| size.clamp(1, total)).to_vec();
    sizes.dedup();
    let mut probe = Probe::new(&hub(prepared, 1, vec![]), WorkerId(0));
    // In turns, so that a disturbance affects all sizes alike.
    let turns = timings(budget, || {
        sizes.iter().map(|size| probe.gradient(prepared, *size)).collect::<Result<Vec<f64>, _>>()
    })?;
    Ok(points(&sizes, &turns))
}

/// How much longer a gradient takes than its pace, with all workers at the same time.
pub fn handovers(
    prepared: &Prepared,
    paces: &[Duration],
    budget: Duration,
) -> Result<Spread, RunError> {
    let hub = hub(prepared, paces.len() as u32, paces.to_vec());
    let worker = |id: WorkerId| {
        let (mut probe, pace) = (Probe::new(&hub, id), paces[id.0 as usize]);
        let paced = pace.mul_f64(prepared.batch as f64).as_secs_f64();
        timings(budget, || Ok((probe.gradient(prepared, prepared.batch)? - paced).max(0.0)))
    };
    let workers: Vec<WorkerId> = (0..paces.len() as u32).map(WorkerId).collect();
    let all: Result<Vec<Vec<f64>>, RunError> = all_at_once(&workers, worker).into_iter().collect();
    Ok(Spread::of(all?.concat()))
}

/// The time between two gradients of a single worker: an update and its other work. A gradient takes about
/// `gradient`.
pub fn pauses(
    prepared: &Prepared,
    gradient: Duration,
    budget: Duration,
) -> Result<Spread, RunError> {
    let rounds = budget.as_secs_f64() / gradient.as_secs_f64().max(1e-6);
    let rounds = (rounds as usize).clamp(REPEATS_MIN, REPEATS_MAX) + WARM_UP + 1;
    let mut alone = prepared.clone();
    (alone.workers, alone.workers_first) = (1, 1);
    alone.plan.samples_total = rounds as u64 * prepared.batch;
    let (hub, outputs) = hub_with_outputs(&alone, 1, vec![]);
    let cluster = hub.join().expect("the coordinator is there");
    let worker = start_worker(&alone, cluster);
    worker.join().map_err(|_| RunError::ModelPanicked)??;
    let computed: Vec<(Duration, Duration)> = outputs.try_iter().filter_map(computed).collect();
    let pauses = computed.windows(2).map(|pair| pair[1].0.saturating_sub(pair[0].1));
    let pauses: Vec<f64> = pauses.skip(WARM_UP).map(|pause| pause.as_secs_f64()).collect();
    if pauses.is_empty() {
        return Err(RunError::TooFewGradients);
    }
    Ok(Spread::of(pauses))
}

/// The start and the end of a gradient.
fn computed(output: ClusterOutput) -> Option<(Duration, Duration)> {
    match output {
        ClusterOutput::Line(Line { at, record: Record::Computed { since, .. } }) => {
            Some((since, at))
        }
        _ => None,
    }
}

/// The time of one update, which makes a new replica from the old one.
pub fn updates(prepared: &Prepared, budget: Duration) -> Spread {
    let plan = &prepared.plan;
    let sum = Vector::filled(1e-3, plan.initial.len());
    let gradient = Gradient { samples: 1, loss_sum: 1.0, sum, ..Gradient::default() };
    let (mut params, mut state) = ((*plan.initial).clone(), OptimizerState::default());
    let update = || {
        let since = Instant::now();
        (params, state) = plan.optimizer.descended(&params, &state, &gradient, 1e-6, &plan.layout);
        Ok(since.elapsed().as_secs_f64())
    };
    Spread::of(timings(budget, update).expect("an update cannot fail"))
}

/// The time that a member spends on a lossy codec (QSGD with 8 bits) in one exchange: it encodes its vector, decodes as many
/// numbers of others, and decodes the result.
pub fn encodings(prepared: &Prepared, budget: Duration) -> Spread {
    let (vector, params) = (&prepared.plan.initial, prepared.plan.layout.params);
    let codec = Codec::Qsgd { bits: 8, bucket: 512 };
    let mut dice = Dice::keyed(&[prepared.plan.seed]);
    let encode = || {
        let own = Vector::clone(vector);
        let since = Instant::now();
        let payload = codec.encode(own, params, &mut Vector::new(), &mut dice);
        let mut sum = payload.decode();
        payload.add_to(&mut sum);
        black_box(sum);
        Ok(since.elapsed().as_secs_f64())
    };
    Spread::of(timings(budget, encode).expect("encoding cannot fail"))
}

/// The time of a sum of vectors of several sizes (in bytes), from the entry of the last member until all
/// members have the result.
pub fn exchanges(prepared: &Prepared, members: u32, budget: Duration) -> Vec<Point> {
    let values = prepared.plan.initial.len();
    let mut sizes = vec![1, values.div_ceil(2), values];
    sizes.dedup();
    let since = Instant::now();
    let first = WARM_UP + REPEATS_MIN;
    let mut turns = sums(prepared, members, &sizes, first);
    turns.drain(..WARM_UP);
    let left = budget.saturating_sub(since.elapsed()).as_secs_f64();
    let more = left / since.elapsed().as_secs_f64() * first as f64;
    turns.extend(sums(prepared, members, &sizes, (more as usize).min(REPEATS_MAX)));
    let bytes: Vec<u64> = sizes.iter().map(|length| 4 * *length as u64).collect();
    points(&bytes, &turns)
}

/// Members sleep before they enter, as in a run: a thread that was just awake would wake up faster.
const PAUSE: Duration = Duration::from_millis(2);

/// Times members that only sleep and sum vectors of these lengths, in turns.
fn sums(prepared: &Prepared, members: u32, lengths: &[usize], turns: usize) -> Vec<Vec<f64>> {
    let hub = hub(prepared, members, vec![]);
    let members: Vec<WorkerId> = (0..members).map(WorkerId).collect();
    let view = Arc::new(View { incarnation: 1, number: 1, members: members.clone() });
    let rounds = turns * lengths.len();
    let member = |id: WorkerId| {
        let mut probe = Probe::new(&hub, id);
        let round = |number: usize| {
            let payload = Payload::dense(Vector::filled(1e-3, lengths[number % lengths.len()]));
            std::thread::sleep(PAUSE);
            probe.exchange(
                &view,
                number as u64,
                Entry::Sum { payload: Arc::new(payload), tail: Tail::default() },
            )
        };
        (0..rounds).map(round).collect::<Vec<(Instant, Instant)>>()
    };
    let times = all_at_once(&members, member);
    let took = |round: usize| {
        let entered = times.iter().map(|times| times[round].0).max();
        let ended = times.iter().map(|times| times[round].1).max();
        entered.zip(ended).map_or(0.0, |(entered, ended)| (ended - entered).as_secs_f64())
    };
    let took: Vec<f64> = (0..rounds).map(took).collect();
    took.chunks(lengths.len()).map(<[f64]>::to_vec).collect()
}

/// The timings of each size over all turns.
fn points(sizes: &[u64], turns: &[Vec<f64>]) -> Vec<Point> {
    let point = |(i, size): (usize, &u64)| {
        let seconds = Spread::of(turns.iter().map(|turn| turn[i]).collect());
        Point { size: *size, seconds }
    };
    sizes.iter().enumerate().map(point).collect()
}

/// Runs `work` for all workers at once, each on a thread; returns the results in order.
fn all_at_once<T: Send>(workers: &[WorkerId], work: impl Fn(WorkerId) -> T + Sync) -> Vec<T> {
    std::thread::scope(|scope| {
        let start = |id: &WorkerId| {
            let (id, work) = (*id, &work);
            scope.spawn(move || work(id))
        };
        let threads: Vec<_> = workers.iter().map(start).collect();
        let join =
            |thread: ScopedJoinHandle<'_, T>| thread.join().unwrap_or_else(|e| resume_unwind(e));
        threads.into_iter().map(join).collect()
    })
}

/// Repeats a timing until the budget is used.
fn timings<T>(
    budget: Duration,
    mut time: impl FnMut() -> Result<T, RunError>,
) -> Result<Vec<T>, RunError> {
    for _ in 0..WARM_UP {
        time()?;
    }
    let (since, mut timings) = (Instant::now(), vec![]);
    while timings.len() < REPEATS_MIN || (timings.len() < REPEATS_MAX && since.elapsed() < budget) {
        timings.push(time()?);
    }
    Ok(timings)
}

fn hub(prepared: &Prepared, workers: u32, pace: Vec<Duration>) -> Arc<ThreadHub> {
    hub_with_outputs(prepared, workers, pace).0
}

fn hub_with_outputs(
    prepared: &Prepared,
    workers: u32,
    pace: Vec<Duration>,
) -> (Arc<ThreadHub>, Receiver<ClusterOutput>) {
    ThreadHub::new(ThreadConfig {
        seed: prepared.plan.seed,
        workers,
        compute: prepared.task.compute(prepared.plan.seed),
        samples_total: prepared.plan.samples_total,
        coordination: prepared.strategy().coordination(),
        elapsed: Duration::ZERO,
        done: Spans::new(),
        pace,
        hosts: None,
        elastic: None,
    })
}

/// A worker without a strategy in a cluster of threads: performs one action at a time.
struct Probe {
    me: WorkerId,
    cluster: ThreadCluster,
    asked: u64,
    position: u64,
}

impl Probe {
    fn new(hub: &Arc<ThreadHub>, me: WorkerId) -> Probe {
        Probe { me, cluster: hub.attach(me), asked: 0, position: 0 }
    }

    fn ticket(&mut self) -> Ticket {
        self.asked += 1;
        Ticket(self.asked)
    }

    /// The seconds that a gradient of this many samples takes.
    fn gradient(&mut self, prepared: &Prepared, samples: u64) -> Result<f64, RunError> {
        if self.position + samples > prepared.plan.samples_total {
            self.position = 0;
        }
        let spans = Spans::one(self.position, self.position + samples);
        self.position += samples;
        let ticket = self.ticket();
        // New params each time, as after an update: a model may cache results of equal params.
        let mut params = prepared.plan.initial.clone();
        if let Some(first) = Arc::make_mut(&mut params).first_mut() {
            *first += 1e-3 * self.asked as f32;
        }
        let since = Instant::now();
        self.cluster.submit(
            self.me,
            Action::Compute { ticket, at: Place::Ours(params), spans, updates: 0 },
        );
        loop {
            match self.cluster.next() {
                Some(Event::For { news: News::Computed { .. }, .. }) => {
                    return Ok(since.elapsed().as_secs_f64());
                }
                Some(_) => {}
                None => return Err(RunError::ModelPanicked),
            }
        }
    }

    /// Takes part in an exchange; returns when it entered and when the exchange was over.
    fn exchange(&mut self, view: &Arc<View>, number: u64, entry: Entry) -> (Instant, Instant) {
        let (ticket, view) = (self.ticket(), view.clone());
        let entered = Instant::now();
        self.cluster.submit(self.me, Action::Exchange { ticket, view, number, entry });
        while !matches!(
            self.cluster.next(),
            Some(Event::For { news: News::Summed { .. }, .. }) | None
        ) {}
        (entered, Instant::now())
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        self.cluster.submit(self.me, Action::Tell(Word::Gone));
    }
}
