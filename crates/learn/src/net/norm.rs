//! Group norm (Wu and He 2018) and batch norm (Ioffe and Szegedy 2015).
//!
//! Both normalize sets of values to mean 0 and variance 1, then scale and shift them per channel. For group norm, a
//! set is a group of channels of one sample, so a sample's gradient depends on that sample only. For batch
//! norm, it is one channel of all samples of a pass; running statistics are used in evaluation.

use std::ops::Range;

use super::frame::{Frame, side_by_side};
use super::layer::{Back, GradientOut, In, Layer, Out, Pass};
use crate::dataset::Extent;
use crate::dice::Dice;
use crate::kernels::loops;
use crate::layout::Tensor;

/// The values that share a mean and a variance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Over {
    /// This number of channels of one sample.
    Group(usize),
    /// One channel of all samples.
    Batch,
}

/// Params are scales, then shifts; buffers running means, then running variances.
#[derive(Clone, Debug)]
pub struct Norm {
    pub over: Over,
    pub channels: usize,
    pub relu: bool,
    /// Whether it adds a skip connection to its outputs.
    pub skips: bool,
}

const EPSILON: f64 = 1e-5;

impl Norm {
    /// The number of sets of samples that share statistics, and the samples in each.
    fn sets(&self, samples: usize) -> (usize, usize) {
        match self.over {
            Over::Group(_) => (samples, 1),
            Over::Batch => (1, samples),
        }
    }

    /// The number of channels that share statistics.
    fn group(&self) -> usize {
        match self.over {
            Over::Group(channels) => channels,
            Over::Batch => 1,
        }
    }

    /// Means and inverse deviations of one set, from sums per channel over `pixels` pixels.
    fn moments(
        &self,
        sums: &[f32],
        squares: &[f32],
        pixels: usize,
        mean: &mut [f32],
        inv: &mut [f32],
    ) {
        let group = self.group();
        let count = (pixels * group) as f64;
        for from in (0..self.channels).step_by(group) {
            let over = from..from + group;
            let total = |x: &[f32]| x[over.clone()].iter().map(|x| f64::from(*x)).sum::<f64>();
            let m = total(sums) / count;
            let variance = (total(squares) / count - m * m).max(0.0);
            mean[over.clone()].fill(m as f32);
            inv[over.clone()].fill((1.0 / (variance + EPSILON).sqrt()) as f32);
        }
    }

    /// The range of a set of samples in an activation.
    fn of_set(frame: Frame, set: usize, samples: usize) -> Range<usize> {
        set * samples * frame.len()..(set + 1) * samples * frame.len()
    }
}

impl Layer for Norm {
    fn extent(&self, from: Extent) -> Extent {
        from
    }

    fn params(&self, _: Extent) -> usize {
        2 * self.channels
    }

    fn buffers(&self, _: Extent) -> usize {
        if self.over == Over::Batch { 2 * self.channels } else { 0 }
    }

    fn tensors(&self, _: Extent) -> Vec<Tensor> {
        let channels = self.channels;
        vec![Tensor::plain("weight", &[channels], 0), Tensor::plain("bias", &[channels], channels)]
    }

    fn buffer_tensors(&self) -> Vec<Tensor> {
        let channels = self.channels;
        match self.over {
            Over::Group(_) => vec![],
            Over::Batch => vec![
                Tensor::plain("running_mean", &[channels], 0),
                Tensor::plain("running_var", &[channels], channels),
                Tensor::steps("num_batches_tracked"),
            ],
        }
    }

    fn initial(&self, _: Extent, _: &mut Dice, params: &mut [f32]) {
        params[..self.channels].fill(1.0);
    }

    fn initial_buffers(&self, buffers: &mut [f32]) {
        if self.over == Over::Batch {
            buffers[self.channels..].fill(1.0);
        }
    }

    fn undecayed(&self) -> Range<usize> {
        0..2 * self.channels
    }

    /// Means, inverse deviations, and three working vectors.
    fn saved(&self, _: Extent) -> usize {
        5 * self.channels
    }

    fn mixes_samples(&self) -> bool {
        self.over == Over::Batch
    }

    fn forward(
        &self,
        pass: &Pass<'_>,
        x: In<'_>,
        skip: Option<In<'_>>,
        y: Out<'_>,
        saved: &mut [f32],
    ) {
        let (gamma, beta) = pass.params.split_at(self.channels);
        let pixels = x.frame.extent.height * x.frame.extent.width;
        let (sets, each) = self.sets(pass.samples);
        let skip_frame = skip.as_ref().map_or(x.frame, |skip| skip.frame);
        for (set, saved) in (0..sets).zip(saved.chunks_exact_mut(5 * self.channels)) {
            let [mean, inv, a, b] = split(saved, self.channels);
            let values = &x.data[Self::of_set(x.frame, set, each)];
            if self.over == Over::Batch && !pass.training {
                let (means, variances) = pass.buffers.split_at(self.channels);
                mean.copy_from_slice(means);
                for (inv, variance) in inv.iter_mut().zip(variances) {
                    *inv = 1.0 / (variance.max(0.0) + EPSILON as f32).sqrt();
                }
            } else {
                a.fill(0.0);
                b.fill(0.0);
                let (starts, len) = x.frame.rows(each);
                starts.for_each(|at| loops::add_moments(pass.path, &values[at..at + len], a, b));
                self.moments(a, b, pixels * each, mean, inv);
            }
            for c in 0..self.channels {
                a[c] = gamma[c] * inv[c];
                b[c] = beta[c] - mean[c] * a[c];
            }
            let out = &mut y.data[Self::of_set(y.frame, set, each)];
            let skip = skip.as_ref().map(|skip| &skip.data[Self::of_set(skip.frame, set, each)]);
            let (starts, len) = side_by_side([x.frame, y.frame, skip_frame], each);
            for [from, to, add] in starts {
                let (x, y) = (&values[from..from + len], &mut out[to..to + len]);
                match skip.map(|skip| &skip[add..add + len]) {
                    Some(skip) => {
                        loops::scale_shift_add(pass.path, x, a, b, skip, self.relu, y);
                    }
                    None => loops::scale_shift(pass.path, x, a, b, self.relu, y),
                }
            }
        }
    }

    fn backward(&self, pass: &Pass<'_>, back: Back<'_>) {
        let Back { x, y, dy, dx, dskip, saved, dparams, statistics, .. } = back;
        let dx = dx.expect("a norm is never the first layer");
        assert!(dx.overwrite, "a norm is the only reader of its inputs");
        let gamma = &pass.params[..self.channels];
        let (dgamma, dbeta) = dparams.split_at_mut(self.channels);
        let (sets, each) = self.sets(pass.samples);
        let group = self.group();
        let count = (x.frame.extent.height * x.frame.extent.width * each * group) as f32;
        for (set, saved) in (0..sets).zip(saved.chunks_exact_mut(5 * self.channels)) {
            let (saved, c) = saved.split_at_mut(4 * self.channels);
            let [mean, inv, a, b] = split(saved, self.channels);
            let values = &x.data[Self::of_set(x.frame, set, each)];
            let outs = &y.data[Self::of_set(y.frame, set, each)];
            let deltas = &mut dy.data[Self::of_set(dy.frame, set, each)];
            a.fill(0.0);
            b.fill(0.0);
            let (starts, len) = side_by_side([dy.frame, y.frame, x.frame], each);
            for [at, out, from] in starts {
                let row = &mut deltas[at..at + len];
                if self.relu {
                    loops::relu_backward(pass.path, row, &outs[out..out + len]);
                }
                loops::add_products(pass.path, row, &values[from..from + len], a, b);
            }
            // Computes the factors of dz = a d + b z + c from the sums of d and d z.
            for from in (0..self.channels).step_by(group) {
                let (mut of_d, mut of_dz) = (0.0, 0.0);
                for i in from..from + group {
                    let along = (b[i] - mean[i] * a[i]) * inv[i];
                    dgamma[i] += along;
                    dbeta[i] += a[i];
                    of_d += gamma[i] * a[i];
                    of_dz += gamma[i] * along;
                }
                for i in from..from + group {
                    a[i] = gamma[i] * inv[i];
                    b[i] = -inv[i] * inv[i] * of_dz / count;
                    c[i] = -inv[i] * of_d / count - mean[i] * b[i];
                }
            }
            let into = &mut dx.data[Self::of_set(dx.frame, set, each)];
            let (starts, len) = side_by_side([dy.frame, x.frame, dx.frame], each);
            for [at, from, to] in starts {
                let (d, z) = (&deltas[at..at + len], &values[from..from + len]);
                loops::combine(pass.path, d, z, a, b, c, &mut into[to..to + len]);
            }
            if self.over == Over::Batch {
                add_statistics(mean, inv, pass.samples, statistics);
            }
        }
        if let Some(into) = dskip {
            add_rows(pass, &dy, into);
        }
    }

    fn fuse_relu(&mut self) -> bool {
        !std::mem::replace(&mut self.relu, true)
    }

    fn fuse_skip(&mut self) -> bool {
        !self.relu && !std::mem::replace(&mut self.skips, true)
    }
}

/// Adds means and variances, multiplied by the number of samples, to the statistics.
fn add_statistics(mean: &[f32], inv: &[f32], samples: usize, statistics: &mut [f32]) {
    let (means, variances) = statistics.split_at_mut(mean.len());
    for i in 0..mean.len() {
        means[i] += samples as f32 * mean[i];
        variances[i] += samples as f32 * (1.0 / (inv[i] * inv[i]) - EPSILON as f32);
    }
}

/// The backward pass of an addition: writes or adds `dy` unchanged.
pub fn add_rows(pass: &Pass<'_>, dy: &Out<'_>, into: GradientOut<'_>) {
    let (starts, len) = side_by_side([dy.frame, into.frame], pass.samples);
    for [from, to] in starts {
        let (dy, into_row) = (&dy.data[from..from + len], &mut into.data[to..to + len]);
        loops::write_or_add(pass.path, dy, into.overwrite, into_row);
    }
}

fn split(saved: &mut [f32], channels: usize) -> [&mut [f32]; 4] {
    let mut parts = saved.chunks_exact_mut(channels);
    std::array::from_fn(|_| parts.next().expect("there are at least four vectors"))
}
