//! Assembles a network: assigns params to its layers and memory to its activations.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use super::frame::Frame;
use super::part::Part;
use super::{Head, Net, Node, Segment, Slot};
use crate::dataset::Extent;
use crate::kernels::Path;

/// The most floats of a pass in which heavy layers share their weights among samples, and the most samples of any
/// pass.
const PASS_FLOATS: usize = 8 << 20;
const PASS_MAX: usize = 64;
/// The most floats of a block of samples in a segment: about half of the L2 cache.
const BLOCK_FLOATS: usize = 128 << 10;

/// The stamp of the next network. Zero is not used, because it is the stamp of an empty arena.
static STAMPS: AtomicU64 = AtomicU64::new(1);

pub fn assemble(
    path: Path,
    extents: Vec<Extent>,
    parts: Vec<Part>,
    head: Head,
    classes: usize,
) -> Net {
    let (values, deltas) = frames(&extents, &parts);
    let mut segments = segments(&extents, &parts, &values, &deltas);
    let mixes = parts.iter().any(|part| part.layer.mixes_samples());
    let per_sample: usize = values.iter().map(Frame::len).sum();
    let pass = match segments[..] {
        _ if mixes => PASS_MAX,
        [Segment { block, .. }] => block,
        _ => (PASS_FLOATS / per_sample).clamp(1, PASS_MAX),
    };
    segments.iter_mut().for_each(|segment| segment.block = segment.block.min(pass));

    let mut arena = Arena::default();
    let resident = resident(&parts, &segments, extents.len(), pass);
    let offsets = delta_offsets(&parts, &deltas, &resident, &mut arena);
    let slots: Vec<Slot> = (0..extents.len())
        .map(|slot| Slot {
            value: values[slot],
            delta: deltas[slot],
            value_at: arena.reserve(values[slot].len() * pass).start,
            delta_at: offsets[slot],
            is_transient: resident[slot] < pass,
        })
        .collect();
    let overwrite = overwrites(&parts);
    let (mut params, mut buffers) = (0, 0);
    let mut nodes = Vec::new();
    for (part, overwrite) in parts.into_iter().zip(overwrite) {
        let from = extents[part.from];
        let saved = part.layer.saved(from);
        nodes.push(Node {
            params: next(&mut params, part.layer.params(from)),
            buffers: next(&mut buffers, part.layer.buffers(from)),
            packed: arena.reserve(part.layer.packed(from, path)),
            saved,
            saved_at: arena.reserve(saved * pass).start,
            overwrite,
            from: part.from,
            skip: part.skip,
            to: part.to,
            layer: part.layer,
            prefix: part.prefix,
        });
    }
    let stamp = STAMPS.fetch_add(1, Ordering::Relaxed);
    let arena = arena.len;
    Net { path, slots, nodes, segments, params, buffers, head, classes, pass, arena, stamp }
}

impl Net {
    /// The same layers, assembled again for another path.
    pub(super) fn rebuilt(self, path: Path) -> Net {
        let extents = self.slots.iter().map(|slot| slot.value.extent).collect();
        let part = |node: Node| {
            let Node { layer, prefix, from, skip, to, .. } = node;
            Part { layer, prefix, from, skip, to }
        };
        let parts = self.nodes.into_iter().map(part).collect();
        assemble(path, extents, parts, self.head, self.classes)
    }
}

/// The frames of all slots as (values, deltas), with the padding that the layers around them need.
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

/// Cuts the layers into segments. A layer that is heavy or mixes samples is a segment of its own.
fn segments(
    extents: &[Extent],
    parts: &[Part],
    values: &[Frame],
    deltas: &[Frame],
) -> Vec<Segment> {
    let is_alone =
        |part: &Part| part.layer.is_heavy(extents[part.from]) || part.layer.mixes_samples();
    let mut segments = Vec::new();
    let mut start = 0;
    for part in parts.chunk_by(|a, b| !is_alone(a) && !is_alone(b)) {
        let floats: usize =
            part.iter().map(|part| values[part.to].len() + deltas[part.to].len()).sum();
        let block = match part {
            [part] if is_alone(part) => PASS_MAX,
            _ => (BLOCK_FLOATS / floats).clamp(1, PASS_MAX),
        };
        segments.push(Segment { nodes: start..start + part.len(), block });
        start += part.len();
    }
    segments
}

/// The number of samples whose gradients are in memory at the same time, for each slot: those of a block if only
/// the segment that computes the slot reads it.
fn resident(parts: &[Part], segments: &[Segment], slots: usize, pass: usize) -> Vec<usize> {
    let mut resident = vec![pass; slots];
    for segment in segments {
        for part in &parts[segment.nodes.clone()] {
            let reads = |other: &&Part| other.from == part.to || other.skip == Some(part.to);
            let inside = parts[segment.nodes.clone()].iter().filter(reads).count();
            let readers = parts.iter().filter(reads).count();
            if readers > 0 && inside == readers {
                resident[part.to] = segment.block;
            }
        }
    }
    resident
}

/// Where the gradient of each slot begins in the arena; the samples themselves have none.
///
/// In the backward pass a gradient is needed from the slot's last reader to the layer that computed it. Afterwards its
/// memory is reused, but only for a gradient with the same frame, because the padding must stay zero.
fn delta_offsets(
    parts: &[Part],
    deltas: &[Frame],
    resident: &[usize],
    arena: &mut Arena,
) -> Vec<Option<usize>> {
    let mut offsets: Vec<Option<usize>> = vec![None; deltas.len()];
    let mut free: Vec<(Frame, usize, usize)> = Vec::new();
    for part in parts.iter().rev() {
        for slot in [Some(part.to), Some(part.from), part.skip].into_iter().flatten() {
            if slot == 0 || offsets[slot].is_some() {
                continue;
            }
            let (frame, samples) = (deltas[slot], resident[slot]);
            let fits = |place: &(Frame, usize, usize)| (place.0, place.1) == (frame, samples);
            offsets[slot] = Some(match free.iter().rposition(fits) {
                Some(at) => free.remove(at).2,
                None => arena.reserve(frame.len() * samples).start,
            });
        }
        free.extend(offsets[part.to].map(|at| (deltas[part.to], resident[part.to], at)));
    }
    offsets
}

/// For each node, whether it is the first in the backward pass to write the gradients of `from` and `skip`.
fn overwrites(parts: &[Part]) -> Vec<[bool; 2]> {
    let mut written = vec![false; parts.len() + 1];
    let mut overwrite = Vec::new();
    for part in parts.iter().rev() {
        let mut first = |slot: usize| !std::mem::replace(&mut written[slot], true);
        overwrite.push([first(part.from), part.skip.is_some_and(first)]);
    }
    overwrite.reverse();
    overwrite
}

/// Assigns ranges of the arena, each at the start of a cache line.
#[derive(Default)]
struct Arena {
    len: usize,
}

impl Arena {
    fn reserve(&mut self, len: usize) -> Range<usize> {
        let from = self.len;
        self.len = (from + len).next_multiple_of(16);
        from..from + len
    }
}

fn next(at: &mut usize, len: usize) -> Range<usize> {
    *at += len;
    *at - len..*at
}
