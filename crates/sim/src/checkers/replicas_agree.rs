//! Members that exchange together hold the same replica after the same round, bit for bit.

use std::collections::{BTreeMap, BTreeSet};

use paceline_runtime::{Line, Reader, Record, WorkerId};

/// Needs a journal with fingerprints.
#[derive(Default)]
pub struct ReplicasAgree {
    together: bool,
    rounds: BTreeMap<u64, (u64, BTreeSet<WorkerId>)>,
    members: Vec<WorkerId>,
    crashed: BTreeSet<WorkerId>,
    ends: BTreeMap<WorkerId, (u64, u64)>,
    /// What was seen that must not be, in words.
    pub violations: Vec<String>,
}

impl Reader for ReplicasAgree {
    fn read(&mut self, line: &Line) {
        match &line.record {
            Record::Began { together, .. } => self.together = *together,
            Record::View { members, .. } => self.members.clone_from(members),
            Record::Crashed { who } => drop(self.crashed.insert(*who)),
            Record::Committed { who, round, fingerprint: Some(print) } if self.together => {
                self.commit(*who, *round, *print);
            }
            Record::Finished { who, rounds, fingerprint } if self.together => {
                self.ends.insert(*who, (*rounds, *fingerprint));
                let first = self.ends.values().next().expect("one was just inserted");
                if first != &(*rounds, *fingerprint) {
                    self.violations.push(format!("worker {who} ends with another replica"));
                }
            }
            _ => {}
        }
    }
}

impl ReplicasAgree {
    fn commit(&mut self, who: WorkerId, round: u64, print: u64) {
        // Who is leaving may end a round that the others, who lost another member, do again.
        if !self.members.contains(&who) {
            return;
        }
        // A round is done again only after all who had done it before are gone.
        let (known, holders) = self.rounds.entry(round).or_insert((print, BTreeSet::new()));
        if *known != print {
            let is_here = |holder: &&WorkerId| {
                self.members.contains(holder) && !self.crashed.contains(holder)
            };
            if let Some(alive) = holders.iter().find(is_here) {
                self.violations
                    .push(format!("after round {round} worker {who} differs from worker {alive}"));
            }
            (*known, *holders) = (print, BTreeSet::new());
        }
        holders.insert(who);
        // Nobody is ever more than a few rounds behind.
        while self.rounds.len() > 64 {
            self.rounds.pop_first();
        }
    }
}
