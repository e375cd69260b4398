//! Passes signals on to a program that was started.

use std::process::{Child, Command, ExitStatus};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use crate::error::CliResult;

const LOOK: Duration = Duration::from_millis(50);

/// Passes signals on to the program that `paceline` has started. Without it, ending `paceline` would orphan the program; and as
/// the first process of a container `paceline` would not hear of SIGTERM at all.
#[derive(Clone, Default)]
pub struct Passing {
    child: Arc<Mutex<Option<Child>>>,
    is_asked_to_stop: Arc<AtomicBool>,
}

impl Passing {
    /// From now on, signals are for the program. Ctrl-C in a terminal reaches it anyhow, and is not passed on.
    pub fn on_signals() -> CliResult<Passing> {
        let passing = Passing::default();
        #[cfg(unix)]
        {
            use signal_hook::consts::{SIGINT, SIGUSR1};
            let heard = passing.clone();
            crate::stop::listen_to(&[SIGUSR1], move |signal| {
                if signal != SIGUSR1 {
                    heard.is_asked_to_stop.store(true, Ordering::SeqCst);
                }
                if signal != SIGINT {
                    heard.pass(signal);
                }
            })?;
        }
        Ok(passing)
    }

    pub fn is_asked_to_stop(&self) -> bool {
        self.is_asked_to_stop.load(Ordering::SeqCst)
    }

    /// Runs a program until it ends; `None` if a signal came before it was started.
    pub fn run(&self, mut command: Command) -> std::io::Result<Option<ExitStatus>> {
        // Held while the program is started, so that a signal that comes meanwhile waits for it.
        let mut child = self.child();
        if self.is_asked_to_stop() {
            return Ok(None);
        }
        *child = Some(command.spawn()?);
        drop(child);
        loop {
            let mut child = self.child();
            if let Some(status) = child.as_mut().and_then(|child| child.try_wait().transpose()) {
                *child = None;
                return status.map(Some);
            }
            drop(child);
            std::thread::sleep(LOOK);
        }
    }

    fn child(&self) -> MutexGuard<'_, Option<Child>> {
        self.child.lock().expect("no holder panics")
    }

    /// The program has not been waited for as long as it is here: no other process can have its number.
    #[cfg(unix)]
    fn pass(&self, signal: i32) {
        use rustix::process::{Pid, Signal, kill_process};
        if let Some(child) = self.child().as_ref()
            && let Some(signal) = Signal::from_named_raw(signal)
        {
            let _ = kill_process(Pid::from_child(child), signal);
        }
    }
}
