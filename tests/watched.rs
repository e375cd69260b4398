//! Runs that are watched while they last: `--page`, `paceline status`, `--log`, and the journal of a coordinator.

#![cfg(unix)]

mod machines;

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use machines::{Cluster, Process, free_port, wait};
use paceline_watch::status::{Kind, Phase, Snapshot, State};

/// A folder that is deleted in the end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path =
            std::env::temp_dir().join(format!("paceline-watched-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).expect("a folder can be made");
        Folder(path)
    }

    fn start(&self, name: &str, arguments: &str) -> Process {
        let arguments: Vec<String> = arguments.split_whitespace().map(str::to_owned).collect();
        Process::start(&arguments, None, &self.0.join(name))
    }

    /// Runs the program to its end; returns its exit code and what it wrote.
    fn run(&self, name: &str, arguments: &str) -> (Option<i32>, String, String) {
        let mut process = self.start(name, arguments);
        let code = process.end().code();
        (code, process.output(), process.messages())
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// The page of a run, as a browser would ask for it.
struct Page {
    at: String,
    token: String,
}

impl Page {
    /// What the program has printed.
    fn of(process: &Process) -> Page {
        wait("the page is announced", || process.messages().contains("Page: http://"));
        let text = process.messages();
        let (_, rest) = text.split_once("Page: http://").expect("it is there");
        let (at, rest) = rest.split_once('/').expect("an address ends so");
        let token = rest.split_once("stop: ").and_then(|(_, it)| it.split_once(')'));
        Page { at: at.to_owned(), token: token.map_or(String::new(), |(it, _)| it.to_owned()) }
    }

    fn ask(&self, request: &str) -> Option<(String, String)> {
        let mut stream = TcpStream::connect(&self.at).ok()?;
        stream.set_read_timeout(Some(Duration::from_secs(60))).ok()?;
        let (host, token) = (&self.at, &self.token);
        write!(
            stream,
            "{request} HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {token}\r\n\r\n"
        )
        .ok()?;
        let mut text = String::new();
        stream.read_to_string(&mut text).ok()?;
        let (head, body) = text.split_once("\r\n\r\n")?;
        Some((head.split(' ').nth(1)?.to_owned(), body.to_owned()))
    }

    fn get(&self, path: &str) -> Option<String> {
        self.ask(&format!("GET {path}")).map(|(_, body)| body)
    }

    fn post(&self, path: &str) -> (String, String) {
        self.ask(&format!("POST {path}")).expect("the page answers")
    }

    fn state(&self) -> Option<Snapshot> {
        serde_json::from_str(&self.get("/status.json")?).ok()
    }

    fn wait_for(&self, what: &str, is_so: impl Fn(&Snapshot) -> bool) -> Snapshot {
        wait(what, || self.state().is_some_and(|it| is_so(&it)));
        self.state().expect("it was there")
    }
}

fn members(it: &Snapshot) -> usize {
    let takes_part = |state: State| !state.is_gone() && state != State::Joining;
    it.workers.iter().filter(|worker| takes_part(worker.state)).count()
}

/// The job on threads is the same with a page and without: the page only reads.
#[test]
fn threads_are_watched_and_stopped_from_the_page() {
    let folder = Folder::new("threads");
    let job = "train --strategy ssgd --workers 4 --speeds 4,4,4,1 --pace 0.0005 --epochs 100000 --no-report";
    let mut run = folder.start("run", &format!("{job} --checkpoints saved --page 0"));
    let page = Page::of(&run);

    let it = page.wait_for("there is progress", |it| it.epochs > 1.0 && it.seconds > 3.0);
    let (code, shown, errors) = folder.run("status", &format!("status {}", page.at));
    let (_, json, _) = folder.run("json", &format!("status {} --json", page.at));
    let metrics = page.get("/metrics").expect("it answers");
    let put_out = page.post("/workers/0/put-out");
    let saved = page.post("/save");
    let saved_state = page.wait_for("a checkpoint is there", |it| it.checkpoint.is_some());
    let stopped = page.post("/stop");

    assert_eq!(run.end().code(), Some(130), "{}", run.messages());
    assert_eq!((it.phase, members(&it), it.place.as_str()), (Phase::Training, 4, "threads"));
    assert!(it.verdicts.slow.sentence.starts_with("Worker 3 is slow"), "{:?}", it.verdicts);
    assert_eq!((code, errors.as_str()), (Some(0), ""));
    assert!(shown.contains("Worker 3 is slow") && shown.contains("No worker hangs."), "{shown}");
    let read: Snapshot = serde_json::from_str(&json).expect("it is a snapshot");
    assert!(read.samples > 0);
    assert!(metrics.contains("paceline_members 4\n"), "{metrics}");
    assert_eq!(put_out.0, "501");
    assert_eq!(saved, ("200".to_owned(), "a checkpoint is being saved\n".to_owned()));
    assert!(saved_state.events.iter().any(|event| event.kind == Kind::Saved));
    assert_eq!(stopped.0, "200");
    assert!(run.messages().contains("stopped from the page"), "{}", run.messages());
}

/// What is measured on a running cluster is a scenario that the simulator takes.
#[test]
fn a_running_cluster_is_calibrated_through_its_page() {
    let folder = Folder::new("calibrated");
    let job = "train --strategy ssgd --workers 3 --speeds 4,4,1 --pace 0.0005 --epochs 100000 --no-report --no-save";
    let mut run = folder.start("run", &format!("{job} --page 0"));
    let page = Page::of(&run);
    page.wait_for("there is progress", |it| it.epochs > 0.5);
    let out = folder.0.join("cluster.toml");

    let command = format!("calibrate {} --seconds 3 --out {}", page.at, out.display());
    let (code, shown, errors) = folder.run("calibrate", &command);
    page.post("/stop");
    run.end();

    assert_eq!(code, Some(0), "{errors}");
    assert!(shown.contains("simulated: an exchange takes"), "{shown}");
    let (code, json, errors) = folder
        .run("simulate", &format!("simulate {} --strategy dbs --epochs 1 --json", out.display()));
    assert_eq!(code, Some(0), "{errors}");
    assert!(json.contains("\"workers\": 3"), "{json}");
    let (code, _, errors) = folder.run("again", &command);
    assert_eq!(code, Some(1));
    assert!(errors.contains("nobody listens at"), "{errors}");
}

#[test]
fn a_process_is_put_out_from_the_page_and_joins_again() {
    let folder = Folder::new("processes");
    let job = "train --processes 3 --strategy ssgd --epochs 100000 --no-report --no-save --page 0";
    let mut run = folder.start("run", job);
    let page = Page::of(&run);
    page.wait_for("all take part", |it| members(it) == 3 && it.epochs > 0.5);

    let put_out = page.post("/workers/1/put-out");
    let it = page.wait_for("it has joined again", |it| {
        it.counts.joined == 4 && members(it) == 3 && it.counts.recovered == 1
    });
    let again = page.post("/workers/1/put-out");
    let wrong = Page { at: page.at.clone(), token: "0".repeat(32) }.post("/stop");
    let saved = page.post("/save");
    let before = page.state().expect("it runs").samples;
    page.wait_for("training goes on", |it| it.samples > before);
    page.post("/stop");

    assert_eq!(run.end().code(), Some(130), "{}", run.messages());
    assert_eq!(put_out, ("200".to_owned(), "worker 1 is put out, and may join again\n".to_owned()));
    let lost = it.events.iter().find(|event| event.kind == Kind::Lost).expect("a loss");
    assert_eq!(lost.text, "worker 1 was put out by the user");
    assert_eq!(again, ("409".to_owned(), "worker 1 is no member now\n".to_owned()));
    assert_eq!((wrong.0.as_str(), saved.0.as_str()), ("401", "501"));
}

/// The new coordinator has what happened before from its journal, and the same token.
#[test]
fn the_page_of_a_coordinator_survives_its_restart_and_its_journal_can_be_drawn() {
    let address = format!("127.0.0.1:{}", free_port());
    let flags = format!(
        "--workers 2:4 --strategy ssgd --patience 2 --epochs 100000 --page {}",
        free_port()
    );
    let mut cluster = Cluster::new("page", address, &flags);
    let mut coordinator = cluster.coordinator(None);
    let mut page = Page::of(&coordinator);
    assert_eq!(page.wait_for("it waits", |_| true).phase, Phase::Waiting);
    let mut workers = [cluster.worker(None), cluster.worker(None), cluster.worker(None)];
    page.wait_for("all take part", |it| members(it) == 3 && it.epochs > 0.5);

    workers[0].kill();
    page.wait_for("the loss is mended", |it| it.counts.recovered == 1 && members(it) == 2);
    let token_file = cluster.folder.join("state/page-token");
    page.token = fs::read_to_string(&token_file).expect("it is kept").trim().to_owned();
    coordinator.kill();
    let mut coordinator = cluster.coordinator(None);
    let it = page.wait_for("training goes on", |it| it.counts.restarted == 1 && members(it) == 2);
    let before = it.samples;
    page.wait_for("samples are applied", |it| it.samples > before);
    let stopped = page.post("/stop");
    assert_eq!(coordinator.end().code(), Some(130), "{}", coordinator.messages());

    assert_eq!(stopped.0, "200", "the token is that of before");
    assert_eq!((it.counts.lost, it.counts.joined), (1, 3));
    assert!(it.events.iter().any(|event| event.recovery_seconds.is_some()), "{:?}", it.events);
    assert_eq!(mode(&token_file), 0o600);
    draw(&cluster.folder);
}

fn mode(path: &Path) -> u32 {
    use std::os::unix::fs::PermissionsExt;
    fs::metadata(path).expect("it is there").permissions().mode() & 0o777
}

/// Makes report, trace and TensorBoard scalars from the journal in which the lines of all workers are merged.
fn draw(folder: &Path) {
    let arguments = "report state/journal.jsonl --out r.html --trace t.json --tensorboard tb";
    let arguments: Vec<String> = arguments.split(' ').map(str::to_owned).collect();
    let mut report = Process::start(&arguments, None, &folder.join("report"));
    assert!(report.end().success(), "{}", report.messages());

    let html = fs::read_to_string(folder.join("r.html")).expect("a report");
    assert!(html.contains("ssgd"), "it says which job it is of");
    let trace = fs::read_to_string(folder.join("t.json")).expect("a trace");
    let trace: Vec<serde_json::Value> = serde_json::from_str(&trace).expect("it is JSON");
    let of = |name: &str| trace.iter().filter(|event| event["name"] == name).count();
    assert!(of("compute") > 0 && of("exchange") > 0 && of("training loss") > 0);
    let threads: std::collections::BTreeSet<u64> = trace
        .iter()
        .filter(|it| it["name"] == "compute")
        .filter_map(|it| it["tid"].as_u64())
        .collect();
    assert!(threads.len() >= 3, "all workers are in it: {threads:?}");
    let events = fs::read_dir(folder.join("tb")).expect("a folder").count();
    assert_eq!(events, 1);
}

#[test]
fn log_lines_are_json_objects() {
    let folder = Folder::new("log");
    let (code, out, err) =
        folder.run("run", "train --processes 2 --epochs 2 --no-report --no-save --log json");

    assert_eq!(code, Some(0), "{err}");
    assert!(out.contains("loss"), "the result is still on stdout: {out}");
    let lines: Vec<serde_json::Value> = err
        .lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|_| panic!("no JSON: {line}")))
        .collect();
    assert!(lines.iter().all(|it| it["timestamp"].is_string() && it["level"] == "INFO"), "{err}");
    let view = lines.iter().find(|it| it["message"] == "the members begin").expect(&err);
    assert_eq!((view["view"].as_u64(), view["members"].as_str()), (Some(1), Some("[0, 1]")));
    assert!(lines.iter().any(|it| it["message"] == "the job is over"), "{err}");

    let (code, _, err) = folder.run("bad", "train --strategy nonsense --log json");
    assert_eq!(code, Some(2));
    let line: serde_json::Value = serde_json::from_str(err.trim()).expect(&err);
    assert_eq!(line["level"], "ERROR");
}

#[test]
fn status_says_what_is_wrong_in_one_sentence() {
    let folder = Folder::new("errors");
    let nobody = format!("127.0.0.1:{}", free_port());
    let other = std::net::TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let strange = other.local_addr().expect("it is bound");
    std::thread::spawn(move || {
        for stream in other.incoming().flatten() {
            let _ = (&stream).write_all(b"220 mail.example ESMTP\r\n");
        }
    });

    let cases = [
        (nobody.as_str(), "nobody listens at"),
        (&strange.to_string(), "is not the page of a run"),
        ("nonsense", "names no host and port"),
    ];
    for (page, expected) in cases {
        let (code, out, err) = folder.run("status", &format!("status {page}"));
        assert_eq!((code, out.as_str()), (Some(1), ""), "{err}");
        assert!(err.starts_with("error: ") && err.contains(expected), "{err}");
        assert_eq!(err.lines().count(), 1, "{err}");
    }
    let (code, _, err) =
        folder.run("taken", &format!("train --page {strange} --epochs 1 --no-save"));
    assert_eq!(code, Some(1), "{err}");
    assert!(
        err.contains("the page cannot listen on") && err.contains("--page names another"),
        "{err}"
    );
}
