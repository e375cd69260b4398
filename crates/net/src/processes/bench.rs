//! One member of a mesh without a worker, for `bench/exchange.py`: the links, the shared memory and the sums are those of a training run.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver};
use std::time::Duration;

use paceline_identity::Credentials;
use paceline_learn::Vector;
use paceline_runtime::codec::Payload;
use paceline_runtime::edge::{Event, News};
use paceline_runtime::wire::{Entry, Tail};
use paceline_runtime::{Sum, Ticket, View, WorkerId};

use super::clock::Clock;
use super::exchanges::Shape;
use super::mesh::{Command, Mesh, MeshConfig};
use super::message::Up;
use crate::inbox::{Inbox, inbox};

pub struct Member {
    mesh: Mesh,
    inbox: Inbox,
    _up: Receiver<Up>,
    view: Arc<View>,
    exchange: u64,
    size: usize,
}

impl Member {
    /// A member that listens here; all members have the same shape.
    pub fn start(
        me: u32,
        listener: TcpListener,
        shape: Shape,
        shares_memory: bool,
        security: Option<Credentials>,
    ) -> io::Result<Member> {
        let (events, inbox) = inbox();
        let (up, words) = mpsc::channel();
        let mesh = Mesh::start(MeshConfig {
            me: WorkerId(me),
            secret: [1, 2],
            security,
            listener,
            shape,
            shares_memory,
            patience: Duration::from_secs(60),
            clock: Clock::from(Duration::ZERO),
            events,
            up,
        })?;
        Ok(Member {
            mesh,
            inbox,
            _up: words,
            view: Arc::default(),
            exchange: 0,
            size: shape.size(),
        })
    }

    /// Links to the others, which listen at these addresses in rank order.
    pub fn meet(&mut self, addresses: &[SocketAddr]) {
        for (who, address) in (0..).map(WorkerId).zip(addresses) {
            self.mesh.give(Command::Peer { who, address: *address });
        }
        let members: Vec<WorkerId> = (0..addresses.len() as u32).map(WorkerId).collect();
        self.view = Arc::new(View { incarnation: 1, number: 1, members });
        let (view, lost) = (self.view.clone(), Arc::default());
        self.mesh.give(Command::View { view, lost, closes: false });
    }

    /// Whether all others read this member's memory.
    pub fn is_near(&self) -> bool {
        self.mesh.is_near(&self.view)
    }

    /// Memory for an input, shared if there is any.
    pub fn memory(&self) -> Vector {
        let shared = self.mesh.gradient_memory().and_then(|memory| memory(self.size));
        shared.unwrap_or_else(|| Vector::zeros(self.size))
    }

    /// The sum over all members; `None` if one of them is gone.
    pub fn sum(&mut self, payload: Arc<Payload>) -> Option<Arc<Sum>> {
        self.exchange += 1;
        let entry = Entry::Sum { payload, tail: Tail::default() };
        self.mesh.exchange(Ticket(self.exchange), self.view.clone(), self.exchange, entry);
        loop {
            if let Event::For { news: News::Summed { sum, .. }, .. } =
                self.mesh.next(&self.inbox)?
            {
                return Some(sum);
            }
        }
    }
}
