//! `paceline coordinate` and `paceline join` as processes that a test starts, disturbs and reads.

// Every test crate that has this module uses a part of it.
#![allow(dead_code)]

use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use paceline::{Line, Record, RunResult, WorkerId};

const PROGRAM: &str = env!("CARGO_BIN_EXE_paceline");
/// Far longer than anything takes on a busy machine.
const LONG: Duration = Duration::from_secs(120);

/// A process of the program. It is ended when it is dropped.
pub struct Process {
    child: Child,
    /// What it writes, results and messages.
    out: PathBuf,
    err: PathBuf,
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Process {
    /// Starts the program; `host`: in this network namespace.
    pub fn start(arguments: &[String], host: Option<&str>, files: &Path) -> Process {
        let (out, err) = (files.with_extension("out"), files.with_extension("err"));
        let mut command = match host {
            Some(host) => {
                let mut command = Command::new("ip");
                // It replaces itself by the program, so that the child is the program.
                command.args(["netns", "exec", host, PROGRAM]);
                command
            }
            None => Command::new(PROGRAM),
        };
        // What a worker rescues, it writes where it was started.
        command.current_dir(files.parent().expect("a folder"));
        let create = |path: &Path| File::create(path).expect("a file can be written");
        let child = command.args(arguments).stdout(create(&out)).stderr(create(&err));
        let child = child.stdin(Stdio::null()).spawn().expect("the program can be started");
        Process { child, out, err }
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    pub fn signal(&self, name: &str) {
        let id = self.child.id().to_string();
        // It may have ended by itself.
        let _ = Command::new("kill").args([name, &id]).stderr(Stdio::null()).status();
    }

    /// Ends it as a machine that fails would.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    pub fn has_ended(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }

    pub fn end(&mut self) -> ExitStatus {
        wait("the process ends", || self.has_ended());
        self.child.wait().expect("it has ended")
    }

    pub fn output(&self) -> String {
        fs::read_to_string(&self.out).unwrap_or_default()
    }

    pub fn messages(&self) -> String {
        fs::read_to_string(&self.err).unwrap_or_default()
    }
}

pub fn wait(what: &str, mut is_so: impl FnMut() -> bool) {
    let since = Instant::now();
    while !is_so() {
        assert!(since.elapsed() < LONG, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Any port that is free now: a coordinator that is started again needs the same one.
pub fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    listener.local_addr().expect("it is bound").port()
}

/// A job on processes, with its folder.
pub struct Cluster {
    pub folder: PathBuf,
    address: String,
    /// Of `coordinate`.
    pub arguments: Vec<String>,
    started: u32,
}

impl Cluster {
    /// `address`: where workers reach the coordinator; `arguments`: the job, and `--workers`.
    pub fn new(name: &str, address: String, arguments: &str) -> Cluster {
        let folder = std::env::temp_dir().join(format!("paceline-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).expect("a folder can be made");
        let arguments = arguments.split_whitespace().map(str::to_owned).collect();
        Cluster { folder, address, arguments, started: 0 }
    }

    /// A coordinator; also one that continues after another.
    pub fn coordinator(&mut self, host: Option<&str>) -> Process {
        let state = self.folder.join("state").display().to_string();
        let mut arguments = self.arguments.clone();
        arguments.insert(0, "coordinate".into());
        for more in ["--listen", &self.address, "--state", &state, "--json", "--no-report"] {
            arguments.push(more.into());
        }
        Process::start(&arguments, host, &self.next("coordinator"))
    }

    /// A worker; returns when it has asked the coordinator to join.
    pub fn worker(&mut self, host: Option<&str>) -> Process {
        let token = self.folder.join("state/token");
        wait("the coordinator writes a token", || token.exists());
        let token = token.display().to_string();
        let arguments = ["join", &self.address, "--token-file", &token].map(str::to_owned);
        Process::start(&arguments, host, &self.next("worker"))
    }

    fn next(&mut self, name: &str) -> PathBuf {
        self.started += 1;
        self.folder.join(format!("{name}-{}", self.started))
    }

    pub fn journal(&self) -> Journal {
        Journal { path: self.folder.join("state/journal.jsonl"), at: 0, lines: vec![] }
    }

    /// Waits for the result, and checks what must hold for every job: all samples are applied once.
    pub fn result(&self, coordinator: &mut Process) -> RunResult {
        let is_ok = coordinator.end().success();
        assert!(is_ok, "{}", coordinator.messages());
        let out = coordinator.output();
        let result: RunResult = serde_json::from_str(&out).expect("the result is JSON");
        let ledger = result.ledger;
        let counted = (ledger.done, ledger.lost, ledger.repeated, result.stopped);
        assert_eq!(counted, (result.samples, 0, 0, false), "{out}");
        result
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the files of the failed run are in {}", self.folder.display());
        } else {
            let _ = fs::remove_dir_all(&self.folder);
        }
    }
}

/// The journal of a coordinator, read while it is written.
pub struct Journal {
    path: PathBuf,
    at: u64,
    pub lines: Vec<Line>,
}

impl Journal {
    /// Reads what has been added. A coordinator that was started again may have cut off the end: then all is read anew.
    pub fn read(&mut self) -> &mut Journal {
        let Ok(mut file) = File::open(&self.path) else { return self };
        if file.metadata().is_ok_and(|it| it.len() < self.at) {
            self.begin_anew();
        }
        let mut text = vec![];
        if file.seek(SeekFrom::Start(self.at)).is_ok() && file.read_to_end(&mut text).is_ok() {
            let whole = text.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
            self.at += whole as u64;
            let lines = text[..whole].split(|byte| *byte == b'\n');
            self.lines.extend(lines.filter_map(|line| serde_json::from_slice(line).ok()));
        }
        self
    }

    pub fn begin_anew(&mut self) {
        self.at = 0;
        self.lines.clear();
    }

    /// Waits until the journal shows something.
    pub fn wait_until(&mut self, what: &str, is_so: impl Fn(&[Line]) -> bool) {
        wait(what, || is_so(&self.read().lines));
    }

    pub fn views(&self) -> Vec<(Duration, Vec<WorkerId>)> {
        let view = |line: &Line| match &line.record {
            Record::View { members, .. } => Some((line.at, members.clone())),
            _ => None,
        };
        self.lines.iter().filter_map(view).collect()
    }

    /// Why there were new views, and when.
    pub fn reasons(&self) -> Vec<(Duration, &str)> {
        let mut reasons = vec![];
        for line in &self.lines {
            if let Record::View { reason, .. } = &line.record {
                reasons.push((line.at, reason.as_str()));
            }
        }
        reasons
    }

    pub fn put_out(&self) -> usize {
        count(&self.lines, |record| matches!(record, Record::PutOut { .. }))
    }
}

pub fn count(lines: &[Line], is_it: impl Fn(&Record) -> bool) -> usize {
    lines.iter().filter(|line| is_it(&line.record)).count()
}

/// The members of the newest view.
pub fn last_view(lines: &[Line]) -> &[WorkerId] {
    let view = |line: &'_ Line| matches!(line.record, Record::View { .. });
    match lines.iter().rfind(|line| view(line)).map(|line| &line.record) {
        Some(Record::View { members, .. }) => members,
        _ => &[],
    }
}

/// The samples of the lines so far.
pub fn applied(lines: &[Line]) -> u64 {
    let spans = |line: &Line| match &line.record {
        Record::Applied { spans, .. } => spans.len(),
        _ => 0,
    };
    lines.iter().map(spans).sum()
}
