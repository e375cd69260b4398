//! Draws a journal, live or recorded. It only reads, and never asks how a run is made.

mod axis;
pub mod bars;
pub mod curves;
mod grid;
mod panel;
pub mod plot;
mod series;
mod svg;
pub mod table;
pub mod timeline;

pub use bars::Bars;
pub use curves::{Curves, Point};
pub use plot::{Run, comparison};
pub use timeline::Timeline;
