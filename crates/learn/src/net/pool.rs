//! Pooling: the maximum or the mean of a window, and the mean of a whole image.

use super::layer::{Back, In, Layer, Out, Pass};
use crate::dataset::Extent;
use crate::kernels::loops::{self, Window};

/// Pooling over adjacent windows; rows and columns that do not fill a window are ignored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pool {
    pub kind: Kind,
    pub height: usize,
    pub width: usize,
    pub relu: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Max,
    Mean,
}

impl Pool {
    pub fn new(kind: Kind, height: usize, width: usize) -> Pool {
        Pool { kind, height, width, relu: false }
    }

    fn window(&self, row: usize, channels: usize) -> Window {
        Window { height: self.height, width: self.width, row, channels }
    }
}

impl Layer for Pool {
    fn extent(&self, from: Extent) -> Extent {
        Extent { height: from.height / self.height, width: from.width / self.width, ..from }
    }

    /// For each maximum, the number of its pixel within the window.
    fn saved(&self, from: Extent) -> usize {
        if self.kind == Kind::Max { self.extent(from).len() } else { 0 }
    }

    fn forward(
        &self,
        pass: &Pass<'_>,
        x: In<'_>,
        _: Option<In<'_>>,
        y: Out<'_>,
        saved: &mut [f32],
    ) {
        let Extent { height, width, channels } = y.frame.extent;
        let (from, to, len) = (x.frame.strides(), y.frame.strides(), width * channels);
        let window = self.window(x.frame.row(), channels);
        let rows = (0..pass.samples).flat_map(|i| (0..height).map(move |row| (i, row)));
        for (at, (image, row)) in rows.enumerate() {
            let x = &x.data[from.at(image, row * self.height, 0)..];
            let y = &mut y.data[to.at(image, row, 0)..][..len];
            match self.kind {
                Kind::Max => {
                    let which = &mut saved[at * len..][..len];
                    loops::max_pool(pass.path, window, x, self.relu, y, which);
                }
                Kind::Mean => loops::mean_pool(pass.path, window, x, self.relu, y),
            }
        }
    }

    fn backward(&self, pass: &Pass<'_>, back: Back<'_>) {
        let Back { x, y, dy, dx, saved, .. } = back;
        let Some(dx) = dx else { return };
        let Extent { height, width, channels } = y.frame.extent;
        let is_covered = height * self.height == x.frame.extent.height
            && width * self.width == x.frame.extent.width;
        if dx.overwrite && !is_covered {
            let (starts, len) = dx.frame.rows(pass.samples);
            starts.for_each(|at| dx.data[at..at + len].fill(0.0));
        }
        let (outs, deltas, into) = (y.frame.strides(), dy.frame.strides(), dx.frame.strides());
        let len = width * channels;
        let window = self.window(dx.frame.row(), channels);
        let rows = (0..pass.samples).flat_map(|i| (0..height).map(move |row| (i, row)));
        for (at, (image, row)) in rows.enumerate() {
            let dy_row = &mut dy.data[deltas.at(image, row, 0)..][..len];
            let dx_row = &mut dx.data[into.at(image, row * self.height, 0)..];
            match self.kind {
                Kind::Max => {
                    let which = &saved[at * len..][..len];
                    loops::max_pool_backward(
                        pass.path,
                        dy_row,
                        which,
                        window,
                        dx.overwrite,
                        dx_row,
                    );
                }
                Kind::Mean => {
                    if self.relu {
                        let y_row = &y.data[outs.at(image, row, 0)..][..len];
                        loops::relu_backward(pass.path, dy_row, y_row);
                    }
                    loops::mean_pool_backward(pass.path, dy_row, window, dx.overwrite, dx_row);
                }
            }
        }
    }

    fn fuse_relu(&mut self) -> bool {
        !std::mem::replace(&mut self.relu, true)
    }
}
