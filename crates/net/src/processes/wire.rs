//! A connection's bytes, in the clear or encrypted, without ever blocking.

use std::io::{self, IoSlice, Read, Write};

use mio::net::TcpStream;
use rustls::pki_types::CertificateDer;

pub struct Wire {
    pub stream: TcpStream,
    /// `None`: in the clear.
    tls: Option<Box<rustls::Connection>>,
}

impl Wire {
    pub fn new(stream: TcpStream, tls: Option<rustls::Connection>) -> Wire {
        Wire { stream, tls: tls.map(Box::new) }
    }

    /// The certificate that the peer has shown; `None` before the handshake, and without TLS.
    pub fn certificate(&self) -> Option<&CertificateDer<'static>> {
        self.tls.as_ref()?.peer_certificates()?.first()
    }

    /// Whether something waits to be sent that no caller knows of: parts of a handshake.
    pub fn wants_write(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.wants_write())
    }

    /// Reads; `WouldBlock` if nothing is there, 0 at the end.
    pub fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let Some(tls) = &mut self.tls else { return self.stream.read(into) };
        loop {
            match tls.reader().read(into) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                result => return result,
            }
            if tls.read_tls(&mut self.stream)? == 0 {
                return Ok(0);
            }
            tls.process_new_packets().map_err(io::Error::other)?;
        }
    }

    /// Takes as many bytes as it can; `WouldBlock` if none.
    pub fn write(&mut self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        let Some(tls) = &mut self.tls else { return self.stream.write_vectored(pieces) };
        while tls.wants_write() {
            tls.write_tls(&mut self.stream)?;
        }
        let taken = tls.writer().write_vectored(pieces)?;
        // Before the handshake is over only so much is kept.
        if taken == 0 { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(taken) }
    }

    /// Sends what was taken, as far as the socket takes it.
    pub fn flush(&mut self) -> io::Result<()> {
        let Some(tls) = &mut self.tls else { return Ok(()) };
        while tls.wants_write() {
            tls.write_tls(&mut self.stream)?;
        }
        Ok(())
    }
}
