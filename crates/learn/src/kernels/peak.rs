//! A loop of nothing but multiply-adds, to measure what a core can do at most.

use super::simd::Simd;
use super::{Kernel, Path};

impl Path {
    /// Does multiply-adds on registers, so many rounds of them, and gives how many multiplications and
    /// additions those were. No memory is touched.
    pub fn peak(self, rounds: u64) -> u64 {
        match self {
            // Enough sums at a time to hide the latency, and few enough for the registers.
            Path::Avx512 | Path::Neon => self.dispatch(Go::<20> { rounds }),
            Path::Avx2 | Path::Portable => self.dispatch(Go::<10> { rounds }),
        }
    }
}

struct Go<const SUMS: usize> {
    rounds: u64,
}

impl<const SUMS: usize> Kernel for Go<SUMS> {
    type Output = u64;

    #[inline(always)]
    unsafe fn go<S: Simd>(self) -> u64 {
        // SAFETY: `dispatch` has made sure of the instructions.
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
