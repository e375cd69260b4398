//! The running statistics of batch norm are part of each replica, but no optimizer step changes them.

use paceline::{Job, Line, Reader, Record, Scenario, SimulateOptions, simulate};

/// A learning rate at which parameters practically stay, while statistics follow the samples.
const TINY_RATE: f32 = 1e-12;

fn job(choices: &str) -> Job {
    let text = format!(
        "model = \"resnet8-bn\"\nsamples = 256\nepochs = 1\nbatch = 8\nlearning_rate = {TINY_RATE}\n\
         [choices]\nstrategy = \"periodic_average\"\n{choices}\n"
    );
    Job::from_toml(&text).expect("the job is valid TOML")
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
fn an_outer_step_does_not_extrapolate_statistics() {
    let job = job("outer = { kind = \"diloco\", rate = 1e-6, momentum = 0.9 }\n\
         period = { kind = \"constant\", steps = 4 }");
    let prepared = job.prepare(4).expect("the job is valid");
    let before = prepared.plan.initial[prepared.plan.layout.params..].to_vec();

    let simulated =
        simulate(&prepared, &Scenario::default(), SimulateOptions::default()).expect("it ends");

    let after = simulated.params.expect("there are params")[prepared.plan.layout.params..].to_vec();
    let moved = before.iter().zip(&after).filter(|(a, b)| (*a - *b).abs() > 0.01).count();
    assert!(
        moved > before.len() / 2,
        "only {moved} of {} statistics followed the samples",
        before.len()
    );
}

/// Jiang and Agrawal 2020, section III: the variance is that of the parameters, which the learning rate moves.
#[test]
fn the_variance_that_adapts_a_period_excludes_buffers() {
    let job = job("period = { kind = \"adaptive\", steps_first = 2 }");
    let prepared = job.prepare(4).expect("the job is valid");
    let mut seen = Variances::default();

    simulate(
        &prepared,
        &Scenario::default(),
        SimulateOptions { readers: vec![&mut seen], ..Default::default() },
    )
    .expect("it ends");

    assert!(!seen.0.is_empty());
    assert!(seen.0.iter().all(|variance| *variance < 1e-6), "{:?}", seen.0);
}
