//! Dropout (Srivastava et al. 2014), with random numbers keyed by the sample: every worker drops the same values
//! of a sample.

use super::frame::side_by_side;
use super::layer::{Back, GradientOut, In, Layer, Out, Pass};
use crate::dataset::Extent;
use crate::dice::mix;

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Dropout {
    /// The fraction of values that is dropped.
    pub rate: f32,
    /// Distinguishes this layer's random numbers from those of other layers.
    pub salt: u64,
}

impl Dropout {
    /// y <- x, with a fraction `rate` of the values set to 0 and the others scaled so that the mean is unchanged;
    /// adds to y instead unless `y.overwrite`.
    fn apply(&self, keys: &[u64], x: In<'_>, y: GradientOut<'_>) {
        let limit = (f64::from(self.rate) * 65_536.0) as u64;
        let scale = 1.0 / (1.0 - self.rate);
        let overwrite = y.overwrite;
        let (starts, len) = side_by_side([x.frame, y.frame], keys.len());
        let per_sample = x.frame.extent.len() / len;
        for (row, [from, to]) in starts.enumerate() {
            // Values are numbered without the padding, so that it does not change which are dropped.
            let key = mix(keys[row / per_sample] ^ mix(self.salt));
            let first = row % per_sample * len;
            let rows = x.data[from..from + len].iter().zip(&mut y.data[to..to + len]);
            for (i, (x, y)) in rows.enumerate() {
                let at = (first + i) as u64;
                let random = mix(key.wrapping_add(at / 4)) >> (16 * (at % 4));
                let part = if random & 0xffff >= limit { x * scale } else { 0.0 };
                *y = if overwrite { part } else { *y + part };
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
        let into = GradientOut { frame: y.frame, data: y.data, overwrite: true };
        Dropout { rate, ..*self }.apply(pass.keys, x, into);
    }

    fn backward(&self, pass: &Pass<'_>, back: Back<'_>) {
        let Some(dx) = back.dx else { return };
        let dy = In { frame: back.dy.frame, data: back.dy.data };
        self.apply(pass.keys, dy, dx);
    }
}
