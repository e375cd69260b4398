//! The trait of all models: a pure function from params and samples to a gradient and a score.

use std::ops::Range;
use std::sync::{Arc, Weak};

use crate::dataset::Batch;
use crate::gradient::Gradient;
use crate::layout::{Layout, Tensor};
use crate::vector::Vector;

/// A model. It is pure: the same params and samples always have the same result, bit by bit.
pub trait Model: Send + Sync {
    /// The number of learned parameters.
    fn params(&self) -> usize;

    /// The number of buffers: values that follow the parameters in a replica and are not learned, such as running
    /// statistics.
    fn buffers(&self) -> usize {
        0
    }

    /// The length of a replica: [params, buffers].
    fn size(&self) -> usize {
        self.params() + self.buffers()
    }

    /// The replica before training.
    fn initial(&self, seed: u64) -> Vector;

    /// Adds the batch to `into`: gradient and loss as sums over its samples, and the number of samples. After the
    /// gradient of the parameters come the statistics for the buffers, multiplied by the number of samples. If samples
    /// differ in weight (sums over tokens, or samples that are masked), [`Gradient::count`] says what to divide by.
    fn gradient(&self, params: &[f32], batch: &Batch, scratch: &mut Scratch, into: &mut Gradient);

    /// The loss and the accuracy on a batch.
    fn evaluate(&self, params: &[f32], batch: &Batch, scratch: &mut Scratch) -> Score;

    fn layout(&self) -> Layout {
        let (undecayed, tensors) = (self.undecayed(), self.tensors());
        Layout { params: self.params(), undecayed, tensors }
    }

    /// The instruction set of its kernels, for the journal.
    fn kernels(&self) -> &'static str {
        "plain"
    }

    /// The largest batch for one call of `gradient`; callers split larger ones.
    fn micro_batch_max(&self) -> usize {
        256
    }

    /// The logits of each sample, one per class, row by row; empty for models without classes.
    fn outputs(&self, _params: &[f32], _batch: &Batch, _scratch: &mut Scratch) -> Vec<f32> {
        Vec::new()
    }

    /// The ranges of a replica without weight decay, in ascending order: biases, norms and all buffers.
    fn undecayed(&self) -> Vec<Range<usize>> {
        (self.buffers() > 0).then(|| self.params()..self.size()).into_iter().collect()
    }

    /// The tensors by which other programs know its replica: their ranges follow each other from the first parameter
    /// to the last buffer. By default they are one vector `params`, and one vector `buffers` if there are any.
    fn tensors(&self) -> Vec<Tensor> {
        let params = Tensor::plain("params", &[self.params()], 0);
        let buffers = Tensor::plain("buffers", &[self.buffers()], self.params());
        [params].into_iter().chain((self.buffers() > 0).then_some(buffers)).collect()
    }
}

/// Loss and accuracy on some samples. Scores of different batches can be added.
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

    /// The mean loss; NaN if there are no samples.
    pub fn loss(&self) -> f64 {
        self.loss_sum / self.samples as f64
    }

    /// The fraction of correct predictions; NaN if there are no samples.
    pub fn accuracy(&self) -> f64 {
        self.correct as f64 / self.samples as f64
    }
}

/// Memory that a compute thread owns and models reuse: all simulated workers of a thread share it in turn.
#[derive(Debug, Default)]
pub struct Scratch {
    buffers: Vec<Vec<f32>>,
    arena: Vec<f32>,
    stamp: u64,
    /// The replica named by the last call of [`Scratch::at`].
    replica: Weak<Vector>,
    packed: Packed,
    /// A copy of the packed parameters, if they are `Packed::Copied`.
    copy: Vec<f32>,
    /// Whether the packed weights include those of the backward pass.
    for_backward: bool,
}

/// Which parameters the packed weights in the arena were made from.
///
/// There are two ways to see that parameters are the same as before. A replica in an `Arc` is
/// recognized by its address, at no cost; this is how training computes all its gradients. Parameters in a
/// plain slice, as in evaluation, must be compared with a copy, which is still several times as
/// fast as packing them again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Packed {
    #[default]
    Nothing,
    /// From `Scratch::replica`.
    Replica,
    /// From the parameters in `Scratch::copy`.
    Copied,
}

impl Scratch {
    /// Returns one buffer for each requested length. Their contents are left over from the last use.
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

    /// Returns one block of memory, aligned to a cache line. It is zeroed on the first use, and whenever
    /// the stamp differs from that of the last use.
    pub fn arena(&mut self, len: usize, stamp: u64) -> &mut [f32] {
        const LINE: usize = 64;
        let slack = LINE / size_of::<f32>();
        if self.stamp != stamp || self.arena.len() < len + slack {
            self.stamp = stamp;
            self.arena.clear();
            self.arena.resize(len + slack, 0.0);
            self.packed = Packed::Nothing;
        }
        let start = self.arena.as_ptr().align_offset(LINE).min(slack);
        &mut self.arena[start..start + len]
    }

    /// Sets the replica at which the next gradients are computed. If it is the same as last time, its
    /// weights are neither compared nor packed again.
    pub fn at(&mut self, replica: &Arc<Vector>) {
        let replica = Arc::downgrade(replica);
        if self.packed == Packed::Replica && !replica.ptr_eq(&self.replica) {
            self.packed = Packed::Nothing;
        }
        self.replica = replica;
    }

    /// Whether the arena holds the packed weights of exactly these parameters, including those of the
    /// backward pass if `for_backward`. If it returns false, the caller must pack them now.
    pub(crate) fn has_packed(&mut self, params: &[f32], for_backward: bool) -> bool {
        let is_replica = self.is_replica(params);
        let is_same = match self.packed {
            Packed::Nothing => false,
            Packed::Replica => is_replica,
            Packed::Copied => same_bits(&self.copy, params),
        };
        if is_replica {
            self.packed = Packed::Replica;
        } else if !is_same {
            self.packed = Packed::Copied;
            self.copy.clear();
            self.copy.extend_from_slice(params);
        }
        let has_packed = is_same && (self.for_backward || !for_backward);
        if !has_packed {
            self.for_backward = for_backward;
        }
        has_packed
    }

    /// Whether `params` is the replica set by [`Scratch::at`], unchanged since then.
    ///
    /// Comparing addresses is enough because of the weak pointer. While it exists, the replica's allocation is not
    /// reused, and `Arc::make_mut` and `Arc::get_mut` do not change the vector in place: the
    /// first moves it to a new allocation, after which `upgrade` fails here, and the second refuses.
    fn is_replica(&self, params: &[f32]) -> bool {
        self.replica.upgrade().is_some_and(|replica| std::ptr::eq(replica.as_slice(), params))
    }
}

/// Compares bits instead of numbers: -0 differs from 0, and a NaN equals itself.
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
    fn scratch_returns_the_requested_lengths_and_keeps_its_memory() {
        let mut scratch = Scratch::default();
        let memory = scratch.floats([100, 50].into_iter())[0].as_ptr();

        let buffers = scratch.floats([80].into_iter());

        assert_eq!((buffers.len(), buffers[0].len()), (1, 80));
        assert_eq!(buffers[0].as_ptr(), memory);
    }

    #[test]
    fn params_are_recognized_until_one_bit_differs() {
        let mut scratch = Scratch::default();
        let params = vec![0.0_f32; 3000];
        let mut others = params.clone();
        others[2500] = -0.0;

        let seen: Vec<bool> = (0..3).map(|_| scratch.has_packed(&params, true)).collect();
        assert_eq!(seen, [false, true, true]);
        assert!(
            scratch.has_packed(&params, false),
            "the forward pass needs a part of these weights"
        );
        assert!(!scratch.has_packed(&others, true));
        assert!(scratch.has_packed(&others, true));
        assert!(!scratch.has_packed(&params, true));
        assert!(!scratch.has_packed(&params[..2000], true));
    }

    #[test]
    fn weights_packed_for_the_forward_pass_are_not_enough_for_the_backward_pass() {
        let mut scratch = Scratch::default();
        let params = Vector::filled(1.0, 10);
        (0..3).for_each(|_| _ = scratch.has_packed(&params, false));

        assert!(!scratch.has_packed(&params, true));
        assert!(scratch.has_packed(&params, true));
        assert!(scratch.has_packed(&params, false));
    }

    #[test]
    fn a_replica_is_recognized_until_it_is_replaced_or_changed() {
        let mut scratch = Scratch::default();
        let (mut replica, other) = (Arc::new(Vector::zeros(1000)), Arc::new(Vector::zeros(1000)));
        let has_packed = |scratch: &mut Scratch, replica: &Arc<Vector>| {
            scratch.at(replica);
            scratch.has_packed(replica, true)
        };

        let seen: Vec<bool> = (0..3).map(|_| has_packed(&mut scratch, &replica)).collect();
        assert_eq!(seen, [false, true, true]);
        assert!(scratch.copy.is_empty(), "a replica is not copied");

        // The numbers change and stay in the same memory.
        let memory = replica.as_ptr();
        Arc::make_mut(&mut replica)[1] = -0.0;
        assert_eq!(replica.as_ptr(), memory, "the only owner does not copy");
        assert!(!has_packed(&mut scratch, &replica));
        assert!(has_packed(&mut scratch, &replica));

        // Other parameters in between, which are not the replica, replace the packed weights.
        assert!(!scratch.has_packed(&other, true));
        assert!(!has_packed(&mut scratch, &replica));
        assert!(!has_packed(&mut scratch, &other));
    }

    #[test]
    fn a_replica_with_the_bits_of_packed_params_is_recognized_from_then_on_by_its_address() {
        let mut scratch = Scratch::default();
        let params = Vector::filled(1.0, 10);
        let replica = Arc::new(params.clone());
        assert!(!scratch.has_packed(&params, true));
        scratch.at(&replica);

        assert!(scratch.has_packed(&replica, true));

        assert_eq!(scratch.packed, Packed::Replica);
        assert!(scratch.has_packed(&replica, true));
    }

    #[test]
    fn a_replica_packed_for_the_forward_pass_is_packed_again_for_the_backward_pass() {
        let mut scratch = Scratch::default();
        let (replica, other) = (Arc::new(Vector::filled(1.0, 10)), vec![2.0_f32; 10]);
        (0..3).for_each(|_| _ = scratch.has_packed(&other, false));
        scratch.at(&replica);

        assert!(!scratch.has_packed(&replica, false));
        assert!(scratch.has_packed(&replica, false));
        assert!(!scratch.has_packed(&replica, true));
        assert!(scratch.has_packed(&replica, true));
        assert!(!scratch.has_packed(&other, false), "the replica's weights have replaced these");
    }

    #[test]
    fn an_arena_of_another_network_holds_no_packed_weights() {
        let mut scratch = Scratch::default();
        let params = Arc::new(Vector::filled(1.0, 10));
        for is_replica in [false, true] {
            scratch.arena(5, 1);
            if is_replica {
                scratch.at(&params);
            }
            (0..3).for_each(|_| _ = scratch.has_packed(&params, true));
            scratch.arena(5, 2);

            assert!(!scratch.has_packed(&params, true));
        }
    }
}
