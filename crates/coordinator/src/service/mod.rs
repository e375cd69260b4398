//! The coordinator's port: turns connections of workers into [`Incoming`] messages. It decides nothing; whoever reads
//! the messages does ([`Driver`](crate::Driver)).
//!
//! gRPC over HTTP/2. A client without a certificate may only look at the job and ask to join, for a short time, and only so
//! many of them are served at once.

mod calls;

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::thread::JoinHandle;
use std::time::Duration;

use hyper::body::Incoming as HttpBody;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use paceline_identity::{Handshakes, Role, name_of};
use rustls::ServerConfig;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

use self::calls::{Caller, HANDSHAKE, Port, answer};
use crate::clock::Clock;
use crate::incoming::Incoming;

pub struct ServiceConfig {
    /// Port 0: any that is free.
    pub listen: SocketAddr,
    /// `None`: connections are neither encrypted nor authenticated.
    pub tls: Option<ServerConfig>,
    /// Where files of workers are stored.
    pub files: PathBuf,
    /// May change: the coordinator learns the size of a replica from the first worker.
    pub file_bytes_max: Arc<AtomicU64>,
    /// How often every worker hears from the coordinator.
    pub beat: Duration,
    /// Workers set their clocks by it.
    pub clock: Clock,
    /// Whether a worker that joins is refused when it cannot be reached.
    pub dials_back: bool,
}

/// Runs on a thread of its own until it is dropped.
pub struct Service {
    address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

const STRANGER: Duration = Duration::from_secs(30);
const STRANGERS_PER_ADDRESS: usize = 64;
const STRANGERS: usize = 256;

impl Service {
    pub fn start(config: ServiceConfig, incoming: mpsc::Sender<Incoming>) -> io::Result<Service> {
        let listener = std::net::TcpListener::bind(config.listen)?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (stop, stopped) = oneshot::channel();
        let ServiceConfig { tls, files, file_bytes_max, beat, clock, dials_back, .. } = config;
        let tls = tls.map(|mut tls| {
            tls.alpn_protocols = vec![b"h2".to_vec()];
            TlsAcceptor::from(Arc::new(tls))
        });
        let sessions = AtomicU64::new(1);
        let port = Arc::new(Port {
            tls,
            files,
            file_bytes_max,
            beat,
            clock,
            dials_back,
            incoming,
            sessions,
        });
        let run = move || {
            runtime.block_on(async move {
                let Ok(listener) = TcpListener::from_std(listener) else { return };
                tokio::select! {
                    () = accept(listener, port) => {}
                    _ = stopped => {}
                }
            });
            // Connections end with their runtime, at once.
            runtime.shutdown_background();
        };
        let thread = std::thread::Builder::new().name("coordinator".to_owned()).spawn(run)?;
        Ok(Service { address, stop: Some(stop), thread: Some(thread) })
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

async fn accept(listener: TcpListener, port: Arc<Port>) {
    let handshakes = Handshakes::new(STRANGERS_PER_ADDRESS, STRANGERS);
    loop {
        let Ok((stream, from)) = listener.accept().await else {
            // Too many open files, for example: wait until some are closed.
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        let Some(handshake) = handshakes.begin(from.ip()) else {
            port.turned(from, "too many connections of strangers at once");
            continue;
        };
        let _ = stream.set_nodelay(true);
        let port = port.clone();
        tokio::spawn(async move {
            let Some(acceptor) = port.tls.clone() else {
                // Without TLS nobody is ever more than a stranger.
                drop(handshake);
                return serve(stream, Caller { port, from, known: None }).await;
            };
            let accepted = match timeout(HANDSHAKE, acceptor.accept(stream)).await {
                Err(_) => return port.turned(from, "the handshake took too long"),
                Ok(Err(error)) => return port.turned(from, &error.to_string()),
                Ok(Ok(accepted)) => accepted,
            };
            let certificates = accepted.get_ref().1.peer_certificates();
            let name = certificates.and_then(|chain| name_of(chain.first()?).ok());
            let known = name.and_then(|name| match name.role {
                Role::Worker(who) => Some(who),
                Role::Coordinator => None,
            });
            let serving = serve(accepted, Caller { port: port.clone(), from, known });
            if known.is_some() {
                drop(handshake);
                return serving.await;
            }
            if timeout(STRANGER, serving).await.is_err() {
                port.turned(from, "did not join in time");
            }
        });
    }
}

async fn serve(stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static, caller: Caller) {
    let mut server = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
    server.timer(TokioTimer::new());
    server.max_concurrent_streams(16).max_header_list_size(16 << 10);
    if caller.is_stranger() {
        server.initial_stream_window_size(64 << 10).initial_connection_window_size(64 << 10);
    } else {
        server.initial_stream_window_size(1 << 20).initial_connection_window_size(4 << 20);
    }
    let service = service_fn(move |request: http::Request<HttpBody>| {
        let caller = caller.clone();
        async move { Ok::<_, Infallible>(answer(caller, request).await) }
    });
    // A connection that breaks is noticed where its session is read.
    let _ = server.serve_connection(TokioIo::new(stream), service).await;
}
