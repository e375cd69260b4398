//! What the user asks of single workers while a run lasts.

use std::sync::mpsc::Receiver;

use paceline_runtime::WorkerId;
use paceline_runtime::coordination::Input;

/// A wish about one worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// Count it as lost. It may join again, under a new id.
    PutOut(WorkerId),
    /// Put it out for good.
    Ban(WorkerId),
}

/// Called with what became of a request, in one sentence. It is dropped if the run ends first.
pub type Answer = Box<dyn FnOnce(Result<String, String>) + Send>;

pub type Requests = Receiver<(Request, Answer)>;

impl Request {
    pub fn worker(self) -> WorkerId {
        match self {
            Request::PutOut(who) | Request::Ban(who) => who,
        }
    }

    /// What the coordinator is told.
    pub(crate) fn input(self) -> Input {
        match self {
            Request::PutOut(who) => Input::PutOut(who),
            Request::Ban(who) => Input::Ban(who),
        }
    }

    pub(crate) fn is_ban(self) -> bool {
        matches!(self, Request::Ban(_))
    }
}
