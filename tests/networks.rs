//! Training over networks that are slow and that break. Every machine is a network namespace with a network device of its own,
//! all of them are ports of one bridge, and the programs are the real ones: a coordinator and three workers that speak TLS.
//!
//! Needs root and `ip` and `tc` (Debian: iproute2); otherwise every test is skipped with one sentence. `NETWORKS=all` runs every
//! recipe through every fault: `NETWORKS=all cargo test --test networks -- --nocapture --test-threads 1`.

#![cfg(target_os = "linux")]

mod machines;

use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use machines::{Cluster, Journal, Process, applied};
use paceline::{RunResult, recipes};

const WORKERS: usize = 3;
const PATIENCE: Duration = Duration::from_secs(1);
/// A link that makes training long enough for a fault: on it, not the speed of the machine decides how long a round takes.
const SLOW: &str = "8mbit";

fn run(program: &str, arguments: &str) -> bool {
    let mut command = Command::new(program);
    let command = command.args(arguments.split_whitespace()).stdout(Stdio::null());
    command.stderr(Stdio::null()).status().is_ok_and(|status| status.success())
}

/// Machines on one switch. They are removed when this is dropped, also by a panic.
struct Network {
    /// Begins the names of all its namespaces.
    name: String,
}

impl Network {
    /// `None` if this machine allows no networks of our own.
    fn new(rate: &str) -> Option<Network> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let network = Network { name: format!("paceline-{}-{number}", std::process::id()) };
        let is_made = network.make(rate);
        if !is_made {
            println!("skipped: networks need root, and `ip` and `tc` of the package iproute2");
        }
        is_made.then_some(network)
    }

    fn make(&self, rate: &str) -> bool {
        let switch = self.switch();
        let mut is_made = run("ip", &format!("netns add {switch}"))
            && run("ip", &format!("-n {switch} link add bridge0 type bridge"))
            && run("ip", &format!("-n {switch} link set bridge0 up"));
        for number in 0..=WORKERS {
            let host = self.host(number);
            let wires =
                format!("name eth0 netns {host} type veth peer port{number} netns {switch}");
            is_made = is_made
                && run("ip", &format!("netns add {host}"))
                && run("ip", &format!("link add {wires}"))
                && run("ip", &format!("-n {host} address add {}/24 dev eth0", address(number)))
                && run("ip", &format!("-n {host} link set lo up"))
                && run("ip", &format!("-n {host} link set eth0 up"))
                && run("ip", &format!("-n {switch} link set port{number} up"))
                && self.connect(number)
                && run(
                    "tc",
                    &format!(
                        "-n {host} qdisc add dev eth0 root tbf rate {rate} burst 16kb latency 400ms"
                    ),
                );
        }
        is_made
    }

    fn switch(&self) -> String {
        format!("{}-switch", self.name)
    }

    /// Machine 0 is the coordinator's, the others are the workers'.
    fn host(&self, number: usize) -> String {
        format!("{}-{number}", self.name)
    }

    /// Pulls a machine's cable: what it sends and what is sent to it disappears, and nobody is told.
    fn cut(&self, number: usize) {
        let switch = self.switch();
        assert!(run("ip", &format!("-n {switch} link set port{number} nomaster")));
    }

    fn connect(&self, number: usize) -> bool {
        run("ip", &format!("-n {} link set port{number} master bridge0", self.switch()))
    }

    /// What one machine sends to another disappears.
    fn cut_one_way(&self, from: usize, to: usize) {
        let route = format!("route add blackhole {}/32", address(to));
        assert!(run("ip", &format!("-n {} {route}", self.host(from))));
    }

    fn connect_one_way(&self, from: usize, to: usize) {
        let route = format!("route del blackhole {}/32", address(to));
        assert!(run("ip", &format!("-n {} {route}", self.host(from))));
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        for number in 0..=WORKERS {
            run("ip", &format!("netns del {}", self.host(number)));
        }
        run("ip", &format!("netns del {}", self.switch()));
    }
}

fn address(number: usize) -> String {
    format!("10.99.0.{}", number + 1)
}

/// A training on such machines.
struct Training {
    network: Network,
    cluster: Cluster,
    coordinator: Process,
    workers: Vec<Process>,
    journal: Journal,
}

impl Training {
    /// Returns when samples are being applied. Worker `i` is on machine `i + 1`. The job lasts as long as ssgd for this many epochs.
    fn start(recipe: &str, epochs: f64, patience: Duration) -> Option<Training> {
        // These send less, exchange less often, or take larger batches while they wait for the network.
        let longer = match recipe {
            "qsgd" => 4.0,
            "abs" => 40.0,
            "cpsgd" | "adpsgd" | "local-dbs" => 6.0,
            "diloco" => 12.0,
            _ => 1.0,
        };
        Training::with("2:8", recipe, longer * epochs, SLOW, patience)
    }

    /// `first`: how many workers it begins with, and pauses without.
    fn with(
        first: &str,
        recipe: &str,
        epochs: f64,
        rate: &str,
        patience: Duration,
    ) -> Option<Training> {
        let network = Network::new(rate)?;
        let patience = patience.as_secs_f64();
        let arguments = format!(
            "--workers {first} --strategy {recipe} --epochs {epochs} --patience {patience}"
        );
        let listen = format!("{}:7070", address(0));
        let mut cluster = Cluster::new(&network.name[9..], listen, &arguments);
        let coordinator = cluster.coordinator(Some(&network.host(0)));
        let mut workers: Vec<Process> = vec![];
        for number in 1..=WORKERS {
            let worker = cluster.worker(Some(&network.host(number)));
            machines::wait("a worker joins", || worker.messages().contains("joined as worker"));
            workers.push(worker);
        }
        let mut journal = cluster.journal();
        journal.wait_until("three workers are members", |lines| {
            applied(lines) > 0 && machines::last_view(lines).len() == WORKERS
        });
        Some(Training { network, cluster, coordinator, workers, journal })
    }

    /// Waits until samples are applied beyond those that are applied by now.
    fn advance(&mut self, by: u64) {
        let before = applied(&self.journal.read().lines);
        self.journal.wait_until("training continues", |lines| applied(lines) >= before + by);
    }

    /// Waits until all workers are members again.
    fn reunite(&mut self) {
        self.journal.wait_until("all workers are members", |lines| {
            machines::last_view(lines).len() == WORKERS
        });
    }

    /// Waits for the end; every worker must have ended well, and nothing was begun again.
    fn finish(mut self) -> (RunResult, Journal) {
        let result = self.cluster.result(&mut self.coordinator);
        for worker in &mut self.workers {
            let is_ok = worker.end().success();
            let last = worker.messages().lines().last().unwrap_or_default().to_owned();
            // One that was put out when the others finished finds no job that it could join.
            let is_late = last.contains("the job is over") || last.contains("cannot be reached");
            assert!(is_ok || is_late, "{}", worker.messages());
        }
        assert_eq!(result.started_over, 0);
        self.journal.begin_anew();
        self.journal.read();
        (result, self.journal)
    }
}

/// One recipe of each kind: synchronous, averaging, gossip, a center of replicas, a center of gradients; or those that NETWORKS
/// names, `all` or separated by commas.
fn kinds(few: &[&str]) -> Vec<String> {
    match std::env::var("NETWORKS").as_deref() {
        Ok("all") => recipes().into_iter().map(|recipe| recipe.name).collect(),
        Ok(names) => names.split(',').map(str::to_owned).collect(),
        Err(_) => few.iter().map(|name| (*name).to_owned()).collect(),
    }
}

#[test]
fn a_cut_that_is_shorter_than_the_patience_puts_nobody_out() {
    for recipe in kinds(&["ssgd"]) {
        let Some(mut training) = Training::start(&recipe, 8.0, 2 * PATIENCE) else { return };
        let views = training.journal.views().len();

        training.network.cut(2);
        std::thread::sleep(PATIENCE.mul_f64(0.7));
        training.network.connect(2);
        training.advance(200);

        let (_, journal) = training.finish();
        assert_eq!((journal.put_out(), journal.views().len()), (0, views), "{recipe}");
    }
}

#[test]
fn a_worker_that_is_cut_off_for_longer_than_the_patience_is_put_out_and_joins_again() {
    for recipe in kinds(&["ssgd", "easgd"]) {
        // The first member keeps the center.
        let Some(mut training) = Training::start(&recipe, 14.0, PATIENCE) else { return };

        training.network.cut(1);
        training.journal.wait_until("it is put out", |lines| machines::last_view(lines).len() == 2);
        training.advance(200);
        training.network.connect(1);
        training.reunite();
        training.advance(100);

        assert!(training.workers[0].messages().contains("joining again"), "{recipe}");
        let (_, journal) = training.finish();
        println!("{recipe}: {:?}", journal.views());
    }
}

#[test]
fn a_link_that_carries_nothing_in_one_direction_stops_nobody_else() {
    // Workers of ssp speak only with the one that has the center: nobody notices.
    for recipe in kinds(&["ssgd"]).into_iter().filter(|it| it != "ssp") {
        let Some(mut training) = Training::start(&recipe, 24.0, PATIENCE) else { return };

        training.network.cut_one_way(2, 3);
        training
            .journal
            .wait_until("one is put out", |lines| machines::last_view(lines).len() == 2);
        // It joins again and again meanwhile, and cannot reach the other one.
        for _ in 0..4 {
            std::thread::sleep(PATIENCE / 2);
            training.advance(32);
        }
        training.network.connect_one_way(2, 3);
        training.reunite();
        // What it says to the coordinator is lost, and it hears all that the coordinator says.
        training.network.cut_one_way(1, 0);
        training.journal.wait_until("it is put out", |lines| machines::last_view(lines).len() == 2);
        training.advance(200);
        training.network.connect_one_way(1, 0);
        training.reunite();

        let (_, journal) = training.finish();
        println!("{recipe}: {:?}", journal.views());
    }
}

#[test]
fn a_coordinator_that_is_cut_off_for_longer_than_the_patience_starts_nothing_over() {
    for recipe in kinds(&["ssgd", "async"]) {
        let Some(mut training) = Training::start(&recipe, 30.0, PATIENCE) else { return };

        training.network.cut(0);
        std::thread::sleep(PATIENCE.mul_f64(2.5));
        training.network.connect(0);
        training.reunite();
        training.advance(200);

        let (result, journal) = training.finish();
        let wasted = result.samples_wasted;
        println!("{recipe}: {:?}, {wasted} samples computed again", journal.reasons());
    }
}

#[test]
fn training_ends_on_links_of_100_and_of_10_megabits_a_second() {
    for recipe in kinds(&["ssgd", "gossip-pull"]) {
        for (rate, epochs) in [("100mbit", 6.0), ("10mbit", 3.0)] {
            let training = Training::with("3", &recipe, epochs, rate, 2 * PATIENCE);
            let Some(training) = training else { return };
            let (result, journal) = training.finish();
            assert_eq!(journal.put_out(), 0, "{recipe}, {rate}");
            let bytes = result.bytes_sent as f64 / 1e6;
            println!("{recipe}, {rate}: {bytes:.1} MB in {:.1} s", result.seconds());
        }
    }
}
