//! Keyed random numbers: the same keys always have the same sequence, independently of all other draws.

/// Mixes the bits of `x` (the finalizer of SplitMix64).
pub fn mix(x: u64) -> u64 {
    let mut x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// A sequence of random numbers that depends only on its keys.
#[derive(Clone, Debug)]
pub struct Dice(u64);

impl Dice {
    /// By convention, the keys are (seed, worker, round, purpose).
    pub fn keyed(keys: &[u64]) -> Dice {
        Dice(keys.iter().fold(0x7061_6365, |state, key| mix(state ^ mix(*key))))
    }

    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// Uniform in [0, 1).
    pub fn unit(&mut self) -> f64 {
        (self.draw() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Uniform in 0..n. The remainder has a bias of about n / 2^64, which is negligible for small `n`.
    pub fn below(&mut self, n: u64) -> u64 {
        assert!(n > 0, "the range of a random number is not empty");
        self.draw() % n
    }

    /// Uniform in [from, to).
    pub fn between(&mut self, from: f64, to: f64) -> f64 {
        from + (to - from) * self.unit()
    }

    /// Normal with mean 0 and variance 1 (Box and Muller).
    pub fn normal(&mut self) -> f64 {
        let radius = (-2.0 * (1.0 - self.unit()).ln()).sqrt();
        radius * (std::f64::consts::TAU * self.unit()).cos()
    }
}
