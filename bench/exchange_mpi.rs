//! Sums between MPI ranks beside MPI's own, and how much of a sum hides behind computing.
//!
//! `cargo bench -p paceline-mpi --features mpi --bench exchange_mpi --no-run`, then `mpirun -n 2` with the program that it names.
//! Ours is timed through the whole path of a worker: the entry is handed to the thread that owns MPI, and the result comes back.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use paceline_learn::Vector;
use paceline_mpi::{LinksConfig, Ranks, Sums};
use paceline_net::processes::{Clock, Command, Mesh, Shape};
use paceline_net::{Inbox, inbox};
use paceline_runtime::codec::{Codec, Payload};
use paceline_runtime::edge::{Event, News};
use paceline_runtime::wire::{Entry, Tail};
use paceline_runtime::{Sum, Ticket, View, WorkerId};

/// The links of one rank, for vectors of one length.
struct Worker {
    mesh: Mesh,
    events: Inbox,
    view: Arc<View>,
    mine: Arc<Payload>,
    exchange: u64,
    computes: Arc<AtomicBool>,
}

impl Worker {
    fn new(ranks: &Ranks, numbers: usize, sums: Sums) -> Worker {
        let shape = Shape { seed: 1, params: numbers, buffers: 0, codec: Codec::Dense };
        let (send, events) = inbox();
        let computes = Arc::<AtomicBool>::default();
        let clock = Clock::from(Duration::ZERO);
        let flag = computes.clone();
        let mesh = ranks.links(LinksConfig { shape, sums, clock, events: send, computes: flag });
        let members = (0..ranks.size as u32).map(WorkerId).collect();
        let view = Arc::new(View { incarnation: 0, number: 1, members });
        let value = |i: usize| (i % 97) as f32 * 0.1 + ranks.rank as f32;
        let mine = Arc::new(Payload::dense((0..numbers).map(value).collect::<Vector>()));
        Worker { mesh, events, view, mine, exchange: 0, computes }
    }

    fn start(&mut self) {
        self.exchange += 1;
        let (view, number) = (self.view.clone(), self.exchange);
        let tail = Tail { samples: 1, ..Tail::default() };
        let entry = Entry::Sum { payload: self.mine.clone(), tail };
        let ticket = Ticket(number);
        self.mesh.give(Command::Exchange { ticket, view, number, entry });
    }

    fn finish(&mut self) -> Arc<Sum> {
        match self.events.wait() {
            Some(Event::For { news: News::Summed { sum, .. }, .. }) => sum,
            other => panic!("a sum was expected, not {other:?}"),
        }
    }

    fn timed(&mut self) -> Duration {
        let since = Instant::now();
        self.start();
        let sum = self.finish();
        let took = since.elapsed();
        assert_eq!(sum.gradient.sum.len(), self.mine.len());
        took
    }
}

fn median(times: Vec<Duration>) -> f64 {
    percentile(times, 50)
}

fn percentile(mut times: Vec<Duration>, percent: usize) -> f64 {
    times.sort();
    times[times.len() * percent / 100].as_secs_f64()
}

fn main() {
    let ranks = Ranks::start().expect("MPI can be started");
    if ranks.rank == 0 {
        println!("{} ranks", ranks.size);
        println!(
            "us: MPI_Allreduce, in order (ratio), --sums mpi (ratio): medians | tenth percentiles"
        );
    }
    for bytes in [4 << 10, 64 << 10, 1 << 20, 4 << 20, 16 << 20, 44 << 20] {
        compare(&ranks, bytes / 4, if bytes > 8 << 20 { 31 } else { 101 });
    }
    for compute in [1.0, 2.0] {
        overlap(&ranks, 11_000_000, compute);
    }
    ranks.end();
}

fn compare(ranks: &Ranks, numbers: usize, rounds: usize) {
    let mut times = [vec![], vec![], vec![]];
    let mut ours = Worker::new(ranks, numbers, Sums::InOrder);
    let mut theirs_through_us = None;
    // Both kinds of links would answer the same commands, so they take turns in bursts.
    for burst in 0..6 {
        for _ in 0..rounds / 3 {
            ranks.agree(0);
            times[0].extend(ranks.all_reduce_time(numbers));
            ranks.agree(0);
            match &mut theirs_through_us {
                None => times[1].push(ours.timed()),
                Some(worker) => times[2].push(Worker::timed(worker)),
            }
        }
        ranks.agree(0);
        if burst % 2 == 0 {
            theirs_through_us = Some(Worker::new(ranks, numbers, Sums::Mpi));
        } else {
            theirs_through_us = None;
            ours = Worker::new(ranks, numbers, Sums::InOrder);
        }
    }
    if ranks.rank == 0 {
        print!("{:<10}", 4 * numbers);
        // On a busy machine the tenth percentile is the steadier figure.
        for percent in [50, 10] {
            let [raw, ours, mpi] = times.clone().map(|times| percentile(times, percent));
            let shown = |seconds: f64| format!("{:>8.0} ({:.2})", 1e6 * seconds, seconds / raw);
            print!("{:>9.0} {} {}   |", 1e6 * raw, shown(ours), shown(mpi));
        }
        println!();
    }
}

/// As `delayed` does: the next gradient is computed (here: slept) while the sum of the last one is under way.
fn overlap(ranks: &Ranks, numbers: usize, compute: f64) {
    let mut worker = Worker::new(ranks, numbers, Sums::InOrder);
    let sums = |worker: &mut Worker| {
        let times = (0..11).map(|_| {
            ranks.agree(0);
            worker.timed()
        });
        median(times.collect())
    };
    let alone = sums(&mut worker);
    // All ranks sleep equally long.
    let alone = f64::from_bits(ranks.agree(alone.to_bits())[0]);
    let slept = Duration::from_secs_f64(alone * compute);
    let both = (0..11).map(|_| {
        ranks.agree(0);
        let since = Instant::now();
        worker.start();
        worker.computes.store(true, Ordering::Relaxed);
        std::thread::sleep(slept);
        worker.computes.store(false, Ordering::Relaxed);
        worker.finish();
        since.elapsed()
    });
    let both = median(both.collect());
    if ranks.rank == 0 {
        let slept = slept.as_secs_f64();
        let hidden = (alone + slept - both) / alone.min(slept);
        println!(
            "{numbers} numbers: sum alone {:.1} ms, computing {:.1} ms, both at once {:.1} ms: {:.0} % hidden",
            1e3 * alone,
            1e3 * slept,
            1e3 * both,
            100.0 * hidden
        );
    }
}
