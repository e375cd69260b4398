//! Dynamic SGD (Lin et al. 2019): the learning rate follows the number of members, and a change of members changes
//! nothing else.

use std::collections::BTreeMap;

use paceline::sim::scenario::{Join, Leave};
use paceline::{Job, Optimizer, Record, Scenario};

use crate::trial::{Run, SAMPLE, cluster, job, points, run};

const BATCH: u64 = 8;
const RATE: f32 = 0.01;
/// The duration of a round if sums take no time.
const ROUND: f64 = BATCH as f64 * SAMPLE;

fn dynamic(seed: u64) -> Job {
    let optimizer = Some(Optimizer::sgd(0.9));
    let learning_rate = Some(RATE);
    Job { batch: Some(BATCH), epochs: 6.0, optimizer, learning_rate, seed, ..job("dynamic") }
}

/// Two workers, and more that join in the middle of given rounds: (round, workers).
fn growing(joins: &[(u32, u32)]) -> Scenario {
    let mut scenario = cluster(&[1.0, 1.0]);
    for (round, workers) in joins {
        let at = (f64::from(*round) + 0.5) * ROUND;
        scenario.joins.push(Join { at, workers: *workers });
    }
    scenario
}

/// The rounds before which the members changed, with their new number.
fn changes(run: &Run) -> Vec<(u64, usize)> {
    let views = run.collect(|_, record| match record {
        Record::View { number, members, .. } => Some((*number, members.len())),
        _ => None,
    });
    let settled = run.collect(|_, record| match record {
        Record::Settled { who, view, round, .. } if who.0 == 0 => {
            Some((*round, views.iter().find(|(number, _)| number == view).expect("decided").1))
        }
        _ => None,
    });
    // Views are entered one after another; the last one before a round is the one that counts.
    BTreeMap::from_iter(settled).into_iter().collect()
}

/// The learning rates of worker 0 relative to the base rate, by round.
fn factors(run: &Run) -> Vec<f64> {
    run.applied(0).iter().map(|applied| f64::from(applied.rate) / f64::from(RATE)).collect()
}

/// Asserts that the factor changes linearly from `before` to `after` in `rounds` rounds from round `start` on.
fn assert_ramp(factors: &[f64], start: usize, (before, after): (f64, f64), rounds: usize) {
    for (t, factor) in factors[start..=start + rounds].iter().enumerate() {
        let expected = before + t as f64 / rounds as f64 * (after - before);
        assert!((factor - expected).abs() < 1e-5, "{t} rounds on: {factor}, not {expected}");
    }
}

/// Lin et al. 2019: per-worker batches stay, so a newcomer is one more replica like the others. Momentum is compared
/// indirectly: replicas that stay equal over many steps with the same rate and gradient have equal momentum.
#[test]
fn after_a_join_all_replicas_are_identical_and_no_sample_is_lost() {
    for seed in 0..5 {
        let mut scenario = growing(&[(20, 2), (50, 1)]);
        (scenario.compute.jitter, scenario.network.latency) = (0.5, 1e-4);
        let run = run(&dynamic(seed), &scenario, &points(500, seed));

        let newest = run.applied(4);
        let (oldest, total) = (run.applied(0), run.prepared.plan.samples_total);
        assert!(newest.len() > 30, "seed {seed}: {} updates after the last join", newest.len());
        let first = newest[0].version;
        for who in 0..5 {
            let since = |by: u32| {
                let mut prints = run.fingerprints(by);
                prints.retain(|(round, _)| *round >= first);
                prints
            };
            assert_eq!(since(who), since(4), "seed {seed}, worker {who}");
        }
        // The step counter, the position in the data and the learning rate are equal, too.
        let same = |x: &crate::trial::Applied| (x.version, x.spans.clone(), x.rate.to_bits());
        let tail = oldest.iter().skip_while(|applied| applied.version < first);
        assert!(tail.map(same).eq(newest.iter().map(same)), "seed {seed}");
        assert!(run.applies_every_sample_once(0), "seed {seed}");
        assert_eq!(run.simulated.result.ledger.done, total, "seed {seed}");
    }
}

/// Lin et al. 2019, eq. 6 with T = 8 k: from t0 on, the rate grows linearly to k times its value in T rounds.
#[test]
fn the_rate_ramps_linearly_after_a_join() {
    for (newcomers, ratio) in [(1, 1.5), (2, 2.0), (3, 2.5), (6, 4.0)] {
        let run = run(&dynamic(1), &growing(&[(20, newcomers)]), &points(800, 1));

        let factors = factors(&run);
        let (start, members) = changes(&run)[0];
        let (start, rounds) = (start as usize, (8.0 * ratio) as usize);
        assert_eq!(members as f64, 2.0 * ratio);
        assert_eq!(factors[..start], vec![1.0; start]);
        assert_ramp(&factors, start, (1.0, ratio), rounds);
        assert!(factors[start + rounds - 1] < ratio - 1e-3);
        assert!(factors[start + rounds..].iter().all(|factor| *factor == factors[start + rounds]));
    }
}

/// Lin et al. 2019, eq. 6. The paper does not define this case; here gamma is relative to the current rate.
#[test]
fn a_join_during_a_ramp_starts_a_new_ramp_from_the_current_rate() {
    let run = run(&dynamic(1), &growing(&[(20, 2), (28, 2)]), &points(800, 1));

    let (factors, changes) = (factors(&run), changes(&run));
    let (first, second) = (changes[0].0 as usize, changes[1].0 as usize);
    assert_eq!((changes[0].1, changes[1].1), (4, 6));
    let current = factors[second - 1];
    assert!(second - first < 16 && 1.0 < current && current < 2.0, "the first ramp is under way");
    let made = second - 1 - first;
    assert_ramp(&factors, first, (1.0, 1.0 + made as f64 / 16.0), made);
    assert_ramp(&factors, second, (current, 3.0), (8.0 * 3.0 / current).ceil() as usize);
}

/// Lin et al. 2019: a ramp gives momentum the time to forget the noise of the smaller batch. When the batch shrinks there
/// is no such need, so the rate drops at once (derived; eq. 6 itself would ramp).
#[test]
fn a_leave_lowers_the_rate_at_once() {
    let mut scenario = growing(&[(20, 2)]);
    for (worker, round) in [(3, 60.5), (2, 90.5), (1, 90.5)] {
        scenario.leaves.push(Leave { worker, at: round * ROUND });
    }
    let run = run(&dynamic(1), &scenario, &points(800, 1));

    let (factors, changes) = (factors(&run), changes(&run));
    let shrinkings: Vec<_> = changes.windows(2).filter(|pair| pair[1].1 < pair[0].1).collect();
    assert!(shrinkings.len() >= 2, "{changes:?}");
    for pair in shrinkings {
        let ((_, before), (start, after)) = (pair[0], pair[1]);
        let start = start as usize;
        assert_eq!(factors[start - 1], before as f64 / 2.0, "{changes:?}");
        assert_eq!(factors[start], after as f64 / 2.0, "{changes:?}");
    }
    assert_eq!(*factors.last().expect("rounds"), 0.5);
}
