//! A TLS session over a socket that never blocks.
//!
//! rustls makes the handshake. Behind it, records are encrypted and decrypted in the memory from which they are sent and into which they were
//! read (`records.rs`): that is the reader's own if it wants many bytes, else the session's.

use std::io::{self, IoSlice, Read, Write};
use std::ops::Range;
use std::sync::Arc;

use mio::net::TcpStream;
use rustls::client::UnbufferedClientConnection;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::server::UnbufferedServerConnection;
use rustls::unbuffered::{ConnectionState, EncodeError, InsufficientSizeError, UnbufferedStatus};
use rustls::{ClientConfig, ServerConfig};

use super::records::{ALIGNED, Opened, RECORD_MAX, Records, first_record};

pub struct Session {
    stage: Stage,
    /// What the peer has shown in the handshake.
    certificate: Option<CertificateDer<'static>>,
    /// Memory for what is read. Bytes of the peer that are decrypted and that nobody has taken yet lie in `decrypted`, and behind them in
    /// `unread` what was read and is not decrypted yet.
    incoming: Vec<u8>,
    decrypted: Range<usize>,
    unread: Range<usize>,
    /// How many bytes have come since somebody asked.
    arrived: usize,
    /// What was encrypted, and the part of it that the socket has not taken.
    outgoing: Vec<u8>,
    unsent: Range<usize>,
    /// Whether the handshake is over, and nobody has been told yet.
    has_news: bool,
}

enum Stage {
    /// `shown`: how many of the unread bytes the handshake has seen. It sees them record by record, so that none is left to it that follows
    /// the handshake.
    Handshake {
        side: Box<Side>,
        shown: usize,
    },
    Records(Box<Records>),
    /// The peer sends no more, or something went wrong.
    Closed,
}

enum Side {
    Client(UnbufferedClientConnection),
    Server(UnbufferedServerConnection),
}

/// What follows a step of a handshake.
enum Next {
    Step,
    /// It needs more bytes of the peer, or it is over.
    Wait,
}

/// Memory for what is read and not yet taken. A whole handshake fits into it.
const AHEAD: usize = 64 << 10;
/// Who reads this many bytes at least gets them decrypted where they are to be.
const IN_PLACE: usize = 2 * RECORD_MAX;

impl Session {
    pub fn client(config: Arc<ClientConfig>, name: ServerName<'static>) -> io::Result<Session> {
        let client = UnbufferedClientConnection::new(config, name).map_err(io::Error::other)?;
        let mut session = Session::new(Side::Client(client));
        // The client speaks first.
        session.shake_hands()?;
        Ok(session)
    }

    pub fn server(config: Arc<ServerConfig>) -> io::Result<Session> {
        let server = UnbufferedServerConnection::new(config).map_err(io::Error::other)?;
        Ok(Session::new(Side::Server(server)))
    }

    fn new(side: Side) -> Session {
        Session {
            stage: Stage::Handshake { side: Box::new(side), shown: 0 },
            certificate: None,
            incoming: vec![0; AHEAD],
            decrypted: 0..0,
            unread: 0..0,
            arrived: 0,
            outgoing: vec![],
            unsent: 0..0,
            has_news: false,
        }
    }

    /// The certificate that the peer has shown; `None` before the end of the handshake.
    pub fn certificate(&self) -> Option<&CertificateDer<'static>> {
        self.certificate.as_ref()
    }

    /// Whether [`flush`](Self::flush) has something to send, or the handshake is over since the last one.
    pub fn wants_write(&self) -> bool {
        !self.unsent.is_empty() || self.has_news
    }

    /// How many bytes have come since the last call. They are more than were read: records have heads and tags, and a peer may fill them up.
    pub fn arrived(&mut self) -> usize {
        std::mem::take(&mut self.arrived)
    }

    /// Reads; `WouldBlock` if nothing is there, 0 at the end. What `into` holds behind the bytes that were read may change, too.
    pub fn read(&mut self, stream: &mut TcpStream, into: &mut [u8]) -> io::Result<usize> {
        let mut count = 0;
        while count < into.len() {
            if !self.decrypted.is_empty() {
                let some = self.decrypted.len().min(into.len() - count);
                let from = self.decrypted.start..self.decrypted.start + some;
                into[count..count + some].copy_from_slice(&self.incoming[from]);
                self.decrypted.start += some;
                count += some;
            } else if matches!(self.stage, Stage::Closed) {
                break;
            } else if !self.decrypt()? {
                match &self.stage {
                    _ if count > 0 => break,
                    Stage::Records(_) if into.len() >= IN_PLACE => {
                        count = self.read_in_place(stream, into)?;
                    }
                    _ => self.fill(stream, into.len())?,
                }
            }
        }
        Ok(count)
    }

    /// Takes the next record; returns whether all of it was there.
    fn decrypt(&mut self) -> io::Result<bool> {
        if matches!(self.stage, Stage::Handshake { .. }) {
            self.shake_hands()?;
        }
        let Stage::Records(records) = &mut self.stage else { return Ok(false) };
        let unread = &mut self.incoming[self.unread.clone()];
        let Some(length) = first_record(unread)? else { return Ok(false) };
        match records.open(&mut unread[..length], 0)? {
            Opened::Data(length) => {
                self.decrypted = self.unread.start..self.unread.start + length;
            }
            Opened::Nothing => {}
            Opened::Closed => self.stage = Stage::Closed,
        }
        self.unread.start += length;
        Ok(true)
    }

    /// Encrypts these bytes, which are no more than those of a link's turn; `WouldBlock` if it cannot send any now. (To send each 256 kB as soon as
    /// they are encrypted was tried: it took a tenth more.)
    pub fn write(&mut self, stream: &mut TcpStream, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        self.flush(stream)?;
        let records = match &mut self.stage {
            Stage::Handshake { .. } => return Err(io::ErrorKind::WouldBlock.into()),
            Stage::Records(records) => records,
            Stage::Closed => return Err(io::ErrorKind::BrokenPipe.into()),
        };
        let count = pieces.iter().map(|piece| piece.len()).sum();
        let room = Records::sealed_max(count);
        if self.outgoing.len() < room + ALIGNED {
            self.outgoing.resize(room + ALIGNED, 0);
        }
        let start = self.outgoing.as_ptr().align_offset(ALIGNED).min(ALIGNED);
        self.unsent = start..start + records.seal(pieces, &mut self.outgoing[start..])?;
        Ok(count)
    }

    /// Sends what was encrypted; `WouldBlock` if the socket does not take all of it.
    pub fn flush(&mut self, stream: &mut TcpStream) -> io::Result<()> {
        self.has_news = false;
        while !self.unsent.is_empty() {
            match stream.write(&self.outgoing[self.unsent.clone()]) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => self.unsent.start += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        self.unsent = 0..0;
        Ok(())
    }

    /// Reads whole records into the memory of the reader and decrypts them there, each to the end of the one before; returns how many bytes
    /// they held. What was read of another one is kept for the next time.
    fn read_in_place(&mut self, stream: &mut TcpStream, into: &mut [u8]) -> io::Result<usize> {
        let Stage::Records(records) = &mut self.stage else { return Ok(0) };
        let begun = self.unread.len();
        let arrived = stream.read(&mut into[begun..])?;
        self.arrived += arrived;
        into[..begun].copy_from_slice(&self.incoming[self.unread.clone()]);
        let mut is_closed = arrived == 0;
        let (mut count, mut at) = (0, 0);
        while !is_closed && let Some(length) = first_record(&into[at..begun + arrived])? {
            match records.open(&mut into[count..at + length], at - count)? {
                Opened::Data(length) => count += length,
                Opened::Nothing => {}
                Opened::Closed => is_closed = true,
            }
            at += length;
        }
        if is_closed {
            self.stage = Stage::Closed;
        } else {
            let rest = &into[at..begun + arrived];
            self.incoming[..rest.len()].copy_from_slice(rest);
            self.unread = 0..rest.len();
        }
        Ok(count)
    }

    /// Reads more, for somebody who wants this many bytes. What follows a few of them is a long run, most likely, which is not to be read here.
    fn fill(&mut self, stream: &mut TcpStream, wanted: usize) -> io::Result<()> {
        self.incoming.copy_within(self.unread.clone(), 0);
        self.unread = 0..self.unread.len();
        let end = self.incoming.len().min(self.unread.end + wanted.max(RECORD_MAX));
        if self.unread.end == end {
            return Err(io::Error::other("a handshake that does not end"));
        }
        let count = stream.read(&mut self.incoming[self.unread.end..end])?;
        self.unread.end += count;
        self.arrived += count;
        if count == 0 {
            self.stage = Stage::Closed;
        }
        Ok(())
    }

    /// Continues the handshake until it is over, or until it needs bytes that have not arrived.
    fn shake_hands(&mut self) -> io::Result<()> {
        while let Stage::Handshake { side, shown } = &mut self.stage {
            let unread = &mut self.incoming[self.unread.clone()];
            let out = &mut Out { outgoing: &mut self.outgoing, unsent: &mut self.unsent };
            let unread = &mut unread[..*shown];
            let (discarded, next) = match &mut **side {
                Side::Client(it) => out.follow(it.process_tls_records(unread))?,
                Side::Server(it) => out.follow(it.process_tls_records(unread))?,
            };
            self.unread.start += discarded;
            *shown -= discarded;
            match next {
                Next::Step => {}
                Next::Wait if side.is_handshaking() => {
                    let rest = &self.incoming[self.unread.start + *shown..self.unread.end];
                    match first_record(rest)? {
                        Some(length) => *shown += length,
                        None => break,
                    }
                }
                Next::Wait if *shown > 0 => {
                    return Err(io::Error::other("a handshake that goes on behind its end"));
                }
                Next::Wait => self.end_handshake()?,
            }
        }
        Ok(())
    }

    fn end_handshake(&mut self) -> io::Result<()> {
        let Stage::Handshake { side, .. } = std::mem::replace(&mut self.stage, Stage::Closed)
        else {
            return Ok(());
        };
        let certificates = match &*side {
            Side::Client(it) => it.peer_certificates(),
            Side::Server(it) => it.peer_certificates(),
        };
        self.certificate = certificates.and_then(|all| all.first()).cloned();
        self.stage = Stage::Records(Box::new(match *side {
            Side::Client(it) => Records::of_client(it)?,
            Side::Server(it) => Records::of_server(it)?,
        }));
        self.has_news = true;
        Ok(())
    }
}

impl Side {
    fn is_handshaking(&self) -> bool {
        match self {
            Side::Client(it) => it.is_handshaking(),
            Side::Server(it) => it.is_handshaking(),
        }
    }
}

/// Where a handshake puts what is to be sent.
struct Out<'a> {
    outgoing: &'a mut Vec<u8>,
    unsent: &'a mut Range<usize>,
}

impl Out<'_> {
    /// Does what a handshake is ready for; returns how many bytes it does not need any more, and what follows.
    fn follow<Data>(
        &mut self,
        status: UnbufferedStatus<'_, '_, Data>,
    ) -> io::Result<(usize, Next)> {
        let next = match status.state.map_err(io::Error::other)? {
            ConnectionState::EncodeTlsData(mut data) => {
                self.append(|space| match data.encode(space) {
                    Err(EncodeError::InsufficientSize(size)) => Ok(Err(size)),
                    encoded => encoded.map(Ok).map_err(io::Error::other),
                })?;
                Next::Step
            }
            // It lies in `outgoing`, before everything that is encrypted later.
            ConnectionState::TransmitTlsData(data) => {
                data.done();
                Next::Step
            }
            ConnectionState::BlockedHandshake | ConnectionState::WriteTraffic(_) => Next::Wait,
            _ => return Err(io::Error::other("data, or an end, within a handshake")),
        };
        Ok((status.discard, next))
    }

    /// Appends to what is to be sent: `write` says how much it has written, or how much memory it needs.
    fn append(
        &mut self,
        mut write: impl FnMut(&mut [u8]) -> io::Result<Result<usize, InsufficientSizeError>>,
    ) -> io::Result<()> {
        loop {
            match write(&mut self.outgoing[self.unsent.end..])? {
                Ok(count) => {
                    self.unsent.end += count;
                    return Ok(());
                }
                Err(InsufficientSizeError { required_size }) => {
                    self.outgoing.resize(self.unsent.end + required_size, 0);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
