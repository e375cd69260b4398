//! A log and a journal in etcd, for a coordinator that may die for good: a standby waits for the lease of the active one to end, and
//! continues from what it had stored.
//!
//! Every write is a transaction that compares the revision of the key `active`, which lasts as long as its maker's lease. Records are
//! numbered keys under `log`, each holding a batch and the lines of the journal that go with it. A snapshot moves the lines under
//! `journal` and begins the log anew; the key `head` says which snapshot counts. Values are divided, because etcd takes 1.5 MB at once.

mod claim;
mod place;
mod servers;
mod tls;
mod wire;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use self::claim::{Claim, active_of};
pub use self::place::{EtcdPlace, PlaceError};
use self::servers::Servers;
pub use self::tls::EtcdTls;
use self::wire::Compare;
use super::journal::Journal;
use super::{Opened, Store, StoreError, joined, journal_in, parted};

pub struct EtcdConfig {
    pub place: EtcdPlace,
    /// `None`: connections to etcd are not encrypted.
    pub tls: Option<EtcdTls>,
    /// Where workers reach this coordinator.
    pub address: String,
    /// Holds a copy of the journal, to read.
    pub folder: PathBuf,
    /// A coordinator that is not heard of for this long is replaced by its standby; at least two seconds.
    pub lease: Duration,
    /// How long etcd may be out of reach.
    pub waits: Duration,
    /// What names the job, and its authority: all coordinators of a job must have the same.
    pub job: String,
    pub authority: String,
    /// Ends the wait of a standby.
    pub stop: Arc<AtomicBool>,
    /// Called with a message for the user.
    pub say: fn(&str),
}

#[derive(Debug, thiserror::Error)]
pub enum EtcdError {
    #[error("etcd at {address} cannot be reached: {why}")]
    Unreachable { address: String, why: String },
    #[error(
        "etcd at {address} has no certificate that the file of --etcd-ca vouches for, or accepts none of this coordinator ({why})"
    )]
    Untrusted { address: String, why: String },
    #[error("{}: {why}", path.display())]
    Certificates { path: PathBuf, why: String },
    #[error("etcd at {address} refuses: {why}")]
    Answer { address: String, why: String },
    #[error(
        "etcd has no room left: give it more (--quota-backend-bytes), or compact and defragment it"
    )]
    Full,
    #[error("etcd has sent more than one answer may hold")]
    TooMuch,
    #[error(
        "another one, at {by}, has taken over the job, and what this one had not stored does not count"
    )]
    Superseded { by: String },
    #[error(
        "its lease in etcd has ended before it could be renewed, and no other one has taken over; start it again"
    )]
    Expired,
    #[error(
        "the state in {0} belongs to another job; give another name, or the job that it was made for"
    )]
    OtherJob(EtcdPlace),
    #[error(
        "the authority of the job in {0} is another one: --authority must name a copy of the file that its first coordinator uses"
    )]
    OtherAuthority(EtcdPlace),
    #[error(
        "the coordinator's state in etcd is damaged at the key {0}; begin anew under another name"
    )]
    Damaged(String),
    #[error("the coordinator's state could not be written before; nothing more is written to it")]
    Failed,
    #[error("stopped while it waited for the active coordinator to end")]
    Stopped,
    #[error("cannot keep a copy of the journal in {path}: {source}")]
    Copy { path: PathBuf, source: std::io::Error },
    #[error("cannot start what speaks with etcd: {0}")]
    System(String),
}

impl EtcdError {
    /// Whether another attempt, or another server, may succeed.
    fn is_passing(&self) -> bool {
        matches!(self, EtcdError::Unreachable { .. })
    }
}

/// Which snapshot counts, and what must be the same for all coordinators of the job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Head {
    generation: u64,
    /// Pieces of the snapshot, and of the journal up to it.
    snapshot: u64,
    journal: u64,
    job: String,
    authority: String,
}

pub struct Etcd {
    servers: Servers,
    keys: Keys,
    claim: Claim,
    /// Of the key `active`.
    revision: i64,
    head: Head,
    /// At which the head was written last.
    head_revision: i64,
    /// The number of the next piece of the log.
    next: u64,
    bytes: u64,
    /// The lines of the journal since the snapshot.
    recent: Vec<u8>,
    /// The whole journal, until its copy is written.
    all_lines: Vec<u8>,
    path: PathBuf,
    copy: Option<Journal>,
    has_failed: bool,
    waits: Duration,
    say: fn(&str),
}

/// What a transaction changes: a key, as it must be before, and what it holds after.
struct Once<'a> {
    key: &'a [u8],
    before: Compare,
    after: Option<&'a [u8]>,
}

/// Far below the 1.5 MB that etcd takes at once.
const PIECE: usize = 512 << 10;
/// How often a standby looks whether it is its turn.
const LOOK: Duration = Duration::from_millis(100);
/// Keys that are read at once, unless they are too long together; and pieces, which are long.
const PAGE: i64 = 4096;
const PAGE_OF_PIECES: i64 = 8;

impl Etcd {
    /// Waits until this coordinator is the active one, and reads what was stored.
    pub fn open(config: EtcdConfig) -> Result<Opened, EtcdError> {
        let EtcdConfig { place, address, lease, say, .. } = &config;
        let tls = config.tls.as_ref().map(EtcdTls::config).transpose()?;
        let mut servers = Servers::new(&place.servers, tls.clone())?;
        let keys = Keys(place.name.clone());
        let mut says_wait = |error: &EtcdError| say(&format!("{error}; waiting for it"));
        let mut is_told = false;
        let (claim, revision) = loop {
            let until = Instant::now() + config.waits;
            let own = Servers::new(&place.servers, tls.clone())?;
            let whom = (address.as_str(), *lease);
            let claim = Claim::make(&mut servers, own, &keys, whom, until, &mut says_wait)?;
            match wait_for_turn(&mut servers, &keys, &claim, &config, &mut is_told)? {
                Some(revision) => break (claim, revision),
                // The lease ended while it waited.
                None => continue,
            }
        };
        claim.hold(revision);
        let head = read_head(&mut servers, &keys, &config)?;
        let reader = Reader { servers: &mut servers, keys: &keys };
        let read = reader.read(head.as_ref().map(|(head, _)| head))?;
        let (job, authority) = (config.job, config.authority);
        let none = Head { generation: 0, snapshot: 0, journal: 0, job, authority };
        let path = journal_in(&config.folder);
        let place = config.place.to_string();
        let mut store = Etcd {
            servers,
            keys,
            claim,
            revision,
            head_revision: head.as_ref().map_or(0, |(_, revision)| *revision),
            head: head.map_or(none, |(head, _)| head),
            next: read.next,
            bytes: read.bytes,
            recent: read.recent,
            all_lines: read.lines,
            path,
            copy: None,
            has_failed: false,
            waits: config.waits,
            say: config.say,
        };
        store.drop_torn(read.torn)?;
        Ok(Opened { store: Box::new(store), place, snapshot: read.snapshot, batches: read.batches })
    }

    /// A transaction that only the active coordinator can make; returns its revision.
    ///
    /// One whose answer is lost is sent again, and may arrive twice, the second time much later. `once` keeps it from counting twice,
    /// where that would matter: a key that the transaction changes, as it is before and after.
    fn write(
        &mut self,
        success: Vec<wire::RequestOp>,
        once: Option<Once<'_>>,
    ) -> Result<i64, EtcdError> {
        if self.has_failed {
            return Err(EtcdError::Failed);
        }
        let mut compare = vec![Compare::created_at(&self.keys.active(), self.revision)];
        compare.extend(once.as_ref().map(|once| once.before.clone()));
        let mut failure = vec![wire::get(&self.keys.active())];
        failure.extend(once.as_ref().map(|once| wire::get(once.key)));
        let txn = wire::TxnRequest { compare, success, failure };
        let (until, say) = (Instant::now() + self.waits, self.say);
        let waits = |error: &EtcdError| say(&format!("{error}; waiting for it, workers train on"));
        let written = self.servers.insist(wire::TXN, &txn, until, waits);
        let written = written.and_then(|answer: wire::TxnResponse| match answer.succeeded {
            true => Ok(answer.header.map_or(0, |header| header.revision)),
            false => self.why_not(&answer, once),
        });
        // Nobody knows what is stored after a failure, so nothing more is written.
        self.has_failed = written.is_err();
        written
    }

    /// Why a transaction was refused. If an earlier attempt has succeeded, and its answer was lost, it was not.
    fn why_not(
        &self,
        answer: &wire::TxnResponse,
        once: Option<Once<'_>>,
    ) -> Result<i64, EtcdError> {
        match active_of(answer) {
            None => return Err(EtcdError::Expired),
            Some((revision, active)) if revision != self.revision => {
                return Err(EtcdError::Superseded { by: active.address });
            }
            Some(_) => {}
        }
        let there = answer.responses.get(1).and_then(|op| op.range.as_ref()?.kvs.first());
        match once {
            Some(once) if there.map(|found| &found.value[..]) == once.after => {
                Ok(there.map_or(0, |found| found.mod_revision))
            }
            Some(once) => Err(EtcdError::Damaged(text(once.key))),
            None => Err(EtcdError::Expired),
        }
    }

    /// Removes the pieces of a record that was not complete when its writer died.
    fn drop_torn(&mut self, torn: Option<i64>) -> Result<(), EtcdError> {
        let Some(revision) = torn else { return Ok(()) };
        let key = self.keys.log(self.head.generation, self.next);
        let range_end = wire::end_of(&self.keys.logs(self.head.generation));
        let delete = wire::DeleteRangeRequest { key: key.clone(), range_end };
        let delete = wire::RequestOp { request: Some(wire::Request::DeleteRange(delete)) };
        let before = Compare::created_at(&key, revision);
        self.write(vec![delete], Some(Once { key: &key, before, after: None }))?;
        Ok(())
    }

    fn append(&mut self, batch: &[u8], lines: &[u8]) -> Result<(), EtcdError> {
        let bytes = joined(batch, lines);
        let pieces = bytes.len().div_ceil(PIECE);
        for (i, piece) in bytes.chunks(PIECE).enumerate() {
            let key = self.keys.log(self.head.generation, self.next);
            let value = [&[u8::from(i + 1 == pieces)], piece].concat();
            let once =
                Once { key: &key, before: Compare::created_at(&key, 0), after: Some(&value) };
            self.write(vec![wire::put(&key, &value, 0)], Some(once))?;
            self.next += 1;
        }
        self.bytes += bytes.len() as u64;
        self.recent.extend(lines);
        Ok(())
    }

    fn replace(&mut self, state: &[u8]) -> Result<(), EtcdError> {
        let (before, generation) = (self.head.generation, self.head.generation + 1);
        let mut head = Head { generation, snapshot: 0, ..self.head.clone() };
        for piece in state.chunks(PIECE) {
            let key = self.keys.snapshot(generation, head.snapshot);
            self.write(vec![wire::put(&key, piece, 0)], None)?;
            head.snapshot += 1;
        }
        for piece in std::mem::take(&mut self.recent).chunks(PIECE) {
            let key = self.keys.journal(head.journal);
            self.write(vec![wire::put(&key, piece, 0)], None)?;
            head.journal += 1;
        }
        let value = serde_json::to_vec(&head).expect("plain data");
        let turn = vec![
            wire::put(&self.keys.head(), &value, 0),
            wire::delete_all(&self.keys.logs(before)),
            wire::delete_all(&self.keys.snapshots(before)),
        ];
        let key = self.keys.head();
        let before = Compare::changed_at(&key, self.head_revision);
        let once = Once { key: &key, before, after: Some(&value) };
        self.head_revision = self.write(turn, Some(once))?;
        (self.head, self.next, self.bytes) = (head, 0, 0);
        Ok(())
    }
}

impl Store for Etcd {
    fn begin_journal(&mut self, length: u64) -> Result<(), StoreError> {
        let lines = std::mem::take(&mut self.all_lines);
        if lines.len() as u64 != length {
            return Err(EtcdError::Damaged(text(&self.keys.journals())).into());
        }
        let copied = self.path.parent().map_or(Ok(()), fs::create_dir_all);
        let copied = copied.and_then(|()| fs::write(&self.path, lines));
        copied.map_err(|source| EtcdError::Copy { path: self.path.clone(), source })?;
        self.copy = Some(Journal::open(&self.path, length)?);
        Ok(())
    }

    fn commit(&mut self, batch: &[u8], lines: &[u8]) -> Result<(), StoreError> {
        self.append(batch, lines)?;
        match &mut self.copy {
            // Nothing depends on it: the lines are in etcd.
            Some(copy) => Ok(copy.write(lines)?),
            None => Ok(()),
        }
    }

    fn size(&self) -> u64 {
        self.bytes
    }

    fn snapshot(&mut self, state: &[u8]) -> Result<(), StoreError> {
        Ok(self.replace(state)?)
    }

    fn journal(&self) -> &Path {
        &self.path
    }

    fn check(&self) -> Result<(), StoreError> {
        Ok(self.claim.check()?)
    }

    fn confirm(&mut self) -> Result<(), StoreError> {
        // A write that changes nothing.
        self.write(vec![], None)?;
        Ok(())
    }

    fn coordinators(&self) -> Vec<String> {
        self.claim.coordinators()
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        self.claim.end(&mut self.servers);
    }
}

/// Waits until this coordinator is the active one: the revision of its claim. `None`: its lease has ended meanwhile.
fn wait_for_turn(
    servers: &mut Servers,
    keys: &Keys,
    claim: &Claim,
    config: &EtcdConfig,
    is_told: &mut bool,
) -> Result<Option<i64>, EtcdError> {
    loop {
        match claim.try_take(servers, keys) {
            Ok(Ok(revision)) => return Ok(Some(revision)),
            Ok(Err(active)) if !*is_told => {
                // What this one could not continue, it need not wait for.
                read_head(servers, keys, config)?;
                *is_told = true;
                let (at, place) = (&active.address, &config.place);
                (config.say)(&format!(
                    "the coordinator at {at} is active in {place}: this one is its standby, and takes over when it ends"
                ));
            }
            Ok(Err(_)) => {}
            // A standby has nothing to lose by waiting.
            Err(error) if error.is_passing() => {}
            Err(error) => return Err(error),
        }
        if config.stop.load(Ordering::Relaxed) {
            return Err(EtcdError::Stopped);
        }
        if claim.check().is_err() {
            return Ok(None);
        }
        std::thread::sleep(LOOK);
    }
}

/// The head of this job, and its revision; an error if another job, or another authority, is there.
fn read_head(
    servers: &mut Servers,
    keys: &Keys,
    config: &EtcdConfig,
) -> Result<Option<(Head, i64)>, EtcdError> {
    let question = wire::RangeRequest { key: keys.head(), ..Default::default() };
    let until = Instant::now() + config.waits;
    let found: wire::RangeResponse = servers.insist(wire::RANGE, &question, until, |_| {})?;
    let Some(found) = found.kvs.first() else { return Ok(None) };
    let damaged = |_| EtcdError::Damaged(text(&keys.head()));
    let head: Head = serde_json::from_slice(&found.value).map_err(damaged)?;
    if head.job != config.job {
        return Err(EtcdError::OtherJob(config.place.clone()));
    }
    if head.authority != config.authority {
        return Err(EtcdError::OtherAuthority(config.place.clone()));
    }
    Ok(Some((head, found.mod_revision)))
}

/// What was stored, and where to go on.
#[derive(Default)]
struct Read {
    snapshot: Option<Vec<u8>>,
    batches: Vec<Vec<u8>>,
    /// The number of the next piece of the log, and the revision of what a coordinator that died left there.
    next: u64,
    torn: Option<i64>,
    bytes: u64,
    recent: Vec<u8>,
    lines: Vec<u8>,
}

struct Reader<'a> {
    servers: &'a mut Servers,
    keys: &'a Keys,
}

impl Reader<'_> {
    fn read(mut self, head: Option<&Head>) -> Result<Read, EtcdError> {
        let Some(head) = head else { return Ok(Read::default()) };
        let snapshot = self.pieces(&self.keys.snapshots(head.generation), head.snapshot)?;
        let lines = self.pieces(&self.keys.journals(), head.journal)?;
        let mut read = Read { snapshot: Some(snapshot), lines, ..Read::default() };
        let mut record = vec![];
        let all = read_all(self.servers, &self.keys.logs(head.generation))?;
        for (number, piece) in all.iter().enumerate() {
            let damaged = || EtcdError::Damaged(text(&piece.key));
            if piece.key != self.keys.log(head.generation, number as u64) {
                return Err(damaged());
            }
            let (is_last, part) = piece.value.split_first().ok_or_else(damaged)?;
            record.extend(part);
            if *is_last == 1 {
                let (batch, lines) = parted(&record);
                read.batches.push(batch.to_vec());
                read.recent.extend(lines);
                read.bytes += record.len() as u64;
                read.next = number as u64 + 1;
                record.clear();
            }
        }
        read.torn = all.get(read.next as usize).map(|piece| piece.create_revision);
        read.lines.extend(&read.recent);
        Ok(read)
    }

    /// The first pieces under a prefix, put together. What a coordinator that died has left behind them does not count.
    fn pieces(&mut self, prefix: &[u8], count: u64) -> Result<Vec<u8>, EtcdError> {
        let found = read_pages(self.servers, prefix, PAGE_OF_PIECES)?;
        if (found.len() as u64) < count {
            return Err(EtcdError::Damaged(text(prefix)));
        }
        Ok(found.into_iter().take(count as usize).flat_map(|piece| piece.value).collect())
    }
}

/// All keys that begin like this, in order.
fn read_all(servers: &mut Servers, prefix: &[u8]) -> Result<Vec<wire::KeyValue>, EtcdError> {
    read_pages(servers, prefix, PAGE)
}

fn read_pages(
    servers: &mut Servers,
    prefix: &[u8],
    mut limit: i64,
) -> Result<Vec<wire::KeyValue>, EtcdError> {
    let mut found = vec![];
    let mut question =
        wire::RangeRequest { key: prefix.to_vec(), range_end: wire::end_of(prefix), limit };
    loop {
        let until = Instant::now() + Duration::from_secs(10);
        question.limit = limit;
        match servers.insist::<wire::RangeResponse>(wire::RANGE, &question, until, |_| {}) {
            Ok(page) => {
                found.extend(page.kvs);
                let Some(last) = found.last().filter(|_| page.more) else { return Ok(found) };
                question.key = [&last.key[..], &[0]].concat();
            }
            Err(EtcdError::TooMuch) if limit > 1 => limit /= 8,
            Err(error) => return Err(error),
        }
    }
}

fn text(key: &[u8]) -> String {
    String::from_utf8_lossy(key).into_owned()
}

/// The keys of one job.
#[derive(Clone)]
struct Keys(String);

impl Keys {
    fn of(&self, rest: &str) -> Vec<u8> {
        format!("paceline/{}/{rest}", self.0).into_bytes()
    }

    fn active(&self) -> Vec<u8> {
        self.of("active")
    }

    fn head(&self) -> Vec<u8> {
        self.of("head")
    }

    fn coordinators(&self) -> Vec<u8> {
        self.of("coordinators/")
    }

    fn coordinator(&self, lease: i64) -> Vec<u8> {
        self.of(&format!("coordinators/{lease:016x}"))
    }

    fn logs(&self, generation: u64) -> Vec<u8> {
        self.of(&format!("log/{generation:016x}/"))
    }

    fn log(&self, generation: u64, number: u64) -> Vec<u8> {
        self.of(&format!("log/{generation:016x}/{number:016x}"))
    }

    fn snapshots(&self, generation: u64) -> Vec<u8> {
        self.of(&format!("snapshot/{generation:016x}/"))
    }

    fn snapshot(&self, generation: u64, number: u64) -> Vec<u8> {
        self.of(&format!("snapshot/{generation:016x}/{number:016x}"))
    }

    fn journals(&self) -> Vec<u8> {
        self.of("journal/")
    }

    fn journal(&self, number: u64) -> Vec<u8> {
        self.of(&format!("journal/{number:016x}"))
    }
}
