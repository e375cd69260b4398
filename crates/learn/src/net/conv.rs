//! Convolutions with channels last, and dense layers, which are 1 x 1 convolutions.
//!
//! A row of the window is one run of inputs, because its pixels are contiguous; so is a row of the
//! window over the gradient in the backward pass. With a stride, the inputs fall into phases, each of which meets
//! a different part of the window.

use std::ops::Range;

use super::frame::Frame;
use super::layer::{Back, GradientOut, In, Layer, Out, Pass};
use crate::dataset::Extent;
use crate::dice::Dice;
use crate::kernels::{Outer, Path, Positions, Start, Strides, Sweep, loops};
use crate::layout::Tensor;

/// Weights are `[window row][window column][input channel][channel]`, then the biases.
#[derive(Clone, Debug)]
pub struct Conv {
    pub channels: usize,
    pub size: usize,
    pub stride: usize,
    pub pad: usize,
    pub bias: bool,
    pub relu: bool,
    /// Whether the initial weights are zero, for convex models.
    pub zero: bool,
    /// Scales the initial weights.
    pub gain: f64,
    pub inputs: usize,
    /// For a dense layer, its inputs before they were flattened; `None` for a convolution.
    pub flattened: Option<Extent>,
}

/// A layer with more weights than this per activation is heavy.
const HEAVY: usize = 16;

/// Windows are at most this large.
const SIZE_MAX: usize = 16;

impl Conv {
    /// `inputs` is the number of input channels.
    pub fn new(inputs: usize, channels: usize, size: usize, stride: usize) -> Conv {
        assert!(
            (1..=SIZE_MAX).contains(&size) && stride >= 1,
            "a window has 1 to 16 pixels per side, and a stride of at least 1"
        );
        let pad = size / 2;
        let (bias, relu, zero) = (true, false, false);
        Conv { channels, size, stride, pad, bias, relu, zero, gain: 1.0, inputs, flattened: None }
    }

    /// A dense layer whose inputs are all values of `from`.
    pub fn dense(from: Extent, outputs: usize) -> Conv {
        Conv { flattened: Some(from), ..Conv::new(from.len(), outputs, 1, 1) }
    }

    fn depth(&self) -> usize {
        self.size * self.size * self.inputs
    }

    fn weights(&self) -> usize {
        self.depth() * self.channels
    }

    /// The output positions, the strides of their windows in the inputs and of the outputs themselves, and where
    /// the rows of a window begin.
    fn windows(
        &self,
        x: Frame,
        y: Frame,
        samples: usize,
    ) -> (Positions, [Strides; 2], [usize; SIZE_MAX]) {
        let mut taps = [0; SIZE_MAX];
        (0..self.size).for_each(|row| taps[row] = row * x.row());
        let plain = self.size == 1 && self.stride == 1 && x.pad == 0 && y.pad == 0;
        if plain {
            let strides = [Strides::matrix(self.inputs), Strides::matrix(self.channels)];
            return (y.positions(samples), strides, taps);
        }
        let positions =
            Positions { images: samples, rows: y.extent.height, columns: y.extent.width };
        let beyond = x.pad - self.pad;
        let strides = Strides {
            start: beyond * x.row() + beyond * self.inputs,
            image: x.len(),
            row: self.stride * x.row(),
            column: self.stride * self.inputs,
        };
        (positions, [strides, y.strides()], taps)
    }

    /// The rows (or columns) of the window that meet the inputs at `phase`, as (first output, window rows in the
    /// order of the outputs).
    fn phase(&self, phase: usize) -> (isize, impl Iterator<Item = usize> + Clone + use<>) {
        let (size, stride, pad) = (self.size, self.stride, self.pad);
        let first = (phase + pad) % stride;
        let rows = (first..size).step_by(stride);
        let farthest = rows.clone().next_back().unwrap_or(0);
        let from = (phase as isize + pad as isize - farthest as isize) / stride as isize;
        (from, rows.rev())
    }

    fn phases(&self) -> impl Iterator<Item = (usize, usize)> + use<> {
        let stride = self.stride;
        (0..stride).flat_map(move |row| (0..stride).map(move |column| (row, column)))
    }

    /// dx <- W^T dy, phase by phase.
    fn input_gradient(&self, pass: &Pass<'_>, dy: In<'_>, dx: GradientOut<'_>, packed: &[f32]) {
        let start = if dx.overwrite { Start::Zero } else { Start::Add };
        let mut packed = packed;
        for (a, b) in self.phases() {
            let (from_row, rows) = self.phase(a);
            let (from_column, columns) = self.phase(b);
            let (rows, columns) = (rows.count(), columns.count());
            let run = columns * self.channels;
            let mut taps = [0; SIZE_MAX];
            (0..rows).for_each(|row| taps[row] = row * dy.frame.row());
            let Extent { height, width, .. } = dx.frame.extent;
            let plain = self.size == 1 && self.stride == 1 && dy.frame.pad + dx.frame.pad == 0;
            let pad = dy.frame.pad as isize;
            let at = (pad + from_row) * dy.frame.row() as isize
                + (pad + from_column) * self.channels as isize;
            let (positions, input_strides, output_strides) = if plain {
                let positions = dx.frame.positions(pass.samples);
                (positions, Strides::matrix(self.channels), Strides::matrix(self.inputs))
            } else {
                let positions = Positions {
                    images: pass.samples,
                    rows: (height - a).div_ceil(self.stride),
                    columns: (width - b).div_ceil(self.stride),
                };
                let to = dx.frame.strides();
                let output_strides = Strides {
                    start: to.at(0, a, b),
                    row: to.row * self.stride,
                    column: to.column * self.stride,
                    ..to
                };
                let start =
                    usize::try_from(at).expect("the padding is as wide as the window needs");
                (positions, Strides { start, ..dy.frame.strides() }, output_strides)
            };
            let nothing = rows * columns == 0;
            if nothing && !dx.overwrite {
                continue;
            }
            let task = Sweep {
                positions,
                inputs: dy.data,
                input_strides: if nothing { Strides::matrix(0) } else { input_strides },
                taps: if nothing { &[] } else { &taps[..rows] },
                run: if nothing { 0 } else { run },
                weights: packed,
                outputs: self.inputs,
                output_strides,
                start,
                relu: false,
            };
            pass.path.sweep(&task, dx.data);
            packed = &packed[pass.path.packed_len(rows * run, self.inputs)..];
        }
    }

    fn pack_backward(&self, path: Path, weights: &[f32], packed: &mut [f32]) {
        let (inputs, channels) = (self.inputs, self.channels);
        let mut packed = packed;
        for (a, b) in self.phases() {
            let (rows, columns) = (self.phase(a).1, self.phase(b).1);
            let run = columns.clone().count() * channels;
            let depth = rows.clone().count() * run;
            let (here, rest) = packed.split_at_mut(path.packed_len(depth, inputs));
            // The window pixel of each group of `channels` inputs.
            let mut pixels = [0; SIZE_MAX * SIZE_MAX];
            let window = rows.flat_map(|row| columns.clone().map(move |column| (row, column)));
            for (pixel, (row, column)) in pixels.iter_mut().zip(window) {
                *pixel = row * self.size + column;
            }
            path.pack_transposed(
                &pixels[..depth / channels.max(1)],
                weights,
                channels,
                inputs,
                here,
            );
            packed = rest;
        }
    }

    /// Length of the packed weights of the forward pass; those of the backward pass follow them.
    fn packed_forward(&self, path: Path) -> usize {
        path.packed_len(self.depth(), self.channels).next_multiple_of(16)
    }
}

impl Layer for Conv {
    fn extent(&self, from: Extent) -> Extent {
        let out = |side: usize| (side + 2 * self.pad - self.size) / self.stride + 1;
        Extent { height: out(from.height), width: out(from.width), channels: self.channels }
    }

    fn params(&self, _: Extent) -> usize {
        self.weights() + if self.bias { self.channels } else { 0 }
    }

    /// PyTorch stores channels before rows and columns, and flattens images in that order.
    fn tensors(&self, _: Extent) -> Vec<Tensor> {
        let &Conv { channels, inputs, size, .. } = self;
        let (shape, sides) = match self.flattened {
            Some(from) => {
                (vec![channels, inputs], [from.height, from.width, from.channels, channels])
            }
            None => (vec![channels, inputs, size, size], [size, size, inputs, channels]),
        };
        let weight = Tensor::permuted("weight", &shape, 0, &sides, &[3, 2, 0, 1]);
        let bias = Tensor::plain("bias", &[channels], self.weights());
        [weight].into_iter().chain(self.bias.then_some(bias)).collect()
    }

    /// Weights with variance 2 / inputs (He et al. 2015), and biases 0. Uniform, not normal: a logarithm and
    /// a cosine may differ in the last bit from machine to machine, and initial replicas must be equal.
    fn initial(&self, _: Extent, dice: &mut Dice, params: &mut [f32]) {
        if self.zero {
            return;
        }
        let bound = self.gain * (6.0 / self.depth() as f64).sqrt();
        for weight in &mut params[..self.weights()] {
            *weight = dice.between(-bound, bound) as f32;
        }
    }

    fn undecayed(&self) -> Range<usize> {
        if self.bias { self.weights()..self.weights() + self.channels } else { 0..0 }
    }

    fn pads(&self, from: Extent) -> (usize, usize) {
        let to = self.extent(from);
        let mut back = 0;
        for phase in 0..self.stride {
            let (first, rows) = self.phase(phase);
            for (side, outputs) in [(from.height, to.height), (from.width, to.width)] {
                if rows.clone().count() == 0 || side <= phase {
                    continue;
                }
                let positions = (side - phase).div_ceil(self.stride) as isize;
                let last = positions - 1 + first + rows.clone().count() as isize - 1;
                back = back.max(-first).max(last - (outputs as isize - 1));
            }
        }
        (self.pad, back as usize)
    }

    fn packed(&self, _: Extent, path: Path) -> usize {
        let back = |(a, b): (usize, usize)| {
            let depth = self.phase(a).1.count() * self.phase(b).1.count() * self.channels;
            path.packed_len(depth, self.inputs)
        };
        self.packed_forward(path) + self.phases().map(back).sum::<usize>()
    }

    fn is_heavy(&self, from: Extent) -> bool {
        self.weights() > HEAVY * (from.len() + self.extent(from).len())
    }

    fn flops(&self, _: Extent, to: Extent) -> u64 {
        2 * (to.height * to.width * self.weights()) as u64
    }

    fn pack(&self, path: Path, _: Extent, params: &[f32], packed: &mut [f32], back: bool) {
        let (forward, backward) = packed.split_at_mut(self.packed_forward(path));
        path.pack(&params[..self.weights()], self.channels, forward);
        if back {
            self.pack_backward(path, params, backward);
        }
    }

    fn forward(&self, pass: &Pass<'_>, x: In<'_>, _: Option<In<'_>>, y: Out<'_>, _: &mut [f32]) {
        let (positions, [input_strides, output_strides], taps) =
            self.windows(x.frame, y.frame, pass.samples);
        let task = Sweep {
            positions,
            inputs: x.data,
            input_strides,
            taps: &taps[..self.size],
            run: self.size * self.inputs,
            weights: &pass.packed[..self.packed_forward(pass.path)],
            outputs: self.channels,
            output_strides,
            start: match self.bias {
                true => Start::Bias(&pass.params[self.weights()..]),
                false => Start::Zero,
            },
            relu: self.relu,
        };
        pass.path.sweep(&task, y.data);
    }

    fn backward(&self, pass: &Pass<'_>, back: Back<'_>) {
        let Back { x, y, dy, dx, dparams, .. } = back;
        let (dweights, dbiases) = dparams.split_at_mut(self.weights());
        if self.relu || self.bias {
            let (starts, len) = super::frame::side_by_side([dy.frame, y.frame], pass.samples);
            for [to, from] in starts {
                let row = &mut dy.data[to..to + len];
                if self.relu {
                    loops::relu_backward(pass.path, row, &y.data[from..from + len]);
                }
                if self.bias {
                    loops::add_pixels(pass.path, row, dbiases);
                }
            }
        }
        let (positions, [input_strides, delta_strides], taps) =
            self.windows(x.frame, dy.frame, pass.samples);
        let task = Outer {
            positions,
            inputs: x.data,
            input_strides,
            taps: &taps[..self.size],
            run: self.size * self.inputs,
            deltas: dy.data,
            delta_strides,
            outputs: self.channels,
        };
        pass.path.outer(&task, dweights);
        if let Some(dx) = dx {
            let dy = In { frame: dy.frame, data: dy.data };
            self.input_gradient(pass, dy, dx, &pass.packed[self.packed_forward(pass.path)..]);
        }
    }

    fn fuse_relu(&mut self) -> bool {
        !std::mem::replace(&mut self.relu, true)
    }

    fn remove_relu(&mut self) -> bool {
        std::mem::take(&mut self.relu)
    }

    fn drop_bias(&mut self) {
        self.bias = self.relu && self.bias;
    }
}
