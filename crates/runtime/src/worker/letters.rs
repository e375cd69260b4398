//! Letters and reads: nothing here waits for more than one peer.

use std::sync::Arc;

use paceline_learn::Vector;

use super::{Mine, Worker};
use crate::executor::{Interrupt, Wanted};
use crate::ids::WorkerId;
use crate::journal::Record;
use crate::wire::{Extent, HEADER_BYTES, Letter, Mailbox, Message, Published, Shelf, Tail};

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
        Ok(self.call_server(letter).await?.0)
    }

    async fn call_server(&mut self, letter: Letter) -> Result<(Arc<Vector>, u64), Interrupt> {
        let (server, since) = (self.server(), self.now());
        // A server that left may have answered an earlier call too late.
        self.port.look(|inbox| inbox.forget_centers());
        self.port.send(server, letter);
        let (params, version, done) = self
            .port
            .until(Wanted::Letter { from: Some(server) }, |inbox| {
                let gone = !inbox.is_member(server) || inbox.over;
                inbox.center(server).map(Ok).or(gone.then_some(Err(Interrupt::PeerLost)))
            })
            .await?;
        self.port.record(Record::Waited { who: self.id, whom: server, since });
        let (copy, optimizer) = (params.clone(), Arc::default());
        self.port.publish(Shelf::Copy, Published { params: copy, optimizer, version, done });
        Ok((params, version))
    }

    /// Pushes a gradient to the server and waits for the center in return.
    pub async fn push(&mut self, mine: Mine) -> Result<Arc<Vector>, Interrupt> {
        let Mine { gradient, spans, version, .. } = mine;
        let (samples, loss_sum) = (gradient.samples, gradient.loss_sum);
        let residual = self.state.private.residual.clone();
        let payload = self.encode(gradient.sum);
        let tail = Tail { version, samples, loss_sum, ..Tail::default() };
        let letter = Letter::Gradient { payload, tail, spans: spans.clone() };
        match self.call_server(letter).await {
            Ok((params, version)) => {
                self.state.version = version;
                Ok(params)
            }
            Err(interrupt) => {
                // The samples are returned as if nothing was sent. If the lost server had applied them, the update
                // survives only in a copy of the center, and then the new server reports them as done.
                self.state.private.residual = residual;
                self.give_back(spans);
                Err(interrupt)
            }
        }
    }

    /// A peer's last published replica, read without disturbing the peer.
    pub async fn read(&self, from: WorkerId) -> Result<Arc<Vector>, Interrupt> {
        let value = self.port.read(from, Shelf::Replica, Extent::Params).await?;
        let bytes = HEADER_BYTES + value.bytes();
        self.port.record(Record::Sent { who: from, to: self.id, bytes });
        Ok(value.params)
    }
}
