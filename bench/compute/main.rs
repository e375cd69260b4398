//! How fast gradients are, beside the peak of the machine and PyTorch: `cargo bench --bench compute` prints tables; see
//! docs/speed.md.

mod clock;
mod layers;
mod models;
mod peak;
mod peer;
mod workers;

use std::path::PathBuf;
use std::process::ExitCode;

use clock::{Rate, Spread};
use models::{BATCH, MODELS, Named, Training};
use paceline::Model;
use peer::Peer;

const PARTS: [&str; 4] = ["models", "layers", "workers", "simulator"];
const USAGE: &str = "cargo bench --bench compute -- [models] [layers] [workers] [simulator] [--torch] [--python FILE] [--rounds N]";

/// The length of each measurement of a model.
const SECONDS: f64 = 1.0;

struct Options {
    parts: Vec<String>,
    rounds: usize,
    torch: bool,
    python: Option<PathBuf>,
}

fn main() -> ExitCode {
    let options = match parse(std::env::args().skip(1)) {
        Ok(options) => options,
        Err(message) => {
            eprintln!("{message}\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    match measure(&options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("{message}");
            ExitCode::FAILURE
        }
    }
}

fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Options, String> {
    let mut options = Options { parts: vec![], rounds: 5, torch: false, python: None };
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().ok_or_else(|| format!("{argument} needs a value"));
        match argument.as_str() {
            // Cargo passes this to every benchmark.
            "--bench" => {}
            "--torch" => options.torch = true,
            "--python" => options.python = Some(value()?.into()),
            "--rounds" => {
                let rounds = value()?.parse().ok().filter(|rounds| (1..=1000).contains(rounds));
                options.rounds = rounds.ok_or("--rounds is a number from 1 to 1000")?;
            }
            part if PARTS.contains(&part) => options.parts.push(argument),
            other => return Err(format!("{other:?} is neither an option nor a part")),
        }
    }
    Ok(options)
}

fn measure(options: &Options) -> Result<(), String> {
    let wants = |part: &str| options.parts.is_empty() || options.parts.iter().any(|p| p == part);
    print_machine();
    if wants("models") {
        let mut peers = match (&options.python, options.torch) {
            (Some(python), _) => Peer::all(python)?,
            (None, true) => Peer::all(&peer::environment()?)?,
            (None, false) => vec![],
        };
        print_models(options.rounds, &mut peers)?;
    }
    if wants("layers") {
        layers::print(options.rounds);
    }
    if wants("workers") {
        workers::print_scaling(options.rounds);
    }
    if wants("simulator") {
        workers::print_overhead(options.rounds);
    }
    Ok(())
}

fn print_machine() {
    let cpus = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = cpus.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let name = name.map_or("an unknown processor", |(_, name)| name);
    let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
    println!("{name}, {cores} cores, kernels {}", paceline::learn::Path::best().name());
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load: f64 = load.split(' ').next().and_then(|one| one.parse().ok()).unwrap_or(0.0);
    println!("load average at the start: {load:.2}");
    if load > 1.5 {
        println!("warning: other programs run on this machine; trust only the figures by CPU time");
    }
}

/// The measurements of a model in each round: ours, the peak, and the peer's.
#[derive(Default)]
struct Rounds {
    ours: Vec<Rate>,
    peaks: Vec<Rate>,
    theirs: Vec<Rate>,
}

/// Measures all models in turn, ours and the peer's alternating.
fn print_models(rounds: usize, peers: &mut [Peer]) -> Result<(), String> {
    let mut trainings: Vec<Training> = Vec::new();
    let mut ways = Vec::new();
    for named in MODELS {
        let (net, batch) = (named.make)();
        ways.push(choose(named.name, net.params(), peers)?);
        trainings.push(Training::of(net, batch));
    }
    let mut all: Vec<Rounds> = MODELS.iter().map(|_| Rounds::default()).collect();
    for _ in 0..rounds {
        for (index, Named { name, .. }) in MODELS.iter().enumerate() {
            let ours = clock::rate(SECONDS, || trainings[index].step());
            all[index].ours.push(ours.times(BATCH as f64));
            all[index].peaks.push(peak::rate());
            if let Some((peer, _)) = &ways[index] {
                all[index].theirs.push(peers[*peer].measure(name, SECONDS)?);
            }
        }
    }
    print_ours(&all, &trainings);
    if !peers.is_empty() {
        let ways = ways.into_iter().flatten().map(|(_, way)| way);
        print_beside(&all, ways);
    }
    Ok(())
}

/// The index of the fastest peer for this model, and how it trains it.
fn choose(
    name: &str,
    params: usize,
    peers: &mut [Peer],
) -> Result<Option<(usize, String)>, String> {
    let Some((first, others)) = peers.split_first_mut() else { return Ok(None) };
    eprintln!("PyTorch: finding the fastest way to train {name}");
    let tuned = first.tune(name)?;
    tuned.failed.iter().for_each(|why| eprintln!("this PyTorch does not support {why}"));
    if tuned.params != params {
        return Err(format!("{name} has {params} params here and {} there", tuned.params));
    }
    for other in others {
        other.take(name, &tuned.way)?;
    }
    let mut best = vec![0.0f64; peers.len()];
    for _ in 0..3 {
        for (best, peer) in best.iter_mut().zip(peers.iter_mut()) {
            *best = best.max(peer.measure(name, SECONDS / 2.0)?.cpu);
        }
    }
    let fastest = (0..peers.len()).max_by(|a, b| best[*a].total_cmp(&best[*b]));
    Ok(fastest.map(|peer| (peer, format!("{}, {}", tuned.way, peers[peer].memory))))
}

fn print_ours(all: &[Rounds], trainings: &[Training]) {
    println!("\nforward, backward and SGD with momentum, batch {BATCH}, one thread");
    println!(
        "{:<12} {:>24} {:>20} {:>9} {:>14}",
        "model", "samples/s by wall", "by CPU time", "GFLOP/s", "share of peak"
    );
    for ((named, rounds), training) in MODELS.iter().zip(all).zip(trainings) {
        let flops = training.net.flops() as f64;
        let wall = Spread::of(rounds.ours.iter().map(|ours| ours.wall));
        let cpu = Spread::of(rounds.ours.iter().map(|ours| ours.cpu)).median;
        let pairs = rounds.ours.iter().zip(&rounds.peaks);
        let share = Spread::of(pairs.map(|(ours, peak)| ours.cpu * flops / peak.cpu)).median;
        println!(
            "{:<12} {wall:>24.0} {cpu:>20.0} {:>9.1} {:>12.0} %",
            named.name,
            cpu * flops / 1e9,
            100.0 * share
        );
    }
    let peaks = all.iter().flat_map(|rounds| &rounds.peaks);
    println!("peak of a core: {:.1} GFLOP/s", Spread::of(peaks.map(|peak| peak.cpu / 1e9)));
}

fn print_beside(all: &[Rounds], ways: impl Iterator<Item = String>) {
    println!("\nbeside PyTorch, in turn, one thread");
    println!(
        "{:<12} {:>11} {:>11} {:>20} {:>20} {:>7}  how PyTorch does it",
        "model", "ours/s", "PyTorch/s", "ratio by wall", "by CPU time", "target"
    );
    for ((named, rounds), way) in MODELS.iter().zip(all).zip(ways) {
        let pairs = || rounds.ours.iter().zip(&rounds.theirs);
        let ours = Spread::of(rounds.ours.iter().map(|ours| ours.wall)).median;
        let theirs = Spread::of(rounds.theirs.iter().map(|theirs| theirs.wall)).median;
        let wall = Spread::of(pairs().map(|(ours, theirs)| ours.wall / theirs.wall));
        let cpu = Spread::of(pairs().map(|(ours, theirs)| ours.cpu / theirs.cpu));
        println!(
            "{:<12} {ours:>11.0} {theirs:>11.0} {wall:>20.2} {cpu:>20.2} {:>7.2}  {way}",
            named.name, named.target
        );
    }
}
