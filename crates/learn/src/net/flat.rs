//! Removes the padding of an image and turns it into a plain row.

use super::layer::{Back, In, Layer, Out, Pass};
use crate::dataset::Extent;
use crate::kernels::loops;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flat;

impl Layer for Flat {
    fn extent(&self, from: Extent) -> Extent {
        Extent::row(from.len())
    }

    fn forward(&self, pass: &Pass<'_>, x: In<'_>, _: Option<In<'_>>, y: Out<'_>, _: &mut [f32]) {
        let (starts, len) = x.frame.rows(pass.samples);
        for (at, y) in starts.zip(y.data.chunks_exact_mut(len)) {
            y.copy_from_slice(&x.data[at..at + len]);
        }
    }

    fn backward(&self, pass: &Pass<'_>, back: Back<'_>) {
        let Some(dx) = back.dx else { return };
        let (starts, len) = dx.frame.rows(pass.samples);
        for (at, dy) in starts.zip(back.dy.data.chunks_exact(len)) {
            loops::write_or_add(pass.path, dy, dx.overwrite, &mut dx.data[at..at + len]);
        }
    }
}
