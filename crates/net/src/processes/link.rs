//! One connection to another worker process: frames in, frames out, in strict order, without ever blocking.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::ops::Range;

use mio::net::TcpStream;
use paceline_learn::kernels::Pool;
use serde::Serialize;

use super::frame::{Arrived, Decoder, FrameProblem, Limits, bytes_of, encode};
use super::message::Load;
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
}

/// A frame that is being sent, and how many of its bytes are.
struct Outgoing {
    head: Vec<u8>,
    load: Load,
    bytes: usize,
    sent: usize,
}

/// Read ahead at a time; longer segments are read where they belong.
const AHEAD: usize = 8 << 10;
/// Pieces handed to the system in one call, and their bytes: then the peer can read the first ones while the next ones are written.
const PIECES: usize = 16;
const CALL: usize = 512 << 10;

/// What is on the way may take this much of the kernel's memory in each direction.
const SOCKET_BUFFER: usize = 4 << 20;

impl Link {
    pub fn new(
        stream: TcpStream,
        tls: Option<rustls::Connection>,
        limits: Limits,
        pool: Pool,
    ) -> Link {
        // A message is sent when it is there, and a large one in few calls. Neither is needed for a link to work.
        let _ = stream.set_nodelay(true);
        let socket = socket2::SockRef::from(&stream);
        let _ = socket.set_send_buffer_size(SOCKET_BUFFER);
        let _ = socket.set_recv_buffer_size(SOCKET_BUFFER);
        let (buffer, outgoing) = (vec![0; AHEAD], VecDeque::new());
        let decoder = Decoder::new(limits, pool);
        let wire = Wire::new(stream, tls);
        Link { wire, decoder, buffer, unread: 0..0, outgoing, queued: 0 }
    }

    /// A writer notices after this time that nothing reaches the peer any more.
    pub fn set_timeout(&self, timeout: std::time::Duration) {
        #[cfg(target_os = "linux")]
        let _ = socket2::SockRef::from(&self.wire.stream).set_tcp_user_timeout(Some(timeout));
        #[cfg(not(target_os = "linux"))]
        let _ = timeout;
    }

    pub fn set_limits(&mut self, limits: Limits) {
        self.decoder.set_limits(limits);
    }

    pub fn queue<M: Serialize>(&mut self, message: &M, load: Load) {
        let slices = load.slices();
        let head = encode(message, &slices);
        let bytes = head.len() + slices.iter().map(|slice| bytes_of(*slice).len()).sum::<usize>();
        drop(slices);
        self.queued += bytes as u64;
        self.outgoing.push_back(Outgoing { head, load, bytes, sent: 0 });
    }

    pub fn queued(&self) -> u64 {
        self.queued
    }

    /// Sends until the socket takes no more.
    pub fn write(&mut self) -> io::Result<()> {
        while let Some(first) = self.outgoing.front() {
            let slices = first.load.slices();
            let all = std::iter::once(first.head.as_slice());
            let all = all.chain(slices.iter().map(|slice| bytes_of(*slice)));
            let mut skip = first.sent;
            let (mut pieces, mut room) = (Vec::with_capacity(PIECES), CALL);
            for bytes in all {
                let skipped = skip.min(bytes.len());
                skip -= skipped;
                let end = bytes.len().min(skipped + room);
                if skipped < end && pieces.len() < PIECES {
                    pieces.push(IoSlice::new(&bytes[skipped..end]));
                    room -= end - skipped;
                }
            }
            match self.wire.write(&pieces) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => {
                    self.queued -= count as u64;
                    let first = self.outgoing.front_mut().expect("it is being sent");
                    first.sent += count;
                    if first.sent == first.bytes {
                        self.outgoing.pop_front();
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        match self.wire.flush() {
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => Err(error),
            _ => Ok(()),
        }
    }

    /// Reads until a frame is there; `None` if the socket has no more.
    pub fn read(&mut self) -> Result<Option<Arrived>, FrameProblem> {
        loop {
            while !self.unread.is_empty() {
                let mut bytes = &self.buffer[self.unread.clone()];
                let frame = self.decoder.take(&mut bytes)?;
                self.unread.start = self.unread.end - bytes.len();
                if frame.is_some() {
                    return Ok(frame);
                }
            }
            let (count, is_direct) = match self.decoder.direct() {
                Some(space) => {
                    let count = space.len().min(CALL);
                    (self.wire.read(&mut space[..count]), true)
                }
                None => (self.wire.read(&mut self.buffer), false),
            };
            let count = match count {
                Ok(0) => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error.into()),
            };
            if !is_direct {
                self.unread = 0..count;
            } else if let Some(frame) = self.decoder.advance(count)? {
                return Ok(Some(frame));
            }
        }
    }
}
