//! Faults on threads, in real time: workers join, leave, are killed and stopped, at given times or at random, and so is the
//! coordinator. A user rehearses with them what happens to a job on machines that fail.

use std::cmp::Reverse;
use std::sync::Arc;
use std::time::{Duration, Instant};

use paceline_learn::Dice;
use paceline_net::{Elastic, ThreadHub};
use paceline_runtime::WorkerId;
use paceline_sim::Scenario;
use paceline_sim::scenario::Churn;

use super::Crew;
use crate::error::JobError;

/// What is still to happen, and when.
pub(super) struct Faults {
    due: Vec<(Duration, Fault)>,
    churn: Option<Churn>,
    seed: u64,
    tick: Duration,
}

#[derive(Clone, Copy, Debug)]
enum Fault {
    Kill {
        who: WorkerId,
        back_after: Option<Duration>,
    },
    Leave {
        who: WorkerId,
    },
    Join,
    Stop {
        who: WorkerId,
    },
    GoOn {
        who: WorkerId,
    },
    Size {
        workers: usize,
    },
    /// A worker's random life ends.
    Churn {
        who: WorkerId,
    },
    KillCoordinator,
    StopCoordinator,
    CoordinatorBack,
}

/// A worker that finds no coordinator tries again after this time.
const JOIN_AGAIN: Duration = Duration::from_millis(10);

const CHURN: u64 = 21;

/// How the cluster notices these faults.
pub(super) fn elastic(faults: &Scenario) -> Elastic {
    Elastic {
        patience: seconds(faults.coordinator.patience),
        gathering: seconds(faults.coordinator.gathering),
        members_min: faults.coordinator.members_min.unwrap_or(1) as usize,
        members_max: faults.coordinator.members_max.map(|most| most as usize),
    }
}

/// Refuses what threads of one process cannot suffer.
pub(super) fn check(faults: &Scenario) -> Result<(), JobError> {
    let coordinator = &faults.coordinator;
    let impossible = [
        ("cut", !faults.cuts.is_empty()),
        ("dead_link", !faults.dead_links.is_empty()),
        ("coordinator.loss", coordinator.loss > 0.0),
        ("coordinator.jitter", coordinator.jitter > 0.0),
        ("coordinator.latency", coordinator.latency.is_some()),
        ("size.at_epoch", faults.sizes.iter().any(|size| size.at_epoch.is_some())),
        ("crash.at_event", faults.crashes.iter().any(|crash| crash.at_event.is_some())),
    ];
    match impossible.into_iter().find(|(_, is_given)| *is_given) {
        Some((field, _)) => Err(JobError::ImpossibleFault { field }),
        None => Ok(()),
    }
}

impl Faults {
    pub fn new(scenario: &Scenario, seed: u64) -> Faults {
        let mut due = vec![];
        let mut at = |time: f64, fault| due.push((seconds(time), fault));
        for crash in &scenario.crashes {
            let (who, back_after) = (WorkerId(crash.worker), crash.back_after.map(seconds));
            at(crash.at, Fault::Kill { who, back_after });
        }
        for leave in &scenario.leaves {
            at(leave.at, Fault::Leave { who: WorkerId(leave.worker) });
        }
        for join in &scenario.joins {
            (0..join.workers).for_each(|_| at(join.at, Fault::Join));
        }
        for pause in &scenario.pauses {
            let who = WorkerId(pause.worker);
            at(pause.from, Fault::Stop { who });
            at(pause.to, Fault::GoOn { who });
        }
        for size in &scenario.sizes {
            at(size.at, Fault::Size { workers: size.workers as usize });
        }
        for kill in &scenario.coordinator.kills {
            at(kill.at, Fault::KillCoordinator);
            at(kill.at + kill.back_after, Fault::CoordinatorBack);
        }
        for away in &scenario.coordinator.away {
            at(away.from, Fault::StopCoordinator);
            at(away.to, Fault::CoordinatorBack);
        }
        let patience = seconds(scenario.coordinator.patience);
        let tick = (patience / 4).clamp(Duration::from_millis(1), Duration::from_millis(20));
        let mut faults = Faults { due, churn: scenario.churn.clone(), seed, tick };
        (0..scenario.workers).for_each(|id| faults.begin_life(Duration::ZERO, WorkerId(id)));
        faults.sort();
        faults
    }

    /// The next one last. The sort is stable: what is due at the same time happens in the order of the file.
    fn sort(&mut self) {
        self.due.sort_by_key(|(time, _)| Reverse(*time));
    }

    fn at(&mut self, time: Duration, fault: Fault) {
        self.due.insert(0, (time, fault));
        self.sort();
    }

    fn begin_life(&mut self, now: Duration, who: WorkerId) {
        if let Some(churn) = &self.churn {
            let mut dice = Dice::keyed(&[self.seed, u64::from(who.0), CHURN]);
            let lives = exponential(churn.lifetime_mean, &mut dice);
            self.due.push((now + lives, Fault::Churn { who }));
        }
    }

    /// Lets faults happen until the run has ended.
    pub fn happen(mut self, crew: &Arc<Crew>) {
        let start = Instant::now();
        while !crew.has_ended() {
            let now = start.elapsed();
            while self.due.last().is_some_and(|(time, _)| *time <= now) {
                let (_, fault) = self.due.pop().expect("one is due");
                self.cause(crew, now, fault);
            }
            crew.hub.tick();
            (0..crew.hub.comebacks()).for_each(|_| self.at(now, Fault::Join));
            crew.expect(self.due.iter().any(|(_, fault)| fault.may_bring_a_worker()));
            let next = self.due.last().map_or(self.tick, |(time, _)| time.saturating_sub(now));
            std::thread::sleep(next.min(self.tick));
        }
    }

    fn cause(&mut self, crew: &Arc<Crew>, now: Duration, fault: Fault) {
        let hub = &crew.hub;
        match fault {
            Fault::Kill { who, back_after } => {
                if hub.kill(who)
                    && let Some(after) = back_after
                {
                    self.at(now + after, Fault::Join);
                }
            }
            Fault::Leave { who } => hub.leave(who),
            Fault::Join => match crew.start_worker() {
                Some(who) => {
                    self.begin_life(now, who);
                    self.sort();
                }
                None => self.at(now + JOIN_AGAIN, Fault::Join),
            },
            Fault::Stop { who } => hub.pause(who, true),
            Fault::GoOn { who } => hub.pause(who, false),
            Fault::Size { workers } => self.resize(hub, now, workers),
            Fault::Churn { who } => self.end_life(hub, now, who),
            Fault::KillCoordinator => hub.kill_coordinator(),
            Fault::StopCoordinator => hub.pause_coordinator(),
            Fault::CoordinatorBack => hub.resume_coordinator(),
        }
    }

    fn resize(&mut self, hub: &ThreadHub, now: Duration, wanted: usize) {
        let living = hub.staying();
        (living.len()..wanted).for_each(|_| self.at(now, Fault::Join));
        living.into_iter().skip(wanted).for_each(|who| hub.leave(who));
    }

    fn end_life(&mut self, hub: &ThreadHub, now: Duration, who: WorkerId) {
        let Some(churn) = self.churn.clone() else { return };
        let staying = hub.staying();
        if !staying.contains(&who) {
            return;
        }
        let mut dice = Dice::keyed(&[self.seed, u64::from(who.0), CHURN + 1]);
        if staying.len() <= churn.members_min as usize {
            let again = exponential(churn.lifetime_mean, &mut dice);
            return self.at(now + again, Fault::Churn { who });
        }
        let back = exponential(churn.back_after_mean, &mut dice);
        if dice.unit() < churn.leave_chance {
            hub.leave(who);
        } else {
            hub.kill(who);
        }
        self.at(now + back, Fault::Join);
    }
}

impl Fault {
    /// Whether a job that has no worker left may still go on after this.
    fn may_bring_a_worker(&self) -> bool {
        matches!(self, Fault::Join | Fault::Size { .. } | Fault::GoOn { .. })
    }
}

fn seconds(value: f64) -> Duration {
    Duration::from_secs_f64(value.clamp(0.0, 1e9))
}

fn exponential(mean: f64, dice: &mut Dice) -> Duration {
    seconds((-mean * (1.0 - dice.unit()).ln()).min(1e6))
}
