//! Times single actions on the very threads that training runs on.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier, Mutex};
use std::time::{Duration, Instant};

use paceline_learn::{Gradient, OptimizerState};
use paceline_net::{Hub, Setting, ThreadCluster};
use paceline_runtime::cluster::{Action, Entry, Event, Tail, Ticket, Word};
use paceline_runtime::codec::Payload;
use paceline_runtime::{Cluster, Spans, View, WorkerId};

use super::fit::{Point, Spread};
use crate::job::Prepared;

/// Nothing is timed less or more often than this, whatever the budget.
const REPEATS_MIN: usize = 5;
const REPEATS_MAX: usize = 2000;

/// Goes before what counts: memory is touched, and threads are there.
const WARM_UP: usize = 2;

/// What a gradient takes at several batch sizes, from asking for it to having it, for one worker alone.
pub fn gradients(prepared: &Prepared, budget: Duration) -> Result<Vec<Point>, String> {
    let (batch, total) = (prepared.batch, prepared.plan.samples_total);
    let mut sizes =
        [batch / 4, batch / 2, batch, 2 * batch].map(|size| size.clamp(1, total)).to_vec();
    sizes.dedup();
    let mut seat = Seat::new(&hub(prepared, 1, vec![]), WorkerId(0));
    let each = budget / sizes.len() as u32;
    let mut point = |size| {
        let seconds = repeat(each, || seat.gradient(prepared, size))?;
        Ok(Point { size, seconds })
    };
    sizes.into_iter().map(&mut point).collect()
}

/// What a gradient of a batch takes beyond its pace, when all workers keep theirs at the same time.
pub fn handovers(
    prepared: &Prepared,
    paces: &[Duration],
    budget: Duration,
) -> Result<Spread, String> {
    let hub = hub(prepared, paces.len() as u32, paces.to_vec());
    let one = |id: usize| {
        let mut seat = Seat::new(&hub, WorkerId(id as u32));
        let pace = paces[id].mul_f64(prepared.batch as f64);
        let late = || Ok((seat.gradient(prepared, prepared.batch)? - pace.as_secs_f64()).max(0.0));
        timings(budget, late)
    };
    let all: Result<Vec<Vec<f64>>, String> = std::thread::scope(|scope| {
        let one = &one;
        let workers: Vec<_> = (0..paces.len()).map(|id| scope.spawn(move || one(id))).collect();
        let join = |worker: std::thread::ScopedJoinHandle<'_, _>| {
            worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        workers.into_iter().map(join).collect()
    });
    Ok(Spread::of(all?.concat()))
}

/// What one update of the replica takes, with the copy that an update is made on.
pub fn updates(prepared: &Prepared, budget: Duration) -> Spread {
    let plan = &prepared.plan;
    let gradient = Gradient { sum: vec![1e-3; plan.initial.len()], loss_sum: 1.0, samples: 1 };
    let (mut params, mut state) = ((*plan.initial).clone(), OptimizerState::default());
    let update = || {
        let since = Instant::now();
        let (mut after, mut state_after) = (params.clone(), state.clone());
        plan.optimizer.descend(&mut after, &mut state_after, &gradient, 1e-6, &plan.layout);
        (params, state) = (after, state_after);
        Ok(since.elapsed().as_secs_f64())
    };
    repeat(budget, update).expect("an update cannot fail")
}

/// What a sum of vectors of several sizes (in bytes) takes, from the last member's entering until all
/// members have it.
pub fn exchanges(prepared: &Prepared, members: u32, budget: Duration) -> Vec<Point> {
    let values = prepared.plan.initial.len();
    let mut sizes = vec![1, values.div_ceil(2), values];
    sizes.dedup();
    let each = budget / sizes.len() as u32;
    let point = |length: usize| Point {
        size: 4 * length as u64,
        seconds: sums(prepared, members, length, each),
    };
    sizes.into_iter().map(point).collect()
}

/// Members that do nothing but sum vectors of one length, all at the same time.
fn sums(prepared: &Prepared, members: u32, length: usize, budget: Duration) -> Spread {
    let hub = hub(prepared, members, vec![]);
    let members: Vec<WorkerId> = (0..members).map(WorkerId).collect();
    let view = Arc::new(View { number: 1, members: members.clone() });
    let (gate, is_over) = (Barrier::new(members.len() + 1), AtomicBool::new(false));
    let times = Mutex::new(Vec::with_capacity(members.len()));
    let member = |id: WorkerId| {
        let (mut seat, vector) = (Seat::new(&hub, id), vec![1e-3; length]);
        for number in 1.. {
            let payload = Payload::Dense(vector.clone());
            let entry = Entry::Sum { payload, tail: Tail::default() };
            gate.wait();
            if is_over.load(Ordering::Relaxed) {
                return;
            }
            let time = seat.exchange(view.clone(), number, entry);
            times.lock().expect("no holder panics").push(time);
            gate.wait();
        }
    };
    let one = || {
        gate.wait();
        gate.wait();
        let times = std::mem::take(&mut *times.lock().expect("no holder panics"));
        let entered = times.iter().map(|(entered, _)| *entered).max();
        let ended = times.iter().map(|(_, ended)| *ended).max();
        let took = entered.zip(ended).map(|(entered, ended)| ended - entered);
        Ok(took.unwrap_or_default().as_secs_f64())
    };
    std::thread::scope(|scope| {
        for id in members {
            let member = &member;
            scope.spawn(move || member(id));
        }
        let seconds = repeat(budget, one).expect("a sum cannot fail");
        is_over.store(true, Ordering::Relaxed);
        gate.wait();
        seconds
    })
}

/// Repeats a timing until the budget is used up.
fn repeat(budget: Duration, time: impl FnMut() -> Result<f64, String>) -> Result<Spread, String> {
    Ok(Spread::of(timings(budget, time)?))
}

fn timings(
    budget: Duration,
    mut time: impl FnMut() -> Result<f64, String>,
) -> Result<Vec<f64>, String> {
    for _ in 0..WARM_UP {
        time()?;
    }
    let (since, mut timings) = (Instant::now(), vec![]);
    while timings.len() < REPEATS_MIN || (timings.len() < REPEATS_MAX && since.elapsed() < budget) {
        timings.push(time()?);
    }
    Ok(timings)
}

fn hub(prepared: &Prepared, workers: u32, pace: Vec<Duration>) -> Arc<Hub> {
    let (hub, _) = Hub::new(Setting {
        seed: prepared.plan.seed,
        workers,
        compute: prepared.task.compute(prepared.plan.seed),
        samples_total: prepared.plan.samples_total,
        center_applies: false,
        done: Spans::new(),
        pace,
    });
    hub
}

/// A worker's place in a cluster of threads, without a strategy: asks for one thing at a time.
struct Seat {
    me: WorkerId,
    cluster: ThreadCluster,
    asked: u64,
    position: u64,
}

impl Seat {
    fn new(hub: &Arc<Hub>, me: WorkerId) -> Seat {
        Seat { me, cluster: hub.seat(me), asked: 0, position: 0 }
    }

    fn ticket(&mut self) -> Ticket {
        self.asked += 1;
        Ticket(self.asked)
    }

    /// The seconds that a gradient of so many samples takes.
    fn gradient(&mut self, prepared: &Prepared, samples: u64) -> Result<f64, String> {
        if self.position + samples > prepared.plan.samples_total {
            self.position = 0;
        }
        let spans = Spans::one(self.position, self.position + samples);
        self.position += samples;
        let (ticket, params) = (self.ticket(), prepared.plan.initial.clone());
        let since = Instant::now();
        self.cluster.submit(self.me, Action::Compute { ticket, params, spans, updates: 0 });
        loop {
            match self.cluster.next() {
                Some(Event::Computed { .. }) => return Ok(since.elapsed().as_secs_f64()),
                Some(_) => {}
                None => return Err("the model panicked while it was timed; see above".into()),
            }
        }
    }

    /// Takes part in an exchange; gives when it was entered and when it was over.
    fn exchange(&mut self, view: Arc<View>, number: u64, entry: Entry) -> (Instant, Instant) {
        let ticket = self.ticket();
        let entered = Instant::now();
        self.cluster.submit(self.me, Action::Exchange { ticket, view, number, entry });
        while !matches!(self.cluster.next(), Some(Event::Exchanged { .. }) | None) {}
        (entered, Instant::now())
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.cluster.submit(self.me, Action::Tell(Word::Gone));
    }
}
