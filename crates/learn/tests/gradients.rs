//! Gradients are slopes of the loss, sums over samples, and reproducible.

use paceline_learn::{
    Batch, Dataset, Dice, Gradient, Model, Noise, Quadratic, Scratch, Vector, blobs, net,
};

fn batch_of(dataset: &dyn Dataset, indices: std::ops::Range<u64>) -> Batch {
    let mut batch = Batch::new();
    batch.fill(dataset, indices.map(|index| (0, index)));
    batch
}

fn gradient_of(model: &dyn Model, params: &[f32], batches: &[Batch]) -> Gradient {
    let (mut gradient, mut scratch) = (Gradient::zero(model.size()), Scratch::default());
    for batch in batches {
        model.gradient(params, batch, &mut scratch, &mut gradient);
    }
    gradient
}

fn models() -> Vec<(Box<dyn Model>, Box<dyn Dataset>)> {
    let table = || Box::new(blobs(100, 6, 3, 1, 1.0));
    let quadratic = Quadratic { curvature: vec![1.0, 0.1, 3.0, 0.0, 2.0], noise: 0.5 };
    vec![
        (Box::new(quadratic), Box::new(Noise { len: 100 })),
        (Box::new(net::softmax(6, 3)), table()),
        (Box::new(net::mlp(6, &[9], 3)), table()),
        (Box::new(net::mlp(6, &[12, 7], 3)), table()),
    ]
}

/// Params none of which is zero; initial biases are, and would hide errors.
fn somewhere(model: &dyn Model) -> Vector {
    let mut dice = Dice::keyed(&[11]);
    model.initial(5).iter().map(|x| x + 0.2 * dice.normal() as f32).collect()
}

/// Central differences with step 1/256: f32 has a relative error of about 1e-6 in a loss, hence 1e-3 in a slope.
#[test]
fn every_gradient_is_the_slope_of_its_loss() {
    for (model, dataset) in models() {
        let batch = [batch_of(&*dataset, 0..7)];
        let params = somewhere(&*model);

        let gradient = gradient_of(&*model, &params, &batch);

        for i in 0..model.params() {
            let loss_at = |offset: f32| {
                let mut moved = params.clone();
                moved[i] += offset;
                (f64::from(moved[i]), gradient_of(&*model, &moved, &batch).loss_sum)
            };
            let ((x_high, high), (x_low, low)) = (loss_at(1.0 / 256.0), loss_at(-1.0 / 256.0));
            let slope = (high - low) / (x_high - x_low);
            let given = f64::from(gradient.sum[i]);
            assert!(
                (slope - given).abs() < 2e-3 * (1.0 + slope.abs()),
                "{i}: {given} instead of {slope}"
            );
        }
    }
}

#[test]
fn micro_batches_add_up_to_their_batch() {
    for (model, dataset) in models() {
        let params = somewhere(&*model);

        let whole = gradient_of(&*model, &params, &[batch_of(&*dataset, 0..90)]);
        let parts = [0..1, 1..34, 34..36, 36..90].map(|part| batch_of(&*dataset, part));
        let summed = gradient_of(&*model, &params, &parts);

        assert_eq!((whole.samples, summed.samples), (90, 90));
        assert!((whole.loss_sum - summed.loss_sum).abs() < 1e-9 * whole.loss_sum.abs());
        for (whole, summed) in whole.sum.iter().zip(&summed.sum) {
            assert!((whole - summed).abs() < 1e-4 * (1.0 + whole.abs()), "{whole} {summed}");
        }
    }
}

#[test]
fn used_scratch_changes_no_bit() {
    for (model, dataset) in models() {
        let params = somewhere(&*model);
        let batch = batch_of(&*dataset, 3..20);
        let fresh = gradient_of(&*model, &params, std::slice::from_ref(&batch));

        let (mut scratch, mut again) = (Scratch::default(), Gradient::zero(model.size()));
        let before = model.evaluate(&params, &batch_of(&*dataset, 0..64), &mut scratch);
        model.gradient(&params, &batch, &mut scratch, &mut again);

        assert_eq!(fresh, again);
        let after = model.evaluate(&params, &batch_of(&*dataset, 0..64), &mut scratch);
        assert_eq!(before, after);
    }
}

#[test]
fn an_empty_batch_adds_nothing() {
    for (model, dataset) in models() {
        let gradient = gradient_of(&*model, &model.initial(1), &[batch_of(&*dataset, 0..0)]);

        assert_eq!(gradient, Gradient::zero(model.size()));
    }
}
