//! One connection to another worker process: frames in, frames out, in strict order, without ever blocking.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::ops::Range;
use std::time::Duration;

use mio::net::TcpStream;
use paceline_learn::Vector;
use paceline_learn::kernels::Pool;

use super::frame::{
    AHEAD, Arrived, Decoder, FrameProblem, Limits, WORDS, bytes_of, encode, encode_words,
};
use super::heads::{self, HEAD_WORDS};
use super::message::{Load, PeerMessage};
use super::session::Session;
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

/// What is on the way may take this much of the kernel's memory in each direction.
const SOCKET_BUFFER: usize = 4 << 20;

impl Link {
    pub fn new(stream: TcpStream, tls: Option<Session>, limits: Limits, pool: Pool) -> Link {
        // A message is sent when it is there, and a large one in few calls. Neither is needed for a link to work.
        let _ = stream.set_nodelay(true);
        let socket = socket2::SockRef::from(&stream);
        let _ = socket.set_send_buffer_size(SOCKET_BUFFER);
        let _ = socket.set_recv_buffer_size(SOCKET_BUFFER);
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

    /// The peer can be reached. A writer notices after this time that nothing reaches it any more. So does a reader, which has nothing on its
    /// way that the peer would have to acknowledge: the system asks the peer now and then.
    pub fn connected(&self, timeout: Duration) {
        let socket = socket2::SockRef::from(&self.wire.stream);
        // Within one machine no packet is lost. An algorithm that paces them, as BBR does, only holds up a burst: a sum of 1 MB takes half
        // as long again.
        #[cfg(target_os = "linux")]
        if self.wire.stream.peer_addr().is_ok_and(|it| it.ip().to_canonical().is_loopback()) {
            let _ = socket.set_tcp_congestion(b"reno");
        }
        #[cfg(target_os = "linux")]
        let _ = socket.set_tcp_user_timeout(Some(timeout));
        // In whole seconds.
        let every = Duration::from_secs((timeout / 2).as_secs().max(1));
        let keepalive = socket2::TcpKeepalive::new().with_time(every).with_interval(every);
        let _ = socket.set_tcp_keepalive(&keepalive);
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

    /// Reads until a frame is there, or these bytes were read.
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
            let (asked, count, is_direct) = match self.decoder.direct() {
                Some(space) => {
                    let asked = space.len().min(*room);
                    (asked, self.wire.read(&mut space[..asked]), true)
                }
                None => {
                    let asked = self.decoder.ahead();
                    (asked, self.wire.read(&mut self.buffer[..asked]), false)
                }
            };
            let count = match count {
                Ok(0) => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(Got::Nothing),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error.into()),
            };
            *room -= count.min(*room);
            // A socket that gives less than it is asked for has no more; a session may have read more than it gives.
            self.is_empty = count < asked && self.wire.is_plain() && !self.ends;
            if !is_direct {
                self.unread = 0..count;
            } else if let Some(frame) = self.decoder.advance(count)? {
                return Ok(Got::Frame(frame));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use paceline_runtime::view::ViewName;

    use super::super::message::ExchangeName;
    use super::*;

    #[test]
    fn a_peer_that_takes_part_and_does_not_read_lags() {
        let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).expect("there is a port");
        let address = listener.local_addr().expect("it is bound");
        let stream = TcpStream::connect(address).expect("it listens");
        let limits = Limits::for_replica(10);
        let mut link = Link::new(stream, None, limits, Pool::default());
        let mut queue = |exchange| {
            let name = ExchangeName { view: ViewName { incarnation: 1, number: 1 }, exchange };
            link.queue(&PeerMessage::Piece { name, start: 0, of_sum: false }, Load::None);
            link.lags()
        };
        // It may have the last exchange before it; 0 is settling, which has no place in their order.
        assert_eq!([7, 0, 7, 8, 0].map(&mut queue), [false; 5]);
        assert!(queue(9), "it cannot have entered the exchange 8 without all of the exchange 7");
    }
}
