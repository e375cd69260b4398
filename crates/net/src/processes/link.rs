//! One connection to another worker process: frames in, frames out, in strict order, without ever blocking.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::ops::Range;

use mio::net::TcpStream;
use paceline_learn::Vector;
use paceline_learn::kernels::Pool;

use super::frame::{
    AHEAD, Arrived, Decoder, FrameProblem, Limits, WORDS, bytes_of, encode, encode_words,
};
use super::heads::{self, HEAD_WORDS};
use super::message::{Load, PeerMessage};
use super::session::Session;
use super::socket;
use super::wire::Wire;

pub struct Link {
    pub wire: Wire,
    decoder: Decoder,
    /// Bytes that were read ahead, and where those are that no frame has taken yet.
    buffer: Vec<u8>,
    unread: Range<usize>,
    outgoing: VecDeque<Outgoing>,
    /// Bytes that wait to be sent.
    queued: u64,
    /// Whether something waits of an exchange that the peer must have ended.
    lags: bool,
    /// Whether the socket is empty, as far as the last call has shown.
    is_empty: bool,
    /// Whether the peer has closed it.
    ends: bool,
}

/// What a peer has said; `None` if it cannot be read.
pub fn message_of(frame: &Arrived) -> Option<PeerMessage> {
    match frame.words() {
        Some(words) => heads::decode(words.first_chunk()?),
        None => frame.message().ok(),
    }
}

/// What came of reading.
pub enum Got {
    Frame(Arrived),
    /// The socket has no more.
    Nothing,
    /// More may be there, but other links come first.
    Later,
}

/// A frame that is being sent, and how many of its bytes are. What it carries lies in `load`, or behind the head if it is short.
struct Outgoing {
    /// The exchange that it belongs to, if it does.
    exchange: Option<u64>,
    head: Vec<u8>,
    load: Load,
    bytes: usize,
    sent: usize,
}

/// Pieces handed to the system in one call.
const PIECES: usize = 16;
/// Up to this many bytes are copied behind their head: that takes less time than to hand two pieces to the system.
const JOINED: usize = 8 << 10;
/// Bytes that a link reads, or writes, before others do: what one end writes the other reads while it is in the processor's cache. A piece
/// of a long vector fits with its head: the rest of one would be sent alone. (That no other frame begins in the same turn was tried, and was
/// no faster.)
pub const TURN: usize = (1 << 20) + 4096;

impl Link {
    pub fn new(stream: TcpStream, tls: Option<Session>, limits: Limits, pool: Pool) -> Link {
        socket::speed_up(&stream);
        let (buffer, outgoing) = (vec![0; AHEAD], VecDeque::new());
        let decoder = Decoder::new(limits, pool);
        let wire = Wire::new(stream, tls);
        Link {
            wire,
            decoder,
            buffer,
            unread: 0..0,
            outgoing,
            queued: 0,
            lags: false,
            is_empty: false,
            ends: false,
        }
    }

    pub fn set_limits(&mut self, limits: Limits) {
        self.decoder.set_limits(limits);
    }

    /// Says where numbers are to be that belong to a message, before they are read.
    pub fn set_rooms(
        &mut self,
        rooms: impl Fn(&PeerMessage, usize) -> Option<Vector> + Send + 'static,
    ) {
        self.decoder.set_rooms(Box::new(move |words, len| {
            rooms(&heads::decode(words.first_chunk()?)?, len)
        }));
    }

    pub fn queue(&mut self, message: &PeerMessage, load: Load) {
        let slices = load.slices();
        let body: usize = slices.iter().map(|slice| bytes_of(*slice).len()).sum();
        let is_joined = body <= JOINED;
        let room = if is_joined { body } else { 0 };
        let words = heads::encode(message).and_then(|head| {
            let mut words = [0; WORDS];
            words[..HEAD_WORDS].copy_from_slice(&head);
            encode_words(&words, &slices, room)
        });
        let mut head = words.unwrap_or_else(|| encode(message, &slices));
        let bytes = head.len() + body;
        if is_joined {
            head.reserve_exact(body);
            slices.iter().for_each(|slice| head.extend_from_slice(bytes_of(*slice)));
        }
        drop(slices);
        let load = if is_joined { Load::None } else { load };
        self.queued += bytes as u64;
        let exchange = message.exchange();
        // A peer takes part in an exchange only when it has everything of the one before the last. One that enters and does not read would make
        // this process keep the vectors of all that follow.
        let oldest = || self.outgoing.iter().find_map(|it| it.exchange);
        self.lags |= exchange.is_some_and(|new| oldest().is_some_and(|old| old + 2 <= new));
        self.outgoing.push_back(Outgoing { exchange, head, load, bytes, sent: 0 });
    }

    /// Whether the peer does not read what it must have read.
    pub fn lags(&self) -> bool {
        self.lags
    }

    pub fn queued(&self) -> u64 {
        self.queued
    }

    /// Whether something waits until the socket takes more.
    pub fn has_unsent(&self) -> bool {
        self.queued > 0 || self.wire.wants_write()
    }

    /// The socket can be read. `ends`: to its end, which it does not show otherwise.
    pub fn wake(&mut self, ends: bool) {
        self.is_empty = false;
        self.ends |= ends;
    }

    /// Sends for a turn, or until the socket takes no more; returns whether it may take more.
    pub fn write(&mut self) -> io::Result<bool> {
        let (mut room, mut is_full) = (TURN, false);
        while room > 0
            && let Some(first) = self.outgoing.front()
        {
            let slices = first.load.slices();
            let all = std::iter::once(first.head.as_slice());
            let all = all.chain(slices.iter().map(|slice| bytes_of(*slice)));
            let mut skip = first.sent;
            let (mut pieces, mut count, mut left) = ([IoSlice::new(&[]); PIECES], 0, room);
            for bytes in all {
                let skipped = skip.min(bytes.len());
                skip -= skipped;
                let end = bytes.len().min(skipped + left);
                if skipped < end && count < PIECES {
                    pieces[count] = IoSlice::new(&bytes[skipped..end]);
                    count += 1;
                    left -= end - skipped;
                }
            }
            match self.wire.write(&pieces[..count]) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => {
                    self.queued -= count as u64;
                    room -= count.min(room);
                    let first = self.outgoing.front_mut().expect("it is being sent");
                    first.sent += count;
                    if first.sent == first.bytes {
                        self.outgoing.pop_front();
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    is_full = true;
                    break;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        match self.wire.flush() {
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => Err(error),
            Err(_) => Ok(false),
            Ok(()) => Ok(!is_full && !self.outgoing.is_empty()),
        }
    }

    /// Reads until a frame is there, or these bytes have come.
    pub fn read(&mut self, room: &mut usize) -> Result<Got, FrameProblem> {
        loop {
            while !self.unread.is_empty() {
                let mut bytes = &self.buffer[self.unread.clone()];
                let frame = self.decoder.take(&mut bytes)?;
                self.unread.start = self.unread.end - bytes.len();
                if let Some(frame) = frame {
                    return Ok(Got::Frame(frame));
                }
            }
            if self.is_empty {
                return Ok(Got::Nothing);
            }
            if *room == 0 {
                return Ok(Got::Later);
            }
            let (behind, ahead) = (self.decoder.behind(), self.decoder.ahead());
            let (direct, asked, count) = match self.decoder.direct() {
                Some(space) if space.len() <= *room => {
                    let direct = space.len();
                    let count = self.wire.read(space, &mut self.buffer[..behind]);
                    (direct, direct + behind, count)
                }
                Some(space) => (*room, *room, self.wire.read(&mut space[..*room], &mut [])),
                None => (0, ahead, self.wire.read(&mut self.buffer[..ahead], &mut [])),
            };
            let count = match count {
                Ok(0) => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(Got::Nothing),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error.into()),
            };
            *room -= self.wire.arrived(count).min(*room);
            // A socket that gives less than it is asked for has no more; a session may have read more than it gives.
            self.is_empty = count < asked && self.wire.is_plain() && !self.ends;
            self.unread = 0..count.saturating_sub(direct);
            if direct > 0
                && let Some(frame) = self.decoder.advance(count.min(direct))?
            {
                return Ok(Got::Frame(frame));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use paceline_learn::Dice;
    use paceline_runtime::codec::Payload;
    use paceline_runtime::view::ViewName;

    use super::super::frame::Segment;
    use super::super::message::ExchangeName;
    use super::*;

    fn link(stream: TcpStream) -> Link {
        Link::new(stream, None, Limits::for_replica(1 << 20), Pool::default())
    }

    /// A link, and the other end of its connection.
    fn pair() -> (Link, std::net::TcpStream) {
        let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).expect("there is a port");
        let address = listener.local_addr().expect("it is bound");
        let stream = TcpStream::connect(address).expect("it listens");
        (link(stream), listener.accept().expect("somebody has dialled").0)
    }

    fn piece(exchange: u64) -> PeerMessage {
        let name = ExchangeName { view: ViewName { incarnation: 1, number: 1 }, exchange };
        PeerMessage::Piece { name, start: 0, of_sum: false }
    }

    #[test]
    fn a_peer_that_takes_part_and_does_not_read_lags() {
        let (mut link, _peer) = pair();
        let mut queue = |exchange| {
            link.queue(&piece(exchange), Load::None);
            link.lags()
        };
        // It may have the last exchange before it; 0 is settling, which has no place in their order.
        assert_eq!([7, 0, 7, 8, 0].map(&mut queue), [false; 5]);
        assert!(queue(9), "it cannot have entered the exchange 8 without all of the exchange 7");
    }

    /// Heads are read alone, with what is in front of them, or with what is behind them; whichever it is, nothing is lost and nothing moves.
    #[test]
    fn frames_of_all_lengths_come_out_in_their_order() {
        for seed in 0..20 {
            let mut dice = Dice::keyed(&[seed]);
            let mut below = |n: usize| dice.below(n as u64) as usize;
            let (mut from, to) = pair();
            to.set_nonblocking(true).expect("it need not wait");
            let mut to = link(TcpStream::from_std(to));
            // Nothing, a little, what is read with its head, and what is read apart from it.
            let lengths = [0, 1, 10_000, 20_000, 100_000];
            let sent: Vec<Vector> = (0..100)
                .map(|_| {
                    let first = below(1 << 20) as f32;
                    (0..lengths[below(lengths.len())]).map(|i| first + i as f32).collect()
                })
                .collect();
            let mut waiting = sent.iter().enumerate();
            let mut arrived = vec![];
            while arrived.len() < sent.len() {
                // Sometimes much is there when it is read, and sometimes not even a whole head.
                for (i, vector) in waiting.by_ref().take(below(5)) {
                    let payload = Arc::new(Payload::dense(vector.clone()));
                    from.queue(&piece(i as u64), Load::Payload(payload));
                }
                from.write().expect("the peer lives");
                to.wake(false);
                let mut room = 1 + below(300_000);
                while let Got::Frame(frame) = to.read(&mut room).expect("frames are right") {
                    arrived.push(frame);
                }
            }
            for ((i, vector), frame) in sent.iter().enumerate().zip(arrived) {
                let exchange = message_of(&frame).and_then(|message| message.exchange());
                assert_eq!(exchange.unwrap_or(0), i as u64, "seed {seed}");
                let Some(Segment::Floats(numbers)) = frame.segments.first() else {
                    panic!("seed {seed}: frame {i} has no numbers");
                };
                assert_eq!(numbers, vector, "seed {seed}, frame {i}");
            }
        }
    }
}
