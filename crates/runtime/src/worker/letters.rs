//! Letters and reads: nothing here waits for more than one peer.

use std::sync::Arc;

use paceline_learn::Vector;

use super::{Mine, Worker};
use crate::executor::{Interrupt, Wanted};
use crate::ids::WorkerId;
use crate::journal::Record;
use crate::wire::{Extent, Letter, Mailbox, Message, Published, Shelf, Tail};

impl Worker {
    /// Sends a message to the same strategy of another worker; it does not wait.
    pub fn send(&self, to: WorkerId, message: Message) {
        self.port.send(to, Letter::Message { to: Mailbox::Worker, message });
    }

    /// The messages that have arrived, with their senders, in order of arrival.
    pub fn received(&self) -> impl Iterator<Item = (WorkerId, Message)> + use<> {
        self.port.look(|inbox| inbox.take_messages()).into_iter()
    }

    /// The member that hosts the center.
    pub fn server(&self) -> WorkerId {
        self.view.first()
    }

    /// Sends a message to the server and waits until it replies with the center.
    pub async fn call(&mut self, message: Message) -> Result<Arc<Vector>, Interrupt> {
        let letter = Letter::Message { to: Mailbox::Server, message };
        Ok(self.call_server(letter).await?.params)
    }

    pub(crate) async fn call_server(&mut self, letter: Letter) -> Result<Published, Interrupt> {
        let (me, server, since) = (self.id, self.server(), self.now());
        // A server that left may have answered an earlier call too late.
        self.port.look(|inbox| inbox.forget_centers());
        self.port.send(server, letter);
        let center = self
            .port
            .until(Wanted::Letter { from: Some(server) }, |inbox| {
                if let Some(center) = inbox.center(server) {
                    return Some(Ok(center));
                }
                // A worker that said goodbye when it was alone is let go in the middle of a round: no server answers it.
                if inbox.has_ended() || !inbox.is_member(me) {
                    return Some(Err(Interrupt::Over));
                }
                (!inbox.is_server(server)).then_some(Err(Interrupt::PeerLost))
            })
            .await?;
        self.port.record(Record::Waited { who: self.id, whom: server, since });
        self.port.publish(Shelf::Copy, center.clone());
        self.center_known = (center.reign, center.done.clone());
        Ok(center)
    }

    /// Pushes a gradient to the server and waits for the center in return. If the server is lost, its successor gets the
    /// gradient: it knows whether the samples are in the center already.
    pub async fn push(&mut self, mine: Mine) -> Result<Arc<Vector>, Interrupt> {
        let Mine { gradient, spans, version, .. } = mine;
        let (samples, loss_sum, weight) = (gradient.samples, gradient.loss_sum, gradient.weight);
        let payload = Arc::new(self.encode(gradient.sum));
        let tail = Tail { version, samples, loss_sum, weight, ..Tail::default() };
        loop {
            let (payload, tail, spans) = (payload.clone(), tail.clone(), spans.clone());
            match self.call_server(Letter::Gradient { payload, tail, spans: spans.clone() }).await {
                Ok(center) => {
                    self.in_hand.subtract(&spans);
                    self.state.version = center.version;
                    return Ok(center.params);
                }
                Err(Interrupt::PeerLost) => self.follow_view(),
                Err(interrupt) => return Err(interrupt),
            }
        }
    }

    /// Takes the newest view for this worker's own. Asynchronous workers do so at any time.
    pub(crate) fn follow_view(&mut self) {
        if let Some(newest) = self.port.look(|inbox| inbox.view.clone()) {
            self.state.agreed.view = newest.clone();
            self.view = newest;
        }
    }

    /// A peer's last published replica, read without disturbing the peer.
    pub async fn read(&self, from: WorkerId) -> Result<Arc<Vector>, Interrupt> {
        Ok(self.port.read(from, Shelf::Replica, Extent::Params).await?.params)
    }
}
