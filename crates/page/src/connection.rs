//! A connection that ends when its reader takes nothing for a while.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Sleep, sleep};

/// How long a reader may take nothing while something is to be sent.
const STALLED_MAX: Duration = Duration::from_secs(10);

pub struct Connection {
    stream: TcpStream,
    stalled: Option<Pin<Box<Sleep>>>,
    stalled_max: Duration,
}

impl Connection {
    pub fn new(stream: TcpStream) -> Connection {
        Connection { stream, stalled: None, stalled_max: STALLED_MAX }
    }

    /// Passes on what a write came to; one that is pending for too long is an error.
    fn watched<T>(
        &mut self,
        context: &mut Context<'_>,
        written: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.stalled = None;
            return written;
        }
        let stalled_max = self.stalled_max;
        let stalled = self.stalled.get_or_insert_with(|| Box::pin(sleep(stalled_max)));
        match stalled.as_mut().poll(context) {
            Poll::Ready(()) => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = Pin::new(&mut this.stream).poll_write(context, bytes);
        this.watched(context, written)
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let flushed = Pin::new(&mut this.stream).poll_flush(context);
        this.watched(context, flushed)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt;
    use tokio::net::TcpListener;

    use super::*;

    #[test]
    fn a_reader_that_takes_nothing_is_given_up() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let error = runtime.expect("a runtime can be made").block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
            let address = listener.local_addr().expect("it is bound");
            let reader = TcpStream::connect(address).await.expect("it listens");
            let (stream, _) = listener.accept().await.expect("somebody connects");
            let mut connection = Connection::new(stream);
            connection.stalled_max = Duration::from_millis(50);
            let error = loop {
                // What the system keeps for the reader is full at some time.
                if let Err(error) = connection.write_all(&[0; 1 << 16]).await {
                    break error;
                }
            };
            drop(reader);
            error
        });

        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }
}
