//! What has happened to the members of a run: who came, who went and why, and how long training stood still for it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use paceline_runtime::{Line, Record, WorkerId};

use super::snapshot::{Counts, Event, Kind};
use super::words::listed;

/// The newest events; older ones are forgotten.
#[derive(Clone, Debug, Default)]
pub struct Events {
    pub newest: VecDeque<Event>,
    pub counts: Counts,
    members: BTreeSet<WorkerId>,
    died: BTreeMap<WorkerId, Duration>,
    freed: BTreeSet<WorkerId>,
    /// When samples were last applied.
    applied: Duration,
    open: Vec<Open>,
    /// How many events were ever added: names one that is still open.
    added: u64,
}

/// A loss after which nothing has been applied yet.
#[derive(Clone, Debug)]
struct Open {
    since: Duration,
    view: u64,
    event: u64,
    losses: u64,
}

pub const EVENTS_MAX: usize = 64;

impl Events {
    pub fn read(&mut self, line: &Line) {
        match &line.record {
            Record::Crashed { who } => _ = self.died.insert(*who, line.at),
            Record::Freed { who, .. } if self.members.contains(who) => {
                self.freed.insert(*who);
            }
            Record::Freed { who, .. } => {
                self.counts.lost += 1;
                self.add(line.at, Kind::Lost, format!("worker {who} was lost before it took part"));
            }
            Record::View { number, members, reason } => {
                self.view(line.at, *number, members, reason);
            }
            Record::Applied { result, .. } => {
                let view = result.map_or(u64::MAX, |result| result.view);
                self.apply(line.at, view);
            }
            Record::Restarted => {
                self.counts.restarted += 1;
                self.add(line.at, Kind::Restarted, "the coordinator was started again".to_owned());
            }
            Record::StartedOver => {
                self.counts.started_over += 1;
                let text = "every replica was lost: training starts over".to_owned();
                self.add(line.at, Kind::StartedOver, text);
            }
            Record::GaveUp { .. } | Record::Disagreed { .. } => {
                let text = "the job ended without a result".to_owned();
                self.add(line.at, Kind::Failed, text);
            }
            Record::Resumed { round, .. } => {
                let text = format!("resumed from the checkpoint of round {round}");
                self.add(line.at, Kind::Restarted, text);
            }
            Record::Over => self.add(line.at, Kind::Over, "the job is over".to_owned()),
            _ => {}
        }
    }

    pub fn add(&mut self, at: Duration, kind: Kind, text: String) {
        self.added += 1;
        let at = at.as_secs_f64();
        self.newest.push_back(Event { at, kind, text, recovery_seconds: None });
        if self.newest.len() > EVENTS_MAX {
            self.newest.pop_front();
        }
    }

    fn view(&mut self, at: Duration, number: u64, members: &[WorkerId], reason: &str) {
        let members: BTreeSet<WorkerId> = members.iter().copied().collect();
        let joined: Vec<WorkerId> = members.difference(&self.members).copied().collect();
        let gone: Vec<WorkerId> = self.members.difference(&members).copied().collect();
        self.members = members;
        let (lost, left): (Vec<_>, Vec<_>) =
            gone.into_iter().partition(|who| self.freed.contains(who));
        self.freed.clear();
        if !lost.is_empty() {
            let died: Vec<Duration> = lost.iter().filter_map(|who| self.died.remove(who)).collect();
            let why = if died.is_empty() { "" } else { ", its process has ended" };
            let since = died.into_iter().min().unwrap_or(self.applied);
            self.add(at, Kind::Lost, format!("{reason}{why}"));
            self.counts.lost += lost.len() as u64;
            let (event, losses) = (self.added, lost.len() as u64);
            self.open.push(Open { since, view: number, event, losses });
        }
        if !left.is_empty() {
            self.counts.left += left.len() as u64;
            self.add(at, Kind::Left, format!("{} left", listed(&left)));
        }
        if !joined.is_empty() {
            self.counts.joined += joined.len() as u64;
            self.add(at, Kind::Joined, format!("{} joined", listed(&joined)));
        }
    }

    /// Samples were applied in this view: losses before it are mended.
    fn apply(&mut self, at: Duration, view: u64) {
        self.applied = self.applied.max(at);
        for open in self.open.extract_if(.., |open| open.view <= view) {
            let seconds = at.saturating_sub(open.since).as_secs_f64();
            self.counts.recovered += open.losses;
            self.counts.recovery_seconds += seconds;
            self.counts.recovery_seconds_max = self.counts.recovery_seconds_max.max(seconds);
            let back = (self.added - open.event) as usize;
            if let Some(event) = self.newest.iter_mut().rev().nth(back) {
                event.recovery_seconds = Some(seconds);
            }
        }
    }
}
