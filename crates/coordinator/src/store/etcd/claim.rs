//! A coordinator's claim to a job: a lease in etcd, which a thread keeps alive, and with it the key `active`.
//!
//! Who makes the key holds the job as long as the lease lasts. Every later write compares the revision at which it was made, so that it
//! matters to no write what a coordinator believes about its lease.

use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::servers::Servers;
use super::wire::{self, Compare};
use super::{EtcdError, Keys, read_all};

/// What the key `active` says of its maker.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Active {
    pub address: String,
    lease: i64,
}

pub(super) struct Claim {
    lease: i64,
    address: String,
    shared: Arc<Mutex<Shared>>,
    /// Dropped to stop the thread.
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    /// The revision of `active`, if this claim made it.
    revision: Option<i64>,
    /// Why the claim has ended.
    lost: Option<Lost>,
    coordinators: Vec<String>,
}

#[derive(Clone)]
enum Lost {
    Expired,
    Superseded(String),
}

impl Lost {
    fn error(self) -> EtcdError {
        match self {
            Lost::Expired => EtcdError::Expired,
            Lost::Superseded(by) => EtcdError::Superseded { by },
        }
    }
}

const LEASE_MIN: Duration = Duration::from_secs(2);

impl Claim {
    /// Gets a lease, and makes this coordinator known to the others.
    pub fn make(
        servers: &mut Servers,
        own: Servers,
        keys: &Keys,
        (address, lasts): (&str, Duration),
        until: Instant,
        waits: &mut dyn FnMut(&EtcdError),
    ) -> Result<Claim, EtcdError> {
        let ttl = lasts.max(LEASE_MIN).as_secs_f64().ceil() as i64;
        let question = wire::LeaseGrantRequest { ttl };
        let granted: wire::LeaseGrantResponse =
            servers.insist(wire::LEASE_GRANT, &question, until, &mut *waits)?;
        let lease = granted.id;
        let known = wire::put(&keys.coordinator(lease), address.as_bytes(), lease);
        let known = wire::TxnRequest { success: vec![known], ..Default::default() };
        let _: wire::TxnResponse = servers.insist(wire::TXN, &known, until, waits)?;
        let coordinators = vec![address.to_owned()];
        let shared = Arc::new(Mutex::new(Shared { coordinators, ..Shared::default() }));
        let (stop, stopped) = channel::<()>();
        let every = Duration::from_secs(granted.ttl.max(1) as u64) / 3;
        let mut keeper = Keeper {
            servers: own,
            keys: keys.clone(),
            lease,
            address: address.to_owned(),
            shared: shared.clone(),
        };
        let keep = move || {
            while keeper.keep() && stopped.recv_timeout(every) == Err(RecvTimeoutError::Timeout) {}
        };
        let thread = std::thread::Builder::new().name("etcd lease".to_owned()).spawn(keep);
        let thread = Some(thread.map_err(|error| EtcdError::System(error.to_string()))?);
        Ok(Claim { lease, address: address.to_owned(), shared, stop: Some(stop), thread })
    }

    /// Makes the key `active`, if there is none: its revision, or who has made it.
    pub fn try_take(
        &self,
        servers: &mut Servers,
        keys: &Keys,
    ) -> Result<Result<i64, Active>, EtcdError> {
        let mine = Active { address: self.address.clone(), lease: self.lease };
        // Looked at first, because that writes nothing.
        if let Some((revision, active)) = read_active(servers, keys)? {
            // An answer may have been lost.
            return Ok(if active == mine { Ok(revision) } else { Err(active) });
        }
        let value = serde_json::to_vec(&mine).expect("plain data");
        let take = wire::TxnRequest {
            compare: vec![Compare::created_at(&keys.active(), 0)],
            success: vec![wire::put(&keys.active(), &value, self.lease)],
            failure: vec![wire::get(&keys.active())],
        };
        let taken: wire::TxnResponse = servers.ask(wire::TXN, &take)?;
        if taken.succeeded {
            return Ok(Ok(taken.header.map_or(0, |header| header.revision)));
        }
        let other = active_of(&taken).map(|(_, active)| active);
        Ok(Err(other.unwrap_or(Active { address: "an unknown address".to_owned(), lease: 0 })))
    }

    /// From now on the claim is lost when `active` is another one than this.
    pub fn hold(&self, revision: i64) {
        self.lock().revision = Some(revision);
    }

    pub fn check(&self) -> Result<(), EtcdError> {
        self.lock().lost.clone().map_or(Ok(()), |lost| Err(lost.error()))
    }

    pub fn coordinators(&self) -> Vec<String> {
        self.lock().coordinators.clone()
    }

    /// Ends the claim, so that another coordinator need not wait until the lease has ended.
    pub fn end(&mut self, servers: &mut Servers) {
        self.stop_thread();
        let revoked: Result<wire::Empty, _> =
            servers.ask(wire::LEASE_REVOKE, &wire::LeaseRequest { id: self.lease });
        // It ends by itself, later.
        drop(revoked);
    }

    fn stop_thread(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().expect("no holder panics")
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.stop_thread();
    }
}

/// Keeps a lease alive, and looks who else is there.
struct Keeper {
    servers: Servers,
    keys: Keys,
    lease: i64,
    address: String,
    shared: Arc<Mutex<Shared>>,
}

impl Keeper {
    /// `false`: the claim is lost. A server that does not answer is asked again, later.
    fn keep(&mut self) -> bool {
        let question = wire::LeaseRequest { id: self.lease };
        let soon = Instant::now() + Duration::from_millis(500);
        let kept = self.servers.insist(wire::LEASE_KEEP_ALIVE, &question, soon, |_| {});
        let Ok(wire::LeaseKeepAliveResponse { ttl }) = kept else { return true };
        let revision = self.lock().revision;
        let is_expired = ttl <= 0;
        let Ok(active) = read_active(&mut self.servers, &self.keys) else { return true };
        let is_mine = active.as_ref().is_some_and(|(made, _)| Some(*made) == revision);
        if is_expired || (revision.is_some() && !is_mine) {
            let other = active.filter(|_| !is_mine).map(|(_, active)| active.address);
            self.lock().lost = Some(other.map_or(Lost::Expired, Lost::Superseded));
            return false;
        }
        if let Ok(all) = read_all(&mut self.servers, &self.keys.coordinators()) {
            let text = |value: Vec<u8>| String::from_utf8(value).ok();
            let mut known: Vec<String> = all.into_iter().filter_map(|it| text(it.value)).collect();
            // This one first, and each once: a standby that was started again may have two leases.
            known.sort_by_key(|address| (*address != self.address, address.clone()));
            known.dedup();
            self.lock().coordinators = known;
        }
        true
    }

    fn lock(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().expect("no holder panics")
    }
}

/// The key `active`, with its revision; `None` if no coordinator is.
pub(super) fn read_active(
    servers: &mut Servers,
    keys: &Keys,
) -> Result<Option<(i64, Active)>, EtcdError> {
    let question = wire::RangeRequest { key: keys.active(), ..Default::default() };
    let found: wire::RangeResponse = servers.ask(wire::RANGE, &question)?;
    Ok(found.kvs.first().map(parse_active))
}

/// The same, from the answer to a write whose first question it was.
pub(super) fn active_of(answer: &wire::TxnResponse) -> Option<(i64, Active)> {
    answer.responses.first()?.range.as_ref()?.kvs.first().map(parse_active)
}

fn parse_active(found: &wire::KeyValue) -> (i64, Active) {
    let unknown = || Active { address: "an unknown address".to_owned(), lease: 0 };
    let active = serde_json::from_slice(&found.value).unwrap_or_else(|_| unknown());
    (found.create_revision, active)
}
