//! What a layer is: forward, and backward by hand.

use std::ops::Range;

use crate::dataset::Extent;
use crate::dice::Dice;
use crate::kernels::Path;
use crate::net::frame::Frame;

/// What every layer gets to know about a pass.
pub struct Pass<'a> {
    pub path: Path,
    /// How many samples go through together.
    pub samples: usize,
    /// Their identities, for layers that draw noise.
    pub keys: &'a [u64],
    pub training: bool,
    /// This layer's own params, buffers and packed weights.
    pub params: &'a [f32],
    pub buffers: &'a [f32],
    pub packed: &'a [f32],
}

/// Values or deltas of some samples, and how they lie.
pub struct In<'a> {
    pub frame: Frame,
    pub data: &'a [f32],
}

pub struct Out<'a> {
    pub frame: Frame,
    pub data: &'a mut [f32],
}

/// A gradient to be written, or added to when another layer has written it before.
pub struct Into<'a> {
    pub frame: Frame,
    pub data: &'a mut [f32],
    pub fresh: bool,
}

/// What a forward pass has left, and where the gradient goes.
pub struct Back<'a> {
    pub x: In<'a>,
    pub y: In<'a>,
    /// The gradient in the outputs; a layer may change it on its way.
    pub dy: Out<'a>,
    /// The gradient in the inputs, unless they are the samples themselves.
    pub dx: Option<Into<'a>>,
    /// The gradient in what was added to the outputs.
    pub dskip: Option<Into<'a>>,
    pub kept: &'a mut [f32],
    /// The gradient in the params, a sum to be added to.
    pub dparams: &'a mut [f32],
    /// Statistics for the buffers, times samples, to be added to.
    pub statistics: &'a mut [f32],
}

/// A layer. It owns no memory: params, activations and what it keeps are handed to it.
pub trait Layer: Send + Sync {
    /// The extent of its outputs.
    fn extent(&self, from: Extent) -> Extent;

    fn params(&self, _from: Extent) -> usize {
        0
    }

    fn buffers(&self, _from: Extent) -> usize {
        0
    }

    fn initial(&self, _from: Extent, _dice: &mut Dice, _params: &mut [f32]) {}

    fn initial_buffers(&self, _buffers: &mut [f32]) {}

    /// The part of its params that weight decay leaves alone.
    fn undecayed(&self) -> Range<usize> {
        0..0
    }

    /// The frame of zeros that it needs around its inputs, and around the gradient in its outputs.
    fn pads(&self, _from: Extent) -> (usize, usize) {
        (0, 0)
    }

    /// Floats that it packs its weights into, and per sample, floats kept for the way back.
    fn packed(&self, _from: Extent, _path: Path) -> usize {
        0
    }

    fn kept(&self, _from: Extent) -> usize {
        0
    }

    /// Whether a sample's outputs depend on the other samples.
    fn mixes_samples(&self) -> bool {
        false
    }

    /// Whether its weights outweigh a sample's activations, so that many samples should share one look at
    /// them.
    fn is_heavy(&self, _from: Extent) -> bool {
        false
    }

    /// Two for each multiplication and addition of a forward pass of one sample.
    fn flops(&self, _from: Extent, _to: Extent) -> u64 {
        0
    }

    /// Packs weights once for all samples of a micro-batch; those of the way back only if wanted.
    fn pack(&self, _path: Path, _from: Extent, _params: &[f32], _packed: &mut [f32], _back: bool) {}

    fn forward(
        &self,
        pass: &Pass<'_>,
        x: In<'_>,
        skip: Option<In<'_>>,
        y: Out<'_>,
        kept: &mut [f32],
    );

    fn backward(&self, pass: &Pass<'_>, back: Back<'_>);

    /// Takes a relu into this layer's own pass over its outputs; gives whether it did.
    fn take_relu(&mut self) -> bool {
        false
    }

    /// Gives its relu away to the layer after it; gives whether there was one.
    fn give_relu(&mut self) -> bool {
        false
    }

    /// Goes on without biases, for a norm follows.
    fn drop_bias(&mut self) {}

    /// Takes the addition of a skipped activation into its pass over the outputs; gives whether it did.
    fn take_skip(&mut self) -> bool {
        false
    }
}
