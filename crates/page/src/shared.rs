//! What the thread that trains and the thread of the page have in common.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use paceline_runtime::{Line, Reader, WorkerId};
use paceline_watch::status::{Actions, Checkpoint, Snapshot, Status, Surroundings};

use crate::secret::Secret;

/// What the user asks of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ask {
    /// Save a checkpoint.
    Save,
    /// End the job after this round, as Ctrl-C does.
    Stop,
    /// Count a worker as lost; it may join again.
    PutOut(WorkerId),
    /// Put a worker out for good.
    Ban(WorkerId),
}

/// Called once with what the run says to a request, in one sentence.
pub type Answer = Box<dyn FnOnce(Result<String, String>) + Send>;

/// Takes a request, and does not wait: the answer may come later, and from another thread. An answer that is dropped means
/// that the run cannot be asked at present.
pub type Asked = Box<dyn Fn(Ask, Answer) + Send + Sync>;

/// The newest checkpoint.
#[derive(Clone, Debug, PartialEq)]
pub struct Saved {
    pub path: PathBuf,
    pub at: SystemTime,
}

pub struct Shared {
    known: Mutex<Known>,
    /// The newest state, as it is sent.
    shown: Mutex<Option<(Instant, Arc<Shown>)>>,
    pub facts: Facts,
}

/// What does not change while the page is up, and how to find out about the rest.
pub struct Facts {
    pub version: String,
    pub place: String,
    pub actions: Actions,
    /// Other names of this machine under which the page is asked for.
    pub hosts: Vec<String>,
    pub token: Secret,
    pub ask: Asked,
    pub is_stopping: Box<dyn Fn() -> bool + Send + Sync>,
    pub members_min: usize,
}

struct Known {
    status: Status,
    clock: JobClock,
    saved: Option<Saved>,
    /// Whether anybody has looked for checkpoints yet: what was there before is no event.
    has_looked: bool,
}

/// A state, in the forms in which it is asked for.
pub struct Shown {
    pub snapshot: Snapshot,
    pub json: Bytes,
}

/// A state is computed at most so often, however many readers there are.
const FRESH: Duration = Duration::from_millis(250);

impl Shared {
    pub fn new(facts: Facts) -> Shared {
        let clock = JobClock { is_set: false, at: Duration::ZERO, since: Instant::now() };
        let known = Known { status: Status::default(), clock, saved: None, has_looked: false };
        Shared { known: Mutex::new(known), shown: Mutex::default(), facts }
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().expect("no holder panics")
    }

    /// The state of about now.
    pub fn shown(&self) -> Arc<Shown> {
        let mut shown = self.shown.lock().expect("no holder panics");
        if let Some((taken, shown)) = &*shown
            && taken.elapsed() < FRESH
        {
            return shown.clone();
        }
        let snapshot = self.known().snapshot(&self.facts);
        let json = serde_json::to_vec(&snapshot).expect("a snapshot is plain data").into();
        let new = Arc::new(Shown { snapshot, json });
        *shown = Some((Instant::now(), new.clone()));
        new
    }

    /// The newest checkpoint was looked for.
    pub fn looked(&self, newest: Option<Saved>) {
        let mut known = self.known();
        let is_new = newest.is_some() && newest != known.saved && known.has_looked;
        known.has_looked = true;
        if let Some(saved) = newest.as_ref().filter(|_| is_new) {
            let now = known.clock.now();
            let name = saved.path.file_name().unwrap_or(saved.path.as_os_str());
            let name = name.to_string_lossy().into_owned();
            known.status.saved(now, &name);
        }
        known.saved = newest;
    }
}

impl Known {
    fn snapshot(&self, facts: &Facts) -> Snapshot {
        let checkpoint = |saved: &Saved| Checkpoint {
            path: saved.path.display().to_string(),
            // A clock that was set back makes no checkpoint of the future.
            age_seconds: saved.at.elapsed().unwrap_or_default().as_secs_f64(),
            written_at_unix: saved.at.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64(),
        };
        let around = Surroundings {
            version: facts.version.clone(),
            place: facts.place.clone(),
            checkpoint: self.saved.as_ref().map(checkpoint),
            actions: facts.actions,
            is_stopping: (facts.is_stopping)(),
            members_min: facts.members_min,
            addresses: Default::default(),
        };
        self.status.snapshot(self.clock.now(), &around)
    }
}

/// The clock of the job, as far as the times of its lines show it.
struct JobClock {
    is_set: bool,
    at: Duration,
    since: Instant,
}

impl JobClock {
    fn now(&self) -> Duration {
        self.at + self.since.elapsed()
    }

    /// A line says what time it is, or was: it may have been under way.
    fn hear(&mut self, at: Duration) {
        if !self.is_set || at > self.now() {
            *self = JobClock { is_set: true, at, since: Instant::now() };
        }
    }
}

/// Reads a run's journal for its page.
#[derive(Clone)]
pub struct PageReader(pub(crate) Arc<Shared>);

impl Reader for PageReader {
    fn read(&mut self, line: &Line) {
        let mut known = self.0.known();
        known.clock.hear(line.at);
        known.status.read(line);
    }
}
