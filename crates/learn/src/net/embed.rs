//! Learned vectors for tokens and for their positions, added up.

use super::layer::{Back, In, Layer, Out, Pass};
use crate::dataset::Extent;
use crate::dice::Dice;
use crate::kernels::loops;
use crate::layout::Tensor;

/// Params are a row per token, then a row per position. The last token of a sample is only a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Embed {
    pub vocabulary: usize,
    pub channels: usize,
}

/// Standard deviation of the initial vectors.
const DEVIATION: f64 = 0.1;

impl Embed {
    /// Where the row of a token begins; a number that is not a token is clamped to the nearest one.
    fn row(&self, token: f32) -> usize {
        (token as usize).min(self.vocabulary - 1) * self.channels
    }

    /// Where the rows of the positions begin.
    fn positions(&self) -> usize {
        self.vocabulary * self.channels
    }
}

impl Layer for Embed {
    fn extent(&self, from: Extent) -> Extent {
        Extent { height: 1, width: from.len() - 1, channels: self.channels }
    }

    fn params(&self, from: Extent) -> usize {
        (self.vocabulary + from.len() - 1) * self.channels
    }

    fn tensors(&self, from: Extent) -> Vec<Tensor> {
        let (channels, positions) = (self.channels, from.len() - 1);
        vec![
            Tensor::plain("token_embedding.weight", &[self.vocabulary, channels], 0),
            Tensor::plain("position_embedding.weight", &[positions, channels], self.positions()),
        ]
    }

    fn initial(&self, _: Extent, dice: &mut Dice, params: &mut [f32]) {
        let bound = DEVIATION * 3f64.sqrt();
        params.iter_mut().for_each(|param| *param = dice.between(-bound, bound) as f32);
    }

    fn forward(&self, pass: &Pass<'_>, x: In<'_>, _: Option<In<'_>>, y: Out<'_>, _: &mut [f32]) {
        let positions = pass.params[self.positions()..].chunks_exact(self.channels);
        let to = y.frame.strides();
        for (sample, tokens) in x.data.chunks_exact(x.frame.len()).enumerate() {
            for (index, (position, token)) in positions.clone().zip(tokens).enumerate() {
                let row = &pass.params[self.row(*token)..][..self.channels];
                let y = &mut y.data[to.at(sample, 0, index)..][..self.channels];
                loops::add(pass.path, row, position, false, y);
            }
        }
    }

    fn backward(&self, pass: &Pass<'_>, back: Back<'_>) {
        let Back { x, dy, dparams, .. } = back;
        let (rows, positions) = dparams.split_at_mut(self.positions());
        let from = dy.frame.strides();
        for (sample, tokens) in x.data.chunks_exact(x.frame.len()).enumerate() {
            let dy = &dy.data[from.at(sample, 0, 0)..][..positions.len()];
            loops::write_or_add(pass.path, dy, false, positions);
            for (dy, token) in dy.chunks_exact(self.channels).zip(tokens) {
                let row = &mut rows[self.row(*token)..][..self.channels];
                loops::write_or_add(pass.path, dy, false, row);
            }
        }
    }
}
