//! One way through a network and back.

use std::ops::Range;

use super::layer::{Back, In, Into, Out, Pass};
use super::{Head, Net, Node};
use crate::dataset::Batch;
use crate::kernels::loops;
use crate::model::{Score, Scratch};

impl Net {
    /// The arena with every layer's weights packed into it.
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

    /// Fills every slot for these samples of the batch.
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
        for stretch in &self.stretches {
            for block in blocks(keys.len(), stretch.block) {
                for node in &self.nodes[stretch.nodes.clone()] {
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
            node.kept_at + node.kept * block.start..node.kept_at + node.kept * block.end,
            node.packed.clone(),
        ];
        let [x, skip, y, kept, packed] = apart(arena, spans);
        let (from, to) = (&self.slots[node.from], &self.slots[node.to]);
        let skip = node.skip.map(|slot| In { frame: self.slots[slot].value, data: skip });
        let pass = self.pass_of(node, params, packed, &keys[block], training);
        let y = Out { frame: to.value, data: y };
        node.layer.forward(&pass, In { frame: from.value, data: x }, skip, y, kept);
    }

    /// Adds the gradient in the params to `sum`; the last slot's gradient is there already.
    pub(super) fn backward(
        &self,
        params: &[f32],
        batch: &Batch,
        samples: Range<usize>,
        arena: &mut [f32],
        sum: &mut [f32],
    ) {
        let keys = &batch.keys[samples];
        for stretch in self.stretches.iter().rev() {
            for block in blocks(keys.len(), stretch.block) {
                for node in self.nodes[stretch.nodes.clone()].iter().rev() {
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
            node.kept_at + node.kept * block.start..node.kept_at + node.kept * block.end,
            node.packed.clone(),
        ];
        let [x, y, dy, dx, dskip, kept, packed] = apart(arena, spans);
        let into = |slot: usize, data, fresh| {
            let slot = &self.slots[slot];
            slot.delta_at.map(|_| Into { frame: slot.delta, data, fresh })
        };
        let (from, to) = (&self.slots[node.from], &self.slots[node.to]);
        let back = Back {
            x: In { frame: from.value, data: x },
            y: In { frame: to.value, data: y },
            dy: Out { frame: to.delta, data: dy },
            dx: into(node.from, dx, node.fresh[0]),
            dskip: node.skip.and_then(|skip| into(skip, dskip, node.fresh[1])),
            kept,
            dparams: &mut dparams[node.params.clone()],
            statistics: &mut statistics[node.buffers.clone()],
        };
        node.layer.backward(&self.pass_of(node, params, packed, &keys[block], true), back);
    }

    /// The loss of these samples; leaves its gradient in the last slot.
    pub(super) fn compare(&self, batch: &Batch, samples: Range<usize>, arena: &mut [f32]) -> f64 {
        let (all, last) = (0..samples.len(), self.slots.len() - 1);
        let [logits, deltas] = apart(arena, [self.value(last, &all), self.delta(last, &all)]);
        deltas.copy_from_slice(logits);
        let weight = 1.0 / self.answers_per_sample() as f32;
        let mut answers = self.answers(batch, samples);
        let loss = loops::cross_entropy(self.path, deltas, self.classes, &mut answers, weight);
        loss * f64::from(weight)
    }

    pub(super) fn score(&self, batch: &Batch, samples: Range<usize>, arena: &mut [f32]) -> Score {
        let span = self.value(self.slots.len() - 1, &(0..samples.len()));
        let logits = &mut arena[span];
        let rows = (samples.len() * self.answers_per_sample()) as u64;
        let answers = self.answers(batch, samples.clone());
        let correct = loops::count_correct(logits, self.classes, answers);
        let mut answers = self.answers(batch, samples);
        let loss_sum = loops::cross_entropy(self.path, logits, self.classes, &mut answers, 1.0);
        Score { loss_sum, correct, samples: rows }
    }

    pub(super) fn last_values<'a>(&self, samples: usize, arena: &'a [f32]) -> &'a [f32] {
        &arena[self.value(self.slots.len() - 1, &(0..samples))]
    }

    fn answers_per_sample(&self) -> usize {
        let last = self.slots.last().expect("there is a first slot").value.extent;
        last.height * last.width
    }

    /// The right class of every row of logits; what is no token counts as the nearest one.
    fn answers<'a>(
        &self,
        batch: &'a Batch,
        samples: Range<usize>,
    ) -> impl Iterator<Item = usize> + use<'a> {
        let (head, features, last) = (self.head, batch.features, self.classes - 1);
        let skipped = if head == Head::Next { 1 } else { features };
        let tokens = batch.inputs[samples.start * features..samples.end * features]
            .chunks_exact(features)
            .flat_map(move |row| &row[skipped..])
            .map(move |token| (*token as usize).min(last));
        let labels = if head == Head::Label { &batch.labels[samples] } else { &[] };
        labels.iter().map(|label| *label as usize).chain(tokens)
    }

    fn read_inputs(&self, batch: &Batch, samples: Range<usize>, arena: &mut [f32]) {
        let frame = self.slots[0].value;
        assert_eq!(batch.features, frame.extent.len(), "the model fits the data set");
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

    fn value(&self, slot: usize, block: &Range<usize>) -> Range<usize> {
        let (at, len) = (self.slots[slot].value_at, self.slots[slot].value.len());
        at + len * block.start..at + len * block.end
    }

    fn delta(&self, slot: usize, block: &Range<usize>) -> Range<usize> {
        let slot = &self.slots[slot];
        let Some(at) = slot.delta_at else { return 0..0 };
        let start = at + if slot.is_passing { 0 } else { slot.delta.len() * block.start };
        start..start + slot.delta.len() * block.len()
    }
}

/// Samples 0 to n in blocks.
fn blocks(n: usize, block: usize) -> impl Iterator<Item = Range<usize>> {
    (0..n).step_by(block).map(move |from| from..n.min(from + block))
}

/// Some parts of the arena at once.
fn apart<const N: usize>(arena: &mut [f32], spans: [Range<usize>; N]) -> [&mut [f32]; N] {
    arena.get_disjoint_mut(spans).expect("parts of the arena lie apart")
}
