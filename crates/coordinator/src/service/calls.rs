//! The calls that a client can make, over one connection.

use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use hyper::body::Incoming as HttpBody;
use paceline_identity::Token;
use paceline_runtime::WorkerId;
use tokio::net::TcpStream;
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_stream::wrappers::{ReceiverStream, UnboundedReceiverStream};
use tokio_stream::{Stream, StreamExt};
use tonic::server::{Grpc, StreamingService};
use tonic::{Response, Status, Streaming};

use crate::clock::Clock;
use crate::files;
use crate::incoming::{Incoming, Lane};
use crate::messages::*;

/// For the handshake, and for the first message.
pub const HANDSHAKE: Duration = Duration::from_secs(5);
const DIAL_BACK: Duration = Duration::from_secs(3);
/// A worker that joins lists the tensors of its model: about 100 bytes each.
const STRANGERS_MESSAGE_MAX: usize = 256 << 10;

/// What all connections share.
pub struct Port {
    pub tls: Option<TlsAcceptor>,
    pub files: PathBuf,
    pub file_bytes_max: Arc<AtomicU64>,
    pub beat: Duration,
    pub clock: Clock,
    pub dials_back: bool,
    pub incoming: mpsc::Sender<Incoming>,
    pub sessions: AtomicU64,
}

/// Answers one request.
pub async fn answer(
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
pub struct Caller {
    pub port: Arc<Port>,
    pub from: SocketAddr,
    /// Who it is, if its certificate says so.
    pub known: Option<WorkerId>,
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
    pub fn turned(&self, from: SocketAddr, why: &str) {
        let _ = self.incoming.try_send(Incoming::Turned { from, why: why.to_owned() });
    }
}

impl Caller {
    /// Without TLS everybody is one, so that nobody is treated as one.
    pub fn is_stranger(&self) -> bool {
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
        let received = self.port.clock.now();
        let Join { version, token, request, .. } = join.clone();
        // A stranger with a wrong token must not have the coordinator dial anywhere.
        let look = self.ask_to_look(Look { version, token: token.clone(), request }).await?;
        match look {
            Answer::Yes(_) => {}
            Answer::Over => return Ok(one(&Answer::<Admitted>::Over)),
            Answer::Refused(why) => {
                return Ok(one(&self.said_to_stranger(Answer::<Admitted>::Refused(why))));
            }
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
        let answer = match answer.await.map_err(gone)? {
            Answer::Yes(admitted) => {
                // A newcomer sets its clock by the answer, which may have waited for the disk.
                Answer::Yes(Admitted { received, now: self.port.clock.now(), ..admitted })
            }
            refused => refused,
        };
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
        let (beats, echoes) = (lane.0.downgrade(), lane.0.downgrade());
        self.tell(Incoming::Connected { from, session, received, lane }).await?;
        let caller = self.clone();
        // Beats go on while the coordinator waits for its store, and takes nothing that is said.
        let (ends, mut ended) = oneshot::channel::<()>();
        let mut beat = tokio::time::interval(self.port.beat);
        beat.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        tokio::spawn(async move {
            loop {
                beat.tick().await;
                // The lane is dropped when the session is over.
                let Some(lane) = beats.upgrade() else { break };
                if lane.send(Ok(encode(&Down::Beat))).is_err() {
                    break;
                }
            }
            drop(ends);
        });
        tokio::spawn(async move {
            loop {
                let message = tokio::select! {
                    message = messages.message() => message,
                    _ = &mut ended => break,
                };
                let Ok(Some(bytes)) = message else { break };
                let message = match decode(&bytes) {
                    Ok(Up::Said { number, said }) => Incoming::Said { from, session, number, said },
                    Ok(Up::Obeyed { number }) => Incoming::Obeyed { from, session, number },
                    Ok(Up::Beat { sent }) => {
                        // At once, because the worker measures how long it takes.
                        if let Some(lane) = echoes.upgrade() {
                            let now = caller.port.clock.now();
                            let _ = lane.send(Ok(encode(&Down::Echo { sent, now })));
                        }
                        Incoming::Beat { from, session }
                    }
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
