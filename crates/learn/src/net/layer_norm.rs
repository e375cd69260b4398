//! Layer norm (Ba et al. 2016): normalizes the channels of each position to mean 0 and variance 1, then scales and
//! shifts them.

use std::ops::Range;

use super::frame::side_by_side;
use super::layer::{Back, In, Layer, Out, Pass};
use crate::dataset::Extent;
use crate::dice::Dice;
use crate::kernels::rows;
use crate::layout::Tensor;

/// Params are scales, then shifts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayerNorm {
    pub channels: usize,
}

impl Layer for LayerNorm {
    fn extent(&self, from: Extent) -> Extent {
        from
    }

    fn params(&self, _: Extent) -> usize {
        2 * self.channels
    }

    fn tensors(&self, _: Extent) -> Vec<Tensor> {
        let channels = self.channels;
        vec![Tensor::plain("weight", &[channels], 0), Tensor::plain("bias", &[channels], channels)]
    }

    fn initial(&self, _: Extent, _: &mut Dice, params: &mut [f32]) {
        params[..self.channels].fill(1.0);
    }

    fn undecayed(&self) -> Range<usize> {
        0..2 * self.channels
    }

    /// The mean and the inverse deviation of each position.
    fn saved(&self, from: Extent) -> usize {
        2 * from.height * from.width
    }

    fn forward(
        &self,
        pass: &Pass<'_>,
        x: In<'_>,
        _: Option<In<'_>>,
        y: Out<'_>,
        saved: &mut [f32],
    ) {
        let (scale, shift) = pass.params.split_at(self.channels);
        let (starts, len) = side_by_side([x.frame, y.frame], pass.samples);
        for ([from, to], saved) in starts.zip(saved.chunks_exact_mut(2 * len / self.channels)) {
            let (x, y) = (&x.data[from..from + len], &mut y.data[to..to + len]);
            rows::layer_norm(pass.path, x, scale, shift, saved, y);
        }
    }

    fn backward(&self, pass: &Pass<'_>, back: Back<'_>) {
        let Back { x, dy, dx, saved, dparams, .. } = back;
        let dx = dx.expect("a norm is never the first layer");
        let scale = &pass.params[..self.channels];
        let (dscale, dshift) = dparams.split_at_mut(self.channels);
        let (starts, len) = side_by_side([x.frame, dy.frame, dx.frame], pass.samples);
        for ([from, at, to], saved) in starts.zip(saved.chunks_exact(2 * len / self.channels)) {
            let (x, dy) = (&x.data[from..from + len], &dy.data[at..at + len]);
            let into = &mut dx.data[to..to + len];
            rows::layer_norm_backward(
                pass.path,
                x,
                saved,
                scale,
                dy,
                dscale,
                dshift,
                dx.overwrite,
                into,
            );
        }
    }
}
