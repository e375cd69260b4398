//! Causal self-attention with several heads (Vaswani et al. 2017).
//!
//! Per head, with queries Q, keys K and values V of one sample: P = softmax(Q K^T / sqrt(width)), where a
//! position attends to itself and to earlier ones, and Y = P V. Positions are processed in blocks, and a block
//! skips the keys that are not visible to any of its positions.

use super::layer::{Back, In, Layer, Out, Pass};
use crate::dataset::Extent;
use crate::kernels::{Outer, Path, Positions, Start, Strides, Sweep, loops, rows};

/// Inputs are queries, keys and values side by side, each with all heads side by side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attention {
    pub heads: usize,
    /// The channels of the outputs: those of all heads together.
    pub channels: usize,
}

impl Attention {
    fn head(&self, path: Path, positions: usize) -> Head {
        let width = self.channels / self.heads;
        Head { path, positions, width, row: positions.next_multiple_of(rows::LANES) }
    }

    /// The strides of every head of every sample.
    fn heads(&self, samples: usize, strides: Strides) -> impl Iterator<Item = Strides> + use<> {
        let (heads, width) = (self.heads, self.channels / self.heads);
        (0..samples).flat_map(move |sample| {
            (0..heads).map(move |head| Strides {
                start: strides.at(sample, 0, 0) + head * width,
                ..strides
            })
        })
    }

    /// The strides of a head's queries, keys and values, given those of its queries.
    fn parts(&self, strides: Strides) -> [Strides; 3] {
        [0, 1, 2].map(|part| Strides { start: strides.start + part * self.channels, ..strides })
    }
}

impl Layer for Attention {
    fn extent(&self, from: Extent) -> Extent {
        Extent { channels: self.channels, ..from }
    }

    /// The probabilities, and working memory.
    fn saved(&self, from: Extent) -> usize {
        let head = self.head(Path::Portable, from.width);
        self.heads * head.probabilities() + head.work().iter().sum::<usize>()
    }

    fn flops(&self, _: Extent, to: Extent) -> u64 {
        // Two products, each over half of all pairs of positions.
        2 * (to.width * (to.width + 1) * self.channels) as u64
    }

    fn forward(
        &self,
        pass: &Pass<'_>,
        x: In<'_>,
        _: Option<In<'_>>,
        y: Out<'_>,
        saved: &mut [f32],
    ) {
        let head = self.head(pass.path, x.frame.extent.width);
        let (saved, memory) = saved.split_at_mut(pass.samples * self.heads * head.probabilities());
        let Work { transposed, untransposed, .. } = head.split(memory);
        let from = self.heads(pass.samples, x.frame.strides());
        let to = self.heads(pass.samples, y.frame.strides());
        for ((from, to), saved) in from.zip(to).zip(saved.chunks_exact_mut(head.probabilities())) {
            let [queries, keys, values] =
                self.parts(from).map(|strides| Rows { data: x.data, strides });
            head.pack_transposed(keys, transposed);
            head.pack_untransposed(values, untransposed);
            for block in head.blocks() {
                let p = &mut saved[block.from * head.row..block.to * head.row];
                head.to_positions(block, queries, transposed, p);
                rows::softmax(pass.path, p, head.row, block.from + 1, block.visible, head.scale());
                head.to_channels(block, p, untransposed, true, y.data, to);
            }
        }
    }

    fn backward(&self, pass: &Pass<'_>, back: Back<'_>) {
        let Back { x, dy, dx, saved, .. } = back;
        let Some(dx) = dx else { return };
        let head = self.head(pass.path, x.frame.extent.width);
        let (saved, memory) = saved.split_at_mut(pass.samples * self.heads * head.probabilities());
        let Work { transposed, untransposed, dscores, dkeys, dvalues } = head.split(memory);
        let from = self.heads(pass.samples, x.frame.strides());
        let at = self.heads(pass.samples, dy.frame.strides());
        let into = self.heads(pass.samples, dx.frame.strides());
        let saved = saved.chunks_exact(head.probabilities());
        for (((from, at), into), saved) in from.zip(at).zip(into).zip(saved) {
            let [queries, keys, values] =
                self.parts(from).map(|strides| Rows { data: x.data, strides });
            let [to_queries, to_keys, to_values] = self.parts(into);
            let deltas = Rows { data: dy.data, strides: at };
            head.pack_transposed(values, transposed);
            head.pack_untransposed(keys, untransposed);
            dkeys.fill(0.0);
            dvalues.fill(0.0);
            for block in head.blocks() {
                let p = &saved[block.from * head.row..block.to * head.row];
                let d = &mut dscores[..p.len()];
                head.add_to_visible(block, p, deltas, dvalues);
                head.to_positions(block, deltas, transposed, d);
                let (visible, scale) = (block.from + 1, head.scale());
                rows::softmax_backward(pass.path, p, head.row, visible, block.visible, scale, d);
                head.to_channels(block, d, untransposed, dx.overwrite, dx.data, to_queries);
                head.add_to_visible(block, d, queries, dkeys);
            }
            head.write_or_add(dkeys, dx.overwrite, dx.data, to_keys);
            head.write_or_add(dvalues, dx.overwrite, dx.data, to_values);
        }
    }
}

/// The products of one head of one sample.
struct Head {
    path: Path,
    positions: usize,
    /// Channels.
    width: usize,
    /// Floats from one position's probabilities to those of the next.
    row: usize,
}

/// Positions in a block. Panels of packed keys end where blocks do, on every path.
const BLOCK: usize = 32;

/// The positions `from..to`, and the number of leading columns of their probabilities that hold all visible
/// positions.
#[derive(Clone, Copy)]
struct Block {
    from: usize,
    to: usize,
    visible: usize,
}

/// A row of channels per position.
#[derive(Clone, Copy)]
struct Rows<'a> {
    data: &'a [f32],
    strides: Strides,
}

/// Memory for one head at a time.
struct Work<'a> {
    /// Keys or values, packed for products whose outputs are positions.
    transposed: &'a mut [f32],
    /// Keys or values, packed for products whose outputs are channels, block by block.
    untransposed: &'a mut [f32],
    /// The gradient with respect to a block's probabilities, then to its scores.
    dscores: &'a mut [f32],
    dkeys: &'a mut [f32],
    dvalues: &'a mut [f32],
}

impl Head {
    fn probabilities(&self) -> usize {
        self.positions * self.row
    }

    /// Lengths of the parts of [`Work`], the same on every path.
    fn work(&self) -> [usize; 5] {
        let Head { positions, width, row, .. } = *self;
        [width * row, positions * self.panel(), BLOCK * row, positions * width, positions * width]
    }

    fn split<'a>(&self, memory: &'a mut [f32]) -> Work<'a> {
        let mut rest = memory;
        let [transposed, untransposed, dscores, dkeys, dvalues] = self
            .work()
            .map(|len| rest.split_off_mut(..len).expect("the working memory holds all parts"));
        Work { transposed, untransposed, dscores, dkeys, dvalues }
    }

    /// The most floats that a position's packed channels take on any path.
    fn panel(&self) -> usize {
        self.width.next_multiple_of(rows::LANES)
    }

    fn scale(&self) -> f32 {
        1.0 / (self.width as f32).sqrt()
    }

    fn blocks(&self) -> impl Iterator<Item = Block> + use<> {
        let Head { positions, row, .. } = *self;
        (0..positions).step_by(BLOCK).map(move |from| Block {
            from,
            to: positions.min(from + BLOCK),
            visible: row.min(from + BLOCK),
        })
    }

    fn pack_transposed(&self, x: Rows<'_>, packed: &mut [f32]) {
        let (data, step) = (&x.data[x.strides.start..], x.strides.column);
        self.path.pack_columns(data, step, self.width, self.positions, self.row, packed);
    }

    fn pack_untransposed(&self, x: Rows<'_>, packed: &mut [f32]) {
        for Block { from, to, .. } in self.blocks() {
            let (data, step) = (&x.data[x.strides.at(0, 0, from)..], x.strides.column);
            let packed = &mut packed[from * self.panel()..];
            self.path.pack_rows(data, step, to - from, self.width, packed);
        }
    }

    /// y <- x W for a block: from channels to the positions that are visible to it.
    fn to_positions(&self, block: Block, x: Rows<'_>, transposed: &[f32], y: &mut [f32]) {
        let task = Sweep {
            positions: Positions::matrix(block.to - block.from),
            inputs: x.data,
            input_strides: Strides { start: x.strides.at(0, 0, block.from), ..x.strides },
            taps: &[0],
            run: self.width,
            weights: transposed,
            outputs: block.visible,
            output_strides: Strides::matrix(self.row),
            start: Start::Zero,
            relu: false,
        };
        self.path.sweep(&task, y);
    }

    /// y <- x W for a block, or y <- y + x W: from the positions that are visible to it to channels.
    fn to_channels(
        &self,
        block: Block,
        x: &[f32],
        untransposed: &[f32],
        overwrite: bool,
        y: &mut [f32],
        strides: Strides,
    ) {
        for visible in self.blocks().take_while(|visible| visible.from <= block.from) {
            let task = Sweep {
                positions: Positions::matrix(block.to - block.from),
                inputs: x,
                input_strides: Strides { start: visible.from, ..Strides::matrix(self.row) },
                taps: &[0],
                run: visible.to - visible.from,
                weights: &untransposed[visible.from * self.panel()..],
                outputs: self.width,
                output_strides: Strides { start: strides.at(0, 0, block.from), ..strides },
                start: if overwrite && visible.from == 0 { Start::Zero } else { Start::Add },
                relu: false,
            };
            self.path.sweep(&task, y);
        }
    }

    /// y <- y + x^T d for a block: from its positions to those that are visible to it.
    fn add_to_visible(&self, block: Block, x: &[f32], d: Rows<'_>, y: &mut [f32]) {
        let task = Outer {
            positions: Positions::matrix(block.to - block.from),
            inputs: x,
            input_strides: Strides::matrix(self.row),
            taps: &[0],
            run: block.to,
            deltas: d.data,
            delta_strides: Strides { start: d.strides.at(0, 0, block.from), ..d.strides },
            outputs: self.width,
        };
        self.path.outer(&task, &mut y[..block.to * self.width]);
    }

    fn write_or_add(&self, x: &[f32], overwrite: bool, y: &mut [f32], strides: Strides) {
        for (position, x) in x.chunks_exact(self.width).enumerate() {
            loops::write_or_add(
                self.path,
                x,
                overwrite,
                &mut y[strides.at(0, 0, position)..][..self.width],
            );
        }
    }
}
