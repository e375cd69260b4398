//! The coordinator's port: turns connections of workers into [`Incoming`] messages. It decides nothing; whoever reads
//! the messages does ([`Driver`](crate::Driver)).
//!
//! gRPC over HTTP/2. A client without a certificate may only look at the job and ask to join, for a short time, and only so
//! many of them are served at once.

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use bytes::Bytes;
use hyper::body::Incoming as HttpBody;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use paceline_identity::{Handshakes, Request, Role, Token, name_of};
use paceline_runtime::WorkerId;
use paceline_runtime::coordination::Input;
use rustls::ServerConfig;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_stream::wrappers::{ReceiverStream, UnboundedReceiverStream};
use tokio_stream::{Stream, StreamExt};
use tonic::server::{Grpc, StreamingService};
use tonic::{Response, Status, Streaming};

use crate::files;
use crate::messages::*;

/// What comes in. Whoever takes a message with a reply answers it, or drops it: then the connection is closed.
pub enum Incoming {
    /// Somebody asks what the job is, or whether it might join.
    Look {
        token: Option<Token>,
        known: Option<WorkerId>,
        version: String,
        request: Request,
        reply: Reply<Described>,
    },
    /// Somebody asks to join, can be reached, and had been told that it might.
    Join {
        token: Option<Token>,
        known: Option<WorkerId>,
        join: Join,
        reply: Reply<Admitted>,
    },
    /// A worker has opened a session; what it is told goes into the lane. An older session of it is over.
    Connected {
        from: WorkerId,
        session: u64,
        received: u64,
        lane: Lane,
    },
    Said {
        from: WorkerId,
        session: u64,
        number: u64,
        said: Said,
    },
    Obeyed {
        from: WorkerId,
        session: u64,
        number: u64,
    },
    Beat {
        from: WorkerId,
        session: u64,
    },
    Renew {
        from: WorkerId,
        session: u64,
        request: Request,
    },
    Broken {
        from: WorkerId,
        session: u64,
    },
    /// A file of this worker is on the disk, under its name.
    Stored {
        from: WorkerId,
        path: PathBuf,
        head: FileHead,
        reply: Reply<()>,
    },
    /// A connection was refused.
    Turned {
        from: SocketAddr,
        why: String,
    },
    /// From whoever runs the coordinator.
    Input(Input),
}

pub type Reply<T> = oneshot::Sender<Answer<T>>;

/// Carries messages to one worker.
#[derive(Clone)]
pub struct Lane(mpsc::UnboundedSender<Result<Bytes, Status>>);

impl Lane {
    pub(crate) fn new() -> (Lane, mpsc::UnboundedReceiver<Result<Bytes, Status>>) {
        let (sender, receiver) = mpsc::unbounded_channel();
        (Lane(sender), receiver)
    }

    /// A message to a session that has ended is lost: its worker gets it again in the next one.
    pub fn send(&self, message: &Down) {
        let _ = self.0.send(Ok(encode(message)));
    }
}

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
    /// Whether a worker that joins is refused when it cannot be reached.
    pub dials_back: bool,
}

/// Runs on a thread of its own until it is dropped.
pub struct Service {
    address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// Messages that wait for the coordinator; when it is slow, connections wait.
const QUEUE: usize = 1024;
const HANDSHAKE: Duration = Duration::from_secs(5);
const STRANGER: Duration = Duration::from_secs(30);
const DIAL_BACK: Duration = Duration::from_secs(3);
const STRANGERS_PER_ADDRESS: usize = 64;
const STRANGERS: usize = 256;
/// A worker that joins lists the tensors of its model: about 100 bytes each.
const STRANGERS_MESSAGE_MAX: usize = 256 << 10;

pub fn queue() -> (mpsc::Sender<Incoming>, mpsc::Receiver<Incoming>) {
    mpsc::channel(QUEUE)
}

impl Service {
    pub fn start(config: ServiceConfig, incoming: mpsc::Sender<Incoming>) -> io::Result<Service> {
        let listener = std::net::TcpListener::bind(config.listen)?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (stop, stopped) = oneshot::channel();
        let ServiceConfig { tls, files, file_bytes_max, beat, dials_back, .. } = config;
        let tls = tls.map(|mut tls| {
            tls.alpn_protocols = vec![b"h2".to_vec()];
            TlsAcceptor::from(Arc::new(tls))
        });
        let sessions = AtomicU64::new(1);
        let port =
            Arc::new(Port { tls, files, file_bytes_max, beat, dials_back, incoming, sessions });
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

/// What all connections share.
struct Port {
    tls: Option<TlsAcceptor>,
    files: PathBuf,
    file_bytes_max: Arc<AtomicU64>,
    beat: Duration,
    dials_back: bool,
    incoming: mpsc::Sender<Incoming>,
    sessions: AtomicU64,
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

async fn answer(
    caller: Caller,
    request: http::Request<HttpBody>,
) -> http::Response<tonic::body::Body> {
    let mut caller = caller;
    if caller.port.tls.is_none() {
        let claimed = request.headers().get(WORKER_HEADER).and_then(|value| value.to_str().ok());
        caller.known = claimed.and_then(|id| id.parse().ok()).map(WorkerId);
    }
    let bytes_max = if caller.is_stranger() { STRANGERS_MESSAGE_MAX } else { MESSAGE_MAX };
    let method = request.uri().path().to_owned();
    let call = Call { caller, method };
    Grpc::new(Raw).max_decoding_message_size(bytes_max).streaming(call, request).await
}

/// The other end of a connection.
#[derive(Clone)]
struct Caller {
    port: Arc<Port>,
    from: SocketAddr,
    /// Who it is, if its certificate says so.
    known: Option<WorkerId>,
}

struct Call {
    caller: Caller,
    method: String,
}

type Messages = Pin<Box<dyn Stream<Item = Result<Bytes, Status>> + Send>>;

impl StreamingService<Bytes> for Call {
    type Response = Bytes;
    type ResponseStream = Messages;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Messages>, Status>> + Send>>;

    fn call(&mut self, request: tonic::Request<Streaming<Bytes>>) -> Self::Future {
        let (caller, method) = (self.caller.clone(), self.method.clone());
        let messages = request.into_inner();
        Box::pin(async move {
            let answer = match method.as_str() {
                LOOK => caller.look(messages).await?,
                JOIN => caller.join(messages).await?,
                SESSION => caller.session(messages).await?,
                STORE => caller.store(messages).await?,
                FETCH => caller.fetch(messages).await?,
                _ => return Err(Status::unimplemented("there is no such method")),
            };
            Ok(Response::new(answer))
        })
    }
}

fn one<T: serde::Serialize>(message: &T) -> Messages {
    Box::pin(tokio_stream::once(Ok(encode(message))))
}

fn gone<T>(_: T) -> Status {
    Status::unavailable("the coordinator has ended")
}

async fn first(messages: &mut Streaming<Bytes>) -> Result<Bytes, Status> {
    let first = timeout(HANDSHAKE, messages.message()).await;
    first
        .map_err(|_| Status::deadline_exceeded("nothing was sent"))??
        .ok_or_else(|| Status::invalid_argument("nothing was sent"))
}

fn read_token(text: Option<&String>) -> Result<Option<Token>, String> {
    text.map(|text| text.parse().map_err(|error: paceline_identity::TokenError| error.to_string()))
        .transpose()
}

impl Port {
    /// Says that a connection was refused, unless there is much else to say.
    fn turned(&self, from: SocketAddr, why: &str) {
        let _ = self.incoming.try_send(Incoming::Turned { from, why: why.to_owned() });
    }
}

impl Caller {
    /// Without TLS everybody is one, so that nobody is treated as one.
    fn is_stranger(&self) -> bool {
        self.port.tls.is_some() && self.known.is_none()
    }

    fn worker(&self) -> Result<WorkerId, Status> {
        self.known.ok_or_else(|| {
            self.port.turned(self.from, "it has no certificate");
            Status::unauthenticated("a worker must join first")
        })
    }

    async fn tell(&self, message: Incoming) -> Result<(), Status> {
        self.port.incoming.send(message).await.map_err(gone)
    }

    async fn ask_to_look(&self, look: Look) -> Result<Answer<Described>, Status> {
        let Look { version, token, request } = look;
        let token = match read_token(token.as_ref()) {
            Ok(token) => token,
            Err(why) => return Ok(Answer::Refused(why)),
        };
        let (reply, answer) = oneshot::channel();
        self.tell(Incoming::Look { token, known: self.known, version, request, reply }).await?;
        answer.await.map_err(gone)
    }

    async fn look(&self, mut messages: Streaming<Bytes>) -> Result<Messages, Status> {
        let answer = self.ask_to_look(decode(&first(&mut messages).await?)?).await?;
        Ok(one(&self.said_to_stranger(answer)))
    }

    async fn join(&self, mut messages: Streaming<Bytes>) -> Result<Messages, Status> {
        let mut join: Join = decode(&first(&mut messages).await?)?;
        let Join { version, token, request, .. } = join.clone();
        // A stranger with a wrong token must not have the coordinator dial anywhere.
        let look = self.ask_to_look(Look { version, token: token.clone(), request }).await?;
        if let Answer::Refused(why) = look {
            return Ok(one(&self.said_to_stranger(Answer::<Admitted>::Refused(why))));
        }
        join.address = seen_from(&join.address, self.from.ip());
        if self.port.dials_back
            && let Err(why) = dial_back(&join.address).await
        {
            return Ok(one(&self.said_to_stranger(Answer::<Admitted>::Refused(why))));
        }
        let token = read_token(token.as_ref()).map_err(Status::invalid_argument)?;
        let (reply, answer) = oneshot::channel();
        self.tell(Incoming::Join { token, known: self.known, join, reply }).await?;
        let answer = answer.await.map_err(gone)?;
        Ok(one(&self.said_to_stranger(answer)))
    }

    /// Notes a refusal on its way.
    fn said_to_stranger<T>(&self, answer: Answer<T>) -> Answer<T> {
        if let Answer::Refused(why) = &answer {
            self.port.turned(self.from, why);
        }
        answer
    }

    async fn session(&self, mut messages: Streaming<Bytes>) -> Result<Messages, Status> {
        let from = self.worker()?;
        let Up::Hello { received } = decode(&first(&mut messages).await?)? else {
            return Err(Status::invalid_argument("a session begins with a hello"));
        };
        let session = self.port.sessions.fetch_add(1, Ordering::Relaxed);
        let (lane, receiver) = Lane::new();
        let beats = lane.0.downgrade();
        self.tell(Incoming::Connected { from, session, received, lane }).await?;
        let caller = self.clone();
        tokio::spawn(async move {
            let mut beat = tokio::time::interval(caller.port.beat);
            beat.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
            loop {
                let message = tokio::select! {
                    message = messages.message() => message,
                    _ = beat.tick() => {
                        // The lane is dropped when the session is over.
                        let Some(lane) = beats.upgrade() else { break };
                        let _ = lane.send(Ok(encode(&Down::Beat)));
                        continue;
                    }
                };
                let Ok(Some(bytes)) = message else { break };
                let message = match decode(&bytes) {
                    Ok(Up::Said { number, said }) => Incoming::Said { from, session, number, said },
                    Ok(Up::Obeyed { number }) => Incoming::Obeyed { from, session, number },
                    Ok(Up::Beat) => Incoming::Beat { from, session },
                    Ok(Up::Renew(request)) => Incoming::Renew { from, session, request },
                    Ok(Up::Hello { .. }) | Err(_) => {
                        caller.port.turned(caller.from, "it sent a malformed message");
                        break;
                    }
                };
                if caller.tell(message).await.is_err() {
                    return;
                }
            }
            let _ = caller.tell(Incoming::Broken { from, session }).await;
        });
        Ok(Box::pin(UnboundedReceiverStream::new(receiver)))
    }

    async fn store(&self, mut messages: Streaming<Bytes>) -> Result<Messages, Status> {
        let from = self.worker()?;
        let head: FileHead = decode(&first(&mut messages).await?)?;
        if !head.is_plain() || head.bytes > self.port.file_bytes_max.load(Ordering::Relaxed) {
            return Ok(one(&Answer::<()>::Refused(format!(
                "a file '{}' of {} bytes is not stored",
                head.name, head.bytes
            ))));
        }
        let path = self.port.files.join(&head.name);
        let chunks = messages
            .map(|chunk| chunk.map_err(|status| io::Error::other(status.message().to_owned())));
        if let Err(error) = files::receive(&path, from, head.bytes, chunks).await {
            return Ok(one(&Answer::<()>::Refused(format!(
                "cannot store '{}': {error}",
                head.name
            ))));
        }
        let (reply, answer) = oneshot::channel();
        self.tell(Incoming::Stored { from, path, head, reply }).await?;
        Ok(one(&answer.await.map_err(gone)?))
    }

    async fn fetch(&self, mut messages: Streaming<Bytes>) -> Result<Messages, Status> {
        self.worker()?;
        let head: FileHead = decode(&first(&mut messages).await?)?;
        if !head.is_plain() {
            return Err(Status::invalid_argument("this is no name of a file"));
        }
        let (sender, receiver) = mpsc::channel(4);
        let path = self.port.files.join(&head.name);
        tokio::spawn(async move {
            let sent = files::send(&path, |chunk| async {
                sender.send(Ok(chunk)).await.map_err(io::Error::other)
            });
            if let Err(error) = sent.await {
                let _ = sender.send(Err(Status::not_found(error.to_string()))).await;
            }
        });
        Ok(Box::pin(ReceiverStream::new(receiver)))
    }
}

/// An unspecified address, such as 0.0.0.0, stands for the one that the connection comes from.
fn seen_from(address: &str, from: IpAddr) -> String {
    match address.parse::<SocketAddr>() {
        Ok(parsed) if parsed.ip().is_unspecified() => {
            SocketAddr::new(from.to_canonical(), parsed.port()).to_string()
        }
        _ => address.to_owned(),
    }
}

async fn dial_back(address: &str) -> Result<(), String> {
    let why = match timeout(DIAL_BACK, TcpStream::connect(address)).await {
        Ok(Ok(_)) => return Ok(()),
        Ok(Err(error)) => error.to_string(),
        Err(_) => format!("no answer within {} s", DIAL_BACK.as_secs()),
    };
    Err(format!(
        "the worker cannot be reached at {address} ({why}); --advertise names another address"
    ))
}
