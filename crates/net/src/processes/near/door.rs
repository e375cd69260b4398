//! How processes of one host pass each other their segments: one datagram with two descriptors, over a Unix socket without a file.
//!
//! The socket's name is random and goes over the link, which has proved who the peer is; so does a number that the datagram must
//! repeat. The system says which user sent it. A peer on another host, or in another network namespace, cannot reach the socket,
//! and its link stays what it was. The name is gone with its process, so that a killed one leaves nothing behind.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

use mio::unix::SourceFd;
use mio::{Interest, Registry, Token};
use paceline_learn::kernels::shared::OwnSegment;
use paceline_runtime::WorkerId;
use rustix::event::{EventfdFlags, eventfd};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, recvmsg, sendmsg_addr,
};

/// A number that only two processes know.
pub type Nonce = [u64; 2];

/// Where descriptors arrive, and what wakes this process.
pub struct Door {
    socket: UnixDatagram,
    name: Nonce,
    bell: OwnedFd,
}

/// Wakes a peer.
pub struct Bell(OwnedFd);

impl Bell {
    /// A bell that was rung and not heard yet stays rung.
    pub fn ring(&self) {
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }
}

/// What a peer has passed.
pub struct Passed {
    pub from: WorkerId,
    pub nonce: Nonce,
    pub segment: OwnedFd,
    pub bell: Bell,
}

/// The number that was told over the link, and who sends it.
const MESSAGE: usize = 20;

impl Door {
    pub fn open() -> io::Result<Door> {
        let name = random()?;
        let socket = UnixDatagram::bind_addr(&address(name)?)?;
        socket.set_nonblocking(true)?;
        rustix::net::sockopt::set_socket_passcred(&socket, true)?;
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Door { socket, name, bell })
    }

    pub fn name(&self) -> Nonce {
        self.name
    }

    /// Has the poll watch for descriptors, and for the bell.
    pub fn register(&self, registry: &Registry, arrivals: Token, bell: Token) -> io::Result<()> {
        use std::os::fd::AsRawFd;
        let socket = self.socket.as_raw_fd();
        registry.register(&mut SourceFd(&socket), arrivals, Interest::READABLE)?;
        registry.register(&mut SourceFd(&self.bell.as_raw_fd()), bell, Interest::READABLE)
    }

    /// The bell was heard.
    pub fn quiet(&self) {
        let _ = rustix::io::read(&self.bell, &mut [0u8; 8]);
    }

    /// Passes our segment and our bell to a peer. Fails if it is not on this host.
    pub fn pass(
        &self,
        to: Nonce,
        (nonce, from): (Nonce, WorkerId),
        segment: &OwnSegment,
    ) -> io::Result<()> {
        let mut message = [0; MESSAGE];
        message[..8].copy_from_slice(&nonce[0].to_le_bytes());
        message[8..16].copy_from_slice(&nonce[1].to_le_bytes());
        message[16..].copy_from_slice(&from.0.to_le_bytes());
        let descriptors = [segment.descriptor(), self.bell.as_fd()];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !control.push(SendAncillaryMessage::ScmRights(&descriptors)) {
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        let to = SocketAddrUnix::new_abstract_name(&bytes_of(to))?;
        let parts = [IoSlice::new(&message)];
        sendmsg_addr(&self.socket, &to, &parts, &mut control, SendFlags::DONTWAIT)?;
        Ok(())
    }

    /// What a process of this user has passed; `None` if nothing is there. Anything else is thrown away.
    pub fn arrived(&self) -> Option<Passed> {
        loop {
            let mut message = [0; MESSAGE + 1];
            let mut space =
                [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2), ScmCredentials(1))];
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let mut parts = [IoSliceMut::new(&mut message)];
            let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
            let received = recvmsg(&self.socket, &mut parts, &mut control, flags).ok()?;
            let (mut descriptors, mut user) = (vec![], None);
            for part in control.drain() {
                match part {
                    RecvAncillaryMessage::ScmRights(passed) => descriptors.extend(passed),
                    RecvAncillaryMessage::ScmCredentials(sender) => user = Some(sender.uid),
                    _ => {}
                }
            }
            let is_ours = user == Some(rustix::process::geteuid());
            let Ok([segment, bell]) = <[OwnedFd; 2]>::try_from(descriptors) else { continue };
            if is_ours && received.bytes == MESSAGE {
                let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| message[at + i]));
                let from = WorkerId(u32::from_le_bytes(std::array::from_fn(|i| message[16 + i])));
                return Some(Passed { from, nonce: [word(0), word(8)], segment, bell: Bell(bell) });
            }
        }
    }
}

fn bytes_of(name: Nonce) -> Vec<u8> {
    format!("paceline-{:016x}{:016x}", name[0], name[1]).into_bytes()
}

fn address(name: Nonce) -> io::Result<SocketAddr> {
    SocketAddr::from_abstract_name(bytes_of(name))
}

/// Random bits of the system.
pub fn random() -> io::Result<Nonce> {
    let mut bytes = [0; 16];
    let random = rustls::crypto::ring::default_provider().secure_random;
    random.fill(&mut bytes).map_err(|_| io::Error::other("the system has no random bits"))?;
    Ok(bytemuck::cast(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use paceline_learn::kernels::shared::{PAGE, PeerSegment};

    #[test]
    fn a_segment_that_was_passed_is_the_one_that_its_owner_has() {
        let (here, there) = (Door::open().expect("it opens"), Door::open().expect("it opens"));
        let own = OwnSegment::new(64, &[PAGE]).expect("it can be made");
        own.words()[5].store(77, std::sync::atomic::Ordering::SeqCst);
        assert!(here.arrived().is_none());

        there.pass(here.name(), ([1, 2], WorkerId(9)), &own).expect("it is on this host");

        let Passed { from, nonce, segment, bell } = here.arrived().expect("it has arrived");
        assert_eq!((from, nonce), (WorkerId(9), [1, 2]));
        let peer = PeerSegment::new(segment, own.bytes()).expect("it is well formed");
        assert_eq!(peer.word(5), 77);
        bell.ring();
        assert_eq!(rustix::io::read(&there.bell, &mut [0u8; 8]), Ok(8), "its owner hears it");
    }

    #[test]
    fn datagrams_without_two_descriptors_or_of_another_length_are_thrown_away() {
        let (here, there) = (Door::open().expect("it opens"), Door::open().expect("it opens"));
        let own = OwnSegment::new(64, &[PAGE]).expect("it can be made");
        for bytes in [0, MESSAGE - 1, MESSAGE, 1000] {
            let to = address(here.name()).expect("it is a name");
            there.socket.send_to_addr(&vec![0; bytes], &to).expect("it is on this host");
        }
        for count in [1usize, 2] {
            let descriptors = [own.descriptor(); 2];
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            assert!(control.push(SendAncillaryMessage::ScmRights(&descriptors[..count])));
            let to = SocketAddrUnix::new_abstract_name(&bytes_of(here.name())).expect("a name");
            let parts = [IoSlice::new(&[0; MESSAGE + 7])];
            sendmsg_addr(&there.socket, &to, &parts, &mut control, SendFlags::empty())
                .expect("it is on this host");
        }
        assert!(here.arrived().is_none());
        assert!(there.pass([0, 0], ([1, 2], WorkerId(9)), &own).is_err(), "nobody is there");
    }
}
