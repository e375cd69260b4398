//! Draws a journal, live or recorded. It only reads, and never asks how a run is made.

mod axis;
pub mod curves;
mod grid;
pub mod plot;
mod series;
pub mod table;
pub mod timeline;

pub use curves::{Curves, Point};
pub use plot::{Run, comparison};
pub use timeline::Timeline;
