//! What programs of the user's own need besides a worker: the job that they join, what they begin with, where they are connected.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use paceline_coordinator::{ClientError, Coordinators, INITIAL, Invitation, Proof, Speaker};
use paceline_identity::Token;
use paceline_learn::Vector;
use paceline_net::processes::frame::Limits;
use paceline_net::processes::message::JobText;
use paceline_runtime::WorkerId;

use crate::config::Job;
use crate::error::{Error, RunError};

use super::version;

const WAIT: Duration = Duration::from_secs(30);
/// The first worker offers its parameters at once, the next one after this time, if there are none yet, and so on, up to the longest.
const OFFERS_AFTER: Duration = Duration::from_secs(5);
const OFFERS_AFTER_MAX: Duration = Duration::from_secs(30);
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
    let proof = Proof::Token(token.clone());
    let coordinators = Coordinators::new(coordinator.split(',').map(str::to_owned));
    let invitation = Invitation::new(&coordinators, proof, &version(), insecure);
    let failed = |error: ClientError| RunError::Join { why: error.to_string() };
    let described = invitation.look(WAIT).map_err(failed)?;
    let unreadable = |error: serde_json::Error| RunError::JobUnreadable { why: error.to_string() };
    let text: JobText = serde_json::from_str(&described.text).map_err(unreadable)?;
    Ok(serde_json::from_str(&text.json).map_err(unreadable)?)
}

/// The parameters of the job's first worker, or of another one if that died before it could offer them. Users' own programs may begin
/// with others, and from the same seed processors of different kinds compute different ones.
pub(super) fn common_initial(
    speaker: &Speaker,
    who: WorkerId,
    mine: &Vector,
    limits: Limits,
) -> Result<Vector, RunError> {
    let failed = |why: String| RunError::Join { why: format!("the initial parameters: {why}") };
    let since = Instant::now();
    let offers_after = OFFERS_AFTER.saturating_mul(who.0).min(OFFERS_AFTER_MAX);
    let mut until = since + offers_after + WAIT;
    let mut is_offered = false;
    loop {
        let error = if !is_offered && since.elapsed() >= offers_after {
            let numbers: Vec<u8> = mine.iter().flat_map(|x| x.to_le_bytes()).collect();
            match speaker.store(INITIAL, numbers.into()) {
                Ok(()) => {
                    (is_offered, until) = (true, Instant::now() + WAIT);
                    continue;
                }
                // The coordinator learns how large a file may be from the first worker, a moment after it has joined.
                Err(error) => error,
            }
        } else {
            // Also by a worker that has offered its own: another one's may have been there first.
            match speaker.fetch(INITIAL, limits.body) {
                Ok(bytes) if bytes.len() == size_of_val(mine.as_slice()) => {
                    let (numbers, _) = bytes.as_chunks();
                    return Ok(numbers.iter().map(|x| f32::from_le_bytes(*x)).collect());
                }
                Ok(_) => return Err(failed("they have another length".to_owned())),
                Err(error) => error,
            }
        };
        if Instant::now() >= until {
            return Err(failed(error.to_string()));
        }
        std::thread::sleep(AGAIN);
    }
}
