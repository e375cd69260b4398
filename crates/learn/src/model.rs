//! What a model is: a pure function from params and samples to a gradient and a score.

use std::ops::Range;
use std::sync::{Arc, Weak};

use crate::dataset::Batch;
use crate::gradient::Gradient;
use crate::vector::Vector;

/// A model. Pure: the same params and samples give the same answer, bit by bit.
pub trait Model: Send + Sync {
    /// How many numbers are learned.
    fn params(&self) -> usize;

    /// How many numbers follow the learned ones in a replica and are only kept, such as running
    /// statistics.
    fn buffers(&self) -> usize {
        0
    }

    /// The length of a replica: [params, buffers].
    fn size(&self) -> usize {
        self.params() + self.buffers()
    }

    /// Where training starts.
    fn initial(&self, seed: u64) -> Vector;

    /// Adds the batch to `into`: gradient and loss as sums over its samples, and their count. Behind the
    /// gradient come the statistics that the buffers follow, times samples.
    fn gradient(&self, params: &[f32], batch: &Batch, scratch: &mut Scratch, into: &mut Gradient);

    fn evaluate(&self, params: &[f32], batch: &Batch, scratch: &mut Scratch) -> Score;

    fn layout(&self) -> Layout {
        Layout { params: self.params(), undecayed: self.undecayed() }
    }

    /// Which instructions its gradients are computed with, for the journal.
    fn kernels(&self) -> &'static str {
        "plain"
    }

    /// Largest batch that it takes at once; larger ones come in parts.
    fn micro_batch_max(&self) -> usize {
        256
    }

    /// What the model says of each sample: a number per class, row after row.
    fn outputs(&self, _params: &[f32], _batch: &Batch, _scratch: &mut Scratch) -> Vec<f32> {
        Vec::new()
    }

    /// The parts of a replica that weight decay leaves alone, ascending: biases and norms, and
    /// always the buffers.
    fn undecayed(&self) -> Vec<Range<usize>> {
        (self.buffers() > 0).then(|| self.params()..self.size()).into_iter().collect()
    }
}

/// How the numbers of a replica are to be treated.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Layout {
    /// How many are learned; those after them are only kept.
    pub params: usize,
    /// The ascending parts that weight decay leaves alone.
    pub undecayed: Vec<Range<usize>>,
}

impl Layout {
    /// Everything is learned and decays.
    pub fn plain() -> Layout {
        Layout { params: usize::MAX, undecayed: Vec::new() }
    }
}

/// How well params do on some samples; scores of different batches add up.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Score {
    pub loss_sum: f64,
    pub correct: u64,
    pub samples: u64,
}

impl Score {
    pub fn add(&mut self, other: &Score) {
        self.loss_sum += other.loss_sum;
        self.correct += other.correct;
        self.samples += other.samples;
    }

    /// The mean loss; not a number when there was no sample.
    pub fn loss(&self) -> f64 {
        self.loss_sum / self.samples as f64
    }

    /// The part that was right; not a number when there was no sample.
    pub fn accuracy(&self) -> f64 {
        self.correct as f64 / self.samples as f64
    }
}

/// Memory that a compute thread owns and models reuse: a thousand workers share it in turn.
#[derive(Debug, Default)]
pub struct Scratch {
    buffers: Vec<Vec<f32>>,
    arena: Vec<f32>,
    stamp: u64,
    /// The replica that gradients were last said to be at.
    replica: Weak<Vector>,
    held: Held,
}

/// The params that something in the arena was made of.
#[derive(Debug, Default)]
struct Held {
    /// Some of them, enough to see that others are others.
    glimpse: Vec<u32>,
    /// All of them, once they were seen twice; else empty.
    whole: Vec<f32>,
    /// Whether what was made of them is enough for the way back.
    back: bool,
    /// Whether they are the scratch's replica.
    is_replica: bool,
}

impl Scratch {
    /// One buffer for each length asked for. What is in them is left over from the last use.
    pub fn floats(&mut self, lens: impl Iterator<Item = usize>) -> &mut [Vec<f32>] {
        let mut count = 0;
        for len in lens {
            if count == self.buffers.len() {
                self.buffers.push(Vec::new());
            }
            self.buffers[count].resize(len, 0.0);
            count += 1;
        }
        &mut self.buffers[..count]
    }

    /// One piece of memory at the start of a cache line. It is zero at first, and again when the stamp
    /// is another than at the last use.
    pub fn arena(&mut self, len: usize, stamp: u64) -> &mut [f32] {
        const LINE: usize = 64;
        let slack = LINE / size_of::<f32>();
        if self.stamp != stamp || self.arena.len() < len + slack {
            self.stamp = stamp;
            self.arena.clear();
            self.arena.resize(len + slack, 0.0);
            self.held.glimpse.clear();
            self.held.is_replica = false;
        }
        let start = self.arena.as_ptr().align_offset(LINE).min(slack);
        &mut self.arena[start..start + len]
    }

    /// Says which replica the next gradients are computed at: if it is the one of the last time, nothing that
    /// was made of it needs to be made or compared again.
    pub fn at(&mut self, replica: &Arc<Vector>) {
        let replica = Arc::downgrade(replica);
        self.held.is_replica &= replica.ptr_eq(&self.replica);
        self.replica = replica;
    }

    /// Whether the arena holds what is made of these very params; if not, the caller makes it now.
    ///
    /// Replicas are often computed with again and again: by simulated workers that share one, in
    /// micro-batches. Where nobody said so, comparing is still several times as fast as packing. Only params
    /// that are seen twice are kept for it: a worker that steps after every gradient pays nothing.
    pub(crate) fn holds(&mut self, params: &[f32], back: bool) -> bool {
        let is_enough = self.held.back || !back;
        let is_replica = self.is_replica(params);
        if is_enough && is_replica && self.held.is_replica {
            return true;
        }
        let holds = self.held.is_of(params) && is_enough;
        if !holds {
            self.held.back = back;
        }
        self.held.is_replica = is_replica;
        holds
    }

    /// Whether the params are the replica itself. As long as a weak pointer to it is kept, nobody can change a
    /// shared vector in place, or put another one where it was.
    fn is_replica(&self, params: &[f32]) -> bool {
        self.replica.upgrade().is_some_and(|replica| std::ptr::eq(replica.as_slice(), params))
    }
}

impl Held {
    /// Whether it is these that were held; if not, it is from now on.
    fn is_of(&mut self, params: &[f32]) -> bool {
        const GLIMPSE: usize = 64;
        let stride = (params.len() / GLIMPSE).max(1);
        let glimpse = || params.iter().step_by(stride).map(|x| x.to_bits());
        if !glimpse().eq(self.glimpse.iter().copied()) {
            self.glimpse.clear();
            self.glimpse.extend(glimpse());
            self.whole.clear();
            // Taken now, so that no later gradient allocates.
            self.whole.reserve_exact(params.len());
            return false;
        }
        if same_bits(&self.whole, params) {
            return true;
        }
        self.whole.clear();
        self.whole.extend_from_slice(params);
        false
    }
}

/// Compares as numbers do not: -0 is not 0, and not-a-number is itself.
fn same_bits(x: &[f32], y: &[f32]) -> bool {
    const BLOCK: usize = 1024;
    let differ = |(x, y): (&[f32], &[f32])| {
        x.iter().zip(y).fold(0, |differ, (x, y)| differ | (x.to_bits() ^ y.to_bits())) != 0
    };
    x.len() == y.len() && !x.chunks(BLOCK).zip(y.chunks(BLOCK)).any(differ)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scores_add_up() {
        let mut score = Score { loss_sum: 3.0, correct: 1, samples: 2 };

        score.add(&Score { loss_sum: 1.0, correct: 2, samples: 2 });

        assert_eq!((score.loss(), score.accuracy()), (1.0, 0.75));
    }

    #[test]
    fn scratch_gives_the_lengths_asked_for_and_keeps_its_memory() {
        let mut scratch = Scratch::default();
        let memory = scratch.floats([100, 50].into_iter())[0].as_ptr();

        let buffers = scratch.floats([80].into_iter());

        assert_eq!((buffers.len(), buffers[0].len()), (1, 80));
        assert_eq!(buffers[0].as_ptr(), memory);
    }

    #[test]
    fn params_seen_twice_are_held_until_one_bit_differs() {
        let mut scratch = Scratch::default();
        let params = vec![0.0_f32; 1000];
        let mut others = params.clone();
        // Not among those that a glimpse takes.
        others[1] = -0.0;

        let seen: Vec<bool> = (0..3).map(|_| scratch.holds(&params, true)).collect();
        assert_eq!(seen, [false, false, true]);
        assert!(scratch.holds(&params, false), "the way back includes the way there");
        assert!(!scratch.holds(&others, true));
        assert!(scratch.holds(&others, true));
        assert!(!scratch.holds(&params, true));
    }

    #[test]
    fn what_is_held_for_the_way_there_is_not_enough_for_the_way_back() {
        let mut scratch = Scratch::default();
        let params = vec![1.0_f32; 10];
        (0..3).for_each(|_| _ = scratch.holds(&params, false));

        assert!(!scratch.holds(&params, true));
    }

    #[test]
    fn a_replica_is_held_from_the_first_time_until_it_is_another_or_changes() {
        let mut scratch = Scratch::default();
        let (mut replica, other) = (Arc::new(vec![0.0_f32; 1000]), Arc::new(vec![0.0_f32; 1000]));
        let holds = |scratch: &mut Scratch, replica: &Arc<Vector>| {
            scratch.at(replica);
            scratch.holds(replica, true)
        };

        let seen: Vec<bool> = (0..3).map(|_| holds(&mut scratch, &replica)).collect();
        assert_eq!(seen, [false, true, true]);

        // The same memory, but no longer the same numbers.
        let memory = replica.as_ptr();
        Arc::make_mut(&mut replica)[1] = -0.0;
        assert_eq!(replica.as_ptr(), memory, "nobody else has it, so it is not copied");
        assert!(!holds(&mut scratch, &replica));
        assert!(holds(&mut scratch, &replica));

        // What was seen between, without being the replica, is what the arena holds now.
        assert!(!scratch.holds(&other, true));
        assert!(!holds(&mut scratch, &replica));
        assert!(!holds(&mut scratch, &other));
    }

    #[test]
    fn what_a_replica_was_made_into_for_the_way_there_is_not_enough_for_the_way_back() {
        let mut scratch = Scratch::default();
        let (replica, other) = (Arc::new(vec![1.0_f32; 10]), vec![2.0_f32; 10]);
        (0..3).for_each(|_| _ = scratch.holds(&other, false));
        scratch.at(&replica);

        assert!(!scratch.holds(&replica, false));
        assert!(scratch.holds(&replica, false));
        assert!(!scratch.holds(&replica, true));
        assert!(scratch.holds(&replica, true));
        assert!(!scratch.holds(&other, false), "the arena has not held it for long");
    }

    #[test]
    fn another_network_in_the_arena_ends_all_holding() {
        let mut scratch = Scratch::default();
        let params = vec![1.0_f32; 10];
        let params = Arc::new(params);
        for is_replica in [false, true] {
            scratch.arena(5, 1);
            if is_replica {
                scratch.at(&params);
            }
            (0..3).for_each(|_| _ = scratch.holds(&params, true));
            scratch.arena(5, 2);

            assert!(!scratch.holds(&params, true));
        }
    }
}
