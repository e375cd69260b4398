//! Worker processes of `paceline join` that another command starts on this machine.

use std::ffi::OsString;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use crate::Caller;
use crate::error::{CliResult, CommandError};
use crate::processes::caller;

/// Processes that do not end when they are asked to are killed after this time.
const LAST_WAIT: Duration = Duration::from_secs(10);
const LOOK: Duration = Duration::from_millis(50);
/// More processes than this help no machine.
pub const WORKERS_HERE_MAX: i64 = 256;

/// They leave when their standard input ends, so that none outlives this process; dropping waits for them.
pub struct LocalWorkers(Vec<Child>);

impl LocalWorkers {
    pub fn none() -> LocalWorkers {
        LocalWorkers(vec![])
    }

    /// Starts so many processes of this program. `variable`: one more in their environment.
    pub fn start(
        arguments: &[OsString],
        variable: Option<(&str, String)>,
        count: u32,
    ) -> CliResult<LocalWorkers> {
        let mut workers = LocalWorkers::none();
        if count == 0 {
            return Ok(workers);
        }
        let Caller { program, arguments: before } = caller()?;
        for _ in 0..count {
            let mut command = Command::new(&program);
            command.args(&before).args(arguments).arg("--held").envs(variable.clone());
            command.stdin(Stdio::piped()).stdout(Stdio::null());
            // Ctrl-C in a terminal is for this process, which then tells its workers.
            #[cfg(unix)]
            std::os::unix::process::CommandExt::process_group(&mut command, 0);
            workers.0.push(command.spawn().map_err(CommandError::Worker)?);
        }
        Ok(workers)
    }

    /// Asks all of them to leave.
    pub fn release(&mut self) {
        self.0.iter_mut().for_each(|child| drop(child.stdin.take()));
    }

    /// The processes that have ended since the last call.
    pub fn reap(&mut self) -> Vec<ExitStatus> {
        let mut ended = vec![];
        self.0.retain_mut(|child| match child.try_wait() {
            Ok(Some(status)) => {
                ended.push(status);
                false
            }
            _ => true,
        });
        ended
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Drop for LocalWorkers {
    fn drop(&mut self) {
        self.release();
        let since = Instant::now();
        while !self.0.is_empty() && since.elapsed() < LAST_WAIT {
            self.reap();
            std::thread::sleep(LOOK);
        }
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
