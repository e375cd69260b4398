//! A loop of multiply-adds on registers, to measure the peak speed of a core.

use super::simd::Simd;
use super::{Kernel, Path};

impl Path {
    /// Runs `rounds` rounds of multiply-adds without touching memory, and returns the number of multiplications
    /// and additions.
    pub fn peak(self, rounds: u64) -> u64 {
        match self {
            // Enough independent sums to hide the latency, and few enough to fit into the registers.
            Path::Avx512 | Path::Neon => self.dispatch(Peak::<20> { rounds }),
            Path::Avx2 | Path::Portable => self.dispatch(Peak::<10> { rounds }),
        }
    }
}

struct Peak<const SUMS: usize> {
    rounds: u64,
}

impl<const SUMS: usize> Kernel for Peak<SUMS> {
    type Output = u64;

    #[inline(always)]
    unsafe fn run<S: Simd>(self) -> u64 {
        // SAFETY: the caller guarantees the instructions of `S`, and no pointers are involved.
        let sums = unsafe {
            let (a, b) = (S::splat(0.5), S::splat(1.0));
            let mut sums = [S::zero(); SUMS];
            for _ in 0..self.rounds {
                for sum in &mut sums {
                    *sum = S::mul_add(*sum, a, b);
                }
            }
            sums
        };
        std::hint::black_box(&sums);
        2 * self.rounds * (SUMS * S::LANES) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_path_counts_two_operations_per_lane_and_sum() {
        for (path, lanes) in
            [(Path::Avx512, 20 * 16), (Path::Avx2, 10 * 8), (Path::Portable, 10 * 4)]
        {
            if path.is_here() {
                assert_eq!(path.peak(3), 2 * 3 * lanes, "{}", path.name());
            }
        }
    }
}
