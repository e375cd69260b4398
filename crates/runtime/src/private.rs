//! What one worker knows alone: never sent to peers, saved in snapshots.

use std::sync::Arc;
use std::time::Duration;

use paceline_learn::Vector;
use serde::{Deserialize, Serialize};

use crate::codec::Payload;
use crate::exchange::Sum;
use crate::ids::Ticket;
use crate::spans::Spans;
use crate::view::View;
use crate::wire::Tail;

/// One struct for all uses, so that no field can be forgotten in one of them. Vectors are not
/// serialised; [`vectors`](Self::vectors) lists them by name.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct PrivateState {
    /// What encoding lost of the learned part, to be sent later (error feedback).
    #[serde(skip)]
    pub residual: Arc<Vector>,
    pub pending: Option<PendingSum>,
    /// How many positions of the lane are in gradients that no result holds yet.
    pub drawn: u64,
    /// Samples, their weight if it is not their number, loss and time of this worker's gradients since the last exchange.
    pub samples: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight: Option<f64>,
    pub loss_sum: f64,
    pub compute: Duration,
    /// How many exchanges were completed, in snapshots of an older format; now all members agree on it.
    #[serde(default, skip_serializing)]
    pub exchanges: u64,
}

/// An exchange that this worker has entered and whose result it has not taken yet.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PendingSum {
    /// Which exchange of the job it is.
    pub number: u64,
    pub bytes: u64,
    /// The samples in the sum, in snapshots of an older format; now lanes hold them.
    #[serde(default, skip_serializing)]
    pub dealt: Spans,
    /// How many of the samples are this worker's own.
    pub samples: u64,
    /// When this worker entered it.
    #[serde(skip)]
    pub entered: Duration,
    /// What this worker put in, encoded once and kept unchanged until the result is here. `None` if the result
    /// came with a snapshot, or if the cluster never loses a member.
    #[serde(skip)]
    pub input: Option<Arc<Input>>,
    #[serde(with = "finished_only")]
    pub progress: Progress,
}

/// What a member puts into a sum.
#[derive(Clone, Debug)]
pub struct Input {
    pub payload: Arc<Payload>,
    pub tail: Tail,
}

#[derive(Clone, Debug)]
pub enum Progress {
    Underway {
        ticket: Ticket,
        view: Arc<View>,
    },
    /// A member of the view was lost before the result was here: the exchange is tried again in the next view.
    Closed,
    Finished(Arc<Sum>),
}

/// The name of the residual, which has no buffers.
pub const RESIDUAL: &str = "residual";
const SUM: &str = "sum";

impl PrivateState {
    /// The vectors by name.
    pub fn vectors(&self) -> Vec<(&'static str, &[f32])> {
        let mut vectors = vec![(RESIDUAL, self.residual.as_slice())];
        if let Some(PendingSum { progress: Progress::Finished(sum), .. }) = &self.pending {
            vectors.push((SUM, &sum.gradient.sum));
        }
        vectors
    }

    /// Puts the vectors back that [`vectors`](Self::vectors) lists; `find` returns them by name.
    pub fn fill<E>(&mut self, find: impl Fn(&str) -> Result<Arc<Vector>, E>) -> Result<(), E> {
        self.residual = find(RESIDUAL)?;
        if let Some(PendingSum { progress: Progress::Finished(sum), .. }) = &mut self.pending {
            let vector = Arc::unwrap_or_clone(find(SUM)?);
            *sum = Arc::new(Sum::new(sum.exchange, sum.view.clone(), vector, sum.tails.clone()));
        }
        Ok(())
    }
}

/// Only sums that have ended can be saved: a snapshot waits for them. The vector goes elsewhere, and who
/// contributed is clear from the snapshot's members.
mod finished_only {
    use serde::{Deserializer, Serializer, ser::Error};

    use super::*;

    pub fn serialize<S: Serializer>(progress: &Progress, to: S) -> Result<S::Ok, S::Error> {
        match progress {
            Progress::Finished(sum) => sum.tails.serialize(to),
            Progress::Underway { .. } | Progress::Closed => {
                Err(S::Error::custom("a sum is still under way"))
            }
        }
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Progress, D::Error> {
        let tails = Vec::<Tail>::deserialize(from)?;
        Ok(Progress::Finished(Arc::new(Sum::new(0, Arc::default(), Vector::new(), tails))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Also weights of samples; what was saved before there were any has none.
    #[test]
    fn a_finished_sum_is_saved_with_its_tails() {
        let tail = Tail { samples: 2, weight: Some(7.0), ..Tail::default() };
        let sum = Sum::new(3, Arc::default(), [1.0, 2.0].into(), vec![tail.clone(), tail]);
        let pending = PendingSum {
            number: 3,
            bytes: 0,
            dealt: Spans::new(),
            samples: 2,
            entered: Duration::ZERO,
            input: None,
            progress: Progress::Finished(Arc::new(sum)),
        };
        let weight = Some(9.0);
        let state = PrivateState { pending: Some(pending), weight, ..PrivateState::default() };

        let text = serde_json::to_string(&state).expect("it is plain data");
        let mut read: PrivateState = serde_json::from_str(&text).expect("it was just written");
        let vectors = state.vectors();
        let find = |name: &str| {
            let found = vectors.iter().find(|(other, _)| *other == name);
            found.map(|(_, vector)| Arc::new((*vector).into())).ok_or(())
        };
        read.fill(find).expect("all vectors are there");

        assert_eq!(read.weight, Some(9.0));
        let Some(Progress::Finished(sum)) = read.pending.map(|pending| pending.progress) else {
            panic!("the sum is there");
        };
        assert_eq!((sum.gradient.samples, sum.gradient.weight), (4, Some(14.0)));
        assert_eq!(sum.gradient.sum, [1.0, 2.0]);
        let old = serde_json::to_string(&PrivateState::default()).expect("it is plain data");
        assert!(!old.contains("weight"), "{old}");
    }
}
