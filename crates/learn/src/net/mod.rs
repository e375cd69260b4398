//! Networks of layers: a model described in a few lines.
//!
//! ```
//! use paceline_learn::{Extent, Net};
//!
//! let image = Extent { height: 28, width: 28, channels: 1 };
//! let cnn = Net::new(image)
//!     .conv(16, 3).relu().max_pool(2)
//!     .conv(32, 3).relu().max_pool(2)
//!     .dense(128).relu()
//!     .classes(10);
//!
//! let tokens = Net::new(Extent::row(64 + 1));
//! let language_model = tokens.embed(65, 128).transformer(4, 4, 0.0).next_token(65);
//! ```
//!
//! A network is a list of layers, each from one *slot* (an activation) to the next. All memory of a pass
//! is in one arena that belongs to the compute thread. Params are one flat vector, of which each layer has a
//! range.

mod add;
mod assemble;
mod attention;
mod build;
mod build_text;
mod conv;
mod dropout;
mod embed;
mod flat;
mod frame;
mod gelu;
mod layer;
mod layer_norm;
mod named;
mod norm;
mod part;
mod pass;
mod pool;

use std::ops::Range;

use crate::dataset::{Batch, Extent};
use crate::dice::Dice;
use crate::gradient::Gradient;
use crate::kernels::Path;
use crate::layout::Tensor;
use crate::model::{Model, Score, Scratch};
use crate::vector::Vector;

pub use build::Builder;
use frame::Frame;
use layer::Layer;
pub use named::{charlm, cnn, mlp, resnet, resnet18, softmax};

/// A model made of layers.
pub struct Net {
    path: Path,
    slots: Vec<Slot>,
    nodes: Vec<Node>,
    segments: Vec<Segment>,
    params: usize,
    buffers: usize,
    head: Head,
    classes: usize,
    /// The number of samples that are processed together.
    pass: usize,
    /// The length of the arena.
    arena: usize,
    /// Identifies this network's use of an arena.
    stamp: u64,
}

/// The targets of the logits in the last slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Head {
    /// The label of the sample.
    Label,
    /// At each position, the next token of the input.
    NextToken,
}

/// An activation and the gradient of the loss with respect to it.
struct Slot {
    value: Frame,
    delta: Frame,
    /// Where they begin in the arena; `None` for a gradient that is not needed.
    value_at: usize,
    delta_at: Option<usize>,
    /// Whether the gradient is only needed within one block of samples of a segment, so that the next block
    /// reuses its memory.
    is_transient: bool,
}

/// Consecutive layers that are applied to one block of samples after the other, so that the outputs of a layer
/// are still in the cache when the next layer reads them.
struct Segment {
    nodes: Range<usize>,
    block: usize,
}

/// A layer with its ranges of the params and of the arena.
struct Node {
    layer: Box<dyn Layer>,
    prefix: String,
    from: usize,
    skip: Option<usize>,
    to: usize,
    params: Range<usize>,
    buffers: Range<usize>,
    /// Whether this node is the first to write the gradients of `from` and `skip`; otherwise it adds to them.
    overwrite: [bool; 2],
    packed: Range<usize>,
    saved: usize,
    saved_at: usize,
}

impl Net {
    /// Starts to build a network for samples of this extent.
    #[allow(clippy::new_ret_no_self)]
    pub fn new(extent: Extent) -> Builder {
        Builder::new(extent)
    }

    /// The same network with other instructions.
    pub fn on(self, path: Path) -> Net {
        self.rebuilt(path)
    }

    pub fn path(&self) -> Path {
        self.path
    }

    /// The number of multiplications and additions in the gradient of one sample, for benchmarks.
    pub fn flops(&self) -> u64 {
        let of = |node: &Node| {
            let (from, to) = (&self.slots[node.from], &self.slots[node.to]);
            node.layer.flops(from.value.extent, to.value.extent)
                * if node.from == 0 { 2 } else { 3 }
        };
        self.nodes.iter().map(of).sum()
    }
}

impl Model for Net {
    fn params(&self) -> usize {
        self.params
    }

    fn buffers(&self) -> usize {
        self.buffers
    }

    fn kernels(&self) -> &'static str {
        self.path.name()
    }

    fn micro_batch_max(&self) -> usize {
        // Several passes per micro-batch share its packed weights.
        if self.nodes.iter().any(|node| node.layer.mixes_samples()) { self.pass } else { 64 }
    }

    /// Every layer has its own random numbers.
    fn initial(&self, seed: u64) -> Vector {
        let mut initial = Vector::zeros(self.size());
        for (index, node) in self.nodes.iter().enumerate() {
            let mut dice = Dice::keyed(&[seed, index as u64]);
            let from = self.slots[node.from].value.extent;
            node.layer.initial(from, &mut dice, &mut initial[node.params.clone()]);
            let buffers = node.buffers.start + self.params..node.buffers.end + self.params;
            node.layer.initial_buffers(&mut initial[buffers]);
        }
        initial
    }

    fn gradient(&self, params: &[f32], batch: &Batch, scratch: &mut Scratch, into: &mut Gradient) {
        let arena = self.packed(params, scratch, true);
        let mut from = 0;
        while from < batch.len() {
            let to = batch.len().min(from + self.pass);
            let samples = from..to;
            self.forward(params, batch, samples.clone(), arena, true);
            into.loss_sum += self.loss_and_delta(batch, samples.clone(), arena);
            self.backward(params, batch, samples, arena, &mut into.sum);
            from = to;
        }
        into.samples += batch.len() as u64;
    }

    fn evaluate(&self, params: &[f32], batch: &Batch, scratch: &mut Scratch) -> Score {
        let arena = self.packed(params, scratch, false);
        let mut score = Score::default();
        let mut from = 0;
        while from < batch.len() {
            let to = batch.len().min(from + self.pass);
            self.forward(params, batch, from..to, arena, false);
            score.add(&self.score(batch, from..to, arena));
            from = to;
        }
        score
    }

    fn outputs(&self, params: &[f32], batch: &Batch, scratch: &mut Scratch) -> Vec<f32> {
        let arena = self.packed(params, scratch, false);
        let mut outputs = Vec::new();
        let mut from = 0;
        while from < batch.len() {
            let to = batch.len().min(from + self.pass);
            self.forward(params, batch, from..to, arena, false);
            outputs.extend_from_slice(self.last_values(to - from, arena));
            from = to;
        }
        outputs
    }

    fn tensors(&self) -> Vec<Tensor> {
        let params = self.nodes.iter().flat_map(|node| {
            let tensors = node.layer.tensors(self.slots[node.from].value.extent).into_iter();
            tensors.map(|tensor| tensor.within(&node.prefix, node.params.start))
        });
        let buffers = self.nodes.iter().flat_map(|node| {
            let (tensors, start) = (node.layer.buffer_tensors(), self.params + node.buffers.start);
            tensors.into_iter().map(move |tensor| tensor.within(&node.prefix, start))
        });
        params.chain(buffers).collect()
    }

    fn undecayed(&self) -> Vec<Range<usize>> {
        let mut undecayed: Vec<Range<usize>> = Vec::new();
        for node in &self.nodes {
            let bare = node.layer.undecayed();
            undecayed.extend(
                (!bare.is_empty())
                    .then(|| node.params.start + bare.start..node.params.start + bare.end),
            );
        }
        undecayed.extend((self.buffers > 0).then(|| self.params..self.size()));
        undecayed
    }
}
