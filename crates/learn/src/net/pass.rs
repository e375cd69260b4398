//! The forward and the backward pass of a network.

use std::ops::Range;

use super::layer::{Back, GradientOut, In, Out, Pass};
use super::{Head, Net, Node};
use crate::dataset::Batch;
use crate::kernels::loops;
use crate::model::{Score, Scratch};

impl Net {
    /// Returns the arena, with the packed weights of every layer.
    pub(super) fn packed<'a>(
        &self,
        params: &[f32],
        scratch: &'a mut Scratch,
        back: bool,
    ) -> &'a mut [f32] {
        // Called first because it discards the packed weights of another network.
        scratch.arena(self.arena, self.stamp);
        let is_packed = scratch.has_packed(params, back);
        let arena = scratch.arena(self.arena, self.stamp);
        let nodes = if is_packed { &[] } else { &self.nodes[..] };
        for node in nodes {
            let from = self.slots[node.from].value.extent;
            let back = back && node.from != 0;
            let packed = &mut arena[node.packed.clone()];
            node.layer.pack(self.path, from, &params[node.params.clone()], packed, back);
        }
        arena
    }

    /// Computes all activations of these samples of the batch.
    pub(super) fn forward(
        &self,
        params: &[f32],
        batch: &Batch,
        samples: Range<usize>,
        arena: &mut [f32],
        training: bool,
    ) {
        self.read_inputs(batch, samples.clone(), arena);
        let keys = &batch.keys[samples];
        for segment in &self.segments {
            for block in blocks(keys.len(), segment.block) {
                for node in &self.nodes[segment.nodes.clone()] {
                    self.forward_node(node, params, keys, block.clone(), arena, training);
                }
            }
        }
    }

    fn forward_node(
        &self,
        node: &Node,
        params: &[f32],
        keys: &[u64],
        block: Range<usize>,
        arena: &mut [f32],
        training: bool,
    ) {
        let spans = [
            self.value(node.from, &block),
            node.skip.map_or(0..0, |skip| self.value(skip, &block)),
            self.value(node.to, &block),
            node.saved_at + node.saved * block.start..node.saved_at + node.saved * block.end,
            node.packed.clone(),
        ];
        let [x, skip, y, saved, packed] = disjoint(arena, spans);
        let (from, to) = (&self.slots[node.from], &self.slots[node.to]);
        let skip = node.skip.map(|slot| In { frame: self.slots[slot].value, data: skip });
        let pass = self.pass_of(node, params, packed, &keys[block], training);
        let y = Out { frame: to.value, data: y };
        node.layer.forward(&pass, In { frame: from.value, data: x }, skip, y, saved);
    }

    /// Adds the gradient with respect to the params to `sum`. The gradient of the last slot must be in the arena.
    pub(super) fn backward(
        &self,
        params: &[f32],
        batch: &Batch,
        samples: Range<usize>,
        arena: &mut [f32],
        sum: &mut [f32],
    ) {
        let keys = &batch.keys[samples];
        for segment in self.segments.iter().rev() {
            for block in blocks(keys.len(), segment.block) {
                for node in self.nodes[segment.nodes.clone()].iter().rev() {
                    self.backward_node(node, params, keys, block.clone(), arena, sum);
                }
            }
        }
    }

    fn backward_node(
        &self,
        node: &Node,
        params: &[f32],
        keys: &[u64],
        block: Range<usize>,
        arena: &mut [f32],
        sum: &mut [f32],
    ) {
        let (dparams, statistics) = sum.split_at_mut(self.params);
        let spans = [
            self.value(node.from, &block),
            self.value(node.to, &block),
            self.delta(node.to, &block),
            self.delta(node.from, &block),
            node.skip.map_or(0..0, |skip| self.delta(skip, &block)),
            node.saved_at + node.saved * block.start..node.saved_at + node.saved * block.end,
            node.packed.clone(),
        ];
        let [x, y, dy, dx, dskip, saved, packed] = disjoint(arena, spans);
        let into = |slot: usize, data, overwrite| {
            let slot = &self.slots[slot];
            slot.delta_at.map(|_| GradientOut { frame: slot.delta, data, overwrite })
        };
        let (from, to) = (&self.slots[node.from], &self.slots[node.to]);
        let back = Back {
            x: In { frame: from.value, data: x },
            y: In { frame: to.value, data: y },
            dy: Out { frame: to.delta, data: dy },
            dx: into(node.from, dx, node.overwrite[0]),
            dskip: node.skip.and_then(|skip| into(skip, dskip, node.overwrite[1])),
            saved,
            dparams: &mut dparams[node.params.clone()],
            statistics: &mut statistics[node.buffers.clone()],
        };
        node.layer.backward(&self.pass_of(node, params, packed, &keys[block], true), back);
    }

    /// Returns the loss of these samples, and writes its gradient with respect to the logits to the last slot.
    pub(super) fn loss_and_delta(
        &self,
        batch: &Batch,
        samples: Range<usize>,
        arena: &mut [f32],
    ) -> f64 {
        let (all, last) = (0..samples.len(), self.slots.len() - 1);
        let [logits, deltas] = disjoint(arena, [self.value(last, &all), self.delta(last, &all)]);
        deltas.copy_from_slice(logits);
        let weight = 1.0 / self.targets_per_sample() as f32;
        let mut targets = self.targets(batch, samples);
        let loss = loops::cross_entropy(self.path, deltas, self.classes, &mut targets, weight);
        loss * f64::from(weight)
    }

    pub(super) fn score(&self, batch: &Batch, samples: Range<usize>, arena: &mut [f32]) -> Score {
        let span = self.value(self.slots.len() - 1, &(0..samples.len()));
        let logits = &mut arena[span];
        let rows = (samples.len() * self.targets_per_sample()) as u64;
        let targets = self.targets(batch, samples.clone());
        let correct = loops::count_correct(logits, self.classes, targets);
        let mut targets = self.targets(batch, samples);
        let loss_sum = loops::cross_entropy(self.path, logits, self.classes, &mut targets, 1.0);
        Score { loss_sum, correct, samples: rows }
    }

    pub(super) fn last_values<'a>(&self, samples: usize, arena: &'a [f32]) -> &'a [f32] {
        &arena[self.value(self.slots.len() - 1, &(0..samples))]
    }

    fn targets_per_sample(&self) -> usize {
        let last = self.slots.last().expect("a network has at least one slot").value.extent;
        last.height * last.width
    }

    /// The target class of every row of logits; a number that is not a token is clamped to the nearest one.
    fn targets<'a>(
        &self,
        batch: &'a Batch,
        samples: Range<usize>,
    ) -> impl Iterator<Item = usize> + use<'a> {
        let (head, features, last) = (self.head, batch.features, self.classes - 1);
        let skipped = if head == Head::NextToken { 1 } else { features };
        let tokens = batch.inputs[samples.start * features..samples.end * features]
            .chunks_exact(features)
            .flat_map(move |row| &row[skipped..])
            .map(move |token| (*token as usize).min(last));
        let labels = if head == Head::Label { &batch.labels[samples] } else { &[] };
        labels.iter().map(|label| *label as usize).chain(tokens)
    }

    fn read_inputs(&self, batch: &Batch, samples: Range<usize>, arena: &mut [f32]) {
        let frame = self.slots[0].value;
        assert_eq!(
            batch.features,
            frame.extent.len(),
            "the samples have as many features as the model has inputs"
        );
        let slot = &mut arena[self.value(0, &(0..samples.len()))];
        let inputs = &batch.inputs[samples.start * batch.features..];
        let (starts, len) = frame.rows(samples.len());
        for (start, row) in starts.zip(inputs.chunks_exact(len)) {
            slot[start..start + len].copy_from_slice(row);
        }
    }

    fn pass_of<'a>(
        &self,
        node: &Node,
        params: &'a [f32],
        packed: &'a [f32],
        keys: &'a [u64],
        training: bool,
    ) -> Pass<'a> {
        let buffers = node.buffers.start + self.params..node.buffers.end + self.params;
        Pass {
            path: self.path,
            samples: keys.len(),
            keys,
            training,
            params: &params[node.params.clone()],
            buffers: &params[buffers],
            packed,
        }
    }

    /// The range of a slot's activations of a block of samples in the arena.
    fn value(&self, slot: usize, block: &Range<usize>) -> Range<usize> {
        let (at, len) = (self.slots[slot].value_at, self.slots[slot].value.len());
        at + len * block.start..at + len * block.end
    }

    /// The same for its gradient; empty if it has none.
    fn delta(&self, slot: usize, block: &Range<usize>) -> Range<usize> {
        let slot = &self.slots[slot];
        let Some(at) = slot.delta_at else { return 0..0 };
        let start = at + if slot.is_transient { 0 } else { slot.delta.len() * block.start };
        start..start + slot.delta.len() * block.len()
    }
}

/// Cuts 0..n into blocks.
fn blocks(n: usize, block: usize) -> impl Iterator<Item = Range<usize>> {
    (0..n).step_by(block).map(move |from| from..n.min(from + block))
}

/// Several disjoint ranges of the arena, writable at the same time.
fn disjoint<const N: usize>(arena: &mut [f32], spans: [Range<usize>; N]) -> [&mut [f32]; N] {
    arena.get_disjoint_mut(spans).expect("ranges of the arena do not overlap")
}
