//! bf16: an f32 without the lower half of its bits.

/// Rounds to the nearest, ties to even; a NaN stays one.
pub fn narrow(x: f32) -> u16 {
    let bits = x.to_bits();
    let nearest = (bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16) as u16;
    // Rounding could carry a NaN's bits away; the quiet bit keeps it a NaN.
    if x.is_nan() { (bits >> 16) as u16 | 0x40 } else { nearest }
}

pub fn widen(x: u16) -> f32 {
    f32::from_bits(u32::from(x) << 16)
}
