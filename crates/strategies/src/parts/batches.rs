//! How many samples each member computes in a round.

use std::collections::BTreeMap;
use std::time::Duration;

use paceline_runtime::WorkerId;
use serde::{Deserialize, Serialize};

use super::shares::Speeds;

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
    /// Samples and seconds of compute by worker since speeds were last measured.
    efforts: BTreeMap<u32, (u64, f64)>,
    epoch: u64,
}

impl Batches {
    pub fn new(batch: u64, total: Option<u64>, shares: Shares) -> Batches {
        let smoothing =
            if let Shares::BySpeed { smoothing, .. } = shares { smoothing } else { 1.0 };
        let (speeds, efforts) = (Speeds::new(smoothing), BTreeMap::new());
        Batches { batch, total, shares, speeds, efforts, epoch: 0 }
    }

    pub fn even(batch: u64) -> Batches {
        Batches::new(batch, None, Shares::Even)
    }

    pub fn nominal(&self, members: usize) -> u64 {
        self.total.unwrap_or(self.batch * members as u64)
    }

    /// Each member's batch, in rank order.
    pub fn by_rank(&self, members: &[WorkerId]) -> Vec<u64> {
        let n = members.len() as u64;
        // Each member gets at least one sample, even if the total was chosen for fewer members.
        let total = self.nominal(members.len()).max(n);
        match self.shares {
            Shares::BySpeed { .. } => {
                let ids: Vec<u32> = members.iter().map(|who| who.0).collect();
                self.speeds.shares(&ids, total)
            }
            Shares::Even | Shares::Open => {
                let mut shares = vec![total / n; members.len()];
                shares[..(total % n) as usize].iter_mut().for_each(|share| *share += 1);
                shares
            }
        }
    }

    /// Records how long each member computed; at the end of an epoch, or of every round, the shares are adapted.
    pub fn follow(
        &mut self,
        efforts: impl IntoIterator<Item = (WorkerId, u64, Duration)>,
        epoch: u64,
    ) {
        let Shares::BySpeed { every, .. } = self.shares else { return };
        for (who, samples, compute) in efforts {
            let effort = self.efforts.entry(who.0).or_default();
            effort.0 += samples;
            effort.1 += compute.as_secs_f64();
        }
        if every == Every::Round || epoch != self.epoch {
            self.epoch = epoch;
            for (who, (samples, seconds)) in std::mem::take(&mut self.efforts) {
                self.speeds.measure(who, samples, seconds);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn members(n: u32) -> Vec<WorkerId> {
        (0..n).map(WorkerId).collect()
    }

    #[test]
    fn even_batches_sum_to_the_total() {
        assert_eq!(Batches::even(8).by_rank(&members(3)), [8, 8, 8]);
        assert_eq!(Batches::new(8, Some(32), Shares::Even).by_rank(&members(3)), [11, 11, 10]);
        assert_eq!(Batches::new(8, Some(2), Shares::Even).by_rank(&members(3)), [1, 1, 1]);
    }

    /// Ye et al. 2020: shares change at the end of an epoch, not within it.
    #[test]
    fn shares_follow_speed_at_the_end_of_an_epoch() {
        let every = Every::Epoch;
        let mut batches = Batches::new(10, None, Shares::BySpeed { every, smoothing: 1.0 });
        let efforts = |a: u64, b: u64| {
            [(WorkerId(0), a, Duration::from_secs(1)), (WorkerId(1), b, Duration::from_secs(3))]
        };
        batches.follow(efforts(10, 10), 0);
        assert_eq!(batches.by_rank(&members(2)), [10, 10]);
        batches.follow(efforts(10, 10), 1);
        assert_eq!(batches.by_rank(&members(2)), [15, 5]);
    }
}
