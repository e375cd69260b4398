//! QSGD's arithmetic: per bucket a norm, per value a sign and a level, rounded up or down by chance
//! so that the mean is right (Alistarh et al. 2017, section 3.1).

use std::borrow::Cow;

use paceline_learn::Dice;

/// Norms of the buckets and packed levels. How many dice are drawn depends on the length only.
///
/// A bucket with a NaN or an infinity has no finite norm and decodes to NaN: divergence stays seen.
pub fn quantize(vector: &[f32], bits: u8, bucket: usize, dice: &mut Dice) -> (Vec<f32>, Vec<u8>) {
    let mut codes = vec![0; vector.len()];
    let mut norms = Vec::with_capacity(vector.len().div_ceil(bucket));
    for (values, codes) in vector.chunks(bucket).zip(codes.chunks_mut(bucket)) {
        let norm = norm(values);
        norms.push(norm);
        for (pair, codes) in values.chunks(2).zip(codes.chunks_mut(2)) {
            let draw = dice.draw();
            let coins = [draw as u32, (draw >> 32) as u32];
            for ((x, code), coin) in pair.iter().zip(codes).zip(coins) {
                *code = round_by_chance(*x, norm, bits, coin);
            }
        }
    }
    (norms, pack(bits, codes))
}

/// into <- into + the values from `start` on
pub fn add_levels(
    bits: u8,
    bucket: usize,
    norms: &[f32],
    levels: &[u8],
    start: usize,
    into: &mut [f32],
) {
    let codes = unpack(bits, levels, start, into.len());
    let (mut done, end) = (0, into.len());
    while done < end {
        let here = (start + done) / bucket;
        let until = ((here + 1) * bucket - start).min(end);
        let unit = norms[here] / level_max(bits);
        for (x, code) in into[done..until].iter_mut().zip(&codes[done..until]) {
            *x += value(*code, bits, unit);
        }
        done = until;
    }
}

/// Bytes that hold `bits` for each of `length` values.
pub fn packed_bytes(bits: u8, length: usize) -> usize {
    (length * usize::from(bits)).div_ceil(8)
}

fn level_max(bits: u8) -> f32 {
    f32::from((1u8 << (bits - 1)) - 1)
}

/// The norm is never below |x|: the f64 sum, its root and the rounding to f32 are monotone. So no
/// level exceeds `level_max`.
fn norm(values: &[f32]) -> f32 {
    // Eight sums side by side let the CPU overlap them; their order is fixed.
    let mut sums = [0.0f64; 8];
    for eight in values.chunks(8) {
        for (sum, x) in sums.iter_mut().zip(eight) {
            *sum += f64::from(*x) * f64::from(*x);
        }
    }
    sums.iter().sum::<f64>().sqrt() as f32
}

/// The sign bit on top, below it the level: floor(y) or, with probability y - floor(y), one more.
fn round_by_chance(x: f32, norm: f32, bits: u8, coin: u32) -> u8 {
    // 0/0 in an empty bucket and all that is not finite becomes level 0.
    let exact = x.abs() / norm * level_max(bits);
    let below = exact as u8;
    let chance = exact - f32::from(below);
    let up = ((coin >> 8) as f32) * (1.0 / 16_777_216.0) < chance;
    u8::from(x.is_sign_negative()) << (bits - 1) | (below + u8::from(up))
}

fn value(code: u8, bits: u8, unit: f32) -> f32 {
    let sign = u32::from(code >> (bits - 1)) << 31;
    let size = f32::from(code & ((1 << (bits - 1)) - 1)) * unit;
    f32::from_bits(size.to_bits() ^ sign)
}

fn pack(bits: u8, codes: Vec<u8>) -> Vec<u8> {
    if bits == 8 {
        return codes;
    }
    let mut packed = vec![0; packed_bytes(bits, codes.len())];
    for (i, code) in codes.iter().enumerate() {
        let (byte, shift) = (i * usize::from(bits) / 8, i * usize::from(bits) % 8);
        let spread = u16::from(*code) << shift;
        packed[byte] |= spread as u8;
        if spread > 0xff {
            packed[byte + 1] |= (spread >> 8) as u8;
        }
    }
    packed
}

/// The codes from `start` on, a byte each.
fn unpack(bits: u8, packed: &[u8], start: usize, count: usize) -> Cow<'_, [u8]> {
    if bits == 8 {
        return Cow::Borrowed(&packed[start..start + count]);
    }
    let code = |i: usize| {
        let (byte, shift) = (i * usize::from(bits) / 8, i * usize::from(bits) % 8);
        let next = packed.get(byte + 1).copied().unwrap_or(0);
        (u16::from_le_bytes([packed[byte], next]) >> shift) as u8 & ((1 << bits) - 1)
    };
    Cow::Owned((start..start + count).map(code).collect())
}
