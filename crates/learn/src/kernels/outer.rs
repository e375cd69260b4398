//! W <- W + sum over positions of x^T delta: the weight gradient of dense layers and convolutions.
//!
//! A tile of the gradient stays in registers during the loop over positions. Each weight adds its terms position
//! by position, so the bits do not depend on the tile.

use super::simd::Simd;
use super::sweep::{Positions, Strides, reach};

/// One call of the kernel.
pub struct Outer<'a> {
    pub positions: Positions,
    pub inputs: &'a [f32],
    pub input_strides: Strides,
    /// Where the runs begin, relative to a position's first input.
    pub taps: &'a [usize],
    /// Inputs in a run.
    pub run: usize,
    pub deltas: &'a [f32],
    pub delta_strides: Strides,
    pub outputs: usize,
}

/// Inputs and deltas that stay in the L1 cache during the loop over tiles, in floats.
const RESIDENT: usize = 6 * 1024;

/// The same for windows of one row, which read a strip once for each panel of outputs. Longer strips, in the L2
/// cache, are faster here, because weights are loaded once per strip.
const RESIDENT_PLAIN: usize = 32 * 1024;
const PANEL: usize = 32;

impl Outer<'_> {
    /// Panics unless the slices are long enough for every position, tap and output. All unsafe code of this
    /// kernel relies on this check and on nothing else.
    fn check(&self, weights_len: usize) {
        let inputs = self.inputs.len();
        let inputs_fit =
            self.input_strides.fits(self.positions, reach(self.taps, self.run), inputs);
        assert!(inputs_fit, "every tap of every position lies within the inputs");
        let deltas_fit = self.delta_strides.fits(self.positions, self.outputs, self.deltas.len());
        assert!(deltas_fit, "all deltas of every position lie within the slice");
        let depth = self.taps.len().checked_mul(self.run);
        let weights = depth.and_then(|depth| depth.checked_mul(self.outputs));
        assert_eq!(Some(weights_len), weights, "there is one gradient per weight");
    }
}

/// `weights` is `[tap][run][output]`. Panics unless all slices are as long as the call requires.
///
/// # Safety
/// The processor must have the instructions of `S`.
#[inline(always)]
pub unsafe fn outer<S: Simd>(task: &Outer<'_>, weights: &mut [f32]) {
    let Positions { images, rows, columns } = task.positions;
    if task.positions.is_empty() || task.outputs == 0 {
        return;
    }
    task.check(weights.len());
    // Strips of several rows, or sections of a row.
    let inputs = task.input_strides.column.max(1);
    let strip = match task.taps.len() {
        1 => RESIDENT_PLAIN / inputs.saturating_add(task.outputs.min(PANEL)),
        _ => RESIDENT / inputs.saturating_add(task.outputs),
    };
    let strip = strip.max(16);
    let rows_at_once = (strip / columns).clamp(1, rows);
    let columns_at_once = if rows_at_once > 1 { columns } else { strip.min(columns) };
    for image in 0..images {
        for row in (0..rows).step_by(rows_at_once) {
            for column in (0..columns).step_by(columns_at_once) {
                let strip = Strip {
                    task,
                    x: task.input_strides.at(image, row, column),
                    delta: task.delta_strides.at(image, row, column),
                    rows: rows_at_once.min(rows - row),
                    columns: columns_at_once.min(columns - column),
                };
                // SAFETY: `check` has passed, and the strip consists of positions of the task.
                unsafe { strip.run::<S>(weights) };
            }
        }
    }
}

/// Neighboring positions of one image.
struct Strip<'a, 'b> {
    task: &'a Outer<'b>,
    /// Where the inputs and deltas of its first position begin.
    x: usize,
    delta: usize,
    rows: usize,
    columns: usize,
}

impl Strip<'_, '_> {
    /// Adds the terms of these positions to all weights.
    ///
    /// # Safety
    /// The processor must have the instructions of `S`, `task.check` has passed for `weights`, and the strip lies
    /// within the task's positions.
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
                    // SAFETY: `x` is input `c` of a run, of which `run - c` are left; `vectors` vectors of
                    // outputs are left from `from` on; `w` begins at the weight of both.
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

    /// The last outputs of one input, if they do not fill a vector. Returns the number of inputs, 1.
    #[inline(always)]
    fn edge<S: Simd>(&self, x: usize, from: usize, weights: &mut [f32]) -> usize {
        let task = self.task;
        let weights = &mut weights[..task.outputs - from];
        for row in 0..self.rows {
            for column in 0..self.columns {
                let x = task.inputs
                    [x + row * task.input_strides.row + column * task.input_strides.column];
                let at = row * task.delta_strides.row + column * task.delta_strides.column;
                let deltas = &task.deltas[self.delta + from + at..][..weights.len()];
                weights
                    .iter_mut()
                    .zip(deltas)
                    .for_each(|(w, delta)| *w = S::mul_add_one(x, *delta, *w));
            }
        }
        1
    }

    /// Computes the largest tile that fits into the remaining inputs, and returns how many inputs it has.
    ///
    /// # Safety
    /// As for [`Strip::run`]. `x` is the first of `left` remaining inputs of a run, at least one; `NV` vectors of
    /// outputs begin at `from`; `weights` begins at the weight of this input and output.
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
                    // SAFETY: the tile has `$size` inputs, and `left` is at least that.
                    $($size.. => unsafe {
                        self.tile::<S, $size, NV>(x, from, weights);
                        $size
                    },)*
                    _ => unreachable!("at least one input is left"),
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

    /// Adds the terms of `NC` inputs and `NV` vectors of outputs.
    ///
    /// # Safety
    /// As for [`Strip::tile_of_any`], with `NC` inputs left.
    #[inline(always)]
    unsafe fn tile<S: Simd, const NC: usize, const NV: usize>(
        &self,
        x: usize,
        from: usize,
        weights: &mut [f32],
    ) {
        let (task, width) = (self.task, self.task.outputs);
        // SAFETY, by slice:
        // weights: the last access ends at (NC - 1) outputs + NV LANES, within the rows of NC inputs of a run.
        // inputs: x + c is an input of an existing tap, at the rows and columns of an existing position, and
        // `Outer::check` has compared the last of these with the slice.
        // deltas: NV vectors from output `from` on, at the same positions, compared in the same way.
        unsafe {
            let weights = weights.as_mut_ptr();
            let mut acc = [[S::zero(); NV]; NC];
            for (c, acc) in acc.iter_mut().enumerate() {
                for (v, acc) in acc.iter_mut().enumerate() {
                    *acc = S::load(weights.add(c * width + v * S::LANES));
                }
            }
            for row in 0..self.rows {
                let mut x = task.inputs.as_ptr().add(x + row * task.input_strides.row);
                let deltas = self.delta + from + row * task.delta_strides.row;
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
                    // After the last column these may point beyond the slices, where nothing is read.
                    x = x.wrapping_add(task.input_strides.column);
                    deltas = deltas.wrapping_add(task.delta_strides.column);
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
