//! A host with parameters, an optimizer and data of its own, which counts what it computes.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use paceline::learn::OptimizerState;
use paceline::runtime::Spans;
use paceline::runtime::edge::{Answer, Ask, Workspace};
use paceline::runtime::journal::fingerprint;
use paceline::{HostLine, Prepared, Vector, WorkerId};

/// What all hosts of a run have done.
#[derive(Default)]
pub struct Seen {
    /// The workers that computed each position, in order.
    pub computed: BTreeMap<u64, Vec<WorkerId>>,
    /// The replica that each host held in the end.
    pub replicas: BTreeMap<WorkerId, u64>,
    pub exports: u64,
    /// How often what `peek` had shown was asked for next, and how often it was not.
    pub foreseen: (u64, u64),
}

/// Says how long a worker takes for this many samples; it may sleep.
pub type Took = fn(WorkerId, u64) -> Duration;

pub fn at_once(_: WorkerId, _: u64) -> Duration {
    Duration::from_micros(100)
}

/// A host with parameters, an optimizer and data of its own. Its parameters are not the job's until it is given them.
pub fn host(prepared: &Prepared, seen: &Arc<Mutex<Seen>>, took: Took) -> impl Fn(HostLine) + use<> {
    let (plan, compute) = (prepared.plan.clone(), prepared.task.compute(prepared.plan.seed));
    let seen = seen.clone();
    move |mut line: HostLine| {
        let who = line.worker;
        let (mut params, mut state) = (Arc::new(Vector::new()), OptimizerState::default());
        let (mut workspace, mut ahead) = (Workspace::default(), Spans::new());
        while let Some(ask) = line.next() {
            if ahead.is_empty() && !matches!(ask, Ask::Compute { .. }) {
                // Leases become known while the host computes.
                ahead = line.peek(2);
            }
            match ask {
                Ask::Compute { spans, .. } => {
                    let gradient = compute(&params, &spans, &mut workspace);
                    let mut seen = seen.lock().expect("no host panics");
                    for at in spans.positions() {
                        seen.computed.entry(at).or_default().push(who);
                    }
                    if !ahead.is_empty() {
                        let is_next = ahead.positions().zip(spans.positions()).all(|(a, b)| a == b);
                        seen.foreseen.0 += u64::from(is_next);
                        seen.foreseen.1 += u64::from(!is_next);
                    }
                    drop(seen);
                    ahead = line.peek(2);
                    line.computed(gradient, took(who, spans.len()));
                }
                Ask::Apply { along, rate, .. } => {
                    let params = Arc::make_mut(&mut params);
                    let gradient = along.gradient();
                    plan.optimizer.descend(params, &mut state, gradient, rate, &plan.layout);
                    line.done(Answer::Done);
                }
                Ask::Export => {
                    seen.lock().expect("no host panics").exports += 1;
                    line.done(Answer::Params(params.clone()));
                }
                Ask::Load { params: given, optimizer } => {
                    params = given;
                    if let Some(bytes) = optimizer {
                        state = unpack(&bytes, plan.layout.params);
                    }
                    line.done(Answer::Done);
                }
                Ask::Keep => line.done(Answer::Optimizer(Arc::new(pack(&state)))),
            }
        }
        seen.lock().expect("no host panics").replicas.insert(who, fingerprint(&params));
    }
}

/// The momentum of SGD does not depend on the number of steps.
fn pack(state: &OptimizerState) -> Vec<u8> {
    state.slots.iter().flatten().flat_map(|x| x.to_le_bytes()).collect()
}

fn unpack(bytes: &[u8], len: usize) -> OptimizerState {
    let numbers = bytes.as_chunks().0.iter().map(|x| f32::from_le_bytes(*x));
    let slots = numbers.collect::<Vector>().chunks(len).map(Vector::from).collect();
    OptimizerState { slots, ..OptimizerState::default() }
}
