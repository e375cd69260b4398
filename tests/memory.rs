//! Simulating many workers takes little memory.

#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use paceline::{Job, Scenario, SimulateOptions, simulate};

/// The bytes in use, and their maximum so far.
static NOW: AtomicUsize = AtomicUsize::new(0);
static MOST: AtomicUsize = AtomicUsize::new(0);

/// Counts the bytes in use.
struct Counting;

// SAFETY: every call is forwarded unchanged to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let now = NOW.fetch_add(layout.size(), Ordering::Relaxed) + layout.size();
        MOST.fetch_max(now, Ordering::Relaxed);
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        NOW.fetch_sub(layout.size(), Ordering::Relaxed);
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The peak memory of a simulation, in vectors of the model's length.
fn vectors(strategy: &str, workers: u32) -> f64 {
    let text = format!(
        "strategy = \"{strategy}\"\nmodel = \"cnn\"\nsamples = {}\nepochs = 2\nbatch = 1\n",
        2 * workers
    );
    let job = Job::from_toml(&text).expect("the job is valid TOML");
    let prepared = job.prepare(workers).expect("the job is valid");
    let scenario = Scenario { workers, ..Scenario::default() };
    let before = NOW.load(Ordering::Relaxed);
    MOST.store(before, Ordering::Relaxed);

    simulate(&prepared, &scenario, SimulateOptions::default())
        .unwrap_or_else(|_| panic!("the run ends"));

    let used = MOST.load(Ordering::Relaxed) - before;
    used as f64 / (4 * prepared.plan.initial.len()) as f64
}

/// Workers of equal speed share one replica, and gradients are dropped once they are added to a sum.
#[test]
fn a_hundred_workers_in_step_need_hardly_more_memory_than_ten() {
    for strategy in ["ssgd", "qsgd", "dynamic"] {
        let (ten, hundred) = (vectors(strategy, 10), vectors(strategy, 100));
        assert!(hundred < ten + 10.0, "{strategy}: {ten:.1} and {hundred:.1} vectors");
    }
}
