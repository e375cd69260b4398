//! A process of an MPI job, as its other threads see it: which rank it is, and what it asks of the thread that owns MPI.

use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex};
use std::thread::{JoinHandle, Thread};
use std::time::{Duration, Instant};

use paceline_net::processes::message::{Down, Up};
use paceline_net::processes::{Mesh, OwnShelves};

use crate::control::{Control, LinksConfig, Loss, PanicGuard, Serve, Shared, locked};
use crate::error::MpiError;
use crate::progress::Progress;
use crate::raw::Mpi;

/// This process and the others of its MPI job.
pub struct Ranks {
    pub rank: usize,
    pub size: usize,
    /// To the coordinator, which is on rank 0.
    pub up: Sender<Up>,
    /// From the coordinator.
    down: Mutex<Option<Receiver<Down>>>,
    /// On rank 0: to and from all ranks, itself included.
    coordinator: Mutex<Option<CoordinatorEnd>>,
    control: Sender<Control>,
    shared: Arc<Shared>,
    thread: JoinHandle<()>,
}

/// The coordinator's end of the streams, by rank.
pub type CoordinatorEnd = (Vec<Sender<Down>>, Receiver<(usize, Up)>);

/// Sees from any thread whether the job can go on.
#[derive(Clone)]
pub struct Watch {
    rank: usize,
    size: usize,
    shared: Arc<Shared>,
    control: Sender<Control>,
    thread: Thread,
}

impl Watch {
    /// How many ranks there are.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Why the job cannot go on, if it cannot.
    pub fn loss(&self) -> Option<Loss> {
        self.shared.loss()
    }

    /// A rank that has been silent for this long, though it may only be slow.
    pub fn silent_for(&self, time: Duration) -> Option<Loss> {
        let watched = if self.rank == 0 { 1..self.size } else { 0..1 };
        let (rank, silence) = self.shared.most_silent(watched)?;
        (silence >= time).then_some(Loss::Silent { rank, silence })
    }

    /// Ends all ranks, and does not return.
    pub fn abort(&self, code: u8) -> ! {
        drop(self.control.send(Control::Abort(i32::from(code))));
        self.thread.unpark();
        // MPI ends the process; if it hangs, nothing is gained by waiting for it.
        std::thread::sleep(Duration::from_secs(2));
        std::process::exit(i32::from(code))
    }
}

impl Ranks {
    /// Joins the other processes that the launcher has started. Without a launcher there is one rank.
    pub fn start() -> Result<Ranks, MpiError> {
        let (control, orders) = mpsc::channel();
        let (up, words) = mpsc::channel();
        let (tell, told) = mpsc::channel();
        let shared = Arc::<Shared>::default();
        let known = shared.clone();
        // MPI belongs to the thread that initialises it.
        let thread = std::thread::Builder::new().name("mpi".to_owned()).spawn(move || {
            let _guard = PanicGuard(known.clone());
            let mpi = match Mpi::start() {
                Ok(mpi) => mpi,
                Err(error) => return drop(tell.send(Err(error))),
            };
            let (rank, size) = (mpi.rank, mpi.size);
            *locked(&known.heard) = vec![Instant::now(); size];
            let (downs, mut taken): (Vec<Sender<Down>>, Vec<Receiver<Down>>) =
                (0..size).map(|_| mpsc::channel()).unzip();
            let (hears, heard) = mpsc::channel();
            // The coordinator's orders to its own rank stay in this process.
            let own = downs.get(rank).cloned();
            let down = (rank < taken.len()).then(|| taken.remove(rank));
            let coordinator = (rank == 0).then_some((downs, heard));
            drop(tell.send(Ok((rank, size, down, coordinator))));
            let hears = (rank == 0).then_some(hears);
            Progress::new(mpi, known, orders, words, (hears, taken, own)).run();
        });
        let failed = |text: String| MpiError::Call { call: "starting a thread", text };
        let thread = thread.map_err(|error| failed(error.to_string()))?;
        let told = told.recv().map_err(|_| failed("it ended".to_owned()))?;
        let (rank, size, down, coordinator) = told?;
        let (down, coordinator) = (Mutex::new(down), Mutex::new(coordinator));
        Ok(Ranks { rank, size, up, down, coordinator, control, shared, thread })
    }

    fn control(&self, control: Control) {
        drop(self.control.send(control));
        self.thread.thread().unpark();
    }

    /// Tells all ranks a number, and returns those of all; empty if MPI failed.
    pub fn agree(&self, number: u64) -> Vec<u64> {
        let (to, all) = mpsc::channel();
        self.control(Control::Agree(number, to));
        all.recv().unwrap_or_default()
    }

    /// How long MPI's own blocking sum of so many numbers takes, to compare with. All ranks call it at the same time.
    pub fn all_reduce_time(&self, numbers: usize) -> Option<Duration> {
        let (to, time) = mpsc::channel();
        self.control(Control::AllReduce(numbers, to));
        time.recv().ok()
    }

    pub fn set_patience(&self, patience: Duration) {
        self.control(Control::Patience(patience));
    }

    /// Workers will exchange vectors of this length. Call it before the coordinator hears of this rank's worker.
    pub fn expect(&self, size: usize) {
        self.control(Control::Expect(size));
    }

    /// The links of this rank's worker.
    pub fn links(&self, config: LinksConfig) -> Mesh {
        let (commands, todo) = mpsc::channel();
        let shelves = Arc::<OwnShelves>::default();
        let serve = Serve { config, commands: todo, shelves: shelves.clone() };
        self.control(Control::Serve(Box::new(serve)));
        let thread = self.thread.thread().clone();
        Mesh::served_elsewhere(commands, Arc::new(move || thread.unpark()), shelves)
    }

    /// The stream of orders to this rank's worker; it can be taken once.
    pub fn take_down(&self) -> Option<Receiver<Down>> {
        locked(&self.down).take()
    }

    /// The coordinator's end of all streams, on rank 0; it can be taken once.
    pub fn take_coordinator(&self) -> Option<CoordinatorEnd> {
        locked(&self.coordinator).take()
    }

    pub fn watch(&self) -> Watch {
        let (shared, control) = (self.shared.clone(), self.control.clone());
        let thread = self.thread.thread().clone();
        Watch { rank: self.rank, size: self.size, shared, control, thread }
    }

    /// Sends what is left to send, waits for all ranks to do so, and ends MPI.
    pub fn end(self) {
        self.control(Control::End);
        let _ = self.thread.join();
    }
}
