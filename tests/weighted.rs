//! Samples that differ in weight, as texts of unequal length do: a step divides by the weight of all members' samples.

use std::sync::Arc;

use paceline::learn::{Noise, Order};
use paceline::sim::checkers::{ReplicasAgree, Traffic};
use paceline::sim::scenario::Crash;
use paceline::{
    Batch, Dice, Gradient, Job, Line, Model, Optimizer, PrepareOptions, Prepared, Reader, Record,
    Scenario, Score, Scratch, SimulateOptions, Simulated, Task, TrainOptions, Vector, simulate,
    train,
};

const SIZE: usize = 3;
const SAMPLES: u64 = 96;

/// The tokens of a sample, one to seven of them, or none if it is masked. Which is a matter of chance, so that
/// two workers hardly ever have as many.
fn tokens(key: u64) -> Vec<[f32; SIZE]> {
    let mut dice = Dice::keyed(&[key]);
    let count = if dice.below(9) == 0 { 0 } else { 1 + dice.below(7) };
    (0..count).map(|_| std::array::from_fn(|_| dice.between(-1.0, 3.0) as f32)).collect()
}

/// Half the squared distance from each token of a sample: losses and gradients are sums over tokens.
struct Tokens {
    /// Whether the model says so. If not, each sample weighs 1.
    weighs: bool,
}

impl Model for Tokens {
    fn params(&self) -> usize {
        SIZE
    }

    fn initial(&self, _seed: u64) -> Vector {
        Vector::from([2.0, -1.0, 0.5])
    }

    fn gradient(&self, params: &[f32], batch: &Batch, _scratch: &mut Scratch, into: &mut Gradient) {
        for key in &batch.keys {
            let tokens = tokens(*key);
            for (i, token) in tokens.iter().flat_map(|token| token.iter().enumerate()) {
                let slope = params[i] - token;
                into.sum[i] += slope;
                into.loss_sum += 0.5 * f64::from(slope) * f64::from(slope);
            }
            match self.weighs {
                true => into.count(1, tokens.len() as f64),
                false => into.samples += 1,
            }
        }
    }

    fn evaluate(&self, _: &[f32], _: &Batch, _: &mut Scratch) -> Score {
        Score::default()
    }
}

fn prepare(choices: &str, weighs: bool, (workers, batch): (u32, u64)) -> Prepared {
    let text = format!(
        "epochs = 3\nbatch = {batch}\nlearning_rate = 0.2\n[choices]\nstrategy = {choices}\n"
    );
    let job = Job::from_toml(&text).expect("the job is valid TOML");
    let (model, set) = (Arc::new(Tokens { weighs }), Arc::new(Noise { len: SAMPLES }));
    let task = Task { model, train: set, validation: None, test: Arc::new(Noise { len: 1 }) };
    let options = PrepareOptions { task: Some(task), ..PrepareOptions::new(workers) };
    let mut prepared = job.prepare_with(options).expect("the job is valid");
    prepared.plan.optimizer = Optimizer::plain();
    prepared.plan.fingerprints = true;
    prepared
}

/// Makes each step of the journal again, alone and in f64, over all the tokens in it.
struct Alone {
    order: Order,
    /// Params after each update.
    versions: Vec<[f64; SIZE]>,
    weights: f64,
    losses: f64,
    violations: Vec<String>,
}

impl Alone {
    fn new(prepared: &Prepared) -> Alone {
        let initial = &prepared.plan.initial;
        let first = std::array::from_fn(|i| f64::from(initial[i]));
        let order = Order::new(prepared.plan.seed, SAMPLES);
        Alone { order, versions: vec![first], weights: 0.0, losses: 0.0, violations: vec![] }
    }
}

impl Reader for Alone {
    fn read(&mut self, line: &Line) {
        let Record::Applied { spans, loss_sum, weight, staleness, rate, .. } = &line.record else {
            return;
        };
        let set = Noise { len: SAMPLES };
        let mut batch = Batch::new();
        batch.fill(&set, spans.positions().map(|at| self.order.at(at)));
        let read = self.versions[self.versions.len() - 1 - *staleness as usize];
        let (mut sum, mut count) = ([0.0; SIZE], 0.0);
        for token in batch.keys.iter().flat_map(|key| tokens(*key)) {
            (0..SIZE).for_each(|i| sum[i] += read[i] - f64::from(token[i]));
            count += 1.0;
        }
        let last = *self.versions.last().expect("there is a first version");
        let next = std::array::from_fn(|i| last[i] - f64::from(*rate) * sum[i] / count);
        self.versions.push(next);
        self.weights += count;
        self.losses += loss_sum;
        if weight.unwrap_or(spans.len() as f64) != count {
            self.violations.push(format!("{count} tokens, and a weight of {weight:?}"));
        }
    }
}

fn run(prepared: &Prepared) -> Simulated {
    run_with(prepared, &mut Traffic::default())
}

/// Runs the job on two workers, one of which is slow; replicas agree, the journal's bytes are those on the wires, and every sample counts once.
fn run_with(prepared: &Prepared, reader: &mut dyn Reader) -> Simulated {
    let mut scenario = Scenario { workers: prepared.workers, ..Scenario::default() };
    scenario.compute.relative = vec![1.0, 2.0][..prepared.workers as usize].to_vec();
    run_on(&scenario, prepared, reader)
}

fn run_on(scenario: &Scenario, prepared: &Prepared, reader: &mut dyn Reader) -> Simulated {
    let (mut agree, mut traffic) = (ReplicasAgree::default(), Traffic::default());
    let readers: Vec<&mut dyn Reader> = vec![&mut agree, &mut traffic, reader];
    let options = SimulateOptions { readers, ..Default::default() };
    let simulated = simulate(prepared, scenario, options).expect("the run ends");
    assert_eq!(agree.violations, Vec::<String>::new());
    assert_eq!(traffic.bytes, simulated.bytes_on_wires);
    let ledger = &simulated.result.ledger;
    assert_eq!((ledger.done, ledger.lost, ledger.repeated), (3 * SAMPLES, 0, 0));
    simulated
}

fn distance(x: &[f32], y: &[f64]) -> f64 {
    x.iter().zip(y).map(|(x, y)| (f64::from(*x) - y).abs()).fold(0.0, f64::max)
}

#[test]
fn two_workers_make_the_step_of_one_over_all_their_tokens() {
    for strategy in ["\"all_reduce\"", "\"delayed\"", "\"parameter_server\""] {
        let two = prepare(strategy, true, (2, 4));
        let mut alone = Alone::new(&two);
        let simulated = run_with(&two, &mut alone);
        let params = simulated.params.expect("there are params");

        assert_eq!(alone.violations, Vec::<String>::new(), "{strategy}");
        let expected = alone.versions.last().expect("there is a first version");
        assert!(distance(&params, expected) < 1e-5, "{strategy}: {params:?} {expected:?}");

        // Without weights, the sums over tokens would be divided by samples.
        let light = run(&prepare(strategy, false, (2, 4))).params.expect("params");
        assert!(distance(&light, expected) > 1e-2, "{strategy}: weights matter");

        if strategy != "\"parameter_server\"" {
            let one = run(&prepare(strategy, true, (1, 8))).params.expect("params");
            let one: Vec<f64> = one.iter().map(|x| f64::from(*x)).collect();
            assert!(distance(&params, &one) < 1e-5, "{strategy}: {params:?} {one:?}");
        }
    }
}

/// What a lost worker had computed is in no sum, and neither is its weight.
#[test]
fn a_lost_worker_takes_its_weight_with_it() {
    for strategy in ["\"all_reduce\"", "\"delayed\"", "\"parameter_server\""] {
        let whole = run(&prepare(strategy, true, (2, 4))).result;
        let span = whole.virtual_seconds.expect("it was simulated");
        for part in [0.13, 0.29, 0.42, 0.6] {
            let two = prepare(strategy, true, (2, 4));
            let mut scenario = Scenario { workers: 2, ..Scenario::default() };
            scenario.compute.relative = vec![1.0, 2.0];
            let (at, back_after) = (part * span, Some(0.1 * span));
            scenario.crashes = vec![Crash { worker: 1, at, at_event: None, back_after }];
            let mut alone = Alone::new(&two);

            let params = run_on(&scenario, &two, &mut alone).params.expect("params");

            assert_eq!(alone.violations, Vec::<String>::new(), "{strategy} at {at}");
            let expected = alone.versions.last().expect("there is a first version");
            assert!(distance(&params, expected) < 1e-5, "{strategy} at {at}: {params:?}");
        }
    }
}

/// The mean over replicas is weighted as the strategy says; losses are per token.
#[test]
fn every_strategy_reports_losses_by_weight() {
    let averaged = "\"periodic_average\"\nperiod = { kind = \"constant\", steps = 4 }";
    let others = ["\"gossip_pull\"", "\"elastic_average\"", averaged];
    for strategy in ["\"all_reduce\"", "\"delayed\"", "\"parameter_server\""].iter().chain(&others)
    {
        let two = prepare(strategy, true, (2, 4));
        let mut alone = Alone::new(&two);
        // Local steps are no updates of one common vector: only weights and losses are compared.
        alone.versions.resize(400, alone.versions[0]);
        let loss = run_with(&two, &mut alone).result.loss;

        assert_eq!(alone.violations, Vec::<String>::new(), "{strategy}");
        // Around its minimum, the loss of one of these tokens is 3/2 x 16/12.
        assert!((1.5..2.7).contains(&loss), "{strategy}: {loss}");
    }
}

#[test]
fn a_weight_is_sent_only_if_it_differs_and_threads_divide_by_it_too() {
    let bytes = |weighs| run(&prepare("\"all_reduce\"", weighs, (2, 4))).bytes_on_wires;
    // Two messages of each member in each of 36 rounds; four samples that have four tokens need no weight.
    let more = bytes(true) - bytes(false);
    assert!(more.is_multiple_of(16) && more > 100 * 8 && more <= 36 * 2 * 2 * 8, "{more}");

    let prepared = prepare("\"all_reduce\"", true, (2, 4));
    let trained = train(&prepared, TrainOptions::default()).expect("training ends");
    let simulated = run(&prepared);
    assert_eq!(trained.params, simulated.params, "the same bits");
}
