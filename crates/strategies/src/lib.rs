//! The algorithms.
pub mod parts;
