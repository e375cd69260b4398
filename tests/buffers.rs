//! The statistics of batch norm are a part of every replica, but nothing that is learned by descending.

use paceline::{Job, Line, Reader, Record, Scenario, simulate};

/// A rate at which no parameter moves to speak of, while statistics follow the samples.
const STILL: f32 = 1e-12;

fn job(choices: &str) -> Job {
    let text = format!(
        "model = \"resnet8-bn\"\nsamples = 256\nepochs = 1\nbatch = 8\nlearning_rate = {STILL}\n\
         [choices]\nstrategy = \"periodic_average\"\n{choices}\n"
    );
    Job::from_toml(&text).expect("it is a job")
}

#[derive(Default)]
struct Variances(Vec<f64>);

impl Reader for Variances {
    fn read(&mut self, line: &Line) {
        if let Record::Note { name, value, .. } = &line.record
            && name == "variance"
        {
            self.0.push(*value);
        }
    }
}

#[test]
fn an_outer_step_leaves_statistics_to_their_mean() {
    let job = job("outer = { kind = \"diloco\", rate = 1e-6, momentum = 0.9 }\n\
         period = { kind = \"constant\", steps = 4 }");
    let prepared = job.prepare(4).expect("it is sound");
    let before = prepared.plan.initial[prepared.plan.layout.params..].to_vec();

    let simulated = simulate(&prepared, &Scenario::default(), 1, vec![]).expect("it ends");

    let after = simulated.params.expect("there are some")[prepared.plan.layout.params..].to_vec();
    let moved = before.iter().zip(&after).filter(|(a, b)| (*a - *b).abs() > 0.01).count();
    assert!(moved > before.len() / 2, "only {moved} of {} have followed", before.len());
}

/// Jiang and Agrawal 2020, section III: the variance is of what the learning rate moves.
#[test]
fn the_variance_that_adapts_a_period_is_of_parameters_alone() {
    let job = job("period = { kind = \"adaptive\", steps_first = 2 }");
    let prepared = job.prepare(4).expect("it is sound");
    let mut seen = Variances::default();

    simulate(&prepared, &Scenario::default(), 1, vec![&mut seen]).expect("it ends");

    assert!(!seen.0.is_empty());
    assert!(seen.0.iter().all(|variance| *variance < 1e-6), "{:?}", seen.0);
}
