//! What comes in at the coordinator's port, and how it answers.

use std::net::SocketAddr;
use std::path::PathBuf;

use bytes::Bytes;
use paceline_identity::{Request, Token};
use paceline_runtime::WorkerId;
use paceline_runtime::coordination::Input;
use tokio::sync::{mpsc, oneshot};
use tonic::Status;

use crate::messages::{Admitted, Answer, Described, Down, FileHead, Join, Said, encode};

/// What comes in. The receiver of a message with a reply answers it, or drops it, which closes the connection.
pub enum Incoming {
    /// Somebody asks what the job is, or whether it might join.
    Look {
        token: Option<Token>,
        known: Option<WorkerId>,
        version: String,
        request: Request,
        reply: Reply<Described>,
    },
    /// Somebody asks to join, can be reached, and had been told that it might.
    Join {
        token: Option<Token>,
        known: Option<WorkerId>,
        join: Join,
        reply: Reply<Admitted>,
    },
    /// A worker has opened a session; what it is told goes into the lane. An older session of it is over.
    Connected {
        from: WorkerId,
        session: u64,
        received: u64,
        lane: Lane,
    },
    Said {
        from: WorkerId,
        session: u64,
        number: u64,
        said: Said,
    },
    Obeyed {
        from: WorkerId,
        session: u64,
        number: u64,
    },
    Beat {
        from: WorkerId,
        session: u64,
    },
    Renew {
        from: WorkerId,
        session: u64,
        request: Request,
    },
    Broken {
        from: WorkerId,
        session: u64,
    },
    /// A file of this worker is on the disk, under its name.
    Stored {
        from: WorkerId,
        path: PathBuf,
        head: FileHead,
        reply: Reply<()>,
    },
    /// A connection was refused.
    Turned {
        from: SocketAddr,
        why: String,
    },
    /// From the process that runs the coordinator.
    Input(Input),
}

pub type Reply<T> = oneshot::Sender<Answer<T>>;

/// Carries messages to one worker.
#[derive(Clone)]
pub struct Lane(pub(crate) mpsc::UnboundedSender<Result<Bytes, Status>>);

impl Lane {
    pub(crate) fn new() -> (Lane, mpsc::UnboundedReceiver<Result<Bytes, Status>>) {
        let (sender, receiver) = mpsc::unbounded_channel();
        (Lane(sender), receiver)
    }

    /// A message to a session that has ended is lost: its worker gets it again in the next one.
    pub fn send(&self, message: &Down) {
        let _ = self.0.send(Ok(encode(message)));
    }
}

/// Messages that wait for the coordinator; when it is slow, connections wait.
const QUEUE: usize = 1024;

pub fn queue() -> (mpsc::Sender<Incoming>, mpsc::Receiver<Incoming>) {
    mpsc::channel(QUEUE)
}
