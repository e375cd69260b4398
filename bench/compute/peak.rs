//! The peak of a core: multiply-adds on registers alone.

use paceline::learn::Path;

use crate::clock::{self, Rate};

const ROUNDS: u64 = 100_000;
const SECONDS: f64 = 0.1;

/// Multiplications and additions per second of one thread, with the instructions that the models use.
pub fn rate() -> Rate {
    let path = Path::best();
    let mut flops = 0;
    let rounds = clock::rate(SECONDS, || flops = path.peak(ROUNDS));
    rounds.times(flops as f64)
}

/// The sum over several threads at once.
pub fn of_threads(threads: usize) -> Rate {
    std::thread::scope(|scope| {
        let all: Vec<_> = (0..threads).map(|_| scope.spawn(rate)).collect();
        let rates = all.into_iter().map(|thread| thread.join().expect("a loop does not panic"));
        let sum =
            |sum: Rate, rate: Rate| Rate { wall: sum.wall + rate.wall, cpu: sum.cpu + rate.cpu };
        rates.fold(Rate { wall: 0.0, cpu: 0.0 }, sum)
    })
}
