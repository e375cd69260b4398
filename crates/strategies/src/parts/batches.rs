//! How many samples each member computes in a round.

use std::collections::BTreeSet;
use std::time::Duration;

use paceline_runtime::{Share, WorkerId};
use serde::{Deserialize, Serialize};

use super::shares::{Speeds, grain, proportional};
use super::window::Window;

/// With `Every::Round`, the speed is the median of this many rounds.
const ROUNDS_RECENT: u64 = 5;

/// By which part the slowest member must be predicted to become faster before shares change.
///
/// Speeds vary by a few percent between measurements. Without a threshold every measurement would change the shares, and
/// with them the sizes of buffers. The threshold is here and not in `Speeds`, so that speeds stay exact and slow changes
/// add up until they matter. The disturbances that DBS is made for change times by much more.
const GAIN_MIN: f64 = 0.02;

/// How the total batch is divided among the workers.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Shares {
    Even,
    /// In proportion to measured speed; `smoothing` is the weight of the newest measurement.
    BySpeed {
        #[serde(default)]
        every: Every,
        #[serde(default = "no_memory")]
        smoothing: f64,
    },
    /// As many samples as a worker can compute until the exchange ends.
    Open,
}

fn no_memory() -> f64 {
    1.0
}

/// How often shares are adapted to the measured speeds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Every {
    /// As in DBS.
    #[default]
    Epoch,
    /// As in LB-BSP.
    Round,
}

/// Chooses each member's batch, and keeps the measurements that the choice depends on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Batches {
    /// Samples per worker, on average.
    pub batch: u64,
    /// If set, the total batch is this, whatever the number of members.
    pub total: Option<u64>,
    pub shares: Shares,
    speeds: Speeds,
    /// What was computed since speeds were last measured.
    efforts: Window,
    /// The members of the last round and their shares, which stay until it is worth changing them.
    #[serde(default, skip_serializing_if = "Chosen::is_empty")]
    chosen: Chosen,
    epoch: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Chosen {
    members: Vec<WorkerId>,
    shares: Vec<u64>,
}

impl Batches {
    pub fn new(batch: u64, total: Option<u64>, shares: Shares) -> Batches {
        let smoothing =
            if let Shares::BySpeed { smoothing, .. } = shares { smoothing } else { 1.0 };
        let (efforts, chosen) = (Window::default(), Chosen::default());
        Batches { batch, total, shares, speeds: Speeds::new(smoothing), efforts, chosen, epoch: 0 }
    }

    pub fn even(batch: u64) -> Batches {
        Batches::new(batch, None, Shares::Even)
    }

    pub fn nominal(&self, members: usize) -> u64 {
        self.total.unwrap_or(self.batch * members as u64)
    }

    /// What the members compute next.
    pub fn share(&self, members: &[WorkerId]) -> Share {
        match self.shares {
            // Without a list, because there may be thousands of members and each of them asks.
            Shares::Even | Shares::Open => Share::Even(self.total_of(members.len())),
            Shares::BySpeed { .. } if self.knows_nothing() => {
                Share::Even(self.total_of(members.len()))
            }
            Shares::BySpeed { .. } => Share::ByRank(self.by_rank(members)),
        }
    }

    /// Whether no member was measured yet: all count as equally fast.
    fn knows_nothing(&self) -> bool {
        self.chosen.is_empty() && self.speeds.by_worker.is_empty()
    }

    /// Each member gets at least one sample, even if the total was chosen for fewer members.
    fn total_of(&self, members: usize) -> u64 {
        self.nominal(members).max(members as u64)
    }

    /// Each member's batch, in rank order. All members call this in every round, so shares that follow speed are
    /// calculated here only until the members are remembered, which is after their first round.
    pub fn by_rank(&self, members: &[WorkerId]) -> Vec<u64> {
        let total = self.total_of(members.len());
        match self.shares {
            Shares::Even | Shares::Open => even(total, members.len()),
            Shares::BySpeed { .. } if self.chosen.is_for(members, total) => {
                self.chosen.shares.clone()
            }
            Shares::BySpeed { .. } => {
                let speeds = self.speeds.of(&ids(members));
                improved(&even(total, members.len()), &speeds)
            }
        }
    }

    /// Records how long each member computed; at the end of an epoch, or of every round, the shares are adapted.
    ///
    /// The speed of an epoch is the median of its rounds, so a member that stalls in one round (its process is paused,
    /// its memory is swapped) keeps its share, while a change that lasts shows in the next epoch, as in DBS.
    pub fn follow(
        &mut self,
        efforts: impl IntoIterator<Item = (WorkerId, u64, Duration)>,
        epoch: u64,
    ) {
        let Shares::BySpeed { every, .. } = self.shares else { return };
        let efforts: Vec<_> = efforts.into_iter().collect();
        self.remember(efforts.iter().map(|effort| effort.0).collect());
        self.efforts.record(&efforts);
        if every == Every::Round {
            self.efforts.keep_newest(ROUNDS_RECENT);
        }
        if every == Every::Round || epoch != self.epoch {
            self.epoch = epoch;
            for (worker, speed) in self.efforts.speeds() {
                self.speeds.measure(worker, speed);
            }
            if every == Every::Epoch {
                self.efforts.clear();
            }
            let speeds = self.speeds.of(&ids(&self.chosen.members));
            self.chosen.shares = improved(&self.chosen.shares, &speeds);
        }
    }

    /// Keeps the shares of members that differ from before, and forgets the workers that are gone.
    fn remember(&mut self, members: Vec<WorkerId>) {
        let shares = self.by_rank(&members);
        if self.chosen.members != members {
            let present: BTreeSet<u32> = members.iter().map(|who| who.0).collect();
            self.speeds.by_worker.retain(|worker, _| present.contains(worker));
            self.efforts.retain(&present);
        }
        self.chosen = Chosen { members, shares };
    }
}

impl Chosen {
    fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    fn is_for(&self, members: &[WorkerId], total: u64) -> bool {
        self.members == members && self.shares.iter().sum::<u64>() == total
    }
}

/// Shares in proportion to speed if the slowest member is predicted to gain more than the threshold, otherwise the
/// same shares.
///
/// Even shares are taken instead if they are as fast: for equal workers, and a batch that is not a multiple of the grain.
fn improved(shares: &[u64], speeds: &[f64]) -> Vec<u64> {
    let seconds = |shares: &[u64]| {
        let seconds = shares.iter().zip(speeds).map(|(share, speed)| *share as f64 / speed);
        seconds.fold(0.0, f64::max)
    };
    let (total, members) = (shares.iter().sum(), shares.len());
    let (even, by_speed) =
        (even(total, members), proportional(speeds, total, grain(total, members)));
    let best = if seconds(&even) <= seconds(&by_speed) { even } else { by_speed };
    if seconds(&best) < (1.0 - GAIN_MIN) * seconds(shares) { best } else { shares.to_vec() }
}

fn even(total: u64, members: usize) -> Vec<u64> {
    let mut shares = vec![total / members as u64; members];
    shares[..(total % members as u64) as usize].iter_mut().for_each(|share| *share += 1);
    shares
}

fn ids(members: &[WorkerId]) -> Vec<u32> {
    members.iter().map(|who| who.0).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn members(n: u32) -> Vec<WorkerId> {
        (0..n).map(WorkerId).collect()
    }

    #[test]
    fn even_batches_sum_to_the_total() {
        assert_eq!(Batches::even(8).by_rank(&members(3)), [8, 8, 8]);
        assert_eq!(Batches::new(8, Some(32), Shares::Even).by_rank(&members(3)), [11, 11, 10]);
        assert_eq!(Batches::new(8, Some(2), Shares::Even).by_rank(&members(3)), [1, 1, 1]);
    }

    fn by_speed(batch: u64, every: Every) -> Batches {
        Batches::new(batch, None, Shares::BySpeed { every, smoothing: 1.0 })
    }

    /// One round in which the members computed their shares at these seconds per sample.
    fn round(batches: &mut Batches, members: &[WorkerId], paces: &[f64], epoch: u64) {
        let shares = batches.by_rank(members);
        let efforts = members.iter().zip(shares).zip(paces).map(|((who, share), pace)| {
            (*who, share, Duration::from_secs_f64(share as f64 * pace))
        });
        batches.follow(efforts, epoch);
    }

    /// An epoch of `rounds` rounds, of which the last begins the next epoch.
    fn epoch(batches: &mut Batches, epoch: u64, rounds: u64, paces: impl Fn(u64) -> Vec<f64>) {
        for i in 0..rounds {
            let paces = paces(i);
            let members = members(paces.len() as u32);
            round(batches, &members, &paces, epoch + u64::from(i == rounds - 1));
        }
    }

    /// Ye et al. 2020: shares change at the end of an epoch, not within it.
    #[test]
    fn shares_follow_speed_at_the_end_of_an_epoch() {
        let mut batches = by_speed(10, Every::Epoch);
        let efforts = |a: u64, b: u64| {
            [(WorkerId(0), a, Duration::from_secs(1)), (WorkerId(1), b, Duration::from_secs(3))]
        };
        batches.follow(efforts(10, 10), 0);
        assert_eq!(batches.by_rank(&members(2)), [10, 10]);
        batches.follow(efforts(10, 10), 1);
        assert_eq!(batches.by_rank(&members(2)), [15, 5]);
    }

    #[test]
    fn one_stalled_round_changes_no_share() {
        let paces = |stalls: bool| vec![3.0, 1.0, 1.0, if stalls { 60.0 } else { 1.0 }];
        let mut of_epochs = by_speed(128, Every::Epoch);
        epoch(&mut of_epochs, 0, 10, |_| paces(false));
        let mut of_rounds = by_speed(128, Every::Round);
        epoch(&mut of_rounds, 0, 10, |_| paces(false));
        let expected = [50, 154, 154, 154];
        assert_eq!(of_epochs.by_rank(&members(4)), expected);
        assert_eq!(of_rounds.by_rank(&members(4)), expected);

        epoch(&mut of_epochs, 1, 10, |i| paces(i == 4));
        assert_eq!(of_epochs.by_rank(&members(4)), expected);
        for i in 0..10 {
            round(&mut of_rounds, &members(4), &paces(i == 4), 1);
            assert_eq!(of_rounds.by_rank(&members(4)), expected, "round {i}");
        }
    }

    /// Ye et al. 2020, disturbance test, through the threshold and the grains.
    #[test]
    fn a_change_that_lasts_changes_the_shares_one_epoch_later() {
        let mut batches = by_speed(128, Every::Epoch);
        for number in 0..10 {
            let slow = if (3..7).contains(&number) { 4.0 } else { 1.0 };
            let expected = if (4..=7).contains(&number) { [158, 158, 38, 158] } else { [128; 4] };
            assert_eq!(batches.by_rank(&members(4)), expected, "epoch {number}");
            epoch(&mut batches, number, 10, |_| vec![1.0, 1.0, slow, 1.0]);
        }
    }

    #[test]
    fn equal_workers_return_to_even_shares_whatever_the_grain() {
        for batch in [100, 129, 257, 1001] {
            let mut batches = by_speed(batch, Every::Epoch);
            for (number, pace) in [1.0, 3.0, 1.0, 1.0].into_iter().enumerate() {
                let shares = batches.by_rank(&members(5));
                assert_eq!(shares == [batch; 5], number != 2, "epoch {number}: {shares:?}");
                epoch(&mut batches, number as u64, 10, |_| vec![1.0, 1.0, pace, 1.0, 1.0]);
            }
            assert_eq!(batches.by_rank(&members(4)), [batch; 4]);
        }
    }

    #[test]
    fn with_shares_of_every_round_a_change_that_lasts_counts_after_three_rounds() {
        let mut batches = by_speed(128, Every::Round);
        epoch(&mut batches, 0, 10, |_| vec![1.0; 4]);

        let shares: Vec<u64> = (0..4)
            .map(|_| {
                round(&mut batches, &members(4), &[1.0, 1.0, 4.0, 1.0], 0);
                batches.by_rank(&members(4))[2]
            })
            .collect();

        assert_eq!(shares, [128, 128, 38, 38]);
    }

    #[test]
    fn a_gain_below_the_threshold_changes_no_share() {
        // One of four workers becomes slower, so the others could save it about 3/4 of that.
        for (pace, is_worth_it) in [(1.02, false), (1.025, false), (1.04, true), (1.2, true)] {
            let mut batches = by_speed(1024, Every::Epoch);
            epoch(&mut batches, 0, 10, |_| vec![1.0, 1.0, 1.0, pace]);
            let has_changed = batches.by_rank(&members(4)) != [1024; 4];
            assert_eq!(has_changed, is_worth_it, "{pace}");
        }
    }

    #[test]
    fn gains_below_the_threshold_add_up() {
        let mut batches = by_speed(1024, Every::Epoch);
        for number in 0..20 {
            epoch(&mut batches, number, 10, |_| vec![1.0, 1.0, 1.0, 1.01f64.powi(number as i32)]);
        }
        assert!(batches.by_rank(&members(4))[3] < 930, "{:?}", batches.by_rank(&members(4)));
    }

    proptest! {
        #[test]
        fn noise_of_two_percent_changes_no_share(
            noise in prop::collection::vec(0.98f64..1.02, 5 * 20 * 4),
        ) {
            let paces = [3.0, 1.0, 2.0, 1.0];
            let mut batches = by_speed(512, Every::Epoch);
            epoch(&mut batches, 0, 20, |_| paces.to_vec());
            let shares = batches.by_rank(&members(4));
            prop_assert_ne!(&shares, &[512; 4]);

            for (number, noise) in noise.chunks(20 * 4).enumerate() {
                epoch(&mut batches, 1 + number as u64, 20, |i| {
                    let noise = &noise[4 * i as usize..];
                    paces.iter().zip(noise).map(|(pace, noise)| pace * noise).collect()
                });
                prop_assert_eq!(&batches.by_rank(&members(4)), &shares);
            }
        }

        #[test]
        fn shares_sum_to_the_total_and_nobody_gets_none(
            batch in 1u64..3000,
            total in prop::option::of(1u64..30_000),
            every in prop::sample::select(vec![Every::Epoch, Every::Round]),
            rounds in prop::collection::vec(prop::collection::vec(1e-4f64..1.0, 1..12), 1..12),
        ) {
            let mut batches = Batches::new(batch, total, Shares::BySpeed { every, smoothing: 0.5 });
            for (i, paces) in rounds.iter().enumerate() {
                let members = members(paces.len() as u32);
                let shares = batches.by_rank(&members);
                let n = members.len() as u64;
                prop_assert_eq!(shares.iter().sum::<u64>(), batches.nominal(members.len()).max(n));
                prop_assert!(shares.iter().all(|share| *share >= 1), "{:?}", shares);
                round(&mut batches, &members, paces, i as u64 / 3);
            }
        }
    }

    #[test]
    fn a_newcomer_counts_with_the_mean_speed_at_once_and_shares_stay_within_the_epoch() {
        let mut batches = by_speed(20, Every::Epoch);
        epoch(&mut batches, 0, 10, |_| vec![1.0, 3.0]);
        assert_eq!(batches.by_rank(&members(2)), [30, 10]);

        for i in 0..5 {
            assert_eq!(batches.by_rank(&members(3)), [30, 10, 20], "round {i}");
            round(&mut batches, &members(3), &[1.0, 3.0, 0.2], 1);
        }
    }

    #[test]
    fn workers_that_are_gone_are_forgotten() {
        let mut batches = by_speed(20, Every::Epoch);
        epoch(&mut batches, 0, 10, |_| vec![1.0, 3.0, 2.0]);
        round(&mut batches, &members(3), &[1.0, 3.0, 2.0], 1);

        round(&mut batches, &members(2), &[1.0, 3.0], 1);

        assert_eq!(batches.speeds.by_worker.keys().collect::<Vec<_>>(), [&0, &1]);
        assert_eq!(batches.efforts.speeds().map(|(worker, _)| worker).collect::<Vec<_>>(), [0, 1]);
        assert_eq!(batches.chosen.members, members(2));
    }

    #[test]
    fn a_job_that_is_saved_within_an_epoch_continues_with_the_same_shares() {
        for every in [Every::Epoch, Every::Round] {
            let mut batches = by_speed(128, every);
            let paces = |i: u64| vec![1.0, 1.0 + i as f64 / 7.0, 2.5];
            epoch(&mut batches, 0, 7, paces);
            (0..3).for_each(|i| round(&mut batches, &members(3), &paces(i), 1));

            let saved = serde_json::to_string(&batches).unwrap();
            let mut loaded: Batches = serde_json::from_str(&saved).unwrap();

            assert_eq!(loaded, batches);
            (0..30).for_each(|i| {
                round(&mut batches, &members(3), &paces(i), 1 + i / 10);
                round(&mut loaded, &members(3), &paces(i), 1 + i / 10);
                assert_eq!(loaded.by_rank(&members(3)), batches.by_rank(&members(3)));
            });
        }
    }

    #[test]
    fn shares_are_even_until_a_member_was_measured() {
        for batch in [1, 100, 129, 1001] {
            let batches = by_speed(batch, Every::Epoch);
            assert_eq!(batches.share(&members(7)), Share::Even(7 * batch));
            assert_eq!(batches.by_rank(&members(7)), [batch; 7], "as a list");
        }
    }

    #[test]
    fn even_shares_keep_no_memory() {
        let mut batches = Batches::even(8);
        batches.follow([(WorkerId(0), 8, Duration::from_secs(1))], 1);

        let saved = serde_json::to_string(&batches).unwrap();

        assert_eq!(batches, Batches::even(8));
        assert!(saved.contains(r#""efforts":{},"#) && !saved.contains("chosen"), "{saved}");
    }

    /// Memory from before there were windows: the speeds count, the efforts of the begun epoch do not.
    #[test]
    fn memory_of_an_older_checkpoint_is_read() {
        let saved = r#"{"batch": 10, "total": null,
            "shares": {"kind": "by_speed", "every": "epoch", "smoothing": 1.0},
            "speeds": {"by_worker": [[0, 30.0], [1, 10.0]], "smoothing": 1.0},
            "efforts": {"0": [10, 0.5], "1": [10, 1.5]}, "epoch": 3}"#;

        let mut batches: Batches = serde_json::from_str(saved).unwrap();

        assert_eq!(batches.by_rank(&members(2)), [15, 5]);
        round(&mut batches, &members(2), &[1.0, 1.0], 3);
        assert_eq!(batches.by_rank(&members(2)), [15, 5]);
        round(&mut batches, &members(2), &[1.0, 1.0], 4);
        assert_eq!(batches.by_rank(&members(2)), [10, 10]);
    }
}
