//! Membership: decides views from signs of life.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use crate::ids::WorkerId;
use crate::view::View;

/// What the coordinator notices of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sign {
    Hello(WorkerId),
    Beat(WorkerId),
    Bye(WorkerId),
    /// Its connection broke.
    Lost(WorkerId),
    Finished(WorkerId),
    /// Time has passed.
    Tick,
}

/// Why a view is, or is not, replaced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reason {
    Unchanged,
    /// Not enough workers have joined yet.
    Gathering {
        have: usize,
        want: usize,
    },
    Joined(WorkerId),
    Left(WorkerId),
    /// It wants to leave but is the last member; it may go when another has joined.
    OnlyMember(WorkerId),
    /// Its connection broke.
    Lost(WorkerId),
    /// They sent no heartbeat for longer than the patience.
    Silent(Vec<WorkerId>),
    /// It joined when a member had finished already, or finished after the job was over.
    TooLate(WorkerId),
    /// Every member has finished.
    Over,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::Joined(who) => write!(f, "worker {who} joined"),
            Reason::Left(who) => write!(f, "worker {who} left"),
            Reason::Lost(who) => write!(f, "worker {who} was lost"),
            Reason::Silent(all) => {
                let names: Vec<String> = all.iter().map(WorkerId::to_string).collect();
                write!(f, "silent for too long: {}", names.join(", "))
            }
            other => write!(f, "{other:?}"),
        }
    }
}

#[derive(Clone, Debug)]
pub struct Membership {
    view: View,
    roster: BTreeMap<WorkerId, Member>,
    members_min: usize,
    patience: Duration,
    over: bool,
    /// The only member, if it wants to leave.
    last: Option<WorkerId>,
}

#[derive(Clone, Debug)]
struct Member {
    last_beat: Duration,
    finished: bool,
}

impl Membership {
    /// The first view is decided when `members_min` workers have said hello.
    pub fn new(members_min: usize, patience: Duration) -> Membership {
        Membership {
            view: View::default(),
            roster: BTreeMap::new(),
            members_min,
            patience,
            over: false,
            last: None,
        }
    }

    pub fn view(&self) -> &View {
        &self.view
    }

    /// Whether this worker is on the roster. After the last member is lost, [`view`](Self::view) still
    /// returns the last view, but none of its members is enrolled.
    pub fn is_enrolled(&self, who: WorkerId) -> bool {
        self.roster.contains_key(&who)
    }

    pub fn is_over(&self) -> bool {
        self.over
    }

    /// The worker that wanted to leave when it was the only member, once it no longer is.
    pub fn free_to_leave(&mut self) -> Option<WorkerId> {
        if self.roster.len() > 1 { self.last.take() } else { None }
    }

    pub fn on(&mut self, now: Duration, sign: Sign) -> (Option<View>, Reason) {
        if let Sign::Hello(who) | Sign::Beat(who) = sign
            && let Some(member) = self.roster.get_mut(&who)
        {
            member.last_beat = now;
        }
        match sign {
            Sign::Hello(who) => self.hello(now, who),
            Sign::Beat(_) => (None, Reason::Unchanged),
            Sign::Bye(who) if self.roster.len() == 1 && self.roster.contains_key(&who) => {
                self.last = Some(who);
                (None, Reason::OnlyMember(who))
            }
            Sign::Bye(who) => self.without(&[who], Reason::Left(who)),
            Sign::Lost(who) => self.without(&[who], Reason::Lost(who)),
            Sign::Finished(who) => self.finished(who),
            Sign::Tick => {
                let silent: Vec<WorkerId> = self
                    .roster
                    .iter()
                    .filter(|(_, member)| member.last_beat.saturating_add(self.patience) < now)
                    .map(|(who, _)| *who)
                    .collect();
                self.without(&silent.clone(), Reason::Silent(silent))
            }
        }
    }

    fn hello(&mut self, now: Duration, who: WorkerId) -> (Option<View>, Reason) {
        if self.over || self.roster.values().any(|member| member.finished) {
            return (None, Reason::TooLate(who));
        }
        if self.roster.contains_key(&who) {
            return (None, Reason::Unchanged);
        }
        self.roster.insert(who, Member { last_beat: now, finished: false });
        let have = self.roster.len();
        if self.view.number == 0 && have < self.members_min {
            return (None, Reason::Gathering { have, want: self.members_min });
        }
        (self.next_view(), Reason::Joined(who))
    }

    fn without(&mut self, gone: &[WorkerId], reason: Reason) -> (Option<View>, Reason) {
        let before = self.roster.len();
        self.roster.retain(|who, _| !gone.contains(who));
        if self.over || self.roster.len() == before {
            return (None, Reason::Unchanged);
        }
        if self.roster.is_empty() || self.view.number == 0 {
            return (None, reason);
        }
        (self.next_view(), reason)
    }

    fn finished(&mut self, who: WorkerId) -> (Option<View>, Reason) {
        if self.over {
            return (None, Reason::TooLate(who));
        }
        if let Some(member) = self.roster.get_mut(&who) {
            member.finished = true;
        }
        if !self.roster.is_empty() && self.roster.values().all(|member| member.finished) {
            self.over = true;
            return (None, Reason::Over);
        }
        (None, Reason::Unchanged)
    }

    /// A member that had finished may have work again in a new view; it says again when it has none.
    fn next_view(&mut self) -> Option<View> {
        self.roster.values_mut().for_each(|member| member.finished = false);
        let members = self.roster.keys().copied().collect();
        self.view = View { number: self.view.number + 1, members };
        Some(self.view.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn ids(ids: &[u32]) -> Vec<WorkerId> {
        ids.iter().copied().map(WorkerId).collect()
    }

    #[test]
    fn views_follow_the_signs() {
        let w = WorkerId;
        let mut membership = Membership::new(2, 5 * SECOND);
        let script: [(u32, Sign, Option<&[u32]>); 11] = [
            (0, Sign::Hello(w(0)), None),
            (0, Sign::Hello(w(1)), Some(&[0, 1])),
            (1, Sign::Hello(w(2)), Some(&[0, 1, 2])),
            (1, Sign::Hello(w(2)), None),
            (4, Sign::Beat(w(0)), None),
            (5, Sign::Beat(w(2)), None),
            (7, Sign::Tick, Some(&[0, 2])),
            (8, Sign::Lost(w(0)), Some(&[2])),
            (8, Sign::Lost(w(0)), None),
            (8, Sign::Hello(w(3)), Some(&[2, 3])),
            (9, Sign::Bye(w(2)), Some(&[3])),
        ];
        for (at, sign, expected) in script {
            let (view, reason) = membership.on(at * SECOND, sign);
            assert_eq!(view.map(|v| v.members), expected.map(ids), "{sign:?}: {reason:?}");
        }
        assert_eq!(membership.on(9 * SECOND, Sign::Finished(w(3))), (None, Reason::Over));
        assert_eq!(membership.on(9 * SECOND, Sign::Hello(w(4))).1, Reason::TooLate(w(4)));
    }

    #[test]
    fn in_a_new_view_finished_members_must_finish_again() {
        let mut membership = Membership::new(3, SECOND);
        (0..3).for_each(|i| drop(membership.on(SECOND, Sign::Hello(WorkerId(i)))));
        membership.on(SECOND, Sign::Finished(WorkerId(0)));
        membership.on(SECOND, Sign::Lost(WorkerId(2)));
        membership.on(SECOND, Sign::Finished(WorkerId(1)));
        assert!(!membership.is_over(), "worker 0 must say again that it has finished");
        membership.on(SECOND, Sign::Finished(WorkerId(0)));
        assert!(membership.is_over());
    }
}
