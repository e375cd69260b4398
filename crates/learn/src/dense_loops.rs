//! The inner loops of dense layers: plain slices, in an order of additions that never changes.

/// Samples that pass through a layer together, so that its weights are read once for all of them.
const TILE: usize = 32;

/// Rows added in one pass over the result. Each element still sees its terms one by one, in order:
/// the number of rows at a time changes no bit.
const ROWS: usize = 4;

/// The shape of a layer; weights are stored [inputs][outputs].
#[derive(Clone, Copy)]
pub struct Shape {
    pub inputs: usize,
    pub outputs: usize,
}

/// y <- bias + x W, for every sample.
pub fn forward(shape: Shape, weights: &[f32], biases: &[f32], inputs: &[f32], outputs: &mut [f32]) {
    outputs.chunks_exact_mut(shape.outputs).for_each(|y| y.copy_from_slice(biases));
    let inputs = inputs.chunks(TILE * shape.inputs);
    for (inputs, outputs) in inputs.zip(outputs.chunks_mut(TILE * shape.outputs)) {
        for (block, rows) in weights.chunks(ROWS * shape.outputs).enumerate() {
            let from = block * ROWS;
            let to = (from + ROWS).min(shape.inputs);
            let outputs = outputs.chunks_exact_mut(shape.outputs);
            for (x, y) in inputs.chunks_exact(shape.inputs).zip(outputs) {
                add_rows(y, &x[from..to], rows);
            }
        }
    }
}

/// W <- W + sum over samples of x delta^T.
pub fn add_weight_gradient(shape: Shape, inputs: &[f32], deltas: &[f32], weights: &mut [f32]) {
    let inputs = inputs.chunks(TILE * shape.inputs);
    for (inputs, deltas) in inputs.zip(deltas.chunks(TILE * shape.outputs)) {
        for (k, row) in weights.chunks_exact_mut(shape.outputs).enumerate() {
            let inputs = inputs.chunks(ROWS * shape.inputs);
            for (inputs, deltas) in inputs.zip(deltas.chunks(ROWS * shape.outputs)) {
                let mut column = [0.0; ROWS];
                let samples = inputs.len() / shape.inputs;
                for (x, input) in column.iter_mut().zip(inputs.chunks_exact(shape.inputs)) {
                    *x = input[k];
                }
                add_rows(row, &column[..samples], deltas);
            }
        }
    }
}

/// b <- b + sum over samples of delta.
pub fn add_bias_gradient(deltas: &[f32], biases: &mut [f32]) {
    for delta in deltas.chunks_exact(biases.len()) {
        crate::vector::add(biases, delta);
    }
}

/// Replaces the outputs of a relu by the gradient of the loss in its inputs: W delta where the relu
/// was open.
pub fn backward(shape: Shape, weights: &[f32], deltas: &[f32], activations: &mut [f32]) {
    let activations = activations.chunks_exact_mut(shape.inputs);
    for (delta, activations) in deltas.chunks_exact(shape.outputs).zip(activations) {
        for (x, row) in activations.iter_mut().zip(weights.chunks_exact(shape.outputs)) {
            *x = if *x > 0.0 { dot(row, delta) } else { 0.0 };
        }
    }
}

/// x <- max(x, 0), but what is not a number stays so: divergence must show in the loss.
pub fn relu(values: &mut [f32]) {
    values.iter_mut().for_each(|x| *x = if *x < 0.0 { 0.0 } else { *x });
}

/// The cross-entropy of each sample, summed; logits become softmax(logits) - onehot(label), its
/// gradient.
pub fn cross_entropy(logits: &mut [f32], classes: usize, labels: &[u32]) -> f64 {
    let mut loss_sum = 0.0;
    for (logits, label) in logits.chunks_exact_mut(classes).zip(labels) {
        let label = *label as usize;
        let highest = logits.iter().fold(f32::NEG_INFINITY, |highest, x| highest.max(*x));
        let right = logits[label] - highest;
        logits.iter_mut().for_each(|x| *x = (*x - highest).exp());
        let total: f32 = logits.iter().sum();
        loss_sum += f64::from(total).ln() - f64::from(right);
        logits.iter_mut().for_each(|x| *x /= total);
        logits[label] -= 1.0;
    }
    loss_sum
}

/// How many samples have their highest logit at their label; the first of equals counts.
pub fn count_correct(logits: &[f32], classes: usize, labels: &[u32]) -> u64 {
    let guesses = logits.chunks_exact(classes).map(|logits| {
        (1..classes).fold(0, |best, class| if logits[class] > logits[best] { class } else { best })
    });
    guesses.zip(labels).filter(|(guess, label)| *guess == **label as usize).count() as u64
}

/// y <- y + sum of coefficients x rows; `rows` lie one after the other, at most `ROWS` of them.
fn add_rows(y: &mut [f32], coefficients: &[f32], rows: &[f32]) {
    let width = y.len();
    if let [a, b, c, d] = *coefficients {
        let (first, rows) = rows.split_at(width);
        let (second, rows) = rows.split_at(width);
        let (third, fourth) = rows.split_at(width);
        for ((((y, p), q), r), s) in y.iter_mut().zip(first).zip(second).zip(third).zip(fourth) {
            *y = *y + a * p + b * q + c * r + d * s;
        }
    } else {
        for (coefficient, row) in coefficients.iter().zip(rows.chunks_exact(width)) {
            crate::vector::add_scaled(y, *coefficient, row);
        }
    }
}

/// x . y in eight lanes: one chain of additions would wait for itself, and compilers may not split
/// it.
fn dot(x: &[f32], y: &[f32]) -> f32 {
    const LANES: usize = 8;
    let mut lanes = [0.0f32; LANES];
    let (x_chunks, y_chunks) = (x.chunks_exact(LANES), y.chunks_exact(LANES));
    let rest: f32 = x_chunks.remainder().iter().zip(y_chunks.remainder()).map(|(x, y)| x * y).sum();
    for (x, y) in x_chunks.zip(y_chunks) {
        for ((lane, x), y) in lanes.iter_mut().zip(x).zip(y) {
            *lane += x * y;
        }
    }
    lanes.iter().sum::<f32>() + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sizes around the tile and the block of rows, so that every remainder occurs.
    #[test]
    fn blocks_and_tiles_change_no_bit() {
        let mut dice = crate::Dice::keyed(&[1]);
        for (samples, inputs, outputs) in [(1, 1, 1), (5, 3, 2), (33, 6, 9), (70, 13, 17)] {
            let shape = Shape { inputs, outputs };
            let mut draw = |n| (0..n).map(|_| dice.normal() as f32).collect::<Vec<_>>();
            let (weights, biases) = (draw(inputs * outputs), draw(outputs));
            let (x, delta) = (draw(samples * inputs), draw(samples * outputs));

            let mut y = vec![0.0; samples * outputs];
            forward(shape, &weights, &biases, &x, &mut y);
            let mut gradient = vec![0.0; inputs * outputs];
            add_weight_gradient(shape, &x, &delta, &mut gradient);

            let mut plain_y: Vec<f32> = biases.repeat(samples);
            let mut plain_gradient = vec![0.0; inputs * outputs];
            for sample in 0..samples {
                for k in 0..inputs {
                    for j in 0..outputs {
                        plain_y[sample * outputs + j] +=
                            x[sample * inputs + k] * weights[k * outputs + j];
                        plain_gradient[k * outputs + j] +=
                            x[sample * inputs + k] * delta[sample * outputs + j];
                    }
                }
            }
            assert_eq!((y, gradient), (plain_y, plain_gradient));
        }
    }

    #[test]
    fn large_logits_do_not_overflow() {
        let mut logits = [1000.0, 0.0, -1000.0];

        let loss = cross_entropy(&mut logits, 3, &[1]);

        assert_eq!((loss, logits), (1000.0, [1.0, -1.0, 0.0]));
    }

    #[test]
    fn a_class_is_right_when_its_logit_is_the_first_highest() {
        assert_eq!(count_correct(&[0.1, 0.3, 0.2, 1.0, 1.0, 0.0], 3, &[1, 0]), 2);
        assert_eq!(count_correct(&[0.1, 0.3, 0.2, 1.0, 1.0, 0.0], 3, &[2, 1]), 0);
    }
}
