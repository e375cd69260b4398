//! What programs of the user's own need besides a worker: the job that they join, what they begin with, where they are connected.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use paceline_coordinator::{ClientError, Coordinators, Invitation, Proof, Speaker};
use paceline_identity::Token;
use paceline_learn::Vector;
use paceline_net::processes::frame::Limits;
use paceline_net::processes::message::JobText;
use paceline_runtime::WorkerId;

use crate::config::Job;
use crate::error::{Error, RunError};

/// The name of the file that holds the parameters with which a job of users' own programs begins: those of its first worker.
const INITIAL: &str = "initial";
/// The first worker is waited for.
const WAIT: Duration = Duration::from_secs(30);
const AGAIN: Duration = Duration::from_millis(20);

/// The addresses of a worker's connections: its own, its peers' and its coordinator's. A process that is forked from the worker
/// closes these connections; else they would stay open when the worker dies.
#[derive(Clone, Debug, Default)]
pub struct Addresses(Arc<Mutex<BTreeSet<SocketAddr>>>);

impl Addresses {
    pub fn all(&self) -> Vec<SocketAddr> {
        self.0.lock().expect("no holder panics").iter().copied().collect()
    }

    pub(super) fn add(&self, addresses: impl IntoIterator<Item = SocketAddr>) {
        self.0.lock().expect("no holder panics").extend(addresses);
    }
}

/// The job of a coordinator, as somebody sees it who may join.
pub fn described(coordinator: &str, token: &Token, insecure: bool) -> Result<Job, Error> {
    let (proof, version) = (Proof::Token(token.clone()), env!("CARGO_PKG_VERSION"));
    let coordinators = Coordinators::new(coordinator.split(',').map(str::to_owned));
    let invitation = Invitation::new(&coordinators, proof, version, insecure);
    let failed = |error: ClientError| RunError::Join { why: error.to_string() };
    let described = invitation.look(WAIT).map_err(failed)?;
    let unreadable = |error: serde_json::Error| RunError::JobUnreadable { why: error.to_string() };
    let text: JobText = serde_json::from_str(&described.text).map_err(unreadable)?;
    Ok(serde_json::from_str(&text.json).map_err(unreadable)?)
}

/// The parameters of the job's first worker. Users' own programs may begin with others, and from the same seed processors of
/// different kinds compute different ones.
pub(super) fn common_initial(
    speaker: &Speaker,
    who: WorkerId,
    mine: &Vector,
    limits: Limits,
) -> Result<Vector, RunError> {
    let failed = |why: String| RunError::Join { why: format!("the initial parameters: {why}") };
    let since = Instant::now();
    let again = |error: ClientError| {
        // The coordinator learns how large a file may be from the first worker, a moment after it has joined.
        std::thread::sleep(AGAIN);
        if since.elapsed() < WAIT { Ok(()) } else { Err(failed(error.to_string())) }
    };
    if who == WorkerId(0) {
        let numbers: Vec<u8> = mine.iter().flat_map(|x| x.to_le_bytes()).collect();
        let bytes = bytes::Bytes::from(numbers);
        while let Err(error) = speaker.store(INITIAL, bytes.clone()) {
            again(error)?;
        }
        return Ok(mine.clone());
    }
    loop {
        match speaker.fetch(INITIAL, limits.body) {
            Ok(bytes) if bytes.len() == size_of_val(mine.as_slice()) => {
                let (numbers, _) = bytes.as_chunks();
                return Ok(numbers.iter().map(|x| f32::from_le_bytes(*x)).collect());
            }
            Ok(_) => return Err(failed("they have another length".to_owned())),
            Err(error) => again(error)?,
        }
    }
}
