//! What can be wrong with a codec's parameters, and with a received payload.

/// Parameters that no codec can use.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum CodecError {
    #[error("qsgd cannot use {0} bits per value: set `bits` between 2 and 8")]
    Bits(u8),
    #[error("qsgd cannot use buckets of {0} values: set `bucket` to 512")]
    Bucket(usize),
    #[error("top_k cannot keep a fraction of {0}: set `fraction` above 0 and at most 1")]
    Fraction(f64),
}

/// A payload whose parts do not fit together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PayloadError {
    #[error(
        "a payload has {length} values, {buffers} of them buffers behind the encoded ones, and a replica of this job {expected} \
         with {buffers_expected} buffers: do all workers run the same job?"
    )]
    Length { length: usize, buffers: usize, expected: usize, buffers_expected: usize },
    #[error(
        "a quantized payload does not fit together ({length} values of {bits} bits in buckets of {bucket}, but {norms} norms \
         and {levels} bytes of levels): does its sender run the same version?"
    )]
    Quantized { bits: u8, bucket: u32, length: u32, norms: usize, levels: usize },
    #[error(
        "a sparse payload of {length} values has missing, unsorted or too large indices: does its sender run the same version?"
    )]
    Sparse { length: u32 },
}
