//! Small worlds: a worker is lost at every event of a short run, and a second one at events after it.
//!
//! `cargo test --test worlds` takes some of these worlds; `WORLDS=all cargo test --release --test worlds` takes all of them
//! and prints how many there were.

use std::sync::Arc;

use paceline::learn::{Noise, Quadratic};
use paceline::sim::checkers::{
    Custody, GradientsOnce, Learning, Liveness, ReplicasAgree, Traffic, Updates, Work,
};
use paceline::sim::scenario::Crash;
use paceline::strategies::parts::{Period, Shares};
use paceline::{
    Choices, Job, Optimizer, PrepareOptions, Scenario, Shape, SimulateOptions, Simulated,
    StrategyKind, Task, simulate,
};

const SAMPLES: u64 = 36;
const CURVATURE: f32 = 0.5;

/// A strategy of every kind.
fn kinds() -> Vec<Choices> {
    let averaging = |period| Choices { period, ..Choices::of(StrategyKind::PeriodicAverage) };
    let mut kinds: Vec<Choices> = StrategyKind::ALL.into_iter().map(Choices::of).collect();
    kinds.push(Choices { shares: Shares::Open, ..Choices::of(StrategyKind::Delayed) });
    kinds.push(averaging(Period::adaptive(2)));
    kinds.push(averaging(Period::Constant { steps: 2 }));
    kinds.retain(|choices| choices.check().is_ok());
    kinds
}

struct World {
    choices: Choices,
    workers: u32,
    /// Words and orders take different times, and what a worker said just before it died may be lost.
    is_unsteady: bool,
}

impl World {
    fn run(&self, crashes: Vec<Crash>) -> Result<Simulated, String> {
        let workers = self.workers;
        let mut scenario = Scenario { workers, crashes, ..Scenario::default() };
        scenario.compute.relative = vec![1.0, 1.3, 1.7, 2.2];
        scenario.coordinator.detection = 0.002;
        if self.is_unsteady {
            scenario.coordinator.jitter = 0.004;
            scenario.coordinator.loss = 1e-9;
        }
        let model = Arc::new(Quadratic { curvature: vec![CURVATURE; 4], noise: 0.0 });
        let (train, test) = (Arc::new(Noise { len: SAMPLES }), Arc::new(Noise { len: 1 }));
        let job = Job {
            choices: Some(self.choices.clone()),
            epochs: 1.0,
            batch: Some(2),
            learning_rate: Some(0.1),
            schedule: Shape::Constant,
            optimizer: Some(Optimizer::sgd(0.0)),
            ..Job::default()
        };
        let options = PrepareOptions {
            task: Some(Task { model, train, validation: None, test }),
            ..PrepareOptions::new(workers)
        };
        let mut prepared = job.prepare_with(options).map_err(|error| error.to_string())?;
        prepared.plan.fingerprints = true;
        let (mut agree, mut custody, mut traffic) =
            (ReplicasAgree::default(), Custody::default(), Traffic::default());
        let mut once = GradientsOnce::default();
        let work = Work { gradients: 4, samples: SAMPLES, bytes: 1000, unanswered: SAMPLES };
        let mut liveness = Liveness::new(&scenario, work);
        let mut learning = Learning::new(self.updates(), f64::from(CURVATURE));
        let options = SimulateOptions {
            readers: vec![
                &mut agree,
                &mut custody,
                &mut traffic,
                &mut once,
                &mut liveness,
                &mut learning,
            ],
            ..SimulateOptions::default()
        };
        let lost = scenario.crashes.len() as u64;
        let simulated = simulate(&prepared, &scenario, options).map_err(|it| it.to_string())?;
        let (result, ledger) = (&simulated.result, simulated.result.ledger);
        if (ledger.done, ledger.lost, ledger.repeated) != (SAMPLES, 0, 0) {
            return Err(format!("{ledger:?}"));
        }
        let violations =
            [&agree.violations, &custody.violations, &once.violations, &liveness.violations];
        if let Some(violation) = violations.into_iter().flatten().next() {
            return Err(violation.clone());
        }
        let (low, high) = learning.expected().into_inner();
        let replicas = simulated.replicas.values();
        let x = match self.choices.strategy {
            // The center knows only what workers had learned before their last exchange.
            StrategyKind::ElasticAverage => {
                replicas.clone().map(|it| f64::from(it[0])).sum::<f64>() / replicas.len() as f64
            }
            _ => simulated.params.as_ref().map_or(f64::NAN, |params| f64::from(params[0])),
        };
        // A server that dies after the last worker has finished takes the center with it.
        let has_center = simulated.center.is_some();
        let is_known = self.choices.strategy != StrategyKind::ParameterServer || has_center;
        if is_known && !(low - 1e-4..=high + 1e-4).contains(&x) {
            return Err(format!("the parameters are {x} of the initial ones, not {low} to {high}"));
        }
        if traffic.bytes != simulated.bytes_on_wires {
            return Err(format!("{} of {} bytes", traffic.bytes, simulated.bytes_on_wires));
        }
        // Only what died is computed again: at most two rounds of two steps, and what the center had not passed on.
        let most = lost * if self.is_synchronous() { 12 } else { SAMPLES };
        if result.samples_wasted > most && !self.choices_are_open() {
            return Err(format!("{} samples computed in vain", result.samples_wasted));
        }
        Ok(simulated)
    }

    fn updates(&self) -> Updates {
        match self.choices.strategy {
            StrategyKind::PeriodicAverage => Updates::Averages,
            StrategyKind::AllReduce | StrategyKind::Delayed | StrategyKind::ParameterServer => {
                Updates::Gradients
            }
            _ => Updates::OneReplica,
        }
    }

    fn is_synchronous(&self) -> bool {
        matches!(
            self.choices.strategy,
            StrategyKind::AllReduce | StrategyKind::Delayed | StrategyKind::PeriodicAverage
        )
    }

    fn choices_are_open(&self) -> bool {
        self.choices.shares == Shares::Open
    }
}

fn crash(worker: u32, event: u64) -> Crash {
    Crash { worker, at: 0.0, at_event: Some(event), back_after: None }
}

#[test]
fn a_loss_at_any_event_and_another_one_soon_after_lose_and_repeat_nothing() {
    let all = std::env::var_os("WORLDS").is_some();
    let (mut worlds, mut failures) = (0u64, vec![]);
    let mut visit = |world: &World, crashes: Vec<Crash>| {
        worlds += 1;
        let unsteady = if world.is_unsteady { " unsteady" } else { "" };
        let kind = world.choices.strategy;
        let place = format!("{kind:?} x {}{unsteady}, {crashes:?}", world.workers);
        let ended = world.run(crashes);
        if let Err(why) = &ended {
            failures.push(format!("{place}: {why}"));
        }
        ended.map(|simulated| simulated.events).unwrap_or(0)
    };
    for choices in kinds() {
        for (workers, is_unsteady) in [(3, false), (4, false), (4, true)] {
            let world = World { choices: choices.clone(), workers, is_unsteady };
            let events = visit(&world, vec![]);
            let step = if all { 1 } else { 11 };
            for event in (1..=events).step_by(step) {
                for worker in 0..workers {
                    let first = crash(worker, event);
                    let ended = visit(&world, vec![first.clone()]);
                    if !event.is_multiple_of(if all { 5 } else { 33 }) {
                        continue;
                    }
                    let other = (worker + 1) % workers;
                    let later = (event..ended.min(event + 120)).step_by(if all { 1 } else { 17 });
                    for second in later {
                        visit(&world, vec![first.clone(), crash(other, second)]);
                    }
                }
            }
        }
    }
    println!("{worlds} worlds");
    let shown: Vec<_> = failures.iter().take(10).collect();
    assert!(failures.is_empty(), "{} of {worlds} worlds: {shown:#?}", failures.len());
}
