//! A connection's bytes, in the clear or encrypted, without ever blocking.

use std::io::{self, IoSlice, Read, Write};
use std::ops::Range;

use mio::net::TcpStream;
use rustls::pki_types::CertificateDer;

pub struct Wire {
    pub stream: TcpStream,
    /// `None`: in the clear.
    tls: Option<Box<Encrypted>>,
}

/// A session, and what was read ahead for it: on its own it would ask the system for 4 kB at a time.
struct Encrypted {
    session: rustls::Connection,
    buffer: Vec<u8>,
    unread: Range<usize>,
}

/// Memory for what is read ahead: at first, and on links that fill it.
const AHEAD: usize = 16 << 10;
const AHEAD_MAX: usize = 256 << 10;
/// What is encrypted before it is handed to the system.
const WRITTEN: usize = 256 << 10;

impl Wire {
    pub fn new(stream: TcpStream, tls: Option<rustls::Connection>) -> Wire {
        let tls = tls.map(|mut session| {
            session.set_buffer_limit(Some(WRITTEN));
            Box::new(Encrypted { session, buffer: vec![0; AHEAD], unread: 0..0 })
        });
        Wire { stream, tls }
    }

    pub fn is_plain(&self) -> bool {
        self.tls.is_none()
    }

    /// The certificate that the peer has shown; `None` before the handshake, and without TLS.
    pub fn certificate(&self) -> Option<&CertificateDer<'static>> {
        self.tls.as_ref()?.session.peer_certificates()?.first()
    }

    /// Whether something waits to be sent that no caller knows of: parts of a handshake.
    pub fn wants_write(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.session.wants_write())
    }

    /// Reads; `WouldBlock` if nothing is there, 0 at the end.
    pub fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match &mut self.tls {
            Some(tls) => tls.read(&mut self.stream, into),
            None => self.stream.read(into),
        }
    }

    /// Takes as many bytes as it can; `WouldBlock` if none.
    pub fn write(&mut self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        let Some(tls) = &mut self.tls else {
            return match pieces {
                // A shorter way through the system.
                [piece] => self.stream.write(piece),
                _ => self.stream.write_vectored(pieces),
            };
        };
        tls.flush(&mut self.stream)?;
        let taken = tls.session.writer().write_vectored(pieces)?;
        // Before the handshake is over only so much is kept.
        if taken == 0 { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(taken) }
    }

    /// Sends what was taken, as far as the socket takes it.
    pub fn flush(&mut self) -> io::Result<()> {
        self.tls.as_mut().map_or(Ok(()), |tls| tls.flush(&mut self.stream))
    }
}

impl Encrypted {
    fn read(&mut self, stream: &mut TcpStream, into: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.session.reader().read(into) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                result => return result,
            }
            if self.unread.is_empty() {
                if self.unread.end == self.buffer.len() && self.buffer.len() < AHEAD_MAX {
                    self.buffer.resize(2 * self.buffer.len(), 0);
                }
                self.unread = 0..0;
                self.unread = 0..stream.read(&mut self.buffer)?;
            }
            let mut bytes = &self.buffer[self.unread.clone()];
            // Nothing is left only at the end of the stream, which the session learns here.
            if self.session.read_tls(&mut bytes)? == 0 {
                return Ok(0);
            }
            self.unread.start = self.unread.end - bytes.len();
            self.session.process_new_packets().map_err(io::Error::other)?;
        }
    }

    fn flush(&mut self, stream: &mut TcpStream) -> io::Result<()> {
        while self.session.wants_write() {
            self.session.write_tls(stream)?;
        }
        Ok(())
    }
}
