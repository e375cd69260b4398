//! The speed of each worker over a window of rounds, unaffected by a few rounds in which it stalled.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use paceline_runtime::WorkerId;
use serde::{Deserialize, Serialize};

use super::shares::as_pairs;

/// The most blocks of a window.
const BLOCKS_MAX: u64 = 16;

/// What each worker computed since the window began.
///
/// A window has at most 16 blocks of equally many consecutive rounds, so its size is bounded however long an epoch is. A
/// block is one round at first; whenever all 16 are filled, each two become one. The strategy is copied in every round,
/// so that it can be rolled back: this is why the bound is small. An empty window is written as `{}`, because newcomers
/// of jobs with even shares receive it too.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Window {
    #[serde(skip_serializing_if = "is_zero")]
    rounds: u64,
    /// Samples and seconds of compute of each block.
    #[serde(with = "as_pairs", skip_serializing_if = "BTreeMap::is_empty")]
    blocks: BTreeMap<u32, Vec<(u64, f64)>>,
}

impl Window {
    /// Adds one round. Efforts without a finite speed are ignored.
    pub fn record(&mut self, efforts: &[(WorkerId, u64, Duration)]) {
        if self.rounds >= BLOCKS_MAX && self.rounds.is_power_of_two() {
            self.blocks.values_mut().for_each(|blocks| *blocks = joined(blocks));
        }
        let begins_block = self.rounds.is_multiple_of(self.rounds_per_block());
        self.rounds += 1;
        for (who, samples, compute) in efforts {
            if *samples == 0 || compute.is_zero() {
                continue;
            }
            let blocks = self.blocks.entry(who.0).or_default();
            if begins_block || blocks.is_empty() {
                blocks.push((0, 0.0));
            }
            let block = blocks.last_mut().expect("a block has begun");
            block.0 += samples;
            block.1 += compute.as_secs_f64();
        }
    }

    /// The median speed of each worker's blocks, in samples per second. Rounds in which a worker stalls can only lower a
    /// block's speed, so the faster of two middle blocks counts.
    pub fn speeds(&self) -> impl Iterator<Item = (u32, f64)> + '_ {
        self.blocks.iter().map(|(worker, blocks)| {
            let mut speeds: Vec<f64> =
                blocks.iter().map(|(samples, seconds)| *samples as f64 / seconds).collect();
            speeds.sort_by(f64::total_cmp);
            (*worker, speeds[speeds.len() / 2])
        })
    }

    /// Keeps only the newest rounds, at most 16.
    pub fn keep_newest(&mut self, rounds: u64) {
        assert!((1..=BLOCKS_MAX).contains(&rounds), "each of these rounds is one block");
        self.rounds = self.rounds.min(rounds);
        for blocks in self.blocks.values_mut() {
            blocks.drain(..blocks.len().saturating_sub(rounds as usize));
        }
    }

    /// Forgets all workers except the members.
    pub fn retain(&mut self, members: &BTreeSet<u32>) {
        self.blocks.retain(|worker, _| members.contains(worker));
    }

    /// Begins a new window.
    pub fn clear(&mut self) {
        *self = Window::default();
    }

    fn rounds_per_block(&self) -> u64 {
        let doublings = (self.rounds / BLOCKS_MAX).checked_ilog2().map_or(0, |log| log + 1);
        1 << doublings
    }
}

// serde passes a reference.
#[expect(clippy::trivially_copy_pass_by_ref)]
fn is_zero(rounds: &u64) -> bool {
    *rounds == 0
}

/// Each two blocks as one.
fn joined(blocks: &[(u64, f64)]) -> Vec<(u64, f64)> {
    let sum = |pair: &[(u64, f64)]| {
        pair.iter().fold((0, 0.0), |sum, block| (sum.0 + block.0, sum.1 + block.1))
    };
    blocks.chunks(2).map(sum).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn effort(worker: u32, samples: u64, millis: u64) -> (WorkerId, u64, Duration) {
        (WorkerId(worker), samples, Duration::from_millis(millis))
    }

    /// A window in which worker 0 computed 8 samples in the given milliseconds each round.
    fn window(millis: impl IntoIterator<Item = u64>) -> Window {
        let mut window = Window::default();
        millis.into_iter().for_each(|millis| window.record(&[effort(0, 8, millis)]));
        window
    }

    fn speed(window: &Window) -> f64 {
        window.speeds().next().expect("worker 0 was measured").1
    }

    #[test]
    fn the_speed_is_the_median_and_a_stalled_round_does_not_count() {
        let table: [(&[u64], f64); 6] = [
            (&[10], 800.0),
            (&[10, 9000], 800.0),
            (&[9000, 10], 800.0),
            (&[10, 8, 9000], 800.0),
            (&[20, 10, 16, 9000, 8], 500.0),
            (&[10, 10, 20, 20, 20], 400.0),
        ];
        for (millis, expected) in table {
            assert_eq!(speed(&window(millis.iter().copied())), expected, "{millis:?}");
        }
    }

    #[test]
    fn a_stalled_round_does_not_count_in_a_window_of_any_length() {
        for rounds in 3..300 {
            for stalled in [0, rounds / 2, rounds - 1] {
                let window = window((0..rounds).map(|i| if i == stalled { 9000 } else { 10 }));
                let near = (speed(&window) / 800.0 - 1.0).abs() < 1e-9;
                assert!(near, "round {stalled} of {rounds}: {}", speed(&window));
            }
        }
    }

    #[test]
    fn a_long_window_reflects_all_of_its_rounds_in_bounded_memory() {
        let mut all = window([]);
        for round in 0..5000 {
            all.record(&[effort(0, 8, if round % 2 == 0 { 8 } else { 12 })]);
            assert!(all.blocks[&0].len() as u64 <= BLOCKS_MAX, "round {round}");
        }

        let samples: u64 = all.blocks[&0].iter().map(|block| block.0).sum();
        assert_eq!(samples, 5000 * 8);
        assert!((speed(&all) - 800.0).abs() < 1.0, "{}", speed(&all));
    }

    #[test]
    fn the_newest_rounds_are_kept() {
        let mut window = window([]);
        for round in 0..100 {
            window.record(&[effort(0, 8, if round < 97 { 10 } else { 20 })]);
            window.keep_newest(5);
        }
        assert_eq!(window.blocks[&0].len(), 5);
        assert_eq!(speed(&window), 400.0);
    }

    #[test]
    fn efforts_without_a_finite_speed_are_ignored() {
        let mut window = Window::default();
        window.record(&[effort(0, 0, 10), effort(1, 8, 0), effort(2, 8, 10)]);
        assert_eq!(window.speeds().collect::<Vec<_>>(), [(2, 800.0)]);
    }
}
