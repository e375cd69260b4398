//! Pooling: the highest or the mean of a window, and the mean of a whole image.

use super::layer::{Back, In, Layer, Out, Pass};
use crate::dataset::Extent;
use crate::kernels::loops::at_least;

/// Windows that lie side by side; what does not fill one is left out.
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

    /// Where each output pixel lies, and the first pixel of its window.
    fn pixels(
        &self,
        from: super::frame::Frame,
        to: super::frame::Frame,
        samples: usize,
    ) -> impl Iterator<Item = (usize, usize)> + use<> {
        let (x, y, pool) = (from.lay(), to.lay(), *self);
        let Extent { height, width, .. } = to.extent;
        (0..samples).flat_map(move |image| {
            (0..height).flat_map(move |row| {
                (0..width).map(move |column| {
                    let window = x.at(image, row * pool.height, column * pool.width);
                    (y.at(image, row, column), window)
                })
            })
        })
    }

    /// Offsets of a window's pixels.
    fn window(&self, frame: super::frame::Frame) -> impl Iterator<Item = usize> + Clone + use<> {
        let (width, row, column) = (self.width, frame.row(), frame.extent.channels);
        (0..self.height).flat_map(move |y| (0..width).map(move |x| y * row + x * column))
    }
}

impl Layer for Pool {
    fn extent(&self, from: Extent) -> Extent {
        Extent { height: from.height / self.height, width: from.width / self.width, ..from }
    }

    fn forward(&self, pass: &Pass<'_>, x: In<'_>, _: Option<In<'_>>, y: Out<'_>, _: &mut [f32]) {
        let channels = x.frame.extent.channels;
        let floor = if self.relu { 0.0 } else { f32::NEG_INFINITY };
        let share = 1.0 / (self.height * self.width) as f32;
        pass.path.run(|| {
            for (to, from) in self.pixels(x.frame, y.frame, pass.samples) {
                let out = &mut y.data[to..to + channels];
                let mut window = self.window(x.frame);
                let first = from + window.next().expect("a window has a pixel");
                out.copy_from_slice(&x.data[first..first + channels]);
                for offset in window {
                    let pixel = &x.data[from + offset..][..channels];
                    match self.kind {
                        Kind::Max => {
                            for (y, x) in out.iter_mut().zip(pixel) {
                                *y = if *y >= *x { *y } else { *x };
                            }
                        }
                        Kind::Mean => out.iter_mut().zip(pixel).for_each(|(y, x)| *y += x),
                    }
                }
                if self.kind == Kind::Mean {
                    out.iter_mut().for_each(|y| *y *= share);
                }
                out.iter_mut().for_each(|y| *y = at_least(floor, *y));
            }
        });
    }

    /// The first of the highest pixels gets the gradient.
    fn backward(&self, pass: &Pass<'_>, back: Back<'_>) {
        let Back { x, y, dy, dx, .. } = back;
        let Some(dx) = dx else { return };
        let channels = x.frame.extent.channels;
        let share = 1.0 / (self.height * self.width) as f32;
        let covers = self.extent(x.frame.extent);
        let whole = covers.height * self.height == x.frame.extent.height
            && covers.width * self.width == x.frame.extent.width;
        pass.path.run(|| {
            if dx.fresh && !whole {
                let (starts, len) = dx.frame.rows(pass.samples);
                starts.for_each(|at| dx.data[at..at + len].fill(0.0));
            }
            let pixels = self.pixels(x.frame, y.frame, pass.samples);
            let deltas = self.pixels(dx.frame, dy.frame, pass.samples);
            for ((out, from), (at, to)) in pixels.zip(deltas) {
                let out = &y.data[out..out + channels];
                let delta = &mut dy.data[at..at + channels];
                if self.relu {
                    crate::kernels::loops::close(delta, out);
                }
                let offsets = self.window(x.frame).zip(self.window(dx.frame));
                for (offset, back) in offsets {
                    let pixel = &x.data[from + offset..][..channels];
                    let into = &mut dx.data[to + back..][..channels];
                    match self.kind {
                        // What is given is taken away, so that only the first of equals gets it.
                        Kind::Max => give(pixel, out, delta, into, dx.fresh),
                        Kind::Mean => {
                            for (into, delta) in into.iter_mut().zip(&*delta) {
                                let part = delta * share;
                                *into = if dx.fresh { part } else { *into + part };
                            }
                        }
                    }
                }
            }
        });
    }

    fn take_relu(&mut self) -> bool {
        !std::mem::replace(&mut self.relu, true)
    }
}

#[inline(always)]
fn give(pixel: &[f32], out: &[f32], delta: &mut [f32], into: &mut [f32], fresh: bool) {
    let rows = pixel.iter().zip(out).zip(delta.iter_mut().zip(into.iter_mut()));
    for ((x, y), (delta, into)) in rows {
        let part = if *x >= *y { *delta } else { 0.0 };
        *into = if fresh { part } else { *into + part };
        *delta = if *x >= *y { 0.0 } else { *delta };
    }
}
