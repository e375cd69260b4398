//! The stream between a worker process and the coordinator that started it: the two pipes of a child process. It ends
//! when either of them does, so that workers end with their parent.

use std::io::{Read, Write};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::Duration;

use paceline_runtime::wire::Framed;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::frame::{FrameProblem, FrameReader, Limits, write_frame};
use super::message::Up;

/// Passes on what arrives until the stream ends, or until nobody wants it any more.
pub fn receive<M: DeserializeOwned + Framed>(
    from: impl Read,
    limits: Limits,
    mut take: impl FnMut(M) -> bool,
) -> Result<(), FrameProblem> {
    let mut frames = FrameReader::new(from, limits);
    while let Some(frame) = frames.read_frame()? {
        let mut message: M = frame.message()?;
        if message.fill(frame.segments).is_err() || !take(message) {
            return Err(FrameProblem::Magic);
        }
    }
    Ok(())
}

/// Writes one message.
pub fn send<M: Serialize + Framed>(to: &mut impl Write, message: &M) -> std::io::Result<()> {
    write_frame(to, message, &message.frames())
}

/// Sends everything that comes out of a queue, until it ends or the stream does.
pub fn send_all<M: Serialize + Framed>(messages: Receiver<M>, mut to: impl Write) {
    for message in messages {
        if send(&mut to, &message).is_err() {
            return;
        }
    }
}

/// As [`send_all`], for a worker: if it has nothing to say it says that it lives.
pub fn send_with_beats(messages: Receiver<Up>, every: Duration, mut to: impl Write) {
    loop {
        let message = match messages.recv_timeout(every) {
            Ok(message) => message,
            Err(RecvTimeoutError::Timeout) => Up::Beat,
            Err(RecvTimeoutError::Disconnected) => return,
        };
        if send(&mut to, &message).is_err() {
            return;
        }
    }
}

/// Forwards to a queue; a queue that nobody reads ends the stream.
pub fn into_queue<M>(queue: Sender<M>) -> impl FnMut(M) -> bool {
    move |message| queue.send(message).is_ok()
}
