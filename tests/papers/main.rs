//! The claims of the five papers, tested through the whole engine: real strategies on simulated clusters, observed by
//! their journals.
//!
//! Random tests report the seed of a failure; the seeds are fixed, so `cargo test --test papers NAME` repeats it.

mod abs_sgd;
mod adpsgd;
mod dbs;
mod dynamic_sgd;
mod how_to_scale;
mod probe;
mod trial;
