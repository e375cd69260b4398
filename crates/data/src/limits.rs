//! Limits that protect against files that are too large to be what they seem.

/// Longer files are refused before they fill the memory. Every file of a data set is shorter.
pub(crate) const BYTES_MAX: u64 = 1 << 30;

/// Larger pictures are refused before they fill the memory.
pub(crate) const PIXELS_MAX: u64 = 64_000_000;
