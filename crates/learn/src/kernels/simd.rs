//! The vector instructions that the kernels need, implemented for each instruction set.

/// A vector register and its operations.
///
/// # Safety
/// All unsafe methods require that the processor has the instructions; [`Path`](super::Path) checks this before
/// it calls a kernel. `load` requires a pointer that is valid for reading `LANES` floats, `store` one
/// that is valid for writing them. No alignment is needed beyond that of `f32`.
pub trait Simd {
    type V: Copy;
    const LANES: usize;
    /// Vectors in a wide panel of outputs. The accumulators of a block, a panel's weights and one broadcast
    /// input must fit into the registers together.
    const WIDE: usize;

    unsafe fn zero() -> Self::V;
    unsafe fn splat(x: f32) -> Self::V;
    unsafe fn load(from: *const f32) -> Self::V;
    unsafe fn store(to: *mut f32, v: Self::V);
    /// a b + c, rounded once if the instruction set has fused multiply-add.
    unsafe fn mul_add(a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// The same for one float.
    fn mul_add_one(a: f32, b: f32, c: f32) -> f32;
    /// max(v, 0), except that NaN stays NaN.
    unsafe fn relu(v: Self::V) -> Self::V;
}

/// Four floats in plain code, which rounds after the product and again after the sum.
pub struct Portable;

impl Simd for Portable {
    type V = [f32; 4];
    const LANES: usize = 4;
    const WIDE: usize = 2;

    #[inline(always)]
    unsafe fn zero() -> [f32; 4] {
        [0.0; 4]
    }

    #[inline(always)]
    unsafe fn splat(x: f32) -> [f32; 4] {
        [x; 4]
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> [f32; 4] {
        // SAFETY: the caller guarantees four readable floats; the read needs no alignment, and every bit
        // pattern is a valid float.
        unsafe { from.cast::<[f32; 4]>().read_unaligned() }
    }

    #[inline(always)]
    unsafe fn store(to: *mut f32, v: [f32; 4]) {
        // SAFETY: the caller guarantees four writable floats; the write needs no alignment.
        unsafe { to.cast::<[f32; 4]>().write_unaligned(v) }
    }

    #[inline(always)]
    unsafe fn mul_add(a: [f32; 4], b: [f32; 4], c: [f32; 4]) -> [f32; 4] {
        std::array::from_fn(|i| a[i] * b[i] + c[i])
    }

    #[inline(always)]
    fn mul_add_one(a: f32, b: f32, c: f32) -> f32 {
        a * b + c
    }

    #[inline(always)]
    unsafe fn relu(v: [f32; 4]) -> [f32; 4] {
        v.map(|x| if x < 0.0 { 0.0 } else { x })
    }
}

#[cfg(target_arch = "x86_64")]
pub use x86::{Avx2, Avx512};

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    use super::Simd;

    pub struct Avx512;

    // SAFETY of all blocks in this impl: every intrinsic requires AVX-512F, which the contract of `Simd`
    // obliges the caller to guarantee. `loadu` and `storeu` access exactly the 16 floats at the
    // pointer, which the caller guarantees to be valid, and work at any alignment. The others only use registers.
    impl Simd for Avx512 {
        type V = __m512;
        const LANES: usize = 16;
        const WIDE: usize = 2;

        #[inline(always)]
        unsafe fn zero() -> __m512 {
            unsafe { _mm512_setzero_ps() }
        }

        #[inline(always)]
        unsafe fn splat(x: f32) -> __m512 {
            unsafe { _mm512_set1_ps(x) }
        }

        #[inline(always)]
        unsafe fn load(from: *const f32) -> __m512 {
            unsafe { _mm512_loadu_ps(from) }
        }

        #[inline(always)]
        unsafe fn store(to: *mut f32, v: __m512) {
            unsafe { _mm512_storeu_ps(to, v) }
        }

        #[inline(always)]
        unsafe fn mul_add(a: __m512, b: __m512, c: __m512) -> __m512 {
            unsafe { _mm512_fmadd_ps(a, b, c) }
        }

        #[inline(always)]
        fn mul_add_one(a: f32, b: f32, c: f32) -> f32 {
            a.mul_add(b, c)
        }

        #[inline(always)]
        unsafe fn relu(v: __m512) -> __m512 {
            // MAXPS returns its second operand if one of them is NaN.
            unsafe { _mm512_max_ps(_mm512_setzero_ps(), v) }
        }
    }

    pub struct Avx2;

    // SAFETY of all blocks in this impl: as for `Avx512`, with AVX and FMA as the required instructions (AVX2
    // implies AVX) and 8 floats at a pointer.
    impl Simd for Avx2 {
        type V = __m256;
        const LANES: usize = 8;
        const WIDE: usize = 2;

        #[inline(always)]
        unsafe fn zero() -> __m256 {
            unsafe { _mm256_setzero_ps() }
        }

        #[inline(always)]
        unsafe fn splat(x: f32) -> __m256 {
            unsafe { _mm256_set1_ps(x) }
        }

        #[inline(always)]
        unsafe fn load(from: *const f32) -> __m256 {
            unsafe { _mm256_loadu_ps(from) }
        }

        #[inline(always)]
        unsafe fn store(to: *mut f32, v: __m256) {
            unsafe { _mm256_storeu_ps(to, v) }
        }

        #[inline(always)]
        unsafe fn mul_add(a: __m256, b: __m256, c: __m256) -> __m256 {
            unsafe { _mm256_fmadd_ps(a, b, c) }
        }

        #[inline(always)]
        fn mul_add_one(a: f32, b: f32, c: f32) -> f32 {
            a.mul_add(b, c)
        }

        #[inline(always)]
        unsafe fn relu(v: __m256) -> __m256 {
            unsafe { _mm256_max_ps(_mm256_setzero_ps(), v) }
        }
    }
}

#[cfg(target_arch = "aarch64")]
pub use arm::Neon;

#[cfg(target_arch = "aarch64")]
mod arm {
    use std::arch::aarch64::*;

    use super::Simd;

    pub struct Neon;

    // SAFETY of all blocks in this impl: every intrinsic requires NEON, which is part of the aarch64 baseline.
    // `vld1q` and `vst1q` access exactly the 4 floats at the pointer, which the contract of `Simd` obliges the
    // caller to guarantee, and need no more than the alignment of a float. The others only use registers.
    impl Simd for Neon {
        type V = float32x4_t;
        const LANES: usize = 4;
        const WIDE: usize = 4;

        #[inline(always)]
        unsafe fn zero() -> float32x4_t {
            unsafe { vdupq_n_f32(0.0) }
        }

        #[inline(always)]
        unsafe fn splat(x: f32) -> float32x4_t {
            unsafe { vdupq_n_f32(x) }
        }

        #[inline(always)]
        unsafe fn load(from: *const f32) -> float32x4_t {
            unsafe { vld1q_f32(from) }
        }

        #[inline(always)]
        unsafe fn store(to: *mut f32, v: float32x4_t) {
            unsafe { vst1q_f32(to, v) }
        }

        #[inline(always)]
        unsafe fn mul_add(a: float32x4_t, b: float32x4_t, c: float32x4_t) -> float32x4_t {
            unsafe { vfmaq_f32(c, a, b) }
        }

        #[inline(always)]
        fn mul_add_one(a: f32, b: f32, c: f32) -> f32 {
            a.mul_add(b, c)
        }

        #[inline(always)]
        unsafe fn relu(v: float32x4_t) -> float32x4_t {
            // FMAX returns NaN if one operand is NaN.
            unsafe { vmaxq_f32(v, vdupq_n_f32(0.0)) }
        }
    }
}
