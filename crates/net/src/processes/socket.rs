//! The sockets of links: how they are made, and what they are told to be.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::time::Duration;

use mio::net::TcpStream;
use socket2::{SockRef, TcpKeepalive};

/// What is on the way may take this much of the kernel's memory in each direction.
const BUFFER: usize = 4 << 20;

/// Within one machine no packet is lost, and an algorithm that paces them, as BBR does, only holds up a burst. A connection that began with
/// such an algorithm is paced for ever: the system forgets neither the pace nor its timer when another algorithm is chosen later. So this one
/// is chosen before there is a connection (a sum of 1 MB by 4 members: 0.85 of the time).
#[cfg(target_os = "linux")]
const UNPACED: &[u8] = b"reno";

/// Connections that this listener accepts are of the same machine if it listens there only.
pub fn prepare(listener: &TcpListener) -> io::Result<()> {
    listener.set_nonblocking(true)?;
    #[cfg(target_os = "linux")]
    if listener.local_addr()?.ip().to_canonical().is_loopback() {
        // It is not needed for a link to work.
        let _ = SockRef::from(listener).set_tcp_congestion(UNPACED);
    }
    Ok(())
}

/// Begins to connect, without waiting for it.
#[cfg(target_os = "linux")]
pub fn dial(address: SocketAddr) -> io::Result<TcpStream> {
    use rustix::io::Errno;
    use socket2::{Domain, Socket, Type};

    let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
    socket.set_nonblocking(true)?;
    if address.ip().to_canonical().is_loopback() {
        let _ = socket.set_tcp_congestion(UNPACED);
    }
    match socket.connect(&address.into()) {
        Err(error) if Errno::from_io_error(&error) != Some(Errno::INPROGRESS) => Err(error),
        _ => Ok(TcpStream::from_std(socket.into())),
    }
}

#[cfg(not(target_os = "linux"))]
pub fn dial(address: SocketAddr) -> io::Result<TcpStream> {
    TcpStream::connect(address)
}

/// Whether both ends of a connection are on this machine. If it is in doubt, they are not.
pub fn is_within_machine(stream: &TcpStream) -> bool {
    let ends = (stream.local_addr(), stream.peer_addr());
    matches!(ends, (Ok(here), Ok(there)) if here.ip() == there.ip())
}

/// A message is sent when it is there, and a large one in few calls. Neither is needed for a link to work.
pub fn speed_up(stream: &TcpStream) {
    let _ = stream.set_nodelay(true);
    let socket = SockRef::from(stream);
    let _ = socket.set_send_buffer_size(BUFFER);
    let _ = socket.set_recv_buffer_size(BUFFER);
}

/// A writer notices after this time that nothing reaches the peer any more. So does a reader, which has nothing on its way that the peer would
/// have to acknowledge: the system asks the peer now and then.
pub fn limit_silence(stream: &TcpStream, timeout: Duration) {
    let socket = SockRef::from(stream);
    #[cfg(target_os = "linux")]
    let _ = socket.set_tcp_user_timeout(Some(timeout));
    // In whole seconds.
    let every = Duration::from_secs((timeout / 2).as_secs().max(1));
    let keepalive = TcpKeepalive::new().with_time(every).with_interval(every);
    let _ = socket.set_tcp_keepalive(&keepalive);
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn connections_within_one_machine_begin_unpaced_at_both_ends() {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(listener) = TcpListener::bind(address) else { continue };
            prepare(&listener).expect("it listens");
            let dialled = dial(listener.local_addr().expect("it is bound")).expect("it listens");
            listener.set_nonblocking(false).expect("it may wait");
            let (accepted, _) = listener.accept().expect("somebody has dialled");
            assert!(is_within_machine(&dialled));
            for socket in [SockRef::from(&dialled), SockRef::from(&accepted)] {
                let algorithm = socket.tcp_congestion().expect("it has one");
                assert!(algorithm.starts_with(UNPACED), "{}", algorithm.escape_ascii());
            }
        }
    }

    #[test]
    fn nobody_is_reached_where_nobody_listens() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("there is a port");
        let address = listener.local_addr().expect("it is bound");
        drop(listener);
        // Within one machine the answer may be there at once.
        let refused = dial(address).and_then(|stream| {
            std::thread::sleep(Duration::from_millis(50));
            stream.take_error()?.map_or(Ok(()), Err)
        });
        let refused = refused.expect_err("nobody listens");
        assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
    }
}
