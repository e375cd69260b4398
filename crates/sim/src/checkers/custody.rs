//! Whatever counts as done is in a replica that lives, or the journal says that it was lost.
//!
//! A holder is a worker that began with the others, or adopted what a holder had. As long as one of the members is a
//! holder, what counts as done is somewhere. When none is left, the coordinator must say `started_over`.

use std::collections::BTreeSet;

use paceline_runtime::{Line, Reader, Record, WorkerId};

#[derive(Default)]
pub struct Custody {
    holders: BTreeSet<WorkerId>,
    /// The next view with members begins anew.
    begins: bool,
    has_view: bool,
    view: u64,
    /// What settled in this view or an older one is forgotten: the job started over since.
    forgotten: u64,
    members: Vec<WorkerId>,
    is_over: bool,
    pub violations: Vec<String>,
}

impl Reader for Custody {
    fn read(&mut self, line: &Line) {
        match &line.record {
            Record::Began { .. } => self.begins = true,
            Record::StartedOver => {
                self.forgotten = self.view;
                self.begins = true;
                self.members.clear();
                self.holders.clear();
            }
            Record::View { number, members, .. } => {
                self.view = *number;
                if members.is_empty() {
                    return;
                }
                self.has_view = true;
                self.members.clone_from(members);
                if std::mem::take(&mut self.begins) {
                    self.holders = members.iter().copied().collect();
                }
            }
            // A server takes the center from the one before it, or the copy of a holder.
            Record::Restored { who, .. }
                if self.members.iter().any(|member| self.holders.contains(member)) =>
            {
                self.holders.insert(*who);
            }
            // A worker that was put out and does not know it yet changes nothing that counts.
            Record::Settled { who, view, adopted, .. } if *view > self.forgotten => {
                if adopted.is_some_and(|source| !self.holders.contains(&source)) {
                    let text =
                        format!("worker {who} adopted from {adopted:?}, which holds nothing");
                    self.violations.push(text);
                }
                self.holders.insert(*who);
            }
            Record::Applied { who, .. }
                if self.members.contains(who) && !self.holders.contains(who) && !self.is_over =>
            {
                let text = format!("worker {who} applied samples to a replica of its own");
                self.violations.push(text);
            }
            Record::Over => {
                if self.has_view && !self.begins && self.holders.is_empty() {
                    self.violations.push("the job is over, and nobody holds its result".to_owned());
                }
                self.is_over = true;
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use paceline_runtime::Spans;

    fn violations(records: Vec<Record>) -> usize {
        let mut custody = Custody::default();
        for record in records {
            custody.read(&Line { at: Duration::ZERO, record });
        }
        custody.violations.len()
    }

    fn view(number: u64, members: &[u32]) -> Record {
        let members = members.iter().copied().map(WorkerId).collect();
        Record::View { number, members, reason: String::new() }
    }

    fn applied(who: u32) -> Record {
        Record::Applied {
            who: WorkerId(who),
            version: 1,
            spans: Spans::one(0, 1),
            loss_sum: 0.0,
            weight: None,
            staleness: 0,
            rate: 0.1,
            round: None,
            result: None,
        }
    }

    #[test]
    fn a_newcomer_that_adopted_nothing_must_not_go_on() {
        let adopted =
            Record::Settled { who: WorkerId(1), view: 2, round: 0, adopted: Some(WorkerId(0)) };
        let began = || Record::Began {
            version: 1,
            strategy: String::new(),
            seed: 1,
            samples_total: 1,
            samples_per_epoch: 1,
            model: String::new(),
            data: String::new(),
            params: 1,
            kernels: String::new(),
            together: false,
            central: false,
        };
        let start = || vec![began(), view(1, &[0]), applied(0), view(2, &[0, 1])];
        let then = |more: Vec<Record>| violations([start(), more].concat());

        assert_eq!(then(vec![adopted, view(3, &[1]), applied(1)]), 0);
        assert_eq!(then(vec![Record::StartedOver, view(4, &[1]), applied(1)]), 0);
        assert_eq!(then(vec![view(3, &[1]), applied(1)]), 1);
    }
}
