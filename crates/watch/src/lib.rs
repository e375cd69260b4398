//! Draws a journal, live or recorded. It only reads, and never asks how a run is made.

mod axis;
pub mod bars;
mod counter;
pub mod curves;
mod grid;
mod panel;
pub mod plot;
mod points;
mod pulse;
pub mod report;
mod series;
mod svg;
pub mod table;
pub mod tensorboard;
#[cfg(test)]
mod testing;
pub mod timeline;
pub mod trace;
mod track;

pub use bars::Bars;
pub use curves::{Curves, Point};
pub use plot::{Run, comparison};
pub use report::{Facts, Report};
pub use tensorboard::TensorBoard;
pub use timeline::Timeline;
pub use trace::Trace;
