//! Draws journals, live or recorded, and figures that compare several runs. This crate only reads journals; it does not depend on how runs are made.

pub mod article;
pub mod aside;
mod axis;
pub mod bars;
pub mod curves;
pub mod error;
pub mod figure;
mod grid;
mod intervals;
mod page;
mod panel;
pub mod plot;
mod points;

pub mod report;
mod series;
pub mod status;
mod svg;
pub mod table;
pub mod tensorboard;
#[cfg(test)]
mod testing;
pub mod timeline;
pub mod trace;
mod track;

pub use article::{Article, CaptionedTable};
pub use bars::Bars;
pub use curves::{Curves, Point};
pub use error::OutputError;
pub use figure::{BarSeries, Drawing, Figure, Line, RangePoint, Scale};
pub use plot::{Goal, Measured, Run, comparison, comparison_page};
pub use report::{Facts, Report};
pub use tensorboard::TensorBoard;
pub use timeline::Timeline;
pub use trace::Trace;
