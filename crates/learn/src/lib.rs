//! Machine learning on one worker: vectors, models, data sets, optimizers and learning rates, all pure functions.

pub mod blobs;
pub mod dataset;
pub mod dice;
pub mod digits;
pub mod error;
pub mod gradient;
pub mod images;
pub mod kernels;
pub mod model;
pub mod net;
pub mod optimizer;
pub mod order;
pub mod patterns;
pub mod quadratic;
pub mod rescale;
pub mod schedule;
pub mod text;
pub mod vector;

pub use blobs::{Noise, blobs};
pub use dataset::{Batch, Dataset, Extent, Table};
pub use dice::{Dice, mix};
pub use digits::digits;
pub use error::{DataError, OptimizerError, ScheduleError};
pub use gradient::Gradient;
pub use images::{Augment, Channel, Images};
pub use kernels::Path;
pub use model::{Layout, Model, Score, Scratch};
pub use net::Net;
pub use optimizer::{Optimizer, OptimizerState, Rule};
pub use order::Order;
pub use patterns::patterns;
pub use quadratic::Quadratic;
pub use rescale::{Parts, Rescale, Rescaler};
pub use schedule::{Schedule, Shape};
pub use text::{Text, Vocabulary, texts};
pub use vector::Vector;
