//! A worker process that joins a coordinator on another machine: over TLS, with words and orders that are numbered and
//! sent again when the connection breaks.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::{Duration, Instant};

use paceline_coordinator::{
    Client, ClientError, Coordinators, Heard, Invitation, Place, Proof, Said, Speaker,
};
use paceline_identity::{Credentials, Token};
use paceline_net::processes::frame::Limits;
use paceline_net::processes::message::{Down, JobText, PackedSnapshot, Up};
use paceline_net::processes::{Clock, Ended, Gradients, pipe};
use paceline_runtime::coordination::{Order, Word};
use paceline_runtime::{HostLine, Line, Record, WorkerId};

use super::clock_error::ToldError;
use super::orphan::{Orphan, SharedOrphan};
use super::own::{Addresses, common_initial};
use super::worker::{Life, listen, prepare, spawn};
use super::{Note, WorkerSignals, version};
use crate::config::Job;
use crate::error::{Error, RunError};
use crate::facts::Facts;
use crate::hosts::Hosts;
use crate::job::Prepared;
use crate::recipes::{Recipe, built_in};
use crate::task::Task;

/// How a worker finds its coordinator.
pub struct JoinOptions {
    /// Host and port; of several coordinators, with commas between them.
    pub coordinator: String,
    pub token: Token,
    /// Where peers reach this worker, if not at the address from which it connects.
    pub advertise: Option<SocketAddr>,
    /// Where the data are, if not in the default folder.
    pub data_dir: Option<PathBuf>,
    /// Neither encrypts nor authenticates.
    pub insecure: bool,
    pub signals: WorkerSignals,
    /// Makes a folder for what was learned, if the coordinator is gone for good.
    pub rescue: fn() -> std::io::Result<PathBuf>,
    /// Called with a message for the user.
    pub say: fn(&str),
}

/// A coordinator that cannot be reached when a worker starts is waited for.
const FIRST_WAIT: Duration = Duration::from_secs(30);
/// After this time the user is told what is waited for.
const FIRST_WORD: Duration = Duration::from_secs(2);
/// A coordinator that is away for this many times the patience is gone for good.
const GONE_AFTER: u32 = 12;
/// What an orphan has sent to its peers is on its way for this long.
const LINGER: Duration = Duration::from_secs(1);
/// What a worker said last must arrive before it ends.
const LAST_WORDS: Duration = Duration::from_secs(5);
/// A file that could not be stored or fetched is tried again after this time.
const AGAIN: Duration = Duration::from_millis(200);
/// A life of less than this many times the patience was a short one.
const SHORT_LIFE: u32 = 4;
/// The longest wait after several short lives.
const WAIT_MAX: Duration = Duration::from_secs(30);
/// The name of the file that holds the snapshot from which members begin anew.
pub(super) const SNAPSHOT: &str = "snapshot";
/// The name of the file that holds the snapshot from which the job was resumed.
pub(super) const RESUMED: &str = "resumed";

/// The model, the optimizer and the data of a program that holds them itself: each worker has a host.
pub struct HostProgram {
    /// What the engine must know of model and data: sizes, shapes, and how many samples there are.
    pub task: Task,
    /// Differs if the data, or what members must have in common besides the job, differ.
    pub data: u64,
    /// Where this worker's connections lead, as far as they are known.
    pub addresses: Addresses,
}

/// Works for a coordinator until the job is over.
pub fn join(options: JoinOptions, recipes: &[Recipe]) -> Result<(), Error> {
    join_as(options, recipes, None)
}

/// As [`join`], for a program of the user's own. `host` runs on a thread of its own for each life of the worker (one that was put
/// out joins anew), and answers what the worker asks until its line ends.
pub fn join_hosted(
    options: JoinOptions,
    program: HostProgram,
    host: impl Fn(HostLine) + Send + Sync + 'static,
) -> Result<(), Error> {
    let hosts = Hosts::new(host);
    let joined = join_as(options, built_in(), Some((&program, &hosts)));
    if joined.is_ok() {
        hosts.join()?;
    } else {
        hosts.join_ended()?;
    }
    joined
}

fn join_as(
    options: JoinOptions,
    recipes: &[Recipe],
    hosted: Option<(&HostProgram, &Hosts)>,
) -> Result<(), Error> {
    let JoinOptions { coordinator, token, signals, .. } = &options;
    let JoinOptions { advertise, insecure, say, .. } = options;
    let failed = |error: ClientError| RunError::Join { why: error.to_string() };
    let mut proof = Proof::Token(token.clone());
    let mut known: Option<Known> = None;
    let mut short_lives = 0;
    let coordinators = Coordinators::new(coordinator.split(',').map(str::to_owned));
    loop {
        let invitation = Invitation::new(&coordinators, proof.clone(), &version(), insecure);
        let described = match invitation.look(FIRST_WORD) {
            Err(error) if error.is_passing() => {
                say(&format!("{error}; trying for {} s", FIRST_WAIT.as_secs()));
                invitation.look(FIRST_WAIT).map_err(failed)?
            }
            Err(ClientError::Over) => {
                say(&ClientError::Over.to_string());
                return Ok(());
            }
            described => described.map_err(failed)?,
        };
        if known.as_ref().is_none_or(|known| known.text != described.text) {
            known = Some(Known::prepare(described.text, &options, recipes, hosted.map(|it| it.0))?);
        }
        let Some(Known { job, prepared, facts, is_resumed, .. }) = &mut known else { continue };
        let (listener, bound) = listen(listens_at(&coordinators.all(), advertise))?;
        let address = advertise.unwrap_or(bound).to_string();
        let place = invitation.join(&address, facts, FIRST_WAIT).map_err(failed)?;
        let since = Instant::now();
        let Place { who, patience, ref credentials, .. } = place;
        let clock = Clock::from(place.clock.now());
        say(&format!("joined as worker {who}; peers reach it at {}", place.address));
        let client = Client::start(&place, GONE_AFTER * patience).map_err(failed)?;
        let speaker = client.speaker();
        let limits = Limits::for_snapshots(prepared.plan.initial.len(), 1 << 10);
        if *is_resumed && prepared.plan.resumed.is_none() {
            let snapshot = fetch(&speaker, RESUMED, limits, || Instant::now() < since + FIRST_WAIT)
                .map_err(|why| RunError::Join {
                    why: format!("cannot get the checkpoint: {why}"),
                })?;
            prepared.plan.resumed = Some(Arc::new(snapshot.unpack()));
        }
        let addresses = hosted.map(|(program, _)| program.addresses.clone()).unwrap_or_default();
        if hosted.is_some() {
            addresses.add([bound]);
            addresses.add(resolved(&coordinators));
            let initial = common_initial(&speaker, who, &prepared.plan.initial, limits)?;
            prepared.plan.initial = Arc::new(initial);
        }
        let (up, words) = mpsc::channel();
        let (to, down) = mpsc::channel();
        let is_over = Arc::<AtomicBool>::default();
        let orphan = SharedOrphan::new(Orphan::new(who, prepared));
        let mouth = Mouth {
            who,
            speaker: speaker.clone(),
            is_over: is_over.clone(),
            orphan: orphan.clone(),
            to: to.clone(),
        };
        let speaking = spawn("speak", move || mouth.speak(words));
        let ear = Ear {
            who,
            client,
            coordinators: coordinators.clone(),
            is_over,
            orphan: orphan.clone(),
            to,
            limits,
            addresses,
            clock: clock.clone(),
            say,
        };
        let hearing = spawn("hear", move || ear.hear());
        let security: Option<Credentials> = credentials.clone();
        let life = Life {
            id: who,
            clock: clock.clone(),
            secret: [0, 0],
            security: security.clone(),
            patience,
            gradients: match hosted.map(|(_, hosts)| hosts.clone()) {
                Some(hosts) => Gradients::Theirs(Box::new(move |line| hosts.start(line))),
                None => Gradients::Ours { compute: prepared.compute(), pace: Duration::ZERO },
            },
            listener,
            up,
            down,
        };
        let lived = life.live(prepared, signals);
        short_lives = if since.elapsed() < SHORT_LIFE * patience { short_lives + 1 } else { 0 };
        if let Err(error) = &lived {
            speaker.say(Said::Note(Note::Failed { why: error.to_string() }.into()));
        }
        // All that holds the queue to the coordinator is dropped by now.
        let _ = speaking.join();
        let mut orphan = orphan.lock();
        if orphan.is_orphaned() {
            // What this worker has sent to its peers must leave the machine before its links are closed.
            std::thread::sleep(LINGER);
            lived?;
            return Err(orphan.conclude(job, prepared, options.rescue, say).into());
        }
        drop(orphan);
        speaker.flush(LAST_WORDS);
        drop(speaker);
        let (ended, stream) = lived?;
        drop(stream);
        if let Ok(Err(why)) = hearing.join() {
            return Err(why.into());
        }
        match ended {
            Ended::PutOut { banned: false, why } => {
                wait_before_life(short_lives, patience, &signals.leave);
                if signals.leave.load(Ordering::Relaxed) {
                    return Ok(());
                }
                say(&format!("put out ({why}): joining again under a new id"));
                proof = security.map_or(Proof::Token(token.clone()), Proof::Certificate);
            }
            Ended::PutOut { why, .. } => return Err(RunError::PutOut { why }.into()),
            Ended::Dismissed => return Ok(()),
            Ended::Disconnected => return Err(RunError::CoordinatorGone.into()),
        }
    }
}

/// The job that the coordinator describes, prepared on this machine.
struct Known {
    text: String,
    job: Job,
    prepared: Prepared,
    /// What the coordinator must know of it.
    facts: String,
    is_resumed: bool,
}

impl Known {
    fn prepare(
        text: String,
        options: &JoinOptions,
        recipes: &[Recipe],
        own: Option<&HostProgram>,
    ) -> Result<Known, Error> {
        let unreadable =
            |error: serde_json::Error| RunError::JobUnreadable { why: error.to_string() };
        let mut described: JobText = serde_json::from_str(&text).map_err(unreadable)?;
        let job: Job = serde_json::from_str(&described.json).map_err(unreadable)?;
        let job = Job { data_dir: options.data_dir.clone(), ..job };
        described.json = serde_json::to_string(&job).map_err(unreadable)?;
        let is_resumed = described.is_resumed;
        let prepared = prepare(described, recipes, own.map(|program| &program.task))?;
        let mut facts = Facts::of(&prepared.task);
        if let Some(program) = own {
            facts.data = format!("{:016x}", program.data);
        }
        let facts = serde_json::to_string(&facts).expect("facts are plain data");
        Ok(Known { text, job, prepared, facts, is_resumed })
    }
}

/// A worker that some members cannot reach is put out again and again, and each time all wait for it: it comes back less and less
/// often.
fn wait_before_life(short_lives: u32, patience: Duration, leave: &AtomicBool) {
    let doublings = short_lives.saturating_sub(2).min(16);
    let wait = if short_lives < 2 { Duration::ZERO } else { patience * 2u32.pow(doublings) };
    let since = Instant::now();
    while since.elapsed() < wait.min(WAIT_MAX) && !leave.load(Ordering::Relaxed) {
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Gets a snapshot from the coordinator. One that is away is waited for, as long as `waits` says so.
fn fetch(
    speaker: &Speaker,
    name: &str,
    limits: Limits,
    waits: impl Fn() -> bool,
) -> Result<PackedSnapshot, String> {
    let bytes = loop {
        match speaker.fetch(name, limits.body) {
            Ok(bytes) => break bytes,
            Err(error) if error.is_passing() && waits() => std::thread::sleep(AGAIN),
            Err(error) => return Err(error.to_string()),
        }
    };
    let mut found = None;
    let take = |down: Down| {
        if let Down::Snapshot(snapshot) = down {
            found = Some(snapshot);
        }
        true
    };
    pipe::receive(bytes.as_slice(), limits, take).map_err(|error| error.to_string())?;
    found.ok_or_else(|| "it holds no snapshot".to_owned())
}

/// Says to the coordinator what the worker says.
struct Mouth {
    who: WorkerId,
    speaker: Speaker,
    is_over: Arc<AtomicBool>,
    orphan: SharedOrphan,
    to: Sender<Down>,
}

impl Mouth {
    fn speak(self, words: Receiver<Up>) {
        for up in words {
            let told = self.orphan.lock().hear(&up);
            for down in told {
                drop(self.to.send(down));
            }
            match up {
                _ if self.orphan.lock().is_orphaned() => {}
                Up::Word(word) => {
                    let is_gone = word == Word::Gone;
                    if let Word::Restored { done, .. } = &word {
                        self.note(Note::Restored { done: done.clone() });
                    }
                    self.speaker.say(Said::Word(word));
                    if is_gone && !self.is_over.load(Ordering::SeqCst) {
                        // It has left: nobody needs anything more of it.
                        drop(self.to.send(Down::Dismissed));
                    }
                }
                Up::Line(line) => self.speaker.say(Said::Line(line)),
                Up::Part { ref part, ref done } => {
                    // The vectors are on the coordinator's disk before it hears of them.
                    let (name, word) = (part_name(part.number, self.who), part.word(done.clone()));
                    if self.store(&name, &up) {
                        self.speaker.say(Said::Word(word));
                    }
                }
                Up::Center { request, .. } => {
                    self.store(&center_name(request), &up);
                }
                Up::Concluded { params } => self.note(Note::Concluded { params }),
                Up::SaveWished => self.note(Note::SaveWished),
                Up::Failed { why } => self.note(Note::Failed { why }),
                Up::Hello { .. } | Up::Beat => {}
            }
        }
    }

    fn note(&self, note: Note) {
        self.speaker.say(Said::Note(note.into()));
    }

    fn store(&self, name: &str, up: &Up) -> bool {
        let mut bytes = vec![];
        if pipe::send(&mut bytes, up).is_err() {
            return false;
        }
        let bytes = bytes::Bytes::from(bytes);
        // A coordinator that is away is waited for, as for everything that is said to it.
        loop {
            match self.speaker.store(name, bytes.clone()) {
                Ok(()) => return true,
                Err(_) if self.orphan.lock().is_orphaned() => return false,
                Err(error) if error.is_passing() && self.to.send(Down::Idle).is_ok() => {
                    std::thread::sleep(AGAIN);
                }
                Err(_) => return false,
            }
        }
    }
}

pub(super) fn part_name(number: u64, who: WorkerId) -> String {
    format!("part-{number}-{who}")
}

pub(super) fn center_name(request: u64) -> String {
    format!("center-{request}")
}

/// Hears what the coordinator orders.
struct Ear {
    who: WorkerId,
    client: Client,
    coordinators: Coordinators,
    is_over: Arc<AtomicBool>,
    orphan: SharedOrphan,
    to: Sender<Down>,
    limits: Limits,
    addresses: Addresses,
    clock: Clock,
    say: fn(&str),
}

impl Ear {
    /// Until the worker's time is over, or the coordinator is given up. `Err` if the worker must end before its time.
    fn hear(self) -> Result<(), RunError> {
        let heard = self.follow_orders();
        if heard.is_err() {
            // Nobody else would tell it.
            drop(self.to.send(Down::Dismissed));
        }
        heard
    }

    fn follow_orders(&self) -> Result<(), RunError> {
        let speaker = self.client.speaker();
        let mut told = ToldError::default();
        loop {
            let Some(heard) = self.client.recv_timeout(Duration::from_millis(100)) else {
                if self.to.send(Down::Idle).is_err() {
                    return Ok(());
                }
                continue;
            };
            let is_taken = match heard {
                Heard::Order { order, peers } => {
                    for peer in peers.into_iter().filter(|peer| peer.who != self.who) {
                        let resolved = peer.address.to_socket_addrs().ok();
                        if let Some(address) = resolved.and_then(|mut all| all.next()) {
                            self.addresses.add([address]);
                            let _ = self.to.send(Down::Peer { who: peer.who, address });
                        }
                    }
                    if let Order::Start { from_saved: true, .. } = &order {
                        let waits = || self.to.send(Down::Idle).is_ok();
                        match fetch(&speaker, SNAPSHOT, self.limits, waits) {
                            Ok(snapshot) => drop(self.to.send(Down::Snapshot(snapshot))),
                            Err(why) => {
                                let why = format!("cannot get the newest snapshot: {why}");
                                return Err(RunError::Join { why });
                            }
                        }
                    }
                    self.orphan.lock().follow(&order);
                    self.is_over.fetch_or(order == Order::Over, Ordering::SeqCst);
                    self.to.send(Down::Order(order)).is_ok()
                }
                Heard::Note(note) => match Note::from(note) {
                    Note::Conclude(conclude) => self.to.send(Down::Conclude(conclude)).is_ok(),
                    Note::SendCenter { request } => {
                        self.to.send(Down::SendCenter { request }).is_ok()
                    }
                    Note::Lost { who } => self.to.send(Down::Lost { who }).is_ok(),
                    Note::Dismissed => self.to.send(Down::Dismissed).is_ok(),
                    Note::Told { text } => {
                        (self.say)(&text);
                        true
                    }
                    _ => true,
                },
                Heard::Clock(reading) => {
                    self.clock.set(reading.at, reading.shown);
                    if let Some(error) = told.news(reading.at, reading.error) {
                        let record = Record::ClockSet { who: self.who, error };
                        speaker.say(Said::Line(Line { at: self.clock.now(), record }));
                    }
                    true
                }
                Heard::Broken => {
                    (self.say)("the coordinator is away; training goes on");
                    true
                }
                Heard::Back => {
                    (self.say)("the coordinator is back");
                    // It may be another one, at another address.
                    self.addresses.add(resolved(&self.coordinators));
                    true
                }
                Heard::Refused(why) => return Err(RunError::Refused { why }),
                Heard::GaveUp => {
                    self.orphaned();
                    return Ok(());
                }
            };
            if !is_taken {
                return Ok(());
            }
        }
    }
}

impl Ear {
    /// The coordinator is gone for good: the worker finishes what it can.
    fn orphaned(&self) {
        (self.say)("the coordinator is gone for good; this worker finishes what it can");
        let told = self.orphan.lock().abandon();
        for down in told {
            drop(self.to.send(down));
        }
        // The worker's stream lasts until it needs nothing more.
        while self.to.send(Down::Idle).is_ok() {
            std::thread::sleep(AGAIN);
        }
    }
}

fn resolved(coordinators: &Coordinators) -> Vec<SocketAddr> {
    let all = coordinators.all();
    all.iter().filter_map(|it| it.to_socket_addrs().ok()).flatten().collect()
}

/// Where a worker waits for its peers: on all networks, unless its coordinators are on this machine and nothing else was said.
fn listens_at(coordinators: &[String], advertise: Option<SocketAddr>) -> SocketAddr {
    let all = coordinators.iter().filter_map(|it| it.to_socket_addrs().ok());
    let mut found = all.flatten().peekable();
    let is_here = found.peek().is_some() && found.all(|address| address.ip().is_loopback());
    let (ip, port) = match advertise {
        Some(address) => (Ipv4Addr::UNSPECIFIED, address.port()),
        None if is_here => (Ipv4Addr::LOCALHOST, 0),
        None => (Ipv4Addr::UNSPECIFIED, 0),
    };
    SocketAddr::new(IpAddr::V4(ip), port)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_of_a_coordinator_on_this_machine_listens_only_here() {
        let at = |coordinators: &str, advertise: Option<&str>| {
            let advertise = advertise.map(|text| text.parse().expect("an address"));
            let all: Vec<String> = coordinators.split(',').map(str::to_owned).collect();
            listens_at(&all, advertise).to_string()
        };
        assert_eq!(at("127.0.0.1:7070", None), "127.0.0.1:0");
        assert_eq!(at("10.0.0.1:7070", None), "0.0.0.0:0");
        assert_eq!(at("127.0.0.1:7070,10.0.0.1:7070", None), "0.0.0.0:0");
        assert_eq!(at("127.0.0.1:7070", Some("10.0.0.2:99")), "0.0.0.0:99");
    }
}
