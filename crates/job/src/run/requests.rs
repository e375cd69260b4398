//! What the user asks of a run, or of single workers, while it lasts.

use std::sync::mpsc::Receiver;

use paceline_runtime::WorkerId;
use paceline_runtime::coordination::Input;

/// A wish.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// Save a checkpoint.
    Save,
    /// Count it as lost. It may join again, under a new id.
    PutOut(WorkerId),
    /// Put it out for good.
    Ban(WorkerId),
}

/// Called with what became of a request, in one sentence. It is dropped if the run ends first.
pub type Answer = Box<dyn FnOnce(Result<String, String>) + Send>;

pub type Requests = Receiver<(Request, Answer)>;

impl Request {
    /// Whom it is about.
    pub fn worker(self) -> Option<WorkerId> {
        match self {
            Request::Save => None,
            Request::PutOut(who) | Request::Ban(who) => Some(who),
        }
    }

    /// What the coordinator is told.
    pub(crate) fn input(self) -> Input {
        match self {
            Request::Save => Input::Save,
            Request::PutOut(who) => Input::PutOut(who),
            Request::Ban(who) => Input::Ban(who),
        }
    }

    pub(crate) fn is_ban(self) -> bool {
        matches!(self, Request::Ban(_))
    }
}
