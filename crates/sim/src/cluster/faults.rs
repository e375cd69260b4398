//! How simulated workers come, go, crash and fall silent.

use std::time::Duration;

use paceline_learn::Dice;
use paceline_runtime::coordination::{Input, Order};
use paceline_runtime::edge::{Event, News};
use paceline_runtime::{Record, WorkerId};

use super::{Outgoing, Scheduled, SimCluster};
use crate::scenario::{Churn, seconds};

const CHURN: u64 = 21;

impl SimCluster {
    pub(super) fn plan_faults(&mut self, samples_per_epoch: u64) {
        let scenario = self.scenario.clone();
        for crash in scenario.crashes.into_iter().filter(|crash| crash.at_event.is_none()) {
            let (who, back_after) = (WorkerId(crash.worker), crash.back_after);
            self.at(seconds(crash.at), Scheduled::Crash { who, back_after });
        }
        for leave in scenario.leaves {
            self.at(seconds(leave.at), Scheduled::Leave { who: WorkerId(leave.worker) });
        }
        for join in scenario.joins {
            (0..join.workers).for_each(|_| self.at(seconds(join.at), Scheduled::Join));
        }
        for size in scenario.sizes {
            match size.at_epoch {
                None => self.at(seconds(size.at), Scheduled::Size { workers: size.workers }),
                Some(epoch) => {
                    let sample = (epoch * samples_per_epoch as f64).round() as u64;
                    self.sizes.push_back((sample, size.workers));
                }
            }
        }
        self.sizes.make_contiguous().sort_by_key(|(sample, _)| *sample);
        let patience = seconds(scenario.coordinator.patience) + Duration::from_nanos(1);
        for kill in scenario.coordinator.kills {
            self.at(seconds(kill.at), Scheduled::Kill { back_after: kill.back_after });
        }
        for pause in scenario.pauses {
            self.at(seconds(pause.from) + patience, Scheduled::Beats);
        }
        for link in scenario.dead_links {
            let between = (WorkerId(link.between.0), WorkerId(link.between.1));
            let (at, until) = (seconds(link.from) + patience / 2, seconds(link.to));
            if at < until {
                self.at(at, Scheduled::Suspect { between, until });
            }
        }
        for cut in scenario.cuts.into_iter().filter(|cut| cut.coordinator) {
            self.at(seconds(cut.from) + patience, Scheduled::Beats);
        }
    }

    /// A worker's life begins.
    pub(super) fn spawn(&mut self, who: WorkerId) {
        self.alive.insert(who);
        if let Some(hosts) = &mut self.hosts {
            hosts.open(who);
        }
        self.out.push_back(Outgoing::Event(Event::Started { who }));
        if let Some(churn) = &self.scenario.churn {
            let lives = exponential(churn.lifetime_mean, &mut self.dice(who, CHURN));
            self.at(self.now + lives, Scheduled::Churn { who });
        }
    }

    /// Crashes the workers that are to crash just before this event.
    pub(super) fn crash_at_event(&mut self) {
        let event = self.events.get();
        let crashes = self.scenario.crashes.iter().filter(|crash| crash.at_event == Some(event));
        let crashes: Vec<_> = crashes.map(|it| (WorkerId(it.worker), it.back_after)).collect();
        for (who, back_after) in crashes {
            self.happen(Scheduled::Crash { who, back_after });
        }
    }

    /// A dead or evicted worker is noticed by its broken connection.
    pub(super) fn crash(&mut self, who: WorkerId) {
        if !self.alive.remove(&who) {
            return;
        }
        self.died.insert(who, self.now);
        self.clear_shelves(who);
        self.close_line(who);
        self.leaving.remove(&who);
        for ((view, exchange), bytes) in self.exchanges.withdraw_all(&mut self.wires, who) {
            let record = Record::Interrupted { who, view, exchange, bytes };
            self.out.push_back(Outgoing::record(record));
        }
        self.out.push_back(Outgoing::Event(Event::Crashed { who }));
        // A kind connection is seen to break after the last word that came over it.
        let detected = self.now + seconds(self.scenario.coordinator.detection);
        let noticed = if self.is_numbered() {
            self.lose_words(who);
            self.wires.when_present(detected)
        } else {
            self.wires.when_present(detected).max(self.wires.to_coordinator(self.now, who))
        };
        self.at(noticed, Scheduled::Noticed(Input::Lost(who)));
    }

    pub(super) fn close_line(&mut self, who: WorkerId) {
        if let Some(hosts) = &mut self.hosts {
            hosts.close(who);
        }
    }

    /// Nobody can read the values of a worker that is gone.
    pub(super) fn clear_shelves(&mut self, who: WorkerId) {
        let mut shelves = self.shelves.lock().expect("no holder panics");
        shelves.retain(|(owner, _), _| *owner != who);
    }

    fn staying(&self) -> usize {
        self.alive.len() - self.leaving.len()
    }

    pub(super) fn leave(&mut self, who: WorkerId) {
        // The last worker cannot leave: no member would be left to hand its state to.
        if self.alive.contains(&who) && self.staying() > 1 && self.leaving.insert(who) {
            self.tell(who, News::Told(Order::Leave));
        }
    }

    /// A worker says hello; its life begins when it knows its id.
    pub(super) fn join(&mut self) {
        self.joining += 1;
        let arrives = self.wires.when_present(self.now + seconds(self.scenario.network.latency));
        self.at(arrives, Scheduled::Noticed(Input::Hello));
    }

    pub(super) fn churn(&mut self, who: WorkerId, churn: &Churn) {
        if !self.alive.contains(&who) || self.leaving.contains(&who) {
            return;
        }
        let mut dice = self.dice(who, CHURN + 1);
        if self.staying() <= churn.members_min as usize {
            let again = exponential(churn.lifetime_mean, &mut dice);
            return self.at(self.now + again, Scheduled::Churn { who });
        }
        let back = exponential(churn.back_after_mean, &mut dice);
        if dice.unit() < churn.leave_chance {
            self.leave(who);
        } else {
            self.crash(who);
        }
        self.at(self.now + back, Scheduled::Join);
    }

    pub(super) fn resize(&mut self, wanted: usize) {
        (self.staying() + self.joining..wanted).for_each(|_| self.join());
        let staying: Vec<_> = self.alive.difference(&self.leaving).copied().collect();
        staying.into_iter().skip(wanted).for_each(|who| self.leave(who));
    }

    /// Heartbeats matter only where somebody is cut off, so only there they are looked at.
    pub(super) fn beats(&mut self) {
        if self.is_killed {
            return;
        }
        let present = self.wires.when_present(self.now);
        if present > self.now {
            // Back from being away, the coordinator lets everyone show that they live first.
            let patience = seconds(self.scenario.coordinator.patience);
            return self.at(present + patience, Scheduled::Beats);
        }
        let heard: Vec<WorkerId> = self
            .alive
            .iter()
            .filter(|who| self.wires.reaches_coordinator(**who, self.now))
            .filter(|who| self.is_connected(**who) && self.paused_until(**who).is_none())
            .copied()
            .collect();
        heard.into_iter().for_each(|who| self.coordinate(Input::Beat(who)));
        self.coordinate(Input::Tick);
    }
}

fn exponential(mean: f64, dice: &mut Dice) -> Duration {
    seconds((-mean * (1.0 - dice.unit()).ln()).min(1e6))
}
