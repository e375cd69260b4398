//! How a worker lives.
pub mod codec;
