//! The state of an optimizer, as newcomers adopt it and snapshots hold it.

use std::sync::Arc;

use paceline_learn::{OptimizerState, Vector};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The state of one of our optimizers, or of one that a host keeps.
#[derive(Clone, Debug, PartialEq)]
pub enum AnyOptimizerState {
    Ours(Arc<OptimizerState>),
    /// Bytes that only hosts understand; none: the state of an optimizer that has made no step.
    Theirs(Arc<Vec<u8>>),
}

impl Default for AnyOptimizerState {
    fn default() -> AnyOptimizerState {
        AnyOptimizerState::Ours(Arc::default())
    }
}

impl AnyOptimizerState {
    pub fn ours(&self) -> Option<&Arc<OptimizerState>> {
        match self {
            AnyOptimizerState::Ours(state) => Some(state),
            AnyOptimizerState::Theirs(_) => None,
        }
    }

    /// The vectors of our own optimizers.
    pub fn slots(&self) -> &[Vector] {
        self.ours().map_or(&[], |state| &state.slots)
    }

    /// Size on the wire.
    pub(super) fn bytes(&self) -> u64 {
        match self {
            AnyOptimizerState::Ours(state) => {
                state.slots.iter().map(|slot| 4 * slot.len() as u64).sum()
            }
            AnyOptimizerState::Theirs(bytes) => bytes.len() as u64,
        }
    }

    /// Puts the vectors back that travelled as frames.
    pub(super) fn fill(&mut self, slots: Vec<Vector>) {
        if let AnyOptimizerState::Ours(state) = self {
            Arc::make_mut(state).slots = slots;
        }
    }
}

/// Of our own optimizers only the number of steps: the vectors go elsewhere.
impl Serialize for AnyOptimizerState {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self {
            AnyOptimizerState::Ours(state) => to.serialize_u64(state.steps),
            AnyOptimizerState::Theirs(bytes) => bytes.serialize(to),
        }
    }
}

impl<'de> Deserialize<'de> for AnyOptimizerState {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<AnyOptimizerState, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Written {
            Steps(u64),
            Bytes(Vec<u8>),
        }
        Ok(match Written::deserialize(from)? {
            Written::Steps(steps) => {
                let state = OptimizerState { steps, ..OptimizerState::default() };
                AnyOptimizerState::Ours(Arc::new(state))
            }
            Written::Bytes(bytes) => AnyOptimizerState::Theirs(Arc::new(bytes)),
        })
    }
}
