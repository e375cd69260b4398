//! What crosses between processes: messages of a link between two workers, and of the stream between a worker and the
//! coordinator.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use paceline_learn::{ScheduleBefore, Vector};
use paceline_runtime::codec::{Encoded, Payload};
use paceline_runtime::coordination::{Order, Word};
use paceline_runtime::view::ViewName;
use paceline_runtime::wire::{
    Extent, FrameError, Framed, Letter, Published, Shelf, Standing, Tail,
};
use paceline_runtime::{Line, Snapshot, Spans, WorkerId, WorkerSnapshot};
use serde::{Deserialize, Serialize};

use super::frame::{Segment, Slice};
use super::words;

/// The version of all messages. Processes of different versions refuse each other.
pub const VERSION: u32 = 7;

/// Proves that a process belongs to a job. Random, and never on a command line.
pub type Secret = [u64; 2];

/// A message from one worker to another. Vectors follow as segments.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum PeerMessage {
    /// The first message in both directions.
    Hello {
        version: u32,
        secret: Secret,
        from: WorkerId,
        to: WorkerId,
    },
    /// A whole entry of an exchange.
    Entry {
        name: ExchangeName,
        entry: EntryHead,
    },
    /// The part of an entry that the receiver adds up. `length`: of the whole vector; 0 if this member adds nothing. `is_free`: the
    /// sender still uses no sum that lies where the sum of this exchange may be put for all members of a host to read.
    Chunk {
        name: ExchangeName,
        #[serde(with = "words")]
        tail: Tail,
        form: Form,
        length: u64,
        is_free: bool,
    },
    /// What the sender has added up: its part of the sum. `in_slot`: it lies where it may be read in place.
    Sum {
        name: ExchangeName,
        form: Form,
        in_slot: bool,
    },
    /// More numbers of a dense chunk, or of a sum, whose message came before; `start`: how many numbers did.
    Piece {
        name: ExchangeName,
        start: u64,
        of_sum: bool,
    },
    /// Where descriptors reach the sender if the receiver is on the same host, and the number that must come with them.
    Door {
        name: [u64; 2],
        nonce: [u64; 2],
    },
    /// The sender has mapped the receiver's segment. This word of its own segment says how far it has read the receiver's board.
    Mapped {
        cursor: u64,
    },
    /// The receiver is a reader of the sender's board from this notice on.
    Board {
        from: u64,
    },
    /// `form`: of the gradient, if the letter is one.
    Letter {
        letter: Box<Letter>,
        form: Option<Form>,
    },
    /// Asks for a published value. `waits`: the answer may come when there is one.
    Read {
        request: u64,
        shelf: Shelf,
        extent: Extent,
        waits: bool,
    },
    Value {
        request: u64,
        value: Option<Box<Published>>,
    },
}

impl PeerMessage {
    /// The number of the exchange that it belongs to; `None` while members settle, too.
    pub fn exchange(&self) -> Option<u64> {
        match self {
            PeerMessage::Entry { name, .. }
            | PeerMessage::Chunk { name, .. }
            | PeerMessage::Sum { name, .. }
            | PeerMessage::Piece { name, .. } => Some(name.exchange).filter(|number| *number > 0),
            _ => None,
        }
    }
}

/// Names an exchange, and never another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(from = "[u64; 3]", into = "[u64; 3]")]
pub struct ExchangeName {
    pub view: ViewName,
    pub exchange: u64,
}

impl From<ExchangeName> for [u64; 3] {
    fn from(name: ExchangeName) -> [u64; 3] {
        [name.view.incarnation, name.view.number, name.exchange]
    }
}

impl From<[u64; 3]> for ExchangeName {
    fn from([incarnation, number, exchange]: [u64; 3]) -> ExchangeName {
        ExchangeName { view: ViewName { incarnation, number }, exchange }
    }
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum EntryHead {
    Sum {
        #[serde(with = "words")]
        tail: Tail,
        form: Form,
    },
    Gather {
        standing: Standing,
    },
}

/// A payload without its numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Form {
    Dense,
    Half,
    Quantized { bits: u8, bucket: u32, length: u32 },
    Sparse { length: u32 },
}

impl Form {
    pub fn of(payload: &Payload) -> Form {
        match &payload.learned {
            Encoded::Dense(_) => Form::Dense,
            Encoded::Half(_) => Form::Half,
            Encoded::Quantized { bits, bucket, length, .. } => {
                Form::Quantized { bits: *bits, bucket: *bucket, length: *length }
            }
            Encoded::Sparse { length, .. } => Form::Sparse { length: *length },
        }
    }

    /// Puts a payload together from its segments; `None` if they do not fit.
    pub fn fill(self, segments: Vec<Segment>) -> Option<Payload> {
        let mut segments = segments.into_iter();
        let learned = match self {
            Form::Dense => Encoded::Dense(next_floats(&mut segments)?),
            Form::Half => Encoded::Half(next_values(&mut segments)?),
            Form::Quantized { bits, bucket, length } => {
                let norms = next_floats(&mut segments)?.to_vec();
                Encoded::Quantized {
                    bits,
                    bucket,
                    length,
                    norms,
                    levels: next_bytes(&mut segments)?,
                }
            }
            Form::Sparse { length } => {
                let indices = next_values(&mut segments)?;
                Encoded::Sparse { length, indices, values: next_floats(&mut segments)?.to_vec() }
            }
        };
        let buffers = next_floats(&mut segments)?;
        segments.next().is_none().then_some(Payload { learned, buffers })
    }
}

/// The segments of a payload, in the order in which [`Form::fill`] expects them.
pub fn payload_slices(payload: &Payload) -> Vec<Slice<'_>> {
    let mut slices = match &payload.learned {
        Encoded::Dense(values) => vec![Slice::Floats(values)],
        Encoded::Half(values) => vec![Slice::Bytes(bytemuck::cast_slice(values))],
        Encoded::Quantized { norms, levels, .. } => {
            vec![Slice::Floats(norms), Slice::Bytes(levels)]
        }
        Encoded::Sparse { indices, values, .. } => {
            vec![Slice::Bytes(bytemuck::cast_slice(indices)), Slice::Floats(values)]
        }
    };
    slices.push(Slice::Floats(&payload.buffers));
    slices
}

fn next_floats(segments: &mut impl Iterator<Item = Segment>) -> Option<Vector> {
    match segments.next()? {
        Segment::Floats(floats) => Some(floats),
        Segment::Bytes(_) => None,
    }
}

fn next_bytes(segments: &mut impl Iterator<Item = Segment>) -> Option<Vec<u8>> {
    match segments.next()? {
        Segment::Bytes(bytes) => Some(bytes),
        Segment::Floats(_) => None,
    }
}

/// Values of another size, which are sent as bytes.
fn next_values<T: bytemuck::AnyBitPattern + bytemuck::NoUninit>(
    segments: &mut impl Iterator<Item = Segment>,
) -> Option<Vec<T>> {
    let bytes = next_bytes(segments)?;
    bytes.len().is_multiple_of(size_of::<T>()).then(|| bytemuck::pod_collect_to_vec(&bytes))
}

/// What a worker process tells the coordinator. The order of messages is kept: a line is in the journal before
/// anything that a later word causes.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Up {
    /// It wants to take part, and can be reached by peers at this address.
    Hello {
        version: u32,
        data: u64,
        address: SocketAddr,
    },
    Beat,
    Word(Word),
    Line(Line),
    /// Its part of a snapshot.
    Part {
        part: Box<WorkerSnapshot>,
        done: Option<Spans>,
    },
    /// The center, which [`Down::SendCenter`] asked for; `None` if it has none.
    Center {
        request: u64,
        center: Option<Box<Published>>,
    },
    /// [`Down::Conclude`] is done; its score came as a line before. `params`: a fingerprint of the deployed parameters.
    Concluded {
        params: Option<u64>,
    },
    /// Its user asks for a checkpoint.
    SaveWished,
    /// It cannot go on, and why.
    Failed {
        why: String,
    },
}

/// What the coordinator tells a worker process.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Down {
    /// The job as text, and how it is to be prepared.
    Job(JobText),
    /// It takes part under this id. `now`: the time since the job began.
    Welcome {
        id: WorkerId,
        now: Duration,
        secret: Secret,
        patience: Duration,
    },
    /// It may not take part, and why.
    Refused {
        why: String,
    },
    /// Where a worker can be reached. Comes before any order that names it.
    Peer {
        who: WorkerId,
        address: SocketAddr,
    },
    Order(Order),
    /// The snapshot from which the members begin anew; comes before the order to start.
    Snapshot(PackedSnapshot),
    /// Asks for the center that this worker hosts.
    SendCenter {
        request: u64,
    },
    /// The job is over: evaluate what is deployed.
    Conclude(Conclude),
    /// The job is over, and nobody waits for this member any more. Before the end, views tell who is lost.
    Lost {
        who: WorkerId,
    },
    /// The coordinator is gone for good: a member that this worker has no link to will never be reached.
    Orphaned,
    /// Nothing is left to do for this process.
    Dismissed,
    /// Nothing: whoever passes messages on learns whether they are still wanted.
    Idle,
}

/// A job, as a worker process needs it to prepare the same one.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct JobText {
    pub json: String,
    /// The workers of the first view of the job, and of this run.
    pub workers_first: u32,
    pub workers: u32,
    /// Time per sample of each worker, to emulate slower machines; empty: none is emulated.
    pub pace: Vec<Duration>,
    pub members_min: usize,
    /// Whether workers compute fingerprints of their replicas for the journal.
    pub fingerprints: bool,
    /// Whether members hand in parts of snapshots.
    pub saves: Option<Saves>,
    pub resumed: Option<PackedSnapshot>,
    /// Whether a snapshot that is fetched separately takes its place.
    #[serde(default)]
    pub is_resumed: bool,
    /// Where the learning rate of a resumed job continues; `None`: it is planned anew.
    #[serde(default)]
    pub schedule: Option<ScheduleBefore>,
}

/// When members hand in parts of snapshots on their own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Saves {
    pub every_rounds: Option<std::num::NonZero<u64>>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Conclude {
    pub at: Duration,
    pub samples: u64,
    pub of: Vec<WorkerId>,
    pub shelf: Shelf,
    /// The evaluation must not take long.
    pub is_brief: bool,
    /// The parameters were evaluated already: only their fingerprint is wanted.
    pub is_scored: bool,
}

/// A snapshot whose parts know how many vectors are theirs.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct PackedSnapshot {
    done: Spans,
    parts: Vec<(WorkerId, usize, WorkerSnapshot)>,
    center: Option<(usize, Published)>,
}

impl PackedSnapshot {
    pub fn pack(snapshot: &Snapshot) -> PackedSnapshot {
        let parts = snapshot.workers.iter();
        let center = snapshot.center.as_ref();
        PackedSnapshot {
            done: snapshot.done.clone(),
            parts: parts.map(|(who, part)| (*who, part.frames().len(), part.clone())).collect(),
            center: center.map(|center| (center.frames().len(), center.clone())),
        }
    }

    pub fn unpack(self) -> Snapshot {
        let workers: BTreeMap<WorkerId, WorkerSnapshot> =
            self.parts.into_iter().map(|(who, _, part)| (who, part)).collect();
        Snapshot { done: self.done, workers, center: self.center.map(|(_, center)| center) }
    }
}

impl Framed for PackedSnapshot {
    fn frames(&self) -> Vec<Slice<'_>> {
        let parts = self.parts.iter().flat_map(|(_, _, part)| part.frames());
        parts.chain(self.center.iter().flat_map(|(_, center)| center.frames())).collect()
    }

    fn fill(&mut self, frames: Vec<Segment>) -> Result<(), FrameError> {
        let counts = self.parts.iter().map(|(_, count, _)| *count);
        let counts = counts.chain(self.center.iter().map(|(count, _)| *count));
        let expected = counts.fold(0usize, usize::saturating_add);
        if expected != frames.len() {
            return Err(FrameError { expected, received: frames.len() });
        }
        let mut frames = frames.into_iter();
        for (_, count, part) in &mut self.parts {
            part.fill(frames.by_ref().take(*count).collect())?;
        }
        self.center.as_mut().map_or(Ok(()), |(_, center)| center.fill(frames.collect()))
    }
}

impl Framed for Up {
    fn frames(&self) -> Vec<Slice<'_>> {
        match self {
            Up::Part { part, .. } => part.frames(),
            Up::Center { center: Some(center), .. } => center.frames(),
            _ => vec![],
        }
    }

    fn fill(&mut self, frames: Vec<Segment>) -> Result<(), FrameError> {
        match self {
            Up::Part { part, .. } => part.fill(frames),
            Up::Center { center: Some(center), .. } => center.fill(frames),
            _ => none(&frames),
        }
    }
}

impl Framed for Down {
    fn frames(&self) -> Vec<Slice<'_>> {
        match self {
            Down::Snapshot(snapshot) => snapshot.frames(),
            Down::Job(JobText { resumed: Some(snapshot), .. }) => snapshot.frames(),
            _ => vec![],
        }
    }

    fn fill(&mut self, frames: Vec<Segment>) -> Result<(), FrameError> {
        match self {
            Down::Snapshot(snapshot) => snapshot.fill(frames),
            Down::Job(JobText { resumed: Some(snapshot), .. }) => snapshot.fill(frames),
            _ => none(&frames),
        }
    }
}

fn none(frames: &[Segment]) -> Result<(), FrameError> {
    match frames.len() {
        0 => Ok(()),
        received => Err(FrameError { expected: 0, received }),
    }
}

/// What a frame to a peer holds on to until it is sent.
#[derive(Clone, Debug)]
pub enum Load {
    None,
    Letter(Arc<Letter>),
    Payload(Arc<Payload>),
    /// Values of a dense payload.
    Chunk(Arc<Payload>, std::ops::Range<usize>),
    Published(Arc<Published>),
}

impl Load {
    pub fn slices(&self) -> Vec<Slice<'_>> {
        match self {
            Load::None => vec![],
            Load::Letter(letter) => match &**letter {
                Letter::Gradient { payload, .. } => payload_slices(payload),
                letter => letter.frames(),
            },
            Load::Payload(payload) => payload_slices(payload),
            Load::Chunk(payload, range) => match &payload.learned {
                Encoded::Dense(values) => {
                    vec![Slice::Floats(&values[range.clone()]), Slice::Floats(&[])]
                }
                _ => vec![],
            },
            Load::Published(value) => value.frames(),
        }
    }
}
