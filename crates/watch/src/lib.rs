//! Draws a journal, live or recorded, and figures of what came of several. It only reads, and never asks how a run is made.

pub mod article;
mod axis;
pub mod bars;
pub mod curves;
pub mod figure;
mod grid;
mod page;
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

pub use article::{Article, Sheet};
pub use bars::Bars;
pub use curves::{Curves, Point};
pub use figure::{Bar, Drawing, Figure, Line, Scale, Spot};
pub use plot::{Run, comparison};
pub use report::{Facts, Report};
pub use tensorboard::TensorBoard;
pub use timeline::Timeline;
pub use trace::Trace;
