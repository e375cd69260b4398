//! Codecs: how a vector is encoded for the wire, and how encoded vectors are summed.
//!
//! A codec encodes what is learned. Buffers, such as the running statistics of batch norm, are few, and an error in them
//! is not made up for by later steps: they follow as plain floats.
//!
//! Plain IEEE arithmetic in a fixed order, and random numbers from keyed dice: a simulated and a real
//! cluster get the same bits.

mod chunks;
mod error;
mod half;
mod quantize;
mod sum;
#[cfg(test)]
mod tests;
mod top_k;

use paceline_learn::{Dice, Vector, vector::add};
use serde::{Deserialize, Serialize};

pub use chunks::chunk;
pub use error::{CodecError, PayloadError};
pub use sum::{Adding, add_dense, dice_of};

/// How a vector is encoded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Codec {
    #[default]
    Dense,
    /// bf16: the upper half of an f32.
    Half,
    /// Alistarh et al. 2017: a norm per bucket; per value a sign and a randomly rounded level.
    Qsgd {
        /// Per value, sign included: 2 to 8.
        bits: u8,
        /// Values that share a norm.
        #[serde(default = "bucket_default")]
        bucket: usize,
    },
    /// The largest values only; the others are added to the residual (error feedback).
    TopK { fraction: f64 },
}

/// A vector as it is sent: its learned part encoded, and buffers (running statistics) behind it as they are.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Payload {
    pub learned: Encoded,
    /// Empty if the model has none, and if the codec is dense: then they are values like all others.
    pub buffers: Vector,
}

/// An encoded vector.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Encoded {
    Dense(Vector),
    /// bf16.
    Half(Vec<u16>),
    /// `levels` packs `bits` per value, sign and level, lowest bits first and without gaps.
    Quantized {
        bits: u8,
        bucket: u32,
        length: u32,
        norms: Vec<f32>,
        levels: Vec<u8>,
    },
    /// Indices ascend; what is not listed is zero.
    Sparse {
        length: u32,
        indices: Vec<u32>,
        values: Vec<f32>,
    },
}

impl Codec {
    /// Whether the parameters of the codec make sense.
    pub fn check(&self) -> Result<(), CodecError> {
        match *self {
            Codec::Qsgd { bits, .. } if !(2..=8).contains(&bits) => Err(CodecError::Bits(bits)),
            Codec::Qsgd { bucket, .. } if bucket == 0 || u32::try_from(bucket).is_err() => {
                Err(CodecError::Bucket(bucket))
            }
            Codec::TopK { fraction } if !(fraction > 0.0 && fraction <= 1.0) => {
                Err(CodecError::Fraction(fraction))
            }
            _ => Ok(()),
        }
    }

    /// Whether a decoded vector may differ from the one that was encoded.
    pub fn is_lossy(&self) -> bool {
        *self != Codec::Dense
    }

    /// Encodes the first `params` values of a vector, or all if it has fewer; the others, which are buffers, stay as
    /// they are. Only top_k uses `residual` (empty stands for zeros), only qsgd uses dice.
    pub fn encode(
        &self,
        mut vector: Vector,
        params: usize,
        residual: &mut Vector,
        dice: &mut Dice,
    ) -> Payload {
        let mut buffers = Vector::new();
        if self.is_lossy() && params < vector.len() {
            buffers = vector.split_off(params);
        }
        Payload { learned: self.encode_learned(vector, residual, dice), buffers }
    }

    fn encode_learned(&self, vector: Vector, residual: &mut Vector, dice: &mut Dice) -> Encoded {
        let length = u32::try_from(vector.len()).expect("a vector's length fits u32");
        match *self {
            Codec::Dense => Encoded::Dense(vector),
            Codec::Half => Encoded::Half(vector.iter().map(|x| half::narrow(*x)).collect()),
            Codec::Qsgd { bits, bucket } => {
                let (norms, levels) = quantize::quantize(&vector, bits, bucket, dice);
                let bucket = u32::try_from(bucket).expect("a checked codec's bucket fits u32");
                Encoded::Quantized { bits, bucket, length, norms, levels }
            }
            Codec::TopK { fraction } => {
                let count = top_k::kept(fraction, vector.len());
                let (indices, values) = top_k::take_largest(vector, count, residual);
                Encoded::Sparse { length, indices, values }
            }
        }
    }
}

impl Payload {
    /// A vector as it is.
    pub fn dense(vector: Vector) -> Payload {
        Payload { learned: Encoded::Dense(vector), buffers: Vector::new() }
    }

    /// The length of the vector inside.
    pub fn len(&self) -> usize {
        self.learned.len() + self.buffers.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Size on the wire; kind, lengths, bits and bucket belong to the frame's header.
    pub fn bytes(&self) -> u64 {
        self.learned.bytes() + 4 * self.buffers.len() as u64
    }

    /// How many numbers a lossy codec has encoded in it.
    pub fn numbers_encoded(&self) -> u64 {
        match &self.learned {
            Encoded::Dense(_) => 0,
            encoded => encoded.len() as u64,
        }
    }

    pub fn decode(&self) -> Vector {
        let mut vector = self.learned.decode();
        vector.extend_from_slice(&self.buffers);
        vector
    }

    /// Decodes; a dense payload is moved, not copied.
    pub fn into_vector(self) -> Vector {
        let mut vector = match self.learned {
            Encoded::Dense(values) => values,
            encoded => encoded.decode(),
        };
        vector.extend_from_slice(&self.buffers);
        vector
    }

    /// into <- into + the decoded vector
    pub fn add_to(&self, into: &mut [f32]) {
        assert_eq!(into.len(), self.len(), "a payload is added to a vector of its own length");
        self.add_chunk(0, into);
    }

    /// Checks that a received payload belongs to a replica of `params` parameters and `buffers` buffers, and that its parts fit. It may
    /// be empty. Nothing is decoded before, so that a wrong length costs no memory.
    pub fn check(&self, params: usize, buffers: usize) -> Result<(), PayloadError> {
        let lengths = (self.learned.len(), self.buffers.len());
        let expected = match self.learned {
            Encoded::Dense(_) => (params.saturating_add(buffers), 0),
            _ => (params, buffers),
        };
        if lengths != expected && lengths != (0, 0) {
            let (length, expected) = (self.len(), params.saturating_add(buffers));
            let (buffers, buffers_expected) = (self.buffers.len(), buffers);
            return Err(PayloadError::Length { length, buffers, expected, buffers_expected });
        }
        self.learned.check()
    }

    /// Adds the decoded values from `start` on, as many as `into` holds.
    fn add_chunk(&self, start: usize, into: &mut [f32]) {
        let learned = self.learned.len().saturating_sub(start).min(into.len());
        let (encoded, plain) = into.split_at_mut(learned);
        self.learned.add_chunk(start.min(self.learned.len()), encoded);
        let from = (start + learned).saturating_sub(self.learned.len());
        add(plain, &self.buffers[from..from + plain.len()]);
    }
}

impl Encoded {
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The length of the vector inside.
    pub fn len(&self) -> usize {
        match self {
            Encoded::Dense(values) => values.len(),
            Encoded::Half(values) => values.len(),
            Encoded::Quantized { length, .. } | Encoded::Sparse { length, .. } => *length as usize,
        }
    }

    fn bytes(&self) -> u64 {
        let bytes = match self {
            Encoded::Dense(values) => 4 * values.len(),
            Encoded::Half(values) => 2 * values.len(),
            Encoded::Quantized { norms, levels, .. } => 4 * norms.len() + levels.len(),
            Encoded::Sparse { indices, values, .. } => 4 * indices.len() + 4 * values.len(),
        };
        bytes as u64
    }

    fn decode(&self) -> Vector {
        let mut vector = self.blank();
        self.add_chunk(0, &mut vector);
        vector
    }

    /// Whether its parts fit together.
    fn check(&self) -> Result<(), PayloadError> {
        match self {
            Encoded::Dense(_) | Encoded::Half(_) => Ok(()),
            Encoded::Quantized { bits, bucket, length, norms, levels } => {
                let fits = (2..=8).contains(bits)
                    && *bucket > 0
                    && norms.len() == length.div_ceil(*bucket) as usize
                    && levels.len() == quantize::packed_bytes(*bits, *length as usize);
                let (bits, bucket, length) = (*bits, *bucket, *length);
                let (norms, levels) = (norms.len(), levels.len());
                let error = PayloadError::Quantized { bits, bucket, length, norms, levels };
                if fits { Ok(()) } else { Err(error) }
            }
            Encoded::Sparse { length, indices, values } => {
                let fits = indices.len() == values.len()
                    && indices.is_sorted_by(|before, after| before < after)
                    && indices.last().is_none_or(|last| last < length);
                if fits { Ok(()) } else { Err(PayloadError::Sparse { length: *length }) }
            }
        }
    }

    /// A vector to add payloads of this kind to: -0 is the float that leaves every other as it is,
    /// even -0; what a sparse payload does not list is +0.
    fn blank(&self) -> Vector {
        match self {
            Encoded::Sparse { .. } => Vector::zeros(self.len()),
            _ => Vector::filled(-0.0, self.len()),
        }
    }

    /// Adds the decoded values from `start` on, as many as `into` holds.
    fn add_chunk(&self, start: usize, into: &mut [f32]) {
        let end = start + into.len();
        match self {
            Encoded::Dense(values) => add(into, &values[start..end]),
            Encoded::Half(values) => {
                into.iter_mut().zip(&values[start..end]).for_each(|(x, y)| *x += half::widen(*y));
            }
            Encoded::Quantized { bits, bucket, norms, levels, .. } => {
                quantize::add_levels(*bits, *bucket as usize, norms, levels, start, into);
            }
            Encoded::Sparse { indices, values, .. } => {
                let first = indices.partition_point(|index| (*index as usize) < start);
                let listed = indices[first..].iter().zip(&values[first..]);
                let inside = listed.take_while(|(index, _)| (**index as usize) < end);
                inside.for_each(|(index, value)| into[*index as usize - start] += value);
            }
        }
    }
}

fn bucket_default() -> usize {
    512
}
