//! The running statistics of batch norm are part of each replica, but no optimizer step and no codec changes them.

use paceline::job::Prepared;
use paceline::runtime::edge::Workspace;
use paceline::runtime::wire::{HEADER_BYTES, TAIL_BYTES};
use paceline::runtime::{Spans, codec::Codec};
use paceline::sim::checkers::{ReplicasAgree, Traffic};
use paceline::sim::scenario::Crash;
use paceline::{
    Dice, Job, Line, Reader, Record, Scenario, SimulateOptions, Simulated, Vector, simulate,
};

/// A learning rate at which parameters practically stay, while statistics follow the samples.
const TINY_RATE: f32 = 1e-12;

fn job(choices: &str) -> Job {
    let text = format!(
        "model = \"resnet8-bn\"\nsamples = 256\nvalidation = 0.0\nepochs = 1\nbatch = 8\nlearning_rate = {TINY_RATE}\n\
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

const LOSSY: [(&str, Codec); 3] = [
    ("\"half\"", Codec::Half),
    ("{ kind = \"qsgd\", bits = 4 }", Codec::Qsgd { bits: 4, bucket: 512 }),
    ("{ kind = \"top_k\", fraction = 0.05 }", Codec::TopK { fraction: 0.05 }),
];

/// Batches of 8 on four workers. At the smallest of rates the parameters, and so the statistics, do not depend on the
/// codec.
fn encoded(strategy: &str, codec: &str, rate: f32) -> Prepared {
    let text = format!(
        "model = \"resnet8-bn\"\nsamples = 256\nvalidation = 0.0\nepochs = 1\nbatch = 8\nlearning_rate = {rate}\n\
         [choices]\nstrategy = {strategy}\ncodec = {codec}\n"
    );
    let job = Job::from_toml(&text).expect("the job is valid TOML");
    let mut prepared = job.prepare(4).expect("lossy codecs go with batch norm");
    prepared.plan.fingerprints = true;
    prepared
}

/// Runs the job; replicas agree, and the journal's bytes are those on the wires. Also returns the samples of each update.
fn run(prepared: &Prepared) -> (Simulated, Vec<Spans>) {
    run_on(&Scenario::default(), prepared)
}

fn run_on(scenario: &Scenario, prepared: &Prepared) -> (Simulated, Vec<Spans>) {
    let (mut agree, mut traffic) = (ReplicasAgree::default(), Traffic::default());
    let mut updates = Updates::default();
    let readers: Vec<&mut dyn Reader> = vec![&mut agree, &mut traffic, &mut updates];
    let simulated = simulate(prepared, scenario, SimulateOptions { readers, ..Default::default() })
        .expect("it ends");
    assert_eq!(agree.violations, Vec::<String>::new());
    assert_eq!(traffic.bytes, simulated.bytes_on_wires);
    (simulated, updates.0)
}

#[derive(Default)]
struct Updates(Vec<Spans>);

impl Reader for Updates {
    fn read(&mut self, line: &Line) {
        if let Record::Applied { spans, .. } = &line.record {
            self.0.push(spans.clone());
        }
    }
}

fn buffers(prepared: &Prepared, simulated: &Simulated) -> Vec<f32> {
    simulated.params.as_ref().expect("there are params")[prepared.plan.layout.params..].to_vec()
}

/// The buffers after these updates, in f64: each moves them a tenth of the way to the mean of the statistics of its
/// batches of eight.
fn exact(prepared: &Prepared, updates: &[Spans]) -> Vec<f64> {
    let (initial, params) = (&prepared.plan.initial, prepared.plan.layout.params);
    let compute = prepared.task.compute(prepared.plan.seed);
    let mut workspace = Workspace::default();
    let mut exact: Vec<f64> = initial[params..].iter().map(|x| f64::from(*x)).collect();
    for update in updates {
        let mut sums = vec![0.0; exact.len()];
        let positions: Vec<u64> = update.positions().collect();
        for batch in positions.chunks(8) {
            let batch = Spans::one(batch[0], batch[batch.len() - 1] + 1);
            let gradient = compute(initial, &batch, &mut workspace);
            let statistics = gradient.sum[params..].iter();
            sums.iter_mut().zip(statistics).for_each(|(sum, x)| *sum += f64::from(*x));
        }
        let samples = update.len() as f64;
        exact.iter_mut().zip(sums).for_each(|(x, sum)| *x += 0.1 * (sum / samples - *x));
    }
    exact
}

#[test]
fn a_codec_leaves_the_statistics_of_sums_exact() {
    for strategy in ["\"all_reduce\"", "\"delayed\"", "\"parameter_server\""] {
        for text in ["\"dense\""].into_iter().chain(LOSSY.map(|(text, _)| text)) {
            let prepared = encoded(strategy, text, 1e-30);
            let (simulated, updates) = run(&prepared);
            let (found, exact) = (buffers(&prepared, &simulated), exact(&prepared, &updates));
            for (x, y) in found.iter().zip(&exact) {
                let near = (f64::from(*x) - y).abs() <= 1e-5 * y.abs().max(1e-2);
                assert!(near, "{strategy} {text}: {x} {y}");
            }
        }
    }
}

/// Also where replicas are averaged, with unequal weights.
#[test]
fn a_codec_leaves_the_bits_of_statistics_as_they_are() {
    let averaged =
        "\"periodic_average\"\nshares = \"by_speed\"\nperiod = { kind = \"constant\", steps = 4 }";
    for strategy in ["\"all_reduce\"", "\"delayed\"", averaged] {
        let dense = encoded(strategy, "\"dense\"", 1e-30);
        let plain = buffers(&dense, &run(&dense).0);
        for (text, _) in LOSSY {
            let prepared = encoded(strategy, text, 1e-30);
            assert_eq!(buffers(&prepared, &run(&prepared).0), plain, "{strategy} {text}");
        }
    }
}

#[test]
fn batch_norm_learns_through_every_codec_and_pays_for_its_buffers() {
    let mut losses = Vec::new();
    for (text, codec) in LOSSY {
        let prepared = encoded("\"all_reduce\"", text, 0.05);
        let (params, size) = (prepared.plan.layout.params, prepared.plan.initial.len());
        let (mut residual, mut dice) = (Vector::new(), Dice::keyed(&[1]));
        let learned =
            codec.encode(Vector::filled(1.0, params), params, &mut residual, &mut dice).bytes();
        let payload = learned + 4 * (size - params) as u64;

        let (simulated, _) = run(&prepared);

        // Eight rounds of four members, in a ring: sums in two passes of quarters, sparse ones whole in one.
        let (steps, bytes) = match codec {
            Codec::TopK { .. } => (3, payload),
            _ => (6, payload.div_ceil(4)),
        };
        let expected = 8 * 4 * steps * (bytes + HEADER_BYTES + TAIL_BYTES);
        assert_eq!(simulated.bytes_on_wires, expected, "{text}");
        losses.push(simulated.result.loss);
    }
    // It begins at ln 10 = 2.3 or above.
    assert!(losses.iter().all(|loss| *loss < 2.2), "{losses:?}");
}

/// The survivors enter the same payloads again, and a newcomer adopts statistics and no residual.
#[test]
fn replicas_with_buffers_agree_after_a_loss_with_every_codec() {
    let averaged = "\"periodic_average\"\nperiod = { kind = \"constant\", steps = 2 }";
    for strategy in ["\"all_reduce\"", "\"delayed\"", averaged] {
        for (text, _) in LOSSY {
            let prepared = encoded(strategy, text, 0.05);
            let seconds = run(&prepared).0.result.virtual_seconds.expect("it was simulated");
            let (at, back_after) = (0.3 * seconds, Some(0.1 * seconds));
            let crashes = vec![Crash { worker: 1, at, at_event: None, back_after }];

            let (simulated, _) = run_on(&Scenario { crashes, ..Scenario::default() }, &prepared);

            let ledger = simulated.result.ledger;
            assert_eq!(
                (ledger.done, ledger.lost, ledger.repeated),
                (256, 0, 0),
                "{strategy} {text}"
            );
        }
    }
}
