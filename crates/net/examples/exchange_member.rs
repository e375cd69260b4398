//! One of our processes in `bench/exchange.py`: adds vectors with the other members, and tells how long it took.
//!
//! `exchange_member NAME KIND RANK MEMBERS SIZES SOCKET AUTHORITY`. Kinds: `memory` (vectors lie in shared memory, the sum is read in
//! place), `copied` (shared memory, but the input lies elsewhere and the sum is copied), `tcp`, `tls`; `memcpy`, `loopback` and `bare` are
//! what the machine can do: a copy of the vector, a stream of it from one thread to another, and vectors in shared memory that each member
//! adds as soon as a word of the other one says that they are there, without anything else that a sum of a job has.

use std::error::Error;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant, SystemTime};

use paceline_identity::{Authority, Credentials, JobName, Key, Name, Nonce, Role};
use paceline_learn::Vector;
use paceline_learn::kernels::shared::{Claim, OwnSegment, PeerSegment};
use paceline_net::processes::Shape;
use paceline_net::processes::bench::Member;
use paceline_runtime::WorkerId;
use paceline_runtime::codec::{Codec, Payload};
use rustix::time::{ClockId, clock_gettime};

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [name, kind, rank, members, sizes, socket, authority] = <[String; 7]>::try_from(arguments)
        .map_err(|_| "NAME KIND RANK MEMBERS SIZES SOCKET AUTHORITY")?;
    let (rank, n): (u32, usize) = (rank.parse()?, members.parse()?);
    let sizes = sizes.split(',').map(str::parse).collect::<Result<Vec<usize>, _>>()?;
    let mut meshes = vec![];
    let mut ports = vec![];
    let is_bare = kind == "bare";
    let mut bare = vec![];
    for bytes in sizes.iter().filter(|_| is_bare) {
        let own = OwnSegment::new(BARE_CONTROL, &[*bytes])?;
        // A path by which the others open it.
        ports.push(format!("/proc/{}/fd/{}", std::process::id(), own.descriptor().as_raw_fd()));
        bare.push(Bare::new(own, (rank, bytes / 4))?);
    }
    let is_limit = kind == "memcpy" || kind == "loopback" || is_bare;
    for bytes in sizes.iter().filter(|_| !is_limit) {
        let listener = TcpListener::bind(("127.0.0.1", 0))?;
        ports.push(listener.local_addr()?.port().to_string());
        let shape = Shape { seed: 1, params: bytes / 4, buffers: 0, codec: Codec::Dense };
        let shares = kind == "memory" || kind == "copied";
        let security = (kind == "tls").then(|| credentials(Path::new(&authority), rank));
        meshes.push(Member::start(rank, listener, shape, shares, security.transpose()?)?);
    }
    let socket = UnixStream::connect(socket)?;
    let (mut from, mut to) = (BufReader::new(socket.try_clone()?).lines(), socket);
    writeln!(to, "{name} {rank} {}", ports.join(" "))?;
    let mut next = || from.next().transpose();
    for mesh in &mut meshes {
        let addresses = next()?.ok_or("the driver is gone")?;
        let ports = addresses.split(' ').map(str::parse).collect::<Result<Vec<u16>, _>>()?;
        let addresses: Vec<SocketAddr> =
            ports.into_iter().map(|port| SocketAddr::from(([127, 0, 0, 1], port))).collect();
        mesh.meet(&addresses);
    }
    for bare in &mut bare {
        let paths = next()?.ok_or("the driver is gone")?;
        bare.meet(&paths)?;
    }
    while let Some(line) = next()? {
        let (bytes, times) = line.split_once(' ').ok_or("BYTES TIMES")?;
        let (bytes, times): (usize, usize) = (bytes.parse()?, times.parse()?);
        let at = sizes.iter().position(|size| *size == bytes).ok_or("a size of the list")?;
        let (took, cpu) = match kind.as_str() {
            "memcpy" => copy(bytes, times),
            "loopback" => stream(bytes, times)?,
            "bare" => bare[at].measure(times),
            _ => measure(&mut meshes[at], &kind, (rank, n), times)?,
        };
        let took: Vec<String> = took.iter().map(|it| it.as_nanos().to_string()).collect();
        writeln!(to, "{}|{}", took.join(","), cpu.as_nanos())?;
    }
    Ok(())
}

fn input(rank: u32, i: usize) -> f32 {
    (i % 97) as f32 * 0.1 + rank as f32
}

/// How long each of some sums took, and the time of all threads of this process together.
fn measure(
    member: &mut Member,
    kind: &str,
    (rank, n): (u32, usize),
    times: usize,
) -> Result<(Vec<Duration>, Duration), Box<dyn Error>> {
    let is_shared = kind == "memory" || kind == "copied";
    while is_shared && !member.is_near() {
        std::thread::sleep(Duration::from_millis(1));
    }
    let mut vector = member.memory();
    if kind == "copied" {
        vector = Vector::zeros(vector.len());
    }
    vector.iter_mut().enumerate().for_each(|(i, x)| *x = input(rank, i));
    let payload = Arc::new(Payload::dense(vector));
    // The first sum is not timed: its bits are looked at. That takes one member longer than another, and so a second one is where
    // everybody arrives.
    let sum = member.sum(payload.clone()).ok_or("a member is gone")?;
    for (i, x) in sum.gradient.sum.iter().enumerate() {
        let expected = (1..n as u32).fold(input(0, i), |sum, rank| sum + input(rank, i));
        if x.to_bits() != expected.to_bits() {
            return Err(format!("number {i} of the sum is {x}, not {expected}").into());
        }
    }
    drop(sum);
    let arrived = member.sum(payload.clone()).ok_or("a member is gone")?;
    let (mut took, mut kept) = (Vec::with_capacity(times), vec![arrived]);
    let before = cpu_time();
    for _ in 0..times {
        let start = Instant::now();
        let sum = member.sum(payload.clone()).ok_or("a member is gone")?;
        let copy = (kind == "copied").then(|| sum.gradient.sum.clone());
        took.push(start.elapsed());
        // A worker keeps its last result.
        kept = vec![sum];
        drop(copy);
    }
    drop(kept);
    Ok((took, cpu_time() - before))
}

/// Vectors in shared memory, and a word of each member that says how many sums it has entered.
struct Bare {
    own: Arc<OwnSegment>,
    input: Claim,
    rank: u32,
    numbers: usize,
    /// By rank, without this member.
    others: Vec<(Arc<PeerSegment>, Vector)>,
    entered: u64,
    sum: Vec<f32>,
}

const BARE_CONTROL: usize = 4096;

impl Bare {
    fn new(own: Arc<OwnSegment>, (rank, numbers): (u32, usize)) -> Result<Bare, Box<dyn Error>> {
        let mut input_block = own.claim(0).ok_or("a block for the input")?;
        let values = input_block.numbers(numbers);
        values.iter_mut().enumerate().for_each(|(i, x)| *x = input(rank, i));
        let (others, sum) = (vec![], vec![0.0; numbers]);
        Ok(Bare { own, input: input_block, rank, numbers, others, entered: 0, sum })
    }

    fn meet(&mut self, paths: &str) -> Result<(), Box<dyn Error>> {
        for (rank, path) in paths.split(' ').enumerate() {
            if rank != self.rank as usize {
                let file = std::fs::File::options().read(true).write(true).open(path)?;
                let segment = PeerSegment::new(file.into(), self.own.bytes())?;
                let numbers = segment.numbers(self.input.place(), self.numbers);
                let numbers = numbers.ok_or("numbers in the segment")?;
                self.others.push((segment, Vector::from(numbers)));
            }
        }
        Ok(())
    }

    fn add(&mut self) {
        self.entered += 1;
        self.own.words()[0].store(self.entered, Ordering::Release);
        for (segment, _) in &self.others {
            let mut looks = 0_u32;
            while segment.word(0) < self.entered {
                looks += 1;
                // Members that share cores let each other run.
                if looks > 1000 { std::thread::yield_now() } else { std::hint::spin_loop() }
            }
        }
        let mine = self.input.as_slice(self.numbers);
        match &self.others[..] {
            [(_, other)] => {
                let both = mine.iter().zip(other.iter());
                self.sum.iter_mut().zip(both).for_each(|(sum, (x, y))| *sum = x + y);
            }
            others => {
                self.sum.copy_from_slice(mine);
                for (_, other) in others {
                    self.sum.iter_mut().zip(other.iter()).for_each(|(sum, x)| *sum += x);
                }
            }
        }
        std::hint::black_box(&self.sum);
    }

    fn measure(&mut self, times: usize) -> (Vec<Duration>, Duration) {
        // Where everybody arrives.
        self.add();
        self.add();
        let before = cpu_time();
        let took = (0..times).map(|_| {
            let start = Instant::now();
            self.add();
            start.elapsed()
        });
        (took.collect(), cpu_time() - before)
    }
}

fn copy(bytes: usize, times: usize) -> (Vec<Duration>, Duration) {
    let (from, mut to) = (vec![1u8; bytes], vec![0u8; bytes]);
    to.copy_from_slice(&from);
    let before = cpu_time();
    let took = (0..times).map(|_| {
        let start = Instant::now();
        to.copy_from_slice(std::hint::black_box(&from));
        std::hint::black_box(&to);
        start.elapsed()
    });
    (took.collect(), cpu_time() - before)
}

fn stream(bytes: usize, times: usize) -> Result<(Vec<Duration>, Duration), Box<dyn Error>> {
    let listener = TcpListener::bind(("127.0.0.1", 0))?;
    let mut to = std::net::TcpStream::connect(listener.local_addr()?)?;
    let (mut from, _) = listener.accept()?;
    to.set_nodelay(true)?;
    from.set_nodelay(true)?;
    let echo = std::thread::spawn(move || -> std::io::Result<()> {
        let mut into = vec![0; bytes];
        for _ in 0..=times {
            from.read_exact(&mut into)?;
            from.write_all(&[1])?;
        }
        Ok(())
    });
    let (data, mut took, mut before) = (vec![1u8; bytes], vec![], cpu_time());
    for i in 0..=times {
        let start = Instant::now();
        to.write_all(&data)?;
        to.read_exact(&mut [0])?;
        if i == 0 {
            before = cpu_time();
        } else {
            took.push(start.elapsed());
        }
    }
    let spent = cpu_time() - before;
    echo.join().map_err(|_| "the reader panicked")??;
    Ok((took, spent))
}

fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// A certificate for this member, by an authority that the driver made a path for. The first member makes it.
fn credentials(path: &Path, rank: u32) -> Result<Credentials, Box<dyn Error>> {
    let now = SystemTime::now();
    while rank > 0 && Authority::load(path, now).is_err() {
        std::thread::sleep(Duration::from_millis(5));
    }
    let authority = Authority::open(path, now)?;
    let job = JobName::try_from("bench".to_owned())?;
    let key = Key::generate();
    let name = Name { job: job.clone(), role: Role::Worker(WorkerId(rank)) };
    let certificate = authority.issue(&name, &key.request(Nonce::random()), now);
    Ok(Credentials::new(key, certificate, authority.trust(job))?)
}
