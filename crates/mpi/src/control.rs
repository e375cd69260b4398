//! What the threads of a rank ask of the one that owns MPI, and what that one knows of the other ranks.

use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{Receiver, Sender};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use paceline_net::Teller;
use paceline_net::processes::{Clock, Command, OwnShelves, Shape};

use crate::error::MpiError;
use crate::sums::Sums;

/// Why the job cannot go on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Loss {
    #[error("rank {rank} was lost: it has been silent for {:.1} s", silence.as_secs_f64())]
    Silent { rank: usize, silence: Duration },
    /// It has said why.
    #[error("rank {rank} ended the job")]
    Ended { rank: usize },
    #[error("the thread that serves MPI panicked; see above")]
    Panicked,
    #[error(transparent)]
    Failed(#[from] MpiError),
}

/// What the links of a worker need.
pub struct LinksConfig {
    pub shape: Shape,
    pub sums: Sums,
    pub clock: Clock,
    pub events: Teller,
    /// Set while this rank computes a gradient: then MPI is tested less often, and takes less from it.
    pub computes: Arc<AtomicBool>,
}

/// What other threads ask of the thread that owns MPI.
pub enum Control {
    /// Tells all ranks a number; answers with those of all.
    Agree(u64, Sender<Vec<u64>>),
    /// A rank that is silent for this long is lost.
    Patience(Duration),
    /// Workers will exchange vectors of this length.
    Expect(usize),
    Serve(Box<Serve>),
    /// Measures MPI's own sum of so many numbers.
    AllReduce(usize, Sender<Duration>),
    End,
    Abort(i32),
}

/// The links of a worker, to be served.
pub struct Serve {
    pub config: LinksConfig,
    pub commands: Receiver<Command>,
    pub shelves: Arc<OwnShelves>,
}

/// Says so if the thread that holds it panics: all others would wait for it.
pub struct PanicGuard(pub Arc<Shared>);

impl Drop for PanicGuard {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.lose(Loss::Panicked);
        }
    }
}

/// What is known of the other ranks.
#[derive(Default)]
pub struct Shared {
    pub loss: Mutex<Option<Loss>>,
    /// When each rank was last heard of. Rank 0 hears all, the others rank 0.
    pub heard: Mutex<Vec<Instant>>,
}

/// A thread that panics holds none of these.
pub fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("no holder panics")
}

impl Shared {
    pub fn hear(&self, rank: usize) {
        if let Some(at) = locked(&self.heard).get_mut(rank) {
            *at = Instant::now();
        }
    }

    pub fn hear_all(&self) {
        locked(&self.heard).fill(Instant::now());
    }

    pub fn loss(&self) -> Option<Loss> {
        locked(&self.loss).clone()
    }

    pub fn lose(&self, loss: Loss) {
        locked(&self.loss).get_or_insert(loss);
    }

    /// The rank among these that has been silent the longest, and for how long.
    pub fn most_silent(&self, of: std::ops::Range<usize>) -> Option<(usize, Duration)> {
        let heard = locked(&self.heard);
        let silences = of.filter_map(|rank| Some((rank, heard.get(rank)?.elapsed())));
        silences.max_by_key(|(_, silence)| *silence)
    }
}
