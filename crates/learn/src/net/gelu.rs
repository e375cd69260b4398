//! Gelu (Hendrycks and Gimpel 2016): a smooth relu.

use super::frame::side_by_side;
use super::layer::{Back, In, Layer, Out, Pass};
use crate::dataset::Extent;
use crate::kernels::rows;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gelu;

impl Layer for Gelu {
    fn extent(&self, from: Extent) -> Extent {
        from
    }

    /// The slopes: reading them is cheaper than another exponential in the backward pass.
    fn saved(&self, from: Extent) -> usize {
        from.len()
    }

    fn forward(
        &self,
        pass: &Pass<'_>,
        x: In<'_>,
        _: Option<In<'_>>,
        y: Out<'_>,
        saved: &mut [f32],
    ) {
        let (starts, len) = side_by_side([x.frame, y.frame], pass.samples);
        for ([from, to], slopes) in starts.zip(saved.chunks_exact_mut(len)) {
            rows::gelu(pass.path, &x.data[from..from + len], slopes, &mut y.data[to..to + len]);
        }
    }

    fn backward(&self, pass: &Pass<'_>, back: Back<'_>) {
        let Back { dy, dx, saved, .. } = back;
        let Some(dx) = dx else { return };
        let (starts, len) = side_by_side([dy.frame, dx.frame], pass.samples);
        for ([from, to], slopes) in starts.zip(saved.chunks_exact(len)) {
            let (dy, into) = (&dy.data[from..from + len], &mut dx.data[to..to + len]);
            rows::write_or_add_products(pass.path, dy, slopes, dx.overwrite, into);
        }
    }
}
