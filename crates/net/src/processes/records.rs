//! Records of TLS 1.3 behind a handshake that rustls has made: what encrypts and decrypts them where they lie.
//!
//! rustls copies every byte twice before it is sent, and twice when it has come; here it is copied once before, and a long run of them not at all
//! when it has come (docs/speed.md). rustls still
//! authenticates the peer and derives all keys, those of a key update too. Numbers of sections are those of RFC 8446.

use std::io::{self, IoSlice};

use ring::aead::{
    AES_128_GCM, AES_256_GCM, Aad, CHACHA20_POLY1305, LessSafeKey, NONCE_LEN, Nonce, UnboundKey,
};
use rustls::client::{ClientConnectionData, UnbufferedClientConnection};
use rustls::kernel::KernelConnection;
use rustls::server::{ServerConnectionData, UnbufferedServerConnection};
use rustls::{ConnectionTrafficSecrets, Error, ExtractedSecrets, SupportedCipherSuite};

/// Type, version and length of a record.
const HEADER: usize = 5;
/// Bytes that a record carries at most (5.1), and those that encrypting may add to them (5.2).
const PLAIN_MAX: usize = 1 << 14;
const ADDED_MAX: usize = 256;
/// What encrypting adds here: the type, which is encrypted too, and a tag.
const TAG: usize = 16;
const ADDED: usize = 1 + TAG;

/// What is encrypted at a time is filled up with zeros to a multiple of this length: the system copies what follows it faster if that begins on a
/// border of its cache lines.
pub const ALIGNED: usize = 64;

/// How many records in a row may carry nothing. Such records are not counted in a link's turn, so that they could go on for ever.
const WITHOUT_DATA_MAX: u32 = 32;

/// Types of records (5.1).
const CHANGE_CIPHER_SPEC: u8 = 20;
const ALERT: u8 = 21;
const HANDSHAKE: u8 = 22;
const APPLICATION_DATA: u8 = 23;

/// A message `KeyUpdate` (4.6.3) without its last byte, which says whether the peer is to change its keys as well.
const KEY_UPDATE: [u8; 4] = [24, 0, 0, 1];
const NOT_REQUESTED: u8 = 0;
const REQUESTED: u8 = 1;
/// The second byte of an alert that ends a connection as it should end (6.1).
const CLOSE_NOTIFY: u8 = 0;

/// Both directions of a connection.
pub struct Records {
    sealing: Half,
    opening: Half,
    keys: Keys,
    /// No key encrypts more records than this many.
    pub(super) records_max: u64,
    /// Whether the peer has asked for new keys, which it gets before anything else is encrypted.
    owes_update: bool,
    /// How often this end has changed the key that it encrypts with.
    pub(super) updates: u64,
    /// How many records of the peer have carried nothing since one did.
    without_data: u32,
}

struct Half {
    key: LessSafeKey,
    iv: [u8; NONCE_LEN],
    /// How many records this key has encrypted.
    count: u64,
}

enum Keys {
    Client(KernelConnection<ClientConnectionData>),
    Server(KernelConnection<ServerConnectionData>),
}

/// The longest record, with its header.
pub const RECORD_MAX: usize = HEADER + PLAIN_MAX + ADDED_MAX;

/// What a record held.
pub enum Opened {
    /// This many bytes of the peer.
    Data(usize),
    /// Something between the two sessions, which needs nobody else.
    Nothing,
    /// The peer sends no more.
    Closed,
}

/// How long the first record is, with its header; `None` if not all of it is there.
pub fn first_record(bytes: &[u8]) -> io::Result<Option<usize>> {
    // What cannot be the beginning of a record is refused before the rest of it has come: a stranger may speak something else.
    let is_right = match bytes {
        [kind, ..] if !(CHANGE_CIPHER_SPEC..=APPLICATION_DATA).contains(kind) => false,
        [_, major, ..] => *major == 3,
        _ => true,
    };
    if !is_right {
        return Err(wrong("bytes that are no record"));
    }
    let Some(header) = bytes.first_chunk::<HEADER>() else { return Ok(None) };
    let length = usize::from(u16::from_be_bytes([header[3], header[4]]));
    // An empty record has no place in a handshake, and none is empty behind it: they hold a tag.
    if length == 0 || length > PLAIN_MAX + ADDED_MAX {
        return Err(wrong("a record that is empty or too long"));
    }
    Ok((bytes.len() >= HEADER + length).then_some(HEADER + length))
}

impl Records {
    pub fn of_client(handshake: UnbufferedClientConnection) -> io::Result<Records> {
        let (secrets, keys) =
            handshake.dangerous_into_kernel_connection().map_err(io::Error::other)?;
        Records::new(secrets, Keys::Client(keys))
    }

    pub fn of_server(handshake: UnbufferedServerConnection) -> io::Result<Records> {
        let (secrets, keys) =
            handshake.dangerous_into_kernel_connection().map_err(io::Error::other)?;
        Records::new(secrets, Keys::Server(keys))
    }

    fn new(secrets: ExtractedSecrets, keys: Keys) -> io::Result<Records> {
        let suite = keys.suite();
        let suite = suite.tls13().ok_or_else(|| wrong("a session of an older version"))?;
        let records_max = suite.common.confidentiality_limit;
        let [sealing, opening] = [secrets.tx, secrets.rx].map(Half::new);
        let (sealing, opening) = (sealing?, opening?);
        Ok(Records {
            sealing,
            opening,
            keys,
            records_max,
            owes_update: false,
            updates: 0,
            without_data: 0,
        })
    }

    /// How much memory [`seal`](Self::seal) takes at most for this many bytes: new keys may be told before every record.
    pub fn sealed_max(bytes: usize) -> usize {
        let update = HEADER + KEY_UPDATE.len() + 1 + ADDED;
        bytes + bytes.div_ceil(PLAIN_MAX) * (HEADER + ADDED + update) + ALIGNED
    }

    /// Encrypts these bytes; returns how many bytes to send there are in `out`.
    pub fn seal(&mut self, pieces: &[IoSlice<'_>], out: &mut [u8]) -> io::Result<usize> {
        let mut left: usize = pieces.iter().map(|piece| piece.len()).sum();
        let (mut pieces, mut piece) = (pieces.iter(), &[][..]);
        let mut sent = 0;
        while left > 0 {
            if self.owes_update || self.sealing.count + 1 >= self.records_max {
                sent += self.update(&mut out[sent..])?;
            }
            let record = &mut out[sent..];
            let length = left.min(PLAIN_MAX);
            let mut filled = 0;
            while filled < length {
                if piece.is_empty() {
                    piece = pieces.next().map_or(&[], |next| next);
                }
                let (now, later) = piece.split_at(piece.len().min(length - filled));
                record[HEADER + filled..][..now.len()].copy_from_slice(now);
                (piece, filled) = (later, filled + now.len());
            }
            left -= length;
            let end = sent + HEADER + length + ADDED;
            let zeros = if left == 0 { end.next_multiple_of(ALIGNED) - end } else { 0 };
            let zeros = if length + zeros <= PLAIN_MAX { zeros } else { 0 };
            sent += self.sealing.seal(APPLICATION_DATA, record, length, zeros)?;
        }
        Ok(sent)
    }

    /// Tells the peer that new keys follow, and uses them.
    fn update(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let message = [KEY_UPDATE.as_slice(), &[NOT_REQUESTED]].concat();
        out[HEADER..][..message.len()].copy_from_slice(&message);
        let sent = self.sealing.seal(HANDSHAKE, out, message.len(), 0)?;
        self.sealing = Half::new(self.keys.next_sealing().map_err(io::Error::other)?)?;
        self.owes_update = false;
        self.updates += 1;
        Ok(sent)
    }

    /// Decrypts a whole record, which begins at `at` and ends where `bytes` do. What it held lies at the front of `bytes` then, so that the bytes of
    /// many records can be put side by side without a copy.
    pub fn open(&mut self, bytes: &mut [u8], at: usize) -> io::Result<Opened> {
        let (kind, length) = self.opening.open(bytes, at)?;
        let carries = kind == APPLICATION_DATA && length > 0;
        self.without_data = if carries { 0 } else { self.without_data + 1 };
        if self.without_data > WITHOUT_DATA_MAX {
            return Err(wrong("many records without data"));
        }
        match (kind, &bytes[..length]) {
            (APPLICATION_DATA, _) => Ok(Opened::Data(length)),
            (ALERT, [_, CLOSE_NOTIFY]) => Ok(Opened::Closed),
            (ALERT, _) => Err(wrong("an alert of the peer")),
            (HANDSHAKE, [update @ .., asks @ (NOT_REQUESTED | REQUESTED)])
                if *update == KEY_UPDATE =>
            {
                self.owes_update |= *asks == REQUESTED;
                self.opening = Half::new(self.keys.next_opening().map_err(io::Error::other)?)?;
                Ok(Opened::Nothing)
            }
            _ => Err(wrong("a record that has no place behind a handshake")),
        }
    }
}

impl Keys {
    fn suite(&self) -> SupportedCipherSuite {
        match self {
            Keys::Client(keys) => keys.negotiated_cipher_suite(),
            Keys::Server(keys) => keys.negotiated_cipher_suite(),
        }
    }

    fn next_sealing(&mut self) -> Result<(u64, ConnectionTrafficSecrets), Error> {
        match self {
            Keys::Client(keys) => keys.update_tx_secret(),
            Keys::Server(keys) => keys.update_tx_secret(),
        }
    }

    fn next_opening(&mut self) -> Result<(u64, ConnectionTrafficSecrets), Error> {
        match self {
            Keys::Client(keys) => keys.update_rx_secret(),
            Keys::Server(keys) => keys.update_rx_secret(),
        }
    }
}

#[cfg(test)]
impl Records {
    /// A record as a member could make it that does not keep to this file.
    pub fn seal_any(&mut self, kind: u8, plain: &[u8]) -> Vec<u8> {
        let mut record = vec![0; HEADER + plain.len() + ADDED];
        record[HEADER..][..plain.len()].copy_from_slice(plain);
        self.sealing.seal(kind, &mut record, plain.len(), 0).expect("it can be encrypted");
        record
    }
}

impl Half {
    fn new((count, secrets): (u64, ConnectionTrafficSecrets)) -> io::Result<Half> {
        let (algorithm, key, iv) = match &secrets {
            ConnectionTrafficSecrets::Aes128Gcm { key, iv } => (&AES_128_GCM, key, iv),
            ConnectionTrafficSecrets::Aes256Gcm { key, iv } => (&AES_256_GCM, key, iv),
            ConnectionTrafficSecrets::Chacha20Poly1305 { key, iv } => (&CHACHA20_POLY1305, key, iv),
            _ => return Err(wrong("a cipher that is not known here")),
        };
        let key = UnboundKey::new(algorithm, key.as_ref()).map_err(|_| wrong("a key"))?;
        let iv = iv.as_ref().try_into().map_err(|_| wrong("a nonce"))?;
        Ok(Half { key: LessSafeKey::new(key), iv, count })
    }

    /// The nonce of the next record (5.3): no two records of a key have the same.
    fn nonce(&mut self) -> Nonce {
        let mut nonce = self.iv;
        let count = self.count.to_be_bytes();
        nonce[NONCE_LEN - count.len()..].iter_mut().zip(count).for_each(|(byte, x)| *byte ^= x);
        self.count += 1;
        Nonce::assume_unique_for_key(nonce)
    }

    /// Encrypts the `length` bytes that lie behind the room for a header, and some zeros behind them; returns how long the record is.
    fn seal(
        &mut self,
        kind: u8,
        record: &mut [u8],
        length: usize,
        zeros: usize,
    ) -> io::Result<usize> {
        let (header, rest) = record.split_at_mut(HEADER);
        let (plain, rest) = rest.split_at_mut(length + 1 + zeros);
        plain[length] = kind;
        plain[length + 1..].fill(0);
        let length = length + zeros;
        // A record looks like application data of TLS 1.2 (5.2).
        let [high, low] = ((length + ADDED) as u16).to_be_bytes();
        header.copy_from_slice(&[APPLICATION_DATA, 3, 3, high, low]);
        let nonce = self.nonce();
        let tag = self.key.seal_in_place_separate_tag(nonce, Aad::from(&*header), plain);
        rest[..TAG].copy_from_slice(tag.map_err(|_| wrong("too long a record"))?.as_ref());
        Ok(HEADER + length + ADDED)
    }

    /// Decrypts the record that begins at `at`; returns its type, and how many bytes it carries, which lie at the front of `bytes` then.
    fn open(&mut self, bytes: &mut [u8], at: usize) -> io::Result<(u8, usize)> {
        let header: [u8; HEADER] =
            *bytes[at..].first_chunk().ok_or_else(|| wrong("a record without a header"))?;
        if header[0] != APPLICATION_DATA {
            return Err(wrong("a record in the clear"));
        }
        let nonce = self.nonce();
        let plain = self.key.open_within(nonce, Aad::from(header), bytes, at + HEADER..);
        let plain = plain.map_err(|_| wrong("a record that was changed on its way"))?;
        if plain.len() > PLAIN_MAX + 1 {
            return Err(wrong("a record that is too long"));
        }
        // Zeros may follow the type (5.4).
        let length = plain.iter().rposition(|byte| *byte != 0);
        let length = length.ok_or_else(|| wrong("a record without a type"))?;
        Ok((plain[length], length))
    }
}

fn wrong(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Before anybody is authenticated: rustls goes over all empty records again whenever it is shown one more.
    #[test]
    fn a_stranger_cannot_send_empty_records() {
        assert!(first_record(&[22, 3, 3, 0, 0, 0]).is_err());
        assert!(matches!(first_record(&[22, 3, 3, 0, 1]), Ok(None)));
        assert!(matches!(first_record(&[22, 3, 3, 0, 1, 7, 9]), Ok(Some(6))));
    }

    #[test]
    fn every_cipher_has_its_algorithm() {
        let (long, iv) = ([5; 32], || [6; NONCE_LEN].into());
        // Keys of 16 bytes cannot be made here; sessions of other tests use them.
        let secrets = [
            ConnectionTrafficSecrets::Aes256Gcm { key: long.into(), iv: iv() },
            ConnectionTrafficSecrets::Chacha20Poly1305 { key: long.into(), iv: iv() },
        ];
        for (secrets, algorithm) in secrets.into_iter().zip([&AES_256_GCM, &CHACHA20_POLY1305]) {
            let mut half = Half::new((0, secrets)).expect("it has a key and a nonce");
            let mut record = [0; 100];
            record[HEADER..][..3].copy_from_slice(b"abc");
            let sent = half.seal(APPLICATION_DATA, &mut record, 3, 0).expect("it is short");
            let key = LessSafeKey::new(UnboundKey::new(algorithm, &long).expect("32 bytes"));
            let (header, sealed) = record[..sent].split_at_mut(HEADER);
            let nonce = Nonce::assume_unique_for_key([6; NONCE_LEN]);
            let plain = key.open_in_place(nonce, Aad::from(&*header), sealed).expect("it is whole");
            assert_eq!(plain, b"abc\x17");
        }
    }
}
