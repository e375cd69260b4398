//! Runs a job on a simulated cluster.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use paceline_learn::Vector;
use paceline_runtime::{Coordination, Executor, Halt, Reader, train};
use paceline_sim::{Scenario, SimCluster, SimConfig};

use crate::error::{Error, RunError, ScenarioError};
use crate::evaluator::Evaluator;
use crate::job::Prepared;
use crate::observe::Observer;
use crate::run_result::RunResult;

/// A run's outcome, and the parameters it ended with.
pub struct Simulated {
    pub result: RunResult,
    pub params: Option<Arc<Vector>>,
    /// Everything that crossed the simulated wires.
    pub bytes_on_wires: u64,
}

/// Simulates the job. The result does not depend on `threads`, only the time it takes does.
pub fn simulate(
    prepared: &Prepared,
    scenario: &Scenario,
    threads: usize,
    readers: Vec<&mut dyn Reader>,
) -> Result<Simulated, Error> {
    scenario.check().map_err(ScenarioError::invalid)?;
    let (plan, coordination) =
        (Arc::new(prepared.plan.clone()), prepared.strategy().coordination());
    let cluster = SimCluster::new(
        scenario.clone(),
        SimConfig {
            seed: plan.seed,
            compute: prepared.compute(),
            threads,
            samples_total: plan.samples_total,
            samples_per_epoch: plan.samples_per_epoch,
            center_applies: coordination == Coordination::Centered { applies_samples: true },
        },
    );
    let (shelves, wires) = (cluster.shelves(), cluster.bytes_on_wires());
    let judge = Evaluator::on_the_spot(prepared.task.clone(), threads.max(1));
    let mut observer = Observer::new(prepared, (coordination, judge), shelves, readers);
    let mut executor = Executor::new(Box::new(cluster));
    let ended = executor
        .run(&mut |port| Box::pin(train(plan.clone(), port, prepared.strategy())), &mut |line| {
            observer.observe(line)
        });
    match ended {
        Ok(()) | Err(Halt::BrokenOff) => {}
        Err(Halt::Stuck(stuck)) => return Err(RunError::Stuck(stuck).into()),
    }
    // Workers behind a cut may live on for a while; the job ends when the coordinator says so.
    let seconds = observer.account.over.unwrap_or_else(|| executor.now()).as_secs_f64();
    let (mut result, params) = observer.conclude(prepared, false, &AtomicBool::new(false));
    result.virtual_seconds = Some(seconds);
    Ok(Simulated { result, params, bytes_on_wires: wires.get() })
}
