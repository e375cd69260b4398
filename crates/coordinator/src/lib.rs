//! The coordinator as a process, for workers on other machines: its log on disk, its port, and the worker's side of it.
//!
//! The decisions are those of [`paceline_runtime::coordination`]. Here they are stored before they are told ([`Driver`],
//! [`Log`]), carried over gRPC and TLS ([`Service`], [`Client`]), and restored after a restart.

mod client;
mod clock;
mod connection;
mod driver;
mod files;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod join;
mod journal;
mod log;
mod messages;
mod service;
mod stored;
#[cfg(test)]
mod testing;

pub use client::{Client, Heard, Speaker};
pub use connection::ClientError;
pub use driver::{CheckFacts, Driver, DriverConfig, DriverError, Happened};
pub use join::{Invitation, Place, Proof};
pub use journal::JournalError;
pub use log::{Log, LogError, Opened};
pub use messages::{Admitted, Answer, Described, FileHead, Join, Look, MESSAGE_MAX, Peer, Said};
pub use service::{Incoming, Lane, Reply, Service, ServiceConfig, queue};
