//! A cluster of MPI ranks: what carries exchanges, letters and reads where a site has MPI. Empty without the feature `mpi`.
//!
//! One thread of each process owns MPI (`progress`); it tests what is under way, because MPI's nonblocking operations do not
//! move unless somebody does. `raw` is all that calls MPI, `streams` carries messages in pieces, `sums` is one exchange after
//! another, `reads` is who waits for which published value. What the worker's executor sees is the cluster of processes
//! (`paceline_net::processes`), whose links are this crate's.

#![cfg(feature = "mpi")]

mod control;
mod error;
mod progress;
mod ranks;
mod raw;
mod reads;
mod streams;
mod sums;

pub use control::{LinksConfig, Loss};
pub use error::MpiError;
pub use ranks::{Ranks, Watch};
pub use sums::Sums;
