//! What one worker knows alone: never sent to peers, taken back when a round is undone, saved in snapshots.

use std::sync::Arc;
use std::time::Duration;

use paceline_learn::Vector;
use serde::{Deserialize, Serialize};

use crate::exchange::Sum;
use crate::ids::Ticket;
use crate::spans::Spans;
use crate::view::View;
use crate::wire::Tail;

/// One struct for all three uses, so that no field can be forgotten in one of them. Vectors are not
/// serialised; [`vectors`](Self::vectors) lists them by name.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct PrivateState {
    /// What encoding lost, to be sent later (error feedback).
    #[serde(skip)]
    pub residual: Arc<Vector>,
    pub pending: Option<PendingSum>,
    /// How many positions of the lane are in gradients that are not applied yet.
    pub drawn: u64,
    /// What was dealt to all members since the last exchange.
    pub dealt: Spans,
    /// Samples, loss and time of this worker's gradients since the last exchange.
    pub samples: u64,
    pub loss_sum: f64,
    pub compute: Duration,
    /// How many exchanges this view has seen; the dice of lossy exchanges are keyed by it.
    pub exchanges: u64,
}

/// A sum that was started and whose result has not been used yet.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PendingSum {
    /// Which exchange of the view it is.
    pub number: u64,
    pub bytes: u64,
    /// The samples in the sum, where all members know them beforehand; with lanes the counts tell.
    pub dealt: Spans,
    /// How many of them are this worker's own.
    pub samples: u64,
    /// When this worker entered it.
    #[serde(skip)]
    pub entered: Duration,
    #[serde(with = "finished_only")]
    pub progress: Progress,
}

#[derive(Clone, Debug)]
pub enum Progress {
    Underway {
        ticket: Ticket,
        view: Arc<View>,
    },
    /// The result came with a snapshot.
    Finished(Arc<Sum>),
}

const RESIDUAL: &str = "residual";
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
            *sum = Arc::new(Sum::new(vector, sum.tails.clone()));
        }
        Ok(())
    }
}

/// Only sums that have ended can be saved: a snapshot waits for them. The vector goes elsewhere.
mod finished_only {
    use serde::{Deserializer, Serializer, ser::Error};

    use super::*;

    pub fn serialize<S: Serializer>(progress: &Progress, to: S) -> Result<S::Ok, S::Error> {
        match progress {
            Progress::Finished(sum) => sum.tails.serialize(to),
            Progress::Underway { .. } => Err(S::Error::custom("a sum is still under way")),
        }
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Progress, D::Error> {
        let tails = Vec::<Tail>::deserialize(from)?;
        Ok(Progress::Finished(Arc::new(Sum::new(Vector::new(), tails))))
    }
}
