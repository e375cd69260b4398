//! Worker processes that this one has started.

use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Sender};
use std::time::{Duration, Instant};

use paceline_net::processes::frame::Limits;
use paceline_net::processes::pipe;

use super::ProcessOptions;
use super::office::{DeskId, Incoming};
use crate::error::RunError;

pub struct Children {
    options: ProcessOptions,
    arrive: Sender<(DeskId, Incoming)>,
    /// How many numbers a replica has.
    size: usize,
    next: DeskId,
    running: Vec<Child>,
}

/// Processes that do not end when they are told to are killed after this time.
const LAST_WAIT: Duration = Duration::from_secs(2);

impl Children {
    pub fn new(
        options: ProcessOptions,
        arrive: Sender<(DeskId, Incoming)>,
        size: usize,
    ) -> Children {
        Children { options, arrive, size, next: 0, running: vec![] }
    }

    pub fn respawns(&self) -> bool {
        self.options.respawn
    }

    pub fn count(&self) -> usize {
        self.running.len()
    }

    /// Starts a worker process. It ends when its standard input does, so it never outlives this one.
    pub fn start(&mut self) -> Result<(), RunError> {
        let mut command = Command::new(&self.options.program);
        command.args(&self.options.arguments).stdin(Stdio::piped()).stdout(Stdio::piped());
        // Ctrl-C in a terminal is for this process, which then tells its workers.
        #[cfg(unix)]
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        let failed = |error: std::io::Error| RunError::Spawn { why: error.to_string() };
        let mut child = command.spawn().map_err(failed)?;
        let (Some(stdin), Some(stdout)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(RunError::Spawn { why: "it has no pipes".to_owned() });
        };
        if let Some(started) = &self.options.started {
            let _ = started.send(child.id());
        }
        let desk = self.next;
        self.next += 1;
        let (to, messages) = mpsc::channel();
        let arrive = self.arrive.clone();
        drop(arrive.send((desk, Incoming::Opened { to })));
        let threads = [
            std::thread::Builder::new()
                .name(format!("to-{desk}"))
                .spawn(move || pipe::send_all(messages, stdin)),
            // One worker hands in one part of a snapshot at a time.
            std::thread::Builder::new().name(format!("from-{desk}")).spawn({
                let limits = Limits::for_snapshots(self.size, 1);
                move || {
                    let say = |up| arrive.send((desk, Incoming::Said(Box::new(up)))).is_ok();
                    let _ = pipe::receive(stdout, limits, say);
                    drop(arrive.send((desk, Incoming::Closed)));
                }
            }),
        ];
        self.running.push(child);
        threads.into_iter().try_for_each(|thread| thread.map(drop).map_err(failed))
    }

    /// Forgets processes that have ended.
    pub fn reap(&mut self) {
        self.running.retain_mut(|child| matches!(child.try_wait(), Ok(None)));
    }

    /// Waits until all have ended; kills those that do not, such as one that is stopped.
    pub fn end(&mut self) {
        let since = Instant::now();
        while !self.running.is_empty() && since.elapsed() < LAST_WAIT {
            self.reap();
            std::thread::sleep(Duration::from_millis(2));
        }
        for mut child in self.running.drain(..) {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Drop for Children {
    fn drop(&mut self) {
        self.end();
    }
}
