//! The order in which samples are read: a permutation for each epoch, computed instead of stored.

use crate::dice::mix;

/// Maps position k of the job to epoch k / len and to the (k mod len)-th sample of that epoch's permutation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Order {
    seed: u64,
    len: u64,
    /// Half the number of bits of the numbers that the Feistel network permutes.
    half_bits: u32,
}

/// Four rounds are enough in theory (Luby and Rackoff 1988); two more improve the mixing of very small data
/// sets.
const FEISTEL_ROUNDS: u64 = 6;

impl Order {
    pub fn new(seed: u64, len: u64) -> Order {
        assert!(len > 0, "an order needs at least one sample");
        let bits = u64::BITS - (len - 1).leading_zeros();
        Order { seed, len, half_bits: bits.div_ceil(2).max(1) }
    }

    /// The (epoch, index) at a position of the job.
    pub fn at(&self, position: u64) -> (u64 /* epoch */, u64 /* index */) {
        let epoch = position / self.len;
        let key = mix(mix(self.seed) ^ mix(!epoch));
        // Cycle walking: repeating the permutation until the result is in 0..len is a bijection of
        // 0..len, and it ends because the start is in 0..len.
        let mut index = self.scatter(key, position % self.len);
        while index >= self.len {
            index = self.scatter(key, index);
        }
        (epoch, index)
    }

    fn scatter(&self, key: u64, index: u64) -> u64 {
        let mask = (1u64 << self.half_bits) - 1;
        let (mut left, mut right) = (index >> self.half_bits, index & mask);
        for round in 0..FEISTEL_ROUNDS {
            let scattered = mix(key.wrapping_add(round << 32) ^ right) & mask;
            (left, right) = (right, left ^ scattered);
        }
        left << self.half_bits | right
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn epoch_of(order: &Order, len: u64, epoch: u64) -> Vec<u64> {
        (epoch * len..(epoch + 1) * len).map(|position| order.at(position).1).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig {
            cases: 64, failure_persistence: None, ..ProptestConfig::default()
        })]

        #[test]
        fn every_epoch_holds_every_sample_once(seed: u64, len in 1u64..600, epoch in 0u64..9999) {
            let order = Order::new(seed, len);

            let mut indices = epoch_of(&order, len, epoch);

            indices.sort_unstable();
            prop_assert_eq!(indices, (0..len).collect::<Vec<_>>());
        }

        #[test]
        fn an_index_is_within_a_data_set_of_any_size(seed: u64, len in 1u64.., position: u64) {
            let (epoch, index) = Order::new(seed, len).at(position);

            prop_assert_eq!(epoch, position / len);
            prop_assert!(index < len);
        }
    }

    #[test]
    fn epochs_and_seeds_differ() {
        let orders = [Order::new(1, 50), Order::new(2, 50)];

        let epochs: std::collections::BTreeSet<_> = orders
            .iter()
            .flat_map(|order| (0..100).map(|epoch| epoch_of(order, 50, epoch)))
            .collect();

        assert_eq!(epochs.len(), 200);
    }

    /// Each of the n = 10 samples is first in a tenth of 10,000 epochs; 150 is five standard
    /// deviations.
    #[test]
    fn every_sample_is_first_with_the_same_probability() {
        let order = Order::new(7, 10);
        let mut firsts = [0i32; 10];

        for epoch in 0..10_000 {
            firsts[order.at(epoch * 10).1 as usize] += 1;
        }

        assert!(firsts.iter().all(|count| (count - 1000).abs() < 150), "{firsts:?}");
    }
}
