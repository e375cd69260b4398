//! Shares: divides the total batch among members of different speed (Ye et al. 2020, DBS).

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The unit in which a total batch is divided: a power of two, at least 1/64 of the mean share and below 1/32, or one
/// sample if the mean share is at most 64.
///
/// With grains, buffers, compiled kernels and readers of data see few different batch sizes. Rounding moves a share by
/// less than a grain. Small batches are divided by the sample, because a grain would be a large part of a share.
pub fn grain(batch_total: u64, members: usize) -> u64 {
    batch_total.div_ceil(64 * members as u64).next_power_of_two()
}

/// Rounds ideal shares to integers that sum to `total`, each at least one; a tie goes to the lower rank.
///
/// Each share starts with the integer part of the ideal, and the rest goes to the shares that are farthest below their
/// ideal. If the minimum of one makes the sum too large, the shares that are least below (or most above) theirs are
/// reduced.
pub fn largest_remainder(ideal: &[f64], total: u64) -> Vec<u64> {
    assert!(!ideal.is_empty(), "there is at least one member");
    assert!(total >= ideal.len() as u64, "a batch holds at least one sample per member");
    assert!(
        ideal.iter().all(|x| x.is_finite() && *x >= 0.0),
        "ideal shares are finite and not negative"
    );
    let mut shares: Vec<u64> = ideal.iter().map(|x| (*x as u64).clamp(1, total)).collect();
    let lack = |rank: usize| ideal[rank] - shares[rank] as f64;
    let mut by_lack: Vec<usize> = (0..ideal.len()).collect();
    by_lack.sort_by(|a, b| lack(*b).total_cmp(&lack(*a)));

    let mut sum: u64 = shares.iter().sum();
    for rank in by_lack.iter().cycle() {
        if sum >= total {
            break;
        }
        shares[*rank] += 1;
        sum += 1;
    }
    for rank in by_lack.iter().rev().cycle() {
        if sum <= total {
            break;
        }
        let reduction = u64::from(shares[*rank] > 1);
        shares[*rank] -= reduction;
        sum -= reduction;
    }
    shares
}

/// The workers' measured speeds, in samples per second of pure compute.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Speeds {
    /// By worker id, because ranks change with the view.
    #[serde(default, with = "as_pairs")]
    pub by_worker: BTreeMap<u32, f64>,
    /// The weight of the newest measurement; with 1, as in DBS, older ones do not count.
    pub smoothing: f64,
}

impl Speeds {
    pub fn new(smoothing: f64) -> Speeds {
        assert!(smoothing > 0.0 && smoothing <= 1.0, "smoothing is above 0 and at most 1");
        Speeds { by_worker: BTreeMap::new(), smoothing }
    }

    /// Records the speed of a worker, measured without waiting: time spent waiting would make all workers look equally
    /// fast.
    pub fn measure(&mut self, worker: u32, speed: f64) {
        let known = self.by_worker.entry(worker).or_insert(speed);
        *known = self.smoothing * speed + (1.0 - self.smoothing) * *known;
    }

    /// The speed of each member. A member without measurement counts with the mean speed of the others; without any
    /// measurement, all are equally fast.
    pub fn of(&self, members: &[u32]) -> Vec<f64> {
        let known: Vec<Option<f64>> =
            members.iter().map(|worker| self.by_worker.get(worker).copied()).collect();
        let count = known.iter().flatten().count();
        let mean =
            if count == 0 { 1.0 } else { known.iter().flatten().sum::<f64>() / count as f64 };
        known.into_iter().map(|speed| speed.unwrap_or(mean)).collect()
    }
}

/// Shares in proportion to speed: multiples of `grain` that sum to the total, each at least one grain.
///
/// What remains of a total that is no multiple of the grain is computed by the fastest member, which it delays least; a
/// tie goes to the lower rank.
pub fn proportional(speeds: &[f64], batch_total: u64, grain: u64) -> Vec<u64> {
    let grains_total = batch_total / grain;
    let mut shares = largest_remainder(&ideal(speeds, grains_total), grains_total);
    shares.iter_mut().for_each(|share| *share *= grain);
    let fastest = (0..speeds.len()).rev().max_by(|a, b| speeds[*a].total_cmp(&speeds[*b]));
    shares[fastest.expect("there is at least one member")] += batch_total % grain;
    shares
}

fn ideal(speeds: &[f64], batch_total: u64) -> Vec<f64> {
    let speed_total: f64 = speeds.iter().sum();
    speeds.iter().map(|speed| batch_total as f64 * speed / speed_total).collect()
}

/// Stores a map as a list of pairs: formats whose keys are text turn numbers into text, which serde cannot read inside
/// a tagged enum.
pub(super) mod as_pairs {
    use super::{BTreeMap, Deserialize, Serialize};
    use serde::{Deserializer, Serializer};

    pub fn serialize<T: Serialize, S: Serializer>(
        map: &BTreeMap<u32, T>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        to.collect_seq(map)
    }

    pub fn deserialize<'de, T: Deserialize<'de>, D: Deserializer<'de>>(
        from: D,
    ) -> Result<BTreeMap<u32, T>, D::Error> {
        Ok(Vec::<(u32, T)>::deserialize(from)?.into_iter().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MEMBERS: [u32; 4] = [0, 1, 2, 3];
    const BATCH: u64 = 512;

    /// The time that each share takes: overhead + seconds per sample x share.
    fn times(shares: &[u64], overhead: f64, paces: [f64; 4]) -> Vec<f64> {
        shares.iter().zip(paces).map(|(share, pace)| overhead + pace * *share as f64).collect()
    }

    /// The shares of the paper, which divides single samples.
    fn shares(speeds: &Speeds, members: &[u32], batch_total: u64) -> Vec<u64> {
        proportional(&speeds.of(members), batch_total, 1)
    }

    fn measure_all(speeds: &mut Speeds, shares: &[u64], times: &[f64]) {
        for worker in MEMBERS {
            let rank = worker as usize;
            speeds.measure(worker, shares[rank] as f64 / times[rank]);
        }
    }

    fn imbalance(times: &[f64]) -> f64 {
        let max = times.iter().copied().fold(f64::MIN, f64::max);
        max / times.iter().copied().fold(f64::MAX, f64::min)
    }

    /// max / min time in each epoch, starting with even shares.
    fn imbalances(epochs: usize, overhead: f64) -> Vec<f64> {
        let mut speeds = Speeds::new(1.0);
        (0..epochs)
            .map(|_| {
                let shares = shares(&speeds, &MEMBERS, BATCH);
                let times = times(&shares, overhead, [3.0, 1.0, 1.0, 1.0]);
                measure_all(&mut speeds, &shares, &times);
                imbalance(&times)
            })
            .collect()
    }

    /// Ye et al. 2020, appendix A.
    #[test]
    fn rounding_agrees_with_the_paper() {
        assert_eq!(largest_remainder(&[13.7, 16.5, 19.6, 14.2], 64), [14, 16, 20, 14]);
    }

    #[test]
    fn ties_go_to_the_lower_rank_and_each_share_is_at_least_one() {
        let table: [(&[f64], u64, &[u64]); 7] = [
            (&[2.5, 2.5, 3.0], 8, &[3, 2, 3]),
            (&[10.0 / 3.0, 10.0 / 3.0, 10.0 / 3.0], 10, &[4, 3, 3]),
            (&[0.0, 0.0, 8.0], 8, &[1, 1, 6]),
            (&[0.1, 4.0, 3.9], 8, &[1, 4, 3]),
            (&[0.5, 3.5, 4.0], 8, &[1, 3, 4]),
            (&[0.2, 0.2, 0.6], 3, &[1, 1, 1]),
            (&[7.0], 7, &[7]),
        ];
        for (ideal, total, shares) in table {
            assert_eq!(largest_remainder(ideal, total), shares, "{ideal:?}");
        }
    }

    #[test]
    fn a_grain_is_a_power_of_two_between_a_64th_and_a_32nd_of_the_mean_share() {
        let table = [
            ((2, 2), 1),
            ((64, 4), 1),
            ((4 * 64, 4), 1),
            ((4 * 64 + 1, 4), 2),
            ((4 * 128, 4), 2),
            ((4 * 256, 4), 4),
            ((4 * 300, 4), 8),
            ((1_000_000, 10), 2048),
        ];
        for ((batch_total, members), expected) in table {
            assert_eq!(grain(batch_total, members), expected, "{batch_total}, {members}");
        }
    }

    #[test]
    fn the_fastest_member_computes_what_remains_below_a_grain() {
        assert_eq!(proportional(&[1.0, 2.0, 1.0, 2.0], 1203, 8), [200, 403, 200, 400]);
        assert_eq!(proportional(&[1.0, 1e-9], 1203, 8), [1195, 8], "at least one grain");
    }

    #[test]
    #[should_panic(expected = "at least one sample per member")]
    fn a_batch_smaller_than_the_view_panics() {
        largest_remainder(&[1.0, 1.0, 1.0], 2);
    }

    proptest! {
        /// Ye et al. 2020, appendix A, and our choice of rounding: no sample is lost or added.
        #[test]
        fn shares_sum_to_the_batch_and_do_not_depend_on_rank(
            weights in prop::collection::vec(0.001f64..1000.0, 1..20),
            spare in 0u64..2000,
            turn in 0usize..20,
        ) {
            let total = weights.len() as u64 + spare;
            let sum: f64 = weights.iter().sum();
            let ideal: Vec<f64> = weights.iter().map(|x| x / sum * total as f64).collect();
            let shares = largest_remainder(&ideal, total);
            prop_assert_eq!(shares.iter().sum::<u64>(), total);
            prop_assert!(shares.iter().all(|share| *share >= 1));
            if ideal.iter().all(|x| *x >= 1.0) {
                prop_assert!(ideal.iter().zip(&shares).all(|(x, s)| (x - *s as f64).abs() < 1.0));
            }

            // Random weights have no ties, so a member's share does not depend on its rank.
            let turn = turn % ideal.len();
            let (mut turned, mut expected) = (ideal.clone(), shares.clone());
            turned.rotate_left(turn);
            expected.rotate_left(turn);
            prop_assert_eq!(largest_remainder(&turned, total), expected);
        }
    }

    proptest! {
        #[test]
        fn shares_are_grains_and_the_remainder_and_nobody_gets_none(
            speeds in prop::collection::vec(1e-6f64..1e6, 1..20),
            spare in 0u64..100_000,
        ) {
            let total = speeds.len() as u64 + spare;
            let grain = grain(total, speeds.len());
            let shares = proportional(&speeds, total, grain);
            prop_assert_eq!(shares.iter().sum::<u64>(), total);
            prop_assert!(shares.iter().all(|share| *share >= grain));
            let broken: Vec<u64> = shares.iter().map(|s| s % grain).filter(|r| *r > 0).collect();
            let remainder = total % grain;
            prop_assert_eq!(broken, if remainder > 0 { vec![remainder] } else { vec![] });
        }
    }

    /// Derived from Ye et al. 2020: equal times keep shares equal.
    #[test]
    fn equal_workers_keep_equal_shares() {
        let mut speeds = Speeds::new(1.0);
        for _ in 0..1000 {
            let shares = shares(&speeds, &MEMBERS, BATCH);
            assert_eq!(shares, [128; 4]);
            measure_all(&mut speeds, &shares, &times(&shares, 0.0, [0.007; 4]));
        }
    }

    /// Derived from Ye et al. 2020: when time is proportional to the share, one update is optimal.
    #[test]
    fn one_measurement_finds_the_optimum() {
        let mut speeds = Speeds::new(1.0);

        measure_all(&mut speeds, &[128; 4], &times(&[128; 4], 0.0, [3.0, 1.0, 1.0, 1.0]));

        let ideal = ideal(&speeds.of(&MEMBERS), BATCH);
        let optimum = [51.2, 153.6, 153.6, 153.6];
        assert!(ideal.iter().zip(optimum).all(|(x, y)| (x - y).abs() < 1e-9), "{ideal:?}");
        assert_eq!(shares(&speeds, &MEMBERS, BATCH), [51, 154, 154, 153]);
    }

    /// With a fixed cost per step the times still become equal, but geometrically (derived; seconds per sample are
    /// 3:1:1:1, and rounding to whole samples changes the ratio by up to 0.02).
    #[test]
    fn with_overhead_the_times_converge_geometrically() {
        let table: [(f64, &[f64]); 2] =
            [(100.0, &[2.12, 1.25, 1.08, 1.03, 1.01]), (600.0, &[1.35, 1.23, 1.16, 1.11])];
        for (overhead, expected) in table {
            let ratios = imbalances(expected.len(), overhead);
            let near = ratios.iter().zip(expected).all(|(x, y)| (x - y).abs() < 0.02);
            assert!(near, "{overhead}: {ratios:?}");
        }
        // Rounding to whole samples stops it one sample short of the optimum.
        assert!(imbalances(40, 600.0)[39] < 1.02);
    }

    /// Derived from Ye et al. 2020: if all speeds change by the same factor, as with a lower clock rate, the shares stay.
    #[test]
    fn a_common_factor_changes_no_share() {
        let (mut speeds, mut slower) = (Speeds::new(1.0), Speeds::new(1.0));
        let times = times(&[128; 4], 50.0, [3.0, 1.0, 2.0, 1.5]);

        measure_all(&mut speeds, &[128; 4], &times);
        measure_all(&mut slower, &[128; 4], &times.iter().map(|t| t * 7.3).collect::<Vec<_>>());

        assert_eq!(shares(&speeds, &MEMBERS, BATCH), shares(&slower, &MEMBERS, BATCH));
    }

    /// Ye et al. 2020, disturbance test: one epoch of imbalance after its start and one after its end.
    #[test]
    fn a_disturbance_unbalances_one_epoch() {
        let mut speeds = Speeds::new(1.0);
        let slow_epochs = 3..7;

        let ratios: Vec<f64> = (0..10)
            .map(|epoch| {
                let pace = if slow_epochs.contains(&epoch) { 4.0 } else { 1.0 };
                let shares = shares(&speeds, &MEMBERS, BATCH);
                let times = times(&shares, 0.0, [1.0, 1.0, pace, 1.0]);
                measure_all(&mut speeds, &shares, &times);
                imbalance(&times)
            })
            .collect();

        for (epoch, ratio) in ratios.iter().enumerate() {
            let uneven = epoch == 3 || epoch == 7;
            assert_eq!(*ratio > 1.05, uneven, "epoch {epoch}: {ratio}");
        }
        assert_eq!(ratios[3], 4.0);
    }

    /// Without communication, the even split takes max(a) sum(1/a) / n times as long (derived).
    #[test]
    fn the_gain_over_even_shares_follows_the_formula() {
        for paces in [[3.0, 1.0, 1.0, 1.0], [3.0, 3.0, 3.0, 1.0], [1.0, 1.0, 2.0, 4.0]] {
            let (even, mut speeds) = (times(&[128; 4], 0.0, paces), Speeds::new(1.0));
            measure_all(&mut speeds, &[128; 4], &even);
            let balanced = times(&shares(&speeds, &MEMBERS, BATCH), 0.0, paces);

            let slowest = |times: &[f64]| times.iter().copied().fold(0.0, f64::max);
            let formula = slowest(&paces) * paces.iter().map(|a| 1.0 / a).sum::<f64>() / 4.0;
            let gain = slowest(&even) / slowest(&balanced);
            assert!((gain / formula - 1.0).abs() < 0.02, "{paces:?}: {gain} {formula}");
        }
    }

    #[test]
    fn a_newcomer_starts_with_the_mean_speed_of_the_members() {
        let mut speeds = Speeds::new(1.0);
        speeds.measure(3, 100.0);
        speeds.measure(8, 300.0);
        speeds.measure(9, 1_000_000.0);

        assert_eq!(shares(&speeds, &[3, 8, 12], 60), [10, 30, 20]);
        assert_eq!(shares(&speeds, &[12, 8, 3], 60), [20, 30, 10]);
        assert_eq!(shares(&speeds, &[20, 21], 60), [30, 30]);
    }

    #[test]
    fn smoothing_weighs_the_newest_measurement() {
        let mut speeds = Speeds::new(0.25);
        speeds.measure(0, 100.0);
        speeds.measure(0, 200.0);
        assert_eq!(speeds.by_worker[&0], 125.0);
    }

    #[test]
    fn a_checkpoint_keeps_speeds_even_inside_a_tagged_enum() {
        #[derive(Debug, PartialEq, Serialize, Deserialize)]
        #[serde(tag = "kind", rename_all = "snake_case")]
        enum Memory {
            BySpeed(Speeds),
        }
        let mut speeds = Speeds::new(0.5);
        speeds.measure(7, 10.0 / 3.0);
        let memory = Memory::BySpeed(speeds);

        let saved = serde_json::to_string(&memory).unwrap();

        assert_eq!(serde_json::from_str::<Memory>(&saved).unwrap(), memory);
        let named = r#"{"kind": "by_speed", "smoothing": 1.0}"#;
        let fresh = Memory::BySpeed(Speeds::new(1.0));
        assert_eq!(serde_json::from_str::<Memory>(named).unwrap(), fresh);
    }
}
