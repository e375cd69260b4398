//! `paceline join`: workers for a coordinator, on this or another machine.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use clap::Args;
use paceline_job::Recipe;
use paceline_job::processes::{JoinOptions, WorkerSignals, join};

use crate::checkpoint::new_folder;
use crate::error::{CliError, CliResult, CommandError, UsageError};
use crate::local_workers::{LocalWorkers, WORKERS_HERE_MAX};
use crate::log::LogFlag;
use crate::output::say;
use crate::passing::Passing;
use crate::stop::Stop;
use crate::worker::signals;

/// Work for a coordinator (`paceline coordinate`), on this or another machine
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct Join {
    /// The coordinator; one with a standby, too: HOST:PORT,HOST:PORT
    #[arg(value_name = "HOST:PORT")]
    coordinator: String,
    /// The token that the coordinator printed; others can see it in the list of processes
    #[arg(long, value_name = "T", conflicts_with = "token_file")]
    token: Option<String>,
    /// Read the token from a file [default: the variable PACELINE_TOKEN]
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Where other workers reach this one, if not at the address from which it connects
    #[arg(long, value_name = "ADDR:PORT")]
    advertise: Option<SocketAddr>,
    /// Start N workers, each a process of its own
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=WORKERS_HERE_MAX), conflicts_with_all = ["advertise", "command"])]
    workers_here: Option<u32>,
    /// The folder of the data [default: as for `paceline train`]
    #[arg(long, value_name = "DIR", conflicts_with = "command")]
    data_dir: Option<PathBuf>,
    /// Neither encrypt nor authenticate; the coordinator must be started likewise
    #[arg(long)]
    insecure: bool,
    /// Start the command again when it fails
    #[arg(long, requires = "command")]
    restart: bool,
    #[command(flatten)]
    log: LogFlag,
    /// Leave when standard input ends.
    #[arg(long, hide = true)]
    held: bool,
    /// Run this program as the worker: it finds the coordinator in PACELINE_JOIN and the token in PACELINE_TOKEN
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

const EXAMPLES: &str = "\
Examples:
  paceline join coordinator.example:7070 --token-file token
  PACELINE_TOKEN=... paceline join 10.0.0.1:7070 --workers-here 4
  paceline join 10.0.0.1:7070 --token-file token --restart -- python train.py

Job and settings come from the coordinator; the data must be on this machine (`paceline data`). SIGTERM
leaves at the next boundary, and nothing is lost. SIGUSR1 asks for a checkpoint.";

/// The environment of the user's own program, and where a token may come from.
const JOIN: &str = "PACELINE_JOIN";
const TOKEN: &str = "PACELINE_TOKEN";
const INSECURE: &str = "PACELINE_INSECURE";
const LEAVING: &str = "leaving at the next boundary; press Ctrl-C again to stop at once";
const LOOK: Duration = Duration::from_millis(50);
/// A worker whose parent has ended, and that cannot leave in good order, ends after this time.
const HELD_MAX: Duration = Duration::from_secs(9);
/// A command that fails is started again after a pause, which doubles while it fails at once.
const PAUSE_FIRST: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(60);

impl Join {
    pub fn run(&self, recipes: &[Recipe]) -> CliResult {
        self.log.begin();
        let has_port = |address: &str| {
            let port = address.rsplit_once(':').map(|(_, port)| port.parse::<u16>());
            matches!(port, Some(Ok(_)))
        };
        if !self.coordinator.split(',').all(has_port) {
            return Err(UsageError::CoordinatorAddress(self.coordinator.clone()).into());
        }
        let token = self.token()?.trim().parse().map_err(CliError::usage)?;
        if !self.command.is_empty() {
            return self.run_command(&format!("{token}"));
        }
        if let Some(count) = self.workers_here {
            return self.start_workers(count);
        }
        let signals =
            signals(if self.held { Stop::quietly()? } else { Stop::on_signals(LEAVING)? })?;
        if self.held {
            leave_with_parent(&signals);
        }
        let options = JoinOptions {
            coordinator: self.coordinator.clone(),
            token,
            advertise: self.advertise,
            data_dir: self.data_dir.clone(),
            insecure: self.insecure,
            signals,
            rescue: || new_folder("rescued").map(PathBuf::from),
            say,
        };
        Ok(join(options, recipes)?)
    }

    fn token(&self) -> CliResult<String> {
        if let Some(token) = &self.token {
            return Ok(token.clone());
        }
        if let Some(path) = &self.token_file {
            let read = std::fs::read_to_string(path);
            return read.map_err(|source| {
                CliError::usage(UsageError::TokenFile { path: path.clone(), source })
            });
        }
        Ok(std::env::var(TOKEN).map_err(|_| UsageError::NoToken)?)
    }

    /// Starts workers, and waits until all have ended.
    fn start_workers(&self, count: u32) -> CliResult {
        let mut arguments: Vec<OsString> = vec!["join".into(), self.coordinator.clone().into()];
        let files = [("--token-file", &self.token_file), ("--data-dir", &self.data_dir)];
        for (flag, path) in files {
            if let Some(path) = path {
                arguments.extend([flag.into(), path.into()]);
            }
        }
        if self.insecure {
            arguments.push("--insecure".into());
        }
        arguments.extend(self.log.argument().map(OsString::from));
        let token = self.token.clone().map(|token| (TOKEN, token));
        let stop = Stop::on_signals(LEAVING)?;
        let mut workers = LocalWorkers::start(&arguments, token, count)?;
        let (mut failed, mut is_released) = (0, false);
        while !workers.is_empty() {
            if stop.is_requested() && !std::mem::replace(&mut is_released, true) {
                workers.release();
            }
            failed += workers.reap().iter().filter(|status| !status.success()).count();
            std::thread::sleep(LOOK);
        }
        match failed {
            0 => Ok(()),
            failed => Err(CommandError::WorkersFailed { failed, all: count as usize }.into()),
        }
    }

    /// Runs the user's own program, which joins by itself; ends with its exit code. A signal is for the program: it leaves, and is
    /// not started again.
    fn run_command(&self, token: &str) -> CliResult {
        let Some((program, arguments)) = self.command.split_first() else { return Ok(()) };
        let passing = Passing::on_signals()?;
        let mut pause = PAUSE_FIRST;
        loop {
            let mut command = Command::new(program);
            command.args(arguments).env(JOIN, &self.coordinator).env(TOKEN, token);
            if self.insecure {
                command.env(INSECURE, "1");
            }
            let since = Instant::now();
            let ended = passing
                .run(command)
                .map_err(|source| CommandError::Start { program: program.into(), source })?;
            let name = program.display();
            let Some(status) = ended else {
                let message = format!("{name} is not started");
                return Err(CliError::Stopped { code: 1, message });
            };
            if status.success() {
                return Ok(());
            }
            if !self.restart || passing.is_asked_to_stop() {
                // Of a program that a signal has ended, the exit code is that of a failure.
                let code = status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1);
                let message = format!("{name} failed ({status})");
                return Err(CliError::Stopped { code, message });
            }
            if since.elapsed() > PAUSE_MAX {
                pause = PAUSE_FIRST;
            }
            say(&format!("{name} failed ({status}): starting it again in {} s", pause.as_secs()));
            let until = Instant::now() + pause;
            while Instant::now() < until && !passing.is_asked_to_stop() {
                std::thread::sleep(LOOK);
            }
            pause = (2 * pause).min(PAUSE_MAX);
        }
    }
}

/// Leaves when standard input ends: whoever started this process has ended, or wants it to.
fn leave_with_parent(signals: &WorkerSignals) {
    let leave: Arc<AtomicBool> = signals.leave.clone();
    std::thread::spawn(move || {
        let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
        leave.store(true, Ordering::Relaxed);
        std::thread::sleep(HELD_MAX);
        std::process::exit(1);
    });
}
