//! DBS (Ye et al. 2020): batches follow speed, and the training result stays the same.

use paceline::sim::scenario::Trace;
use paceline::{Job, Scenario};

use crate::probe::Start;
use crate::trial::{Run, cluster, distance, job, points, run, run_probed};

const BATCH: u64 = 16;
/// The total batch of four workers.
const TOTAL: u64 = 4 * BATCH;
const ROUNDS_PER_EPOCH: u64 = 10;
const EPOCH: u64 = ROUNDS_PER_EPOCH * TOTAL;

fn dbs(seed: u64) -> Job {
    Job { batch: Some(BATCH), epochs: 4.0, seed, ..job("dbs") }
}

fn ssgd(seed: u64) -> Job {
    Job { strategy: "ssgd".into(), ..dbs(seed) }
}

const PACES: [[f64; 4]; 3] = [[3.0, 1.0, 1.0, 1.0], [3.0, 3.0, 3.0, 1.0], [1.0, 1.3, 1.7, 2.2]];

/// The number of samples of each worker in a round.
fn shares(run: &Run, round: u64) -> Vec<u64> {
    let of =
        |who| run.entered(who).iter().find(|entered| entered.round == round).map(|e| e.samples);
    run.workers().map(|who| of(who).expect("all workers take part in every round")).collect()
}

/// The shares of an epoch, which must be equal in all of its rounds.
fn shares_of_epoch(run: &Run, epoch: u64) -> Vec<u64> {
    let rounds = epoch * ROUNDS_PER_EPOCH..(epoch + 1) * ROUNDS_PER_EPOCH;
    let first = shares(run, rounds.start);
    assert!(rounds.clone().all(|round| shares(run, round) == first), "epoch {epoch}");
    first
}

/// When an epoch ended, in seconds.
fn end_of_epoch(run: &Run, epoch: u64) -> f64 {
    run.applied(0)[((epoch + 1) * ROUNDS_PER_EPOCH) as usize - 1].at.as_secs_f64()
}

/// Ye et al. 2020: with weights proportional to batches, the gradient is that of the whole batch for any split. Compared
/// with SSGD: the same positions in every round, and params that differ only by the order of additions.
#[test]
fn uneven_shares_train_the_same_params_as_even_ones() {
    for paces in PACES {
        for seed in 0..3 {
            let (task, cluster) = (points(EPOCH as usize, seed), cluster(&paces));
            let dbs = run_probed(&dbs(seed), &cluster, &task, Start::Together);
            let ssgd = run_probed(&ssgd(seed), &cluster, &task, Start::Together);

            let about = format!("{paces:?}, seed {seed}");
            assert_ne!(shares_of_epoch(&dbs, 1), [BATCH; 4], "{about}");
            assert_eq!(shares_of_epoch(&ssgd, 1), [BATCH; 4], "{about}");
            let (split, whole) = (dbs.applied(0), ssgd.applied(0));
            assert!(split.iter().map(|x| &x.spans).eq(whole.iter().map(|x| &x.spans)), "{about}");
            for (x, y) in dbs.replicas(0).iter().zip(ssgd.replicas(0)) {
                assert!(distance(x, &y) < 1e-5, "{about}: {}", distance(x, &y));
            }
            let error = dbs.error_against_serial(3);
            assert!(error < 1e-6, "{about}: {error}");
        }
    }
}

/// Ye et al. 2020, the disturbance test: after a change of speeds one epoch is uneven and the next one balanced; the same
/// when the disturbance ends.
#[test]
fn shares_follow_a_disturbance_one_epoch_later() {
    let task = points(EPOCH as usize, 1);
    let job = Job { epochs: 9.0, ..dbs(1) };
    // Half a round before the epoch, so that the change affects all of its gradients and none before.
    let change = |scenario: &Scenario, epoch: u64, factor: f64| {
        let run = run(&job, scenario, &task);
        let round = end_of_epoch(&run, epoch - 1) - end_of_epoch(&run, epoch - 2);
        let at = end_of_epoch(&run, epoch - 1) - 0.5 * round / ROUNDS_PER_EPOCH as f64;
        let mut scenario = scenario.clone();
        scenario.compute.traces.push(Trace { worker: 2, at, factor });
        scenario
    };
    let disturbed = change(&cluster(&[1.0; 4]), 2, 5.0);
    let disturbed = change(&disturbed, 5, 1.0);
    let run = run(&job, &disturbed, &task);

    // Speeds 1 : 1 : 1/5 : 1 share 64 samples as 20 : 20 : 4 : 20.
    for epoch in 0..9 {
        let expected = if (3..=5).contains(&epoch) { [20, 20, 4, 20] } else { [16; 4] };
        assert_eq!(shares_of_epoch(&run, epoch), expected, "epoch {epoch}");
    }
    let lasts = |epoch| end_of_epoch(&run, epoch) - end_of_epoch(&run, epoch - 1);
    let (uneven, balanced, relaxed) = (lasts(2), lasts(3), lasts(6));
    assert!((uneven / relaxed - 5.0).abs() < 1e-6, "{uneven} {relaxed}");
    assert!((balanced / relaxed - 1.25).abs() < 1e-6, "{balanced} {relaxed}");
    assert!((lasts(5) / relaxed - 1.25).abs() < 1e-6, "20 samples of the fast, not 4 of the slow");
}

/// Ye et al. 2020: all workers have the same number of rounds, so none waits forever; also if an epoch is not a multiple
/// of the batch.
#[test]
fn all_workers_make_the_same_rounds_and_use_every_sample_once() {
    for (samples, seed) in [(EPOCH as usize, 1), (641, 2), (700, 3), (999, 4)] {
        for paces in PACES {
            let run = run(&dbs(seed), &cluster(&paces), &points(samples, seed));

            let about = format!("{samples} samples, {paces:?}, seed {seed}");
            let rounds = run.committed(0).len() as u64;
            assert_eq!(rounds, run.prepared.plan.samples_total.div_ceil(TOTAL), "{about}");
            for worker in run.workers() {
                assert_eq!(run.committed(worker).len() as u64, rounds, "{about}");
                assert!(run.applies_every_sample_once(worker), "{about}, worker {worker}");
            }
        }
    }
}

/// Ye et al. 2020, ideal gain (derived): max(a) sum(1/a) / n, where a is seconds per sample, up to the one sample that
/// rounding may add to the slowest worker's share.
#[test]
fn an_epoch_is_shorter_than_with_even_shares_by_the_formula() {
    for (paces, gain) in [([3.0, 1.0, 1.0, 1.0], 2.5), ([3.0, 3.0, 3.0, 1.0], 1.5)] {
        let batch = 128;
        let task = points(10 * 4 * batch, 1);
        let lasts = |job: Job| {
            let job = Job { batch: Some(batch as u64), ..job };
            let run = run(&job, &cluster(&paces), &task);
            end_of_epoch(&run, 2) - end_of_epoch(&run, 1)
        };

        let measured = lasts(ssgd(1)) / lasts(dbs(1));

        assert!((measured / gain - 1.0).abs() < 0.01, "{paces:?}: {measured}, not {gain}");
    }
}
