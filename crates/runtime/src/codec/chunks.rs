//! Chunks of encoded vectors: what the owner of a chunk needs of every part.

use std::ops::Range;

use super::{Encoded, Payload, quantize};

impl Payload {
    /// What the owner of chunk j of n needs of this payload: its chunk of what is learned, in whole buckets if they share a norm, and
    /// its chunk of the buffers.
    pub fn chunk(&self, n: usize, j: usize) -> Payload {
        let reach = reach(&self.learned, n, j);
        let learned = match &self.learned {
            Encoded::Dense(values) => Encoded::Dense(values[reach].into()),
            Encoded::Half(values) => Encoded::Half(values[reach].to_vec()),
            Encoded::Quantized { bits, bucket, norms, levels, .. } => {
                let buckets = reach.start / *bucket as usize..reach.end.div_ceil(*bucket as usize);
                let bytes = quantize::packed_bytes(*bits, reach.start)
                    ..quantize::packed_bytes(*bits, reach.end);
                Encoded::Quantized {
                    bits: *bits,
                    bucket: *bucket,
                    length: reach.len() as u32,
                    norms: norms[buckets].to_vec(),
                    levels: levels[bytes].to_vec(),
                }
            }
            Encoded::Sparse { .. } => unreachable!("sparse payloads are not divided"),
        };
        let buffers = self.buffers[chunk(self.buffers.len(), n, j)].into();
        Payload { learned, buffers }
    }

    /// The lengths, of what is learned and of buffers, that [`chunk`](Self::chunk) has of a payload of this kind.
    pub fn chunk_lengths(
        &self,
        (params, buffers): (usize, usize),
        n: usize,
        j: usize,
    ) -> (usize, usize) {
        let learned = match &self.learned {
            Encoded::Quantized { bucket, .. } => {
                whole_buckets(chunk(params, n, j), *bucket as usize, params)
            }
            _ => chunk(params, n, j),
        };
        (learned.len(), chunk(buffers, n, j).len())
    }
}

/// Where chunk j of n lies in a vector.
pub fn chunk(length: usize, n: usize, j: usize) -> Range<usize> {
    j * length / n..(j + 1) * length / n
}

/// Which learned numbers the owner of chunk j needs.
fn reach(encoded: &Encoded, n: usize, j: usize) -> Range<usize> {
    let length = encoded.len();
    match encoded {
        Encoded::Quantized { bucket, .. } => {
            whole_buckets(chunk(length, n, j), *bucket as usize, length)
        }
        _ => chunk(length, n, j),
    }
}

/// The buckets around some numbers. They begin where levels begin at a byte: at a multiple of eight buckets, which is one of eight
/// numbers.
pub(super) fn whole_buckets(range: Range<usize>, bucket: usize, length: usize) -> Range<usize> {
    if range.is_empty() {
        return range.start..range.start;
    }
    let unit = if bucket.is_multiple_of(8) { bucket } else { bucket.saturating_mul(8) };
    range.start / unit * unit..range.end.div_ceil(unit).saturating_mul(unit).min(length)
}
