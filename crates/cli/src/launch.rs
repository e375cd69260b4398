//! `paceline launch`: the same command in every task that Slurm, torchrun, mpirun or a Kubernetes indexed job has started, or once
//! with `--hosts`, over ssh. The first task coordinates and works, the others join it.

use std::ffi::OsString;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use clap::Args;
use paceline_job::processes::EtcdPlace;

use crate::coordinate::{DONE, done};
use crate::error::{CliResult, CommandError, UsageError};
use crate::output::say;

/// Coordinate in the first task of a launcher, and join it in all others
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct Launch {
    /// Folder of the log, the journal, the authority and the token, which all tasks can read
    #[arg(long, value_name = "DIR")]
    state: PathBuf,
    /// The port of the coordinator
    #[arg(long, value_name = "P", default_value_t = 7070)]
    port: u16,
    /// The machine of the first task, as the others reach it [default: as the launcher says]
    #[arg(long, value_name = "HOST")]
    coordinator: Option<String>,
    /// How many tasks there are [default: as the launcher says]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    tasks: Option<u32>,
    /// Read the token from this file [default: token in the state folder]
    #[arg(long, value_name = "FILE", conflicts_with = "hosts")]
    token_file: Option<PathBuf>,
    /// Without a launcher: coordinate here, and start a worker on each of these machines over ssh
    #[arg(long, value_name = "A,B,C", value_delimiter = ',')]
    hosts: Vec<String>,
    /// How the program is called on those machines
    #[arg(long, value_name = "PATH", default_value = "paceline", requires = "hosts")]
    program: String,
    /// Flags of `paceline coordinate`
    #[arg(last = true, value_name = "FLAGS", allow_hyphen_values = true)]
    flags: Vec<OsString>,
}

const EXAMPLES: &str = "\
Examples:
  srun -N 4 paceline launch --state run1 -- --strategy lb-bsp --data fashion-mnist
  torchrun --no-python --nnodes 4 --rdzv-endpoint a:29400 paceline launch --state run1
  paceline launch --hosts a,b,c --coordinator me.example --state run1 -- --strategy dbs

The state folder must be on a disk that all tasks share, or --token-file must name a copy of its token. With --hosts the token goes \
to each machine through ssh, and in no list of processes.";

/// A coordinator that starts on another machine takes this long at most.
const TOKEN_WAIT: Duration = Duration::from_secs(300);
const LOOK: Duration = Duration::from_millis(100);

impl Launch {
    /// What this task is to do, as a command line of its own, and the workers on other machines that end with it.
    pub fn plan(&self) -> CliResult<Planned> {
        if self.state.to_str().is_some_and(EtcdPlace::is_meant_by) {
            return Err(UsageError::LaunchInEtcd.into());
        }
        if !self.hosts.is_empty() {
            return Ok(Planned { arguments: self.coordinate(self.hosts.len(), 0), is_first: true });
        }
        let task = Task::find(|name| std::env::var(name).ok(), self.tasks)?;
        if task.rank == 0 {
            return Ok(Planned { arguments: self.coordinate(task.size, 1), is_first: true });
        }
        let host = self.coordinator.clone().or(task.first_host).ok_or(UsageError::NoFirstHost)?;
        let mut arguments: Vec<OsString> = ["paceline", "join"].map(OsString::from).into();
        arguments.push(format!("{host}:{}", self.port).into());
        arguments.extend(["--token-file".into(), self.token().into()]);
        Ok(Planned { arguments, is_first: false })
    }

    /// What to say if there is nothing left to join: the coordinator of a job that is done may have ended already. The first task
    /// finds out by itself.
    pub fn is_done(&self, planned: &Planned) -> Option<String> {
        (!planned.is_first && self.state.join(DONE).exists()).then(|| done(&self.state))
    }

    /// What must happen before, and beside, what was planned.
    pub fn begin(&self, planned: &Planned) -> CliResult {
        if self.state.join(DONE).exists() {
            return Ok(());
        }
        if !self.hosts.is_empty() {
            // A token of an earlier run in this folder is still good: the coordinator continues there.
            let (launch, token) = (Remote::of(self), self.token());
            std::thread::spawn(move || launch.run(&token));
            return Ok(());
        }
        match planned.is_first {
            true => Ok(()),
            false => wait_for(&self.token()).map_err(Into::into),
        }
    }

    fn token(&self) -> PathBuf {
        self.token_file.clone().unwrap_or_else(|| self.state.join("token"))
    }

    fn coordinate(&self, workers: usize, workers_here: u32) -> Vec<OsString> {
        let mut arguments: Vec<OsString> = ["paceline", "coordinate"].map(OsString::from).into();
        let has = |flag: &str| {
            self.flags.iter().any(|it| {
                it.to_str().is_some_and(|it| it == flag || it.starts_with(&format!("{flag}=")))
            })
        };
        let given = [
            ("--workers", workers.to_string()),
            ("--workers-here", workers_here.to_string()),
            ("--listen", format!("0.0.0.0:{}", self.port)),
        ];
        for (flag, value) in given.into_iter().filter(|(flag, _)| !has(flag)) {
            arguments.extend([flag.into(), value.into()]);
        }
        arguments.extend(["--state".into(), self.state.clone().into()]);
        arguments.extend(self.flags.iter().cloned());
        arguments
    }
}

/// What one task does.
pub struct Planned {
    /// A command line of this program.
    pub arguments: Vec<OsString>,
    pub is_first: bool,
}

/// Which of how many tasks this one is.
#[derive(Debug, PartialEq)]
struct Task {
    rank: u32,
    size: usize,
    /// The machine of the first task, if the launcher says so.
    first_host: Option<String>,
}

impl Task {
    /// Reads the variables that a launcher sets.
    fn find(
        variable: impl Fn(&str) -> Option<String>,
        tasks: Option<u32>,
    ) -> Result<Task, UsageError> {
        // torchrun may run inside of a Slurm job, and its variables are the nearer ones.
        const LAUNCHERS: [(&str, &str); 5] = [
            ("RANK", "WORLD_SIZE"),
            ("SLURM_PROCID", "SLURM_NTASKS"),
            ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
            ("PMI_RANK", "PMI_SIZE"),
            ("JOB_COMPLETION_INDEX", "PACELINE_TASKS"),
        ];
        let number = |name: &str| variable(name).and_then(|text| text.parse::<u32>().ok());
        let found = LAUNCHERS.iter().find_map(|(rank, size)| Some((number(rank)?, number(size))));
        let (rank, size) = found.ok_or(UsageError::NoLauncher)?;
        let size = tasks.or(size).ok_or(UsageError::NoTasks)?;
        if rank >= size {
            return Err(UsageError::TaskBeyond { rank, size });
        }
        let slurm = || variable("SLURM_STEP_NODELIST").or(variable("SLURM_JOB_NODELIST"));
        let first_host = variable("MASTER_ADDR").or_else(|| first_node(&slurm()?));
        Ok(Task { rank, size: size as usize, first_host })
    }
}

/// The first name in a list of nodes as Slurm writes it: `node[07-09,12],gpu3` begins with `node07`.
fn first_node(list: &str) -> Option<String> {
    let end = list.find([',', '[']).unwrap_or(list.len());
    let (name, rest) = list.split_at(end);
    let number = match rest.strip_prefix('[') {
        Some(numbers) => numbers.split([',', '-', ']']).next().unwrap_or_default(),
        None => "",
    };
    let first = format!("{name}{number}");
    (!first.is_empty()).then_some(first)
}

/// Waits until the coordinator has made its token.
fn wait_for(token: &Path) -> Result<(), CommandError> {
    let since = Instant::now();
    while !token.exists() {
        if since.elapsed() > TOKEN_WAIT {
            return Err(CommandError::NoTokenYet { path: token.to_owned() });
        }
        std::thread::sleep(LOOK);
    }
    Ok(())
}

/// Workers on other machines.
struct Remote {
    hosts: Vec<String>,
    program: String,
    address: String,
}

impl Remote {
    fn of(launch: &Launch) -> Remote {
        let host = launch.coordinator.clone().unwrap_or_else(this_host);
        let address = format!("{host}:{}", launch.port);
        Remote { hosts: launch.hosts.clone(), program: launch.program.clone(), address }
    }

    /// Starts a worker on each machine, and says which of them failed.
    fn run(self, token: &Path) {
        if let Err(error) = wait_for(token) {
            return say(&error.to_string());
        }
        let text = std::fs::read_to_string(token).unwrap_or_default();
        let started: Vec<(&String, std::io::Result<Child>)> =
            self.hosts.iter().map(|host| (host, self.start(host, &text))).collect();
        for (host, child) in started {
            match child.and_then(|mut child| child.wait()) {
                Ok(status) if status.success() => {}
                Ok(status) => say(&format!("the worker on {host} failed ({status})")),
                Err(error) => say(&format!("cannot start ssh for the worker on {host}: {error}")),
            }
        }
    }

    /// The token is what the worker reads on its standard input.
    fn start(&self, host: &str, token: &str) -> std::io::Result<Child> {
        let mut command = Command::new("ssh");
        command.args(["-o", "BatchMode=yes", "--", host, &self.program, "join", &self.address]);
        command.args(["--token-file", "/dev/stdin"]).stdin(Stdio::piped()).stdout(Stdio::null());
        let mut child = command.spawn()?;
        if let Some(mut input) = child.stdin.take() {
            input.write_all(token.as_bytes())?;
        }
        Ok(child)
    }
}

/// The name under which other machines probably know this one.
fn this_host() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    if name.trim().is_empty() { "localhost".to_owned() } else { name.trim().to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find(variables: &[(&str, &str)], tasks: Option<u32>) -> Result<Task, String> {
        let value = |name: &str| {
            let found = variables.iter().find(|(it, _)| *it == name);
            found.map(|(_, value)| (*value).to_owned())
        };
        Task::find(value, tasks).map_err(|error| error.to_string())
    }

    fn task(rank: u32, size: usize, first_host: Option<&str>) -> Result<Task, String> {
        Ok(Task { rank, size, first_host: first_host.map(str::to_owned) })
    }

    #[test]
    fn launchers_say_which_task_this_is() {
        let slurm =
            [("SLURM_PROCID", "2"), ("SLURM_NTASKS", "4"), ("SLURM_JOB_NODELIST", "n[07-09],x")];
        assert_eq!(find(&slurm, None), task(2, 4, Some("n07")));
        let torchrun = [("RANK", "1"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "a")];
        assert_eq!(find(&[&slurm[..], &torchrun].concat(), None), task(1, 2, Some("a")));
        let kubernetes = [("JOB_COMPLETION_INDEX", "0")];
        assert_eq!(find(&kubernetes, Some(3)), task(0, 3, None));
        assert!(find(&kubernetes, None).unwrap_err().contains("--tasks"));
        assert!(find(&kubernetes, Some(0)).unwrap_err().contains("task 0 of 0"));
        assert!(find(&[], None).unwrap_err().contains("srun"));
    }

    #[test]
    fn the_first_node_of_a_list() {
        let first = |list| first_node(list).unwrap_or_default();
        assert_eq!(first("alone"), "alone");
        assert_eq!(first("a,b"), "a");
        assert_eq!(first("node[07-09,12],gpu3"), "node07");
        assert_eq!(first("node[3]"), "node3");
        assert_eq!(first_node(""), None);
    }
}
