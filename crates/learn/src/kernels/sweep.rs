//! y <- y + x W, where the rows of x may overlap, as under a convolution's window.
//!
//! One kernel serves dense layers, convolutions and their input gradients: each output position reads a few
//! *taps*, and each tap is a *run* of contiguous inputs (in images with channels last, a row of the window is
//! one run). Weights are packed into panels as wide as a few vector registers. The outputs of a block of
//! positions and one panel stay in registers during the loop over the runs, so that every load feeds several
//! multiplications.
//!
//! Each output adds its terms one by one, tap after tap, so the bits do not depend on the width of vectors,
//! blocks and panels.

use super::simd::Simd;

/// The output positions of one call: a grid of rows and columns for each image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Positions {
    pub images: usize,
    pub rows: usize,
    pub columns: usize,
}

/// Where the positions begin in a slice: the first one, and the distances in floats between images, rows and
/// columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Strides {
    pub start: usize,
    pub image: usize,
    pub row: usize,
    pub column: usize,
}

impl Strides {
    /// The plain rows of a matrix.
    pub fn matrix(width: usize) -> Strides {
        Strides { start: 0, image: 0, row: 0, column: width }
    }

    /// Where a position begins.
    pub fn at(&self, image: usize, row: usize, column: usize) -> usize {
        self.start + image * self.image + row * self.row + column * self.column
    }

    /// Whether every position and the `reach` floats from it on lie within a slice of `len` floats.
    ///
    /// `at` grows with each of its arguments, so the last position decides. This also means that none of
    /// the smaller sums in `at` overflows. `positions` must not be empty.
    pub(super) fn fits(&self, positions: Positions, reach: usize, len: usize) -> bool {
        let image = (positions.images - 1).checked_mul(self.image);
        let row = (positions.rows - 1).checked_mul(self.row);
        let column = (positions.columns - 1).checked_mul(self.column);
        let end = [image, row, column, Some(reach)]
            .into_iter()
            .try_fold(self.start, |end, part| end.checked_add(part?));
        end.is_some_and(|end| end <= len)
    }
}

impl Positions {
    pub fn matrix(rows: usize) -> Positions {
        Positions { images: 1, rows: 1, columns: rows }
    }

    pub fn is_empty(&self) -> bool {
        self.images == 0 || self.rows == 0 || self.columns == 0
    }
}

/// The initial value of an output.
#[derive(Clone, Copy, Debug)]
pub enum Start<'a> {
    Zero,
    /// Its current value.
    Add,
    Bias(&'a [f32]),
}

/// One call of the kernel.
pub struct Sweep<'a> {
    pub positions: Positions,
    pub inputs: &'a [f32],
    pub input_strides: Strides,
    /// Where the runs begin, relative to a position's first input.
    pub taps: &'a [usize],
    /// Inputs in a run.
    pub run: usize,
    /// Packed by `Path::pack`: `[panel][tap][run][width of the panel]`.
    pub weights: &'a [f32],
    pub outputs: usize,
    pub output_strides: Strides,
    pub start: Start<'a>,
    pub relu: bool,
}

/// The widest panel of any path, and the positions in the buffer for the last outputs.
const PANEL_MAX: usize = 32;
const EDGE_POSITIONS: usize = 8;

/// Weights that stay in the L1 cache during the loop over positions, in floats.
const RESIDENT: usize = 9 * 1024;

/// The panels that `outputs` are cut into, as (first output, vectors).
#[inline]
pub fn panels(lanes: usize, wide: usize, outputs: usize) -> impl Iterator<Item = (usize, usize)> {
    let mut from = 0;
    std::iter::from_fn(move || {
        let left = outputs.checked_sub(from).filter(|left| *left > 0)?;
        // Only two widths are compiled: `wide` vectors, or one.
        let vectors = if left.div_ceil(lanes) < wide { 1 } else { wide };
        let panel = (from, vectors);
        from += vectors * lanes;
        Some(panel)
    })
}

/// The floats from a position's first input to the end of its farthest run.
pub(super) fn reach(taps: &[usize], run: usize) -> usize {
    let end = |tap: &usize| tap.checked_add(run).expect("the end of a run fits into usize");
    taps.iter().max().map_or(0, end)
}

impl Sweep<'_> {
    /// Panics unless the slices are long enough for every position, tap and output, and returns the depth.
    /// All unsafe code of this kernel relies on this check and on nothing else.
    #[inline(always)]
    fn check<S: Simd>(&self, y_len: usize) -> usize {
        let inputs = self.inputs.len();
        let inputs_fit =
            self.input_strides.fits(self.positions, reach(self.taps, self.run), inputs);
        assert!(inputs_fit, "every tap of every position lies within the inputs");
        let outputs_fit = self.output_strides.fits(self.positions, self.outputs, y_len);
        assert!(outputs_fit, "all outputs of every position lie within y");
        let depth = self.taps.len().checked_mul(self.run);
        let depth = depth.expect("the number of weights per output fits into usize");
        let width = self.outputs.checked_next_multiple_of(S::LANES);
        let packed = width.and_then(|width| depth.checked_mul(width));
        let weights_fit = packed.is_some_and(|packed| packed <= self.weights.len());
        assert!(weights_fit, "there is a packed weight for every input and output");
        if let Start::Bias(bias) = self.start {
            assert_eq!(bias.len(), self.outputs, "there is one bias per output");
        }
        depth
    }
}

/// Panics unless all slices are as long as the call requires.
///
/// # Safety
/// The processor must have the instructions of `S`.
#[inline(always)]
pub unsafe fn sweep<S: Simd>(task: &Sweep<'_>, y: &mut [f32]) {
    if task.positions.is_empty() || task.outputs == 0 {
        return;
    }
    let depth = task.check::<S>(y.len());
    for (from, vectors) in panels(S::LANES, S::WIDE, task.outputs) {
        let width = vectors * S::LANES;
        let weights = &task.weights[from * depth..][..depth * width];
        let all_at_once = depth * width <= RESIDENT;
        let runs = if all_at_once { task.run.max(1) } else { (RESIDENT / width).min(task.run) };
        let taps_at_once = if all_at_once { task.taps.len().max(1) } else { 1 };
        let mut tap = 0;
        loop {
            let taps = &task.taps[tap..task.taps.len().min(tap + taps_at_once)];
            let mut offset = 0;
            loop {
                let len = runs.min(task.run - offset);
                let part = Part {
                    taps,
                    offset,
                    len,
                    weights: &weights[(tap * task.run + offset) * width..],
                    first: tap == 0 && offset == 0,
                    last: tap + taps.len() == task.taps.len() && offset + len == task.run,
                };
                // SAFETY: `check` has passed, `from` and `vectors` are those of a panel, and `part.weights`
                // begins with the panel's weights of the part's first input.
                unsafe {
                    match vectors == S::WIDE {
                        true if S::WIDE == 4 => part.run::<S, 4>(task, from, y),
                        true => part.run::<S, 2>(task, from, y),
                        false => part.run::<S, 1>(task, from, y),
                    }
                }
                offset += len;
                if offset >= task.run {
                    break;
                }
            }
            tap += taps_at_once;
            if tap >= task.taps.len() {
                break;
            }
        }
    }
}

/// The part of a panel that stays in the cache: several taps, or a section of one.
struct Part<'a> {
    taps: &'a [usize],
    /// The section of each run, as its start and length.
    offset: usize,
    len: usize,
    /// The weights of these inputs: `[tap][len][width of the panel]`.
    weights: &'a [f32],
    /// Whether this part is the first, or the last, to add to the outputs.
    first: bool,
    last: bool,
}

impl Part<'_> {
    /// Adds this part's terms to the outputs `from..` of all positions.
    ///
    /// # Safety
    /// The processor must have the instructions of `S`. `task.check` has passed for `y`. A panel of `NV` vectors
    /// begins at the output `from`, and `self.weights` at its weights.
    #[inline(always)]
    unsafe fn run<S: Simd, const NV: usize>(&self, task: &Sweep<'_>, from: usize, y: &mut [f32]) {
        let whole = from + NV * S::LANES <= task.outputs;
        let Positions { images, rows, columns } = task.positions;
        for image in 0..images {
            for row in 0..rows {
                let mut column = 0;
                while column < columns {
                    let left = columns - column;
                    let x = task.input_strides.at(image, row, column);
                    let at = task.output_strides.at(image, row, column) + from;
                    // SAFETY: `x` and `at` are those of an existing position, followed by `left - 1` more. The
                    // panel lies within the outputs if `whole`; otherwise `edge` uses a buffer that is wide enough.
                    column += unsafe {
                        match whole {
                            true => self.block_of_any::<S, NV>(task, x, from, y, at, left),
                            false => self.edge::<S, NV>(task, x, from, y, at, left),
                        }
                    };
                }
            }
        }
    }

    /// A block at the last outputs, of which there are fewer than the panel is wide: computes them in a buffer
    /// and copies them. Returns the number of positions.
    ///
    /// # Safety
    /// As for [`Part::block_of_any`], except that the panel may end beyond the outputs.
    #[inline(always)]
    unsafe fn edge<S: Simd, const NV: usize>(
        &self,
        task: &Sweep<'_>,
        x: usize,
        from: usize,
        y: &mut [f32],
        at: usize,
        left: usize,
    ) -> usize {
        let (width, outputs) = (NV * S::LANES, task.outputs - from);
        let step = task.output_strides.column;
        let count = left.min(EDGE_POSITIONS);
        let mut buffer = [0.0; EDGE_POSITIONS * PANEL_MAX];
        for position in 0..count {
            let buffer = &mut buffer[position * width..][..outputs];
            match task.start {
                Start::Bias(bias) if self.first => buffer.copy_from_slice(&bias[from..]),
                Start::Zero if self.first => {}
                _ => buffer.copy_from_slice(&y[at + position * step..][..outputs]),
            }
        }
        let strides = Strides { column: width, ..task.output_strides };
        let task = Sweep { start: Start::Add, output_strides: strides, ..*task };
        let mut done = 0;
        while done < count {
            let x = x + done * task.input_strides.column;
            // SAFETY: the inputs are those of the caller. The outputs go to `buffer`, whose `count` positions are
            // `width` floats apart and hold a whole panel each: count <= EDGE_POSITIONS, width <= PANEL_MAX.
            // A bias is not read, because `start` is `Add`.
            done += unsafe {
                self.block_of_any::<S, NV>(&task, x, 0, &mut buffer, done * width, count - done)
            };
        }
        for position in 0..count {
            y[at + position * step..][..outputs]
                .copy_from_slice(&buffer[position * width..][..outputs]);
        }
        count
    }

    /// Computes the largest block that fits into the remaining positions, and returns its size.
    ///
    /// # Safety
    /// The processor must have the instructions of `S`. `left` positions, at least one, follow in this row:
    /// their inputs, from `x` on, and their outputs, from `y[at]` on, lie within the slices for every tap and
    /// for `NV` vectors.
    #[inline(always)]
    unsafe fn block_of_any<S: Simd, const NV: usize>(
        &self,
        task: &Sweep<'_>,
        x: usize,
        from: usize,
        y: &mut [f32],
        at: usize,
        left: usize,
    ) -> usize {
        macro_rules! blocks {
            ($unroll:literal: $($size:literal)*) => {
                match left {
                    // SAFETY: the block has `$size` positions, and `left` is at least that.
                    $($size.. => unsafe {
                        self.block::<S, $size, NV, $unroll>(task, x, from, y, at);
                        $size
                    },)*
                    _ => unreachable!("at least one position is left"),
                }
            };
        }
        // Accumulators, weights and one broadcast input must fit into 32 or 16 registers together.
        match (S::LANES * S::WIDE, NV) {
            (32, 1) => blocks!(4: 16 14 12 8 7 4 2 1),
            (32, _) => blocks!(4: 8 7 4 2 1),
            (_, 4) => blocks!(1: 6 4 2 1),
            (_, 2) => blocks!(1: 6 4 2 1),
            _ => blocks!(2: 8 7 4 2 1),
        }
    }

    /// Computes `NP` positions of one row and `NV` vectors of outputs.
    ///
    /// # Safety
    /// As for [`Part::block_of_any`], with `NP` positions left.
    #[inline(always)]
    unsafe fn block<S: Simd, const NP: usize, const NV: usize, const UNROLL: usize>(
        &self,
        task: &Sweep<'_>,
        x: usize,
        from: usize,
        y: &mut [f32],
        at: usize,
    ) {
        // SAFETY, by slice:
        // y: position p has NV vectors at y[at + p y_step], which the caller guarantees for p < NP.
        // bias: from + NV LANES <= outputs = bias.len(), since only whole panels start from a bias.
        // inputs: the largest index is x + p step + tap + offset + len - 1. Position p exists, and
        // offset + len <= run, so it is below the end that `Sweep::check` compares with the slice.
        // weights: w advances by NV LANES for each of the `len` inputs of each tap; `self.weights` holds
        // at least that many.
        unsafe {
            let (step, y_step) = (task.input_strides.column, task.output_strides.column);
            let y = y.as_mut_ptr().add(at);
            let mut acc = [[S::zero(); NV]; NP];
            match task.start {
                Start::Zero if self.first => {}
                Start::Bias(bias) if self.first => {
                    for v in 0..NV {
                        let bias = S::load(bias.as_ptr().add(from + v * S::LANES));
                        acc.iter_mut().for_each(|acc| acc[v] = bias);
                    }
                }
                _ => {
                    for (p, acc) in acc.iter_mut().enumerate() {
                        for (v, acc) in acc.iter_mut().enumerate() {
                            *acc = S::load(y.add(p * y_step + v * S::LANES));
                        }
                    }
                }
            }
            let mut w = self.weights.as_ptr();
            for tap in self.taps {
                let x = task.inputs.as_ptr().add(x + tap + self.offset);
                let mut c = 0;
                // Several inputs at a time, so that they share the computation of an address.
                while c + UNROLL <= self.len {
                    let mut weights = [[S::zero(); NV]; UNROLL];
                    for (u, weights) in weights.iter_mut().enumerate() {
                        for (v, weight) in weights.iter_mut().enumerate() {
                            *weight = S::load(w.add((u * NV + v) * S::LANES));
                        }
                    }
                    for (p, acc) in acc.iter_mut().enumerate() {
                        let x = x.add(p * step + c);
                        for (u, weights) in weights.iter().enumerate() {
                            let x = S::splat(*x.add(u));
                            for v in 0..NV {
                                acc[v] = S::mul_add(x, weights[v], acc[v]);
                            }
                        }
                    }
                    w = w.add(UNROLL * NV * S::LANES);
                    c += UNROLL;
                }
                while c < self.len {
                    for v in 0..NV {
                        let weight = S::load(w.add(v * S::LANES));
                        for (p, acc) in acc.iter_mut().enumerate() {
                            acc[v] = S::mul_add(S::splat(*x.add(p * step + c)), weight, acc[v]);
                        }
                    }
                    w = w.add(NV * S::LANES);
                    c += 1;
                }
            }
            for (p, acc) in acc.iter().enumerate() {
                for (v, acc) in acc.iter().enumerate() {
                    let acc = if task.relu && self.last { S::relu(*acc) } else { *acc };
                    S::store(y.add(p * y_step + v * S::LANES), acc);
                }
            }
        }
    }
}
