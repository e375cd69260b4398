//! Who may speak: the coordinator's own authority, tokens with which workers join, certificates that name a job and a
//! role, and TLS configurations that check them on both sides.
//!
//! A token proves to the coordinator that a stranger may join, and to the stranger, by the fingerprint in it, that it talks to
//! the right coordinator. The stranger makes its own key and gets a certificate for it; from then on certificates are
//! all that counts. Nothing here reads the clock: callers pass the time.

mod authority;
mod credentials;
mod handshakes;
mod hex;
mod name;
mod request;
mod tls;
mod token;
mod trust;

pub use authority::{Authority, AuthorityError, BACK_DATED, Certificate, LIFETIME, write_private};
pub use credentials::{Credentials, CredentialsError};
pub use handshakes::{Handshake, Handshakes};
pub use hex::{Digest, Nonce, bytes};
pub use name::{JobName, Name, NameError, Role};
pub use request::{Key, Request, RequestError};
pub use tls::{
    IsMember, authority_client, coordinator_server, join_client, peer_client, peer_server,
    stream_client,
};
pub use token::{Admission, Refusal, Token, TokenChange, TokenError, TokenId, TokenState, Tokens};
pub use trust::{Trust, name_of};

/// Fills an array from the operating system's random numbers.
fn random<const N: usize>() -> [u8; N] {
    use ring::rand::SecureRandom;
    let mut bytes = [0; N];
    ring::rand::SystemRandom::new()
        .fill(&mut bytes)
        .expect("the operating system has random numbers");
    bytes
}
