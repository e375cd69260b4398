//! The trait of all layers: a forward pass and a hand-written backward pass.

use std::ops::Range;

use crate::dataset::Extent;
use crate::dice::Dice;
use crate::kernels::Path;
use crate::layout::Tensor;
use crate::net::frame::Frame;

/// The arguments of a forward or backward pass that all layers share.
pub struct Pass<'a> {
    pub path: Path,
    /// The number of samples that are processed together.
    pub samples: usize,
    /// One key per sample, for layers that use random numbers.
    pub keys: &'a [u64],
    pub training: bool,
    /// This layer's own params, buffers and packed weights.
    pub params: &'a [f32],
    pub buffers: &'a [f32],
    pub packed: &'a [f32],
}

/// Activations or gradients of some samples, with their memory layout.
pub struct In<'a> {
    pub frame: Frame,
    pub data: &'a [f32],
}

/// The same, writable.
pub struct Out<'a> {
    pub frame: Frame,
    pub data: &'a mut [f32],
}

/// A gradient to be written, or added to if another layer has already written it.
pub struct GradientOut<'a> {
    pub frame: Frame,
    pub data: &'a mut [f32],
    pub overwrite: bool,
}

/// The results of the forward pass, and the gradients to compute from them.
pub struct Back<'a> {
    pub x: In<'a>,
    pub y: In<'a>,
    /// The gradient with respect to the outputs. The layer may overwrite it.
    pub dy: Out<'a>,
    /// The gradient with respect to the inputs; `None` if they are the samples themselves.
    pub dx: Option<GradientOut<'a>>,
    /// The gradient with respect to the skip connection.
    pub dskip: Option<GradientOut<'a>>,
    /// What the forward pass has stored for the backward pass.
    pub saved: &'a mut [f32],
    /// The gradient with respect to the params, a sum to add to.
    pub dparams: &'a mut [f32],
    /// Statistics for the buffers, multiplied by the number of samples; a sum to add to.
    pub statistics: &'a mut [f32],
}

/// A layer. It owns no memory: params, activations and saved values are arguments.
pub trait Layer: Send + Sync {
    /// The extent of its outputs.
    fn extent(&self, from: Extent) -> Extent;

    fn params(&self, _from: Extent) -> usize {
        0
    }

    fn buffers(&self, _from: Extent) -> usize {
        0
    }

    /// Its params as tensors, named and shaped as in the corresponding module of PyTorch. Their ranges cover the params.
    fn tensors(&self, _from: Extent) -> Vec<Tensor> {
        Vec::new()
    }

    /// The same for its buffers.
    fn buffer_tensors(&self) -> Vec<Tensor> {
        Vec::new()
    }

    fn initial(&self, _from: Extent, _dice: &mut Dice, _params: &mut [f32]) {}

    fn initial_buffers(&self, _buffers: &mut [f32]) {}

    /// The range of its params without weight decay.
    fn undecayed(&self) -> Range<usize> {
        0..0
    }

    /// The padding that it needs around its inputs, and around the gradient with respect to its outputs.
    fn pads(&self, _from: Extent) -> (usize, usize) {
        (0, 0)
    }

    /// The number of floats of its packed weights.
    fn packed(&self, _from: Extent, _path: Path) -> usize {
        0
    }

    /// The number of floats per sample that the forward pass stores for the backward pass.
    fn saved(&self, _from: Extent) -> usize {
        0
    }

    /// Whether a sample's outputs depend on the other samples.
    fn mixes_samples(&self) -> bool {
        false
    }

    /// Whether it has far more weights than activations per sample, so that weights should be loaded once for
    /// many samples.
    fn is_heavy(&self, _from: Extent) -> bool {
        false
    }

    /// The number of multiplications and additions in the forward pass of one sample.
    fn flops(&self, _from: Extent, _to: Extent) -> u64 {
        0
    }

    /// Packs the weights, once for all samples of a micro-batch; those of the backward pass only if `back`.
    fn pack(&self, _path: Path, _from: Extent, _params: &[f32], _packed: &mut [f32], _back: bool) {}

    fn forward(
        &self,
        pass: &Pass<'_>,
        x: In<'_>,
        skip: Option<In<'_>>,
        y: Out<'_>,
        saved: &mut [f32],
    );

    fn backward(&self, pass: &Pass<'_>, back: Back<'_>);

    /// Fuses a relu into this layer; returns whether it did.
    fn fuse_relu(&mut self) -> bool {
        false
    }

    /// Removes a fused relu, so that the next layer can apply it; returns whether there was one.
    fn remove_relu(&mut self) -> bool {
        false
    }

    /// Removes the biases, which a following norm would cancel.
    fn drop_bias(&mut self) {}

    /// Fuses the addition of a skip connection into this layer; returns whether it did.
    fn fuse_skip(&mut self) -> bool {
        false
    }
}
