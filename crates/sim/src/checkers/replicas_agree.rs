//! Members that exchange synchronously hold the same replica after the same round, bit for bit.

use std::collections::{BTreeMap, BTreeSet};

use paceline_runtime::{Line, Reader, Record, WorkerId};

/// Compares the replicas' fingerprints round by round. `plan.fingerprints` must be set, or this is a violation itself:
/// a checker that compares nothing must not pass.
#[derive(Default)]
pub struct ReplicasAgree {
    synchronous: bool,
    rounds: BTreeMap<u64, (u64, BTreeSet<WorkerId>)>,
    members: Vec<WorkerId>,
    crashed: BTreeSet<WorkerId>,
    /// The first worker that finished, with its number of rounds and its fingerprint.
    first_finished: Option<(WorkerId, u64, u64)>,
    lacks_fingerprints: bool,
    pub violations: Vec<String>,
}

impl Reader for ReplicasAgree {
    fn read(&mut self, line: &Line) {
        match &line.record {
            Record::Began { together, .. } => self.synchronous = *together,
            Record::View { members, .. } => self.members.clone_from(members),
            Record::Crashed { who } => drop(self.crashed.insert(*who)),
            Record::Committed { who, round, fingerprint } if self.synchronous => {
                match fingerprint {
                    Some(print) => self.commit(*who, *round, *print),
                    None => self.miss_fingerprint(),
                }
            }
            Record::Finished { who, rounds, fingerprint } if self.synchronous => {
                self.finish(*who, *rounds, *fingerprint);
            }
            _ => {}
        }
    }
}

impl ReplicasAgree {
    fn commit(&mut self, who: WorkerId, round: u64, print: u64) {
        // A leaving worker may end a round that the others repeat because they lost another member.
        if !self.members.contains(&who) {
            return;
        }
        // A round is repeated only if no worker that committed it before is left.
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
        // No member is ever more than a few rounds behind.
        while self.rounds.len() > 64 {
            self.rounds.pop_first();
        }
    }

    fn finish(&mut self, who: WorkerId, rounds: u64, print: u64) {
        let (first, first_rounds, first_print) =
            *self.first_finished.get_or_insert((who, rounds, print));
        if (rounds, print) != (first_rounds, first_print) {
            self.violations
                .push(format!("worker {who} ends with another replica than worker {first}"));
        }
    }

    fn miss_fingerprint(&mut self) {
        if !self.lacks_fingerprints {
            self.lacks_fingerprints = true;
            let advice = "the journal has no fingerprints to compare: set plan.fingerprints";
            self.violations.push(advice.into());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn violations(together: bool, records: Vec<Record>) -> Vec<String> {
        let began = Record::Began {
            version: 1,
            strategy: "ssgd".into(),
            seed: 1,
            samples_total: 100,
            samples_per_epoch: 100,
            model: String::new(),
            data: String::new(),
            params: 1,
            kernels: String::new(),
            together,
            central: false,
        };
        let members = vec![WorkerId(0), WorkerId(1)];
        let view = Record::View { number: 0, members, reason: String::new() };
        let mut checker = ReplicasAgree::default();
        for record in [began, view].into_iter().chain(records) {
            checker.read(&Line { at: Duration::ZERO, record });
        }
        checker.violations
    }

    fn committed(who: u32, fingerprint: Option<u64>) -> Record {
        Record::Committed { who: WorkerId(who), round: 0, fingerprint }
    }

    fn finished(who: u32, fingerprint: u64) -> Record {
        Record::Finished { who: WorkerId(who), rounds: 1, fingerprint }
    }

    #[test]
    fn a_journal_without_fingerprints_is_one_violation() {
        let found = violations(true, vec![committed(0, None), committed(1, None)]);
        assert_eq!(found, ["the journal has no fingerprints to compare: set plan.fingerprints"]);
    }

    #[test]
    fn asynchronous_replicas_need_not_agree() {
        let records = vec![committed(0, None), committed(1, None), finished(0, 7), finished(1, 8)];
        assert!(violations(false, records).is_empty());
    }

    #[test]
    fn equal_replicas_are_no_violation() {
        let rounds = vec![committed(0, Some(7)), committed(1, Some(7))];
        let ends = vec![finished(1, 7), finished(0, 7)];
        assert!(violations(true, [rounds, ends].concat()).is_empty());
    }

    #[test]
    fn replicas_that_differ_after_a_round_are_a_violation() {
        let found = violations(true, vec![committed(0, Some(7)), committed(1, Some(8))]);
        assert_eq!(found, ["after round 0 worker 1 differs from worker 0"]);
    }

    #[test]
    fn replicas_that_differ_at_the_end_are_a_violation_in_any_order() {
        for [first, last] in [[0, 1], [1, 0]] {
            let found = violations(true, vec![finished(first, 7), finished(last, 8)]);
            let expected = format!("worker {last} ends with another replica than worker {first}");
            assert_eq!(found, [expected]);
        }
    }
}
