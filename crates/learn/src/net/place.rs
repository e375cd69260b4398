//! Gives every layer its params and every activation its place in the arena.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use super::build::Part;
use super::frame::Frame;
use super::{Head, Net, Node, Slot, Stretch};
use crate::dataset::Extent;
use crate::kernels::Path;

/// Floats that one pass may take where samples are gathered for heavy layers, and most samples of a pass.
const PASS_FLOATS: usize = 8 << 20;
const PASS_MAX: usize = 64;
/// Floats that a block of samples may take in a stretch: about half of the second cache.
const BLOCK_FLOATS: usize = 128 << 10;

/// The next network's stamp; zero is no network's.
static STAMPS: AtomicU64 = AtomicU64::new(1);

pub fn assemble(
    path: Path,
    extents: Vec<Extent>,
    parts: Vec<Part>,
    head: Head,
    classes: usize,
) -> Net {
    let (values, deltas) = frames(&extents, &parts);
    let mut stretches = stretches(&extents, &parts, &values, &deltas);
    let mixes = parts.iter().any(|part| part.layer.mixes_samples());
    let per_sample: usize = values.iter().map(Frame::len).sum();
    let pass = match stretches[..] {
        _ if mixes => PASS_MAX,
        [Stretch { block, .. }] => block,
        _ => (PASS_FLOATS / per_sample).clamp(1, PASS_MAX),
    };
    stretches.iter_mut().for_each(|stretch| stretch.block = stretch.block.min(pass));

    let mut memory = Memory::default();
    // Samples of whose gradient there is one at a time.
    let held = held(&parts, &stretches, extents.len(), pass);
    let places = delta_places(&parts, &deltas, &held, &mut memory);
    let slots: Vec<Slot> = (0..extents.len())
        .map(|slot| Slot {
            value: values[slot],
            delta: deltas[slot],
            value_at: memory.take(values[slot].len() * pass).start,
            delta_at: places[slot],
            is_passing: held[slot] < pass,
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
    let stamp = STAMPS.fetch_add(1, Ordering::Relaxed);
    let arena = memory.len;
    Net { path, slots, nodes, stretches, params, buffers, head, classes, pass, arena, stamp }
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

/// Cuts the layers into stretches: one that is heavy or mixes samples stands alone.
fn stretches(
    extents: &[Extent],
    parts: &[Part],
    values: &[Frame],
    deltas: &[Frame],
) -> Vec<Stretch> {
    let is_alone =
        |part: &Part| part.layer.is_heavy(extents[part.from]) || part.layer.mixes_samples();
    let mut stretches = Vec::new();
    let mut start = 0;
    for part in parts.chunk_by(|a, b| !is_alone(a) && !is_alone(b)) {
        let floats: usize =
            part.iter().map(|part| values[part.to].len() + deltas[part.to].len()).sum();
        let block = match part {
            [part] if is_alone(part) => PASS_MAX,
            _ => (BLOCK_FLOATS / floats).clamp(1, PASS_MAX),
        };
        stretches.push(Stretch { nodes: start..start + part.len(), block });
        start += part.len();
    }
    stretches
}

/// For how many samples each slot's gradient is there at a time: a block's, if no other stretch than its
/// maker's reads it.
fn held(parts: &[Part], stretches: &[Stretch], slots: usize, pass: usize) -> Vec<usize> {
    let mut held = vec![pass; slots];
    for stretch in stretches {
        for part in &parts[stretch.nodes.clone()] {
            let reads = |other: &&Part| other.from == part.to || other.skip == Some(part.to);
            let inside = parts[stretch.nodes.clone()].iter().filter(reads).count();
            let readers = parts.iter().filter(reads).count();
            if readers > 0 && inside == readers {
                held[part.to] = stretch.block;
            }
        }
    }
    held
}

/// Gradients live from their last reader to their maker, and places are used again: but only by
/// gradients with the same frame, whose zeros must stay. The samples themselves have none.
fn delta_places(
    parts: &[Part],
    deltas: &[Frame],
    held: &[usize],
    memory: &mut Memory,
) -> Vec<Option<usize>> {
    let mut places: Vec<Option<usize>> = vec![None; deltas.len()];
    let mut free: Vec<(Frame, usize, usize)> = Vec::new();
    for part in parts.iter().rev() {
        for slot in [Some(part.to), Some(part.from), part.skip].into_iter().flatten() {
            if slot == 0 || places[slot].is_some() {
                continue;
            }
            let (frame, samples) = (deltas[slot], held[slot]);
            let fits = |place: &(Frame, usize, usize)| (place.0, place.1) == (frame, samples);
            places[slot] = Some(match free.iter().rposition(fits) {
                Some(at) => free.remove(at).2,
                None => memory.take(frame.len() * samples).start,
            });
        }
        free.extend(places[part.to].map(|at| (deltas[part.to], held[part.to], at)));
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
