//! The coordinator as a process, for workers on other machines: its log on disk or in etcd, its port, and the worker's side of it.
//!
//! The decisions are those of [`paceline_runtime::coordination`]. Here they are stored before they are told ([`Driver`],
//! [`Store`]), carried over gRPC and TLS ([`Service`], [`Client`]), and restored after a restart.

mod client;
mod clock;
mod connection;
mod coordinators;
mod driver;
mod files;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod incoming;
mod join;
mod messages;
mod reading;
mod service;
mod store;
mod stored;
#[cfg(test)]
mod testing;

pub use client::{Client, Heard, Speaker};
pub use clock::Clock;
pub use connection::ClientError;
pub use coordinators::Coordinators;
pub use driver::{CheckFacts, Driver, DriverConfig, DriverError, Happened};
pub use incoming::{Incoming, Lane, Reply, queue};
pub use join::{Invitation, Place, Proof};
pub use messages::{
    Admitted, Answer, Described, FileHead, INITIAL, Join, Look, MESSAGE_MAX, Peer, Said,
};
pub use reading::ClockReading;
pub use service::{Service, ServiceConfig};
pub use store::{
    Disk, Etcd, EtcdConfig, EtcdError, EtcdPlace, EtcdTls, JournalError, Log, LogError, Opened,
    PlaceError, Store, StoreError,
};
