//! What goes out over links and what comes in: frames are queued, written, read, and given to those they are for.

use std::sync::Arc;

use paceline_runtime::WorkerId;
use paceline_runtime::edge::News;
use paceline_runtime::wire::{Framed, Letter};

use super::super::frame::Arrived;
use super::super::link::{Got, TURN, message_of};
use super::super::message::{Load, PeerMessage, VERSION};
use super::super::shelves::Waiting;
use super::super::socket;
use super::links::{hello, shows};
use super::{QUEUE_MAX, Serving, Standing};

impl Serving {
    pub(super) fn send(&mut self, to: WorkerId, message: PeerMessage, load: Load) {
        if self.gone.contains(&to) {
            return;
        }
        match self.by_peer.get(&to).and_then(|token| Some((*token, self.conns.get_mut(token)?))) {
            Some((token, conn)) => {
                conn.link.queue(&message, load);
                self.dirty.insert(token);
            }
            None => self.waiting.entry(to).or_default().push((message, load)),
        }
    }

    pub(super) fn flush(&mut self) {
        let mut dirty = std::mem::take(&mut self.dirty);
        for token in dirty.drain() {
            let Some(conn) = self.conns.get_mut(&token) else { continue };
            let has_more = conn.link.write();
            let is_full = conn.link.queued() > QUEUE_MAX + 2 * self.limits.body || conn.link.lags();
            match has_more {
                Ok(true) if !is_full => self.dirty.insert(token),
                Ok(false) if !is_full => {}
                _ => self.close(token),
            }
        }
        self.dirty.use_memory_of(dirty);
    }

    /// A socket can be read or written.
    pub(super) fn serve(&mut self, token: usize, event: &mio::event::Event) {
        let ends = event.is_read_closed() || event.is_error();
        let (is_readable, is_writable) = (event.is_readable() || ends, event.is_writable());
        let Some(conn) = self.conns.get_mut(&token) else { return };
        if let Standing::Dialling(who) = conn.standing {
            if !is_writable && !is_readable {
                return;
            }
            let is_connected = matches!(conn.link.wire.stream.take_error(), Ok(None))
                && conn.link.wire.stream.peer_addr().is_ok();
            if !is_connected {
                return self.close(token);
            }
            conn.standing = Standing::Greeted(who);
            socket::limit_silence(&conn.link.wire.stream, self.config.patience);
            let hello = hello(&self.config, who);
            conn.link.queue(&hello, Load::None);
            self.dirty.insert(token);
            return;
        }
        if is_writable {
            self.dirty.insert(token);
        }
        if is_readable {
            conn.link.wake(ends);
            self.readable.insert(token);
        }
    }

    /// Reads from all links that may have something, for a turn each; returns whether anything has come.
    pub(super) fn read_all(&mut self) -> bool {
        let mut has_read = false;
        let mut readable = std::mem::take(&mut self.readable);
        for token in readable.drain() {
            has_read |= self.read_for_a_turn(token);
        }
        self.readable.use_memory_of(readable);
        has_read
    }

    /// Reads from a link that may have something; returns whether anything has come.
    pub(super) fn read_for_a_turn(&mut self, token: usize) -> bool {
        let mut room = TURN;
        match self.read_turn(token, &mut room) {
            true => self.readable.insert(token),
            false => self.readable.remove(token),
        };
        room < TURN
    }

    /// Reads this much; returns whether the link may have more.
    fn read_turn(&mut self, token: usize, room: &mut usize) -> bool {
        // One frame at a time: what a greeting allows to follow is larger than a stranger may send, and pieces of a sum are added while
        // they are in the processor's cache.
        loop {
            let Some(conn) = self.conns.get_mut(&token) else { return false };
            let got = conn.link.read(room);
            if conn.link.wire.wants_write() {
                self.dirty.insert(token);
            }
            let is_right = match got {
                Ok(Got::Frame(frame)) => self.receive(token, frame).is_some(),
                Ok(Got::Nothing) => return false,
                Ok(Got::Later) => return true,
                Err(_) => false,
            };
            if !is_right {
                self.close(token);
            }
        }
    }

    /// Takes one frame; `None` if the link must be closed.
    fn receive(&mut self, token: usize, frame: Arrived) -> Option<()> {
        let message = message_of(&frame)?;
        let conn = self.conns.get_mut(&token)?;
        let from = match (conn.standing, &message) {
            (Standing::Peer(who), _) => who,
            (standing, PeerMessage::Hello { version, secret, from, to }) => {
                let is_right = *version == VERSION
                    && *secret == self.config.secret
                    && *to == self.config.me
                    && (self.config.security.is_none() || shows(conn, *from))
                    && !self.by_peer.contains_key(from)
                    && !self.gone.contains(from);
                let is_expected = match standing {
                    Standing::Greeted(who) => who == *from,
                    _ => *from > self.config.me,
                };
                let from = *from;
                return (is_right && is_expected).then(|| self.know(token, from));
            }
            _ => return None,
        };
        match message {
            PeerMessage::Hello { .. } => None,
            PeerMessage::Entry { .. }
            | PeerMessage::Chunk { .. }
            | PeerMessage::Sum { .. }
            | PeerMessage::Piece { .. } => {
                let effects = self.exchanges.lock().receive(from, message, frame.segments).ok()?;
                self.carry_out(effects);
                Some(())
            }
            PeerMessage::Door { name, nonce } => {
                self.pass_segment(name, nonce);
                Some(())
            }
            PeerMessage::Mapped { cursor } => self.admit_reader(from, cursor),
            PeerMessage::Board { from: first } => {
                self.exchanges.lock().near.as_mut()?.begin(from, first)?;
                // What the peer has told since has rung the bell before this process knew where to read.
                self.look();
                Some(())
            }
            PeerMessage::Letter { mut letter, form } => {
                match (&mut *letter, form) {
                    (Letter::Gradient { payload, .. }, Some(form)) => {
                        let filled = form.fill(frame.segments);
                        *payload = Arc::new(filled.filter(|it| self.config.shape.fits(it))?);
                    }
                    (Letter::Gradient { .. }, None) | (_, Some(_)) => return None,
                    (letter, None) => letter.fill(frame.segments).ok()?,
                }
                self.tell(News::Letter { from, letter });
                Some(())
            }
            PeerMessage::Read { request, shelf, extent, waits } => {
                let waiting = Waiting { by: from, request, shelf, extent };
                let value = match waits {
                    true => self.shelves.read_or_wait(waiting),
                    false => self.shelves.read(shelf, extent),
                };
                if value.is_some() || !waits {
                    self.answer(from, request, value);
                }
                Some(())
            }
            PeerMessage::Value { request, value } => {
                let value = match value {
                    Some(mut value) => {
                        value.fill(frame.segments).ok()?;
                        Some(*value)
                    }
                    None => None,
                };
                self.value_arrives(from, request, value);
                Some(())
            }
        }
    }
}
