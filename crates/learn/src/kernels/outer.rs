//! W <- W + sum over places of x^T delta: the weight gradient of dense layers and convolutions.
//!
//! A tile of the gradient stays in registers while places go by. Each weight adds up its terms place by
//! place, whatever the tile.

use super::simd::Simd;
use super::sweep::{Lay, Places};

/// One call of the kernel.
pub struct Outer<'a> {
    pub places: Places,
    pub inputs: &'a [f32],
    pub input_lay: Lay,
    /// Where the runs begin, counted from a place's own input.
    pub taps: &'a [usize],
    pub run: usize,
    pub deltas: &'a [f32],
    pub delta_lay: Lay,
    pub outputs: usize,
}

/// Inputs and deltas that stay in the first cache while tiles go by, in floats.
const RESIDENT: usize = 6 * 1024;

/// The same for windows of one row, which read a strip once for each panel of outputs: longer strips from
/// the second cache pay, for weights are fetched once per strip.
const RESIDENT_PLAIN: usize = 32 * 1024;
const PANEL: usize = 32;

/// `weights` is `[tap][run][output]`.
///
/// # Safety
/// The processor must have the instructions of `S`.
#[inline(always)]
pub unsafe fn outer<S: Simd>(task: &Outer<'_>, weights: &mut [f32]) {
    let Places { images, rows, columns } = task.places;
    if task.places.is_empty() || task.outputs == 0 {
        return;
    }
    let reach = task.taps.iter().max().map_or(0, |tap| tap + task.run);
    let last = |lay: &Lay| lay.at(images - 1, rows - 1, columns - 1);
    assert!(last(&task.input_lay) + reach <= task.inputs.len(), "inputs are there");
    assert!(last(&task.delta_lay) + task.outputs <= task.deltas.len(), "deltas are there");
    assert_eq!(weights.len(), task.taps.len() * task.run * task.outputs, "a gradient per weight");
    // A strip of rows, or a piece of one, at a time.
    let inputs = task.input_lay.column.max(1);
    let strip = match task.taps.len() {
        1 => RESIDENT_PLAIN / (inputs + task.outputs.min(PANEL)),
        _ => RESIDENT / (inputs + task.outputs),
    };
    let strip = strip.max(16);
    let rows_at_once = (strip / columns).clamp(1, rows);
    let columns_at_once = if rows_at_once > 1 { columns } else { strip.min(columns) };
    for image in 0..images {
        for row in (0..rows).step_by(rows_at_once) {
            for column in (0..columns).step_by(columns_at_once) {
                let strip = Strip {
                    task,
                    x: task.input_lay.at(image, row, column),
                    delta: task.delta_lay.at(image, row, column),
                    rows: rows_at_once.min(rows - row),
                    columns: columns_at_once.min(columns - column),
                };
                // SAFETY: the strip lies inside the places that were asserted above.
                unsafe { strip.run::<S>(weights) };
            }
        }
    }
}

struct Strip<'a, 'b> {
    task: &'a Outer<'b>,
    x: usize,
    delta: usize,
    rows: usize,
    columns: usize,
}

impl Strip<'_, '_> {
    #[inline(always)]
    unsafe fn run<S: Simd>(&self, weights: &mut [f32]) {
        let (run, outputs) = (self.task.run, self.task.outputs);
        for (tap, offset) in self.task.taps.iter().enumerate() {
            let mut from = 0;
            while from < outputs {
                let vectors = ((outputs - from) / S::LANES).min(2);
                let mut c = 0;
                while c < run {
                    let x = self.x + offset + c;
                    let w = &mut weights[(tap * run + c) * outputs + from..];
                    // SAFETY: tile, strip and weights are inside the slices, as `outer` asserts.
                    c += unsafe {
                        match vectors {
                            2 => self.tile_of_any::<S, 2>(x, from, w, run - c),
                            1 => self.tile_of_any::<S, 1>(x, from, w, run - c),
                            _ => self.edge::<S>(x, from, w),
                        }
                    };
                }
                from += if vectors == 0 { outputs - from } else { vectors * S::LANES };
            }
        }
    }

    /// The last outputs of one input, fewer than a vector holds.
    #[inline(always)]
    fn edge<S: Simd>(&self, x: usize, from: usize, weights: &mut [f32]) -> usize {
        let task = self.task;
        let weights = &mut weights[..task.outputs - from];
        for row in 0..self.rows {
            for column in 0..self.columns {
                let x = task.inputs[x + row * task.input_lay.row + column * task.input_lay.column];
                let at = row * task.delta_lay.row + column * task.delta_lay.column;
                let deltas = &task.deltas[self.delta + from + at..][..weights.len()];
                weights
                    .iter_mut()
                    .zip(deltas)
                    .for_each(|(w, delta)| *w = S::mul_add_one(x, *delta, *w));
            }
        }
        1
    }

    #[inline(always)]
    unsafe fn tile_of_any<S: Simd, const NV: usize>(
        &self,
        x: usize,
        from: usize,
        weights: &mut [f32],
        left: usize,
    ) -> usize {
        macro_rules! tiles {
            ($($size:literal)*) => {
                match left {
                    // SAFETY: as for the caller.
                    $($size.. => unsafe {
                        self.tile::<S, $size, NV>(x, from, weights);
                        $size
                    },)*
                    _ => unreachable!("there is an input left"),
                }
            };
        }
        match (S::LANES, NV) {
            (16, 1) => tiles!(24 16 8 4 3 2 1),
            (16, _) => tiles!(12 8 4 3 2 1),
            (_, 1) => tiles!(8 4 3 2 1),
            _ => tiles!(6 4 3 2 1),
        }
    }

    #[inline(always)]
    unsafe fn tile<S: Simd, const NC: usize, const NV: usize>(
        &self,
        x: usize,
        from: usize,
        weights: &mut [f32],
    ) {
        let (task, width) = (self.task, self.task.outputs);
        // SAFETY: all pointers stay inside the slices, as `outer` asserts.
        unsafe {
            let weights = weights.as_mut_ptr();
            let mut acc = [[S::zero(); NV]; NC];
            for (c, acc) in acc.iter_mut().enumerate() {
                for (v, acc) in acc.iter_mut().enumerate() {
                    *acc = S::load(weights.add(c * width + v * S::LANES));
                }
            }
            for row in 0..self.rows {
                let mut x = task.inputs.as_ptr().add(x + row * task.input_lay.row);
                let deltas = self.delta + from + row * task.delta_lay.row;
                let mut deltas = task.deltas.as_ptr().add(deltas);
                for _ in 0..self.columns {
                    let mut delta = [S::zero(); NV];
                    for (v, delta) in delta.iter_mut().enumerate() {
                        *delta = S::load(deltas.add(v * S::LANES));
                    }
                    for (c, acc) in acc.iter_mut().enumerate() {
                        let x = S::splat(*x.add(c));
                        for v in 0..NV {
                            acc[v] = S::mul_add(x, delta[v], acc[v]);
                        }
                    }
                    // The last step leaves the slices, and nothing is read there.
                    x = x.wrapping_add(task.input_lay.column);
                    deltas = deltas.wrapping_add(task.delta_lay.column);
                }
            }
            for (c, acc) in acc.iter().enumerate() {
                for (v, acc) in acc.iter().enumerate() {
                    S::store(weights.add(c * width + v * S::LANES), *acc);
                }
            }
        }
    }
}
