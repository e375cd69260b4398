//! Which samples of a center the journal knows of.
//!
//! Lines travel apart from what they are about: a server that dies may have sent a center to a peer, and its line about the
//! last updates nowhere. The next server takes that center, and says what it holds; what the journal does not know of it yet
//! is then written on behalf of the lost server.

use std::collections::BTreeSet;

use paceline_runtime::{Line, Record, Spans, WorkerId};

#[derive(Default)]
pub struct CenterLines {
    /// Updates by version; the oldest are joined.
    updates: Vec<(u64, Spans)>,
    server: Option<WorkerId>,
    version: u64,
    lost: BTreeSet<WorkerId>,
}

/// Updates that a restored copy may undo, as in the tally of samples.
const KEPT: usize = 1 << 16;

impl CenterLines {
    /// The samples that an earlier run had applied.
    pub fn begin(done: Spans) -> CenterLines {
        CenterLines { updates: vec![(0, done)], ..CenterLines::default() }
    }

    /// Reads the lines of a run in which samples are applied to a center.
    pub fn read(&mut self, line: &Line) {
        match &line.record {
            Record::Applied { who, version, spans, result: None, .. } => {
                if self.server.is_none_or(|server| server == *who) {
                    self.updates.push((*version, spans.clone()));
                }
                if self.updates.len() > 2 * KEPT {
                    let mut joined = (0, Spans::new());
                    for (version, spans) in self.updates.drain(..KEPT) {
                        joined.0 = version;
                        joined.1.add(&spans);
                    }
                    self.updates.insert(0, joined);
                }
            }
            Record::Freed { who, .. } => {
                self.lost.insert(*who);
            }
            Record::Restored { who, version, .. } if !self.lost.contains(who) => {
                (self.server, self.version) = (Some(*who), *version);
                self.updates.retain(|(applied, _)| applied <= version);
            }
            Record::StartedOver => {
                self.updates.clear();
                self.server = None;
            }
            Record::Resumed { version, spans, .. } => {
                self.updates = vec![(*version, spans.clone())];
            }
            _ => {}
        }
    }

    /// A new server has told that it has the center again, and what the center holds. Returns the record of what the journal
    /// does not know of.
    pub fn restored(&self, who: WorkerId, done: &Spans) -> Option<Record> {
        let mut spans = done.clone();
        self.updates.iter().for_each(|(_, known)| spans.subtract(known));
        let is_new = self.server == Some(who) && !spans.is_empty();
        // Their losses died with the server.
        let (loss_sum, weight) = (0.0, Some(0.0));
        let (version, staleness, rate) = (self.version, 0, 0.0);
        let (round, result) = (None, None);
        is_new.then_some(Record::Applied {
            who,
            version,
            spans,
            loss_sum,
            weight,
            staleness,
            rate,
            round,
            result,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use paceline_runtime::SampleTally;

    use super::*;

    fn applied(who: u32, version: u64, from: u64, to: u64) -> Record {
        Record::Applied {
            who: WorkerId(who),
            version,
            spans: Spans::one(from, to),
            loss_sum: 1.0,
            weight: None,
            staleness: 0,
            rate: 0.1,
            round: None,
            result: None,
        }
    }

    fn restored(who: u32, version: u64) -> Record {
        Record::Restored { who: WorkerId(who), version, reign: 1 }
    }

    /// The line of version 2 died with the server; a worker had a copy of version 2. Version 3 died with it as well.
    #[test]
    fn what_a_restored_center_holds_is_in_the_journal_once() {
        let mut lines = CenterLines::default();
        let mut tally = SampleTally::default();
        let mut write = |lines: &mut CenterLines, record: Record| {
            let line = Line { at: Duration::ZERO, record };
            lines.read(&line);
            tally.read(&line);
        };
        let began = Record::Began {
            version: 1,
            strategy: "async".to_owned(),
            seed: 1,
            samples_total: 12,
            samples_per_epoch: 12,
            model: String::new(),
            data: String::new(),
            params: 1,
            kernels: String::new(),
            together: false,
            central: true,
        };
        write(&mut lines, began);
        write(&mut lines, restored(0, 0));
        assert_eq!(lines.restored(WorkerId(0), &Spans::new()), None);
        write(&mut lines, applied(0, 1, 0, 4));
        write(&mut lines, applied(0, 3, 8, 12));
        write(&mut lines, restored(1, 2));
        let record = lines.restored(WorkerId(1), &Spans::one(0, 8)).expect("a line is missing");
        write(&mut lines, record);
        // A line of the lost server that comes late is about what is known by now.
        write(&mut lines, applied(0, 2, 4, 8));
        write(&mut lines, applied(1, 3, 8, 12));

        assert_eq!(lines.restored(WorkerId(1), &Spans::one(0, 12)), None);
        let verdict = tally.verdict(false);
        assert_eq!((verdict.done, verdict.lost, verdict.repeated), (12, 0, 0));
    }
}
