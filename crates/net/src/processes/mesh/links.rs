//! How links begin and end: dialling, accepting, greeting, and what follows when one breaks.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use mio::{Interest, Token};
use paceline_identity::{Role, name_of, peer_client};
use paceline_runtime::WorkerId;
use paceline_runtime::coordination::Word;

use super::super::link::Link;
use super::super::message::{Load, PeerMessage, Up, VERSION};
use super::super::session::Session;
use super::super::socket;
use super::{
    Conn, Dial, MeshConfig, REDIAL, STRANGER, STRANGER_TIME, STRANGERS_MAX, Serving, Standing,
};

impl Serving {
    pub(super) fn next_wake(&self) -> Option<Instant> {
        if self.has_only_peers() {
            return self.accept_again;
        }
        let dials = self.dials.values().filter_map(|dial| dial.again);
        let new = self.conns.values().filter_map(|conn| self.gives_up_at(conn));
        dials.chain(new).chain(self.accept_again).min()
    }

    /// Whether all connections are links to peers, and nobody is to be dialled.
    fn has_only_peers(&self) -> bool {
        self.dials.is_empty() && self.conns.len() == self.by_peer.len()
    }

    /// When a connection to or from nobody known is closed. A peer that does not answer a dial within the patience is out of
    /// reach. No sooner: it may have taken this worker for a peer just before, and then the closed link would count as lost.
    fn gives_up_at(&self, conn: &Conn) -> Option<Instant> {
        match conn.standing {
            Standing::Peer(_) => None,
            Standing::Stranger => Some(conn.since + STRANGER_TIME),
            Standing::Dialling(_) | Standing::Greeted(_) => Some(conn.since + self.config.patience),
        }
    }

    /// A peer has said who it is.
    pub(super) fn know(&mut self, token: usize, who: WorkerId) {
        let Some(conn) = self.conns.get_mut(&token) else { return };
        if conn.standing == Standing::Stranger {
            let hello = hello(&self.config, who);
            conn.link.queue(&hello, Load::None);
        }
        conn.standing = Standing::Peer(who);
        conn.is_here = socket::is_within_machine(&conn.link.wire.stream);
        conn.link.set_limits(self.limits);
        let exchanges = self.exchanges.clone();
        conn.link.set_rooms(move |message, len| exchanges.lock().room(who, message, len));
        for (message, load) in self.waiting.remove(&who).unwrap_or_default() {
            conn.link.queue(&message, load);
        }
        self.by_peer.insert(who, token);
        self.dials.remove(&who);
        self.dirty.insert(token);
        self.offer_memory(who);
    }

    pub(super) fn accept(&mut self) {
        loop {
            let stream = match self.listener.accept() {
                Ok((stream, _)) => stream,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(_) => {
                    // Perhaps there are no descriptors left just now. Nothing would tell of this connection again.
                    self.accept_again = Some(Instant::now() + REDIAL);
                    return;
                }
            };
            let is_stranger = |conn: &&Conn| conn.standing == Standing::Stranger;
            if self.conns.values().filter(is_stranger).count() < STRANGERS_MAX {
                let Ok(tls) = self.accept_tls() else { continue };
                let link = Link::new(stream, tls, STRANGER, self.pool.clone());
                socket::limit_silence(&link.wire.stream, self.config.patience);
                self.add(link, Standing::Stranger);
            }
        }
    }

    pub(super) fn accept_tls(&self) -> io::Result<Option<Session>> {
        self.server.clone().map(Session::server).transpose()
    }

    pub(super) fn dial_tls(&self, who: WorkerId) -> io::Result<Option<Session>> {
        let Some(credentials) = &self.config.security else { return Ok(None) };
        // The name is not sent and not checked: the role in the certificate is.
        let name = rustls::pki_types::ServerName::try_from("paceline").expect("a valid name");
        Session::client(Arc::new(peer_client(credentials, who)), name).map(Some)
    }

    pub(super) fn add(&mut self, mut link: Link, standing: Standing) {
        let token = self.next_token;
        self.next_token += 1;
        let interest = Interest::READABLE | Interest::WRITABLE;
        if self.poll.registry().register(&mut link.wire.stream, Token(token), interest).is_ok() {
            let conn = Conn { link, since: Instant::now(), standing, is_here: false };
            self.conns.insert(token, conn);
        }
    }

    pub(super) fn dial_due(&mut self) {
        if self.accept_again.take_if(|at| *at <= Instant::now()).is_some() {
            self.accept();
        }
        if self.has_only_peers() {
            return;
        }
        let now = Instant::now();
        let is_late = |conn: &Conn| self.gives_up_at(conn).is_some_and(|at| at <= now);
        let late: Vec<usize> =
            self.conns.iter().filter(|(_, conn)| is_late(conn)).map(|(token, _)| *token).collect();
        late.into_iter().for_each(|token| self.close(token));
        let is_due = |dial: &Dial| dial.again.is_some_and(|again| again <= now);
        let due: Vec<(WorkerId, SocketAddr)> = self
            .dials
            .iter_mut()
            .filter(|(_, dial)| is_due(dial))
            .map(|(who, dial)| {
                dial.again = None;
                (*who, dial.address)
            })
            .collect();
        for (who, address) in due {
            match socket::dial(address) {
                Ok(stream) => match self.dial_tls(who) {
                    Ok(tls) => {
                        let link = Link::new(stream, tls, STRANGER, self.pool.clone());
                        self.add(link, Standing::Dialling(who));
                    }
                    Err(_) => self.dial_failed(who),
                },
                Err(_) => self.dial_failed(who),
            }
        }
    }

    pub(super) fn dial_failed(&mut self, who: WorkerId) {
        let Some(dial) = self.dials.get_mut(&who) else { return };
        dial.tries += 1;
        // A peer that has lost its coordinator for a moment refuses workers that it has not heard of.
        if dial.since.elapsed() > self.config.patience {
            return self.lose(who, true);
        }
        dial.again = Some(Instant::now() + REDIAL * 2u32.saturating_pow(dial.tries.min(5)));
    }

    pub(super) fn close(&mut self, token: usize) {
        let Some(mut conn) = self.conns.remove(&token) else { return };
        let _ = self.poll.registry().deregister(&mut conn.link.wire.stream);
        match conn.standing {
            Standing::Stranger => {}
            Standing::Dialling(who) | Standing::Greeted(who) => self.dial_failed(who),
            Standing::Peer(who) => self.lose(who, true),
        }
    }

    /// Nothing reaches this peer any more, or it is lost.
    pub(super) fn lose(&mut self, who: WorkerId, is_suspected: bool) {
        if let Ok(mut peers) = self.peers.lock() {
            peers.remove(&who);
        }
        self.dials.remove(&who);
        self.waiting.remove(&who);
        self.shelves.forget(who);
        self.forget_neighbor(who);
        if let Some(token) = self.by_peer.remove(&who)
            && let Some(mut conn) = self.conns.remove(&token)
        {
            let _ = self.poll.registry().deregister(&mut conn.link.wire.stream);
        }
        self.gone.insert(who);
        let open: Vec<u64> =
            self.reads.iter().filter(|(_, (from, _))| *from == who).map(|(it, _)| *it).collect();
        open.into_iter().for_each(|request| self.value_arrives(who, request, None));
        if is_suspected {
            self.suspect(who);
        }
    }

    /// A younger member that the coordinator had told nothing before it was gone does not dial.
    pub(super) fn lose_unlinked(&mut self) {
        let me = self.config.me;
        let members = self.view.members.clone().into_iter().filter(|who| *who != me);
        let unlinked: Vec<WorkerId> =
            members.filter(|who| !self.by_peer.contains_key(who)).collect();
        unlinked.into_iter().for_each(|who| self.lose(who, true));
    }

    /// Links that broke before this worker knew the view or the plan.
    pub(super) fn suspect_gone(&self) {
        self.gone.iter().for_each(|who| self.suspect(*who));
    }

    /// Tells the coordinator, if the peer is needed in the view in force or in one that is being boarded.
    fn suspect(&self, peer: WorkerId) {
        for view in [&self.view, &self.plan] {
            if view.has(peer) {
                let word = Word::Suspect { peer, view: view.number };
                drop(self.config.up.send(Up::Word(word)));
            }
        }
    }
}

/// Whether the certificate of a connection is that of this worker.
pub(super) fn shows(conn: &Conn, who: WorkerId) -> bool {
    let name = conn.link.wire.certificate().and_then(|it| name_of(it).ok());
    name.is_some_and(|name| name.role == Role::Worker(who))
}

pub(super) fn hello(config: &MeshConfig, to: WorkerId) -> PeerMessage {
    PeerMessage::Hello { version: VERSION, secret: config.secret, from: config.me, to }
}
