//! Causal self-attention with several heads (Vaswani et al. 2017).
//!
//! Per head, with queries Q, keys K and values V of one sample: P = softmax(Q K^T / sqrt(width)), where a
//! place sees itself and what came before, and Y = P V. Places are taken in blocks, and a block leaves
//! out all keys that none of its places sees.

use super::layer::{Back, In, Layer, Out, Pass};
use crate::dataset::Extent;
use crate::kernels::{Lay, Outer, Path, Places, Start, Sweep, loops, rows};

/// Inputs are queries, keys and values side by side, each with all heads side by side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attention {
    pub heads: usize,
    /// Of the outputs.
    pub channels: usize,
}

impl Attention {
    fn head(&self, path: Path, places: usize) -> Head {
        let width = self.channels / self.heads;
        Head { path, places, width, row: places.next_multiple_of(rows::LANES) }
    }

    /// Where the rows of every head of every sample lie.
    fn heads(&self, samples: usize, lay: Lay) -> impl Iterator<Item = Lay> + use<> {
        let (heads, width) = (self.heads, self.channels / self.heads);
        (0..samples).flat_map(move |sample| {
            (0..heads).map(move |head| Lay { start: lay.at(sample, 0, 0) + head * width, ..lay })
        })
    }

    /// Where a head's queries, keys and values lie, given its queries.
    fn parts(&self, lay: Lay) -> [Lay; 3] {
        [0, 1, 2].map(|part| Lay { start: lay.start + part * self.channels, ..lay })
    }
}

impl Layer for Attention {
    fn extent(&self, from: Extent) -> Extent {
        Extent { channels: self.channels, ..from }
    }

    /// Probabilities, and memory to work with.
    fn kept(&self, from: Extent) -> usize {
        let head = self.head(Path::Portable, from.width);
        self.heads * head.probabilities() + head.work().iter().sum::<usize>()
    }

    fn flops(&self, _: Extent, to: Extent) -> u64 {
        // Two products, each over half of all pairs of places.
        2 * (to.width * (to.width + 1) * self.channels) as u64
    }

    fn forward(&self, pass: &Pass<'_>, x: In<'_>, _: Option<In<'_>>, y: Out<'_>, kept: &mut [f32]) {
        let head = self.head(pass.path, x.frame.extent.width);
        let (kept, memory) = kept.split_at_mut(pass.samples * self.heads * head.probabilities());
        let Work { turned, upright, .. } = head.split(memory);
        let from = self.heads(pass.samples, x.frame.lay());
        let to = self.heads(pass.samples, y.frame.lay());
        for ((from, to), kept) in from.zip(to).zip(kept.chunks_exact_mut(head.probabilities())) {
            let [queries, keys, values] = self.parts(from).map(|lay| Rows { data: x.data, lay });
            head.pack_turned(keys, turned);
            head.pack_upright(values, upright);
            for block in head.blocks() {
                let p = &mut kept[block.from * head.row..block.to * head.row];
                head.to_places(block, queries, turned, p);
                rows::softmax(pass.path, p, head.row, block.from + 1, block.seen, head.scale());
                head.to_channels(block, p, upright, true, y.data, to);
            }
        }
    }

    fn backward(&self, pass: &Pass<'_>, back: Back<'_>) {
        let Back { x, dy, dx, kept, .. } = back;
        let Some(dx) = dx else { return };
        let head = self.head(pass.path, x.frame.extent.width);
        let (kept, memory) = kept.split_at_mut(pass.samples * self.heads * head.probabilities());
        let Work { turned, upright, dscores, dkeys, dvalues } = head.split(memory);
        let from = self.heads(pass.samples, x.frame.lay());
        let at = self.heads(pass.samples, dy.frame.lay());
        let into = self.heads(pass.samples, dx.frame.lay());
        let kept = kept.chunks_exact(head.probabilities());
        for (((from, at), into), kept) in from.zip(at).zip(into).zip(kept) {
            let [queries, keys, values] = self.parts(from).map(|lay| Rows { data: x.data, lay });
            let [to_queries, to_keys, to_values] = self.parts(into);
            let deltas = Rows { data: dy.data, lay: at };
            head.pack_turned(values, turned);
            head.pack_upright(keys, upright);
            dkeys.fill(0.0);
            dvalues.fill(0.0);
            for block in head.blocks() {
                let p = &kept[block.from * head.row..block.to * head.row];
                let d = &mut dscores[..p.len()];
                head.add_to_seen(block, p, deltas, dvalues);
                head.to_places(block, deltas, turned, d);
                let (seen, scale) = (block.from + 1, head.scale());
                rows::softmax_back(pass.path, p, head.row, seen, block.seen, scale, d);
                head.to_channels(block, d, upright, dx.fresh, dx.data, to_queries);
                head.add_to_seen(block, d, queries, dkeys);
            }
            head.put(dkeys, dx.fresh, dx.data, to_keys);
            head.put(dvalues, dx.fresh, dx.data, to_values);
        }
    }
}

/// The products of one head of one sample.
struct Head {
    path: Path,
    places: usize,
    /// Channels.
    width: usize,
    /// Floats from one place's probabilities to the next's.
    row: usize,
}

/// Places in a block. Panels of packed keys end where blocks do, on every path.
const BLOCK: usize = 32;

/// Some places, from one to before another, and how many columns of their probabilities hold all that
/// one of them sees.
#[derive(Clone, Copy)]
struct Block {
    from: usize,
    to: usize,
    seen: usize,
}

/// A row of channels per place.
#[derive(Clone, Copy)]
struct Rows<'a> {
    data: &'a [f32],
    lay: Lay,
}

/// Memory for one head at a time.
struct Work<'a> {
    /// Packed for products that end in places.
    turned: &'a mut [f32],
    /// Packed for products that end in channels, block after block.
    upright: &'a mut [f32],
    /// The gradient in a block's probabilities, then in its scores.
    dscores: &'a mut [f32],
    dkeys: &'a mut [f32],
    dvalues: &'a mut [f32],
}

impl Head {
    fn probabilities(&self) -> usize {
        self.places * self.row
    }

    /// Lengths of the parts of [`Work`], the same on every path.
    fn work(&self) -> [usize; 5] {
        let Head { places, width, row, .. } = *self;
        [width * row, places * self.panel(), BLOCK * row, places * width, places * width]
    }

    fn split<'a>(&self, memory: &'a mut [f32]) -> Work<'a> {
        let mut rest = memory;
        let [turned, upright, dscores, dkeys, dvalues] =
            self.work().map(|len| rest.split_off_mut(..len).expect("there is memory to work with"));
        Work { turned, upright, dscores, dkeys, dvalues }
    }

    /// Floats that a place's packed channels take at most.
    fn panel(&self) -> usize {
        self.width.next_multiple_of(rows::LANES)
    }

    fn scale(&self) -> f32 {
        1.0 / (self.width as f32).sqrt()
    }

    fn blocks(&self) -> impl Iterator<Item = Block> + use<> {
        let Head { places, row, .. } = *self;
        (0..places).step_by(BLOCK).map(move |from| Block {
            from,
            to: places.min(from + BLOCK),
            seen: row.min(from + BLOCK),
        })
    }

    fn pack_turned(&self, x: Rows<'_>, packed: &mut [f32]) {
        let (data, step) = (&x.data[x.lay.start..], x.lay.column);
        self.path.pack_columns(data, step, self.width, self.places, self.row, packed);
    }

    fn pack_upright(&self, x: Rows<'_>, packed: &mut [f32]) {
        for Block { from, to, .. } in self.blocks() {
            let (data, step) = (&x.data[x.lay.at(0, 0, from)..], x.lay.column);
            let packed = &mut packed[from * self.panel()..];
            self.path.pack_rows(data, step, to - from, self.width, packed);
        }
    }

    /// y <- x W for a block: from channels to the places that it sees.
    fn to_places(&self, block: Block, x: Rows<'_>, turned: &[f32], y: &mut [f32]) {
        let task = Sweep {
            places: Places::matrix(block.to - block.from),
            inputs: x.data,
            input_lay: Lay { start: x.lay.at(0, 0, block.from), ..x.lay },
            taps: &[0],
            run: self.width,
            weights: turned,
            outputs: block.seen,
            output_lay: Lay::matrix(self.row),
            start: Start::Zero,
            relu: false,
        };
        self.path.sweep(&task, y);
    }

    /// y <- x W for a block, or y <- y + x W: from the places that it sees to channels.
    fn to_channels(
        &self,
        block: Block,
        x: &[f32],
        upright: &[f32],
        fresh: bool,
        y: &mut [f32],
        lay: Lay,
    ) {
        for seen in self.blocks().take_while(|seen| seen.from <= block.from) {
            let task = Sweep {
                places: Places::matrix(block.to - block.from),
                inputs: x,
                input_lay: Lay { start: seen.from, ..Lay::matrix(self.row) },
                taps: &[0],
                run: seen.to - seen.from,
                weights: &upright[seen.from * self.panel()..],
                outputs: self.width,
                output_lay: Lay { start: lay.at(0, 0, block.from), ..lay },
                start: if fresh && seen.from == 0 { Start::Zero } else { Start::Add },
                relu: false,
            };
            self.path.sweep(&task, y);
        }
    }

    /// y <- y + x^T d for a block: from its places to those that it sees.
    fn add_to_seen(&self, block: Block, x: &[f32], d: Rows<'_>, y: &mut [f32]) {
        let task = Outer {
            places: Places::matrix(block.to - block.from),
            inputs: x,
            input_lay: Lay::matrix(self.row),
            taps: &[0],
            run: block.to,
            deltas: d.data,
            delta_lay: Lay { start: d.lay.at(0, 0, block.from), ..d.lay },
            outputs: self.width,
        };
        self.path.outer(&task, &mut y[..block.to * self.width]);
    }

    fn put(&self, x: &[f32], fresh: bool, y: &mut [f32], lay: Lay) {
        for (place, x) in x.chunks_exact(self.width).enumerate() {
            loops::put(self.path, x, fresh, &mut y[lay.at(0, 0, place)..][..self.width]);
        }
    }
}
