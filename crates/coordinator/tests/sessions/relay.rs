//! A relay that delays and cuts connections between workers and a coordinator.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc as channel;
use std::time::{Duration, Instant};

/// A relay between workers and a coordinator that can cut all its connections.
pub struct Relay {
    pub address: SocketAddr,
    pub cut: channel::Sender<()>,
}

impl Relay {
    pub fn to(target: SocketAddr) -> Relay {
        Relay::delaying(target, [Duration::ZERO; 2])
    }

    /// What is sent to the coordinator arrives later by the first delay, what it sends by the second.
    pub fn delaying(target: SocketAddr, [there, back]: [Duration; 2]) -> Relay {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let (cut, cuts) = channel::channel::<()>();
        listener.set_nonblocking(true).expect("a socket");
        std::thread::spawn(move || {
            let mut open: Vec<TcpStream> = vec![];
            loop {
                match cuts.try_recv() {
                    Ok(()) => open
                        .drain(..)
                        .for_each(|stream| drop(stream.shutdown(std::net::Shutdown::Both))),
                    Err(channel::TryRecvError::Disconnected) => return,
                    Err(channel::TryRecvError::Empty) => {}
                }
                if let Ok((near, _)) = listener.accept() {
                    near.set_nonblocking(false).expect("a socket");
                    let Ok(far) = TcpStream::connect(target) else { continue };
                    for (from, to, delay) in [(&near, &far, there), (&far, &near, back)] {
                        let clone = |it: &TcpStream| it.try_clone().expect("a socket");
                        pass_on(clone(from), clone(to), delay);
                    }
                    open.extend([near, far]);
                }
                std::thread::sleep(Duration::from_millis(2));
            }
        });
        Relay { address, cut }
    }
}

/// Passes on what comes in, so much later.
fn pass_on(mut from: TcpStream, mut to: TcpStream, delay: Duration) {
    let (sender, pieces) = channel::channel::<(Instant, Vec<u8>)>();
    std::thread::spawn(move || {
        let mut buffer = vec![0; 1 << 16];
        while let Ok(length @ 1..) = from.read(&mut buffer) {
            let _ = sender.send((Instant::now() + delay, buffer[..length].to_vec()));
        }
    });
    std::thread::spawn(move || {
        for (due, piece) in pieces {
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
            if to.write_all(&piece).is_err() {
                break;
            }
        }
        let _ = to.shutdown(std::net::Shutdown::Both);
    });
}
