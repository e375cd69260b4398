//! Training on the ranks of MPI jobs: the bits and accuracies of every other cluster, one sentence when ranks differ, and a lost rank.
//!
//! `PACELINE_MPIRUN` names another launcher than Open MPI's, with its options: `mpirun.mpich`, for example.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use paceline::job::checkpoint::load_params;
use paceline::runtime::journal::fingerprint;
use paceline::{Job, Scenario, SimulateOptions, recipes, simulate};

const PROGRAM: &str = env!("CARGO_BIN_EXE_paceline");

fn mpirun(ranks: usize) -> Command {
    let own = std::env::var("PACELINE_MPIRUN").ok();
    let launcher = own.as_deref().unwrap_or("mpirun --allow-run-as-root --oversubscribe");
    let mut words = launcher.split_whitespace();
    let mut command = Command::new(words.next().expect("a launcher has a name"));
    command.args(words).args(["-n", &ranks.to_string()]);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn is_launched_by(name: &str) -> bool {
    std::env::var("PACELINE_MPIRUN").is_ok_and(|it| it.starts_with(name))
}

/// Trains on this many ranks.
fn train(ranks: usize, arguments: &[&str]) -> Output {
    let mut command = mpirun(ranks);
    command.arg(PROGRAM).args(["train", "--cluster", "mpi"]).args(arguments);
    command.output().expect("the launcher can be started")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The result that a run has printed. All its samples were applied once.
fn result(name: &str, output: &Output) -> serde_json::Value {
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{name}: {err}");
    let result: serde_json::Value =
        serde_json::from_str(&out).unwrap_or_else(|error| panic!("{name}: {error}: {out}{err}"));
    let ledger = &result["ledger"];
    assert_eq!(
        (ledger["lost"].as_u64(), ledger["repeated"].as_u64()),
        (Some(0), Some(0)),
        "{name}"
    );
    result
}

/// An empty folder for one test.
fn folder(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("mpi").join(name);
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(folder.parent().expect("it has one")).expect("it can be made");
    folder
}

#[test]
fn recipes_that_read_no_clock_end_with_the_bits_of_the_simulator() {
    let names = ["ssgd", "qsgd", "dynamic", "pipe", "cpsgd", "adpsgd", "diloco"];
    // The last one is long enough to be added in chunks.
    let jobs =
        names.map(|name| (name, &["--epochs", "2"][..], Job { epochs: 2.0, ..Job::default() }));
    let long = Job { model: "cnn".into(), samples: Some(640), epochs: 1.0, ..Job::default() };
    let chunked = ("ssgd", &["--model", "cnn", "--samples", "640", "--epochs", "1"][..], long);
    for (i, (name, flags, job)) in jobs.into_iter().chain([chunked]).enumerate() {
        let saved = folder(&format!("bits-{i}"));
        let place = saved.to_str().expect("it is text");

        let common = ["--strategy", name, "--seed", "5", "--json", "--checkpoints", place];
        let real = result(name, &train(4, &[&common[..], flags].concat()));

        let job = Job { strategy: name.into(), seed: 5, ..job };
        let prepared = job.prepare(4).expect("the job is valid");
        let cluster = Scenario { workers: 4, ..Scenario::default() };
        let simulated = simulate(&prepared, &cluster, SimulateOptions::default()).expect("it ends");
        let params = simulated.params.expect("there are params");
        let (_, real_params) = load_params(&saved).expect("the last weights were saved");
        assert_eq!(fingerprint(&real_params), fingerprint(&params), "{name} {flags:?}");
        assert_eq!(real["accuracy"].as_f64(), Some(simulated.result.accuracy), "{name} {flags:?}");
    }
}

#[test]
fn every_recipe_reaches_the_accuracy_that_it_has_on_threads() {
    for recipe in recipes() {
        let name = recipe.name.as_str();
        // Batches of abs grow for as long as an exchange lasts: on a busy machine it makes a few large steps in ten epochs.
        let epochs = if name == "abs" { "40" } else { "10" };
        // Workers of the speeds that threads emulate by default, so that recipes that read clocks read similar ones.
        let flags = ["--strategy", name, "--epochs", epochs, "--json", "--speeds", "4,4,2,1"];

        let real = result(name, &train(4, &flags));

        let threads = Command::new(PROGRAM).arg("train").args(flags).output().expect("it runs");
        let threads = result(name, &threads);
        let accuracy =
            |result: &serde_json::Value| result["accuracy"].as_f64().expect("it is scored");
        println!("{name}: {:.3} on ranks, {:.3} on threads", accuracy(&real), accuracy(&threads));
        assert!(accuracy(&real) > accuracy(&threads) - 0.04, "{name}");
    }
}

#[test]
fn sums_by_mpi_are_the_same_on_all_ranks() {
    // Members compare digests of what they hold; a difference ends the run.
    let flags = ["--sums", "mpi", "--strategy", "ssgd", "--model", "cnn", "--samples", "640"];
    let output = train(4, &[&flags[..], &["--epochs", "2", "--json"]].concat());

    let result = result("ssgd", &output);
    assert!(result["accuracy"].as_f64().expect("it is scored") > 0.3);
}

#[test]
fn without_a_launcher_there_is_one_rank() {
    let mut command = Command::new(PROGRAM);
    command.args(["train", "--cluster", "mpi", "--strategy", "ssgd", "--epochs", "2", "--json"]);
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("SLURM_")) {
        command.env_remove(name);
    }

    let result = result("alone", &command.output().expect("it runs"));

    assert_eq!(result["workers"].as_u64(), Some(1));
}

#[test]
fn one_rank_says_what_is_wrong_and_all_end_with_2() {
    let once = |output: &Output, sentence: &str| {
        let err = text(&output.stderr);
        // Slurm's launcher has errors of its own to tell.
        let ours = err.lines().filter(|line| !line.starts_with("srun:"));
        assert_eq!(ours.filter(|line| line.contains(sentence)).count(), 1, "{sentence}: {err}");
        assert_eq!(output.status.code(), Some(2), "{err}");
    };
    once(&train(3, &["--strategy", "sgsd", "--no-save"]), "error:");
    once(&train(3, &["--epochs", "many"]), "error:");

    // Two programs in one job, with different arguments.
    let is_slurm = is_launched_by("srun");
    if !is_slurm {
        let start =
            |epochs| [PROGRAM, "train", "--cluster", "mpi", "--no-save", "--epochs", epochs];
        let mut command = mpirun(2);
        command.args(start("1")).args([":", "-n", "1"]).args(start("2"));
        let output = command.output().expect("it runs");
        once(&output, "rank 2 was started with other arguments than rank 0");
    }

    // The same path, but another text on one rank.
    let texts = folder("texts");
    for (rank, text) in ["the same text ", "the same text ", "another text "].iter().enumerate() {
        fs::create_dir_all(texts.join(rank.to_string())).expect("it can be made");
        let path = texts.join(rank.to_string()).join("text.txt");
        fs::write(path, text.repeat(500)).expect("it can be written");
    }
    let rank = "${OMPI_COMM_WORLD_RANK:-${PMI_RANK:-$SLURM_PROCID}}";
    let train = format!(
        "{PROGRAM} train --cluster mpi --data text.txt --model charlm --no-save --epochs 1"
    );
    let script = format!("cd {}/{rank} && exec {train}", texts.display());
    let output = mpirun(3).args(["sh", "-c", &script]).output().expect("it runs");
    once(&output, "the data of rank 2 differ from those of rank 0");
}

/// The processes of a program among the descendants of one process.
fn ranks_of(parent: u32) -> Vec<u32> {
    let mut found = vec![];
    let mut open = vec![parent];
    while let Some(pid) = open.pop() {
        let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
        for task in tasks {
            let children = fs::read_to_string(task.path().join("children")).unwrap_or_default();
            open.extend(children.split_whitespace().filter_map(|it| it.parse::<u32>().ok()));
        }
        if fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|exe| exe == Path::new(PROGRAM)) {
            found.push(pid);
        }
    }
    found.sort_unstable();
    found
}

fn wait_for(what: &str, limit: Duration, mut is_there: impl FnMut() -> bool) {
    let since = Instant::now();
    while !is_there() {
        assert!(since.elapsed() < limit, "{what}: not within {limit:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_lost_rank_ends_the_job_which_resumes_on_fewer_ranks_and_on_every_other_cluster() {
    if is_launched_by("srun") {
        return; // Its ranks are no descendants of srun.
    }
    let saved = folder("lost");
    let place = saved.to_str().expect("it is text");
    let flags = ["--strategy", "ssgd", "--epochs", "150", "--checkpoints", place, "--no-report"];
    let mut command = mpirun(4);
    command.arg(PROGRAM).args(["train", "--cluster", "mpi", "--checkpoint-rounds", "100"]);
    let mut job: Child = command.args(flags).spawn().expect("the launcher can be started");
    wait_for("a checkpoint", Duration::from_secs(60), || load_params(&saved).is_ok());

    let ranks = ranks_of(job.id());
    assert_eq!(ranks.len(), 4, "{ranks:?}");
    let killed = Instant::now();
    let status = Command::new("kill").args(["-9", &ranks[2].to_string()]).status();
    assert!(status.expect("kill can be run").success());
    wait_for("the end", Duration::from_secs(15), || job.try_wait().expect("it runs").is_some());
    let took = killed.elapsed();

    let mut err = String::new();
    let stderr = job.stderr.as_mut().expect("it was piped");
    stderr.read_to_string(&mut err).expect("it is text");
    println!("ended {took:?} after the kill: {err}");
    if is_launched_by("mpirun.mpich") {
        // It kills all ranks at once, so that none can say anything. What to do was said at the beginning.
        assert!(err.contains("if a rank is lost, resume with"), "{err}");
    } else {
        assert_eq!(err.matches("was lost").count(), 1, "{err}");
        assert!(err.contains("the last checkpoint is"), "{err}");
    }
    let copies = folder("lost-copies");
    std::fs::create_dir_all(&copies).expect("it can be made");
    for name in ["threads", "processes", "machines"] {
        let is_copied = Command::new("cp").arg("-r").arg(&saved).arg(copies.join(name)).status();
        assert!(is_copied.expect("cp can be run").success());
    }
    let samples = 150 * 1293;
    let resumed = result("3 ranks", &train(3, &["--resume", place, "--json", "--no-report"]));
    assert_eq!(
        (resumed["samples"].as_u64(), resumed["workers"].as_u64()),
        (Some(samples), Some(3))
    );
    let state = folder("lost-state");
    let state = state.to_str().expect("it is text");
    let machines =
        format!("coordinate --workers 2 --workers-here 2 --listen 127.0.0.1:0 --state {state}");
    let elsewhere = [
        ("threads", "train --workers 4", 4),
        ("processes", "train --processes 2", 2),
        ("machines", &machines, 2),
    ];
    for (name, command, workers) in elsewhere {
        let mut resumed = Command::new(PROGRAM);
        resumed.args(command.split(' ')).args(["--json", "--no-report", "--resume"]);
        resumed.arg(copies.join(name));
        let resumed = result(name, &resumed.output().expect("it runs"));
        assert_eq!(
            (resumed["samples"].as_u64(), resumed["workers"].as_u64()),
            (Some(samples), Some(workers)),
            "{name}"
        );
    }
}

/// The first rank serves the page; a stop from there is that of Ctrl-C.
#[test]
fn the_first_rank_shows_the_run_on_its_page() {
    use std::io::{BufRead, BufReader, Write};
    use std::net::TcpStream;

    let mut command = mpirun(2);
    command.arg(PROGRAM).args(["train", "--cluster", "mpi", "--strategy", "ssgd"]);
    command.args(["--epochs", "100000", "--no-save", "--no-report", "--page", "0"]);
    let mut run = command.spawn().expect("the launcher can be started");
    let err = BufReader::new(run.stderr.take().expect("a pipe"));
    let mut lines = err.lines().map_while(Result::ok);
    let line = lines.find(|line| line.starts_with("Page: http://"));
    let line = line.expect("the page is announced");
    // A launcher that cannot pass on what ranks say may end them.
    let reading = std::thread::spawn(move || lines.for_each(drop));
    let at = line.trim_start_matches("Page: http://").split('/').next().expect("an address");
    let token = line.rsplit(' ').next().expect("a token").trim_end_matches(')');
    let ask = |request: &str| {
        let mut stream = TcpStream::connect(at).expect("it listens");
        let head = format!("Host: {at}\r\nAuthorization: Bearer {token}");
        write!(stream, "{request} HTTP/1.1\r\n{head}\r\n\r\n").expect("it is taken");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("it answers");
        answer
    };

    let since = Instant::now();
    while !ask("GET /metrics").contains("\npaceline_members 2\n") {
        assert!(since.elapsed() < Duration::from_secs(60), "both ranks take part");
        std::thread::sleep(Duration::from_millis(50));
    }
    let (state, put_out, stopped) =
        (ask("GET /status.json"), ask("POST /workers/1/put-out"), ask("POST /stop"));
    let ended = run.wait().expect("it ends");
    reading.join().expect("it reads to the end");

    assert!(state.contains("\"place\":\"MPI ranks\""), "{state}");
    assert!(put_out.starts_with("HTTP/1.1 501"), "{put_out}");
    assert!(stopped.starts_with("HTTP/1.1 200"), "{stopped}");
    assert!(!ended.success(), "a run that was stopped says so");
}
