//! ABS-SGD (Zhou et al. 2023): no worker is idle during a sum, and every gradient is applied exactly one update late.

use std::ops::Range;
use std::time::Duration;

use paceline::sim::scenario::{Join, Link, Rack, RingModel, Straggler, Trace};
use paceline::{Job, Record, Scenario};

use crate::probe::Start;
use crate::trial::{
    Run, SAMPLE, cluster, job, points, prepare, quadratic, run, run_probed, with_exchange,
};

/// A job whose open batches start with `FLOOR` samples and grow by `FLOOR` samples.
fn abs(seed: u64) -> Job {
    Job { batch: Some(4 * FLOOR), epochs: 5.0, seed, ..job("abs") }
}

/// A job whose batches always have `FLOOR` samples.
fn pipe(seed: u64) -> Job {
    Job { batch: Some(FLOOR), ..Job { strategy: "pipe".into(), ..abs(seed) } }
}

const FLOOR: u64 = 4;
/// The time of `FLOOR` samples on a worker of pace 1.
const BASE: f64 = FLOOR as f64 * SAMPLE;

#[test]
fn open_batches_start_with_the_floor_and_grow_by_it() {
    let strategy = prepare(&abs(1), &cluster(&[1.0; 4]), &points(400, 1)).strategy().save().json;

    assert_eq!(strategy["batches"]["batch"], FLOOR);
    assert_eq!(strategy["batch_growth"], FLOOR);
}

/// Clusters of constant speed: even and uneven, with sums shorter and longer than batches.
fn steady_clusters() -> Vec<(String, Scenario)> {
    let paces = [[1.0; 4], [1.0, 1.0, 1.0, 2.0], [1.0, 1.3, 1.7, 2.2], [4.0, 3.0, 2.0, 1.0]];
    let sums = [0.0, 0.3, 0.9, 2.3, 5.3, 20.3];
    let pairs = paces.iter().flat_map(|paces| sums.iter().map(move |sum| (paces, sum)));
    pairs
        .map(|(paces, sum)| {
            let name = format!("paces {paces:?}, sums of {sum} batches");
            (name, with_exchange(cluster(paces), sum * BASE))
        })
        .collect()
}

/// Clusters of many kinds, with constant and changing speeds.
fn clusters() -> Vec<(String, Scenario)> {
    let mut jittery = with_exchange(cluster(&[1.0, 1.3, 1.7, 2.2]), 0.3 * BASE);
    (jittery.compute.jitter, jittery.compute.jitter_every) = (1.0, 0.01);
    let mut straggling = with_exchange(cluster(&[1.0; 4]), 0.5 * BASE);
    straggling.compute.straggler = Some(Straggler { every: 0.05, factor: 4.0 });
    let mut apart = with_exchange(cluster(&[1.0, 2.0, 1.0, 1.5]), 2.0 * BASE);
    apart.network.racks = vec![Rack { workers: vec![0, 1], bytes_per_second: 1e5, latency: 1e-3 }];
    apart.network.links = vec![Link { worker: 3, bytes_per_second: 1e5, latency: 1e-3 }];
    let mut unsteady = [("jittery", jittery), ("straggling", straggling), ("far apart", apart)];
    // Simulated by messages, a sum ends earlier for some members than for others.
    unsteady.iter_mut().for_each(|(_, scenario)| scenario.network.sums = RingModel::Messages);
    let unsteady = unsteady.into_iter().map(|(name, scenario)| (name.to_owned(), scenario));
    steady_clusters().into_iter().chain(unsteady).collect()
}

/// The updates after the lanes have grown to the length of the rounds and before the samples run out: see `fill_lanes`.
fn settled(run: &Run) -> Range<usize> {
    const GROWING: usize = 12;
    const ENDING: u64 = 16;
    let mut left = run.prepared.plan.samples_total;
    let end = run.applied(0).iter().position(|update| {
        left -= update.spans.len();
        left < ENDING * update.spans.len()
    });
    let settled = GROWING..end.expect("the job ends");
    assert!(settled.len() > 10, "{settled:?}");
    settled
}

/// A worker's number of samples in each update.
fn batches(run: &Run, worker: u32) -> Vec<u64> {
    let settled = settled(run);
    let entered = run.entered(worker);
    entered.iter().filter(|e| settled.contains(&(e.round as usize))).map(|e| e.samples).collect()
}

/// Zhou et al. 2023: the delay is exactly one.
#[test]
fn every_gradient_except_the_first_is_applied_one_update_late() {
    for (name, scenario) in clusters() {
        for (job, seed) in (0..3).flat_map(|seed| [(abs(seed), seed), (pipe(seed), seed)]) {
            let run = run(&job, &scenario, &points(400, seed));

            for worker in run.workers() {
                let updates = run.applied(worker);
                let late: Vec<u64> = updates.iter().map(|update| update.staleness).collect();
                let about = format!("{}, {name}, seed {seed}, worker {worker}", job.strategy);
                assert!(updates.iter().all(|update| !update.spans.is_empty()), "{about}");
                assert!(late.len() > 5, "{about}");
                assert!(late[0] == 0 && late[1..].iter().all(|late| *late == 1), "{about}");
            }
        }
    }
}

/// Zhou et al. 2023: a change of members drains the pipeline, which is then filled again.
#[test]
fn only_the_first_gradient_in_a_view_is_not_late() {
    for job in [abs(1), pipe(1)] {
        let mut scenario = with_exchange(cluster(&[1.0, 2.0]), BASE);
        scenario.joins.push(Join { at: 0.2, workers: 1 });
        scenario.joins.push(Join { at: 0.4, workers: 1 });
        let run = run(&job, &scenario, &points(400, 1));

        let views = run.collect(|_, record| match record {
            Record::Settled { who, .. } if who.0 == 0 => Some(()),
            _ => None,
        });
        assert_eq!(views.len(), 2, "{}", job.strategy);
        let updates = run.applied(0);
        let filled = updates.iter().filter(|update| !update.spans.is_empty());
        let in_time = filled.filter(|update| update.staleness == 0);
        assert_eq!(in_time.count(), 1 + views.len(), "{}", job.strategy);
        assert!(updates.iter().all(|update| update.staleness <= 1), "{}", job.strategy);
    }
}

/// The idle time of a worker in each round.
fn idle(run: &Run, worker: u32) -> Vec<Duration> {
    let (mut since, mut busy, mut idle) = (Duration::ZERO, Duration::ZERO, Vec::new());
    for line in &run.lines {
        match &line.record {
            Record::Computed { who, since, .. } if who.0 == worker => busy += line.at - *since,
            Record::Committed { who, .. } if who.0 == worker => {
                idle.push(line.at - since - busy);
                (since, busy) = (line.at, Duration::ZERO);
            }
            _ => {}
        }
    }
    idle
}

/// Zhou et al. 2023: workers compute during a sum, whether it is shorter or longer than a batch. A micro-batch in
/// progress when the sum ends is finished first, so there is no idle time at all.
#[test]
fn no_worker_is_idle_while_there_are_samples() {
    for (name, scenario) in steady_clusters() {
        let run = run(&abs(1), &scenario, &points(3200, 1));

        for worker in run.workers() {
            let idle = idle(&run, worker);
            let settled = settled(&run);
            let never = idle[settled].iter().all(|idle| *idle == Duration::ZERO);
            assert!(never, "{name}, worker {worker}: {idle:?}");
        }
    }
}

/// Zhou et al. 2023 and Li et al. 2018: if sums are too short for batches to grow, ABS-SGD is Pipe-SGD.
#[test]
fn equal_workers_with_short_sums_compute_the_same_bits_as_pipe_sgd() {
    for sum in [0.0, 0.5, 0.9] {
        let scenario = with_exchange(cluster(&[1.0; 4]), sum * BASE);
        let task = quadratic(vec![0.5, 1.0, 3.0], 0.0, 400);
        let (abs, pipe) = (run(&abs(1), &scenario, &task), run(&pipe(1), &scenario, &task));

        // The last batches are smaller because few samples are left.
        let rounds = settled(&abs).end;
        for worker in abs.workers() {
            let entered = abs.entered(worker);
            assert!(entered[..rounds].iter().all(|entered| entered.samples == FLOOR), "{sum}");
            let bits = abs.fingerprints(worker);
            assert_eq!(bits[..rounds], pipe.fingerprints(worker)[..rounds], "{sum}");
        }
    }
}

/// Zhou et al. 2023: without communication time there is nothing to overlap.
#[test]
fn equal_workers_with_instant_sums_take_as_long_as_ssgd() {
    let (scenario, task) = (cluster(&[1.0; 4]), points(400, 1));
    let ssgd = Job { strategy: "ssgd".into(), ..pipe(1) };

    let (abs, ssgd) = (run(&abs(1), &scenario, &task), run(&ssgd, &scenario, &task));

    assert_eq!(abs.seconds(), ssgd.seconds());
}

/// Zhou et al. 2023: near the best rates of SSGD, a late gradient reduces the loss less than one in time (derived:
/// sqrt(rate h) > 1 - rate h from rate h = 0.382 on; below, a delay even helps).
#[test]
fn a_late_update_reduces_the_loss_less_than_one_of_ssgd() {
    let task = quadratic(vec![1.0], 0.0, 400);
    let losses = [0.5, 0.7, 0.9].map(|rate| {
        let ssgd = Job { strategy: "ssgd".into(), ..pipe(1) };
        let of = |job: Job| {
            let job = Job { learning_rate: Some(rate), epochs: 0.5, ..job };
            f64::from(run(&job, &cluster(&[1.0; 4]), &task).params()[0].abs())
        };
        (of(pipe(1)), of(ssgd))
    });
    assert!(losses.iter().all(|(late, in_time)| late > in_time), "{losses:?}");
}

/// Zhou et al. 2023: batches have no fixed size, so they are proportional to speed, up to the micro-batches in progress
/// when the sum ends.
#[test]
fn batches_are_proportional_to_speed() {
    for (name, scenario) in steady_clusters() {
        let run = run(&abs(1), &scenario, &points(3200, 1));

        let paces = &scenario.compute.relative;
        let by_worker: Vec<Vec<u64>> = run.workers().map(|who| batches(&run, who)).collect();
        for (i, j) in (0..4).flat_map(|i| (0..i).map(move |j| (i, j))) {
            for (mine, theirs) in by_worker[i].iter().zip(&by_worker[j]) {
                let apart = (*mine as f64 * paces[i] - *theirs as f64 * paces[j]).abs();
                let rounding = FLOOR as f64 * (paces[i] + paces[j]);
                assert!(apart <= rounding, "{name}: {i} {mine}, {j} {theirs}");
            }
        }
    }
}

/// Zhou et al. 2023: speeds are not estimated, so batches adapt without delay.
#[test]
fn a_slowed_worker_has_a_smaller_batch_in_the_next_round() {
    let (slowed, at, sum) = (2, 1.0, 0.031);
    let mut scenario = with_exchange(cluster(&[1.0; 4]), sum);
    scenario.compute.traces = vec![Trace { worker: slowed, at, factor: 3.0 }];
    let job = Job { batch: Some(4), ..abs(1) };
    let run = run(&job, &scenario, &points(2000, 1));

    for worker in run.workers() {
        let entered = run.entered(worker);
        let change = entered.iter().position(|entered| entered.at.as_secs_f64() > at);
        let change = change.expect("the run continues after the change");
        let (before, after) = (entered[change - 1].samples, entered[change + 1].samples);
        assert!((31..=32).contains(&before), "{worker}: {before} in 31 ms");
        // Micro-batches are single samples here, so that of the slow worker may add 3 ms to a round.
        let expected = if worker == slowed { 10..=12 } else { 31..=35 };
        assert!(expected.contains(&after), "{worker}: {before} -> {after}");
        let rest = &entered[change + 1..change + 20];
        let lasts = rest.iter().all(|entered| expected.contains(&entered.samples));
        assert!(lasts, "{worker}: {rest:?}");
    }
}

/// Zhou et al. 2023: the gradient is the mean over all workers' samples, at the params of one update before. Agrees with
/// a serial computation up to rounding.
#[test]
fn an_update_is_the_mean_over_exactly_its_samples() {
    for (name, scenario) in clusters() {
        for seed in 0..2 {
            let run = run_probed(&abs(seed), &scenario, &points(300, seed), Start::Together);

            for worker in run.workers() {
                let error = run.error_against_serial(worker);
                assert!(error < 1e-6, "{name}, seed {seed}, worker {worker}: {error}");
            }
        }
    }
}

/// Zhou et al. 2023: samples go to the next free worker, and each is still used once in an epoch.
#[test]
fn every_sample_is_used_once_and_fast_workers_use_most() {
    for (name, scenario) in clusters() {
        for seed in 0..2 {
            let run = run(&abs(seed), &scenario, &points(1001, seed));

            assert!(run.workers().all(|who| run.applies_every_sample_once(who)), "{name} {seed}");
            let ledger = run.simulated.result.ledger;
            assert_eq!((ledger.lost, ledger.repeated), (0, 0), "{name}, seed {seed}");
        }
    }
    let run = run(&abs(1), &cluster(&[1.0, 1.0, 1.0, 4.0]), &points(1001, 1));
    let taken = run.workers().map(|who| run.entered(who).iter().map(|e| e.samples).sum::<u64>());
    let taken: Vec<u64> = taken.collect();
    assert!(taken[..3].iter().all(|fast| *fast > 3 * taken[3]), "{taken:?}");
}

/// Zhou et al. 2023: a round lasts as long as its sum or the slowest worker's base batch, whichever is longer, up to the
/// micro-batches in progress.
#[test]
fn a_round_lasts_as_long_as_its_sum_or_the_slowest_base_batch() {
    for (name, scenario) in steady_clusters() {
        let run = run(&abs(1), &scenario, &points(3200, 1));

        let sum = scenario.network.latency * 6.0;
        let slowest = scenario.compute.relative.iter().copied().fold(0.0, f64::max) * BASE;
        let updates = &run.applied(0)[settled(&run)];
        let (first, last) = (updates[0].at, updates[updates.len() - 1].at);
        let lasts = (last - first).as_secs_f64() / (updates.len() - 1) as f64;
        // Worker 0 notices the end of a round at most a micro-batch late.
        let (least, late) = (sum.max(slowest), slowest / (updates.len() - 1) as f64);
        let near = (least - late..least + slowest + late).contains(&lasts);
        assert!(near, "{name}: {lasts}, not {least}");
    }
}

/// Zhou et al. 2023: longer sums make larger batches and fewer updates, not idle workers.
#[test]
fn longer_sums_lead_to_larger_batches_and_fewer_updates() {
    let paces = [1.0, 1.0, 1.0, 2.0];
    let per_second = paces.iter().map(|pace| 1.0 / pace).sum::<f64>() / SAMPLE;
    let mut updates_before = 40_000;
    for sum in [2.6, 5.2, 10.4, 20.8] {
        let scenario = with_exchange(cluster(&paces), sum * BASE);
        let run = run(&abs(1), &scenario, &points(3200, 1));

        let updates = run.applied(0);
        let settled = &updates[settled(&run)];
        let batch = settled.iter().map(|update| update.spans.len()).sum::<u64>() as f64
            / settled.len() as f64;
        // All workers compute all the time: for the duration of the sum and a micro-batch of the slowest worker.
        let (least, most) = (sum * BASE * per_second, (sum + 2.0) * BASE * per_second);
        assert!((least..most).contains(&batch), "sums of {sum} batches: {batch}");
        assert!(4 * updates.len() < 3 * updates_before, "sums of {sum} batches");
        updates_before = updates.len();
    }
}

/// Zhou et al. 2023 (derived): x_(t+1) = x_t - rate h x_(t-1) is stable up to rate h = 1, SSGD up
/// to 2.
#[test]
fn the_largest_stable_rate_is_half_that_of_ssgd() {
    let ssgd = Job { strategy: "ssgd".into(), ..pipe(1) };
    for (job, limit) in [(abs(1), 1.0), (pipe(1), 1.0), (ssgd, 2.0)] {
        let curvature = 2.0;
        let end = |part: f32| {
            let learning_rate = Some(part * limit / curvature);
            let job = Job { learning_rate, epochs: 20.0, ..job.clone() };
            let task = quadratic(vec![curvature], 0.0, 400);
            let run = run(&job, &cluster(&[1.0; 4]), &task);
            (run.simulated.result.diverged.is_some(), run.params()[0].abs())
        };

        let (below, above) = (end(0.97), end(1.03));

        assert!(!below.0 && below.1 < 1e-3, "{}: {below:?}", job.strategy);
        assert!(above.0, "{}: {above:?}", job.strategy);
    }
}
