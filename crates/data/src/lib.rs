//! Data sets that live in files: where they are, how they are read, how they get there.

pub mod catalog;
mod cifar;
mod client;
pub mod folder;
pub mod get;
mod idx;
pub mod load;
mod sheets;

pub use catalog::{CATALOG, Entry};
pub use get::{Got, get};
pub use load::{Sets, load};
