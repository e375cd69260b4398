//! The addition at the end of a residual branch, if the layer before it cannot perform it itself.

use super::frame::side_by_side;
use super::layer::{Back, In, Layer, Out, Pass};
use super::norm::add_rows;
use crate::dataset::Extent;
use crate::kernels::loops;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Add {
    pub relu: bool,
}

impl Layer for Add {
    fn extent(&self, from: Extent) -> Extent {
        from
    }

    fn forward(&self, pass: &Pass<'_>, x: In<'_>, skip: Option<In<'_>>, y: Out<'_>, _: &mut [f32]) {
        let skip = skip.expect("an addition has a second input");
        let (starts, len) = side_by_side([x.frame, skip.frame, y.frame], pass.samples);
        for [from, other, to] in starts {
            let (a, b) = (&x.data[from..from + len], &skip.data[other..other + len]);
            loops::add(pass.path, a, b, self.relu, &mut y.data[to..to + len]);
        }
    }

    fn backward(&self, pass: &Pass<'_>, back: Back<'_>) {
        let Back { y, dy, dx, dskip, .. } = back;
        if self.relu {
            let (starts, len) = side_by_side([dy.frame, y.frame], pass.samples);
            for [at, out] in starts {
                loops::relu_backward(
                    pass.path,
                    &mut dy.data[at..at + len],
                    &y.data[out..out + len],
                );
            }
        }
        for into in [dx, dskip].into_iter().flatten() {
            add_rows(pass, &dy, into);
        }
    }

    fn fuse_relu(&mut self) -> bool {
        !std::mem::replace(&mut self.relu, true)
    }
}
