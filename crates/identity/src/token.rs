//! Tokens: with one, a stranger may join. The text holds a secret, the fingerprint of the coordinator's authority, the time at
//! which it ends, how many workers may use it, and the addresses of the coordinators if there are several.
//!
//! [`Tokens`] is what the coordinator remembers of the tokens that it made. It is a plain state machine: `check` decides,
//! `apply` takes a change that the caller has logged. It keeps no secret, only digests.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::time::{Duration, SystemTime};

use paceline_runtime::WorkerId;
use serde::{Deserialize, Serialize};

use crate::hex::{Digest, Nonce};
use crate::request::Request;

/// Names a token in logs and in commands; it is no secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct TokenId(pub u32);

#[derive(Clone, PartialEq)]
pub struct Token {
    pub id: TokenId,
    secret: [u8; 20],
    /// Of the coordinator's authority.
    pub fingerprint: Digest,
    pub expires: SystemTime,
    pub uses_max: u32,
    /// Of all coordinators that there were when the token was shown; empty if there can be one only. They are no part of the secret.
    pub addresses: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum TokenError {
    #[error("this is not a token: a token begins with '{PREFIX}'")]
    Prefix,
    #[error("the token is incomplete or was changed; copy it again")]
    Damaged,
}

/// With the version of the format.
const PREFIX: &str = "paceline1";
const LENGTH: usize = 4 + 20 + 32 + 8 + 4;
const CHECK_LENGTH: usize = 4;
/// A token with more coordinators names the first ones.
const ADDRESSES_MAX: usize = 8;
const ADDRESS_LENGTH_MAX: usize = 255;

impl Token {
    /// The same token, with these addresses of the coordinators.
    pub fn at(mut self, addresses: &[String]) -> Token {
        let valid = addresses.iter().filter(|it| is_address(it.as_bytes()));
        self.addresses = valid.take(ADDRESSES_MAX).cloned().collect();
        self
    }

    fn to_bytes(&self) -> Vec<u8> {
        let expires = seconds(self.expires).to_be_bytes();
        let mut bytes = Vec::with_capacity(LENGTH + CHECK_LENGTH);
        bytes.extend(self.id.0.to_be_bytes());
        bytes.extend(self.secret);
        bytes.extend(self.fingerprint.0);
        bytes.extend(expires);
        bytes.extend(self.uses_max.to_be_bytes());
        for address in &self.addresses {
            bytes.push(address.len() as u8);
            bytes.extend(address.as_bytes());
        }
        let check = Digest::of(&bytes);
        bytes.extend(&check.0[..CHECK_LENGTH]);
        bytes
    }

    fn from_bytes(bytes: &[u8]) -> Option<Token> {
        let (body, check) = bytes.split_at_checked(bytes.len().checked_sub(CHECK_LENGTH)?)?;
        if check != &Digest::of(body).0[..CHECK_LENGTH] {
            return None;
        }
        let (id, rest) = body.split_first_chunk()?;
        let (secret, rest) = rest.split_first_chunk()?;
        let (fingerprint, rest) = rest.split_first_chunk()?;
        let (expires, rest) = rest.split_first_chunk()?;
        let (uses_max, mut rest) = rest.split_first_chunk()?;
        let mut addresses = vec![];
        while let Some((length, more)) = rest.split_first() {
            let (address, more) = more.split_at_checked(usize::from(*length))?;
            let text = std::str::from_utf8(address).ok().filter(|_| is_address(address))?;
            addresses.push(text.to_owned());
            rest = more;
        }
        let since_epoch = Duration::from_secs(u64::from_be_bytes(*expires));
        Some(Token {
            id: TokenId(u32::from_be_bytes(*id)),
            secret: *secret,
            fingerprint: Digest(*fingerprint),
            expires: SystemTime::UNIX_EPOCH.checked_add(since_epoch)?,
            uses_max: u32::from_be_bytes(*uses_max),
            addresses,
        })
    }
}

/// Whether this may be a host and a port: nothing that a terminal, or a list with commas, would take for something else.
fn is_address(text: &[u8]) -> bool {
    (1..=ADDRESS_LENGTH_MAX).contains(&text.len())
        && text.iter().all(|byte| byte.is_ascii_graphic() && *byte != b',')
}

fn seconds(time: SystemTime) -> u64 {
    time.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// Lower-case base32 after a prefix: a double click selects all of it, no shell changes it, and it can be read aloud.
impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(PREFIX)?;
        f.write_str(&base32(&self.to_bytes()))
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Token({})", self.id.0)
    }
}

impl FromStr for Token {
    type Err = TokenError;

    fn from_str(text: &str) -> Result<Token, TokenError> {
        let text = text.trim().to_ascii_lowercase();
        let digits = text.strip_prefix(PREFIX).ok_or(TokenError::Prefix)?;
        let bytes = from_base32(digits).ok_or(TokenError::Damaged)?;
        Token::from_bytes(&bytes).ok_or(TokenError::Damaged)
    }
}

const DIGITS: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";

fn base32(bytes: &[u8]) -> String {
    let bit = |i: usize| bytes.get(i / 8).map_or(0, |byte| byte >> (7 - i % 8) & 1);
    let digit = |first: usize| (first..first + 5).fold(0, |digit, i| digit << 1 | bit(i));
    (0..bytes.len() * 8).step_by(5).map(|first| DIGITS[usize::from(digit(first))] as char).collect()
}

fn from_base32(text: &str) -> Option<Vec<u8>> {
    let bytes_max = LENGTH + ADDRESSES_MAX * (1 + ADDRESS_LENGTH_MAX) + CHECK_LENGTH;
    // As many digits as whole bytes need: one token has one spelling.
    let is_whole = (text.len() * 5 / 8 * 8).div_ceil(5) == text.len();
    if !is_whole || text.len() > (bytes_max * 8).div_ceil(5) {
        return None;
    }
    let (mut bytes, mut bits, mut count) = (vec![], 0u32, 0);
    for digit in text.bytes() {
        let digit = DIGITS.iter().position(|it| *it == digit)?;
        bits = bits << 5 | digit as u32;
        count += 5;
        if count >= 8 {
            count -= 8;
            bytes.push((bits >> count) as u8);
            bits &= (1 << count) - 1;
        }
    }
    // Bits that stand for nothing are zero.
    (bits == 0).then_some(bytes)
}

/// What the coordinator remembers of tokens and of joins.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Tokens {
    next: u32,
    issued: BTreeMap<TokenId, Issued>,
    /// Who joined, by nonce: a join that is sent again gets the same answer.
    joined: BTreeMap<Nonce, Joined>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Issued {
    secret: Digest,
    expires: SystemTime,
    uses_max: u32,
    uses: u32,
    is_revoked: bool,
}

/// What anybody may know of a token.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TokenState {
    pub id: TokenId,
    pub expires: SystemTime,
    pub uses: u32,
    pub uses_max: u32,
    pub is_revoked: bool,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Joined {
    key: Digest,
    who: WorkerId,
}

/// A change of [`Tokens`], to be logged before it is told.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum TokenChange {
    Issued {
        secret: Digest,
        expires: SystemTime,
        uses_max: u32,
    },
    /// A worker joined. `token`: `None` if it showed its earlier certificate instead.
    Joined {
        token: Option<TokenId>,
        nonce: Nonce,
        key: Digest,
        who: WorkerId,
    },
    Revoked(TokenId),
}

/// Whether a request may join.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// It is a new one.
    New,
    /// The same request was admitted before, as this worker; its answer may have been lost.
    Again(WorkerId),
}

/// Why a worker may not join.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    #[error("the coordinator did not make this token")]
    Unknown,
    #[error("the token has expired; ask for a new one")]
    Expired,
    #[error("the token has been used as often as it may be; ask for a new one")]
    Spent,
    #[error("the token was revoked")]
    Revoked,
    #[error("another worker has joined with the same nonce")]
    Nonce,
    #[error("the signing request is not signed with the key that it names")]
    Request,
}

impl Tokens {
    /// Makes a token. The change must be logged and applied before the token is shown.
    pub fn make(
        &self,
        fingerprint: Digest,
        expires: SystemTime,
        uses_max: u32,
    ) -> (Token, TokenChange) {
        let secret = crate::random();
        let (id, addresses) = (TokenId(self.next), vec![]);
        let token = Token { id, secret, fingerprint, expires, uses_max, addresses };
        (token, TokenChange::Issued { secret: Digest::of(&secret), expires, uses_max })
    }

    /// Makes a token whose secret others can derive, too. The change must be logged and applied before the token is shown.
    pub fn derive(&self, from: Digest, expires: SystemTime, uses_max: u32) -> TokenChange {
        TokenChange::Issued { secret: Digest::of(&secret_of(from)), expires, uses_max }
    }

    /// The token that was made from this, if there is one.
    pub fn derived(&self, fingerprint: Digest, from: Digest) -> Option<Token> {
        let (secret, addresses) = (secret_of(from), vec![]);
        let (id, issued) =
            self.issued.iter().find(|(_, issued)| issued.secret == Digest::of(&secret))?;
        let (id, expires, uses_max) = (*id, issued.expires, issued.uses_max);
        Some(Token { id, secret, fingerprint, expires, uses_max, addresses })
    }

    /// Whether this request may join with this token. `None`: the sender has shown a certificate instead.
    pub fn check(
        &self,
        token: Option<&Token>,
        request: &Request,
        now: SystemTime,
    ) -> Result<Admission, Refusal> {
        request.verify().map_err(|_| Refusal::Request)?;
        let issued = token.map(|token| {
            let issued = self.issued.get(&token.id).ok_or(Refusal::Unknown)?;
            // Digests of random secrets are compared: how long that takes tells nothing about the secret.
            if issued.secret == Digest::of(&token.secret) {
                Ok(issued)
            } else {
                Err(Refusal::Unknown)
            }
        });
        let issued = issued.transpose()?;
        if issued.is_some_and(|issued| issued.is_revoked) {
            return Err(Refusal::Revoked);
        }
        if let Some(joined) = self.joined.get(&request.nonce) {
            let is_same = joined.key == request.key_digest();
            return if is_same { Ok(Admission::Again(joined.who)) } else { Err(Refusal::Nonce) };
        }
        match issued {
            Some(issued) if issued.expires <= now => Err(Refusal::Expired),
            Some(issued) if issued.uses >= issued.uses_max => Err(Refusal::Spent),
            _ => Ok(Admission::New),
        }
    }

    /// Takes a change that is logged.
    pub fn apply(&mut self, change: &TokenChange) {
        match change.clone() {
            TokenChange::Issued { secret, expires, uses_max } => {
                let issued = Issued { secret, expires, uses_max, uses: 0, is_revoked: false };
                self.issued.insert(TokenId(self.next), issued);
                self.next += 1;
            }
            TokenChange::Joined { token, nonce, key, who } => {
                if let Some(issued) = token.and_then(|token| self.issued.get_mut(&token)) {
                    issued.uses += 1;
                }
                self.joined.insert(nonce, Joined { key, who });
            }
            TokenChange::Revoked(token) => {
                if let Some(issued) = self.issued.get_mut(&token) {
                    issued.is_revoked = true;
                }
            }
        }
    }

    /// All tokens, in the order in which they were made.
    pub fn issued(&self) -> impl Iterator<Item = TokenState> + '_ {
        self.issued.iter().map(|(id, it)| TokenState {
            id: *id,
            expires: it.expires,
            uses: it.uses,
            uses_max: it.uses_max,
            is_revoked: it.is_revoked,
        })
    }

    /// Whether this key is the one with which the worker joined.
    pub fn is_key_of(&self, who: WorkerId, request: &Request) -> bool {
        let key = request.key_digest();
        self.joined.values().any(|joined| joined.who == who && joined.key == key)
    }
}

fn secret_of(digest: Digest) -> [u8; 20] {
    *digest.0.first_chunk().expect("a digest is longer")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::Key;

    const HOUR: Duration = Duration::from_secs(3600);
    const NOW: SystemTime = SystemTime::UNIX_EPOCH;

    fn tokens(uses_max: u32) -> (Tokens, Token) {
        let mut tokens = Tokens::default();
        let (token, change) = tokens.make(Digest::of(b"authority"), NOW + HOUR, uses_max);
        tokens.apply(&change);
        (tokens, token)
    }

    fn request() -> Request {
        Key::generate().request(Nonce::random())
    }

    fn join(tokens: &mut Tokens, token: &Token, request: &Request, who: u32) {
        let (nonce, key, who) = (request.nonce, request.key_digest(), WorkerId(who));
        tokens.apply(&TokenChange::Joined { token: Some(token.id), nonce, key, who });
    }

    #[test]
    fn the_text_of_a_token_survives_copying_and_shows_damage() {
        let (_, token) = tokens(3);
        let text = token.to_string();
        assert!(text.chars().all(|c| c.is_ascii_alphanumeric()), "{text}");
        assert_eq!(format!("  {}\n", text.to_uppercase()).parse(), Ok(token.clone()));
        for i in 0..text.len() {
            let mut damaged = text.clone();
            damaged.replace_range(i..=i, if &text[i..=i] == "a" { "b" } else { "a" });
            assert!(damaged.parse::<Token>().is_err(), "{damaged}");
            assert!(text[..i].parse::<Token>().is_err());
        }
        assert_eq!("pacelinf".parse::<Token>(), Err(TokenError::Prefix));
        assert!("paceline1é".repeat(12).parse::<Token>().is_err());
        assert!(!format!("{token:?}").contains(&text[30..60]), "the secret must not reach logs");
    }

    #[test]
    fn a_token_names_the_coordinators() {
        let (_, token) = tokens(3);
        let addresses = ["10.0.0.1:7070".to_owned(), "[2001:db8::2]:7070".to_owned()];
        let text = token.clone().at(&addresses).to_string();
        let read: Token = text.parse().expect("a token");
        assert_eq!((read.addresses.as_slice(), read.id), (&addresses[..], token.id));
        for i in 0..text.len() {
            assert!(text[..i].parse::<Token>().is_err(), "{i}");
        }
        let odd = ["a b:1".to_owned(), "a:1,b:2".to_owned(), String::new(), "x".repeat(300)];
        assert_eq!(token.clone().at(&odd), token, "what is no address is left out");
        let many = vec!["x".repeat(255); 20];
        let many = token.at(&many).to_string().parse::<Token>().expect("a token").addresses;
        assert_eq!(many.len(), ADDRESSES_MAX);
    }

    #[test]
    fn coordinators_with_the_same_authority_derive_the_same_token() {
        let mut tokens = Tokens::default();
        let (authority, from) = (Digest::of(b"authority"), Digest::of(b"from"));
        assert_eq!(tokens.derived(authority, from), None);
        let change = tokens.derive(from, NOW + HOUR, 2);
        tokens.apply(&change);
        let token = tokens.derived(authority, from).expect("it was made");
        assert_eq!(tokens.check(Some(&token), &request(), NOW), Ok(Admission::New));
        assert_eq!(tokens.derived(authority, Digest::of(b"another")), None);
    }

    #[test]
    fn a_token_admits_as_many_as_it_says_and_a_repeated_join_counts_once() {
        let (mut tokens, token) = tokens(1);
        let first = request();
        assert_eq!(tokens.check(Some(&token), &first, NOW), Ok(Admission::New));
        join(&mut tokens, &token, &first, 7);
        // Its answer was lost; the token may have expired since.
        for now in [NOW, NOW + 2 * HOUR] {
            assert_eq!(tokens.check(Some(&token), &first, now), Ok(Admission::Again(WorkerId(7))));
        }
        assert_eq!(tokens.check(Some(&token), &request(), NOW), Err(Refusal::Spent));
        assert_eq!(tokens.check(None, &request(), NOW), Ok(Admission::New));
    }

    #[test]
    fn tokens_that_do_not_admit_say_why() {
        let (mut tokens, token) = tokens(2);
        let first = request();
        join(&mut tokens, &token, &first, 0);
        let thief = Key::generate().request(first.nonce);
        assert_eq!(tokens.check(Some(&token), &thief, NOW), Err(Refusal::Nonce));
        assert_eq!(tokens.check(Some(&token), &request(), NOW + HOUR), Err(Refusal::Expired));
        let guessed = Token { secret: [0; 20], ..token.clone() };
        assert_eq!(tokens.check(Some(&guessed), &request(), NOW), Err(Refusal::Unknown));
        let unknown = Token { id: TokenId(9), ..token.clone() };
        assert_eq!(tokens.check(Some(&unknown), &request(), NOW), Err(Refusal::Unknown));
        // What the text says of its end and its uses is for the reader; the coordinator has its own record.
        let changed = Token { expires: NOW + 9 * HOUR, uses_max: 99, ..token.clone() };
        assert_eq!(tokens.check(Some(&changed), &request(), NOW + HOUR), Err(Refusal::Expired));
        tokens.apply(&TokenChange::Revoked(token.id));
        for request in [first, request()] {
            assert_eq!(tokens.check(Some(&token), &request, NOW), Err(Refusal::Revoked));
        }
    }

    #[test]
    fn what_is_stored_is_the_same_again_and_holds_no_secret() {
        let (mut tokens, token) = tokens(2);
        join(&mut tokens, &token, &request(), 3);
        let text = serde_json::to_string(&tokens).expect("tokens can be written");
        assert_eq!(serde_json::from_str::<Tokens>(&text).expect("and read"), tokens);
        assert!(!text.contains(&crate::hex::encode(&token.secret)), "{text}");
    }
}
