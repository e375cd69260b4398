//! A worker's connection to the coordinator: TCP, TLS if there are keys, HTTP/2, gRPC.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::uri::PathAndQuery;
use hyper::body::Incoming;
use hyper::client::conn::http2::SendRequest;
use hyper_util::rt::{TokioExecutor, TokioIo};
use paceline_runtime::WorkerId;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_stream::Stream;
use tonic::body::Body;
use tonic::client::Grpc;
use tonic::{Request, Status, Streaming};

use crate::messages::{Answer, MESSAGE_MAX, Raw, WORKER_HEADER, decode, encode};

#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The coordinator's own sentence.
    #[error("{0}")]
    Refused(String),
    #[error("the coordinator at {address} cannot be reached: {why}")]
    Unreachable { address: String, why: String },
    #[error(
        "the coordinator at {address} is not the one that the token is for, or does not accept this worker ({why})"
    )]
    Untrusted { address: String, why: String },
    #[error("the connection to the coordinator broke: {0}")]
    Broken(String),
    #[error("the job is over: there is nothing left to do")]
    Over,
    #[error(
        "the coordinator at {address} encrypts its connections, and --insecure was given here: leave it out, or start both with it"
    )]
    Encrypted { address: String },
    #[error(
        "the coordinator at {address} was started with --insecure: give --insecure here, too, or start both without it"
    )]
    Unencrypted { address: String },
}

impl ClientError {
    /// Whether another attempt may succeed.
    pub fn is_passing(&self) -> bool {
        matches!(self, ClientError::Unreachable { .. } | ClientError::Broken(_))
    }
}

impl From<Status> for ClientError {
    fn from(status: Status) -> ClientError {
        match status.code() {
            tonic::Code::Unauthenticated
            | tonic::Code::InvalidArgument
            | tonic::Code::NotFound
            | tonic::Code::OutOfRange => ClientError::Refused(status.message().to_owned()),
            _ => ClientError::Broken(status.message().to_owned()),
        }
    }
}

/// How to reach the coordinator.
#[derive(Clone)]
pub(crate) struct Target {
    pub address: String,
    /// `None`: without TLS.
    pub tls: Option<Arc<ClientConfig>>,
    /// Without TLS a worker says who it is.
    pub claims: Option<WorkerId>,
    /// Whether the certificate must name the host of the address.
    checks_name: bool,
    /// How long a connection may take to be made.
    pub wait: Duration,
}

/// Between attempts to connect: at first, and at most.
pub(crate) const PAUSE_FIRST: Duration = Duration::from_millis(20);
pub(crate) const PAUSE_MAX: Duration = Duration::from_millis(500);
/// An answer that takes longer does not come.
pub(crate) const ANSWER: Duration = Duration::from_secs(20);
const CONNECT: Duration = Duration::from_secs(5);
/// If there are other coordinators to try.
const CONNECT_ONE_OF_SEVERAL: Duration = Duration::from_secs(2);

/// For one thread.
pub(crate) fn runtime() -> Result<tokio::runtime::Runtime, ClientError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(|error| ClientError::Broken(error.to_string()))
}

impl Target {
    pub fn new(address: &str, tls: Option<ClientConfig>, claims: Option<WorkerId>) -> Target {
        let tls = tls.map(|mut tls| {
            tls.alpn_protocols = vec![b"h2".to_vec()];
            Arc::new(tls)
        });
        Target { address: address.to_owned(), tls, claims, checks_name: false, wait: CONNECT }
    }

    /// For servers that are not ours: their certificates name hosts, not roles.
    pub fn checking_name(self) -> Target {
        Target { checks_name: true, ..self }
    }

    /// The same, at another address. If it is not the only one to try, it is given less time.
    pub fn at(&self, address: &str, is_only: bool, patience: Duration) -> Target {
        let wait = if is_only { CONNECT } else { CONNECT_ONE_OF_SEVERAL.min(patience / 2) };
        Target { address: address.to_owned(), wait, ..self.clone() }
    }

    /// After an attempt that failed: whether the other side encrypts and this one does not, or the reverse. Either looks like
    /// noise to the other.
    pub async fn explain(&self, error: ClientError) -> ClientError {
        let is_noise = matches!(
            error,
            ClientError::Unreachable { .. }
                | ClientError::Untrusted { .. }
                | ClientError::Broken(_)
        );
        if !is_noise {
            return error;
        }
        let address = || self.address.clone();
        match (timeout(PROBE, first_bytes(&self.address)).await, &self.tls) {
            // An alert of TLS.
            (Ok(Ok([0x15, 3, ..])), None) => ClientError::Encrypted { address: address() },
            // A frame with the settings of HTTP/2, in the clear.
            (Ok(Ok([0, 0, _, 4, ..])), Some(_)) => ClientError::Unencrypted { address: address() },
            _ => error,
        }
    }

    pub async fn connect(&self) -> Result<Connection, ClientError> {
        let unreachable =
            |why: String| ClientError::Unreachable { address: self.address.clone(), why };
        let connected = timeout(self.wait, TcpStream::connect(&self.address)).await;
        let stream = connected
            .map_err(|_| unreachable("no answer".to_owned()))?
            .map_err(|error| unreachable(error.to_string()))?;
        let _ = stream.set_nodelay(true);
        let Some(tls) = &self.tls else {
            return Connection::over(stream, self.claims).await;
        };
        let name = match (self.checks_name, self.address.rsplit_once(':')) {
            (true, Some((host, _))) => {
                let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
                ServerName::try_from(host).map_err(|error| unreachable(error.to_string()))?
            }
            // The name is not sent and not checked: roles in certificates are.
            _ => ServerName::try_from("paceline").expect("a valid name"),
        };
        let accepted =
            timeout(self.wait, TlsConnector::from(tls.clone()).connect(name, stream)).await;
        let stream = accepted.map_err(|_| unreachable("no answer to the handshake".to_owned()))?;
        let stream = stream.map_err(|error| {
            match error.get_ref().map(|inner| inner.is::<rustls::Error>()) {
                Some(true) => {
                    ClientError::Untrusted { address: self.address.clone(), why: error.to_string() }
                }
                _ => unreachable(error.to_string()),
            }
        })?;
        Connection::over(stream, None).await
    }
}

/// How long a probe may take.
const PROBE: Duration = Duration::from_secs(2);

/// What a port answers to the first bytes of HTTP/2 without encryption.
async fn first_bytes(address: &str) -> std::io::Result<[u8; 5]> {
    let mut stream = TcpStream::connect(address).await?;
    // The preface, and a frame with no settings.
    stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").await?;
    let mut bytes = [0; 5];
    stream.read_exact(&mut bytes).await?;
    Ok(bytes)
}

pub(crate) struct Connection {
    grpc: Grpc<Http>,
    claims: Option<WorkerId>,
}

impl Connection {
    async fn over(
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        claims: Option<WorkerId>,
    ) -> Result<Connection, ClientError> {
        let mut client = hyper::client::conn::http2::Builder::new(TokioExecutor::new());
        client.initial_stream_window_size(1 << 20).initial_connection_window_size(4 << 20);
        let shaken = timeout(CONNECT, client.handshake(TokioIo::new(stream))).await;
        let (sender, connection) = shaken
            .map_err(|_| ClientError::Broken("no answer".to_owned()))?
            .map_err(|error| ClientError::Broken(error.to_string()))?;
        // It ends when the sender is dropped or the other side is gone.
        tokio::spawn(connection);
        let origin = http::Uri::from_static("http://coordinator");
        let grpc = Grpc::with_origin(Http(sender), origin).max_decoding_message_size(MESSAGE_MAX);
        Ok(Connection { grpc, claims })
    }

    fn request<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        if let Some(who) = self.claims {
            request.metadata_mut().insert(WORKER_HEADER, who.0.into());
        }
        request
    }

    /// One question, one answer.
    pub async fn ask<T: DeserializeOwned>(
        &mut self,
        method: &'static str,
        message: &impl Serialize,
    ) -> Result<T, ClientError> {
        self.send(method, tokio_stream::once(encode(message))).await
    }

    /// One message, one answer, both as they are.
    pub async fn unary(&mut self, method: &'static str, message: Bytes) -> Result<Bytes, Status> {
        let request = self.request(tokio_stream::once(message));
        let call = self.grpc.client_streaming(request, PathAndQuery::from_static(method), Raw);
        Ok(call.await?.into_inner())
    }

    /// Many messages, one answer.
    pub async fn send<T: DeserializeOwned>(
        &mut self,
        method: &'static str,
        messages: impl Stream<Item = Bytes> + Send + 'static,
    ) -> Result<T, ClientError> {
        let request = self.request(messages);
        let call = self.grpc.client_streaming(request, PathAndQuery::from_static(method), Raw);
        let answer = call.await?.into_inner();
        match decode(&answer)? {
            Answer::Yes(answer) => Ok(answer),
            Answer::Refused(why) => Err(ClientError::Refused(why)),
            Answer::Over => Err(ClientError::Over),
        }
    }

    pub async fn stream(
        &mut self,
        method: &'static str,
        messages: impl Stream<Item = Bytes> + Send + 'static,
    ) -> Result<Streaming<Bytes>, ClientError> {
        let request = self.request(messages);
        let call = self.grpc.streaming(request, PathAndQuery::from_static(method), Raw);
        let opened = timeout(ANSWER, call).await;
        Ok(opened.map_err(|_| ClientError::Broken("no answer".to_owned()))??.into_inner())
    }
}

/// Sends gRPC's requests over one HTTP/2 connection.
struct Http(SendRequest<Body>);

impl tower_service::Service<http::Request<Body>> for Http {
    type Response = http::Response<Incoming>;
    type Error = hyper::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, hyper::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), hyper::Error>> {
        self.0.poll_ready(context)
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        Box::pin(self.0.send_request(request))
    }
}
