//! A snapshot in two halves: long vectors by name, and all the rest as plain JSON that names them.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use paceline_learn::{OptimizerState, Vector};
use paceline_runtime::cluster::{Published, SharedState, Sum, Tail};
use paceline_runtime::snapshot::{FinishedSum, PrivateState};
use paceline_runtime::{Snapshot, Spans, WorkerId, WorkerSnapshot};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::files::{PARAMS, Tensors};
use crate::error::FileProblem;

/// The name of a vector; an empty one has an empty name.
type Name = String;

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct State {
    /// The strategy's memory, and what the members agree on besides.
    memory: Value,
    members: Vec<Member>,
    center: Option<Center>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Member {
    worker: WorkerId,
    round: u64,
    version: u64,
    params: Name,
    optimizer: Slots,
    residual: Name,
    summed: Option<Exchange>,
    drawn: u64,
    dealt: Spans,
    samples: u64,
    loss_sum: f64,
    compute: Duration,
    exchanges: u64,
    lane_batch: u64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Slots {
    slots: Vec<Name>,
    steps: u64,
}

/// A sum that was under way.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Exchange {
    vector: Name,
    tails: Vec<Tail>,
    number: u64,
    bytes: u64,
    dealt: Spans,
    samples: u64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Center {
    params: Name,
    optimizer: Slots,
    version: u64,
    done: Spans,
}

/// Takes a snapshot apart; the first of the vectors is what the job is judged by.
pub fn divide<'a>(snapshot: &'a Snapshot, params: &'a [f32]) -> (State, Tensors<'a>) {
    let mut vectors = Vectors(vec![(PARAMS.to_owned(), Cow::Borrowed(params))]);
    let memory =
        snapshot.portions.values().next().map_or(&[][..], |portion| &portion.shared.memory);
    let mut memory: Value = serde_json::from_slice(memory).unwrap_or_default();
    vectors.lift(&mut memory, "memory");
    let members =
        snapshot.portions.iter().map(|(worker, portion)| vectors.member(*worker, portion));
    let members = members.collect();
    let center = snapshot.center.as_ref().map(|center| Center {
        params: vectors.name("center", &center.params),
        optimizer: vectors.slots("center", &center.optimizer),
        version: center.version,
        done: (*center.done).clone(),
    });
    (State { memory, members, center }, vectors.0)
}

struct Vectors<'a>(Tensors<'a>);

impl<'a> Vectors<'a> {
    /// The name under which this vector is kept; one that is there already is not kept twice.
    fn name(&mut self, name: &str, vector: &'a [f32]) -> Name {
        let is_equal = |other: &[f32]| {
            let mut pairs = other.iter().zip(vector);
            other.len() == vector.len() && pairs.all(|(x, y)| x.to_bits() == y.to_bits())
        };
        if vector.is_empty() {
            return Name::new();
        }
        match self.0.iter().find(|(_, other)| is_equal(other)) {
            Some((known, _)) => known.clone(),
            None => {
                self.0.push((name.to_owned(), Cow::Borrowed(vector)));
                name.to_owned()
            }
        }
    }

    fn slots(&mut self, owner: &str, state: &'a OptimizerState) -> Slots {
        let named = state.slots.iter().enumerate();
        let slots = named.map(|(i, slot)| self.name(&format!("{owner}.optimizer.{i}"), slot));
        Slots { slots: slots.collect(), steps: state.steps }
    }

    fn member(&mut self, worker: WorkerId, portion: &'a WorkerSnapshot) -> Member {
        let WorkerSnapshot { shared, own, .. } = portion;
        let owner = format!("worker.{worker}");
        Member {
            worker,
            round: shared.round,
            version: shared.version,
            params: self.name(&format!("{owner}.params"), &shared.params),
            optimizer: self.slots(&owner, &shared.optimizer),
            residual: self.name(&format!("{owner}.residual"), &own.residual),
            summed: own.summed.as_ref().map(|summed| Exchange {
                vector: self.name(&format!("{owner}.sum"), &summed.sum.gradient.sum),
                tails: summed.sum.tails.clone(),
                number: summed.number,
                bytes: summed.bytes,
                dealt: summed.dealt.clone(),
                samples: summed.samples,
            }),
            drawn: own.drawn,
            dealt: own.dealt.clone(),
            samples: own.samples,
            loss_sum: own.loss_sum,
            compute: own.compute,
            exchanges: own.exchanges,
            lane_batch: own.lane_batch,
        }
    }

    /// Puts a name in place of every long list of floats, so that JSON stays short.
    fn lift(&mut self, value: &mut Value, path: &str) {
        if let Some(vector) = floats(value) {
            self.0.push((path.to_owned(), Cow::Owned(vector)));
            *value = serde_json::json!({ TENSOR: path });
            return;
        }
        match value {
            Value::Object(fields) => fields
                .iter_mut()
                .for_each(|(name, field)| self.lift(field, &format!("{path}.{name}"))),
            Value::Array(items) => items
                .iter_mut()
                .enumerate()
                .for_each(|(i, item)| self.lift(item, &format!("{path}.{i}"))),
            _ => {}
        }
    }
}

/// The field that stands for a long list.
const TENSOR: &str = "$tensor";
/// Shorter lists stay where they are.
const LONG: usize = 64;

/// A long list of numbers that are 32-bit floats, exactly.
fn floats(value: &Value) -> Option<Vector> {
    let items = value.as_array().filter(|items| items.len() >= LONG)?;
    let float = |item: &Value| {
        let number = item.as_f64().filter(|_| item.is_f64())?;
        (f64::from(number as f32).to_bits() == number.to_bits()).then_some(number as f32)
    };
    items.iter().map(float).collect()
}

/// Takes vectors by name.
pub type Find<'a> = &'a dyn Fn(&str) -> Result<Arc<Vector>, FileProblem>;

impl State {
    /// Puts the snapshot together again.
    pub fn join(&self, find: Find<'_>) -> Result<Snapshot, FileProblem> {
        let mut memory = self.memory.clone();
        lower(&mut memory, find)?;
        let memory = serde_json::to_vec(&memory)?;
        let mut portions = BTreeMap::new();
        for member in &self.members {
            portions.insert(member.worker, member.join(memory.clone(), find)?);
        }
        if portions.is_empty() {
            return Err(FileProblem::NoMembers);
        }
        let center = self.center.as_ref().map(|center| {
            Ok::<_, FileProblem>(Published {
                params: find(&center.params)?,
                optimizer: center.optimizer.join(find)?,
                version: center.version,
                done: Arc::new(center.done.clone()),
            })
        });
        Ok(Snapshot { portions, center: center.transpose()?, ..Snapshot::default() })
    }
}

impl Member {
    fn join(&self, memory: Vec<u8>, find: Find<'_>) -> Result<WorkerSnapshot, FileProblem> {
        let summed = self.summed.as_ref().map(|exchange| {
            Ok::<_, FileProblem>(FinishedSum {
                sum: Arc::new(Sum::new((*find(&exchange.vector)?).clone(), exchange.tails.clone())),
                number: exchange.number,
                bytes: exchange.bytes,
                dealt: exchange.dealt.clone(),
                samples: exchange.samples,
            })
        });
        let own = PrivateState {
            residual: find(&self.residual)?,
            summed: summed.transpose()?,
            drawn: self.drawn,
            dealt: self.dealt.clone(),
            samples: self.samples,
            loss_sum: self.loss_sum,
            compute: self.compute,
            exchanges: self.exchanges,
            lane_batch: self.lane_batch,
        };
        let shared = SharedState {
            round: self.round,
            version: self.version,
            params: find(&self.params)?,
            optimizer: self.optimizer.join(find)?,
            memory,
        };
        Ok(WorkerSnapshot { snapshot: 0, done: None, shared, own })
    }
}

impl Slots {
    fn join(&self, find: Find<'_>) -> Result<Arc<OptimizerState>, FileProblem> {
        let slot = |name: &Name| find(name).map(|slot| (*slot).clone());
        let slots: Result<Vec<Vector>, FileProblem> = self.slots.iter().map(slot).collect();
        Ok(Arc::new(OptimizerState { slots: slots?, steps: self.steps }))
    }
}

/// The reverse of [`Vectors::lift`].
fn lower(value: &mut Value, find: Find<'_>) -> Result<(), FileProblem> {
    if let Some(name) = value.get(TENSOR).and_then(Value::as_str) {
        *value = find(name)?.iter().map(|x| Value::from(*x)).collect();
        return Ok(());
    }
    match value {
        Value::Object(fields) => fields.values_mut().try_for_each(|field| lower(field, find)),
        Value::Array(items) => items.iter_mut().try_for_each(|item| lower(item, find)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_lists_of_floats_leave_the_json_and_come_back_bit_for_bit() {
        let floats: Vec<f32> = (0..100).map(|i| (i as f32 - 50.0) * 0.1).collect();
        let memory = serde_json::json!({
            "momentum": floats, "counts": vec![3_u64; 100], "few": [0.5, 1.5], "pi": 3.25
        });
        let mut lifted = memory.clone();
        let mut vectors = Vectors(vec![]);

        vectors.lift(&mut lifted, "memory");

        assert_eq!(vectors.0.len(), 1);
        assert_eq!(lifted["momentum"][TENSOR], "memory.momentum");
        let found = |_: &str| Ok(Arc::new(vectors.0[0].1.to_vec()));
        lower(&mut lifted, &found).expect("the name is known");
        assert_eq!(lifted, memory);
    }

    #[test]
    fn equal_vectors_are_kept_once_but_zeros_of_other_sign_are_not_equal() {
        let (plus, minus) = (vec![0.0_f32], vec![-0.0_f32]);
        let mut vectors = Vectors(vec![]);

        assert_eq!(vectors.name("a", &plus), "a");
        assert_eq!(vectors.name("b", &plus), "a");
        assert_eq!(vectors.name("c", &minus), "c");
        assert_eq!(vectors.name("d", &[]), "");
    }
}
