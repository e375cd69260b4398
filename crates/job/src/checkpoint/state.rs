//! A snapshot in two halves: long vectors, and bytes of hosts, by name; and everything else as plain JSON that names them.

use std::collections::BTreeMap;
use std::sync::Arc;

use paceline_learn::{OptimizerState, Vector};
use paceline_runtime::agreed::Agreed;
use paceline_runtime::private::PrivateState;
use paceline_runtime::wire::{AnyOptimizerState, Frame, Published, SharedState};
use paceline_runtime::{Memory, Snapshot, Spans, WorkerId, WorkerSnapshot};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::files::{PARAMS, Tensors};
use crate::error::FileProblem;

/// The name of a vector; an empty one has an empty name.
type Name = String;

/// The JSON half. `None` only in a manifest that is being filled in.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct State(Option<StateParts>);

#[derive(Clone, Debug, Serialize, Deserialize)]
struct StateParts {
    /// The strategy's memory without its vectors.
    strategy: Value,
    strategy_vectors: BTreeMap<String, Name>,
    agreed: Agreed,
    members: Vec<Member>,
    center: Option<Center>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Member {
    worker: WorkerId,
    round: u64,
    version: u64,
    params: Name,
    optimizer: SavedOptimizer,
    private: PrivateState,
    private_vectors: BTreeMap<String, Name>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
enum SavedOptimizer {
    Ours {
        slots: Vec<Name>,
        steps: u64,
    },
    /// A host's; its bytes have this name.
    Theirs {
        theirs: Name,
    },
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Center {
    params: Name,
    optimizer: SavedOptimizer,
    version: u64,
    done: Spans,
}

/// Takes a snapshot apart; the first of the vectors is the deployed parameters.
pub fn divide<'a>(snapshot: &'a Snapshot, params: &'a [f32]) -> (State, Tensors<'a>) {
    let mut vectors = Vectors(vec![(PARAMS.to_owned(), Frame::Floats(params))]);
    let first = snapshot.workers.values().next().expect("a snapshot has parts");
    let Memory { json, vectors: of_strategy } = &first.shared.strategy;
    let strategy_vectors = of_strategy
        .iter()
        .map(|(name, vector)| (name.clone(), vectors.name(&format!("strategy.{name}"), vector)));
    let strategy_vectors = strategy_vectors.collect();
    let members = snapshot.workers.iter().map(|(worker, part)| vectors.member(*worker, part));
    let members = members.collect();
    let center = snapshot.center.as_ref().map(|center| Center {
        params: vectors.name("center", &center.params),
        optimizer: vectors.optimizer("center", &center.optimizer),
        version: center.version,
        done: (*center.done).clone(),
    });
    let agreed = first.shared.agreed.clone();
    let parts = StateParts { strategy: json.clone(), strategy_vectors, agreed, members, center };
    (State(Some(parts)), vectors.0)
}

struct Vectors<'a>(Tensors<'a>);

impl<'a> Vectors<'a> {
    /// The name under which this vector is saved; equal vectors are saved once.
    fn name(&mut self, name: &str, vector: &'a [f32]) -> Name {
        self.name_frame(name, Frame::Floats(vector))
    }

    fn name_frame(&mut self, name: &str, frame: Frame<'a>) -> Name {
        let is_equal = |other: &Frame<'_>| match (frame, other) {
            (Frame::Floats(one), Frame::Floats(other)) => {
                let mut pairs = one.iter().zip(*other);
                one.len() == other.len() && pairs.all(|(x, y)| x.to_bits() == y.to_bits())
            }
            (Frame::Bytes(one), Frame::Bytes(other)) => one == *other,
            _ => false,
        };
        if matches!(frame, Frame::Floats([]) | Frame::Bytes([])) {
            return Name::new();
        }
        match self.0.iter().find(|(_, other)| is_equal(other)) {
            Some((known, _)) => known.clone(),
            None => {
                self.0.push((name.to_owned(), frame));
                name.to_owned()
            }
        }
    }

    fn optimizer(&mut self, owner: &str, state: &'a AnyOptimizerState) -> SavedOptimizer {
        match state {
            AnyOptimizerState::Ours(state) => {
                let named = state.slots.iter().enumerate();
                let slots =
                    named.map(|(i, slot)| self.name(&format!("{owner}.optimizer.{i}"), slot));
                SavedOptimizer::Ours { slots: slots.collect(), steps: state.steps }
            }
            AnyOptimizerState::Theirs(bytes) => {
                let name = format!("{owner}.optimizer");
                SavedOptimizer::Theirs { theirs: self.name_frame(&name, Frame::Bytes(bytes)) }
            }
        }
    }

    fn member(&mut self, worker: WorkerId, part: &'a WorkerSnapshot) -> Member {
        let WorkerSnapshot { shared, private, .. } = part;
        let owner = format!("worker.{worker}");
        let of_private = private.vectors().into_iter();
        let private_vectors = of_private
            .map(|(name, vector)| (name.to_owned(), self.name(&format!("{owner}.{name}"), vector)));
        Member {
            worker,
            round: shared.round,
            version: shared.version,
            private_vectors: private_vectors.collect(),
            private: private.clone(),
            params: self.name(&format!("{owner}.params"), &shared.params),
            optimizer: self.optimizer(&owner, &shared.optimizer),
        }
    }
}

/// Finds what was saved by name.
#[derive(Clone, Copy)]
pub struct Find<'a> {
    pub vector: &'a dyn Fn(&str) -> Found<Vector>,
    pub bytes: &'a dyn Fn(&str) -> Found<Vec<u8>>,
}

type Found<T> = Result<Arc<T>, FileProblem>;

impl State {
    /// Puts the snapshot together again.
    pub fn join(&self, find: Find<'_>) -> Result<Snapshot, FileProblem> {
        let parts = self.0.as_ref().filter(|parts| !parts.members.is_empty());
        let parts = parts.ok_or(FileProblem::NoMembers)?;
        let found = parts
            .strategy_vectors
            .iter()
            .map(|(key, name)| Ok((key.clone(), (find.vector)(name)?)));
        let vectors = found.collect::<Result<BTreeMap<_, _>, FileProblem>>()?;
        let strategy = Memory { json: parts.strategy.clone(), vectors };
        let mut workers = BTreeMap::new();
        for member in &parts.members {
            workers.insert(member.worker, member.join(&strategy, &parts.agreed, find)?);
        }
        let center = parts.center.as_ref().map(|center| {
            Ok::<_, FileProblem>(Published {
                params: (find.vector)(&center.params)?,
                optimizer: center.optimizer.join(find)?,
                // Views are counted from the start of a run, and so are servers.
                reign: 0,
                version: center.version,
                done: Arc::new(center.done.clone()),
            })
        });
        Ok(Snapshot { workers, center: center.transpose()?, ..Snapshot::default() })
    }
}

impl Member {
    fn join(
        &self,
        strategy: &Memory,
        agreed: &Agreed,
        find: Find<'_>,
    ) -> Result<WorkerSnapshot, FileProblem> {
        let mut private = self.private.clone();
        private.fill(|name| {
            (find.vector)(self.private_vectors.get(name).map_or("", String::as_str))
        })?;
        let shared = SharedState {
            round: self.round,
            version: self.version,
            params: (find.vector)(&self.params)?,
            optimizer: self.optimizer.join(find)?,
            strategy: strategy.clone(),
            agreed: agreed.clone(),
        };
        Ok(WorkerSnapshot { number: 0, shared, private })
    }
}

impl SavedOptimizer {
    fn join(&self, find: Find<'_>) -> Result<AnyOptimizerState, FileProblem> {
        Ok(match self {
            SavedOptimizer::Ours { slots, steps } => {
                let slot = |name: &Name| (find.vector)(name).map(|slot| (*slot).clone());
                let slots: Result<Vec<Vector>, FileProblem> = slots.iter().map(slot).collect();
                let state = OptimizerState { slots: slots?, steps: *steps };
                AnyOptimizerState::Ours(Arc::new(state))
            }
            SavedOptimizer::Theirs { theirs } => AnyOptimizerState::Theirs((find.bytes)(theirs)?),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_vectors_are_saved_once_but_zeros_of_other_sign_are_not_equal() {
        let (plus, minus) = (vec![0.0_f32], vec![-0.0_f32]);
        let mut vectors = Vectors(vec![]);

        assert_eq!(vectors.name("a", &plus), "a");
        assert_eq!(vectors.name("b", &plus), "a");
        assert_eq!(vectors.name("c", &minus), "c");
        assert_eq!(vectors.name("d", &[]), "");
        assert_eq!(vectors.name_frame("e", Frame::Bytes(&[0; 4])), "e");
        assert_eq!(vectors.name_frame("f", Frame::Bytes(&[0; 4])), "e");
        assert_eq!(vectors.name_frame("g", Frame::Bytes(&[])), "");
    }
}
