//! Runs a job on a simulated cluster.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use paceline_learn::Vector;
use paceline_runtime::journal::Past;
use paceline_runtime::{AnyStrategy, Executor, HostLine, Reader, Turn, WorkerId, train};
use paceline_sim::{Outputs, Scenario, SimCluster, SimConfig};

use crate::error::{Error, RunError, ScenarioError};
use crate::hosts::{Hosts, check_resumed, hosted};
use crate::job::Prepared;
use crate::run::evaluator::Evaluator;
use crate::run::observer::Observer;
use crate::run::{Deployed, Next, Request, Running, Watch};
use crate::run_result::RunResult;

/// The result of a simulated run, and the parameters it ended with.
pub struct Simulated {
    pub result: RunResult,
    /// The center, or the mean of the replicas.
    pub params: Option<Arc<Vector>>,
    /// The replica of each member at the end.
    pub replicas: BTreeMap<WorkerId, Arc<Vector>>,
    pub center: Option<Arc<Vector>>,
    /// All bytes that crossed the simulated network.
    pub bytes_on_wires: u64,
    /// How many events the simulation had.
    pub events: u64,
}

/// Options of [`simulate`].
pub struct SimulateOptions<'a> {
    /// Threads that compute gradients. The result does not depend on them, only the time it takes.
    pub threads: usize,
    /// When it is set, the simulation is broken off.
    pub stop: Arc<AtomicBool>,
    /// They get every line of the journal.
    pub readers: Vec<&'a mut dyn Reader>,
}

impl Default for SimulateOptions<'_> {
    fn default() -> Self {
        SimulateOptions { threads: 1, stop: Arc::default(), readers: vec![] }
    }
}

/// Simulates the job.
pub fn simulate(
    prepared: &Prepared,
    scenario: &Scenario,
    options: SimulateOptions<'_>,
) -> Result<Simulated, Error> {
    run(prepared, scenario, options, None)
}

/// Simulates the job with replicas that hosts hold. `host` runs on a thread of its own for each worker that starts, and answers
/// what the worker asks until its line ends. Virtual time stands still while a worker waits for its host.
pub fn simulate_hosted(
    prepared: &Prepared,
    scenario: &Scenario,
    options: SimulateOptions<'_>,
    host: impl Fn(HostLine) + Send + Sync + 'static,
) -> Result<Simulated, Error> {
    let hosts = Hosts::new(host);
    let simulated = run(&hosted(prepared), scenario, options, Some(&hosts));
    hosts.join()?;
    simulated
}

fn run(
    prepared: &Prepared,
    scenario: &Scenario,
    options: SimulateOptions<'_>,
    hosts: Option<&Hosts>,
) -> Result<Simulated, Error> {
    let SimulateOptions { threads, stop, readers } = options;
    scenario.check().map_err(ScenarioError::from)?;
    check_resumed(prepared)?;
    let resumed = prepared.plan.resumed.as_ref();
    let coordination = prepared.strategy().coordination();
    let mut cluster = SimCluster::new(
        scenario.clone(),
        SimConfig {
            seed: prepared.plan.seed,
            compute: prepared.compute(),
            threads,
            samples_total: prepared.plan.samples_total,
            samples_per_epoch: prepared.plan.samples_per_epoch,
            coordination,
            done: resumed.map(|snapshot| snapshot.done.clone()).unwrap_or_default(),
        },
    );
    if let Some(hosts) = hosts.cloned() {
        cluster = cluster.with_hosts(Box::new(move |line| hosts.start(line)));
    }
    let (shelves, wires, events) = (cluster.shelves(), cluster.bytes_on_wires(), cluster.events());
    let mut prepared = prepared.clone();
    prepared.plan.members_min = scenario.coordinator.members_min.unwrap_or(1) as usize;
    // Virtual time begins anew: it cannot continue the time of a run on threads.
    prepared.past = Past::default();
    let prepared = &prepared;
    let evaluator = Evaluator::inline(prepared.task.clone(), threads.max(1));
    let observer = Observer::new(prepared, (coordination, evaluator), readers);
    let mut run = SimRun::new(prepared, cluster);
    let mut watch =
        Watch { observer, writer: None, save_requests: None, requests: None, stopped: false };
    watch.until_ended(&mut run, &stop)?;
    let stopped = stop.load(Ordering::Relaxed);
    // Workers behind a cut may live on for a while; the job ends when the coordinator says so.
    let end = watch.observer.totals.over.unwrap_or_else(|| run.executor.now());
    let members = &watch.observer.totals.members;
    let shelves = shelves.lock().expect("no holder panics");
    let deployed = Deployed::new(&shelves, members, coordination);
    let params = deployed.params();
    let mut result = watch.observer.conclude(prepared, stopped, &stop, params.clone());
    result.virtual_seconds = Some(end.as_secs_f64());
    result.stopped = stopped && result.samples < prepared.plan.samples_total;
    let Deployed { replicas, center } = deployed;
    Ok(Simulated {
        result,
        params,
        replicas,
        center,
        bytes_on_wires: wires.get(),
        events: events.get(),
    })
}

/// A run in virtual time: it happens while it is watched.
struct SimRun {
    /// Workers start with copies of one strategy, so that what they agree on is one value while it is equal.
    strategy: Box<dyn AnyStrategy>,
    plan: Arc<paceline_runtime::Plan>,
    executor: Executor,
    outputs: Outputs,
    is_over: bool,
}

impl SimRun {
    fn new(prepared: &Prepared, cluster: SimCluster) -> SimRun {
        let outputs = cluster.outputs();
        let executor = Executor::new(Box::new(cluster));
        SimRun {
            strategy: prepared.strategy(),
            plan: Arc::new(prepared.plan.clone()),
            executor,
            outputs,
            is_over: false,
        }
    }
}

impl Running for SimRun {
    fn next(&mut self) -> Result<Next, RunError> {
        loop {
            if let Some(output) = self.outputs.borrow_mut().pop_front() {
                return Ok(Next::Output(output));
            }
            if self.is_over {
                return Ok(Next::Ended);
            }
            let (plan, strategy) = (&self.plan, &self.strategy);
            let mut start = |port| -> std::pin::Pin<Box<dyn Future<Output = ()>>> {
                Box::pin(train(plan.clone(), port, strategy.copy()))
            };
            let turn = self.executor.turn(&mut start).map_err(RunError::Stuck)?;
            self.is_over = turn == Turn::Over;
        }
    }

    /// A simulated run need not end in good order: it is simply broken off.
    fn stop(&mut self) {
        self.is_over = true;
        self.outputs.borrow_mut().clear();
    }

    fn save(&mut self) {}

    fn put_out(&mut self, _: Request) -> Result<(), String> {
        Err("the members of a simulated run are those of its scenario".to_owned())
    }
}
