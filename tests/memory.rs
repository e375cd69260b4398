//! What simulating many workers takes in memory.

#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use paceline::{Job, Scenario, simulate};

/// Bytes that are taken now, and the most that ever were.
static NOW: AtomicUsize = AtomicUsize::new(0);
static MOST: AtomicUsize = AtomicUsize::new(0);

/// Notes what the program takes and gives back.
struct Noting;

// SAFETY: everything is passed on to the system's allocator.
unsafe impl GlobalAlloc for Noting {
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
static ALLOCATOR: Noting = Noting;

/// The most that a simulation takes beyond what was there before, in vectors as long as the model.
fn vectors(strategy: &str, workers: u32) -> f64 {
    let text = format!(
        "strategy = \"{strategy}\"\nmodel = \"cnn\"\nsamples = {}\nepochs = 2\nbatch = 1\n",
        2 * workers
    );
    let job = Job::from_toml(&text).expect("it is a job");
    let prepared = job.prepare(workers).expect("it is sound");
    let scenario = Scenario { workers, ..Scenario::default() };
    let before = NOW.load(Ordering::Relaxed);
    MOST.store(before, Ordering::Relaxed);

    simulate(&prepared, &scenario, 1, vec![]).unwrap_or_else(|_| panic!("the run ends"));

    let taken = MOST.load(Ordering::Relaxed) - before;
    taken as f64 / (4 * prepared.plan.initial.len()) as f64
}

/// Workers of equal speed share their replica, and what they add to a sum is not kept.
#[test]
fn a_hundred_workers_in_step_need_hardly_more_memory_than_ten() {
    for strategy in ["ssgd", "qsgd", "dynamic"] {
        let (ten, hundred) = (vectors(strategy, 10), vectors(strategy, 100));
        assert!(hundred < ten + 10.0, "{strategy}: {ten:.1} and {hundred:.1} vectors");
    }
}
