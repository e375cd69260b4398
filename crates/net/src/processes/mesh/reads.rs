//! Values that workers have published: reading those of peers, and answering peers that read.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::Sender;

use paceline_learn::Vector;
use paceline_runtime::edge::News;
use paceline_runtime::wire::{Extent, HEADER_BYTES, Published, Shelf};
use paceline_runtime::{Line, Record, WorkerId};

use super::super::message::{Load, PeerMessage, Up};
use super::{Collecting, Reader, Serving};

impl Serving {
    pub(super) fn collect(&mut self, of: &[WorkerId], shelf: Shelf, to: Sender<Vec<Arc<Vector>>>) {
        self.requests += 1;
        let number = self.requests;
        let collecting = Collecting { missing: of.len(), found: BTreeMap::new(), to };
        self.collects.insert(number, collecting);
        for &who in of {
            if who == self.config.me {
                let value = self.shelves.read(shelf, Extent::Params);
                self.found(number, who, value);
            } else {
                self.read(who, Reader::Collect(number), (shelf, Extent::Params, false));
            }
        }
    }

    fn found(&mut self, number: u64, who: WorkerId, value: Option<Published>) {
        let Some(collecting) = self.collects.get_mut(&number) else { return };
        collecting.missing -= 1;
        collecting.found.extend(value.map(|value| (who, value.params)));
        if collecting.missing == 0
            && let Some(Collecting { found, to, .. }) = self.collects.remove(&number)
        {
            drop(to.send(found.into_values().collect()));
        }
    }

    pub(super) fn read(&mut self, from: WorkerId, reader: Reader, what: (Shelf, Extent, bool)) {
        let (shelf, extent, waits) = what;
        self.requests += 1;
        let request = self.requests;
        self.reads.insert(request, (from, reader));
        if self.gone.contains(&from) {
            return self.value_arrives(from, request, None);
        }
        self.send(from, PeerMessage::Read { request, shelf, extent, waits }, Load::None);
    }

    pub(super) fn value_arrives(&mut self, from: WorkerId, request: u64, value: Option<Published>) {
        let is_theirs = |(asked, _): &(WorkerId, Reader)| *asked == from;
        if !self.reads.get(&request).is_some_and(is_theirs) {
            return;
        }
        let Some((_, reader)) = self.reads.remove(&request) else { return };
        // What is collected for an evaluation is counted there (`Record::Fetched`).
        if let (Some(value), Reader::Task(_)) = (&value, &reader) {
            let (to, bytes) = (self.config.me, HEADER_BYTES + value.bytes());
            let record = Record::Sent { who: from, to, bytes };
            let line = Line { at: self.config.clock.now(), record };
            drop(self.config.up.send(Up::Line(line)));
        }
        match reader {
            Reader::Task(ticket) => self.tell(News::Value { ticket, value }),
            Reader::Collect(number) => self.found(number, from, value),
        }
    }

    pub(super) fn answer(&mut self, to: WorkerId, request: u64, value: Option<Published>) {
        let load = value.clone().map_or(Load::None, |value| Load::Published(Arc::new(value)));
        let message = PeerMessage::Value { request, value: value.map(Box::new) };
        self.send(to, message, load);
    }
}
