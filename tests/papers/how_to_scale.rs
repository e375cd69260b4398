//! How to scale distributed deep learning? (Jin et al. 2016): gossip, elastic averaging and a
//! parameter server compared with all-reduce.

use std::sync::Arc;
use std::time::Duration;

use paceline::learn::{OptimizerState, Rule};
use paceline::runtime::Spans;
use paceline::runtime::codec::Codec;
use paceline::strategies::parts::{Outer, Period};
use paceline::{
    Choices, Job, Optimizer, Prepared, Record, Scenario, StrategyKind, Task, Vector, recipes,
};

use crate::probe::{PEER, Start};
use crate::trial::{Run, SAMPLE, cluster, distance, job, mean, points, quadratic, run, run_probed};

/// A task without gradients, so that only exchanges move the replicas.
fn still(members: u64, rounds: u64) -> Task {
    quadratic(vec![0.0; DIMENSIONS], 0.0, members * rounds)
}

const DIMENSIONS: usize = 4;

/// Each worker computes one sample per step, and all step at the same time.
fn in_step(strategy: &str, seed: u64) -> Job {
    Job { batch: Some(1), epochs: 1.0, seed, ..job(strategy) }
}

fn equal(members: u64) -> Scenario {
    cluster(&vec![1.0; members as usize])
}

/// All workers' replicas at the start and after each of `rounds` rounds.
fn replicas(run: &Run, rounds: u64) -> Vec<Vec<Vector>> {
    let by_worker: Vec<_> = run.workers().map(|who| run.replicas(who)).collect();
    (0..=rounds as usize).map(|t| by_worker.iter().map(|x| x[t].clone()).collect()).collect()
}

fn center_of(replicas: &[Vector]) -> Vec<f64> {
    let n = replicas.len() as f64;
    (0..replicas[0].len())
        .map(|d| replicas.iter().map(|x| f64::from(x[d])).sum::<f64>() / n)
        .collect()
}

fn squared(x: &[f64], y: &[f64]) -> f64 {
    x.iter().zip(y).map(|(x, y)| (x - y) * (x - y)).sum()
}

/// The mean over replicas of |x - mean|^2.
fn variance(replicas: &[Vector]) -> f64 {
    let center = center_of(replicas);
    let each = replicas.iter().map(|x| {
        let x: Vec<f64> = x.iter().map(|x| f64::from(*x)).collect();
        squared(&x, &center)
    });
    each.sum::<f64>() / replicas.len() as f64
}

/// How an exchange changes scattered replicas: the ratio of the variance to that before, and the squared move of the
/// mean relative to the variance before; for each round of many seeds.
fn contraction(strategy: &str, members: u64, rounds: u64, seeds: u64) -> [Vec<f64>; 2] {
    contraction_on(&equal(members), strategy, rounds, seeds)
}

fn contraction_on(cluster: &Scenario, strategy: &str, rounds: u64, seeds: u64) -> [Vec<f64>; 2] {
    let members = u64::from(cluster.workers);
    let [mut shrinks, mut drifts] = [vec![], vec![]];
    for seed in 0..seeds {
        let (job, task) = (in_step(strategy, seed), still(members, rounds));
        let run = run_probed(&job, cluster, &task, Start::Scattered);
        for pair in replicas(&run, rounds).windows(2) {
            let (before, after) = (variance(&pair[0]), variance(&pair[1]));
            shrinks.push(after / before);
            drifts.push(squared(&center_of(&pair[0]), &center_of(&pair[1])) / before);
        }
    }
    [shrinks, drifts]
}

/// Asserts the mean within four standard errors plus `digits`.
fn assert_mean(values: &[f64], expected: f64, digits: f64, about: &str) {
    let (mean, error) = mean(values);
    let tolerance = 4.0 * error + digits;
    assert!((mean - expected).abs() < tolerance, "{about}: {mean} +- {error}, not {expected}");
}

/// Jin et al. 2016, pull-gossip, where a worker may draw itself (derived): for any replicas,
/// E V' = V (1/2 - 1/4p) and E |mean' - mean|^2 = V / 4p.
#[test]
fn pull_gossip_contracts_as_derived_and_moves_the_mean() {
    for (members, seeds) in [(8, 200), (16, 100), (64, 25)] {
        let [shrinks, drifts] = contraction("gossip-pull", members, 8, seeds);

        let p = members as f64;
        let about = format!("{members} members");
        assert_mean(&shrinks, 0.5 - 0.25 / p, 0.0, &about);
        assert_mean(&drifts, 0.25 / p, 0.0, &about);
    }
}

/// Jin et al. 2016, push-gossip (derived): V shrinks to 0.60, 0.61 and 0.62 of itself with 8, 16
/// and 64 members, with the limit 1 - 1/e; more slowly than with pull. A letter is read in the round after it was sent,
/// so the first round only sends, and the second is one whole exchange.
#[test]
fn push_gossip_contracts_more_slowly_than_pull_and_moves_the_mean() {
    for (members, seeds, expected) in [(8, 1500, 0.60), (16, 700, 0.61), (64, 150, 0.62)] {
        let [shrinks, drifts] = contraction("gossip-push", members, 2, seeds);

        let of_round = |values: &[f64], round: usize| -> Vec<f64> {
            values.iter().skip(round).step_by(2).copied().collect()
        };
        assert!(of_round(&shrinks, 0).iter().all(|shrink| *shrink == 1.0));
        let about = format!("{members} members");
        assert_mean(&of_round(&shrinks, 1), expected, 0.01, &about);
        let (drift, error) = mean(&of_round(&drifts, 1));
        assert!(drift > 8.0 * error, "{about}: the mean moves by {drift} +- {error}");
    }
}

/// The figures above hold for pulls without latency, and for the first exchange of pushes. With latency, a worker pulls
/// replicas that are older than its own; letters are always older by a round, and from the second exchange on they hold
/// what their receivers had sent before. `cargo test --test papers latency -- --nocapture` prints the figures.
#[test]
fn with_latency_and_in_later_rounds_gossip_contracts_more_slowly() {
    for (strategy, in_lockstep) in [("gossip-pull", 0.5 - 0.25 / 16.0), ("gossip-push", 0.61)] {
        for latency in [0.0, 0.1, 0.5] {
            let mut cluster = equal(16);
            cluster.network.latency = latency * SAMPLE;
            let [shrinks, _] = contraction_on(&cluster, strategy, 8, 100);

            let later: Vec<f64> = shrinks.chunks(8).flat_map(|run| &run[4..]).copied().collect();
            let (mean, error) = mean(&later);
            println!("{strategy}, latency {latency} of a step: {mean:.2} +- {error:.3}");
            let is_slower = mean > in_lockstep + 0.02;
            let is_expected = latency > 0.0 || strategy == "gossip-push";
            assert_eq!(is_slower, is_expected, "{strategy}, {latency}: {mean} +- {error}");
        }
    }
}

/// Jin et al. 2016, push-gossip: x <- (s x + sum of received) / (s + number received), where s is 2 for a worker that drew
/// itself and 1 otherwise. If all step together, letters arrive a round after they were sent.
#[test]
fn push_gossip_averages_the_letters_it_received() {
    let (members, rounds) = (8, 20);
    for seed in 0..5 {
        let (job, task) = (in_step("gossip-push", seed), still(members, rounds));
        let run = run_probed(&job, &equal(members), &task, Start::Scattered);

        let peers: Vec<_> = run.workers().map(|who| run.notes(who, PEER)).collect();
        let replicas = replicas(&run, rounds);
        for (t, who) in (1..rounds as usize).flat_map(|t| (0..8).map(move |who| (t, who))) {
            let senders = (0..8).filter(|from| *from != who && peers[*from][t - 1] == who as f64);
            let (own, mut sum) = (if peers[who][t] == who as f64 { 2.0 } else { 1.0 }, [0.0; 4]);
            let count = senders.clone().count() as f32;
            for from in senders {
                sum.iter_mut().zip(&replicas[t - 1][from]).for_each(|(sum, x)| *sum += x);
            }
            let mixed =
                replicas[t][who].iter().zip(sum).map(|(x, sum)| (own * x + sum) / (own + count));
            let error = distance(&replicas[t + 1][who], &mixed.collect::<Vec<f32>>());
            assert!(error < 1e-6, "seed {seed}, round {t}, worker {who}: {error}");
        }
    }
}

/// The params after training serially with the job's optimizer.
fn serial(prepared: &Prepared, batch: u64) -> Vector {
    let (plan, compute) = (&prepared.plan, prepared.task.compute(prepared.plan.seed));
    let (mut params, mut state) = (plan.initial.clone(), OptimizerState::default());
    for from in (0..plan.samples_total).step_by(batch as usize) {
        let spans = Spans::one(from, plan.samples_total.min(from + batch));
        let gradient = compute(&params, &spans, &mut Default::default());
        let rate = plan.schedule.rate(from, plan.samples_total);
        let into = Arc::make_mut(&mut params);
        plan.optimizer.descend(into, &mut state, &gradient, rate, &plan.layout);
    }
    (*params).clone()
}

fn heavy_ball() -> Option<Optimizer> {
    let rule = Rule::Sgd { momentum: 0.9, nesterov: false, weight_decay: 1e-4 };
    Some(Optimizer { rule, clip_norm: None })
}

/// Jin et al. 2016: with one worker all methods are SGD, except elastic averaging, whose center still pulls. Bit for bit,
/// for every recipe without delay, lossy codec and outer step; periodic averaging only up to rounding, because it weighs
/// a last round that is cut short.
#[test]
fn one_worker_alone_does_serial_sgd() {
    for recipe in recipes() {
        let choices = recipe.choices().expect("built-in recipes are made of choices").clone();
        let late = choices.strategy == StrategyKind::Delayed;
        if late || choices.codec != Codec::Dense || choices.outer != Outer::None {
            continue;
        }
        let optimizer = heavy_ball();
        let job = Job { epochs: 4.0, optimizer, learning_rate: Some(0.02), ..job(&recipe.name) };
        let run = run(&job, &cluster(&[1.0]), &points(250, 1));

        let serial = serial(&run.prepared, run.prepared.batch);
        let error = distance(run.params(), &serial);
        match choices.strategy {
            StrategyKind::ElasticAverage => assert!(error > 1e-3, "{}: {error}", recipe.name),
            StrategyKind::PeriodicAverage => assert!(error < 1e-6, "{}: {error}", recipe.name),
            _ => assert_eq!(*run.params(), serial, "{}", recipe.name),
        }
    }
}

/// Jin et al. 2016: p workers with batch b are one with batch p b, up to the order of additions.
#[test]
fn all_reduce_of_many_is_serial_sgd_with_a_larger_batch() {
    for members in [2, 4, 8] {
        let job =
            Job { epochs: 4.0, optimizer: heavy_ball(), learning_rate: Some(0.02), ..job("ssgd") };
        let run = run(&job, &equal(members), &points(250, 1));

        let serial = serial(&run.prepared, members * run.prepared.batch);
        let error = distance(run.params(), &serial);
        assert!(error < 1e-5, "{members} members: {error}");
    }
}

/// The exchanges of elastic averaging without gradients, in order: worker, replica before, replica after.
fn exchanges(run: &Run, rounds: u64) -> Vec<(usize, f32, f32)> {
    let by_worker: Vec<_> = run.workers().map(|who| run.replicas(who)).collect();
    let mut made = vec![0; by_worker.len()];
    let ends = run.collect(|_, record| match record {
        Record::Waited { who, .. } => Some(who.0 as usize),
        _ => None,
    });
    assert_eq!(ends.len() as u64, rounds * by_worker.len() as u64);
    let in_order = ends.into_iter().map(|who| {
        made[who] += 1;
        (who, by_worker[who][made[who] - 1][0], by_worker[who][made[who]][0])
    });
    in_order.collect()
}

/// Jin et al. 2016, elastic averaging: replica and center move by beta / p towards each other's old value, so their sum
/// stays, and their distance shrinks by the factor 1 - 2 beta / p.
#[test]
fn an_elastic_exchange_keeps_the_sum_and_shrinks_the_distance() {
    for (members, rounds) in [(1, 12), (2, 12), (4, 12), (16, 6)] {
        for seed in 0..5 {
            let (job, task) = (in_step("easgd", seed), still(members, rounds));
            let run = run_probed(&job, &equal(members), &task, Start::Scattered);

            let pull = 0.8 / members as f64;
            let mut center = 1.0;
            for (who, before, after) in exchanges(&run, rounds) {
                let (before, after) = (f64::from(before), f64::from(after));
                let center_after = center + before - after;
                let (apart, apart_after) = (before - center, after - center_after);
                let error = apart_after - (1.0 - 2.0 * pull) * apart;
                assert!(
                    error.abs() < 1e-5,
                    "seed {seed}, {members} members, worker {who}: {error}"
                );
                center = center_after;
            }
            // The center computed from the sums is the real center.
            let error = f64::from(run.params()[0]) - center;
            assert!(error.abs() < 1e-5, "seed {seed}, {members} members: {error}");
        }
    }
}

/// Jin et al. 2016, elastic averaging: without gradients, replicas and center converge to the mean of their initial
/// values, because their sum stays.
#[test]
fn elastic_averaging_without_gradients_converges_to_a_common_point() {
    let (members, rounds) = (4, 80);
    for seed in 0..5 {
        let (job, task) = (in_step("easgd", seed), still(members, rounds));
        let run = run_probed(&job, &equal(members), &task, Start::Scattered);

        let replicas = replicas(&run, rounds);
        let start = center_of(&replicas[0]);
        let common: Vector = start
            .iter()
            .map(|x| ((x * members as f64 + 1.0) / (members + 1) as f64) as f32)
            .collect();
        for x in replicas[rounds as usize].iter().chain([run.params()]) {
            assert!(distance(x, &common) < 1e-5, "seed {seed}: {x:?}, not {common:?}");
        }
    }
}

/// The times at which a worker's first rounds ended.
fn first_rounds(run: &Run, worker: u32) -> Vec<Duration> {
    run.committed(worker)[..50].to_vec()
}

/// Jin et al. 2016: gossip reads the newest replica that a peer has published, so a stalled peer delays no other worker;
/// all-reduce waits for it.
#[test]
fn a_stalled_peer_delays_all_reduce_but_not_gossip() {
    let even = cluster(&[1.0; 4]);
    let stalled = cluster(&[1.0, 1.0, 1.0, 50.0]);
    for (strategy, slower) in [("gossip-pull", 1.0), ("gossip-push", 1.0), ("ssgd", 50.0)] {
        for seed in 0..3 {
            let run_on = |scenario: &Scenario| {
                let mut scenario = scenario.clone();
                scenario.network.latency = if strategy == "ssgd" { 0.0 } else { 0.1 * SAMPLE };
                run(&in_step(strategy, seed), &scenario, &points(400, seed))
            };
            let (even, stalled) = (run_on(&even), run_on(&stalled));

            for worker in 0..3 {
                let expected = first_rounds(&even, worker).into_iter().map(|at| at.mul_f64(slower));
                let measured = first_rounds(&stalled, worker);
                let same = expected.eq(measured.iter().copied());
                assert!(same, "{strategy}, seed {seed}, worker {worker}: {measured:?}");
            }
        }
    }
}

/// The sender and the receiver of each letter, except letters to oneself.
fn letters(run: &Run) -> Vec<(u32, u32)> {
    run.collect(|_, record| match record {
        Record::Sent { who, to, .. } if who != to => Some((who.0, to.0)),
        _ => None,
    })
}

fn every(kind: StrategyKind, period: u64) -> Job {
    let choices = Choices { period: Period::Constant { steps: period }, ..Choices::of(kind) };
    Job { choices: Some(choices), ..in_step("ssgd", 1) }
}

/// Jin et al. 2016: with a period of tau there is an exchange in every tau-th step. A worker that draws itself sends
/// nothing.
#[test]
fn the_number_of_messages_is_steps_over_period() {
    let (members, steps) = (4, 48);
    let task = points((members * steps) as usize, 1);
    for period in [1, 2, 3, 8, 16] {
        for kind in [StrategyKind::GossipPull, StrategyKind::GossipPush] {
            let run = run_probed(&every(kind, period), &equal(members), &task, Start::Together);

            let exchanges = (steps / period) as usize;
            let mut expected = 0;
            for worker in run.workers() {
                // A round without samples makes no exchange.
                let drawn = &run.notes(worker, PEER)[..exchanges];
                expected += drawn.iter().filter(|peer| **peer != f64::from(worker)).count();
                let steps_made = run.applied(worker).len();
                assert_eq!(steps_made as u64, steps, "{kind:?}, period {period}");
            }
            assert_eq!(letters(&run).len(), expected, "{kind:?}, period {period}");
        }
        let run = run_probed(
            &every(StrategyKind::ElasticAverage, period),
            &equal(members),
            &task,
            Start::Together,
        );
        assert_eq!(exchanges(&run, steps / period).len() as u64, members * steps / period);
    }
}

/// Jin et al. 2016: with a period longer than the job, every worker trains alone.
#[test]
fn with_a_period_longer_than_the_job_workers_train_independently() {
    for kind in [StrategyKind::GossipPull, StrategyKind::GossipPush, StrategyKind::ElasticAverage] {
        let run = run_probed(&every(kind, 1000), &equal(4), &points(400, 1), Start::Together);

        // A worker without samples tells the server so, but exchanges nothing.
        assert_eq!(exchanges(&run, 0).len(), 0, "{kind:?}");
        assert!(kind == StrategyKind::ElasticAverage || letters(&run).is_empty(), "{kind:?}");
        for worker in run.workers() {
            let mut x = (*run.prepared.plan.initial).clone();
            for update in run.applied(worker) {
                let gradient = run.mean_gradient(&x, &update.spans);
                let step = |(x, g): (&mut f32, &f64)| *x -= update.rate * *g as f32;
                x.iter_mut().zip(&gradient).for_each(step);
            }
            let end = run.replicas(worker).pop().expect("replicas were noted");
            assert!(distance(&x, &end) < 1e-5, "{kind:?}, worker {worker}");
        }
    }
}

/// The mean variance of replicas with noisy gradients, in the second half of the run.
fn spread(strategy: &str, members: u64, rate: f32) -> f64 {
    let rounds = 300;
    let task = quadratic(vec![0.01; DIMENSIONS], 1.0, members * rounds);
    let job = Job { learning_rate: Some(rate), ..in_step(strategy, 1) };
    let run = run_probed(&job, &equal(members), &task, Start::Together);
    let replicas = replicas(&run, rounds);
    let later = &replicas[rounds as usize / 2..];
    later.iter().map(|replicas| variance(replicas)).sum::<f64>() / later.len() as f64
}

/// Jin et al. 2016 (derived): the elastic force beta / p weakens with p, so the variance of elastic replicas grows with p;
/// that of gossip does not. Both grow with the square of the step size.
#[test]
fn the_variance_grows_with_members_for_elastic_averaging_but_not_for_gossip() {
    for (strategy, by_members) in [("easgd", 2.5..6.0), ("gossip-pull", 0.8..1.25)] {
        let [few, many] = [16, 64].map(|members| spread(strategy, members, 0.1));
        let small = spread(strategy, 16, 0.01);

        assert!(by_members.contains(&(many / few)), "{strategy}: {few} -> {many}");
        assert!((60.0..160.0).contains(&(few / small)), "{strategy}: {few} -> {small}");
    }
}
