//! When messages arrive: uplinks that send one message after another, latencies, racks and cuts.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use paceline_runtime::WorkerId;
use rustc_hash::FxHashMap;

use crate::scenario::{Cut, DeadLink, Direction, During, Network, Rack, Scenario, seconds};

pub struct Wires {
    network: Network,
    cuts: Vec<Cut>,
    away: Vec<During>,
    dead_links: Vec<DeadLink>,
    coordinator_latency: f64,
    uplink_free: FxHashMap<WorkerId, Duration>,
    rack_free: Vec<Duration>,
    downlink_free: FxHashMap<WorkerId, Duration>,
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
    pub fn new(scenario: &Scenario) -> Wires {
        let (network, coordinator) = (scenario.network.clone(), &scenario.coordinator);
        Wires {
            rack_free: vec![Duration::ZERO; network.racks.len()],
            cuts: scenario.cuts.clone(),
            away: coordinator.away.clone(),
            dead_links: scenario.dead_links.clone(),
            coordinator_latency: coordinator.latency.unwrap_or(network.latency),
            network,
            uplink_free: FxHashMap::default(),
            downlink_free: FxHashMap::default(),
            bytes: Rc::default(),
        }
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
        Transit { left, arrives: self.after_cuts(from, to, arrives) }
    }

    /// When a letter whose last byte would arrive now is here: letters of several senders share the downlink. (In a ring, each
    /// member receives one message at a time.)
    pub fn receive(&mut self, now: Duration, from: WorkerId, to: WorkerId, bytes: u64) -> Duration {
        if from == to {
            return now;
        }
        let passing = seconds(bytes as f64 / self.bandwidth(to));
        let free = self.downlink_free.entry(to).or_default();
        *free = now.max(*free + passing);
        *free
    }

    /// Each member of a ring sends a message to the next one; all links are equal and free. What they occupy is noted by
    /// [`occupy`](Self::occupy) when it matters.
    pub fn send_each(&mut self, now: Duration, members: &[WorkerId], bytes: u64) -> Transit {
        self.bytes.set(self.bytes.get() + members.len() as u64 * bytes);
        let left = now + seconds(bytes as f64 / self.bandwidth(members[0]));
        Transit { left, arrives: left + self.latency(members[0], members[1]) }
    }

    pub fn is_free(&self, who: WorkerId, now: Duration) -> bool {
        self.uplink_free.get(&who).is_none_or(|free| *free <= now)
    }

    /// The uplinks of these workers are free only then.
    pub fn occupy(&mut self, workers: &[WorkerId], until: Duration) {
        self.uplink_free.extend(workers.iter().map(|who| (*who, until)));
    }

    /// The arrival of a message so small that bandwidth does not matter.
    pub fn signal(&self, now: Duration, from: WorkerId, to: WorkerId) -> Duration {
        let latency = if from == to { Duration::ZERO } else { self.latency(from, to) };
        self.after_cuts(from, to, now + latency)
    }

    /// When a worker's word reaches the coordinator.
    pub fn to_coordinator(&self, now: Duration, from: WorkerId) -> Duration {
        let arrives = now + seconds(self.coordinator_latency);
        self.when_present(self.after_coordinator_cuts(from, Direction::Out, arrives))
    }

    /// When the coordinator's word reaches a worker.
    pub fn reply_of_coordinator(&self, now: Duration, to: WorkerId) -> Duration {
        let arrives = now + seconds(self.coordinator_latency);
        self.after_coordinator_cuts(to, Direction::In, arrives)
    }

    /// When the coordinator next attends to something that happens at `at`.
    pub fn when_present(&self, at: Duration) -> Duration {
        let away =
            self.away.iter().find(|away| (seconds(away.from)..seconds(away.to)).contains(&at));
        away.map_or(at, |away| self.when_present(seconds(away.to)))
    }

    pub fn reaches_coordinator(&self, who: WorkerId, at: Duration) -> bool {
        self.after_coordinator_cuts(who, Direction::Out, at) == at
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
        pairs.map(|(from, to)| self.after_cuts(*from, *to, at)).max().unwrap_or(at)
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

    /// A message that would arrive during a cut arrives when it ends.
    fn after_cuts(&self, from: WorkerId, to: WorkerId, at: Duration) -> Duration {
        let cut = self.cuts.iter().find(|cut| {
            let (sends, receives) = (cut.workers.contains(&from.0), cut.workers.contains(&to.0));
            let crosses = match cut.direction {
                Direction::Both => sends != receives,
                Direction::Out => sends && !receives,
                Direction::In => receives && !sends,
            };
            crosses && (seconds(cut.from)..seconds(cut.to)).contains(&at)
        });
        let dead = self.dead_links.iter().find(|link| {
            let is_it = link.between == (from.0, to.0) || link.between == (to.0, from.0);
            is_it && (seconds(link.from)..seconds(link.to)).contains(&at)
        });
        match cut.map(|cut| cut.to).or(dead.map(|link| link.to)) {
            Some(end) => self.after_cuts(from, to, seconds(end)),
            None => at,
        }
    }

    /// The same between a worker and the coordinator; `direction`: from the worker, or to it.
    fn after_coordinator_cuts(
        &self,
        who: WorkerId,
        direction: Direction,
        at: Duration,
    ) -> Duration {
        let cut = self.cuts.iter().find(|cut| {
            let crosses = cut.direction == Direction::Both || cut.direction == direction;
            cut.coordinator
                && crosses
                && cut.workers.contains(&who.0)
                && (seconds(cut.from)..seconds(cut.to)).contains(&at)
        });
        cut.map_or(at, |cut| self.after_coordinator_cuts(who, direction, seconds(cut.to)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn letters_that_arrive_together_share_the_downlink() {
        let mut scenario = Scenario { workers: 4, ..Scenario::default() };
        (scenario.network.bytes_per_second, scenario.network.latency) = (1000.0, 0.0);
        let mut wires = Wires::new(&scenario);
        let server = WorkerId(0);

        let here: Vec<f64> = (1..4)
            .map(|from| {
                let sent = wires.send(Duration::ZERO, WorkerId(from), server, 1000);
                wires.receive(sent.arrives, WorkerId(from), server, 1000).as_secs_f64()
            })
            .collect();

        assert_eq!(here, [1.0, 2.0, 3.0]);
        let later = Duration::from_secs(10);
        assert_eq!(wires.receive(later, WorkerId(1), server, 1000), later, "nobody else sends");
    }
}
