//! Packs weights for [`Sweep`](super::Sweep): into panels as wide as a few vectors, with one row per input.
//! Attention packs activations in the same way, for products of two activations.

use super::Path;
use super::sweep::panels;

impl Path {
    /// Packs the weights `[inputs][outputs]`.
    pub fn pack(self, weights: &[f32], outputs: usize, packed: &mut [f32]) {
        self.pack_rows(weights, outputs, weights.len() / outputs, outputs, packed);
    }

    /// Packs the transposed weights of some window pixels, in this order: each pixel's matrix in `weights` is
    /// `[outputs][inputs]`.
    pub fn pack_transposed(
        self,
        pixels: &[usize],
        weights: &[f32],
        inputs: usize,
        outputs: usize,
        packed: &mut [f32],
    ) {
        let (lanes, wide) = self.shape();
        let depth = pixels.len() * inputs;
        for (from, vectors) in panels(lanes, wide, outputs) {
            let width = vectors * lanes;
            let here = width.min(outputs - from);
            let panel = packed[from * depth..][..depth * width].chunks_exact_mut(inputs * width);
            for (pixel, panel) in pixels.iter().zip(panel) {
                if here < width {
                    panel.fill(0.0);
                }
                let matrix = &weights[(pixel * outputs + from) * inputs..];
                transpose_rows(self, matrix, inputs, here, width, panel);
            }
        }
    }

    /// Packs a matrix `[depth][outputs]` whose rows are `step` floats apart.
    pub fn pack_rows(
        self,
        matrix: &[f32],
        step: usize,
        depth: usize,
        outputs: usize,
        packed: &mut [f32],
    ) {
        let (lanes, wide) = self.shape();
        for (from, vectors) in panels(lanes, wide, outputs) {
            let width = vectors * lanes;
            let panel = &mut packed[from * depth..][..depth * width];
            let matrix = matrix.get(from..).unwrap_or_default();
            copy_rows(self, matrix, step, width.min(outputs - from), width, panel);
        }
    }

    /// Packs the transpose of a matrix `[given][depth]` whose rows are `step` floats apart, and pads it with
    /// zeros from `given` to `outputs` outputs.
    pub fn pack_columns(
        self,
        matrix: &[f32],
        step: usize,
        depth: usize,
        given: usize,
        outputs: usize,
        packed: &mut [f32],
    ) {
        let (lanes, wide) = self.shape();
        for (from, vectors) in panels(lanes, wide, outputs) {
            let width = vectors * lanes;
            let panel = &mut packed[from * depth..][..depth * width];
            let here = width.min(given.saturating_sub(from));
            if here < width {
                panel.fill(0.0);
            }
            if here > 0 {
                transpose_rows(self, &matrix[from * step..], step, here, width, panel);
            }
        }
    }
}

on_every_path! {
/// Copies `len` floats of each row of the matrix to a row of the panel, and fills the rest with zeros.
pub fn copy_rows(matrix: &[f32], step: usize, len: usize, width: usize, panel: &mut [f32]) {
    for (row, into) in panel.chunks_exact_mut(width).enumerate() {
        let from = &matrix[row * step..][..len];
        let (lanes, rest) = from.as_chunks::<8>();
        let (into, beyond) = into.split_at_mut(lanes.len() * 8);
        for (into, from) in into.as_chunks_mut::<8>().0.iter_mut().zip(lanes) {
            *into = *from;
        }
        for (i, into) in beyond.iter_mut().enumerate() {
            *into = rest.get(i).copied().unwrap_or(0.0);
        }
    }
}

/// Copies `rows` rows of the matrix to the first columns of the panel.
pub fn transpose_rows(matrix: &[f32], step: usize, rows: usize, width: usize, panel: &mut [f32]) {
    const TILE: usize = 8;
    let depth = panel.len() / width;
    for row in (0..rows).step_by(TILE) {
        let tall = TILE.min(rows - row);
        for column in (0..depth).step_by(TILE) {
            let wide = TILE.min(depth - column);
            if tall < TILE || wide < TILE {
                for x in 0..wide {
                    for y in 0..tall {
                        panel[(column + x) * width + row + y] = matrix[(row + y) * step + column + x];
                    }
                }
                continue;
            }
            // Constant lengths let the compiler move whole vectors.
            let mut tile = [[0.0; TILE]; TILE];
            for (y, line) in tile.iter_mut().enumerate() {
                let from = matrix[(row + y) * step + column..].first_chunk();
                *line = *from.expect("a row of the matrix is as long as the panel is deep");
            }
            for x in 0..TILE {
                let mut line = [0.0; TILE];
                for y in 0..TILE {
                    line[y] = tile[y][x];
                }
                let into = panel[(column + x) * width + row..].first_chunk_mut();
                *into.expect("the panel has a column for every row of the matrix") = line;
            }
        }
    }
}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packed_activations_have_the_layout_of_packed_weights() {
        for path in Path::ALL.into_iter().filter(|path| path.is_here()) {
            for (depth, outputs, step) in [(1, 1, 3), (5, 7, 11), (9, 33, 40), (8, 64, 64)] {
                let matrix: Vec<f32> = (0..step * step).map(|i| i as f32).collect();
                let mut expected = vec![-1.0; path.packed_len(depth, outputs)];
                let mut packed = vec![-1.0; expected.len()];

                let rows = |row: usize| &matrix[row * step..][..outputs];
                let plain: Vec<f32> = (0..depth).flat_map(rows).copied().collect();
                path.pack(&plain, outputs, &mut expected);
                path.pack_rows(&matrix, step, depth, outputs, &mut packed);
                assert_eq!(packed, expected, "{path:?} {depth} {outputs}");

                for given in [1, outputs] {
                    let of = |input: usize, output: usize| match output < given {
                        true => matrix[output * step + input],
                        false => 0.0,
                    };
                    let transposed = |input| (0..outputs).map(move |output| of(input, output));
                    let plain: Vec<f32> = (0..depth).flat_map(transposed).collect();
                    path.pack(&plain, outputs, &mut expected);
                    path.pack_columns(&matrix, step, depth, given, outputs, &mut packed);
                    assert_eq!(packed, expected, "{path:?} {depth} {given} of {outputs}");
                }
            }
        }
    }
}
