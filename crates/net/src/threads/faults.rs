//! Faults of workers and of the coordinator: killed, stopped, asked to leave, and back again.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex};

use paceline_runtime::coordination::{Coordinator, Input, Order};
use paceline_runtime::edge::{Event, News};
use paceline_runtime::{Record, WorkerId};

use super::{Presence, ThreadHub};

/// What a fault does to one worker.
#[derive(Default)]
pub struct Life {
    is_killed: AtomicBool,
    /// Set while the worker's process is stopped; notified when it goes on.
    is_stopped: Mutex<bool>,
    goes_on: Condvar,
}

impl Life {
    pub fn is_killed(&self) -> bool {
        self.is_killed.load(Ordering::SeqCst)
    }

    /// Waits while the worker is stopped; `false` if it was killed.
    pub(super) fn is_running(&self) -> bool {
        let mut stopped = self.is_stopped.lock().expect("no holder panics");
        while *stopped && !self.is_killed() {
            stopped = self.goes_on.wait(stopped).expect("no holder panics");
        }
        !self.is_killed()
    }
}

impl ThreadHub {
    /// A worker's thread has died.
    pub(super) fn lost(&self, me: WorkerId) {
        self.forget(me);
        let mut state = self.state();
        // A coordinator that was dead notices a loss by the silence.
        if state.presence != Presence::Killed {
            self.hear(&mut state, Input::Lost(me));
        }
    }

    /// Kills a worker, as `kill -9` does; `false` if there is no such worker.
    pub fn kill(&self, who: WorkerId) -> bool {
        let state = self.state();
        let (Some(life), Some(inbox)) = (state.lives.get(&who), state.inboxes.get(&who)) else {
            return false;
        };
        life.is_killed.store(true, Ordering::SeqCst);
        drop(life.is_stopped.lock());
        life.goes_on.notify_all();
        // It may be waiting for news.
        drop(inbox.send(Event::Crashed { who }));
        self.record(Record::Crashed { who });
        true
    }

    /// Puts a worker out; it does not come back unless somebody starts it again.
    pub fn put_out(&self, who: WorkerId) {
        self.coordinate(Input::PutOut(who));
    }

    /// Puts a worker out for good.
    pub fn ban(&self, who: WorkerId) {
        self.coordinate(Input::Ban(who));
    }

    /// Stops a worker's process, as SIGSTOP does, or lets it go on.
    pub fn pause(&self, who: WorkerId, is_stopped: bool) {
        if let Some(life) = self.state().lives.get(&who) {
            *life.is_stopped.lock().expect("no holder panics") = is_stopped;
            life.goes_on.notify_all();
        }
    }

    /// Asks a worker to leave in good order.
    pub fn leave(&self, who: WorkerId) {
        let mut state = self.state();
        if state.lives.contains_key(&who) && state.leaving.insert(who) {
            state.tell(who, News::Told(Order::Leave));
        }
    }

    /// The workers that live and were not asked to leave.
    pub fn staying(&self) -> Vec<WorkerId> {
        let state = self.state();
        state.lives.keys().filter(|who| !state.leaving.contains(who)).copied().collect()
    }

    /// How many workers that were put out have ended since this was last asked, and want to come back.
    pub fn comebacks(&self) -> u32 {
        std::mem::take(&mut self.state().comebacks)
    }

    /// Hears the heartbeats of all workers that are not stopped, and lets the coordinator decide what is due.
    pub fn tick(&self) {
        let mut state = self.state();
        if state.presence != Presence::Here {
            return;
        }
        let is_stopped = |life: &Life| *life.is_stopped.lock().expect("no holder panics");
        let heard: Vec<WorkerId> =
            state.lives.iter().filter(|(_, it)| !is_stopped(it)).map(|(who, _)| *who).collect();
        for who in heard {
            let _ = self.step(&mut state, Input::Beat(who));
        }
        let _ = self.step(&mut state, Input::Tick);
    }

    /// Kills the coordinator.
    pub fn kill_coordinator(&self) {
        self.state().presence = Presence::Killed;
    }

    /// Stops the coordinator's process.
    pub fn pause_coordinator(&self) {
        let mut state = self.state();
        if state.presence == Presence::Here {
            state.presence = Presence::Stopped;
        }
    }

    /// Starts the coordinator again, or lets it go on: it hears all that it was told meanwhile.
    pub fn resume_coordinator(&self) {
        let mut state = self.state();
        if std::mem::replace(&mut state.presence, Presence::Here) == Presence::Killed {
            let (stored, log) = (state.stored.clone(), state.log.clone());
            let now = self.start.elapsed();
            let (coordinator, output) = Coordinator::restart(state.rules, stored, log, now);
            state.coordinator = coordinator;
            self.record(Record::Restarted);
            let _ = self.carry_out(&mut state, output);
        }
        while let Some(input) = state.unheard.pop_front() {
            let _ = self.step(&mut state, input);
        }
    }
}
