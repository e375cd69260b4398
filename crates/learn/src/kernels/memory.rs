//! Memory for numbers: it is aligned, and has large pages where it is long.
//!
//! With small pages the processor looks up an address every 4 kB, which takes a sixth of the time of a sum of 16 MB over a socket; and
//! the memory of a process that is killed is given back page by page before its peers notice.

/// The alignment in bytes of memory that a vector owns: a cache line, which is also the widest register of the kernels.
pub const ALIGNMENT: usize = 64;

/// The most numbers that may lie before an aligned place.
const FILL_MAX: usize = ALIGNMENT / size_of::<f32>() - 1;

/// How many numbers lie between a place in memory and the next aligned one.
pub fn gap(place: *const f32) -> usize {
    (place as usize).wrapping_neg() % ALIGNMENT / size_of::<f32>()
}

fn with_fill(len: usize) -> usize {
    len.checked_add(FILL_MAX).expect("the numbers fit into memory")
}

/// This many zeros, behind those that only fill the memory up to an aligned place: how many these are is returned, too.
pub fn zeros(len: usize) -> (Vec<f32>, usize) {
    // Not an aligned allocation of zeros: it would write them, while the system has pages of zeros at hand.
    let mut floats = vec![0.0; with_fill(len)];
    advise(&mut floats);
    let start = gap(floats.as_ptr());
    floats.truncate(start + len);
    (floats, start)
}

/// Memory for this many numbers, behind zeros that only fill it up to an aligned place.
pub fn with_capacity(len: usize) -> (Vec<f32>, usize) {
    let mut floats = Vec::with_capacity(with_fill(len));
    advise(&mut floats);
    let start = gap(floats.as_ptr());
    floats.resize(start, 0.0);
    (floats, start)
}

/// Asks the system for large pages behind memory that was just allocated. What lies in it does not change.
#[cfg(target_os = "linux")]
fn advise(numbers: &mut Vec<f32>) {
    const PAGE: usize = 2 << 20;
    let bytes = numbers.capacity() * size_of::<f32>();
    if bytes < 2 * PAGE {
        return;
    }
    let start = numbers.as_mut_ptr().cast::<u8>();
    let before = start.align_offset(PAGE);
    let inside = bytes.saturating_sub(before) / PAGE * PAGE;
    let advice = rustix::mm::Advice::LinuxHugepage;
    // SAFETY: these are whole pages of one allocation, which is borrowed alone, and the advice changes nothing of what they hold. If the
    // system does not take it, small pages remain.
    unsafe {
        let _ = rustix::mm::madvise(start.wrapping_add(before).cast(), inside, advice);
    }
}

#[cfg(not(target_os = "linux"))]
fn advise(_numbers: &mut Vec<f32>) {}
