//! When messages arrive: uplinks that send one message after another, latencies, racks and cuts.

use std::cell::Cell;
use std::collections::HashMap;
use std::rc::Rc;
use std::time::Duration;

use paceline_runtime::WorkerId;

use crate::scenario::{Cut, During, Network, Rack, seconds};

pub struct Wires {
    network: Network,
    cuts: Vec<Cut>,
    away: Vec<During>,
    uplink_free: HashMap<WorkerId, Duration>,
    rack_free: Vec<Duration>,
    /// Everything that was sent, headers included.
    pub bytes: Rc<Cell<u64>>,
}

/// A message on its way.
#[derive(Clone, Copy, Debug)]
pub struct Transit {
    /// When its last byte leaves the sender; if the sender dies before, the message never arrives.
    pub left: Duration,
    pub arrives: Duration,
}

impl Wires {
    pub fn new(network: Network, cuts: Vec<Cut>, away: Vec<During>) -> Wires {
        let rack_free = vec![Duration::ZERO; network.racks.len()];
        Wires { network, cuts, away, uplink_free: HashMap::new(), rack_free, bytes: Rc::default() }
    }

    pub fn send(&mut self, now: Duration, from: WorkerId, to: WorkerId, bytes: u64) -> Transit {
        if from == to {
            return Transit { left: now, arrives: now };
        }
        self.bytes.set(self.bytes.get() + bytes);
        let free = self.uplink_free.get(&from).copied().unwrap_or_default().max(now);
        let left = free + seconds(bytes as f64 / self.bandwidth(from));
        self.uplink_free.insert(from, left);
        let mut arrives = left;
        if let Some(rack) = self.rack_between(from, to) {
            let shared = self.rack_free[rack].max(left);
            let passed = shared + seconds(bytes as f64 / self.network.racks[rack].bytes_per_second);
            self.rack_free[rack] = passed;
            arrives = passed;
        }
        arrives += self.latency(from, to);
        Transit { left, arrives: self.after_cuts(from, Some(to), arrives) }
    }

    /// The arrival of a message so small that bandwidth does not matter.
    pub fn signal(&self, now: Duration, from: WorkerId, to: WorkerId) -> Duration {
        let latency = if from == to { Duration::ZERO } else { self.latency(from, to) };
        self.after_cuts(from, Some(to), now + latency)
    }

    /// When a worker's word reaches the coordinator.
    pub fn to_coordinator(&self, now: Duration, from: WorkerId) -> Duration {
        self.when_present(self.reply_of_coordinator(now, from))
    }

    /// When the coordinator's word reaches a worker.
    pub fn reply_of_coordinator(&self, now: Duration, to: WorkerId) -> Duration {
        self.after_cuts(to, None, now + seconds(self.network.latency))
    }

    /// When the coordinator next attends to something that happens at `at`.
    pub fn when_present(&self, at: Duration) -> Duration {
        let away =
            self.away.iter().find(|away| (seconds(away.from)..seconds(away.to)).contains(&at));
        away.map_or(at, |away| self.when_present(seconds(away.to)))
    }

    pub fn reaches_coordinator(&self, who: WorkerId, at: Duration) -> bool {
        self.after_cuts(who, None, at) == at
    }

    /// The ring's cost in closed form: every step waits for the slowest link. `sent` is what all
    /// members send in all steps together.
    pub fn ring(&mut self, members: &[WorkerId], steps: u32, bytes: u64, sent: u64) -> Duration {
        self.bytes.set(self.bytes.get() + sent);
        let pairs = members.iter().zip(members.iter().cycle().skip(1));
        let step = pairs
            .map(|(from, to)| {
                seconds(bytes as f64 / self.bandwidth(*from)) + self.latency(*from, *to)
            })
            .max();
        step.unwrap_or_default() * steps
    }

    /// When a cut holds up anything among `members` at `at`, the time it ends.
    pub fn after_all_cuts(&self, members: &[WorkerId], at: Duration) -> Duration {
        let pairs = members.iter().zip(members.iter().cycle().skip(1));
        pairs.map(|(from, to)| self.after_cuts(*from, Some(*to), at)).max().unwrap_or(at)
    }

    fn bandwidth(&self, who: WorkerId) -> f64 {
        let link = self.network.links.iter().find(|link| link.worker == who.0);
        link.map_or(self.network.bytes_per_second, |link| link.bytes_per_second)
    }

    fn latency(&self, from: WorkerId, to: WorkerId) -> Duration {
        let own = |who: WorkerId| {
            let link = self.network.links.iter().find(|link| link.worker == who.0);
            link.map_or(0.0, |link| link.latency)
        };
        let rack = |rack: usize| self.network.racks[rack].latency;
        let racks = self.rack_between(from, to).map_or(0.0, rack)
            + self.rack_between(to, from).map_or(0.0, rack);
        seconds(self.network.latency + own(from) + own(to) + racks)
    }

    /// The rack that a message from `from` to `to` leaves, if it leaves one.
    fn rack_between(&self, from: WorkerId, to: WorkerId) -> Option<usize> {
        let holds = |rack: &Rack, who: WorkerId| rack.workers.contains(&who.0);
        let rack = self.network.racks.iter().position(|rack| holds(rack, from))?;
        (!holds(&self.network.racks[rack], to)).then_some(rack)
    }

    /// A message that would arrive during a cut arrives when it ends. `to: None` is the coordinator.
    fn after_cuts(&self, from: WorkerId, to: Option<WorkerId>, at: Duration) -> Duration {
        let crossing = self.cuts.iter().find(|cut| {
            let inside = |who: WorkerId| cut.workers.contains(&who.0);
            let crosses = match to {
                Some(to) => inside(from) != inside(to),
                None => cut.coordinator && inside(from),
            };
            crosses && (seconds(cut.from)..seconds(cut.to)).contains(&at)
        });
        crossing.map_or(at, |cut| self.after_cuts(from, to, seconds(cut.to)))
    }
}
