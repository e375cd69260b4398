//! Dropout (Srivastava et al. 2014), drawn from the sample's identity: whoever computes a sample drops
//! the same of it.

use super::frame::side_by_side;
use super::layer::{Back, In, Into, Layer, Out, Pass};
use crate::dataset::Extent;
use crate::dice::mix;

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Dropout {
    /// The part that is dropped.
    pub rate: f32,
    /// Tells this layer's draws from another's.
    pub salt: u64,
}

impl Dropout {
    /// y <- x where it is kept, scaled so that the mean stays; adds to y if it is not fresh.
    fn sift(&self, keys: &[u64], x: In<'_>, y: Into<'_>) {
        let limit = (f64::from(self.rate) * 65_536.0) as u64;
        let scale = 1.0 / (1.0 - self.rate);
        let fresh = y.fresh;
        let (starts, len) = side_by_side([x.frame, y.frame], keys.len());
        let per_sample = x.frame.extent.len() / len;
        for (row, [from, to]) in starts.enumerate() {
            // A row's draws begin where those of the row before ended, framed or not.
            let key = mix(keys[row / per_sample] ^ mix(self.salt));
            let first = row % per_sample * len;
            let rows = x.data[from..from + len].iter().zip(&mut y.data[to..to + len]);
            for (i, (x, y)) in rows.enumerate() {
                let at = (first + i) as u64;
                let draw = mix(key.wrapping_add(at / 4)) >> (16 * (at % 4));
                let part = if draw & 0xffff >= limit { x * scale } else { 0.0 };
                *y = if fresh { part } else { *y + part };
            }
        }
    }
}

impl Layer for Dropout {
    fn extent(&self, from: Extent) -> Extent {
        from
    }

    fn forward(&self, pass: &Pass<'_>, x: In<'_>, _: Option<In<'_>>, y: Out<'_>, _: &mut [f32]) {
        let rate = if pass.training { self.rate } else { 0.0 };
        let into = Into { frame: y.frame, data: y.data, fresh: true };
        Dropout { rate, ..*self }.sift(pass.keys, x, into);
    }

    fn backward(&self, pass: &Pass<'_>, back: Back<'_>) {
        let Some(dx) = back.dx else { return };
        let dy = In { frame: back.dy.frame, data: back.dy.data };
        self.sift(pass.keys, dy, dx);
    }
}
