//! A connection's bytes, in the clear or encrypted, without ever blocking.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};

use mio::net::TcpStream;
use rustls::pki_types::CertificateDer;

use super::session::Session;

pub struct Wire {
    pub stream: TcpStream,
    /// `None`: in the clear.
    tls: Option<Box<Session>>,
}

impl Wire {
    pub fn new(stream: TcpStream, tls: Option<Session>) -> Wire {
        Wire { stream, tls: tls.map(Box::new) }
    }

    pub fn is_plain(&self) -> bool {
        self.tls.is_none()
    }

    /// The certificate that the peer has shown; `None` before the handshake, and without TLS.
    pub fn certificate(&self) -> Option<&CertificateDer<'static>> {
        self.tls.as_ref()?.certificate()
    }

    /// Whether something waits to be sent that no caller knows of: parts of a handshake, and what was to be sent behind it.
    pub fn wants_write(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.wants_write())
    }

    /// Reads, first into the one and then, perhaps, into the other; `WouldBlock` if nothing is there, 0 at the end.
    pub fn read(&mut self, into: &mut [u8], then: &mut [u8]) -> io::Result<usize> {
        match (&mut self.tls, then) {
            (Some(tls), _) => tls.read(&mut self.stream, into),
            // A shorter way through the system.
            (None, []) => self.stream.read(into),
            (None, then) => {
                self.stream.read_vectored(&mut [IoSliceMut::new(into), IoSliceMut::new(then)])
            }
        }
    }

    /// How many bytes the socket has given since the last call, where a read gave this many.
    pub fn arrived(&mut self, read: usize) -> usize {
        self.tls.as_mut().map_or(read, |tls| tls.arrived())
    }

    /// Takes as many bytes as it can; `WouldBlock` if none.
    pub fn write(&mut self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        match (&mut self.tls, pieces) {
            (Some(tls), _) => tls.write(&mut self.stream, pieces),
            // A shorter way through the system.
            (None, [piece]) => self.stream.write(piece),
            (None, _) => self.stream.write_vectored(pieces),
        }
    }

    /// Sends what was taken, as far as the socket takes it.
    pub fn flush(&mut self) -> io::Result<()> {
        self.tls.as_mut().map_or(Ok(()), |tls| tls.flush(&mut self.stream))
    }
}
