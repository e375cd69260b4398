//! Messages between ranks, in order: each is a frame, cut into pieces that nonblocking sends carry without a copy.
//!
//! A rank receives a piece only when it has memory for it, and a frame only if the job can need one so long.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;

use paceline_learn::kernels::Pool;
use paceline_net::processes::frame::{Arrived, Decoder, Limits, Slice, bytes_of, encode};
use paceline_net::processes::message::{Down, Load, PeerMessage, Up};
use paceline_runtime::wire::Framed;

use crate::error::MpiError;
use crate::raw::{Bytes, Envelope, Mpi, Pending};

/// Who speaks with whom. Each pair of ranks has one stream of each kind in each direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Channel {
    /// A worker to a worker.
    Peer,
    /// A worker to the coordinator on rank 0, and back.
    Up,
    Down,
}

impl Channel {
    const ALL: [Channel; 3] = [Channel::Peer, Channel::Up, Channel::Down];

    pub fn of(tag: i32) -> Option<Channel> {
        Channel::ALL.into_iter().find(|channel| channel.tag() == tag)
    }

    fn tag(self) -> i32 {
        self as i32 + 1
    }
}

/// A message that is being sent.
struct Outgoing {
    head: Vec<u8>,
    kept: Kept,
}

/// What holds the numbers of a message.
enum Kept {
    /// They were copied behind the head.
    Nothing,
    Load(Load),
    Up(Box<Up>),
    Down(Box<Down>),
}

impl Kept {
    fn slices(&self) -> Vec<Slice<'_>> {
        match self {
            Kept::Nothing => vec![],
            Kept::Load(load) => load.slices(),
            Kept::Up(up) => up.frames(),
            Kept::Down(down) => down.frames(),
        }
    }
}

/// A part of a message: of its head, or of one of its segments.
struct Piece {
    of: Arc<Outgoing>,
    segment: Option<usize>,
    range: Range<usize>,
}

impl Bytes for Piece {
    fn bytes(&self) -> &[u8] {
        let all = match self.segment {
            None => self.of.head.as_slice(),
            Some(segment) => bytes_of(self.of.kept.slices()[segment]),
        };
        &all[self.range.clone()]
    }
}

/// The longest piece.
const PIECE: usize = 4 << 20;
/// Segments of a message that are together shorter are copied behind its head: one piece instead of several.
const COPIED: usize = 16 << 10;
/// Pieces to one rank that are under way at once.
const UNDER_WAY: usize = 4;
/// What may wait for a rank that takes nothing, besides twice what one message can hold.
const QUEUED_MAX: u64 = 64 << 20;

#[derive(Default)]
struct Lane {
    queue: VecDeque<Piece>,
    queued: u64,
    under_way: VecDeque<Pending<Box<Piece>>>,
}

struct Arriving {
    pieces: VecDeque<Pending<Vec<u8>>>,
    decoder: Decoder,
}

pub struct Streams {
    lanes: BTreeMap<(usize, Channel), Lane>,
    arriving: BTreeMap<(usize, Channel), Arriving>,
    limits: Limits,
}

/// Snapshots pass between the coordinator and its workers: memory for them grows only as their bytes arrive.
const CONTROL: Limits = Limits { head: 64 << 20, body: u64::MAX };

impl Streams {
    pub fn new() -> Streams {
        // Before a job is known, workers have nothing to tell each other.
        let limits = Limits { head: 0, body: 0 };
        Streams { lanes: BTreeMap::new(), arriving: BTreeMap::new(), limits }
    }

    /// Replicas of this length are exchanged from now on.
    pub fn expect(&mut self, size: usize) {
        self.limits = Limits::for_replica(size);
    }

    pub fn send_peer(
        &mut self,
        to: usize,
        message: &PeerMessage,
        load: Load,
    ) -> Result<(), MpiError> {
        let head = encode(message, &load.slices());
        self.send(to, Channel::Peer, head, Kept::Load(load))
    }

    pub fn send_up(&mut self, up: Up) -> Result<(), MpiError> {
        let head = encode(&up, &up.frames());
        self.send(0, Channel::Up, head, Kept::Up(Box::new(up)))
    }

    pub fn send_down(&mut self, to: usize, down: Down) -> Result<(), MpiError> {
        let head = encode(&down, &down.frames());
        self.send(to, Channel::Down, head, Kept::Down(Box::new(down)))
    }

    fn send(
        &mut self,
        to: usize,
        channel: Channel,
        mut head: Vec<u8>,
        mut kept: Kept,
    ) -> Result<(), MpiError> {
        let mut lengths: Vec<usize> =
            kept.slices().into_iter().map(|slice| bytes_of(slice).len()).collect();
        if lengths.iter().sum::<usize>() <= COPIED {
            kept.slices().into_iter().for_each(|slice| head.extend_from_slice(bytes_of(slice)));
            (kept, lengths) = (Kept::Nothing, vec![]);
        }
        let lane = self.lanes.entry((to, channel)).or_default();
        let parts = std::iter::once((None, head.len()));
        let parts = parts.chain(lengths.into_iter().enumerate().map(|(i, len)| (Some(i), len)));
        let of = Arc::new(Outgoing { head, kept });
        for (segment, length) in parts {
            lane.queued += length as u64;
            for start in (0..length).step_by(PIECE) {
                let range = start..length.min(start + PIECE);
                lane.queue.push_back(Piece { of: of.clone(), segment, range });
            }
        }
        let is_bounded = channel == Channel::Peer;
        match lane.queued > QUEUED_MAX + 2 * self.limits.body && is_bounded {
            true => Err(MpiError::Full { rank: to, bytes: lane.queued }),
            false => Ok(()),
        }
    }

    /// Sends what can be sent; returns whether anything moved.
    pub fn push(&mut self, mpi: &Mpi) -> Result<bool, MpiError> {
        let mut moved = false;
        for ((to, channel), lane) in &mut self.lanes {
            while let Some(first) = lane.under_way.front_mut()
                && first.test()?
            {
                lane.under_way.pop_front();
                moved = true;
            }
            while lane.under_way.len() < UNDER_WAY
                && let Some(piece) = lane.queue.pop_front()
            {
                lane.queued -= piece.range.len() as u64;
                lane.under_way.push_back(mpi.send(*to, channel.tag(), Box::new(piece))?);
                moved = true;
            }
        }
        Ok(moved)
    }

    /// Whether nothing waits to be sent, or is on its way.
    pub fn are_empty(&self) -> bool {
        self.lanes.values().all(|lane| lane.queue.is_empty() && lane.under_way.is_empty())
    }

    /// Starts to receive a piece that has arrived.
    pub fn receive(
        &mut self,
        mpi: &Mpi,
        channel: Channel,
        envelope: Envelope,
    ) -> Result<(), MpiError> {
        let Envelope { from: rank, bytes, .. } = envelope;
        if bytes > PIECE {
            let what = format!("a piece of {bytes} bytes");
            return Err(MpiError::Violation { rank, what });
        }
        let limits = if channel == Channel::Peer { self.limits } else { CONTROL };
        let begin =
            || Arriving { pieces: VecDeque::new(), decoder: Decoder::new(limits, Pool::default()) };
        let arriving = self.arriving.entry((rank, channel)).or_insert_with(begin);
        arriving.pieces.push_back(mpi.receive(envelope)?);
        Ok(())
    }

    /// The messages that are complete.
    pub fn arrived(&mut self) -> Result<Vec<(usize, Channel, Arrived)>, MpiError> {
        let mut all = vec![];
        for ((rank, channel), arriving) in &mut self.arriving {
            while let Some(first) = arriving.pieces.front_mut()
                && first.test()?
            {
                let piece = arriving.pieces.pop_front().map(Pending::take).unwrap_or_default();
                let mut bytes = piece.as_slice();
                let wrong = |what: String| MpiError::Violation { rank: *rank, what };
                while let Some(message) =
                    arriving.decoder.take(&mut bytes).map_err(|error| wrong(error.to_string()))?
                {
                    all.push((*rank, *channel, message));
                }
            }
        }
        Ok(all)
    }
}

#[cfg(test)]
mod tests {
    use paceline_learn::Vector;
    use paceline_net::processes::message::{ExchangeName, Form};
    use paceline_runtime::codec::Payload;
    use paceline_runtime::coordination::Word;
    use paceline_runtime::wire::{Extent, Shelf};

    use super::*;

    fn dense(values: &Vector) -> Load {
        Load::Chunk(Arc::new(Payload::dense(values.clone())), 0..values.len())
    }

    #[test]
    fn messages_in_pieces_arrive_whole_and_in_order() {
        let numbers: Vector = (0..3_000_000).map(|i| i as f32).collect();
        let long = Arc::new(numbers);
        let name = ExchangeName { view: Default::default(), exchange: 1 };
        let message = PeerMessage::Sum { name, form: Form::Dense, in_slot: false };
        let mut streams = Streams::new();
        streams.expect(long.len());
        streams.send_peer(1, &message, dense(&long)).expect("there is room");
        streams.send_peer(1, &message, dense(&[1.0].into())).expect("there is room");
        streams.send_up(Up::Word(Word::Finished)).expect("there is room");

        let lane = &streams.lanes[&(1, Channel::Peer)];
        let mut decoder = Decoder::new(streams.limits, Pool::default());
        let mut arrived = vec![];
        for piece in &lane.queue {
            assert!(piece.bytes().len() <= PIECE);
            let mut bytes = piece.bytes();
            while let Some(message) = decoder.take(&mut bytes).expect("it is well formed") {
                arrived.push(message.segments);
            }
        }

        // A head and three pieces of 12 MB; the short one is a single piece.
        assert_eq!(lane.queue.len(), 5);
        let [first, second] = &arrived[..] else { panic!("{} messages", arrived.len()) };
        let floats = |slice: &[f32]| [Slice::Floats(slice).into()];
        assert!(first[0] == floats(&long)[0] && second[0] == floats(&[1.0])[0]);
    }

    #[test]
    fn a_rank_that_takes_nothing_is_noticed_before_memory_is_full() {
        let mut streams = Streams::new();
        streams.expect(1 << 20);
        let value: Arc<Vector> = Arc::new(Vector::zeros(1 << 20));
        let (shelf, extent) = (Shelf::Replica, Extent::Params);
        let message = PeerMessage::Read { request: 1, shelf, extent, waits: false };

        let full = (0..1000).find_map(|_| streams.send_peer(1, &message, dense(&value)).err());

        assert!(matches!(full, Some(MpiError::Full { rank: 1, bytes }) if bytes < 1 << 30));
    }
}
