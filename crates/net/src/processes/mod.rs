//! A cluster of processes: what one worker process's executor runs against, and what it says to its coordinator.
//!
//! `frame` is how messages are written, `message` what they say; `exchanges` adds up what members send, without a
//! socket; `near` is the memory that members of one host share; `socket` makes the sockets of links, `wire` is the bytes of one connection, `link`
//! its frames, `mesh` all of them and the thread that serves them; `clock` is the time of the job; `cluster` joins mesh, gradients and the coordinator's orders; `pipe` is the stream to a coordinator that is the parent process.

#[doc(hidden)]
pub mod bench;
mod clock;
mod cluster;
mod exchanges;
pub mod frame;
mod heads;
mod link;
mod mesh;
pub mod message;
mod near;
pub mod pipe;
mod records;
mod session;
mod shelves;
mod socket;
mod wire;
mod words;

pub use clock::Clock;
pub use cluster::{
    Ended, Evaluation, Gradients, Process, ProcessCluster, ProcessConfig, WorkerConfig,
};
pub use exchanges::Shape;
pub use mesh::{Command, Mesh, Wake};
pub use shelves::{OwnShelves, Waiting};

/// What fuzzing reaches besides.
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing {
    pub use super::frame::{DEPTH_MAX, read_head};
    pub use super::near::board::{NOTICE_WORDS, decode as decode_notice, encode as encode_notice};
}
