//! Frames: how messages cross a socket or a pipe.
//!
//! A frame is a fixed header, a head that serde writes (self-describing, because strategies put any data into their
//! messages), and raw segments: vectors as little-endian floats, and bytes. The head lists the lengths of the segments.
//! The receiver checks every length against [`Limits`] before it allocates, and allocates only as bytes arrive.

use std::io::{self, Read, Write};

use paceline_learn::Vector;
use paceline_learn::kernels::Pool;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

#[cfg(not(target_endian = "little"))]
compile_error!("vectors are sent as they lie in memory, which must be little-endian");

/// The first bytes of every frame; the last of them is the version of the format.
const MAGIC: [u8; 4] = *b"PLF1";
pub const HEADER: usize = 8;

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
    #[error("the connection: {0}")]
    Io(#[from] io::Error),
}

/// What lies behind a head.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Kind {
    Floats(u64),
    Bytes(u64),
}

impl Kind {
    fn bytes(self) -> u64 {
        match self {
            Kind::Floats(count) => count.saturating_mul(4),
            Kind::Bytes(count) => count,
        }
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

/// Header and head of a message whose segments follow.
pub fn encode<M: Serialize>(message: &M, segments: &[Slice<'_>]) -> Vec<u8> {
    let kinds: Vec<Kind> = segments.iter().map(kind_of).collect();
    let mut bytes = MAGIC.to_vec();
    bytes.extend([0; 4]);
    // Two values in a row: borrowing the message in a struct would need a copy of its type.
    rmp_serde::encode::write(&mut bytes, &kinds).expect("memory can be written");
    rmp_serde::encode::write_named(&mut bytes, message).expect("heads are plain data");
    bytes.resize(bytes.len().next_multiple_of(ALIGNED), 0);
    let length = u32::try_from(bytes.len() - HEADER).expect("a head is shorter than 4 GB");
    bytes[4..HEADER].copy_from_slice(&length.to_le_bytes());
    bytes
}

/// Puts frames together as their bytes arrive.
#[derive(Debug)]
pub struct Decoder {
    limits: Limits,
    /// Where memory for vectors comes from.
    pool: Pool,
    stage: Stage,
}

#[derive(Debug)]
enum Stage {
    Header { bytes: Vec<u8> },
    Head { length: usize, bytes: Vec<u8> },
    Body(Body),
}

#[derive(Debug)]
struct Body {
    head: Vec<u8>,
    /// Where the message begins in the head.
    message: usize,
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

/// A frame that has arrived.
pub struct Arrived {
    head: Vec<u8>,
    message: usize,
    pub segments: Vec<Segment>,
}

impl Arrived {
    pub fn message<M: DeserializeOwned>(&self) -> Result<M, FrameProblem> {
        read_head(&self.head[self.message..])
    }
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
    fn new(kind: Kind, pool: &Pool) -> OpenSegment {
        let segment = match kind {
            // Fresh pages of zeros take no memory before they are written.
            Kind::Floats(count) => Segment::Floats(Vector::pooled(pool, count as usize)),
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
        Decoder { limits, pool, stage: Stage::Header { bytes: vec![] } }
    }

    /// Lengths may grow once the peer is known.
    pub fn set_limits(&mut self, limits: Limits) {
        self.limits = limits;
    }

    /// Memory into which a long segment can be read directly; `None` where bytes should be read ahead.
    pub fn direct(&mut self) -> Option<&mut [u8]> {
        const WORTHWHILE: u64 = 8 << 10;
        match &mut self.stage {
            Stage::Body(Body { open: Some(open), .. })
                if open.bytes - open.filled as u64 >= WORTHWHILE =>
            {
                Some(open.space())
            }
            _ => None,
        }
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
                Stage::Header { bytes: header } => fill(header, HEADER, bytes),
                Stage::Head { length, bytes: head } => fill(head, *length, bytes),
                Stage::Body(Body { open: Some(open), .. }) => {
                    let space = open.space();
                    let count = space.len().min(bytes.len());
                    space[..count].copy_from_slice(&bytes[..count]);
                    *bytes = &bytes[count..];
                    open.filled += count;
                }
                Stage::Body(Body { open: None, .. }) => {}
            }
        }
    }

    /// Goes to the next stage if this one is complete.
    fn step(&mut self) -> Result<Option<Arrived>, FrameProblem> {
        loop {
            match &mut self.stage {
                Stage::Header { bytes } if bytes.len() == HEADER => {
                    if bytes[..4] != MAGIC {
                        return Err(FrameProblem::Magic);
                    }
                    let length = u32::from_le_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]);
                    let length = length as usize;
                    if length > self.limits.head {
                        return Err(FrameProblem::Head(length));
                    }
                    self.stage = Stage::Head { length, bytes: vec![] };
                }
                Stage::Head { length, bytes } if bytes.len() == *length => {
                    let head = std::mem::take(bytes);
                    self.stage = Stage::Body(self.body(head)?);
                }
                Stage::Body(body) => {
                    if let Some(open) = &body.open
                        && (open.filled as u64) < open.bytes
                    {
                        return Ok(None);
                    }
                    body.done.extend(body.open.take().map(|open| open.segment));
                    body.open = body.kinds.next().map(|kind| OpenSegment::new(kind, &self.pool));
                    if body.open.is_none() {
                        let (head, message) = (std::mem::take(&mut body.head), body.message);
                        let segments = std::mem::take(&mut body.done);
                        self.stage = Stage::Header { bytes: vec![] };
                        return Ok(Some(Arrived { head, message, segments }));
                    }
                }
                _ => return Ok(None),
            }
        }
    }

    fn body(&self, head: Vec<u8>) -> Result<Body, FrameProblem> {
        let mut rest = head.as_slice();
        let kinds: Vec<Kind> = rmp_serde::decode::from_read(&mut rest)?;
        let bytes = kinds.iter().fold(0u64, |sum, kind| sum.saturating_add(kind.bytes()));
        if bytes > self.limits.body {
            return Err(FrameProblem::Body(bytes));
        }
        let message = head.len() - rest.len();
        Ok(Body { head, message, kinds: kinds.into_iter(), done: vec![], open: None })
    }
}

/// Moves bytes until `into` has `length` of them.
fn fill(into: &mut Vec<u8>, length: usize, from: &mut &[u8]) {
    let count = (length - into.len()).min(from.len());
    into.extend_from_slice(&from[..count]);
    *from = &from[count..];
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
mod tests {
    use super::*;

    const LIMITS: Limits = Limits { head: 1000, body: 1 << 20 };

    #[test]
    fn heads_that_are_nested_too_deeply_are_refused() {
        // A list of one list of one list, and so on; MessagePack writes 0x91 for a list of one.
        let nested = |depth| [vec![0x91; depth], vec![0xc0]].concat();
        let is_read = |depth| read_head::<serde::de::IgnoredAny>(&nested(depth)).is_ok();

        assert!(is_read(DEPTH_MAX / 2) && !is_read(DEPTH_MAX + 1));
    }

    fn frame(message: &str, floats: &[f32], bytes: &[u8]) -> Vec<u8> {
        let mut out = vec![];
        let segments = [Slice::Floats(floats), Slice::Bytes(bytes)];
        write_frame(&mut out, &message, &segments).expect("memory can be written");
        out
    }

    #[test]
    fn frames_arrive_whole_however_their_bytes_are_cut() {
        let long: Vec<f32> = (0..50_000).map(|i| i as f32).collect();
        let mut stream = frame("one", &[1.5, f32::NAN], b"abc");
        stream.extend(frame("two", &[], b""));
        stream.extend(frame("three", &long, b""));
        for step in [1, 3, 7, 1000, 1 << 20] {
            let (mut decoder, mut got) = (Decoder::new(LIMITS, Pool::default()), vec![]);
            for mut part in stream.chunks(step) {
                while let Some(arrived) = decoder.take(&mut part).expect("it is well formed") {
                    got.push((arrived.message::<String>().expect("text"), arrived.segments));
                }
                assert!(part.is_empty());
            }
            let names: Vec<&str> = got.iter().map(|(name, _)| name.as_str()).collect();
            assert_eq!(names, ["one", "two", "three"], "{step} bytes at a time");
            assert_eq!(got[0].1[1], Segment::Bytes(b"abc".to_vec()));
            assert_eq!(got[2].1[0], Segment::Floats(long.as_slice().into()));
        }
        let mut reader = FrameReader::new(stream.as_slice(), LIMITS);
        let mut count = 0;
        while reader.read_frame().expect("it is well formed").is_some() {
            count += 1;
        }
        assert_eq!(count, 3);
    }

    #[test]
    fn lengths_are_refused_before_anything_is_allocated() {
        let lie = [&MAGIC[..], &u32::MAX.to_le_bytes()].concat();
        let huge = encode(&"m", &[]);
        let kinds = rmp_serde::to_vec(&vec![Kind::Floats(u64::MAX / 2)]).expect("plain data");
        let mut body = huge[..4].to_vec();
        body.extend((kinds.len() as u32).to_le_bytes());
        body.extend(kinds);
        for (bytes, sentence) in [
            (lie, "a head of 4294967295 bytes"),
            (body, "a body of"),
            (b"GET / HTTP/1.1\r\n".to_vec(), "not a frame"),
        ] {
            let error = Decoder::new(LIMITS, Pool::default())
                .take(&mut bytes.as_slice())
                .err()
                .expect("refused");
            assert!(error.to_string().starts_with(sentence), "{error}");
        }
    }

    #[test]
    fn bytes_that_are_not_a_frame_never_panic() {
        for seed in 0..2000u64 {
            let mut dice = paceline_learn::Dice::keyed(&[seed]);
            let mut bytes = frame("message", &[1.0, 2.0], b"xyz");
            for _ in 0..=dice.below(4) {
                let at = dice.below(bytes.len() as u64) as usize;
                bytes[at] = dice.below(256) as u8;
            }
            let mut decoder = Decoder::new(LIMITS, Pool::default());
            let mut rest = bytes.as_slice();
            while let Ok(Some(arrived)) = decoder.take(&mut rest) {
                let _ = arrived.message::<String>();
            }
        }
    }
}
