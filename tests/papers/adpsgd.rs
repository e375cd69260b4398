//! ADPSGD (Jiang and Agrawal 2020): periodic averaging whose period keeps the replicas' variance in
//! proportion to the learning rate.

use paceline::learn::Rule;
use paceline::runtime::wire::{HEADER_BYTES, TAIL_BYTES};
use paceline::strategies::parts::{Adaptive, Period};
use paceline::{Choices, Job, Optimizer, Record, Shape, StrategyKind, Task};

use crate::probe::Start;
use crate::trial::{Run, cluster, distance, job, mean, points, quadratic, run, run_probed};

/// Periodic averaging with this period.
fn averaging(period: Period, seed: u64) -> Job {
    let choices = Choices { period, ..Choices::of(StrategyKind::PeriodicAverage) };
    Job { choices: Some(choices), batch: Some(1), epochs: 1.0, seed, ..job("adpsgd") }
}

const MEMBERS: u64 = 8;
const STEPS: u64 = 2400;
const DIMENSIONS: usize = 100;

/// Eight replicas whose gradients are mostly noise, for 2,400 steps: the variance of an average has
/// (8 - 1) x 100 degrees of freedom, so its relative standard deviation is 5 %, far inside the dead
/// band of 30 %.
fn noisy() -> Task {
    quadratic(vec![0.05; DIMENSIONS], 1.0, MEMBERS * STEPS)
}

/// A run on equal workers whose learning rate drops to a tenth in the middle.
fn run_with_drop(period: Period, seed: u64) -> Run {
    let schedule = Shape::Step { at: vec![0.5], factor: 0.1 };
    let job = Job { schedule, ..averaging(period, seed) };
    run(&job, &cluster(&[1.0; MEMBERS as usize]), &noisy())
}

/// One average: at which step, after how many local steps, and the replicas' variance over the learning rate.
#[derive(Clone, Copy, Debug)]
struct Average {
    step: u64,
    period: u64,
    variance_per_rate: f64,
}

fn averages(run: &Run) -> Vec<Average> {
    let notes = run.notes(0, "period").into_iter().zip(run.notes(0, "variance"));
    let rates = run.applied(0).into_iter().map(|applied| f64::from(applied.rate));
    let mut step = 0;
    let each = notes.zip(rates).map(|((period, variance), rate)| {
        step += period as u64;
        Average { step, period: period as u64, variance_per_rate: variance / rate }
    });
    each.collect()
}

/// Jiang and Agrawal 2020: with a period of one it is full communication, also with local momentum, because the mean of
/// the momenta follows the same linear recursion. Compared in every round, up to rounding.
#[test]
fn a_period_of_one_follows_ssgd() {
    let rule = |momentum, nesterov| Rule::Sgd { momentum, nesterov, weight_decay: 1e-3 };
    for rule in [rule(0.0, false), rule(0.9, false), rule(0.9, true)] {
        for seed in 0..3 {
            let optimizer = Some(Optimizer { rule: rule.clone(), clip_norm: None });
            let common = Job { batch: Some(8), epochs: 4.0, optimizer, seed, ..job("ssgd") };
            let common = Job { learning_rate: Some(0.02), ..common };
            let choices = averaging(Period::Constant { steps: 1 }, seed).choices;
            let (task, cluster) = (points(320, seed), cluster(&[1.0, 2.0, 1.5, 3.0]));
            let averaging = Job { choices, ..common.clone() };
            let averaged = run_probed(&averaging, &cluster, &task, Start::Together).replicas(1);
            let summed = run_probed(&common, &cluster, &task, Start::Together).replicas(1);

            assert_eq!(averaged.len(), 4 * 10 + 1);
            for (round, (x, y)) in averaged.iter().zip(&summed).enumerate() {
                let error = distance(x, y);
                assert!(error < 1e-5, "{rule:?}, seed {seed}, round {round}: {error}");
            }
        }
    }
}

/// The bytes that a member sends in each of its exchanges.
fn bytes(run: &Run, by: u32) -> Vec<u64> {
    run.collect(|_, record| match record {
        Record::Exchanged { who, bytes, .. } if who.0 == by => Some(*bytes),
        _ => None,
    })
}

/// Jiang and Agrawal 2020: an average costs one exchange of the replica and one of a number, which is part of the tail
/// that every exchange has; so the communication is averages / steps of that of SSGD.
#[test]
fn an_average_costs_one_exchange_of_replicas_and_one_of_a_number() {
    let adaptive = run_with_drop(Period::adaptive(4), 1);
    let constant = run_with_drop(Period::Constant { steps: 8 }, 1);
    let ssgd = Job { choices: None, strategy: "ssgd".into(), ..averaging(Period::adaptive(4), 1) };
    let ssgd = run(&ssgd, &cluster(&[1.0; MEMBERS as usize]), &noisy());

    let messages = 2 * (MEMBERS - 1);
    let number = messages * (HEADER_BYTES + TAIL_BYTES);
    let replica = number + messages * (4 * DIMENSIONS as u64).div_ceil(MEMBERS);
    for worker in adaptive.workers() {
        let of_adaptive = bytes(&adaptive, worker);
        assert_eq!(of_adaptive.len(), 2 * averages(&adaptive).len());
        assert!(of_adaptive.chunks(2).all(|pair| pair == [replica, number]));
        assert_eq!(bytes(&constant, worker), vec![replica; STEPS as usize / 8]);
        assert_eq!(bytes(&ssgd, worker), vec![replica; STEPS as usize]);
    }
    let averages = averages(&adaptive);
    // The end of the job may cut the last period short.
    let (steps, last) = averages.last().map(|a| (a.step, a.period)).expect("averages");
    assert!((STEPS..STEPS + last).contains(&steps), "{steps} steps in {} averages", averages.len());
}

/// Jiang and Agrawal 2020: the period is computed from a sum that is equal on all members.
#[test]
fn all_workers_have_the_same_period() {
    for seed in 0..2 {
        let run = run_with_drop(Period::adaptive(4), seed);

        for note in ["period", "variance"] {
            let first = run.notes(0, note);
            assert!(run.workers().all(|who| run.notes(who, note) == first), "{note}, seed {seed}");
        }
    }
}

/// Jiang and Agrawal 2020, thresholds 0.7 and 1.3 (derived for momentum 0): stationary noise at a
/// constant learning rate keeps the period; when the rate falls tenfold the variance falls a
/// hundredfold, and the period grows by one per average to about 0.7 x 10 times the first.
#[test]
fn the_period_stays_in_the_dead_band_and_grows_after_a_drop() {
    for seed in 0..3 {
        let run = run_with_drop(Period::adaptive(4), seed);

        let averages = averages(&run);
        // The first 1.25 % are averaged after every step.
        let warm = STEPS / 80;
        let until_drop =
            averages.iter().filter(|a| warm < a.step - a.period && a.step <= STEPS / 2);
        assert!(until_drop.clone().all(|average| average.period == 4), "seed {seed}");
        assert!(until_drop.count() > 250, "seed {seed}");

        // The average at the drop mixes two rates and may take one step back.
        let after: Vec<u64> =
            averages.iter().filter(|a| a.step > STEPS / 2 + 10).map(|a| a.period).collect();
        let climb = after.windows(2).take_while(|pair| pair[1] == pair[0] + 1).count();
        assert!(climb >= 20, "seed {seed}: {after:?}");
        let end = after[after.len() / 2..].iter().max().expect("averages");
        assert!((26..=36).contains(end), "seed {seed}: {after:?}");
    }
}

/// Jiang and Agrawal 2020, against a constant period of 8 at about the same number of averages
/// (derived): half of its variance while the learning rate is large, more of it later.
#[test]
fn the_variance_is_half_that_of_a_constant_period_while_the_rate_is_large() {
    // A period that stays 8, but records its variance.
    let eight = Adaptive {
        steps_first: 8,
        steps_max: 8,
        steps: 8,
        variance_per_rate: 0.0,
        samplings: 0,
        members: 0,
    };
    for seed in 0..3 {
        let constant = averages(&run_with_drop(Period::Adaptive(eight.clone()), seed));
        let adaptive = averages(&run_with_drop(Period::adaptive(4), seed));

        let variance = |averages: &[Average], from: u64, to: u64| {
            let within = averages.iter().filter(|a| from <= a.step - a.period && a.step <= to);
            mean(&within.map(|a| a.variance_per_rate).collect::<Vec<_>>()).0
        };
        let early = |of: &[Average]| variance(of, STEPS / 40, STEPS / 2);
        let late = |of: &[Average]| variance(of, STEPS * 3 / 4, STEPS);
        let ratio = early(&adaptive) / early(&constant);
        assert!((0.45..0.58).contains(&ratio), "seed {seed}: {ratio}");
        assert!(late(&adaptive) > 2.0 * late(&constant), "seed {seed}");
        let budget = adaptive.len() as f64 / constant.len() as f64;
        assert!((0.7..1.3).contains(&budget), "seed {seed}: {budget}");
    }
}
