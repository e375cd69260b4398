//! What a model is: a pure function from params and samples to a gradient and a score.

use std::ops::Range;

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
        }
        let start = self.arena.as_ptr().align_offset(LINE).min(slack);
        &mut self.arena[start..start + len]
    }
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
}
