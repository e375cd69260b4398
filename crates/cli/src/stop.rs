//! Signals that stop a run: Ctrl-C (SIGINT), SIGTERM and SIGHUP.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::time::{Duration, Instant};

use crate::error::{CliResult, CommandError};
use crate::output::say;

/// Signals that arrive this soon after the first are taken for the same request.
const ONE_REQUEST: Duration = Duration::from_millis(300);

/// Exit codes of programs that a signal ended are 128 + the number of the signal.
const SIGNAL_CODES: i32 = 128;
const SIGINT: i32 = 2;

/// The wish to stop, and the signal that expressed it.
#[derive(Clone)]
pub struct Stop {
    /// Set by the first signal.
    pub requested: Arc<AtomicBool>,
    signal: Arc<AtomicI32>,
}

impl Stop {
    /// Listens for signals. The first one sets `requested` and prints `reply`; the second one ends the program.
    pub fn on_signals(reply: &'static str) -> CliResult<Stop> {
        Stop::listen(move |_| say(reply))
    }

    /// As [`on_signals`](Self::on_signals), without a reply.
    pub fn quietly() -> CliResult<Stop> {
        Stop::listen(|_| {})
    }

    /// Listens for signals; the first one ends the program with this message. For commands that keep what they have
    /// finished, so that nothing is lost.
    pub fn at_once(message: String) -> CliResult<Stop> {
        Stop::listen(move |signal| {
            say(&message);
            std::process::exit(SIGNAL_CODES + signal)
        })
    }

    #[cfg(test)]
    pub fn never() -> Stop {
        Stop { requested: Arc::default(), signal: Arc::new(AtomicI32::new(SIGINT)) }
    }

    fn listen(first_signal: impl Fn(i32) + Send + 'static) -> CliResult<Stop> {
        let stop = Stop { requested: Arc::default(), signal: Arc::new(AtomicI32::new(SIGINT)) };
        let (heard, mut first) = (stop.clone(), None::<Instant>);
        let on_signal = move |signal: i32| match first {
            // `timeout` and other supervisors signal both the process and its group: that is one request.
            Some(at) if at.elapsed() < ONE_REQUEST => {}
            Some(_) => std::process::exit(SIGNAL_CODES + signal),
            None => {
                first = Some(Instant::now());
                heard.signal.store(signal, Ordering::SeqCst);
                heard.requested.store(true, Ordering::SeqCst);
                first_signal(signal);
            }
        };
        listen(on_signal)?;
        Ok(stop)
    }

    pub fn is_requested(&self) -> bool {
        self.requested.load(Ordering::SeqCst)
    }

    /// The exit code of a run that was stopped: 130 after SIGINT, 143 after SIGTERM, 129 after SIGHUP.
    pub fn code(&self) -> u8 {
        u8::try_from(SIGNAL_CODES + self.signal.load(Ordering::SeqCst)).unwrap_or(1)
    }
}

#[cfg(unix)]
fn listen(on_signal: impl FnMut(i32) + Send + 'static) -> CliResult {
    listen_to(&[], on_signal)
}

/// Listens for signals that stop a program, and for these.
#[cfg(unix)]
pub fn listen_to(more: &[i32], mut on_signal: impl FnMut(i32) + Send + 'static) -> CliResult {
    use signal_hook::consts::{SIGHUP, SIGTERM};
    use signal_hook::iterator::Signals;
    let ignored = ignored_signals();
    let heard = [SIGINT, SIGTERM, SIGHUP].iter().chain(more);
    // A signal that whoever started the program wants ignored stays ignored: SIGHUP under `nohup`, for example.
    let heard = heard.filter(|signal| !ignored.contains(signal));
    let mut signals = Signals::new(heard)
        .map_err(|error| CommandError::Signal { signal: "Ctrl-C", source: error.into() })?;
    std::thread::spawn(move || signals.forever().for_each(&mut on_signal));
    Ok(())
}

#[cfg(not(unix))]
fn listen(mut on_signal: impl FnMut(i32) + Send + 'static) -> CliResult {
    ctrlc::set_handler(move || on_signal(SIGINT))
        .map_err(|error| CommandError::Signal { signal: "Ctrl-C", source: error.into() }.into())
}

/// The signals that this process ignores, as far as the system tells: Linux shows them as a mask of bits.
#[cfg(unix)]
fn ignored_signals() -> Vec<i32> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    ignored_in(&status)
}

#[cfg(unix)]
fn ignored_in(status: &str) -> Vec<i32> {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    (1..64).filter(|signal| mask >> (signal - 1) & 1 == 1).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(unix)]
    #[test]
    fn ignored_signals_are_read_from_the_mask() {
        assert_eq!(ignored_in("Name:\tx\nSigIgn:\t0000000000001003\n"), [1, 2, 13]);
        assert_eq!(ignored_in("no mask"), [0; 0]);
    }

    #[test]
    fn a_stopped_run_exits_as_if_the_signal_had_ended_it() {
        for (signal, code) in [(2, 130), (15, 143), (1, 129)] {
            let stop = Stop { requested: Arc::default(), signal: Arc::new(signal.into()) };
            assert_eq!(stop.code(), code);
        }
    }
}
