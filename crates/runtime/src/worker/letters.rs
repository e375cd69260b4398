//! Letters and reads: nothing here waits for more than one peer.

use std::sync::Arc;

use paceline_learn::Vector;

use super::{Mine, Worker};
use crate::cluster::{Letter, Published, Shelf, Tail, WorkerId};
use crate::executor::{Interrupt, Port, Result, Wanted};
use crate::journal::Record;

impl Worker {
    pub fn send(&self, to: WorkerId, letter: Letter) {
        self.port.send(to, letter);
    }

    /// The letters that are here, in order of arrival.
    pub fn received(&self) -> Vec<Arc<Vector>> {
        std::iter::from_fn(|| self.port.look(|inbox| inbox.letter(|_, _| true)))
            .filter_map(|(_, letter)| match letter {
                Letter::Params { params, .. } => Some(params),
                _ => None,
            })
            .collect()
    }

    /// The member that hosts the center.
    pub fn server(&self) -> WorkerId {
        self.view.first()
    }

    /// Sends a letter to the server and waits for the center in return.
    pub async fn call(&mut self, letter: Letter) -> Result<Arc<Vector>> {
        Ok(self.call_center(letter).await?.0)
    }

    async fn call_center(&mut self, letter: Letter) -> Result<(Arc<Vector>, u64)> {
        let (server, since) = (self.server(), self.now());
        self.send(server, letter);
        let answer = self
            .port
            .until(Wanted::Letter { from: Some(server) }, |inbox| {
                let gone = !inbox.is_member(server) || inbox.over;
                let letter =
                    inbox.letter(|from, l| from == server && matches!(l, Letter::Params { .. }));
                letter.map(Ok).or(gone.then_some(Err(Interrupt::PeerLost)))
            })
            .await?;
        self.port.record(Record::Waited { who: self.id, whom: server, since });
        let (_, Letter::Params { params, version, done }) = answer else {
            unreachable!("only the center was asked for")
        };
        let (copy, optimizer) = (params.clone(), Arc::default());
        self.port.publish(Shelf::Copy, Published { params: copy, optimizer, version, done });
        Ok((params, version))
    }

    /// Pushes a gradient to the server and waits for the center in return.
    pub async fn push(&mut self, mine: Mine) -> Result<Arc<Vector>> {
        let Mine { gradient, spans, version, .. } = mine;
        let (samples, loss_sum) = (gradient.samples, gradient.loss_sum);
        let residual = self.state.residual.clone();
        let payload = self.encode(gradient.sum);
        let tail = Tail { version, samples, loss_sum, ..Tail::default() };
        let letter = Letter::Push { payload, tail, spans: spans.clone() };
        match self.call_center(letter).await {
            Ok((params, version)) => {
                self.state.version = version;
                Ok(params)
            }
            Err(interrupt) => {
                // What nobody received was not sent.
                self.state.residual = residual;
                self.give_back(spans);
                Err(interrupt)
            }
        }
    }

    /// A peer's last published replica, read without disturbing it.
    pub async fn read(&self, from: WorkerId) -> Result<Arc<Vector>> {
        let value = self.read_shelf(from, Shelf::Replica).await?;
        let bytes = 4 * value.params.len() as u64 + crate::cluster::HEADER_BYTES;
        self.port.record(Record::Sent { who: from, to: self.id, bytes });
        Ok(value.params)
    }

    pub(crate) async fn read_shelf(&self, from: WorkerId, shelf: Shelf) -> Result<Published> {
        read_shelf(&self.port, from, shelf).await
    }
}

pub(crate) async fn read_shelf(port: &Port, from: WorkerId, shelf: Shelf) -> Result<Published> {
    let ticket = port.read(from, shelf);
    port.until(Wanted::Value { from }, |inbox| {
        let gone = inbox.lost.contains(&from) || inbox.over;
        let value = inbox.value(ticket).map(|value| value.ok_or(Interrupt::PeerLost));
        value.or(gone.then_some(Err(Interrupt::PeerLost)))
    })
    .await
}
