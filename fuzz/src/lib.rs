//! What all targets share: memory that is bounded while a target runs, and what every decoder must hold to.
//!
//! A target is a function of bytes. It may refuse them, but it must not panic, must not take more memory than it is allowed, and what it
//! has understood must be understood again, the same, after it was written.

use std::alloc::{GlobalAlloc, Layout, System};
use std::backtrace::Backtrace;
use std::fmt::Debug;
use std::sync::atomic::{AtomicUsize, Ordering};

use paceline_learn::Vector;
use paceline_net::processes::fuzzing::{DEPTH_MAX, read_head};
use paceline_runtime::wire::ReceivedFrame;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Counts the memory that is in use, and ends the process when it is more than is allowed.
struct Counting;

static USED: AtomicUsize = AtomicUsize::new(0);
static ALLOWED: AtomicUsize = AtomicUsize::new(usize::MAX);

#[global_allocator]
static ALLOCATOR: Counting = Counting;

impl Counting {
    fn take(bytes: usize) {
        let used = USED.fetch_add(bytes, Ordering::Relaxed) + bytes;
        let allowed = ALLOWED.load(Ordering::Relaxed);
        if used > allowed {
            ALLOWED.store(usize::MAX, Ordering::Relaxed);
            eprintln!(
                "{used} bytes are in use, {allowed} are allowed\n{}",
                Backtrace::force_capture()
            );
            std::process::abort();
        }
    }
}

// SAFETY: every call goes to the system's allocator as it is.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        Counting::take(layout.size());
        // SAFETY: the caller's promises are those that the system's allocator asks for.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        Counting::take(layout.size());
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        USED.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { System.dealloc(at, layout) }
    }
}

/// Runs a target, which may take so much memory.
pub fn within<T>(bytes: usize, target: impl FnOnce() -> T) -> T {
    ALLOWED.store(USED.load(Ordering::Relaxed) + bytes, Ordering::Relaxed);
    let result = target();
    ALLOWED.store(usize::MAX, Ordering::Relaxed);
    result
}

/// The memory that a message of this length may take: a few times its length where it is an object of JSON with one short field in each
/// level (a node of a map has room for eleven), and what serde reserves for a list whose length is only claimed (1 MiB in each level).
pub fn allowed_for(bytes: &[u8]) -> usize {
    ((8 + DEPTH_MAX) << 20) + 512 * bytes.len()
}

/// A message of a link: MessagePack with named fields.
pub fn packed<T: Serialize + DeserializeOwned>(bytes: &[u8]) -> Option<T> {
    let value: T = read_head(bytes).ok()?;
    let once = rmp_serde::to_vec_named(&value).expect("what was read can be written");
    let again: T = read_head(&once).expect("what was written can be read");
    let twice = rmp_serde::to_vec_named(&again).expect("what was read can be written");
    assert!(once == twice, "what was written is read as it was");
    Some(value)
}

/// A message as JSON.
pub fn json<T: Serialize + DeserializeOwned + Debug>(bytes: &[u8]) -> Option<T> {
    let value: T = serde_json::from_slice(bytes).ok()?;
    let once = serde_json::to_vec(&value).expect("what was read can be written");
    let again: T =
        serde_json::from_slice(&once).unwrap_or_else(|error| panic!("{error}: {value:?}"));
    let twice = serde_json::to_vec(&again).expect("what was read can be written");
    assert!(once == twice, "{value:?} {again:?}");
    Some(value)
}

/// The first bytes say how many frames there are, and of which kind and length; the rest is the head.
pub fn frames_and_head(data: &[u8]) -> Option<(Vec<ReceivedFrame>, &[u8])> {
    let (count, rest) = data.split_first()?;
    let (lengths, head) = rest.split_at_checked(usize::from(count % 32))?;
    let frame = |it: &u8| match (it >> 7, usize::from(it & 0x7f)) {
        (0, length) => ReceivedFrame::Floats((0..length).map(number).collect::<Vector>()),
        // As words these ascend, as indices do.
        (_, length) => ReceivedFrame::Bytes(
            (0..length).map(|i| if i % 4 == 0 { (i / 4) as u8 } else { 0 }).collect(),
        ),
    };
    Some((lengths.iter().map(frame).collect(), head))
}

/// Numbers as strangers may send them.
fn number(i: usize) -> f32 {
    match i % 8 {
        6 => f32::NAN,
        7 => f32::MAX,
        _ => i as f32 - 2.5,
    }
}
