//! The state of an optimizer, as newcomers adopt it and snapshots hold it.

use std::sync::Arc;

use paceline_learn::{OptimizerState, Vector};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::{Frame, FrameError, ReceivedFrame};

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

    /// The vectors of one of our optimizers, or the bytes of a host's.
    pub(super) fn frames(&self) -> Vec<Frame<'_>> {
        match self {
            AnyOptimizerState::Ours(state) => {
                state.slots.iter().map(|slot| Frame::Floats(slot)).collect()
            }
            AnyOptimizerState::Theirs(bytes) => vec![Frame::Bytes(bytes)],
        }
    }

    /// Puts back what travelled as frames.
    pub(super) fn fill(&mut self, mut frames: Vec<ReceivedFrame>) -> Result<(), FrameError> {
        match self {
            AnyOptimizerState::Ours(state) => {
                Arc::make_mut(state).slots = ReceivedFrame::vectors(frames)?;
            }
            AnyOptimizerState::Theirs(place) => {
                let received = frames.len();
                let Some(ReceivedFrame::Bytes(bytes)) = frames.pop().filter(|_| received == 1)
                else {
                    return Err(FrameError { expected: 1, received });
                };
                *place = Arc::new(bytes);
            }
        }
        Ok(())
    }
}

/// Of our own optimizers only the number of steps, of others nothing: vectors and bytes go elsewhere.
impl Serialize for AnyOptimizerState {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        self.ours().map(|state| state.steps).serialize(to)
    }
}

impl<'de> Deserialize<'de> for AnyOptimizerState {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<AnyOptimizerState, D::Error> {
        Ok(match Option::<u64>::deserialize(from)? {
            Some(steps) => {
                let state = OptimizerState { steps, ..OptimizerState::default() };
                AnyOptimizerState::Ours(Arc::new(state))
            }
            None => AnyOptimizerState::Theirs(Arc::default()),
        })
    }
}
