//! A run on workers of other machines, as its coordinator sees it: reads what its driver says, puts snapshots together, and
//! has a member evaluate what was learned.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io::BufRead;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use paceline_coordinator::{Driver, Happened, Service};
use paceline_identity::{Token, write_private};
use paceline_net::processes::frame::Limits;
use paceline_net::processes::message::{Conclude, Down, PackedSnapshot, Up};
use paceline_net::processes::pipe;
use paceline_runtime::coordination::{Collected, Coordination, Input};
use paceline_runtime::edge::ClusterOutput;
use paceline_runtime::wire::Published;
use paceline_runtime::{Line, Record, Snapshot, Spans, WorkerId, WorkerSnapshot};

use super::center_lines::CenterLines;
use super::join::{SNAPSHOT, center_name, part_name};
use super::waiting::Waiting;
use super::wishes::Wishes;
use super::{Note, Pending, Reported};
use crate::error::RunError;
use crate::run::{Next, Request, Running};

/// The longest wait for something to happen.
const IDLE: Duration = Duration::from_millis(20);
/// Members of a coordinator that was started again connect within this time, unless they are gone.
const RETURN: Duration = Duration::from_secs(2);

pub(super) struct RemoteRun {
    pub driver: Driver,
    /// Serves until it is dropped.
    pub service: Service,
    pub files: PathBuf,
    /// Of files with parts of snapshots; they follow from the size of a replica, which the first worker knows.
    pub limits: Limits,
    pub coordination: Coordination,
    pub members_min: usize,
    wishes: Wishes,
    token_file: TokenFile,
    pub say: fn(&str),
    /// The lines up to here were read from the journal of the coordinator before.
    pub is_restarted: bool,
    pub outputs: VecDeque<ClusterOutput>,
    center: CenterLines,
    /// Members that have ended their part in the job.
    ended: BTreeSet<WorkerId>,
    /// Snapshots whose center is on its way.
    pending: BTreeMap<u64, Pending>,
    requests: u64,
    concluded: BTreeMap<WorkerId, Option<u64>>,
    refusals: Refusals,
    waiting: Waiting,
    /// Until then members that are not connected may come back.
    awaits_until: Option<Instant>,
}

/// Says who was refused, but not thousands of times.
struct Refusals {
    since: Instant,
    said: u32,
    unsaid: u32,
}

/// So many refusals are said in this time.
const REFUSALS_MAX: u32 = 10;
const REFUSALS_TIME: Duration = Duration::from_secs(10);

impl Refusals {
    fn say(&mut self, sentence: &str, say: fn(&str)) {
        if self.since.elapsed() > REFUSALS_TIME {
            if self.unsaid > 0 {
                say(&format!("refused {} more connections in the meantime", self.unsaid));
            }
            *self = Refusals { since: Instant::now(), said: 0, unsaid: 0 };
        }
        if self.said < REFUSALS_MAX {
            self.said += 1;
            say(sentence);
        } else {
            self.unsaid += 1;
        }
    }
}

/// What a run is made of.
pub(super) struct RemoteConfig {
    pub driver: Driver,
    pub service: Service,
    pub files: PathBuf,
    pub coordination: Coordination,
    pub members_min: usize,
    pub done_before: Spans,
    pub is_restarted: bool,
    pub wishes: Wishes,
    pub token_file: TokenFile,
    /// Whether there are checkpoints.
    pub saves: bool,
    pub say: fn(&str),
}

/// Where the token of the job is kept, for workers that are started on this machine and for the user.
pub(super) struct TokenFile {
    pub path: PathBuf,
    pub lasts: Duration,
    pub uses: u32,
    /// All coordinators of the job derive the same token; otherwise the file has the only copy.
    pub is_derived: bool,
}

impl TokenFile {
    /// The token of the job: the one that its first coordinator made, so that workers can still join with it.
    pub fn write(&self, driver: &mut Driver) -> Result<Token, RunError> {
        let failed = |why: String| RunError::Coordinate { why };
        if !self.is_derived
            && let Ok(text) = std::fs::read_to_string(&self.path)
            && let Ok(token) = text.trim().parse()
        {
            return Ok(token);
        }
        let token = match self.is_derived {
            true => driver.derived_token(self.lasts, self.uses),
            false => driver.make_token(self.lasts, self.uses),
        };
        let token = token.map_err(|error| failed(error.to_string()))?;
        write_private(&self.path, &format!("{token}\n"))
            .map_err(|error| failed(error.to_string()))?;
        Ok(token)
    }
}

impl RemoteRun {
    pub fn new(config: RemoteConfig) -> RemoteRun {
        let RemoteConfig { driver, service, files, coordination, members_min, .. } = config;
        RemoteRun {
            driver,
            service,
            files,
            limits: Limits::for_snapshots(0, 1),
            coordination,
            members_min,
            wishes: config.wishes,
            token_file: config.token_file,
            say: config.say,
            is_restarted: config.is_restarted,
            awaits_until: config.is_restarted.then(|| Instant::now() + RETURN),
            outputs: VecDeque::new(),
            center: CenterLines::begin(config.done_before),
            ended: BTreeSet::new(),
            pending: BTreeMap::new(),
            requests: 0,
            concluded: BTreeMap::new(),
            refusals: Refusals { since: Instant::now(), said: 0, unsaid: 0 },
            waiting: Waiting::new(config.saves),
        }
    }

    /// The file that has the token.
    pub fn token_file(&self) -> &Path {
        &self.token_file.path
    }

    /// What the coordinators before this one had written to the journal.
    pub fn lines_before(&mut self) -> Vec<Line> {
        let mut lines: Vec<Line> = vec![];
        if self.is_restarted
            && let Ok(file) = std::fs::File::open(self.driver.journal())
        {
            let text = std::io::BufReader::new(file).lines().map_while(Result::ok);
            let text = text.filter_map(|line| serde_json::from_str(&line).ok());
            // The observer has the first lines from the job itself.
            let is_first =
                |line: &Line| matches!(line.record, Record::Began { .. } | Record::Resumed { .. });
            lines.extend(text.skip_while(is_first));
        }
        // A result is reported by every contributor, and has one line.
        let mut reported = Reported::default();
        for line in &lines {
            reported.is_first(line);
            self.read(line);
        }
        self.driver.keep_lines_if(move |line| reported.is_first(line));
        lines
    }

    /// Remembers who has ended its part in the job, and what is in the center.
    fn read(&mut self, line: &Line) {
        if self.coordination == (Coordination::Centered { applies_samples: true }) {
            self.center.read(line);
        }
        if let Record::Finished { who, .. } | Record::Left { who } | Record::PutOut { who } =
            &line.record
        {
            self.ended.insert(*who);
        }
    }

    pub fn turn(&mut self) -> Result<(), RunError> {
        self.wishes.fulfill(&mut self.driver);
        let happened = self.driver.turn(IDLE);
        let happened = happened.map_err(|error| RunError::Coordinate { why: error.to_string() })?;
        for it in happened {
            if let Happened::Coordinators(all) = &it {
                (self.say)(&match &all[..] {
                    [] | [_] => "no standby waits for this coordinator to end".to_owned(),
                    [_, others @ ..] => format!("a standby waits at {}", others.join(" and at ")),
                });
                // Who joins from now on knows them all.
                self.token_file.write(&mut self.driver)?;
            }
            self.take(it);
        }
        self.pending.retain(|_, Pending { host, .. }| {
            let is_here = self.driver.is_here(*host);
            if !is_here {
                let why = format!("its center was lost with worker {host}");
                (self.say)(&format!("a checkpoint is not written: {why}"));
            }
            is_here
        });
        self.waiting.tell(&self.driver);
        Ok(())
    }

    fn take(&mut self, happened: Happened) {
        match happened {
            Happened::Line(Line { record: Record::Restarted, .. }) if self.is_restarted => {
                // It was among the lines that were read when this process started.
                self.is_restarted = false;
            }
            Happened::Line(line) => {
                if let Record::View { members, .. } = &line.record
                    && members.len() < self.members_min
                {
                    let (left, least) = (members.len(), self.members_min);
                    (self.say)(&format!(
                        "{left} of at least {least} workers are left: training waits for others"
                    ));
                }
                self.read(&line);
                self.outputs.push_back(ClusterOutput::Line(line));
            }
            Happened::Note { from, note } => match Note::from(note) {
                Note::Concluded { params } => drop(self.concluded.insert(from, params)),
                Note::Restored { done } => {
                    if let Some(record) = self.center.restored(from, &done) {
                        self.driver.line(Line { at: self.driver.now(), record });
                    }
                }
                Note::SaveWished => self.driver.input(Input::Save),
                Note::Failed { why } => (self.say)(&format!("worker {from} failed: {why}")),
                _ => {}
            },
            Happened::Collected(collected) => self.collected(collected),
            Happened::Stored { path, head, .. } => self.stored(&path, &head.name),
            Happened::Joined { who, address } => {
                (self.say)(&format!("worker {who} has joined, at {address}"));
            }
            Happened::Refused { from, why } => {
                self.refusals.say(&format!("refused {from}: {why}"), self.say)
            }
            Happened::Connected(who) => {
                // What it was asked for in a session that broke may not have arrived.
                for (request, _) in self.pending.iter().filter(|(_, it)| it.host == who) {
                    self.driver.note(who, Note::SendCenter { request: *request }.into());
                }
            }
            Happened::Disconnected(_) | Happened::Coordinators(_) => {}
        }
    }

    fn collected(&mut self, collected: Collected) {
        let mut parts = BTreeMap::new();
        for who in &collected.members {
            let path = self.files.join(part_name(collected.number, *who));
            let Some(Up::Part { part, .. }) = self.load(&path) else { return };
            let _ = std::fs::remove_file(path);
            parts.insert(*who, *part);
        }
        let is_centered = matches!(self.coordination, Coordination::Centered { .. });
        let host = self.driver.coordinator().view().members.first().copied();
        match host.filter(|_| is_centered) {
            Some(who) => {
                self.requests += 1;
                let request = self.requests;
                self.pending.insert(request, Pending { host: who, collected, parts });
                self.driver.note(who, Note::SendCenter { request }.into());
            }
            None => self.assemble(collected, parts, None),
        }
    }

    fn load(&self, path: &Path) -> Option<Up> {
        let bytes = std::fs::read(path).ok()?;
        let mut found = None;
        let take = |up: Up| {
            found = Some(up);
            true
        };
        pipe::receive(bytes.as_slice(), self.limits, take).ok()?;
        found
    }

    /// A file has arrived; a center is the last part of a snapshot.
    fn stored(&mut self, path: &Path, name: &str) {
        let request = self.pending.keys().copied().find(|request| center_name(*request) == name);
        let Some(request) = request else { return };
        let center = match self.load(path) {
            Some(Up::Center { center, .. }) => center.map(|center| *center),
            _ => None,
        };
        let _ = std::fs::remove_file(path);
        if let Some(Pending { collected, parts, .. }) = self.pending.remove(&request) {
            self.assemble(collected, parts, center);
        }
    }

    fn assemble(
        &mut self,
        collected: Collected,
        parts: BTreeMap<WorkerId, WorkerSnapshot>,
        center: Option<Published>,
    ) {
        let snapshot = Snapshot::assemble(collected, parts, center, self.coordination);
        match store(&self.files, SNAPSHOT, &snapshot) {
            Ok(()) => self.driver.input(Input::Saved(snapshot.saved())),
            Err(error) => (self.say)(&format!("cannot keep a snapshot: {error}")),
        }
        self.outputs.push_back(ClusterOutput::Snapshot(Arc::new(snapshot)));
    }

    /// Whether the job is over and every member that is here has ended.
    fn has_ended(&self) -> bool {
        let coordinator = self.driver.coordinator();
        let members = &coordinator.view().members;
        let are_here = members.iter().all(|who| self.driver.is_here(*who));
        // A coordinator that was killed just when the job was over must still tell its members so.
        let may_return = self.awaits_until.is_some_and(|until| Instant::now() < until);
        let is_done = |who: &WorkerId| self.ended.contains(who) || !self.driver.is_here(*who);
        coordinator.is_over() && (are_here || !may_return) && members.iter().all(is_done)
    }

    /// Has one member evaluate what is deployed: the first that can.
    pub fn conclude(&mut self, conclude: &Conclude) -> Result<Option<u64>, RunError> {
        for &who in &conclude.of {
            self.concluded.remove(&who);
            let (mut told_in, mut others) = (None, vec![]);
            while self.driver.is_here(who) {
                let session = self.driver.session(who);
                if session.is_some() && session != told_in {
                    // What was said in a session that broke may not have arrived.
                    self.driver.note(who, Note::Conclude(conclude.clone()).into());
                    (told_in, others) = (session, conclude.of.clone());
                }
                // No view comes any more that would tell it for whose replicas it need not wait.
                for lost in others.extract_if(.., |other| !self.driver.is_here(*other)) {
                    self.driver.note(who, Note::Lost { who: lost }.into());
                }
                self.turn()?;
                if let Some(params) = self.concluded.remove(&who) {
                    return Ok(params);
                }
            }
        }
        Ok(None)
    }

    /// Tells all processes that nothing is left to do, and waits a moment until they have heard it.
    pub fn dismiss(&mut self) {
        if self.driver.confirm().is_err() {
            // Another coordinator decides now.
            return;
        }
        let (since, mut told) = (Instant::now(), BTreeMap::new());
        while since.elapsed() < Duration::from_secs(2) {
            let all: Vec<WorkerId> = self.driver.connected().collect();
            if all.is_empty() {
                return;
            }
            for who in all {
                // One whose connection broke may come back meanwhile.
                let session = self.driver.session(who);
                if told.insert(who, session) != Some(session) {
                    self.driver.note(who, Note::Dismissed.into());
                }
            }
            if self.turn().is_err() {
                return;
            }
        }
    }
}

impl Running for RemoteRun {
    fn next(&mut self) -> Result<Next, RunError> {
        if self.outputs.is_empty() {
            self.turn()?;
        }
        Ok(match self.outputs.pop_front() {
            Some(output) => Next::Output(output),
            None if self.has_ended() && self.pending.is_empty() => Next::Ended,
            None => Next::Idle,
        })
    }

    fn stop(&mut self) {
        self.driver.input(Input::Stop);
    }

    fn save(&mut self) {
        self.driver.input(Input::Save);
    }

    fn put_out(&mut self, request: Request) -> Result<(), String> {
        self.driver.input(request.input());
        Ok(())
    }
}

/// Writes a snapshot where workers can fetch it: whole, or not at all.
pub(super) fn store(files: &Path, name: &str, snapshot: &Snapshot) -> std::io::Result<()> {
    let mut bytes = vec![];
    pipe::send(&mut bytes, &Down::Snapshot(PackedSnapshot::pack(snapshot)))?;
    let aside = files.join(format!(".{name}"));
    std::fs::write(&aside, bytes)?;
    std::fs::rename(aside, files.join(name))
}
