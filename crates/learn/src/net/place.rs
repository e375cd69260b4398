//! Gives every layer its params and every activation its place in the arena.

use std::ops::Range;

use super::build::Part;
use super::frame::Frame;
use super::{Head, Net, Node, Slot};
use crate::dataset::Extent;
use crate::dice::mix;
use crate::kernels::Path;

/// Floats that one pass may take, so that what it writes is still in a cache when it is read.
const PASS_FLOATS: usize = 2 << 20;
/// Most samples of a pass.
const PASS_MAX: usize = 64;

pub fn assemble(
    path: Path,
    extents: Vec<Extent>,
    parts: Vec<Part>,
    head: Head,
    classes: usize,
) -> Net {
    let (values, deltas) = frames(&extents, &parts);
    let mixes = parts.iter().any(|part| part.layer.mixes_samples());
    let per_sample: usize = values.iter().map(Frame::len).sum();
    let pass = if mixes { PASS_MAX } else { (PASS_FLOATS / per_sample).clamp(1, PASS_MAX) };

    let mut memory = Memory::default();
    let places = delta_places(&parts, &deltas, pass, &mut memory);
    let slots: Vec<Slot> = (0..extents.len())
        .map(|slot| Slot {
            value: values[slot],
            delta: deltas[slot],
            value_at: memory.take(values[slot].len() * pass).start,
            delta_at: places[slot],
        })
        .collect();
    let fresh = fresh(&parts);
    let (mut params, mut buffers) = (0, 0);
    let mut nodes = Vec::new();
    for (part, fresh) in parts.into_iter().zip(fresh) {
        let from = extents[part.from];
        let kept = part.layer.kept(from);
        nodes.push(Node {
            params: next(&mut params, part.layer.params(from)),
            buffers: next(&mut buffers, part.layer.buffers(from)),
            packed: memory.take(part.layer.packed(from, path)),
            kept,
            kept_at: memory.take(kept * pass).start,
            fresh,
            from: part.from,
            skip: part.skip,
            to: part.to,
            layer: part.layer,
        });
    }
    let stamp = slots.iter().fold(mix(memory.len as u64), |stamp, slot| {
        let places = [slot.value_at, slot.value.pad, slot.delta_at.unwrap_or(0), slot.delta.pad];
        let extent = [slot.value.extent.height, slot.value.extent.width];
        places.iter().chain(&extent).fold(stamp, |stamp, x| mix(stamp ^ *x as u64))
    });
    let arena = memory.len;
    Net { path, slots, nodes, params, buffers, head, classes, pass, arena, stamp }
}

impl Net {
    /// The same layers, placed anew.
    pub(super) fn rebuilt(self, path: Path) -> Net {
        let extents = self.slots.iter().map(|slot| slot.value.extent).collect();
        let part =
            |node: Node| Part { layer: node.layer, from: node.from, skip: node.skip, to: node.to };
        let parts = self.nodes.into_iter().map(part).collect();
        assemble(path, extents, parts, self.head, self.classes)
    }
}

/// Frames of zeros as wide as the layers around a slot need them: (values, deltas).
fn frames(extents: &[Extent], parts: &[Part]) -> (Vec<Frame>, Vec<Frame>) {
    let plain: Vec<Frame> =
        extents.iter().map(|extent| Frame { extent: *extent, pad: 0 }).collect();
    let (mut values, mut deltas) = (plain.clone(), plain);
    for part in parts {
        let (value, delta) = part.layer.pads(extents[part.from]);
        values[part.from].pad = values[part.from].pad.max(value);
        deltas[part.to].pad = deltas[part.to].pad.max(delta);
    }
    (values, deltas)
}

/// Gradients live from their last reader to their maker, and places are used again: but only by
/// gradients with the same frame, whose zeros must stay. The samples themselves have none.
fn delta_places(
    parts: &[Part],
    deltas: &[Frame],
    pass: usize,
    memory: &mut Memory,
) -> Vec<Option<usize>> {
    let mut places: Vec<Option<usize>> = vec![None; deltas.len()];
    let mut free: Vec<(Frame, usize)> = Vec::new();
    let mut find = |slot: usize, free: &mut Vec<(Frame, usize)>| {
        let frame = deltas[slot];
        match free.iter().rposition(|(other, _)| *other == frame) {
            Some(at) => free.remove(at).1,
            None => memory.take(frame.len() * pass).start,
        }
    };
    for part in parts.iter().rev() {
        for slot in [Some(part.to), Some(part.from), part.skip].into_iter().flatten() {
            if slot != 0 && places[slot].is_none() {
                places[slot] = Some(find(slot, &mut free));
            }
        }
        free.extend(places[part.to].map(|at| (deltas[part.to], at)));
    }
    places
}

/// For each node, whether it is the first on the way back to write the gradients in `from` and `skip`.
fn fresh(parts: &[Part]) -> Vec<[bool; 2]> {
    let mut written = vec![false; parts.len() + 1];
    let mut fresh = Vec::new();
    for part in parts.iter().rev() {
        let mut first = |slot: usize| !std::mem::replace(&mut written[slot], true);
        fresh.push([first(part.from), part.skip.is_some_and(first)]);
    }
    fresh.reverse();
    fresh
}

/// Hands out parts of the arena, each at the start of a cache line.
#[derive(Default)]
struct Memory {
    len: usize,
}

impl Memory {
    fn take(&mut self, len: usize) -> Range<usize> {
        let from = self.len;
        self.len = (from + len).next_multiple_of(16);
        from..from + len
    }
}

fn next(at: &mut usize, len: usize) -> Range<usize> {
    *at += len;
    *at - len..*at
}
