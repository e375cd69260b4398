//! The live page of a run: an HTTP server that shows what is known of the run, and passes on what the user asks of it.
//!
//! It reads the run's journal ([`Page::reader`]) and never holds it up: a line costs a short lock, readers of the page are
//! served on a thread of their own, and one that is slow misses states and is dropped in the end. It listens in the clear, so
//! it belongs on the loopback device, or behind something that encrypts.

mod answers;
mod connection;
mod host;
mod secret;
mod server;
mod shared;

pub use secret::{Secret, SecretError};
pub use server::{Page, PageConfig};
pub use shared::{Answer, Ask, Asked, PageReader, Saved};
