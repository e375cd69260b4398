//! Compares every fast kernel with a plain loop.

use super::{Outer, Path, Positions, Start, Strides, Sweep};
use crate::dice::Dice;

fn available_paths() -> impl Iterator<Item = Path> {
    Path::ALL.into_iter().filter(|path| path.is_here())
}

/// Shapes around every block, panel and edge: positions, taps, run, outputs.
const SHAPES: [(Positions, usize, usize, usize); 9] = [
    (Positions { images: 1, rows: 1, columns: 1 }, 1, 1, 1),
    (Positions { images: 2, rows: 3, columns: 5 }, 3, 4, 7),
    (Positions { images: 1, rows: 2, columns: 33 }, 2, 9, 16),
    (Positions { images: 3, rows: 1, columns: 14 }, 3, 48, 32),
    (Positions { images: 1, rows: 4, columns: 8 }, 3, 30, 33),
    (Positions { images: 1, rows: 1, columns: 61 }, 1, 130, 70),
    (Positions { images: 1, rows: 2, columns: 16 }, 3, 192, 64),
    (Positions { images: 2, rows: 2, columns: 7 }, 1, 700, 40),
    (Positions { images: 1, rows: 3, columns: 4 }, 0, 0, 20),
];

struct Trial {
    positions: Positions,
    taps: Vec<usize>,
    run: usize,
    outputs: usize,
    inputs: Vec<f32>,
    input_strides: Strides,
    output_strides: Strides,
    output_len: usize,
    weights: Vec<f32>,
    dice: Dice,
}

/// A call in which the runs of neighboring columns overlap, and rows and images have gaps between them.
fn trial((positions, taps, run, outputs): (Positions, usize, usize, usize)) -> Trial {
    let mut dice = Dice::keyed(&[run as u64, outputs as u64]);
    let Positions { images, rows, columns } = positions;
    let tap_step = run + 3;
    let input_strides =
        Strides { start: 2, column: run / 2 + 1, row: columns * (run + 1) + 5, image: 0 };
    let input_strides = Strides { image: rows * input_strides.row + 7, ..input_strides };
    let output_strides =
        Strides { start: 3, column: outputs + 2, row: columns * (outputs + 2) + 1, image: 0 };
    let output_strides = Strides { image: rows * output_strides.row + 4, ..output_strides };
    let input_len = input_strides.at(images, rows, columns) + taps * tap_step + run;
    let mut draw = |len: usize| (0..len).map(|_| dice.normal() as f32).collect::<Vec<_>>();
    let (inputs, weights) = (draw(input_len), draw(taps * run * outputs));
    Trial {
        positions,
        taps: (0..taps).map(|tap| tap * tap_step).collect(),
        run,
        outputs,
        inputs,
        input_strides,
        output_strides,
        output_len: output_strides.at(images, rows, columns),
        weights,
        dice,
    }
}

impl Trial {
    fn draw(&mut self, len: usize) -> Vec<f32> {
        (0..len).map(|_| self.dice.normal() as f32).collect()
    }

    fn each_place(&self, mut each: impl FnMut(usize, usize)) {
        let Positions { images, rows, columns } = self.positions;
        for (image, row) in (0..images).flat_map(|i| (0..rows).map(move |r| (i, r))) {
            for column in 0..columns {
                let at = |strides: &Strides| strides.at(image, row, column);
                each(at(&self.input_strides), at(&self.output_strides));
            }
        }
    }

    fn plain_sweep(&self, start: Start<'_>, relu: bool, y: &mut [f32]) {
        self.each_place(|x, to| {
            for output in 0..self.outputs {
                let mut sum = match start {
                    Start::Zero => 0.0,
                    Start::Add => y[to + output],
                    Start::Bias(bias) => bias[output],
                };
                for (tap, offset) in self.taps.iter().enumerate() {
                    for c in 0..self.run {
                        let weight = self.weights[(tap * self.run + c) * self.outputs + output];
                        sum += self.inputs[x + offset + c] * weight;
                    }
                }
                y[to + output] = if relu && sum < 0.0 { 0.0 } else { sum };
            }
        });
    }
}

fn assert_close(path: Path, what: &str, fast: &[f32], plain: &[f32], depth: usize) {
    for (i, (a, b)) in fast.iter().zip(plain).enumerate() {
        let tolerance = if path == Path::Portable { 0.0 } else { 2e-6 * (depth as f32 + 10.0) };
        assert!((a - b).abs() <= tolerance * (1.0 + b.abs()), "{what} on {path:?}, {i}: {a}, {b}");
    }
}

/// The portable path adds in the order of the plain loop, so it returns the same bits.
#[test]
fn a_sweep_computes_the_plain_loop_and_writes_nothing_else() {
    for path in available_paths() {
        for shape in SHAPES {
            let mut trial = trial(shape);
            let depth = trial.taps.len() * trial.run;
            let mut packed = vec![f32::NAN; path.packed_len(depth, trial.outputs)];
            path.pack(&trial.weights, trial.outputs, &mut packed);
            let bias = trial.draw(trial.outputs);
            let before = trial.draw(trial.output_len);
            for (start, relu) in
                [(Start::Zero, false), (Start::Add, true), (Start::Bias(&bias), true)]
            {
                let (mut fast, mut plain) = (before.clone(), before.clone());
                let task = Sweep {
                    positions: trial.positions,
                    inputs: &trial.inputs,
                    input_strides: trial.input_strides,
                    taps: &trial.taps,
                    run: trial.run,
                    weights: &packed,
                    outputs: trial.outputs,
                    output_strides: trial.output_strides,
                    start,
                    relu,
                };
                path.sweep(&task, &mut fast);
                trial.plain_sweep(start, relu, &mut plain);
                assert_close(path, &format!("{shape:?} {start:?}"), &fast, &plain, depth);
            }
        }
    }
}

#[test]
fn an_outer_product_computes_the_plain_loop() {
    for path in available_paths() {
        for shape in SHAPES {
            let mut trial = trial(shape);
            let deltas = trial.draw(trial.output_len);
            let before = trial.draw(trial.weights.len());
            let (mut fast, mut plain) = (before.clone(), before);
            let task = Outer {
                positions: trial.positions,
                inputs: &trial.inputs,
                input_strides: trial.input_strides,
                taps: &trial.taps,
                run: trial.run,
                deltas: &deltas,
                delta_strides: trial.output_strides,
                outputs: trial.outputs,
            };

            path.outer(&task, &mut fast);

            trial.each_place(|x, d| {
                for (tap, offset) in trial.taps.iter().enumerate() {
                    for c in 0..trial.run {
                        for output in 0..trial.outputs {
                            let at = (tap * trial.run + c) * trial.outputs + output;
                            plain[at] += trial.inputs[x + offset + c] * deltas[d + output];
                        }
                    }
                }
            });
            let Positions { images, rows, columns } = trial.positions;
            assert_close(path, &format!("{shape:?}"), &fast, &plain, images * rows * columns);
        }
    }
}

#[test]
fn packing_transposed_weights_equals_packing_their_transpose() {
    for path in available_paths() {
        for (inputs, outputs) in [(1, 1), (5, 40), (16, 16), (33, 70)] {
            let mut dice = Dice::keyed(&[1]);
            let weights: Vec<f32> =
                (0..3 * inputs * outputs).map(|_| dice.normal() as f32).collect();
            let pixels = [2, 0];
            let depth = pixels.len() * inputs;
            let mut fast = vec![f32::NAN; path.packed_len(depth, outputs)];
            let mut plain = fast.clone();

            path.pack_transposed(&pixels, &weights, inputs, outputs, &mut fast);

            let mut transposed = Vec::new();
            for (pixel, input) in pixels.iter().flat_map(|p| (0..inputs).map(move |i| (p, i))) {
                let matrix = &weights[pixel * inputs * outputs..];
                transposed.extend((0..outputs).map(|output| matrix[output * inputs + input]));
            }
            path.pack(&transposed, outputs, &mut plain);
            assert_eq!(fast, plain, "{path:?}: {inputs} x {outputs}");
        }
    }
}

#[test]
fn relu_keeps_nan() {
    for path in available_paths() {
        let mut packed = vec![0.0; path.packed_len(1, 3)];
        path.pack(&[1.0; 3], 3, &mut packed);
        let task = Sweep {
            positions: Positions::matrix(2),
            inputs: &[f32::NAN, -1.0],
            input_strides: Strides::matrix(1),
            taps: &[0],
            run: 1,
            weights: &packed,
            outputs: 3,
            output_strides: Strides::matrix(3),
            start: Start::Zero,
            relu: true,
        };
        let mut y = [5.0; 6];

        path.sweep(&task, &mut y);

        assert!(y[..3].iter().all(|y| y.is_nan()) && y[3..] == [0.0; 3], "{path:?}: {y:?}");
    }
}

/// A call must panic instead of accessing memory outside of its slices, also if the computed end overflows.
#[test]
fn slices_that_are_too_short_are_refused() {
    const MAX: usize = usize::MAX;
    let refuses =
        |call: &dyn Fn()| std::panic::catch_unwind(std::panic::AssertUnwindSafe(call)).is_err();
    let columns = Positions::matrix;
    let two_rows = Positions { images: 1, rows: 2, columns: 1 };
    let from = |start, column| Strides { start, ..Strides::matrix(column) };
    // Positions, strides and tap of inputs that fit into 8 floats, then of inputs that do not.
    let cases = [
        (columns(8), from(0, 1), 0),
        (columns(9), from(0, 1), 0),
        (columns(1), from(8, 1), 0),
        (columns(1), from(MAX, 1), 0),
        (columns(3), from(0, MAX / 2 + 1), 0),
        (columns(2), from(1, MAX), 0),
        (columns(1), from(0, 1), 8),
        (columns(1), from(0, 1), MAX),
        (two_rows, Strides { row: 8, ..from(0, 1) }, 0),
    ];
    for path in available_paths() {
        for (case, (positions, input_strides, tap)) in cases.into_iter().enumerate() {
            let sweep = Sweep {
                positions,
                inputs: &[1.0; 8],
                input_strides,
                taps: &[tap],
                run: 1,
                weights: &[1.0; 16],
                outputs: 1,
                output_strides: from(0, 1),
                start: Start::Zero,
                relu: false,
            };
            let outer = Outer {
                positions,
                inputs: sweep.inputs,
                input_strides,
                taps: sweep.taps,
                run: 1,
                deltas: &[1.0; 9],
                delta_strides: from(0, 1),
                outputs: 1,
            };

            let refused = [
                refuses(&|| path.sweep(&sweep, &mut [0.0; 9])),
                refuses(&|| path.outer(&outer, &mut [0.0])),
            ];

            assert_eq!(refused, [case > 0; 2], "case {case} on {path:?}");
            assert!(refuses(&|| path.sweep(&sweep, &mut [])), "no outputs");
            assert!(refuses(&|| path.sweep(&Sweep { weights: &[], ..sweep }, &mut [0.0; 9])));
            assert!(refuses(&|| path.outer(&Outer { deltas: &[], ..outer }, &mut [0.0])));
            assert!(refuses(&|| path.outer(&outer, &mut [])), "no weights");
        }
    }
}
