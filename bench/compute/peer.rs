//! PyTorch in a separate process, controlled by lines on its standard input.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::clock::Rate;

/// A Python process that trains models with PyTorch.
pub struct Peer {
    /// The allocator it uses.
    pub memory: &'static str,
    process: Child,
    requests: ChildStdin,
    answers: BufReader<ChildStdout>,
}

/// The fastest way that PyTorch found to train a model.
#[derive(Deserialize)]
pub struct Tuned {
    pub way: String,
    pub params: usize,
    /// Ways that failed, each with the error.
    pub failed: Vec<String>,
}

#[derive(Deserialize)]
struct Nothing {}

/// Allocators worth trying: memory that is returned to the system must be cleared before it is used again.
const MEMORIES: [(&str, &str, &str); 2] = [
    (
        "malloc that keeps memory",
        "GLIBC_TUNABLES",
        "glibc.malloc.mmap_threshold=4294967296:glibc.malloc.trim_threshold=4294967296:glibc.malloc.hugetlb=1",
    ),
    ("plain malloc", "", ""),
];

/// Other allocators, used if they are installed.
const LIBRARIES: [(&str, &str); 2] = [("jemalloc", "libjemalloc.so"), ("tcmalloc", "libtcmalloc")];

impl Peer {
    /// Starts one process per allocator.
    pub fn all(python: &Path) -> Result<Vec<Peer>, String> {
        let mut peers = Vec::new();
        for (memory, variable, value) in MEMORIES {
            peers.push(Peer::start(python, memory, variable, value)?);
        }
        for (memory, prefix) in LIBRARIES {
            if let Some(library) = library(prefix) {
                let library = library.to_string_lossy();
                peers.push(Peer::start(python, memory, "LD_PRELOAD", &library)?);
            }
        }
        Ok(peers)
    }

    fn start(
        python: &Path,
        memory: &'static str,
        variable: &str,
        value: &str,
    ) -> Result<Peer, String> {
        let mut command = Command::new(python);
        command.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("bench/compute/peer.py"));
        command.env("OMP_NUM_THREADS", "1").stdin(Stdio::piped()).stdout(Stdio::piped());
        if !variable.is_empty() {
            command.env(variable, value);
        }
        let mut process = command.spawn().map_err(|error| {
            format!("cannot start {}: {error}; name another Python with --python", python.display())
        })?;
        let requests = process.stdin.take().expect("stdin is a pipe");
        let answers = BufReader::new(process.stdout.take().expect("stdout is a pipe"));
        Ok(Peer { memory, process, requests, answers })
    }

    /// Tries all ways to train the model and keeps the fastest.
    pub fn tune(&mut self, model: &str) -> Result<Tuned, String> {
        self.ask(&format!("tune {model}"))
    }

    /// Trains the model in the given way from now on.
    pub fn take(&mut self, model: &str, way: &str) -> Result<(), String> {
        self.ask(&format!("take {model} {way}")).map(|Nothing {}| ())
    }

    /// Samples per second.
    pub fn measure(&mut self, model: &str, seconds: f64) -> Result<Rate, String> {
        self.ask(&format!("measure {model} {seconds}"))
    }

    fn ask<A: DeserializeOwned>(&mut self, request: &str) -> Result<A, String> {
        let mut answer = String::new();
        writeln!(self.requests, "{request}")
            .and_then(|()| self.requests.flush())
            .and_then(|()| self.answers.read_line(&mut answer))
            .map_err(|error| format!("PyTorch's process does not answer: {error}"))?;
        serde_json::from_str(&answer).map_err(|error| {
            format!("PyTorch's process answered {request:?} with {answer:?}: {error}; see above")
        })
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // Errors mean that the process has ended already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn library(prefix: &str) -> Option<PathBuf> {
    let folders =
        ["/usr/lib", "/usr/lib64", "/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu"];
    let files = folders.iter().filter_map(|folder| std::fs::read_dir(folder).ok()).flatten();
    let mut paths = files.filter_map(|file| Some(file.ok()?.path()));
    paths.find(|path| {
        path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(prefix))
    })
}

/// The Python of a virtual environment with PyTorch under `target`, which is created if it does not exist.
pub fn environment() -> Result<PathBuf, String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/bench-torch");
    let python = folder.join("bin/python");
    let has_torch = |python: &Path| run(Command::new(python).args(["-c", "import torch"])).is_ok();
    if has_torch(&python) {
        return Ok(python);
    }
    eprintln!("installing PyTorch in {}; this takes a while, once", folder.display());
    run(Command::new("python3").args(["-m", "venv"]).arg(&folder))?;
    run(Command::new(&python).args(["-m", "pip", "install", "--quiet", "torch", "numpy"]))?;
    Ok(python)
}

fn run(command: &mut Command) -> Result<(), String> {
    let status = command.stdout(Stdio::null()).stderr(Stdio::inherit()).status();
    match status {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("{command:?} failed with {status}")),
        Err(error) => Err(format!("cannot start {command:?}: {error}")),
    }
}
