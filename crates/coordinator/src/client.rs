//! A worker's session with the coordinator, which outlives its connections.
//!
//! The calls block. Behind them one thread keeps the connection, answers for the worker's life while it computes, connects again
//! when it breaks, and sends again what the coordinator has not acknowledged.

use std::sync::mpsc as channel;
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use paceline_identity::{Credentials, stream_client};
use paceline_runtime::coordination::Order;
use paceline_runtime::coordination::session::{Outbox, is_next};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Interval, MissedTickBehavior, interval, timeout};
use tokio_stream::wrappers::UnboundedReceiverStream;

use crate::connection::{ANSWER, ClientError, PAUSE_FIRST, PAUSE_MAX, Target, runtime};
use crate::coordinators::Coordinators;
use crate::join::Place;
use crate::messages::*;
use crate::reading::{ClockReading, Readings};

/// What a worker hears.
#[derive(Clone, Debug, PartialEq)]
pub enum Heard {
    /// `peers`: where the members that the order names are reached.
    Order {
        order: Order,
        peers: Vec<Peer>,
    },
    Note(serde_json::Value),
    /// What the coordinator's clock shows, measured with a heartbeat: the best that is known.
    Clock(ClockReading),
    /// The connection broke. What is said now is sent later.
    Broken,
    /// The connection stands again.
    Back,
    /// The coordinator does not accept this worker any more.
    Refused(String),
    /// The coordinator could not be reached for as long as the caller had said.
    GaveUp,
}

/// A session. It ends when it is dropped.
pub struct Client {
    commands: Option<mpsc::UnboundedSender<Command>>,
    heard: channel::Receiver<Heard>,
    thread: Option<JoinHandle<()>>,
}

enum Command {
    Say(Said),
    /// Answers when everything that was said so far is acknowledged.
    Flush(oneshot::Sender<()>),
    Store {
        name: String,
        bytes: Bytes,
        done: oneshot::Sender<Result<(), ClientError>>,
    },
    Fetch {
        name: String,
        bytes_max: u64,
        done: oneshot::Sender<Result<Vec<u8>, ClientError>>,
    },
}

impl Client {
    /// Opens the session. `gives_up_after`: how long it tries to connect again.
    pub fn start(place: &Place, gives_up_after: Duration) -> Result<Client, ClientError> {
        let (commands, receiver) = mpsc::unbounded_channel();
        let (sender, heard) = channel::channel();
        let runtime = runtime()?;
        let Place { who, coordinators, credentials, patience, .. } = place.clone();
        let claims = credentials.is_none().then_some(who);
        let first = coordinators.all().swap_remove(0);
        let target = Target::new(&first, credentials.as_ref().map(stream_client), claims);
        let keeper = Keeper {
            target,
            coordinators,
            credentials,
            patience,
            gives_up_after,
            heard: sender,
            words: Outbox::default(),
            said: 0,
            acknowledged: 0,
            flushes: vec![],
            received: 0,
            readings: Readings::default(),
            opened: Instant::now(),
        };
        let run = move || runtime.block_on(keeper.run(receiver));
        let thread = std::thread::Builder::new().name("session".to_owned()).spawn(run);
        let thread = thread.map_err(|error| ClientError::Broken(error.to_string()))?;
        Ok(Client { commands: Some(commands), heard, thread: Some(thread) })
    }

    /// Never waits. What is said arrives once and in order, unless the session is given up.
    pub fn say(&self, said: Said) {
        self.speaker().say(said);
    }

    pub fn try_recv(&self) -> Option<Heard> {
        self.heard.try_recv().ok()
    }

    /// `None` if nothing was heard in this time.
    pub fn recv_timeout(&self, wait: Duration) -> Option<Heard> {
        match self.heard.recv_timeout(wait) {
            Ok(heard) => Some(heard),
            Err(channel::RecvTimeoutError::Timeout) => None,
            Err(channel::RecvTimeoutError::Disconnected) => Some(Heard::GaveUp),
        }
    }

    /// Speaks for the session, from any thread. The session lives until its speakers are dropped, too.
    pub fn speaker(&self) -> Speaker {
        Speaker { commands: self.commands.clone() }
    }

    /// As [`Speaker::flush`].
    pub fn flush(&self, wait: Duration) -> bool {
        self.speaker().flush(wait)
    }

    /// As [`Speaker::store`].
    pub fn store(&self, name: &str, bytes: Bytes) -> Result<(), ClientError> {
        self.speaker().store(name, bytes)
    }

    /// As [`Speaker::fetch`].
    pub fn fetch(&self, name: &str, bytes_max: u64) -> Result<Vec<u8>, ClientError> {
        self.speaker().fetch(name, bytes_max)
    }
}

/// The half of a session that speaks.
#[derive(Clone)]
pub struct Speaker {
    commands: Option<mpsc::UnboundedSender<Command>>,
}

impl Speaker {
    /// Never waits. What is said arrives once and in order, unless the session is given up.
    pub fn say(&self, said: Said) {
        self.command(Command::Say(said));
    }

    /// Waits until the coordinator has logged everything that was said. `false`: it has not, in this time.
    pub fn flush(&self, wait: Duration) -> bool {
        let (done, waiting) = oneshot::channel();
        self.command(Command::Flush(done));
        let Ok(runtime) = runtime() else { return false };
        runtime.block_on(async { matches!(timeout(wait, waiting).await, Ok(Ok(()))) })
    }

    /// Stores a file with the coordinator, and waits until it is on its disk.
    pub fn store(&self, name: &str, bytes: Bytes) -> Result<(), ClientError> {
        let (done, waiting) = oneshot::channel();
        self.command(Command::Store { name: name.to_owned(), bytes, done });
        waiting.blocking_recv().unwrap_or_else(|_| Err(ended()))
    }

    /// Gets a file that some worker has stored.
    pub fn fetch(&self, name: &str, bytes_max: u64) -> Result<Vec<u8>, ClientError> {
        let (done, waiting) = oneshot::channel();
        self.command(Command::Fetch { name: name.to_owned(), bytes_max, done });
        waiting.blocking_recv().unwrap_or_else(|_| Err(ended()))
    }

    fn command(&self, command: Command) {
        if let Some(commands) = &self.commands {
            // A session that was given up has said so.
            let _ = commands.send(command);
        }
    }
}

fn ended() -> ClientError {
    ClientError::Broken("the session has ended".to_owned())
}

impl Drop for Client {
    fn drop(&mut self) {
        drop(self.commands.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// How many heartbeats a connection begins with, and the time between them.
const FIRST_BEATS: u32 = 4;
const FIRST_BEAT: Duration = Duration::from_millis(50);

/// Keeps the session.
struct Keeper {
    /// The coordinator that answered last.
    target: Target,
    coordinators: Coordinators,
    credentials: Option<Credentials>,
    patience: Duration,
    gives_up_after: Duration,
    heard: channel::Sender<Heard>,
    /// What is not acknowledged. It grows while the coordinator is away, for `gives_up_after` at most.
    words: Outbox<Said>,
    said: u64,
    acknowledged: u64,
    flushes: Vec<(u64, oneshot::Sender<()>)>,
    /// How many numbered orders have arrived.
    received: u64,
    /// Of the coordinator's clock, over this connection.
    readings: Readings,
    opened: Instant,
}

/// Why a connection ended.
enum End {
    Broken,
    Dropped,
    Refused(String),
}

type Commands = mpsc::UnboundedReceiver<Command>;
type Messages = mpsc::UnboundedSender<Bytes>;

impl Keeper {
    async fn run(mut self, mut commands: Commands) {
        let mut last_contact = Instant::now();
        let mut was_connected = false;
        let mut pause = PAUSE_FIRST;
        loop {
            let end = match self.connect(was_connected).await {
                Ok((down, up)) => {
                    (was_connected, pause) = (true, PAUSE_FIRST);
                    let end = self.converse(down, up, &mut commands).await;
                    last_contact = Instant::now();
                    if matches!(end, End::Broken) {
                        // It may be stopped, or cut off, and would take its time to not answer.
                        self.coordinators.failed(&self.target.address);
                        let _ = self.heard.send(Heard::Broken);
                    }
                    end
                }
                Err(error) if error.is_passing() => End::Broken,
                Err(error) => End::Refused(error.to_string()),
            };
            let heard = match end {
                End::Dropped => return,
                End::Refused(why) => Heard::Refused(why),
                End::Broken if last_contact.elapsed() > self.gives_up_after => Heard::GaveUp,
                End::Broken => {
                    if self.pause(pause, &mut commands).await {
                        return;
                    }
                    pause = (2 * pause).min(PAUSE_MAX);
                    continue;
                }
            };
            let _ = self.heard.send(heard);
            return;
        }
    }

    /// Waits before the next attempt; what is said meanwhile is kept. `true`: the session is dropped.
    async fn pause(&mut self, pause: Duration, commands: &mut Commands) -> bool {
        let wait = tokio::time::sleep(pause);
        tokio::pin!(wait);
        loop {
            tokio::select! {
                () = &mut wait => return false,
                command = commands.recv() => match command {
                    None => return true,
                    Some(command) => self.obey(command, None),
                }
            }
        }
    }

    /// Opens a session with the coordinator that is active.
    async fn connect(
        &mut self,
        was_connected: bool,
    ) -> Result<(tonic::Streaming<Bytes>, Messages), ClientError> {
        let coordinators = self.coordinators.clone();
        let (down, up) = coordinators
            .try_all(async |address: &str, is_only| {
                self.target = self.target.at(address, is_only, self.patience);
                self.open().await
            })
            .await?;
        for (number, said) in self.words.unacknowledged() {
            let _ = up.send(encode(&Up::Said { number, said }));
        }
        if was_connected {
            let _ = self.heard.send(Heard::Back);
        }
        Ok((down, up))
    }

    async fn open(&mut self) -> Result<(tonic::Streaming<Bytes>, Messages), ClientError> {
        let mut connection = self.target.connect().await?;
        let (up, messages) = mpsc::unbounded_channel();
        let _ = up.send(encode(&Up::Hello { received: self.received }));
        let mut down = connection.stream(SESSION, UnboundedReceiverStream::new(messages)).await?;
        // Both sides say how much they have, so that only what is missing is sent again.
        loop {
            let welcome = timeout(self.patience.min(ANSWER), down.message()).await;
            let welcome = welcome.map_err(|_| ClientError::Broken("no answer".to_owned()))??;
            let welcome = welcome.ok_or_else(|| ClientError::Broken("no answer".to_owned()))?;
            match decode(&welcome)? {
                Down::Welcome { heard, incarnation, coordinators, .. } => {
                    if !self.coordinators.is_newest(incarnation) {
                        let why = "another coordinator has taken its place".to_owned();
                        return Err(ClientError::Broken(why));
                    }
                    self.coordinators.learn(coordinators);
                    self.acknowledge(heard);
                    return Ok((down, up));
                }
                Down::Beat | Down::Echo { .. } | Down::Coordinators(_) => {}
                _ => return Err(ClientError::Broken("a session begins with a welcome".to_owned())),
            }
        }
    }

    /// Talks until the connection ends.
    async fn converse(
        &mut self,
        mut down: tonic::Streaming<Bytes>,
        up: Messages,
        commands: &mut Commands,
    ) -> End {
        let beat = (self.patience / 5).clamp(Duration::from_millis(10), Duration::from_secs(1));
        let mut beats = every(beat);
        // The first ones come at once: the worker is about to begin, and should know the time.
        let (mut first, mut firsts) = (FIRST_BEATS, every(FIRST_BEAT.min(beat)));
        let mut renewals = every(Duration::from_secs(600));
        let mut last_heard = Instant::now();
        // It may be another coordinator.
        self.readings.forget();
        self.opened = Instant::now();
        loop {
            tokio::select! {
                message = down.message() => {
                    last_heard = Instant::now();
                    let message = match message {
                        Ok(Some(bytes)) => decode(&bytes),
                        Ok(None) => return End::Broken,
                        Err(status) => Err(status),
                    };
                    match message {
                        Ok(message) => self.hear(message, &up),
                        Err(status) => return match ClientError::from(status) {
                            ClientError::Refused(why) => End::Refused(why),
                            _ => End::Broken,
                        },
                    }
                }
                command = commands.recv() => match command {
                    None => return End::Dropped,
                    Some(command) => self.obey(command, Some(&up)),
                },
                _ = beats.tick() => {
                    if last_heard.elapsed() > self.patience || up.send(encode(&self.beat())).is_err() {
                        return End::Broken;
                    }
                }
                _ = firsts.tick(), if first > 0 => {
                    first -= 1;
                    let _ = up.send(encode(&self.beat()));
                }
                _ = renewals.tick() => {
                    if let Some(credentials) = self.credentials.as_ref().filter(|it| it.is_old(SystemTime::now())) {
                        let _ = up.send(encode(&Up::Renew(credentials.request())));
                    }
                }
            }
        }
    }

    fn hear(&mut self, message: Down, up: &Messages) {
        let heard = match message {
            Down::Order { number: 0, order, peers } => Heard::Order { order, peers },
            Down::Order { number, order, peers } => {
                let is_new = is_next(&mut self.received, number);
                // A worker that dies before it obeys comes back under another id: an order that is here need not come again.
                let _ = up.send(encode(&Up::Obeyed { number: self.received }));
                if !is_new {
                    return;
                }
                Heard::Order { order, peers }
            }
            Down::Heard { number } => return self.acknowledge(number),
            Down::Renewed(certificate) => {
                // One that does not fit is of no use; the old one lasts, and another is asked for later.
                let _ = self.credentials.as_ref().map(|credentials| credentials.renew(certificate));
                return;
            }
            Down::Note(note) => Heard::Note(note),
            Down::Echo { sent, now } => {
                let Some(sent) = self.opened.checked_add(sent) else { return };
                let reading = ClockReading::of_round_trip(sent, now, now, Instant::now());
                Heard::Clock(self.readings.add(reading))
            }
            Down::Coordinators(all) => return self.coordinators.learn(all),
            Down::Beat | Down::Welcome { .. } => return,
        };
        let _ = self.heard.send(heard);
    }

    fn beat(&self) -> Up {
        Up::Beat { sent: self.opened.elapsed() }
    }

    fn acknowledge(&mut self, number: u64) {
        self.words.acknowledged(number);
        self.acknowledged = self.acknowledged.max(number);
        let acknowledged = self.acknowledged;
        for (_, done) in self.flushes.extract_if(.., |(number, _)| *number <= acknowledged) {
            let _ = done.send(());
        }
    }

    fn obey(&mut self, command: Command, up: Option<&Messages>) {
        match command {
            Command::Say(said) => {
                let message = up.map(|_| said.clone());
                self.said = self.words.send(said);
                if let (Some(up), Some(said)) = (up, message) {
                    let _ = up.send(encode(&Up::Said { number: self.said, said }));
                }
            }
            Command::Flush(done) => {
                self.flushes.push((self.said, done));
                self.acknowledge(self.acknowledged);
            }
            // Files have connections of their own: they must not hold up heartbeats.
            Command::Store { name, bytes, done } => {
                let target = self.target.clone();
                tokio::spawn(async move { drop(done.send(store(&target, name, bytes).await)) });
            }
            Command::Fetch { name, bytes_max, done } => {
                let target = self.target.clone();
                tokio::spawn(async move { drop(done.send(fetch(&target, name, bytes_max).await)) });
            }
        }
    }
}

async fn store(target: &Target, name: String, bytes: Bytes) -> Result<(), ClientError> {
    let head = encode(&FileHead { name, bytes: bytes.len() as u64 });
    let starts = (0..bytes.len()).step_by(CHUNK);
    let chunks: Vec<Bytes> =
        starts.map(|start| bytes.slice(start..(start + CHUNK).min(bytes.len()))).collect();
    let messages = tokio_stream::iter(std::iter::once(head).chain(chunks));
    target.connect().await?.send(STORE, messages).await
}

async fn fetch(target: &Target, name: String, bytes_max: u64) -> Result<Vec<u8>, ClientError> {
    let head = encode(&FileHead { name, bytes: 0 });
    let mut chunks = target.connect().await?.stream(FETCH, tokio_stream::once(head)).await?;
    let mut bytes: Vec<u8> = vec![];
    while let Some(chunk) = chunks.message().await? {
        if (bytes.len() + chunk.len()) as u64 > bytes_max {
            return Err(ClientError::Refused("the file is longer than expected".to_owned()));
        }
        bytes.extend_from_slice(&chunk);
    }
    Ok(bytes)
}

fn every(period: Duration) -> Interval {
    let mut interval = interval(period);
    interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
    interval
}
