//! Every fast kernel beside a plain loop.

use super::{Lay, Outer, Path, Places, Start, Sweep};
use crate::dice::Dice;

fn here() -> impl Iterator<Item = Path> {
    Path::ALL.into_iter().filter(|path| path.is_here())
}

/// Shapes around every block, panel and edge: places, taps, run, outputs.
const SHAPES: [(Places, usize, usize, usize); 9] = [
    (Places { images: 1, rows: 1, columns: 1 }, 1, 1, 1),
    (Places { images: 2, rows: 3, columns: 5 }, 3, 4, 7),
    (Places { images: 1, rows: 2, columns: 33 }, 2, 9, 16),
    (Places { images: 3, rows: 1, columns: 14 }, 3, 48, 32),
    (Places { images: 1, rows: 4, columns: 8 }, 3, 30, 33),
    (Places { images: 1, rows: 1, columns: 61 }, 1, 130, 70),
    (Places { images: 1, rows: 2, columns: 16 }, 3, 192, 64),
    (Places { images: 2, rows: 2, columns: 7 }, 1, 700, 40),
    (Places { images: 1, rows: 3, columns: 4 }, 0, 0, 20),
];

struct Trial {
    places: Places,
    taps: Vec<usize>,
    run: usize,
    outputs: usize,
    inputs: Vec<f32>,
    input_lay: Lay,
    output_lay: Lay,
    output_len: usize,
    weights: Vec<f32>,
    dice: Dice,
}

/// Runs overlap from column to column, and rows and images have gaps between them.
fn trial((places, taps, run, outputs): (Places, usize, usize, usize)) -> Trial {
    let mut dice = Dice::keyed(&[run as u64, outputs as u64]);
    let Places { images, rows, columns } = places;
    let tap_step = run + 3;
    let input_lay = Lay { start: 2, column: run / 2 + 1, row: columns * (run + 1) + 5, image: 0 };
    let input_lay = Lay { image: rows * input_lay.row + 7, ..input_lay };
    let output_lay =
        Lay { start: 3, column: outputs + 2, row: columns * (outputs + 2) + 1, image: 0 };
    let output_lay = Lay { image: rows * output_lay.row + 4, ..output_lay };
    let input_len = input_lay.at(images, rows, columns) + taps * tap_step + run;
    let mut draw = |len: usize| (0..len).map(|_| dice.normal() as f32).collect::<Vec<_>>();
    let (inputs, weights) = (draw(input_len), draw(taps * run * outputs));
    Trial {
        places,
        taps: (0..taps).map(|tap| tap * tap_step).collect(),
        run,
        outputs,
        inputs,
        input_lay,
        output_lay,
        output_len: output_lay.at(images, rows, columns),
        weights,
        dice,
    }
}

impl Trial {
    fn draw(&mut self, len: usize) -> Vec<f32> {
        (0..len).map(|_| self.dice.normal() as f32).collect()
    }

    fn each_place(&self, mut each: impl FnMut(usize, usize)) {
        let Places { images, rows, columns } = self.places;
        for (image, row) in (0..images).flat_map(|i| (0..rows).map(move |r| (i, r))) {
            for column in 0..columns {
                let at = |lay: &Lay| lay.at(image, row, column);
                each(at(&self.input_lay), at(&self.output_lay));
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

/// The portable path adds in the order of the plain loop, and so gives its bits.
#[test]
fn a_sweep_is_the_plain_loop_and_touches_nothing_else() {
    for path in here() {
        for shape in SHAPES {
            let mut trial = trial(shape);
            let depth = trial.taps.len() * trial.run;
            let mut packed = vec![f32::NAN; path.packed_len(depth, trial.outputs)];
            path.pack(depth, trial.outputs, &mut packed, |input, from, into| {
                let row = &trial.weights[input * trial.outputs + from..];
                into.copy_from_slice(&row[..into.len()]);
            });
            let bias = trial.draw(trial.outputs);
            let before = trial.draw(trial.output_len);
            for (start, relu) in
                [(Start::Zero, false), (Start::Add, true), (Start::Bias(&bias), true)]
            {
                let (mut fast, mut plain) = (before.clone(), before.clone());
                let task = Sweep {
                    places: trial.places,
                    inputs: &trial.inputs,
                    input_lay: trial.input_lay,
                    taps: &trial.taps,
                    run: trial.run,
                    weights: &packed,
                    outputs: trial.outputs,
                    output_lay: trial.output_lay,
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
fn an_outer_product_is_the_plain_loop() {
    for path in here() {
        for shape in SHAPES {
            let mut trial = trial(shape);
            let deltas = trial.draw(trial.output_len);
            let before = trial.draw(trial.weights.len());
            let (mut fast, mut plain) = (before.clone(), before);
            let task = Outer {
                places: trial.places,
                inputs: &trial.inputs,
                input_lay: trial.input_lay,
                taps: &trial.taps,
                run: trial.run,
                deltas: &deltas,
                delta_lay: trial.output_lay,
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
            let Places { images, rows, columns } = trial.places;
            assert_close(path, &format!("{shape:?}"), &fast, &plain, images * rows * columns);
        }
    }
}

#[test]
fn turned_weights_are_packed_as_if_they_lay_turned() {
    for path in here() {
        for (inputs, outputs) in [(1, 1), (5, 40), (16, 16), (33, 70)] {
            let mut dice = Dice::keyed(&[1]);
            let weights: Vec<f32> =
                (0..3 * inputs * outputs).map(|_| dice.normal() as f32).collect();
            let pixels = [2, 0];
            let depth = pixels.len() * inputs;
            let mut fast = vec![f32::NAN; path.packed_len(depth, outputs)];
            let mut plain = fast.clone();

            path.pack_turned(&pixels, &weights, inputs, outputs, &mut fast);

            path.pack(depth, outputs, &mut plain, |input, from, into| {
                for (i, into) in into.iter_mut().enumerate() {
                    let matrix = pixels[input / inputs] * inputs * outputs;
                    *into = weights[matrix + (from + i) * inputs + input % inputs];
                }
            });
            assert_eq!(fast, plain, "{path:?}: {inputs} x {outputs}");
        }
    }
}

#[test]
fn what_is_not_a_number_stays_so_through_a_relu() {
    for path in here() {
        let mut packed = vec![0.0; path.packed_len(1, 3)];
        path.pack(1, 3, &mut packed, |_, _, into| into.fill(1.0));
        let task = Sweep {
            places: Places::matrix(2),
            inputs: &[f32::NAN, -1.0],
            input_lay: Lay::matrix(1),
            taps: &[0],
            run: 1,
            weights: &packed,
            outputs: 3,
            output_lay: Lay::matrix(3),
            start: Start::Zero,
            relu: true,
        };
        let mut y = [5.0; 6];

        path.sweep(&task, &mut y);

        assert!(y[..3].iter().all(|y| y.is_nan()) && y[3..] == [0.0; 3], "{path:?}: {y:?}");
    }
}
