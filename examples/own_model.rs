//! A custom model and data set, trained by two strategies on the same simulated cluster.
//!
//! `cargo run --release --example own_model`

use std::sync::Arc;

use paceline::{
    Batch, Dataset, Dice, Gradient, Job, Model, PrepareOptions, Score, Scratch, SimulateOptions,
    Task, Vector, scenarios, simulate,
};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let task = Task {
        model: Arc::new(Conic),
        train: Arc::new(Plane { points: 4_000, seed: 1 }),
        validation: Some(Arc::new(Plane { points: 400, seed: 3 })),
        test: Arc::new(Plane { points: 1_000, seed: 2 }),
    };
    println!("largest error of the gradient: {:.1e}", largest_gradient_error(&task));

    let cluster = scenarios::named("stragglers")?;
    for strategy in ["ssgd", "lb-bsp"] {
        let job = Job {
            strategy: strategy.into(),
            epochs: 10.0,
            learning_rate: Some(1.0),
            target_accuracy: Some(0.95),
            ..Job::default()
        };
        let prepared = job.prepare_with(PrepareOptions {
            task: Some(task.clone()),
            ..PrepareOptions::new(cluster.workers)
        })?;
        let run = simulate(&prepared, &cluster, SimulateOptions::default())
            .map_err(|failure| failure.to_string())?;
        let result = run.result;
        println!(
            "{strategy:<7} {:.2} s, accuracy {:.1} %, 95 % after {:.2} s, {} samples lost",
            result.seconds(),
            100.0 * result.accuracy,
            result.seconds_to_target.unwrap_or(f64::NAN),
            result.ledger.lost
        );
    }
    Ok(())
}

/// Points in the plane; those inside a slanted ellipse belong to class 1.
struct Plane {
    points: u64,
    seed: u64,
}

impl Dataset for Plane {
    fn len(&self) -> u64 {
        self.points
    }

    fn features(&self) -> usize {
        2
    }

    fn classes(&self) -> usize {
        2
    }

    /// Moves the points slightly in every epoch, as data augmentation; the same index and epoch return the same row.
    fn read(&self, index: u64, epoch: u64, into: &mut [f32]) -> u32 {
        let mut place = Dice::keyed(&[self.seed, index]);
        let (x, y) = (place.between(-2.0, 2.0), place.between(-2.0, 2.0));
        let mut shake = Dice::keyed(&[self.seed, index, epoch]);
        into[0] = (x + 0.02 * shake.normal()) as f32;
        into[1] = (y + 0.02 * shake.normal()) as f32;
        u32::from(x * x + x * y + y * y < 1.5)
    }
}

/// Logistic regression on the terms of a conic: the boundary between the classes is an ellipse, a parabola or a
/// hyperbola.
struct Conic;

const TERMS: usize = 6;

fn terms(row: &[f32]) -> [f32; TERMS] {
    let (x, y) = (row[0], row[1]);
    [1.0, x, y, x * x, x * y, y * y]
}

/// The logit of class 1: the logarithm of its odds.
fn logit(params: &[f32], terms: &[f32; TERMS]) -> f32 {
    params.iter().zip(terms).map(|(w, t)| w * t).sum()
}

/// -ln of the probability of the label, without overflow.
fn loss(logit: f32, label: u32) -> f64 {
    let wrong = f64::from(if label == 1 { -logit } else { logit });
    wrong.max(0.0) + (-wrong.abs()).exp().ln_1p()
}

impl Model for Conic {
    fn params(&self) -> usize {
        TERMS
    }

    fn initial(&self, _seed: u64) -> Vector {
        Vector::zeros(TERMS)
    }

    fn gradient(&self, params: &[f32], batch: &Batch, _scratch: &mut Scratch, into: &mut Gradient) {
        for (row, label) in batch.inputs.chunks_exact(batch.features).zip(&batch.labels) {
            let terms = terms(row);
            let logit = logit(params, &terms);
            let probability = 1.0 / (1.0 + (-logit).exp());
            let slope = probability - *label as f32;
            into.sum.iter_mut().zip(terms).for_each(|(sum, term)| *sum += slope * term);
            into.loss_sum += loss(logit, *label);
        }
        into.samples += batch.len() as u64;
    }

    fn evaluate(&self, params: &[f32], batch: &Batch, _scratch: &mut Scratch) -> Score {
        let mut score = Score { samples: batch.len() as u64, ..Score::default() };
        for (row, label) in batch.inputs.chunks_exact(batch.features).zip(&batch.labels) {
            let logit = logit(params, &terms(row));
            score.loss_sum += loss(logit, *label);
            score.correct += u64::from(u32::from(logit > 0.0) == *label);
        }
        score
    }
}

/// The largest difference of the gradient from (loss(w + h) - loss(w - h)) / 2h, over all params.
fn largest_gradient_error(task: &Task) -> f64 {
    const STEP: f32 = 1.0 / 256.0;
    let mut batch = Batch::new();
    batch.fill(task.train.as_ref(), (0..16).map(|index| (0, index)));
    let at = |params: &[f32]| {
        let mut gradient = Gradient::zero(task.model.size());
        task.model.gradient(params, &batch, &mut Scratch::default(), &mut gradient);
        gradient
    };
    let params: Vector = (0..TERMS).map(|i| 0.3 * (i as f32 - 2.0)).collect();
    let gradient = at(&params);
    let error_of = |i: usize| {
        let moved = |by: f32| {
            let mut params = params.clone();
            params[i] += by;
            at(&params).loss_sum
        };
        let slope = (moved(STEP) - moved(-STEP)) / f64::from(2.0 * STEP);
        (slope - f64::from(gradient.sum[i])).abs()
    };
    (0..TERMS).map(error_of).fold(0.0, f64::max)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_gradient_agrees_with_finite_differences() {
        let plane = Arc::new(Plane { points: 16, seed: 3 });
        let task =
            Task { model: Arc::new(Conic), train: plane.clone(), validation: None, test: plane };
        assert!(largest_gradient_error(&task) < 1e-3);
    }
}
