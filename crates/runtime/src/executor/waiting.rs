//! What tasks wait for, and how a wait can end without its answer.

use std::fmt;

use crate::ids::WorkerId;

/// Why a wait ended before its answer came. It is not an error: the run continues.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Interrupt {
    #[error("a member of the view was lost")]
    ViewChanged,
    #[error("the peer that was to answer is no longer a member")]
    PeerLost,
    #[error("the job is over, or goes on without this worker")]
    Over,
}

/// What a task waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wanted {
    Gradient,
    Host,
    Exchange { view: u64, number: u64 },
    SharedState { from: WorkerId },
    Result { from: WorkerId },
    Go { view: u64 },
    Letter { from: Option<WorkerId> },
    Value { from: WorkerId },
    Lease,
    View,
    End,
}

impl fmt::Display for Wanted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Wanted::Gradient => write!(f, "its gradient"),
            Wanted::Host => write!(f, "its host"),
            Wanted::Exchange { view, number } => {
                write!(f, "the others in exchange {number}, in view {view}")
            }
            Wanted::Result { from } => write!(f, "a result that worker {from} has"),
            Wanted::Go { view } => write!(f, "the coordinator's word that view {view} is in force"),
            Wanted::SharedState { from } => write!(f, "the replica of worker {from}"),
            Wanted::Letter { from: Some(from) } => write!(f, "a message from worker {from}"),
            Wanted::Letter { from: None } => write!(f, "any message"),
            Wanted::Value { from } => write!(f, "a value published by worker {from}"),
            Wanted::Lease => write!(f, "samples"),
            Wanted::View => write!(f, "a view with it as a member"),
            Wanted::End => write!(f, "the end of the job"),
        }
    }
}

/// Nothing can happen any more, but tasks are still waiting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stuck {
    pub waiting: Vec<(WorkerId, Wanted)>,
}

/// How many waiting workers the message names.
const SHOWN: usize = 6;

impl fmt::Display for Stuck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "nothing can happen any more: ")?;
        for (i, (who, wanted)) in self.waiting.iter().take(SHOWN).enumerate() {
            let comma = if i == 0 { "" } else { "; " };
            write!(f, "{comma}worker {who} waits for {wanted}")?;
        }
        if self.waiting.len() > SHOWN {
            write!(f, "; and {} more wait", self.waiting.len() - SHOWN)?;
        }
        if self.waiting.is_empty() {
            write!(f, "no worker is left")?;
        }
        Ok(())
    }
}

impl std::error::Error for Stuck {}
