//! The thread that owns MPI: it starts what the worker and the coordinator ask for, and tests what is under way.
//!
//! It never waits for MPI, because nothing moves while nobody tests. While numbers are on their way and the worker waits for
//! them, it tests without a pause; while the worker computes, or other ranks have not entered yet, it naps between tests.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, Sender};
use std::time::{Duration, Instant};

use paceline_learn::Vector;
use paceline_net::processes::Command;
use paceline_net::processes::Waiting;
use paceline_net::processes::frame::Arrived;
use paceline_net::processes::message::{Down, Form, Load, PeerMessage, Up};
use paceline_runtime::edge::{Event, News};
use paceline_runtime::wire::{Extent, Framed, HEADER_BYTES, Letter, Published};
use paceline_runtime::{Line, Record, WorkerId};

use crate::control::{Control, Loss, Serve, Shared};
use crate::error::MpiError;
use crate::raw::{Bytes, Mpi, Pending};
use crate::reads::Reads;
use crate::streams::{Channel, Streams};
use crate::sums::{Entered, Exchanges};

pub struct Progress {
    // Dropped before MPI ends: requests under way leak their memory.
    beats: Vec<Option<Pending<Box<Beat>>>>,
    streams: Streams,
    links: Option<Links>,
    mpi: Mpi,
    shared: Arc<Shared>,
    orders: Receiver<Control>,
    words: Receiver<Up>,
    coordinator: CoordinatorStreams,
    /// Messages of peers that came before this rank's worker was there.
    early: Vec<(usize, Arrived)>,
    /// What MPI's own sums are measured with.
    compared: (Vector, Vector),
    /// Processors that this process may use.
    cores: usize,
    patience: Duration,
    beat_at: Instant,
    turned_at: Instant,
}

/// On rank 0: where words of all ranks go, and orders to other ranks come from. On others: where orders go.
type CoordinatorStreams = (Option<Sender<(usize, Up)>>, Vec<Receiver<Down>>, Option<Sender<Down>>);

struct Links {
    serve: Serve,
    exchanges: Exchanges,
    reads: Reads,
}

/// A message without content: its sender lives.
struct Beat;

impl Bytes for Beat {
    fn bytes(&self) -> &[u8] {
        &[]
    }
}

const BEAT_TAG: i32 = 100;
/// The sender ends the job, and has said why.
const FAREWELL_TAG: i32 = 101;
/// How long a rank that ends the job waits for its farewell to be on its way.
const FAREWELL: Duration = Duration::from_millis(50);
/// A rank says that it lives this often.
const BEAT_EVERY: Duration = Duration::from_millis(100);
/// A rank that is silent for this long is lost, unless the user says otherwise.
const PATIENCE: Duration = Duration::from_secs(30);
/// After something has moved, more is likely to follow within this time.
const LIVELY: Duration = Duration::from_micros(200);
/// Between tests while something is expected, and after a while without anything.
const NAP: Duration = Duration::from_micros(50);
const LONG_NAP: Duration = Duration::from_micros(200);
const QUIET: Duration = Duration::from_millis(2);
/// Messages that may come before the worker is there, for each rank.
const EARLY_MAX: usize = 64;

impl Progress {
    pub fn new(
        mpi: Mpi,
        shared: Arc<Shared>,
        orders: Receiver<Control>,
        words: Receiver<Up>,
        coordinator: CoordinatorStreams,
    ) -> Progress {
        let now = Instant::now();
        Progress {
            beats: (0..mpi.size).map(|_| None).collect(),
            streams: Streams::new(),
            links: None,
            mpi,
            shared,
            orders,
            words,
            coordinator,
            early: vec![],
            compared: Default::default(),
            cores: std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
            patience: PATIENCE,
            beat_at: now,
            turned_at: now,
        }
    }

    /// Serves until it is told to end.
    pub fn run(mut self) {
        match self.serve() {
            Ok(()) => self.finish(),
            Err(error) => {
                self.shared.lose(Loss::Failed(error));
                // The other threads decide what follows: nothing more can be exchanged.
                while let Ok(control) = self.orders.recv() {
                    match control {
                        Control::Abort(code) => self.abort(code),
                        Control::End => break,
                        _ => {}
                    }
                }
                // Ranks that are gone cannot take part in MPI's end.
                std::mem::forget(self);
            }
        }
    }

    fn serve(&mut self) -> Result<(), MpiError> {
        let mut lively_until = Instant::now();
        loop {
            let mut moved = false;
            while let Ok(control) = self.orders.try_recv() {
                moved = true;
                match control {
                    Control::Agree(number, to) => drop(to.send(self.agree(number)?)),
                    Control::Patience(patience) => self.patience = patience,
                    Control::Expect(size) => self.streams.expect(size),
                    Control::Serve(serve) => self.begin(*serve)?,
                    Control::End => return Ok(()),
                    Control::Abort(code) => self.abort(code),
                    Control::AllReduce(numbers, to) => drop(to.send(self.all_reduce(numbers)?)),
                }
            }
            moved |= self.turn()?;
            let now = Instant::now();
            if moved {
                lively_until = now + LIVELY;
            }
            self.pause(now, lively_until);
        }
    }

    /// Does everything that can be done now; returns whether anything moved.
    fn turn(&mut self) -> Result<bool, MpiError> {
        let mut moved = self.pass_words()?;
        moved |= self.obey()?;
        moved |= self.receive()?;
        moved |= self.exchange()?;
        moved |= self.streams.push(&self.mpi)?;
        self.beat()?;
        Ok(moved)
    }

    /// Lets others use the processor, unless a test is likely to find something.
    fn pause(&self, now: Instant, lively_until: Instant) {
        let exchanges = self.links.as_ref().map(|links| &links.exchanges);
        let computes = self.links.as_ref().is_some_and(Links::computes);
        let is_moving = exchanges.is_some_and(Exchanges::are_moving);
        if !computes && (is_moving || now < lively_until) {
            // Where ranks share processors, a rank that has not had its turn may be the one that is waited for.
            return if self.mpi.on_machine > self.cores {
                std::thread::yield_now();
            } else {
                std::hint::spin_loop();
            };
        }
        let is_awaited = exchanges.is_some_and(|exchanges| !exchanges.are_idle());
        let is_quiet = !is_awaited && self.streams.are_empty() && now > lively_until + QUIET;
        std::thread::park_timeout(if is_quiet { LONG_NAP } else { NAP });
    }

    /// Ends all ranks. They are told before, so that they do not wonder why.
    fn abort(&mut self, code: i32) -> ! {
        let mine = self.mpi.rank;
        let others = (0..self.mpi.size).filter(|rank| *rank != mine);
        let tell = |rank| self.mpi.send(rank, FAREWELL_TAG, Box::new(Beat)).ok();
        let mut told: Vec<_> = others.filter_map(tell).collect();
        let since = Instant::now();
        while since.elapsed() < FAREWELL {
            told.retain_mut(|it| matches!(it.test(), Ok(false)));
            std::thread::sleep(NAP);
        }
        self.mpi.abort(code)
    }

    /// MPI's own sum of so many numbers: how long it takes, and a number of it.
    fn all_reduce(&mut self, numbers: usize) -> Result<Duration, MpiError> {
        if self.compared.0.len() != numbers {
            let filled = |x: f32| Vector::filled(x, numbers);
            self.compared = (filled(self.mpi.rank as f32), filled(0.0));
        }
        let since = Instant::now();
        self.mpi.all_reduce(&self.compared.0, &mut self.compared.1)?;
        Ok(since.elapsed())
    }

    fn agree(&mut self, number: u64) -> Result<Vec<u64>, MpiError> {
        let mut under_way = self.mpi.gather(number.to_le_bytes().to_vec())?;
        while !under_way.test()? {
            std::thread::sleep(NAP);
        }
        self.shared.hear_all();
        let number = |bytes: &[u8]| u64::from_le_bytes(std::array::from_fn(|i| bytes[i]));
        Ok(under_way.take().1.chunks_exact(8).map(number).collect())
    }

    fn begin(&mut self, serve: Serve) -> Result<(), MpiError> {
        let exchanges = Exchanges::new(serve.config.shape, serve.config.sums);
        self.links = Some(Links { serve, exchanges, reads: Reads::default() });
        for (from, message) in std::mem::take(&mut self.early) {
            self.take(from, message)?;
        }
        Ok(())
    }

    /// Passes on what workers and the coordinator say to each other.
    fn pass_words(&mut self) -> Result<bool, MpiError> {
        let mut moved = false;
        let (heard, downs, _) = &self.coordinator;
        while let Ok(up) = self.words.try_recv() {
            moved = true;
            match heard {
                Some(heard) => drop(heard.send((0, up))),
                None => self.streams.send_up(up)?,
            }
        }
        for (i, down) in downs.iter().enumerate().filter(|_| heard.is_some()) {
            while let Ok(down) = down.try_recv() {
                moved = true;
                self.streams.send_down(i + 1, down)?;
            }
        }
        Ok(moved)
    }

    /// Does what the worker asks.
    fn obey(&mut self) -> Result<bool, MpiError> {
        let Some(links) = &mut self.links else { return Ok(false) };
        let (rank, mut moved) = (self.mpi.rank, false);
        while let Ok(command) = links.serve.commands.try_recv() {
            moved = true;
            match command {
                Command::Exchange { ticket, view, number, entry } => {
                    links.exchanges.enter(Entered { ticket, view, number, entry });
                }
                Command::Send { to, letter } => {
                    let form = match &*letter {
                        Letter::Gradient { payload, .. } => Some(Form::of(payload)),
                        _ => None,
                    };
                    let head = Box::new((*letter).clone());
                    let message = PeerMessage::Letter { letter: head, form };
                    self.streams.send_peer(to.0 as usize, &message, Load::Letter(letter))?;
                }
                Command::Read { ticket, from, shelf, extent, waits } => {
                    let request = links.reads.ask(from.0 as usize, ticket);
                    let message = PeerMessage::Read { request, shelf, extent, waits };
                    self.streams.send_peer(from.0 as usize, &message, Load::None)?;
                }
                Command::Published => {
                    for (waiting, value) in links.serve.shelves.answers() {
                        answer(&mut self.streams, waiting.by.0, waiting.request, Some(value))?;
                    }
                }
                Command::Collect { of, shelf, to } => {
                    let of = of.iter().map(|who| who.0 as usize);
                    let own = of.clone().find(|it| *it == rank).and_then(|_| {
                        let value = links.serve.shelves.read(shelf, Extent::Params)?;
                        Some((rank, value.params))
                    });
                    let others = of.filter(|it| *it != rank).collect();
                    for (from, request) in links.reads.collect(others, own, to) {
                        let (extent, waits) = (Extent::Params, false);
                        let message = PeerMessage::Read { request, shelf, extent, waits };
                        self.streams.send_peer(from, &message, Load::None)?;
                    }
                }
                // Members are the ranks, and stay.
                Command::Peer { .. }
                | Command::View { .. }
                | Command::Plan { .. }
                | Command::CarryOut(_)
                | Command::StopCollecting
                | Command::Lose { .. }
                | Command::Orphaned
                | Command::End => {}
            }
        }
        Ok(moved)
    }

    fn exchange(&mut self) -> Result<bool, MpiError> {
        let Some(links) = &mut self.links else { return Ok(false) };
        let (moved, done) = links.exchanges.advance(&self.mpi)?;
        if let Some((ticket, result)) = done {
            links.tell(self.mpi.rank, News::of(ticket, result));
        }
        Ok(moved)
    }

    /// Receives what has arrived.
    fn receive(&mut self) -> Result<bool, MpiError> {
        let mut moved = false;
        while let Some(envelope) = self.mpi.probe()? {
            moved = true;
            self.shared.hear(envelope.from);
            match Channel::of(envelope.tag) {
                Some(channel) => self.streams.receive(&self.mpi, channel, envelope)?,
                None => {
                    if envelope.tag == FAREWELL_TAG {
                        self.shared.lose(Loss::Ended { rank: envelope.from });
                    }
                    let mut beat = self.mpi.receive(envelope)?;
                    // It has no bytes, so that there is nothing to wait for.
                    while !beat.test()? {}
                }
            }
        }
        for (rank, channel, message) in self.streams.arrived()? {
            moved = true;
            let wrong =
                || MpiError::Violation { rank, what: "a message of another version".into() };
            match (channel, &self.coordinator) {
                (Channel::Peer, _) => self.take(rank, message)?,
                (Channel::Up, (Some(heard), ..)) => {
                    let up = read::<Up>(message).ok_or_else(wrong)?;
                    drop(heard.send((rank, up)));
                }
                (Channel::Down, (None, _, Some(down))) if rank == 0 => {
                    drop(down.send(read::<Down>(message).ok_or_else(wrong)?));
                }
                _ => return Err(wrong()),
            }
        }
        Ok(moved)
    }

    /// Takes a message of another rank's worker.
    fn take(&mut self, rank: usize, arrived: Arrived) -> Result<(), MpiError> {
        let wrong = |what: &str| MpiError::Violation { rank, what: what.to_owned() };
        let Some(links) = &mut self.links else {
            if self.early.len() >= EARLY_MAX * self.mpi.size {
                return Err(wrong("more messages than a worker can have sent by now"));
            }
            self.early.push((rank, arrived));
            return Ok(());
        };
        let (mine, from) = (self.mpi.rank, WorkerId(rank as u32));
        let message = arrived.message().map_err(|error| wrong(&error.to_string()))?;
        match message {
            PeerMessage::Letter { mut letter, form } => {
                let shape = links.serve.config.shape;
                let filled = match (&mut *letter, form) {
                    (Letter::Gradient { payload, .. }, Some(form)) => form
                        .fill(arrived.segments)
                        .filter(|filled| shape.fits(filled))
                        .map(|filled| *payload = Arc::new(filled)),
                    (Letter::Gradient { .. }, None) | (_, Some(_)) => None,
                    (letter, None) => letter.fill(arrived.segments).ok(),
                };
                filled.ok_or_else(|| wrong("a letter that does not fit the job"))?;
                links.tell(mine, News::Letter { from, letter });
            }
            PeerMessage::Read { request, shelf, extent, waits } => {
                let waiting = Waiting { by: from, request, shelf, extent };
                let value = match waits {
                    true => links.serve.shelves.read_or_wait(waiting),
                    false => links.serve.shelves.read(shelf, extent),
                };
                if value.is_some() || !waits {
                    answer(&mut self.streams, from.0, request, value)?;
                }
            }
            PeerMessage::Value { request, value } => {
                let value = value.map(|mut value| {
                    value
                        .fill(arrived.segments)
                        .ok()
                        .map(|()| *value)
                        .ok_or_else(|| wrong("a value without its vectors"))
                });
                let value = value.transpose()?;
                if let Some(value) = &value {
                    let (to, bytes) = (WorkerId(mine as u32), HEADER_BYTES + value.bytes());
                    let record = Record::Sent { who: from, to, bytes };
                    let line = Line { at: links.serve.config.clock.now(), record };
                    let up = Up::Line(line);
                    match &self.coordinator.0 {
                        Some(heard) => drop(heard.send((0, up))),
                        None => self.streams.send_up(up)?,
                    }
                }
                if let Some((ticket, value)) = links.reads.answered(rank, request, value) {
                    links.tell(mine, News::Value { ticket, value });
                }
            }
            _ => return Err(wrong("a message that no rank sends")),
        }
        Ok(())
    }

    /// Says that this rank lives, and notices which ranks do not.
    fn beat(&mut self) -> Result<(), MpiError> {
        let now = Instant::now();
        if now - self.turned_at > self.patience / 2 {
            // This process was stopped itself: it cannot know who was silent.
            self.shared.hear_all();
        }
        self.turned_at = now;
        if now < self.beat_at {
            return Ok(());
        }
        self.beat_at = now + BEAT_EVERY;
        let others = if self.mpi.rank == 0 { 1..self.mpi.size } else { 0..1 };
        for rank in others.clone() {
            let beat = &mut self.beats[rank];
            let is_over = beat.as_mut().map_or(Ok(true), Pending::test)?;
            if is_over {
                *beat = Some(self.mpi.send(rank, BEAT_TAG, Box::new(Beat))?);
            }
        }
        if let Some((rank, silence)) = self.shared.most_silent(others)
            && silence > self.patience
        {
            self.shared.lose(Loss::Silent { rank, silence });
        }
        Ok(())
    }

    /// Sends what is left, waits until all ranks have, and ends MPI. Nothing may be on its way then: ranks that have come to MPI's end
    /// receive nothing more, and a rank whose last word they have not received may wait for them for ever.
    fn finish(mut self) {
        // The first rank may still evaluate and write: ranks say that they live until all have come here, and then no more.
        let is_over = self.meet(Duration::MAX, Progress::turn, |it| it.streams.are_empty())
            && self.meet(self.patience, Progress::receive, |it| {
                !it.beats.iter_mut().flatten().any(is_under_way)
            });
        if !is_over {
            // Some rank is gone: MPI's end would wait for it.
            std::mem::forget(self);
        }
    }

    /// Takes turns until this rank is ready, and all others are; returns whether they were. If not, one of them is lost.
    fn meet(
        &mut self,
        limit: Duration,
        turn: impl Fn(&mut Progress) -> Result<bool, MpiError>,
        is_ready: impl Fn(&mut Progress) -> bool,
    ) -> bool {
        let (mut barrier, since): (Option<Pending<()>>, _) = (None, Instant::now());
        while since.elapsed() < limit && self.shared.loss().is_none() && turn(self).is_ok() {
            if barrier.is_none() && is_ready(self) {
                barrier = self.mpi.barrier().ok();
            }
            match barrier.as_mut().map_or(Ok(false), Pending::test) {
                Ok(true) => return true,
                Ok(false) => std::thread::sleep(NAP),
                Err(_) => break,
            }
        }
        std::mem::forget(barrier);
        false
    }
}

fn is_under_way(beat: &mut Pending<Box<Beat>>) -> bool {
    matches!(beat.test(), Ok(false))
}

impl Links {
    fn computes(&self) -> bool {
        self.serve.config.computes.load(Ordering::Relaxed)
    }

    fn tell(&self, rank: usize, news: News) {
        let to = WorkerId(rank as u32);
        drop(self.serve.config.events.send(Event::For { to, news }));
    }
}

fn answer(
    streams: &mut Streams,
    to: u32,
    request: u64,
    value: Option<Published>,
) -> Result<(), MpiError> {
    let load = value.clone().map_or(Load::None, |value| Load::Published(Arc::new(value)));
    let message = PeerMessage::Value { request, value: value.map(Box::new) };
    streams.send_peer(to as usize, &message, load)
}

/// A message with its vectors; `None` if it is none of this version.
fn read<M: serde::de::DeserializeOwned + Framed>(arrived: Arrived) -> Option<M> {
    let mut message: M = arrived.message().ok()?;
    message.fill(arrived.segments).ok()?;
    Some(message)
}
