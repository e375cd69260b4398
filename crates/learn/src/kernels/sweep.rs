//! y <- y + x W, where the rows of x may overlap, as under a convolution's window.
//!
//! One kernel serves dense layers, convolutions and their input gradients: each output place sees a few
//! *taps*, and each tap is a run of inputs that lie one after the other (in images with channels last, a
//! row of the window is one run). Weights are packed into panels as wide as a few vector registers. A
//! block of places times a panel stays in registers while the runs go by, so that every load feeds
//! several multiplications.
//!
//! Each output adds up its terms one by one, tap after tap: the width of vectors, blocks and panels
//! changes no bit.

use super::simd::Simd;

/// Places in rows in images: what is computed in one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Places {
    pub images: usize,
    pub rows: usize,
    pub columns: usize,
}

/// Where the places lie in a slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lay {
    pub start: usize,
    pub image: usize,
    pub row: usize,
    pub column: usize,
}

impl Lay {
    /// The plain rows of a matrix.
    pub fn matrix(width: usize) -> Lay {
        Lay { start: 0, image: 0, row: 0, column: width }
    }

    pub fn at(&self, image: usize, row: usize, column: usize) -> usize {
        self.start + image * self.image + row * self.row + column * self.column
    }

    fn last(&self, places: Places) -> usize {
        self.at(places.images - 1, places.rows - 1, places.columns - 1)
    }
}

impl Places {
    pub fn matrix(rows: usize) -> Places {
        Places { images: 1, rows: 1, columns: rows }
    }

    pub fn is_empty(&self) -> bool {
        self.images * self.rows * self.columns == 0
    }
}

/// What an output starts from.
#[derive(Clone, Copy, Debug)]
pub enum Start<'a> {
    Zero,
    /// What is there already.
    Add,
    Bias(&'a [f32]),
}

/// One call of the kernel.
pub struct Sweep<'a> {
    pub places: Places,
    pub inputs: &'a [f32],
    pub input_lay: Lay,
    /// Where the runs begin, counted from a place's own input.
    pub taps: &'a [usize],
    pub run: usize,
    /// Packed: `[panel][tap][run][width of the panel]`.
    pub weights: &'a [f32],
    pub outputs: usize,
    pub output_lay: Lay,
    pub start: Start<'a>,
    pub relu: bool,
}

/// Widest panel of any processor, and how many places are put aside at the edge at a time.
const PANEL_MAX: usize = 32;
const ASIDE: usize = 8;

/// Weights that stay in the first cache while places go by, in floats.
const RESIDENT: usize = 9 * 1024;

/// The panels that `outputs` are cut into, as (first output, vectors).
#[inline]
pub fn panels(lanes: usize, wide: usize, outputs: usize) -> impl Iterator<Item = (usize, usize)> {
    let mut from = 0;
    std::iter::from_fn(move || {
        let left = outputs.checked_sub(from).filter(|left| *left > 0)?;
        // Two widths are enough: all registers, or one.
        let vectors = if left.div_ceil(lanes) < wide { 1 } else { wide };
        let panel = (from, vectors);
        from += vectors * lanes;
        Some(panel)
    })
}

/// # Safety
/// The processor must have the instructions of `S`.
#[inline(always)]
pub unsafe fn sweep<S: Simd>(task: &Sweep<'_>, y: &mut [f32]) {
    if task.places.is_empty() || task.outputs == 0 {
        return;
    }
    let depth = task.taps.len() * task.run;
    let reach = task.taps.iter().max().map_or(0, |tap| tap + task.run);
    assert!(task.input_lay.last(task.places) + reach <= task.inputs.len(), "inputs are there");
    assert!(task.output_lay.last(task.places) + task.outputs <= y.len(), "outputs fit");
    assert!(depth * task.outputs.next_multiple_of(S::LANES) <= task.weights.len(), "packed");
    if let Start::Bias(bias) = task.start {
        assert_eq!(bias.len(), task.outputs, "a bias per output");
    }
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
                // SAFETY: the assertions above hold every place that the part reaches.
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

/// Some taps, or a piece of one: as much of a panel as stays in the cache.
struct Part<'a> {
    taps: &'a [usize],
    offset: usize,
    len: usize,
    weights: &'a [f32],
    first: bool,
    last: bool,
}

impl Part<'_> {
    #[inline(always)]
    unsafe fn run<S: Simd, const NV: usize>(&self, task: &Sweep<'_>, from: usize, y: &mut [f32]) {
        let whole = from + NV * S::LANES <= task.outputs;
        let Places { images, rows, columns } = task.places;
        for image in 0..images {
            for row in 0..rows {
                let mut column = 0;
                while column < columns {
                    let left = columns - column;
                    let x = task.input_lay.at(image, row, column);
                    let at = task.output_lay.at(image, row, column) + from;
                    // SAFETY: places, taps and panel are inside the slices, as `sweep` asserts.
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

    /// A block at the last outputs, where a panel is wider than what is left: it works on the side.
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
        let step = task.output_lay.column;
        let count = left.min(ASIDE);
        let mut aside = [0.0; ASIDE * PANEL_MAX];
        for place in 0..count {
            let aside = &mut aside[place * width..][..outputs];
            match task.start {
                Start::Bias(bias) if self.first => aside.copy_from_slice(&bias[from..]),
                Start::Zero if self.first => {}
                _ => aside.copy_from_slice(&y[at + place * step..][..outputs]),
            }
        }
        let lay = Lay { column: width, ..task.output_lay };
        let task = Sweep { start: Start::Add, output_lay: lay, ..*task };
        let mut done = 0;
        while done < count {
            let x = x + done * task.input_lay.column;
            // SAFETY: as for the caller; `aside` holds `count` whole panels.
            done += unsafe {
                self.block_of_any::<S, NV>(&task, x, 0, &mut aside, done * width, count - done)
            };
        }
        for place in 0..count {
            y[at + place * step..][..outputs].copy_from_slice(&aside[place * width..][..outputs]);
        }
        count
    }

    /// The largest block that fits into the places left; gives its size.
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
                    // SAFETY: as for the caller.
                    $($size.. => unsafe {
                        self.block::<S, $size, NV, $unroll>(task, x, from, y, at);
                        $size
                    },)*
                    _ => unreachable!("there is a place left"),
                }
            };
        }
        // Accumulators, weights and one broadcast together must fit into 32 or 16 registers.
        match (S::LANES * S::WIDE, NV) {
            (32, 1) => blocks!(4: 16 14 12 8 7 4 2 1),
            (32, _) => blocks!(4: 8 7 4 2 1),
            (_, 4) => blocks!(1: 6 4 2 1),
            (_, 2) => blocks!(1: 6 4 2 1),
            _ => blocks!(2: 8 7 4 2 1),
        }
    }

    #[inline(always)]
    unsafe fn block<S: Simd, const NP: usize, const NV: usize, const UNROLL: usize>(
        &self,
        task: &Sweep<'_>,
        x: usize,
        from: usize,
        y: &mut [f32],
        at: usize,
    ) {
        // SAFETY: all pointers stay inside the slices, as `sweep` asserts.
        unsafe {
            let (step, y_step) = (task.input_lay.column, task.output_lay.column);
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
                // Several inputs at a time, so that an address is computed once for all of them.
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
