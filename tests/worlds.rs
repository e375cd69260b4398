//! Small worlds: a worker is lost at every event of a short run, and a second one at events after it; and the coordinator
//! hears nobody for a while, beginning at any moment.
//!
//! `cargo test --test worlds` takes some of these worlds; `WORLDS=all cargo test --release --test worlds` takes all of them
//! and prints how many there were.

use std::sync::Arc;

use paceline::learn::{Noise, Quadratic};
use paceline::sim::checkers::{
    Custody, GradientsOnce, Learning, Liveness, ReplicasAgree, Traffic, Updates, Work,
};
use paceline::sim::scenario::{Crash, Cut, Direction, Link};
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
    connections: Connections,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Connections {
    Steady,
    /// Words and orders take different times, and what a worker said just before it died may be lost.
    Unsteady,
    /// In addition, the two workers that keep the center first are far away from the others: a worker that hears of a
    /// server's death late still gets its last answer, when the next server has read all copies of the center.
    Distant,
}

/// For how long a worker, or the coordinator, may hear nothing.
const PATIENCE: f64 = 0.01;

impl World {
    fn run(&self, crashes: Vec<Crash>, cuts: Vec<Cut>) -> Result<Simulated, String> {
        let workers = self.workers;
        let mut scenario = Scenario { workers, crashes, cuts, ..Scenario::default() };
        scenario.compute.relative = vec![1.0, 1.3, 1.7, 2.2];
        scenario.coordinator.detection = 0.002;
        if self.connections != Connections::Steady {
            scenario.coordinator.jitter = 0.004;
            scenario.coordinator.loss = 1e-9;
        }
        if self.connections == Connections::Distant {
            let far = |worker| Link { worker, bytes_per_second: 1e8, latency: 5e-3 };
            scenario.network.links = vec![far(0), far(1)];
            (scenario.coordinator.detection, scenario.coordinator.jitter) = (1e-4, 0.01);
        }
        if !scenario.cuts.is_empty() {
            scenario.coordinator.patience = PATIENCE;
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

/// The worlds visited so far, and those in which something was wrong.
#[derive(Default)]
struct Visits {
    worlds: u64,
    failures: Vec<String>,
}

impl Visits {
    fn visit(&mut self, world: &World, crashes: Vec<Crash>, cuts: Vec<Cut>) -> Option<Simulated> {
        self.worlds += 1;
        let (kind, workers, connections) =
            (world.choices.strategy, world.workers, world.connections);
        let place = format!("{kind:?} x {workers}, {connections:?}, {crashes:?} {cuts:?}");
        let ended = world.run(crashes, cuts);
        ended.map_err(|why| self.failures.push(format!("{place}: {why}"))).ok()
    }

    fn found_nothing(self) {
        let Visits { worlds, failures } = self;
        println!("{worlds} worlds");
        let shown: Vec<_> = failures.iter().take(10).collect();
        assert!(failures.is_empty(), "{} of {worlds} worlds: {shown:#?}", failures.len());
    }
}

fn takes_all() -> bool {
    std::env::var_os("WORLDS").is_some()
}

#[test]
fn a_loss_at_any_event_and_another_one_soon_after_lose_and_repeat_nothing() {
    let (all, mut visits) = (takes_all(), Visits::default());
    let mut events = |world: &World, crashes| {
        visits.visit(world, crashes, vec![]).map_or(0, |simulated| simulated.events)
    };
    for choices in kinds() {
        let mut shapes =
            vec![(3, Connections::Steady), (4, Connections::Steady), (4, Connections::Unsteady)];
        let has_center = [StrategyKind::ElasticAverage, StrategyKind::ParameterServer];
        if has_center.contains(&choices.strategy) {
            shapes.push((4, Connections::Distant));
        }
        for (workers, connections) in shapes {
            let world = World { choices: choices.clone(), workers, connections };
            let calm = events(&world, vec![]);
            let step = if all { 1 } else { 11 };
            for event in (1..=calm).step_by(step) {
                for worker in 0..workers {
                    let first = crash(worker, event);
                    let ended = events(&world, vec![first.clone()]);
                    if !event.is_multiple_of(if all { 5 } else { 33 }) {
                        continue;
                    }
                    let other = (worker + 1) % workers;
                    let later = (event..ended.min(event + 120)).step_by(if all { 1 } else { 17 });
                    for second in later {
                        events(&world, vec![first.clone(), crash(other, second)]);
                    }
                }
            }
        }
    }
    visits.found_nothing();
}

/// Nobody is lost, so that nothing may be computed in vain (which every world checks).
#[test]
fn a_coordinator_that_hears_nobody_for_a_while_costs_nothing() {
    let mut visits = Visits::default();
    let moments = if takes_all() { 200 } else { 10 };
    for choices in kinds() {
        for workers in [3, 4] {
            let connections = Connections::Steady;
            let world = World { choices: choices.clone(), workers, connections };
            let calm = visits.visit(&world, vec![], vec![]);
            let seconds = calm.map_or(0.0, |it| it.result.seconds());
            for moment in 0..moments {
                let from = seconds * f64::from(moment) / f64::from(moments);
                for (patiences, direction) in
                    [(1.5, Direction::Both), (4.0, Direction::Both), (4.0, Direction::Out)]
                {
                    let (workers, to) = ((0..workers).collect(), from + patiences * PATIENCE);
                    let cut = Cut { workers, from, to, coordinator: true, direction };
                    visits.visit(&world, vec![], vec![cut]);
                }
            }
        }
    }
    visits.found_nothing();
}
