//! Trains networks on digits with serial SGD, from data to evaluation.

use paceline_learn::{
    Batch, Dataset, Gradient, Model, Optimizer, OptimizerState, Order, Schedule, Score, Scratch,
    Shape, Vector, digits, net,
};

const BATCH: u64 = 32;

fn train(model: &dyn Model, epochs: u64) -> (Vector, Score) {
    let (train, test) = digits();
    let (order, optimizer) = (Order::new(1, train.len()), Optimizer::sgd(0.9));
    let shape = Shape::Cosine { floor: 0.0 };
    let schedule = Schedule { base: 0.05, shape, warm_up: 0.05, stretched: None };
    let (mut params, mut state) = (model.initial(1), OptimizerState::default());
    let (mut batch, mut scratch) = (Batch::new(), Scratch::default());
    let total = epochs * train.len();

    for start in (0..total).step_by(BATCH as usize) {
        let end = (start + BATCH).min(total);
        batch.fill(&train, (start..end).map(|position| order.at(position)));
        let mut gradient = Gradient::zero(model.size());
        model.gradient(&params, &batch, &mut scratch, &mut gradient);
        let rate = schedule.rate(start, total);
        optimizer.descend(&mut params, &mut state, &gradient, rate, &model.layout());
    }

    batch.fill(&test, (0..test.len()).map(|index| (0, index)));
    let score = model.evaluate(&params, &batch, &mut scratch);
    (params, score)
}

#[test]
fn a_perceptron_learns_digits_in_fifteen_epochs() {
    let mlp = net::mlp(64, &[64], 10);

    let (_, score) = train(&mlp, 15);

    assert_eq!(score.samples, 360);
    assert!(score.accuracy() >= 0.93, "{score:?}");
}

#[test]
fn softmax_regression_learns_digits_too() {
    let (_, score) = train(&net::softmax(64, 10), 10);

    assert!(score.accuracy() >= 0.90, "{score:?}");
}

#[test]
fn training_is_reproducible_to_the_bit() {
    let mlp = net::mlp(64, &[16], 10);

    assert_eq!(train(&mlp, 1), train(&mlp, 1));
}
