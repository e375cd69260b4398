//! A layer in its place: what a builder collects, and what is assembled into a network.

use super::layer::Layer;

/// A layer between two slots, before memory is assigned to it.
pub(super) struct Part {
    pub layer: Box<dyn Layer>,
    /// What the names of its tensors begin with.
    pub prefix: String,
    pub from: usize,
    pub skip: Option<usize>,
    pub to: usize,
}
