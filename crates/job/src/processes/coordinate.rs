//! A coordinator for workers on other machines: its log is on disk, and a new process continues where a killed one stopped; or in
//! etcd, and a standby on another machine continues.
//!
//! It has no data and runs no model. What it must know of them, the first worker tells it ([`Facts`]).

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use paceline_coordinator::{
    Disk, Driver, DriverConfig, DriverError, Etcd, EtcdConfig, EtcdPlace, EtcdTls, Opened, Service,
    ServiceConfig, StoreError,
};
use paceline_identity::{Authority, Digest, Token, coordinator_server};
use paceline_net::processes::frame::Limits;
use paceline_net::processes::message::{JobText, Saves};
use paceline_runtime::Line;
use paceline_runtime::coordination::{Coordination, Rules};
use paceline_runtime::edge::ClusterOutput;

use serde_json::Value;

use super::join::RESUMED;
use super::remote::{RemoteConfig, RemoteRun, TokenFile, store};
use super::wishes::Wishes;
use super::{GATHERING, OnProcesses, conclusion, version};
use crate::checkpoint::{Checkpoint, Writer, void_lock};
use crate::config::Job;
use crate::error::{Error, RunError};
use crate::facts::Facts;
use crate::job::{Outline, Prepared};
use crate::recipes::Recipe;
use crate::run::evaluator::Evaluator;
use crate::run::observer::{Observer, first_lines};
use crate::run::{SaveRequests, Watch};
use crate::threads::TrainOptions;

/// How a coordinator is reached, and where it keeps its state.
pub struct CoordinateOptions {
    pub listen: SocketAddr,
    pub state: StatePlace,
    /// The file of the authority, if it is not in the state folder. With a standby it must be named, unless nothing is encrypted.
    pub authority: Option<PathBuf>,
    /// Training begins with this many workers.
    pub members_first: u32,
    /// It pauses with fewer than this.
    pub members_min: u32,
    pub members_max: Option<u32>,
    pub patience: Duration,
    /// Neither encrypts nor authenticates.
    pub insecure: bool,
    /// How many workers may join with the first token, and for how long.
    pub token_uses: u32,
    pub token_lasts: Duration,
    /// Ends the wait of a standby.
    pub stop: Arc<AtomicBool>,
    /// Called with a message for the user.
    pub say: fn(&str),
}

/// Where a coordinator keeps its state.
pub enum StatePlace {
    /// Holds the log, the journal, the authority and the token of one job.
    Folder(PathBuf),
    /// Log and journal are in etcd, so that a standby on another machine can continue.
    Etcd {
        place: EtcdPlace,
        /// `None`: connections to etcd are not encrypted.
        tls: Option<EtcdTls>,
        /// Where workers reach this coordinator.
        address: String,
        /// What only this process needs: the token, wishes of the user, a copy of the journal.
        folder: PathBuf,
    },
}

impl StatePlace {
    fn folder(&self) -> &Path {
        match self {
            StatePlace::Folder(folder) | StatePlace::Etcd { folder, .. } => folder,
        }
    }

    fn is_shared(&self) -> bool {
        matches!(self, StatePlace::Etcd { .. })
    }
}

/// A process that was killed closes its connections and does not come back; one whose network hiccups does.
const GRACE: Duration = Duration::from_millis(150);
/// etcd may be out of reach for this many times the patience: as long as workers wait for a coordinator.
const ETCD_GONE_AFTER: u32 = 12;

/// A coordinator that listens.
pub struct Coordinating {
    blueprint: Arc<Blueprint>,
    outline: Outline,
    run: RemoteRun,
    file_bytes_max: Arc<AtomicU64>,
    insecure: bool,
    token: Token,
    members_first: usize,
    /// Another coordinator may have used the folder of the checkpoints, on another machine.
    is_shared: bool,
}

/// What the job is prepared from, as soon as a worker says what its data are.
struct Blueprint {
    job: Job,
    checkpoint: Option<Checkpoint>,
    recipes: Vec<Recipe>,
    workers: u32,
}

impl Blueprint {
    fn prepare(&self, facts: &Facts) -> Result<Prepared, Error> {
        let (workers, recipes) = (self.workers, &self.recipes[..]);
        match &self.checkpoint {
            Some(checkpoint) => checkpoint.prepare_from(&self.job, facts, workers, recipes),
            None => self.job.prepare_from(facts, workers, recipes),
        }
    }

    /// What the journal begins with; the facts were checked before.
    fn first_lines(&self, facts: &str, coordination: Coordination) -> Vec<Line> {
        let prepared = serde_json::from_str(facts).ok().and_then(|it| self.prepare(&it).ok());
        prepared.map_or(vec![], |prepared| first_lines(&prepared, coordination))
    }

    /// Whether a worker with these facts may take part: the number of samples of the job, or what differs.
    fn check(&self, first: Option<&str>, facts: &str) -> Result<u64, String> {
        let unreadable = |_| "what the worker says of its data cannot be read".to_owned();
        let facts: Facts = serde_json::from_str(facts).map_err(unreadable)?;
        let Some(first) = first else {
            let prepared = self.prepare(&facts).map_err(|error| error.to_string())?;
            return Ok(prepared.plan.samples_total);
        };
        let first: Facts = serde_json::from_str(first).map_err(unreadable)?;
        // The number of samples is fixed by then.
        facts.difference(&first).map_or(Ok(0), Err)
    }
}

impl Coordinating {
    /// Checks the job, as far as that needs no data, opens the state folder, and listens.
    pub fn open(
        job: &Job,
        checkpoint: Option<Checkpoint>,
        recipes: &[Recipe],
        options: CoordinateOptions,
    ) -> Result<Coordinating, Error> {
        let CoordinateOptions { members_first, members_min, members_max, .. } = options;
        let CoordinateOptions { patience, insecure, say, .. } = options;
        let before = checkpoint.as_ref();
        if let Some(checkpoint) = before {
            checkpoint.check_job(job)?;
        }
        let workers_first = before.map_or(members_first, |it| it.manifest.workers_first);
        let outline = job.check_without_data(workers_first, recipes)?;
        let saves = job.checkpoints.as_ref().map(|it| Saves { every_rounds: it.rounds });
        let saves_something = saves.is_some();
        let text = JobText {
            // Where checkpoints go is this process's business, and every worker has its data elsewhere.
            json: serde_json::to_string(&Job { checkpoints: None, data_dir: None, ..job.clone() })
                .expect("a job is plain data"),
            workers_first,
            workers: members_first,
            members_min: members_min as usize,
            saves,
            is_resumed: before.is_some(),
            schedule: before.and_then(Checkpoint::schedule_before),
            ..JobText::default()
        };
        let rules = Rules {
            members_min: members_min as usize,
            members_max: members_max.map(|most| most as usize),
            patience,
            gathering: GATHERING.min(patience / 4),
            ..Rules::new(0, members_first as usize, outline.coordination)
        };
        let failed =
            |error: &dyn std::fmt::Display| RunError::Coordinate { why: error.to_string() };
        let CoordinateOptions { listen, state, .. } = &options;
        let folder = state.folder();
        let files = match &job.checkpoints {
            // Whoever takes over must find the vectors of the job where its checkpoints are.
            Some(checkpoints) if state.is_shared() => Path::new(&checkpoints.folder).join("files"),
            _ => folder.join("files"),
        };
        for folder in [folder, &files] {
            std::fs::create_dir_all(folder).map_err(|error| {
                let why = format!("the folder {} cannot be made: {error}", folder.display());
                RunError::Coordinate { why }
            })?;
        }
        let authority = options.authority.clone().unwrap_or_else(|| folder.join("authority.pem"));
        let authority = (!insecure)
            .then(|| Authority::open(&authority, SystemTime::now()))
            .transpose()
            .map_err(|error| failed(&error))?;
        let text = serde_json::to_string(&text).expect("a job is plain data");
        let opened = open_store(&options, &text, authority.as_ref())?;
        let is_restarted = opened.snapshot.is_some();
        let snapshot = before.map(Checkpoint::snapshot);
        if let Some(snapshot) = snapshot.filter(|_| !is_restarted) {
            store(&files, RESUMED, snapshot).map_err(|error| failed(&error))?;
        }
        let elapsed = before.map(|it| it.manifest.past.time).unwrap_or_default();
        let done_before = snapshot.map(|snapshot| snapshot.done.clone()).unwrap_or_default();
        let (job, recipes) = (job.clone(), recipes.to_vec());
        let blueprint = Arc::new(Blueprint { job, checkpoint, recipes, workers: members_first });
        let checks = blueprint.clone();
        let config = DriverConfig {
            text,
            rules,
            done: done_before.clone(),
            elapsed,
            check_facts: Box::new(move |first, facts| checks.check(first, facts)),
            version: version(),
            authority,
            grace: GRACE.min(patience / 4),
        };
        let wanted = config.text.clone();
        let mut driver = Driver::open(config, opened).map_err(|error| match &error {
            DriverError::OtherJob { place, text } => {
                let differs = difference(text, &wanted);
                let why = format!(
                    "the state in {place} belongs to another job{differs}; give another --state, or the job that it was made for"
                );
                RunError::Coordinate { why }
            }
            _ => failed(&error),
        })?;
        let (begins, coordination) = (blueprint.clone(), outline.coordination);
        driver.begin_journal_with(move |facts| begins.first_lines(facts, coordination));
        let file_bytes_max = Arc::<AtomicU64>::default();
        let service = Service::start(
            ServiceConfig {
                listen: *listen,
                tls: driver.credentials().map(coordinator_server),
                files: files.clone(),
                file_bytes_max: file_bytes_max.clone(),
                beat: patience / 4,
                clock: driver.clock(),
                dials_back: true,
            },
            driver.sender(),
        )
        .map_err(|error| RunError::Coordinate { why: cannot_listen(*listen, &error) })?;
        let token_file = TokenFile {
            path: folder.join("token"),
            lasts: options.token_lasts,
            uses: options.token_uses,
            is_derived: state.is_shared(),
        };
        let token = token_file.write(&mut driver)?;
        let run = RemoteRun::new(RemoteConfig {
            driver,
            service,
            files,
            coordination: outline.coordination,
            members_min: rules.members_min,
            done_before,
            is_restarted,
            wishes: Wishes::open(folder).map_err(|error| failed(&error))?,
            token_file,
            saves: saves_something,
            say,
        });
        let (members_first, is_shared) = (rules.members_first, state.is_shared());
        Ok(Coordinating {
            blueprint,
            outline,
            run,
            file_bytes_max,
            insecure,
            token,
            members_first,
            is_shared,
        })
    }

    /// The name of the strategy.
    pub fn name(&self) -> &str {
        &self.outline.name
    }

    pub fn address(&self) -> SocketAddr {
        self.run.service.address()
    }

    /// Whether there is nothing left to do but to tell members that have not heard of it.
    pub fn is_over(&self) -> bool {
        self.run.driver.coordinator().is_over()
    }

    /// Whether the job was ended early, by this coordinator or by one before it.
    pub fn was_stopped(&self) -> bool {
        self.run.driver.coordinator().state().is_stopped()
    }

    /// What the coordinator waits for, and what to type on other machines. `shows_token`: else the file is named that has it, because others
    /// may read what is said here.
    pub fn invitation(&self, shows_token: bool) -> String {
        let coordinator = self.run.driver.coordinator();
        let members: Vec<String> =
            coordinator.view().members.iter().map(ToString::to_string).collect();
        let waits = match members.as_slice() {
            [] => format!("waiting for {}", counted(self.members_first, "worker")),
            [one] => format!("continuing from the log: worker {one} connects again by itself"),
            many => {
                format!(
                    "continuing from the log: workers {} connect again by themselves",
                    many.join(", ")
                )
            }
        };
        let insecure = if self.insecure { " --insecure" } else { "" };
        let at = match self.run.driver.coordinators() {
            [] => reached_at(self.address()),
            all => all.join(","),
        };
        let (token, file) = (&self.token, self.run.token_file());
        let mut issued = self.run.driver.tokens().issued();
        if issued.any(|it| it.id == token.id && it.is_revoked) {
            let file = file.display();
            return format!(
                "{waits}; the token in {file} was revoked, and `paceline token new` makes another one"
            );
        }
        let token = match shows_token {
            true => format!("--token {token}"),
            false => format!("--token-file {}", file.display()),
        };
        format!("{waits}; on each new machine type:\n  paceline join {at} {token}{insecure}")
    }

    /// Waits until a worker has said what the data are; `None` if it was asked to stop before.
    pub fn first_worker(&mut self, stop: &AtomicBool) -> Result<Option<Prepared>, Error> {
        loop {
            if let Some(facts) = self.run.driver.facts() {
                let facts: Facts = serde_json::from_str(facts)
                    .map_err(|error| RunError::Coordinate { why: error.to_string() })?;
                let prepared = self.blueprint.prepare(&facts)?;
                self.run.limits = Limits::for_snapshots(prepared.size(), 1);
                let bytes = self.run.limits.body.saturating_add(self.run.limits.head as u64);
                self.file_bytes_max.store(bytes, Ordering::Relaxed);
                if !self.run.is_restarted {
                    let (samples, size) = (prepared.plan.samples_per_epoch, prepared.size());
                    (self.run.say)(&format!(
                        "the first worker has {samples} samples per epoch and {size} parameters; all others must have the same"
                    ));
                }
                return Ok(Some(prepared));
            }
            if stop.load(Ordering::Relaxed) {
                return Ok(None);
            }
            self.run.turn()?;
        }
    }

    /// Coordinates the job until it is over.
    pub fn train(
        self,
        prepared: &Prepared,
        options: TrainOptions<'_>,
    ) -> Result<OnProcesses, Error> {
        let Coordinating { mut run, outline: Outline { coordination, .. }, is_shared, .. } = self;
        let TrainOptions { stop, saving, requests, readers, .. } = options;
        let saving = saving.map(|it| if run.is_restarted { it.continued() } else { it.clone() });
        if let Some(saving) = saving.as_ref().filter(|_| is_shared && run.is_restarted) {
            // The lease in etcd says who writes there; the coordinator before may be stopped and hold its lock.
            void_lock(Path::new(&saving.checkpoints.folder))
                .map_err(|error| RunError::Coordinate { why: error.to_string() })?;
        }
        let writer = saving.as_ref().map(|it| Writer::start(it, prepared, &[])).transpose()?;
        let evaluator = Evaluator::inline(prepared.task.clone(), 1);
        let observer = Observer::new(prepared, (coordination, evaluator), readers);
        let save_requests = saving.as_ref().map(|it| SaveRequests::new(it, coordination));
        let mut watch = Watch { observer, writer, save_requests, requests, stopped: false };
        for line in run.lines_before() {
            let _ = watch.observer.observe(&line);
        }
        let ended = watch.until_ended(&mut run, &stop);
        let finish = |writer: Option<Writer>| writer.map(Writer::finish);
        if let Err(error) = ended {
            // If only the coordinator has failed, the members train on, and the next one finds them.
            if !matches!(error, RunError::Coordinate { .. }) {
                run.dismiss();
            }
            finish(watch.writer);
            return Err(error.into());
        }
        let seconds = run.driver.now().as_secs_f64();
        let is_brief = watch.stopped || stop.load(Ordering::Relaxed);
        let conclude = conclusion(&watch.observer, coordination, is_brief);
        let fingerprint = match run.conclude(&conclude) {
            Ok(fingerprint) => fingerprint,
            Err(error) => {
                finish(watch.writer);
                return Err(error.into());
            }
        };
        for output in std::mem::take(&mut run.outputs) {
            if let ClusterOutput::Line(line) = output {
                let _ = watch.observer.observe(&line);
            }
        }
        run.dismiss();
        let saved = finish(watch.writer);
        // By an earlier coordinator, perhaps.
        let was_stopped = run.driver.coordinator().state().is_stopped();
        let stopped = watch.stopped || was_stopped;
        let mut result = watch.observer.conclude(prepared, stopped, &stop, None);
        // Over restarts of the coordinator, too.
        result.real_seconds = Some(seconds);
        result.stopped = (was_stopped || stop.load(Ordering::Relaxed))
            && result.samples < prepared.plan.samples_total;
        Ok(OnProcesses { result, fingerprint, saved })
    }
}

/// In which settings a job differs from the one that a state was made for; empty if that cannot be read.
fn difference(stored: &str, wanted: &str) -> String {
    let settings = |text: &str| -> Option<BTreeMap<String, Value>> {
        let mut text: BTreeMap<String, Value> = serde_json::from_str(text).ok()?;
        let job: BTreeMap<String, Value> =
            serde_json::from_str(text.remove("json")?.as_str()?).ok()?;
        // Both follow from settings that are compared.
        text.remove("workers_first");
        text.remove("members_min");
        text.extend(job);
        Some(text)
    };
    let Some((stored, wanted)) = settings(stored).zip(settings(wanted)) else {
        return String::new();
    };
    let value = |all: &BTreeMap<String, Value>, name: &str| match all.get(name) {
        None | Some(Value::Null) => "none".to_owned(),
        Some(Value::String(text)) => text.clone(),
        Some(value) => value.to_string(),
    };
    let names: BTreeSet<&String> = stored.keys().chain(wanted.keys()).collect();
    let differ = names.into_iter().filter_map(|name| {
        let (there, here) = (value(&stored, name), value(&wanted, name));
        (there != here)
            .then(|| format!("{} is {there} there and {here} here", name.replace('_', " ")))
    });
    let differ: Vec<String> = differ.collect();
    if differ.is_empty() { String::new() } else { format!(" ({})", differ.join(", ")) }
}

fn counted(count: usize, thing: &str) -> String {
    format!("{count} {thing}{}", if count == 1 { "" } else { "s" })
}

fn cannot_listen(address: SocketAddr, error: &std::io::Error) -> String {
    format!("cannot listen on {address} ({error}); --listen names another address or port")
}

/// The address to type elsewhere: one that listens everywhere does not know its machine's name.
fn reached_at(address: SocketAddr) -> String {
    match address.ip().is_unspecified() {
        true => format!("HOST:{}", address.port()),
        false => address.to_string(),
    }
}

/// Opens what the coordinators before this one have stored. Where there may be others, waits until it is this one's turn.
fn open_store(
    options: &CoordinateOptions,
    text: &str,
    authority: Option<&Authority>,
) -> Result<Opened, RunError> {
    let failed = |error: StoreError| RunError::Coordinate { why: error.to_string() };
    let (place, tls, address, folder) = match &options.state {
        StatePlace::Folder(folder) => return Disk::open(folder).map_err(|it| failed(it.into())),
        StatePlace::Etcd { place, tls, address, folder } => (place, tls, address, folder),
    };
    // It is free now, rather than found to be taken when this coordinator is needed.
    let listen = options.listen;
    let bound = std::net::TcpListener::bind(listen);
    drop(bound.map_err(|error| RunError::Coordinate { why: cannot_listen(listen, &error) })?);
    let opened = Etcd::open(EtcdConfig {
        place: place.clone(),
        tls: tls.clone(),
        address: address.clone(),
        folder: folder.clone(),
        lease: options.patience,
        waits: ETCD_GONE_AFTER * options.patience,
        job: Digest::of(text.as_bytes()).to_string(),
        authority: authority.map_or(String::new(), |it| it.fingerprint().to_string()),
        stop: options.stop.clone(),
        say: options.say,
    });
    opened.map_err(|error| failed(error.into()))
}
