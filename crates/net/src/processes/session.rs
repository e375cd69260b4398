//! A TLS session over a socket that never blocks.
//!
//! It decrypts records where they were read, and so does without the copies of rustls' own buffers, which take 4 kB of a record at a time.

use std::io::{self, Read, Write};
use std::ops::Range;
use std::sync::Arc;

use mio::net::TcpStream;
use rustls::client::UnbufferedClientConnection;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::server::UnbufferedServerConnection;
use rustls::unbuffered::{
    ConnectionState, EncodeError, EncryptError, InsufficientSizeError, UnbufferedStatus,
};
use rustls::{ClientConfig, ServerConfig};

pub struct Session {
    side: Side,
    /// What was read, and the part of it that the session has not taken.
    incoming: Vec<u8>,
    unread: Range<usize>,
    /// What was decrypted and had no room where it was to go.
    rest: Vec<u8>,
    given: usize,
    /// What was encrypted, and the part of it that the socket has not taken.
    outgoing: Vec<u8>,
    unsent: Range<usize>,
    /// Whether the handshake is over, and whether nobody has been told yet.
    is_ready: bool,
    has_news: bool,
    is_closed: bool,
}

enum Side {
    Client(UnbufferedClientConnection),
    Server(UnbufferedServerConnection),
}

/// What came of a step.
enum Step {
    /// The session has decrypted a record; this count of its bytes is in the caller's memory, the rest in `Session::rest`.
    Decrypted(usize),
    Encrypted,
    /// The session took part in a handshake. Another step may follow at once.
    Done,
    /// The session needs more bytes from the peer.
    Waits,
    Closed,
}

/// Memory for what is read: at first, which a whole handshake fits into, and on links that fill it.
const AHEAD: usize = 64 << 10;
const AHEAD_MAX: usize = 256 << 10;

impl Session {
    pub fn client(config: Arc<ClientConfig>, name: ServerName<'static>) -> io::Result<Session> {
        let client = UnbufferedClientConnection::new(config, name).map_err(io::Error::other)?;
        let mut session = Session::new(Side::Client(client));
        // The client speaks first.
        while !matches!(session.step(&mut [], &[])?, Step::Waits) {}
        Ok(session)
    }

    pub fn server(config: Arc<ServerConfig>) -> io::Result<Session> {
        let server = UnbufferedServerConnection::new(config).map_err(io::Error::other)?;
        Ok(Session::new(Side::Server(server)))
    }

    fn new(side: Side) -> Session {
        Session {
            side,
            incoming: vec![0; AHEAD],
            unread: 0..0,
            rest: vec![],
            given: 0,
            outgoing: vec![],
            unsent: 0..0,
            is_ready: false,
            has_news: false,
            is_closed: false,
        }
    }

    /// The certificate that the peer has shown; `None` before the handshake.
    pub fn certificate(&self) -> Option<&CertificateDer<'static>> {
        let certificates = match &self.side {
            Side::Client(it) => it.peer_certificates(),
            Side::Server(it) => it.peer_certificates(),
        };
        certificates?.first()
    }

    /// Whether [`flush`](Self::flush) has something to send, or the handshake is over since the last one.
    pub fn wants_write(&self) -> bool {
        !self.unsent.is_empty() || self.has_news
    }

    /// Reads; `WouldBlock` if nothing is there, 0 at the end.
    pub fn read(&mut self, stream: &mut TcpStream, into: &mut [u8]) -> io::Result<usize> {
        let rest = &self.rest[self.given..];
        if !rest.is_empty() {
            let count = rest.len().min(into.len());
            into[..count].copy_from_slice(&rest[..count]);
            self.given += count;
            return Ok(count);
        }
        self.rest.clear();
        self.given = 0;
        let mut count = 0;
        loop {
            match self.step(&mut into[count..], &[])? {
                Step::Decrypted(more) => {
                    count += more;
                    if count == into.len() {
                        return Ok(count);
                    }
                }
                Step::Done | Step::Encrypted => {}
                Step::Closed => return Ok(count),
                Step::Waits if count > 0 => return Ok(count),
                Step::Waits => {
                    if !self.fill(stream)? {
                        return Ok(0);
                    }
                }
            }
        }
    }

    /// Encrypts these bytes, which are no more than those of a link's turn; `WouldBlock` if it cannot send any now.
    pub fn write(
        &mut self,
        stream: &mut TcpStream,
        pieces: &[io::IoSlice<'_>],
    ) -> io::Result<usize> {
        self.flush(stream)?;
        if !self.is_ready {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        for piece in pieces.iter().filter(|piece| !piece.is_empty()) {
            while !matches!(self.step(&mut [], piece)?, Step::Encrypted) {
                if self.is_closed {
                    return Err(io::ErrorKind::BrokenPipe.into());
                }
            }
        }
        Ok(pieces.iter().map(|piece| piece.len()).sum())
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

    /// Reads more; `false` at the end.
    fn fill(&mut self, stream: &mut TcpStream) -> io::Result<bool> {
        let was_full = self.unread.end == self.incoming.len();
        self.incoming.copy_within(self.unread.clone(), 0);
        self.unread = 0..self.unread.len();
        if was_full && self.is_ready && self.incoming.len() < AHEAD_MAX {
            self.incoming.resize(2 * self.incoming.len(), 0);
        }
        if self.unread.end == self.incoming.len() {
            return Err(io::Error::other("a record, or a handshake, that does not end"));
        }
        let count = stream.read(&mut self.incoming[self.unread.end..])?;
        self.unread.end += count;
        Ok(count > 0)
    }

    /// Lets the session do one thing: decrypt a record `into` memory, take part in a handshake, or encrypt `plain`.
    fn step(&mut self, into: &mut [u8], plain: &[u8]) -> io::Result<Step> {
        if self.is_closed {
            return Ok(Step::Closed);
        }
        // It sees all that waits also if it is to encrypt, and then may decrypt some of it before: it remembers places in these bytes.
        let incoming = &mut self.incoming[self.unread.clone()];
        let mut out = Out {
            into,
            plain,
            rest: &mut self.rest,
            outgoing: &mut self.outgoing,
            unsent: &mut self.unsent,
        };
        let (discarded, step) = match &mut self.side {
            Side::Client(it) => out.follow(it.process_tls_records(incoming))?,
            Side::Server(it) => out.follow(it.process_tls_records(incoming))?,
        };
        self.unread.start += discarded;
        match step {
            Step::Waits | Step::Encrypted => {
                let is_ready = !self.is_handshaking();
                self.has_news |= is_ready && !self.is_ready;
                self.is_ready = is_ready;
            }
            Step::Closed => self.is_closed = true,
            Step::Decrypted(_) | Step::Done => {}
        }
        Ok(step)
    }

    fn is_handshaking(&self) -> bool {
        match &self.side {
            Side::Client(it) => it.is_handshaking(),
            Side::Server(it) => it.is_handshaking(),
        }
    }
}

/// Where the results of a step go.
struct Out<'a> {
    into: &'a mut [u8],
    plain: &'a [u8],
    rest: &'a mut Vec<u8>,
    outgoing: &'a mut Vec<u8>,
    unsent: &'a mut Range<usize>,
}

impl Out<'_> {
    /// Does what a session is ready for; returns how many bytes it does not need any more.
    fn follow<Data>(
        &mut self,
        status: UnbufferedStatus<'_, '_, Data>,
    ) -> io::Result<(usize, Step)> {
        let mut discarded = status.discard;
        let step = match status.state.map_err(io::Error::other)? {
            ConnectionState::ReadTraffic(mut traffic) => {
                let mut count = 0;
                while let Some(record) = traffic.next_record() {
                    let record = record.map_err(io::Error::other)?;
                    discarded += record.discard;
                    let some = record.payload.len().min(self.into.len() - count);
                    let (here, rest) = record.payload.split_at(some);
                    self.into[count..count + some].copy_from_slice(here);
                    self.rest.extend_from_slice(rest);
                    count += some;
                }
                Step::Decrypted(count)
            }
            ConnectionState::EncodeTlsData(mut data) => {
                self.append(|space| match data.encode(space) {
                    Err(EncodeError::InsufficientSize(size)) => Ok(Err(size)),
                    encoded => encoded.map(Ok).map_err(io::Error::other),
                })?;
                Step::Done
            }
            // It lies in `outgoing`, before everything that is encrypted later.
            ConnectionState::TransmitTlsData(data) => {
                data.done();
                Step::Done
            }
            ConnectionState::WriteTraffic(mut traffic) if !self.plain.is_empty() => {
                let plain = self.plain;
                self.append(|space| match traffic.encrypt(plain, space) {
                    Err(EncryptError::InsufficientSize(size)) => Ok(Err(size)),
                    encrypted => encrypted.map(Ok).map_err(io::Error::other),
                })?;
                Step::Encrypted
            }
            ConnectionState::WriteTraffic(_) | ConnectionState::BlockedHandshake => Step::Waits,
            ConnectionState::PeerClosed | ConnectionState::Closed => Step::Closed,
            _ => return Err(io::Error::other("early data, which nobody has allowed")),
        };
        Ok((discarded, step))
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
mod tests {
    use std::io::IoSlice;
    use std::net::{Shutdown, TcpListener};
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::time::SystemTime;

    use paceline_identity::{
        Authority, Credentials, JobName, Key, Name, Nonce, Role, peer_client, peer_server,
    };
    use paceline_learn::Dice;
    use paceline_runtime::WorkerId;

    use super::*;

    struct End {
        stream: TcpStream,
        session: Session,
        sent: usize,
        got: Vec<u8>,
    }

    fn streams() -> [TcpStream; 2] {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("there is a port");
        let address = listener.local_addr().expect("it is bound");
        let one = std::net::TcpStream::connect(address).expect("it listens");
        let other = listener.accept().expect("somebody has dialled").0;
        [one, other].map(|it| {
            it.set_nonblocking(true).expect("it is a socket");
            TcpStream::from_std(it)
        })
    }

    fn ends() -> [End; 2] {
        let now = SystemTime::now();
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("paceline-session-{}-{count}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let authority = Authority::open(&path, now).expect("it can be written");
        std::fs::remove_file(&path).expect("it was written");
        let job = JobName::try_from("tested".to_owned()).expect("a name");
        let [zero, one] = [0, 1].map(|who| {
            let (key, role) = (Key::generate(), Role::Worker(WorkerId(who)));
            let name = Name { job: job.clone(), role };
            let certificate = authority.issue(&name, &key.request(Nonce::random()), now);
            Credentials::new(key, certificate, authority.trust(job.clone())).expect("they fit")
        });
        let server = Arc::new(peer_server(&zero, Arc::new(|_| true)));
        let name = ServerName::try_from("paceline").expect("a valid name");
        let client = Session::client(Arc::new(peer_client(&one, WorkerId(0))), name);
        let sessions = [Session::server(server), client].map(|it| it.expect("it begins"));
        let mut sessions = sessions.into_iter();
        streams().map(|stream| {
            let session = sessions.next().expect("there are two");
            End { stream, session, sent: 0, got: vec![] }
        })
    }

    fn unless_it_blocks(done: io::Result<usize>) -> usize {
        match done {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => 0,
            done => done.expect("nothing is wrong"),
        }
    }

    /// Sends these bytes from both ends at once, in pieces, and reads them into memory of any length.
    fn exchange(ends: &mut [End; 2], bytes: &[Vec<u8>; 2], dice: &mut Dice) {
        while ends.iter().zip([&bytes[1], &bytes[0]]).any(|(end, all)| end.got.len() < all.len()) {
            for (end, bytes) in ends.iter_mut().zip(bytes) {
                let rest = &bytes[end.sent..];
                let (head, rest) = rest.split_at(rest.len().min(dice.below(300) as usize));
                let pieces = [IoSlice::new(head), IoSlice::new(rest)];
                if !head.is_empty() || !rest.is_empty() {
                    end.sent += unless_it_blocks(end.session.write(&mut end.stream, &pieces));
                }
                unless_it_blocks(end.session.flush(&mut end.stream).map(|()| 0));
                let mut into = vec![0; 1 + dice.below(100_000) as usize];
                let count = unless_it_blocks(end.session.read(&mut end.stream, &mut into));
                end.got.extend_from_slice(&into[..count]);
            }
        }
    }

    /// Reads until something has come.
    fn read_one(end: &mut End) -> io::Result<usize> {
        loop {
            match end.session.read(&mut end.stream, &mut [0; 2000]) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                result => return result,
            }
        }
    }

    fn noise(seed: u64, len: usize) -> Vec<u8> {
        let mut dice = Dice::keyed(&[seed]);
        (0..len).map(|_| dice.below(256) as u8).collect()
    }

    #[test]
    fn bytes_arrive_as_they_were_sent_also_behind_a_change_of_keys() {
        for seed in 0..3 {
            let mut dice = Dice::keyed(&[seed]);
            let mut ends = ends();
            let first = [noise(seed, 3_000_000), noise(seed + 9, 2_000_001)];
            exchange(&mut ends, &first, &mut dice);
            assert!(ends[0].got == first[1] && ends[1].got == first[0], "seed {seed}");
            assert!(ends.iter().all(|end| end.session.certificate().is_some()));
            // One end asks for new keys; the other answers with its own.
            let waiting = ends[1].session.unread.clone();
            if let Side::Client(client) = &mut ends[1].session.side
                && let Ok(ConnectionState::WriteTraffic(traffic)) =
                    client.process_tls_records(&mut ends[1].session.incoming[waiting]).state
            {
                traffic.refresh_traffic_keys().expect("it has keys");
            } else {
                panic!("it can write");
            }
            ends.iter_mut().for_each(|end| (end.sent, end.got) = (0, vec![]));
            let second = [noise(seed + 1, 500_000), noise(seed + 2, 700_000)];
            exchange(&mut ends, &second, &mut dice);
            assert!(ends[0].got == second[1] && ends[1].got == second[0], "seed {seed}");
        }
    }

    #[test]
    fn nothing_is_sent_before_the_handshake_and_strangers_are_refused() {
        let [mut server, mut client] = ends();
        let refused = client.session.write(&mut client.stream, &[IoSlice::new(b"early")]);
        assert_eq!(refused.map_err(|error| error.kind()), Err(io::ErrorKind::WouldBlock));

        let [mut stranger, stream] = streams();
        server.stream = stream;
        stranger.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n").expect("it is open");
        let answer = read_one(&mut server);
        assert!(answer.is_err());
    }

    #[test]
    fn a_record_that_was_changed_on_its_way_ends_the_session() {
        let mut ends = ends();
        exchange(&mut ends, &[vec![1; 10], vec![2; 10]], &mut Dice::keyed(&[1]));
        let [one, other] = &mut ends;
        let plain = [IoSlice::new(&[7; 1000])];
        one.session.write(&mut one.stream, &plain).expect("it is ready");
        one.session.outgoing[500] ^= 1;
        one.session.flush(&mut one.stream).expect("the socket takes it");
        assert!(read_one(other).is_err());
    }

    #[test]
    fn the_end_of_a_connection_is_the_end_of_its_session() {
        let mut ends = ends();
        exchange(&mut ends, &[vec![1; 10], vec![2; 10]], &mut Dice::keyed(&[1]));
        let [one, other] = &mut ends;
        one.stream.shutdown(Shutdown::Write).expect("it is open");
        assert_eq!(read_one(other).expect("nothing is wrong"), 0);
    }
}
