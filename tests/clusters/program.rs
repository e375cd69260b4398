//! Coordinators and workers as a user starts them: real processes that speak TLS on the loopback device.

use std::fs;
use std::io::{Read, Seek, SeekFrom};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use paceline::RunResult;

const PROGRAM: &str = env!("CARGO_BIN_EXE_paceline");

/// Ends its process when it is dropped.
pub struct Process(Child);

/// How a process has ended, and what it wrote.
pub struct Ended {
    /// `None`: a signal ended it.
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Process {
    /// Starts the program in this folder.
    pub fn start(folder: &Path, arguments: &[&str]) -> Process {
        Process::start_as(folder, arguments, &[])
    }

    /// Starts it with these variables, too.
    pub fn start_as(folder: &Path, arguments: &[&str], variables: &[(&str, &str)]) -> Process {
        let mut command = Command::new(PROGRAM);
        command.args(arguments).current_dir(folder).env_remove("PACELINE_TOKEN");
        command.envs(variables.iter().copied());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        Process(command.spawn().expect("the program can be started"))
    }

    pub fn kill(mut self) {
        self.0.kill().expect("it runs");
        self.0.wait().expect("it has ended");
    }

    pub fn signal(&self, name: &str) {
        let status = Command::new("kill").args([name, &self.0.id().to_string()]).status();
        assert!(status.expect("kill can be run").success(), "the process lives");
    }

    pub fn runs(&mut self) -> bool {
        matches!(self.0.try_wait(), Ok(None))
    }

    /// Waits until it has ended.
    pub fn end(mut self) -> Ended {
        let since = Instant::now();
        while self.runs() {
            if since.elapsed() > Duration::from_secs(60) {
                self.0.kill().expect("it runs");
                let mut err = String::new();
                let _ = self.0.stderr.take().expect("a pipe").read_to_string(&mut err);
                panic!("it does not end; it wrote: {err}");
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        let (mut out, mut err) = (String::new(), String::new());
        let _ = self.0.stdout.take().expect("a pipe").read_to_string(&mut out);
        let _ = self.0.stderr.take().expect("a pipe").read_to_string(&mut err);
        Ended { code: self.0.wait().expect("it has ended").code(), out, err }
    }

    /// Waits until all have ended well.
    pub fn all_succeed<const N: usize>(all: [Process; N]) {
        all.into_iter().for_each(|process| drop(process.succeed()));
    }

    /// Waits until it has ended well.
    pub fn succeed(self) -> Ended {
        let ended = self.end();
        assert_eq!(ended.code, Some(0), "{}", ended.err);
        ended
    }
}

/// A job and its folder.
pub struct Cluster {
    pub folder: PathBuf,
    pub address: String,
    flags: Vec<String>,
}

impl Cluster {
    /// `flags`: of the coordinator, besides the usual ones.
    pub fn new(name: &str, flags: &str) -> Cluster {
        // Tests run side by side, and two of them may choose the same name.
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let folder = format!("paceline-{name}-{}-{count}", std::process::id());
        let folder = std::env::temp_dir().join(folder);
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).expect("the temporary folder can be written");
        // Any port that is free now: a coordinator that is started again needs the same one.
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let address = listener.local_addr().expect("it is bound").to_string();
        Cluster { folder, address, flags: flags.split(' ').map(str::to_owned).collect() }
    }

    pub fn state(&self) -> PathBuf {
        self.folder.join("state")
    }

    pub fn coordinator(&self) -> Process {
        let usual = "coordinate --state state --json --no-report";
        let mut arguments: Vec<&str> =
            usual.split(' ').chain(["--listen", &self.address]).collect();
        arguments.extend(self.flags.iter().map(String::as_str));
        if !arguments.contains(&"--model") {
            arguments.extend(["--model", "softmax", "--data", "blobs"]);
        }
        Process::start(&self.folder, &arguments)
    }

    pub fn worker(&self) -> Process {
        self.worker_with(&[])
    }

    pub fn worker_with(&self, more: &[&str]) -> Process {
        wait_until("there is a token", || self.state().join("token").exists());
        let arguments = ["join", &self.address, "--token-file", "state/token"];
        Process::start(&self.folder, &[&arguments[..], more].concat())
    }

    pub fn token(&self) -> String {
        wait_until("there is a token", || self.state().join("token").exists());
        let text = fs::read_to_string(self.state().join("token")).expect("it is there");
        text.trim().to_owned()
    }

    /// The names of the checkpoints in a folder of this one.
    pub fn checkpoints(&self, folder: &str) -> Vec<String> {
        let there = fs::read_dir(self.folder.join(folder)).into_iter().flatten().flatten();
        let names = there.filter_map(|it| it.file_name().into_string().ok());
        let mut names: Vec<String> = names.filter(|name| name.starts_with("round-")).collect();
        names.sort();
        names
    }

    pub fn journal(&self) -> String {
        fs::read_to_string(self.state().join("journal.jsonl")).unwrap_or_default()
    }

    /// Waits until the journal has a line of this kind. It grows by megabytes a second, so that only what is new is read.
    pub fn wait_for_line(&self, part: &str) {
        let (mut read, mut rest) = (0, String::new());
        wait_until(part, || {
            let Ok(mut file) = fs::File::open(self.state().join("journal.jsonl")) else {
                return false;
            };
            file.seek(SeekFrom::Start(read)).expect("a file can be read from anywhere");
            read += file.read_to_string(&mut rest).expect("the journal is text") as u64;
            let is_there = rest.contains(part);
            // The last line may be there in part only.
            rest.drain(..rest.rfind('\n').map_or(0, |end| end + 1));
            is_there
        });
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

pub fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let since = Instant::now();
    while !is_so() {
        assert!(since.elapsed() < Duration::from_secs(30), "waiting for this: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The result of a coordinator that has ended well: every sample was applied once.
pub fn result(coordinator: Process) -> RunResult {
    checked(&coordinator.succeed().out)
}

/// Stops a coordinator whose job would last for hours; returns the result and what it wrote for the user. A test that waits for
/// something to happen in a job must not race with the end of the job.
pub fn stop(coordinator: Process) -> (RunResult, String) {
    coordinator.signal("-INT");
    let Ended { code, out, err } = coordinator.end();
    assert_eq!(code, Some(130), "{err}");
    (checked(&out), err)
}

fn checked(out: &str) -> RunResult {
    let result: RunResult = serde_json::from_str(out).expect("the result is JSON");
    assert_eq!((result.ledger.lost, result.ledger.repeated), (0, 0));
    assert!(result.samples > 0 && result.accuracy > 0.5, "{out}");
    result
}
