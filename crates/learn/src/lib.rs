//! What is learned: vectors, models, data, optimizers, learning rates. Pure, and unaware that there is
//! more than one worker.

pub mod dice;
pub mod gradient;
pub mod vector;

pub use dice::{Dice, mix};
pub use gradient::Gradient;
pub use vector::Vector;
