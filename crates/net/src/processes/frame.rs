//! Frames: how messages cross a socket or a pipe.
//!
//! A frame is a fixed header, a head that serde writes (self-describing, because strategies put any data into their
//! messages), and raw segments: vectors as little-endian floats, and bytes. The head lists the lengths of the segments. The heads of
//! exchanges, which are many, are words of a fixed order instead.
//! The receiver checks every length against [`Limits`] before it allocates, and allocates only as bytes arrive.

use std::fmt;
use std::io::{self, Read, Write};

use paceline_learn::Vector;
use paceline_learn::kernels::Pool;
use serde::de::{DeserializeOwned, Error, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

#[cfg(not(target_endian = "little"))]
compile_error!("vectors are sent as they lie in memory, which must be little-endian");

/// The first bytes of every frame; the last of them is the version of the format.
const MAGIC: [u8; 4] = *b"PLF2";
/// Those of a frame whose head is words.
const MAGIC_WORDS: [u8; 4] = *b"PLW2";
pub const HEADER: usize = 8;

/// How many words such a head has for its message. Before them stand the number of segments and what these are.
pub const WORDS: usize = 19;
const WORDS_SEGMENTS: usize = 3;
const WORDS_BEFORE: usize = 1 + WORDS_SEGMENTS;
const WORDS_BYTES: usize = 8 * (WORDS_BEFORE + WORDS);

/// How large a received frame may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    pub head: usize,
    pub body: u64,
}

/// The most vectors of the replica's length that one message can hold: a newcomer's state has the parameters, the
/// slots of the optimizer and the memory of the strategy.
const VECTORS_MAX: u64 = 16;
const HEAD_MAX: usize = 32 << 20;

impl Limits {
    /// For a job whose replica has this many numbers.
    pub fn for_replica(size: usize) -> Limits {
        Limits { head: HEAD_MAX, body: VECTORS_MAX * 4 * size as u64 + (1 << 20) }
    }

    /// For streams between a coordinator and its workers, which carry whole snapshots.
    pub fn for_snapshots(size: usize, members: usize) -> Limits {
        let one = Limits::for_replica(size);
        Limits { head: one.head, body: one.body.saturating_mul(members as u64 + 1) }
    }
}

/// Why a frame was refused. The link that it came from is closed.
#[derive(Debug, thiserror::Error)]
pub enum FrameProblem {
    #[error("not a frame of this version")]
    Magic,
    #[error("a head of {0} bytes, more than this job can need")]
    Head(usize),
    #[error("a body of {0} bytes, more than this job can need")]
    Body(u64),
    #[error("a head that cannot be read: {0}")]
    Unreadable(#[from] rmp_serde::decode::Error),
    #[error("{0} segments behind a head of words")]
    Segments(u64),
    #[error("the connection: {0}")]
    Io(#[from] io::Error),
}

/// What lies behind a head. It is written as one number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "u64", into = "u64")]
enum Kind {
    Floats(u64),
    Bytes(u64),
}

/// Marks a count of bytes.
pub const BYTES: u64 = 1 << 63;

impl From<Kind> for u64 {
    fn from(kind: Kind) -> u64 {
        match kind {
            Kind::Floats(count) => count,
            Kind::Bytes(count) => count | BYTES,
        }
    }
}

impl From<u64> for Kind {
    fn from(word: u64) -> Kind {
        if word & BYTES == 0 { Kind::Floats(word) } else { Kind::Bytes(word & !BYTES) }
    }
}

impl Kind {
    fn bytes(self) -> u64 {
        match self {
            Kind::Floats(count) => count.saturating_mul(4),
            Kind::Bytes(count) => count,
        }
    }
}

/// More segments than any message has: a snapshot has some for each member.
const SEGMENTS_MAX: usize = 1 << 16;

struct Kinds(Vec<Kind>);

/// Counted while they are read: a segment takes one byte of a head, and much more memory.
impl<'de> Deserialize<'de> for Kinds {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Kinds, D::Error> {
        struct Visit;
        impl<'de> Visitor<'de> for Visit {
            type Value = Kinds;

            fn expecting(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(to, "at most {SEGMENTS_MAX} segments")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut from: A) -> Result<Kinds, A::Error> {
                let mut kinds = vec![];
                while let Some(kind) = from.next_element()? {
                    if kinds.len() == SEGMENTS_MAX {
                        return Err(A::Error::invalid_length(SEGMENTS_MAX + 1, &self));
                    }
                    kinds.push(kind);
                }
                Ok(Kinds(kinds))
            }
        }
        from.deserialize_seq(Visit)
    }
}

/// What lies behind a head as it is sent, and as it has arrived. Here a frame is a whole message.
pub use paceline_runtime::wire::{Frame as Slice, ReceivedFrame as Segment};

pub fn bytes_of(slice: Slice<'_>) -> &[u8] {
    match slice {
        Slice::Floats(floats) => bytemuck::cast_slice(floats),
        Slice::Bytes(bytes) => bytes,
    }
}

fn kind_of(slice: &Slice<'_>) -> Kind {
    match slice {
        Slice::Floats(floats) => Kind::Floats(floats.len() as u64),
        Slice::Bytes(bytes) => Kind::Bytes(bytes.len() as u64),
    }
}

/// The floats of all segments; `None` if one of them is not floats.
pub fn floats(segments: Vec<Segment>) -> Option<Vec<Vector>> {
    let floats = segments.into_iter().map(|segment| match segment {
        Segment::Floats(floats) => Some(floats),
        Segment::Bytes(_) => None,
    });
    floats.collect()
}

/// Heads are padded to a multiple of this length. The system copies numbers behind them several times faster if they begin on a
/// border of its cache lines.
const ALIGNED: usize = 64;

/// Few heads are longer than this.
const USUAL: usize = 256;

/// Header and head of a message whose segments follow.
pub fn encode<M: Serialize>(message: &M, segments: &[Slice<'_>]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(USUAL);
    bytes.extend(MAGIC);
    bytes.extend([0; 4]);
    // Two values in a row: borrowing the message in a struct would need a copy of its type.
    let mut kinds = rmp_serde::Serializer::new(&mut bytes);
    kinds.collect_seq(segments.iter().map(kind_of)).expect("memory can be written");
    rmp_serde::encode::write_named(&mut bytes, message).expect("heads are plain data");
    bytes.resize(bytes.len().next_multiple_of(ALIGNED), 0);
    let length = u32::try_from(bytes.len() - HEADER).expect("a head is shorter than 4 GB");
    bytes[4..HEADER].copy_from_slice(&length.to_le_bytes());
    bytes
}

/// Encodes the header and a head of words. Returns `None` if a head of words cannot list this many segments. The returned buffer has a spare
/// capacity of `room` bytes, so that the caller can append a short body without another allocation.
pub fn encode_words(
    message: &[u64; WORDS],
    segments: &[Slice<'_>],
    room: usize,
) -> Option<Vec<u8>> {
    const { assert!((HEADER + WORDS_BYTES).is_multiple_of(ALIGNED)) };
    let mut words = [0; WORDS_BEFORE + WORDS];
    words[0] = segments.len() as u64;
    let kinds = words[1..WORDS_BEFORE].iter_mut();
    kinds.zip(segments).for_each(|(word, segment)| *word = kind_of(segment).into());
    words[WORDS_BEFORE..].copy_from_slice(message);
    let mut bytes = Vec::with_capacity(HEADER + WORDS_BYTES + room);
    bytes.extend(MAGIC_WORDS);
    bytes.extend((WORDS_BYTES as u32).to_le_bytes());
    bytes.extend_from_slice(bytemuck::cast_slice(&words));
    (segments.len() <= WORDS_SEGMENTS).then_some(bytes)
}

/// Gives memory for the numbers behind a head of words, of which it is told how many there are; `None`: any memory will do.
pub type Rooms = Box<dyn Fn(&[u64; WORDS], usize) -> Option<Vector> + Send>;

/// Puts frames together as their bytes arrive.
pub struct Decoder {
    limits: Limits,
    /// Where memory for vectors comes from.
    pool: Pool,
    /// Where the first numbers of a frame are to be, if somebody knows it.
    rooms: Option<Rooms>,
    stage: Stage,
    /// Where the first segment of the last frame began, if it was long; else 0.
    long_behind: usize,
}

/// What is left of a segment is read where it belongs if it has this many bytes.
const WORTHWHILE: u64 = 8 << 10;
/// A segment of this many bytes is read apart from its head.
const LONG: u64 = 32 << 10;
/// How many bytes are read ahead. Two chunks of a short sum fit: a peer that is ahead has sent its part of the next one, too.
pub const AHEAD: usize = 64 << 10;

#[derive(Debug)]
enum Stage {
    Header { bytes: [u8; HEADER], filled: usize },
    Head { length: usize, is_words: bool, bytes: Vec<u8> },
    Body(Body),
}

impl Stage {
    const BEGIN: Stage = Stage::Header { bytes: [0; HEADER], filled: 0 };
}

#[derive(Debug)]
struct Body {
    head: Head,
    kinds: std::vec::IntoIter<Kind>,
    done: Vec<Segment>,
    open: Option<OpenSegment>,
}

/// A segment of which `filled` bytes have arrived.
#[derive(Debug)]
struct OpenSegment {
    bytes: u64,
    filled: usize,
    segment: Segment,
}

#[derive(Debug)]
struct Head {
    bytes: Vec<u8>,
    /// Where the message begins.
    message: usize,
    is_words: bool,
}

/// A frame that has arrived.
pub struct Arrived {
    head: Head,
    pub segments: Vec<Segment>,
}

impl Arrived {
    pub fn message<M: DeserializeOwned>(&self) -> Result<M, FrameProblem> {
        if self.head.is_words {
            return Err(FrameProblem::Magic);
        }
        read_head(&self.head.bytes[self.head.message..])
    }

    /// The message, if it is words.
    pub fn words(&self) -> Option<[u64; WORDS]> {
        self.head.is_words.then(|| self.head.words())
    }
}

impl Head {
    fn words(&self) -> [u64; WORDS] {
        let mut words = words_of(&self.bytes[self.message..]);
        std::array::from_fn(|_| words.next().unwrap_or(0))
    }
}

fn words_of(bytes: &[u8]) -> impl Iterator<Item = u64> {
    let (words, _) = bytes.as_chunks::<8>();
    words.iter().map(|word| u64::from_le_bytes(*word))
}

/// Nothing that is sent is nested deeper. Readers reserve memory for the length that each level claims to have, so that a few
/// bytes of deeply nested lists would take many megabytes.
pub const DEPTH_MAX: usize = 32;

pub fn read_head<M: DeserializeOwned>(head: &[u8]) -> Result<M, FrameProblem> {
    let mut reader = rmp_serde::Deserializer::from_read_ref(head);
    reader.set_max_depth(DEPTH_MAX);
    Ok(M::deserialize(&mut reader)?)
}

/// Memory for bytes grows by at most this much before they have arrived.
const GROW: usize = 4 << 20;

impl OpenSegment {
    fn new(kind: Kind, pool: &Pool, room: impl FnOnce(usize) -> Option<Vector>) -> OpenSegment {
        let segment = match kind {
            // Fresh pages of zeros take no memory before they are written.
            Kind::Floats(count) => {
                let room = room(count as usize).filter(|room| room.len() == count as usize);
                Segment::Floats(room.unwrap_or_else(|| Vector::pooled(pool, count as usize)))
            }
            Kind::Bytes(_) => Segment::Bytes(Vec::new()),
        };
        OpenSegment { bytes: kind.bytes(), filled: 0, segment }
    }

    /// Memory for the next bytes; empty if all have arrived.
    fn space(&mut self) -> &mut [u8] {
        let end = (self.bytes as usize).min((self.filled / GROW + 1) * GROW);
        let all: &mut [u8] = match &mut self.segment {
            Segment::Floats(floats) => bytemuck::cast_slice_mut(floats),
            Segment::Bytes(bytes) => {
                if bytes.len() < end {
                    bytes.resize(end, 0);
                }
                bytes
            }
        };
        &mut all[self.filled..end]
    }
}

impl Decoder {
    pub fn new(limits: Limits, pool: Pool) -> Decoder {
        Decoder { limits, pool, rooms: None, stage: Stage::BEGIN, long_behind: 0 }
    }

    /// Lengths may grow once the peer is known.
    pub fn set_limits(&mut self, limits: Limits) {
        self.limits = limits;
    }

    pub fn set_rooms(&mut self, rooms: Rooms) {
        self.rooms = Some(rooms);
    }

    /// Memory into which a long segment can be read directly; `None` where bytes should be read ahead.
    pub fn direct(&mut self) -> Option<&mut [u8]> {
        match &mut self.stage {
            Stage::Body(Body { open: Some(open), .. })
                if open.bytes - open.filled as u64 >= WORTHWHILE =>
            {
                Some(open.space())
            }
            _ => None,
        }
    }

    /// How many bytes are read ahead, at most [`AHEAD`]. Where a long segment is likely to follow a head, as in the frame before, only the
    /// head is: what is read with it would have to be copied.
    pub fn ahead(&self) -> usize {
        match &self.stage {
            Stage::Header { filled: 0, .. } if self.long_behind > 0 => self.long_behind.min(AHEAD),
            _ => AHEAD,
        }
    }

    /// How many bytes are read together with the rest of a long segment: the head that follows, if it is like the last one; 0 if it is not
    /// known how long that is.
    pub fn behind(&self) -> usize {
        self.long_behind.min(AHEAD)
    }

    /// This many bytes were read into [`direct`](Self::direct) memory.
    pub fn advance(&mut self, count: usize) -> Result<Option<Arrived>, FrameProblem> {
        if let Stage::Body(Body { open: Some(open), .. }) = &mut self.stage {
            open.filled += count;
        }
        self.step()
    }

    /// Takes bytes from the front of `bytes`; returns a frame if one is complete. Call it until nothing is left.
    pub fn take(&mut self, bytes: &mut &[u8]) -> Result<Option<Arrived>, FrameProblem> {
        loop {
            if let Some(arrived) = self.step()? {
                return Ok(Some(arrived));
            }
            if bytes.is_empty() {
                return Ok(None);
            }
            match &mut self.stage {
                Stage::Header { bytes: header, filled } => {
                    let next = take(bytes, HEADER - *filled);
                    header[*filled..*filled + next.len()].copy_from_slice(next);
                    *filled += next.len();
                }
                Stage::Head { length, bytes: head, .. } => {
                    let next = take(bytes, *length - head.len());
                    head.extend_from_slice(next);
                }
                Stage::Body(Body { open: Some(open), .. }) => {
                    let space = open.space();
                    let next = take(bytes, space.len());
                    space[..next.len()].copy_from_slice(next);
                    open.filled += next.len();
                }
                Stage::Body(Body { open: None, .. }) => {}
            }
        }
    }

    /// Goes to the next stage if this one is complete.
    fn step(&mut self) -> Result<Option<Arrived>, FrameProblem> {
        loop {
            match &mut self.stage {
                Stage::Header { bytes, filled: HEADER } => {
                    let is_words = bytes[..4] == MAGIC_WORDS;
                    if !is_words && bytes[..4] != MAGIC {
                        return Err(FrameProblem::Magic);
                    }
                    let length = u32::from_le_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]);
                    let length = length as usize;
                    if length > self.limits.head || is_words && length != WORDS_BYTES {
                        return Err(FrameProblem::Head(length));
                    }
                    self.stage = Stage::Head { length, is_words, bytes: vec![] };
                }
                Stage::Head { length, is_words, bytes } if bytes.len() == *length => {
                    let (head, is_words) = (std::mem::take(bytes), *is_words);
                    let begins = HEADER + head.len();
                    let body = self.body(head, is_words)?;
                    let first = body.kinds.as_slice().first();
                    let is_long = first.is_some_and(|kind| kind.bytes() >= LONG);
                    self.long_behind = if is_long { begins } else { 0 };
                    self.stage = Stage::Body(body);
                }
                Stage::Body(body) => {
                    if let Some(open) = &body.open
                        && (open.filled as u64) < open.bytes
                    {
                        return Ok(None);
                    }
                    body.done.extend(body.open.take().map(|open| open.segment));
                    let (head, is_first) = (&body.head, body.done.is_empty());
                    let rooms = self.rooms.as_ref().filter(|_| is_first && head.is_words);
                    let room = |count: usize| match rooms {
                        Some(rooms) if 4 * count as u64 >= WORTHWHILE => {
                            rooms(&head.words(), count)
                        }
                        _ => None,
                    };
                    body.open =
                        body.kinds.next().map(|kind| OpenSegment::new(kind, &self.pool, room));
                    if body.open.is_none() {
                        let Stage::Body(body) = std::mem::replace(&mut self.stage, Stage::BEGIN)
                        else {
                            return Ok(None);
                        };
                        return Ok(Some(Arrived { head: body.head, segments: body.done }));
                    }
                }
                _ => return Ok(None),
            }
        }
    }

    fn body(&self, head: Vec<u8>, is_words: bool) -> Result<Body, FrameProblem> {
        let mut rest = head.as_slice();
        let kinds = if is_words {
            let mut words = words_of(take(&mut rest, 8 * WORDS_BEFORE));
            let count = words.next().unwrap_or(0);
            if count > WORDS_SEGMENTS as u64 {
                return Err(FrameProblem::Segments(count));
            }
            words.take(count as usize).map(Kind::from).collect()
        } else {
            let Kinds(kinds) = rmp_serde::decode::from_read(&mut rest)?;
            kinds
        };
        let bytes = kinds.iter().fold(0u64, |sum, kind| sum.saturating_add(kind.bytes()));
        if bytes > self.limits.body {
            return Err(FrameProblem::Body(bytes));
        }
        let head = Head { message: head.len() - rest.len(), bytes: head, is_words };
        Ok(Body { head, kinds: kinds.into_iter(), done: vec![], open: None })
    }
}

/// Takes at most this many bytes from the front.
fn take<'a>(from: &mut &'a [u8], most: usize) -> &'a [u8] {
    let (taken, rest) = from.split_at(most.min(from.len()));
    *from = rest;
    taken
}

/// Writes one frame to a stream that blocks.
pub fn write_frame<M: Serialize>(
    to: &mut impl Write,
    message: &M,
    segments: &[Slice<'_>],
) -> io::Result<()> {
    to.write_all(&encode(message, segments))?;
    segments.iter().try_for_each(|segment| to.write_all(bytes_of(*segment)))?;
    to.flush()
}

/// Reads frames from a stream that blocks.
pub struct FrameReader<R> {
    from: R,
    decoder: Decoder,
    buffer: Vec<u8>,
    unread: std::ops::Range<usize>,
}

impl<R: Read> FrameReader<R> {
    pub fn new(from: R, limits: Limits) -> FrameReader<R> {
        let buffer = vec![0; 64 << 10];
        let decoder = Decoder::new(limits, Pool::default());
        FrameReader { from, decoder, buffer, unread: 0..0 }
    }

    pub fn set_limits(&mut self, limits: Limits) {
        self.decoder.set_limits(limits);
    }

    /// The next frame; `None` at the end of the stream. A frame that the end cuts short is lost.
    pub fn read_frame(&mut self) -> Result<Option<Arrived>, FrameProblem> {
        loop {
            let mut bytes = &self.buffer[self.unread.clone()];
            let arrived = self.decoder.take(&mut bytes)?;
            self.unread.start = self.unread.end - bytes.len();
            if arrived.is_some() {
                return Ok(arrived);
            }
            let count = match self.decoder.direct() {
                Some(space) => read(&mut self.from, space)?,
                None => {
                    let count = read(&mut self.from, &mut self.buffer)?;
                    self.unread = 0..count;
                    if count > 0 {
                        continue;
                    }
                    0
                }
            };
            if count == 0 {
                return Ok(None);
            }
            if let Some(arrived) = self.decoder.advance(count)? {
                return Ok(Some(arrived));
            }
        }
    }
}

fn read(from: &mut impl Read, into: &mut [u8]) -> io::Result<usize> {
    loop {
        match from.read(into) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}

#[cfg(test)]
mod tests;
