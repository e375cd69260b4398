//! The inner loops of all layers, in the fastest way that the processor knows.
//!
//! This is the only module with unsafe code. Two kernels do nearly all of the work, `sweep` and
//! `outer`; the rest are plain loops that compilers turn into vector instructions once they are told
//! which ones there are (`on_every_path!`).

#![allow(unsafe_code)]

/// Compiles plain functions once for each path; they get the path to take as their first argument.
macro_rules! on_every_path {
    ($($(#[$note:meta])*
    pub fn $name:ident($($arg:ident: $type:ty),* $(,)?) $(-> $output:ty)? $body:block)*) => {$(
        $(#[$note])*
        #[allow(clippy::too_many_arguments)]
        pub fn $name(path: $crate::kernels::Path, $($arg: $type),*) $(-> $output)? {
            #[inline(always)]
            fn plain($($arg: $type),*) $(-> $output)? $body

            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx512f,avx2,fma")]
            fn avx512($($arg: $type),*) $(-> $output)? {
                plain($($arg),*)
            }

            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma")]
            fn avx2($($arg: $type),*) $(-> $output)? {
                plain($($arg),*)
            }

            assert!(path.is_here(), "this processor has no {}", path.name());
            match path {
                // SAFETY: the instructions are there.
                #[cfg(target_arch = "x86_64")]
                $crate::kernels::Path::Avx512 => unsafe { avx512($($arg),*) },
                #[cfg(target_arch = "x86_64")]
                $crate::kernels::Path::Avx2 => unsafe { avx2($($arg),*) },
                _ => plain($($arg),*),
            }
        }
    )*};
}

pub mod loops;
mod outer;
mod pack;
mod peak;
pub mod rows;
mod simd;
mod sweep;
#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};

pub use outer::Outer;
pub use sweep::{Lay, Places, Start, Sweep};

use simd::Simd;

/// Which instructions the kernels use.
///
/// The fused paths are meant to give the same bits (tested for AVX2 and AVX-512); the portable path gives
/// the same bits everywhere, but others than they do, for it rounds after each product.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Path {
    Portable,
    Avx2,
    Avx512,
    Neon,
}

impl Path {
    pub const ALL: [Path; 4] = [Path::Avx512, Path::Avx2, Path::Neon, Path::Portable];

    /// The fastest path of this processor.
    pub fn best() -> Path {
        Path::ALL.into_iter().find(|path| path.is_here()).expect("the portable path is everywhere")
    }

    pub fn is_here(self) -> bool {
        match self {
            Path::Portable => true,
            #[cfg(target_arch = "x86_64")]
            Path::Avx2 => {
                std::arch::is_x86_feature_detected!("avx2")
                    && std::arch::is_x86_feature_detected!("fma")
            }
            #[cfg(target_arch = "x86_64")]
            Path::Avx512 => Path::Avx2.is_here() && std::arch::is_x86_feature_detected!("avx512f"),
            #[cfg(target_arch = "aarch64")]
            Path::Neon => true,
            #[allow(unreachable_patterns)]
            _ => false,
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Path::Portable => "portable",
            Path::Avx2 => "avx2",
            Path::Avx512 => "avx512",
            Path::Neon => "neon",
        }
    }

    /// y <- start + x W; see [`Sweep`].
    pub fn sweep(self, task: &Sweep<'_>, y: &mut [f32]) {
        struct Go<'a, 'b>(&'a Sweep<'b>, &'a mut [f32]);
        impl Kernel for Go<'_, '_> {
            type Output = ();
            #[inline(always)]
            unsafe fn go<S: Simd>(self) {
                // SAFETY: `dispatch` has made sure of the instructions.
                unsafe { sweep::sweep::<S>(self.0, self.1) }
            }
        }
        self.dispatch(Go(task, y));
    }

    /// W <- W + x^T delta; see [`Outer`].
    pub fn outer(self, task: &Outer<'_>, weights: &mut [f32]) {
        struct Go<'a, 'b>(&'a Outer<'b>, &'a mut [f32]);
        impl Kernel for Go<'_, '_> {
            type Output = ();
            #[inline(always)]
            unsafe fn go<S: Simd>(self) {
                // SAFETY: `dispatch` has made sure of the instructions.
                unsafe { outer::outer::<S>(self.0, self.1) }
            }
        }
        self.dispatch(Go(task, weights));
    }

    /// Length of packed weights.
    pub fn packed_len(self, depth: usize, outputs: usize) -> usize {
        depth * outputs.next_multiple_of(self.shape().0)
    }

    /// Floats in a vector, and vectors in a wide panel.
    fn shape(self) -> (usize, usize) {
        struct Shape;
        impl Kernel for Shape {
            type Output = (usize, usize);
            unsafe fn go<S: Simd>(self) -> (usize, usize) {
                (S::LANES, S::WIDE)
            }
        }
        self.dispatch(Shape)
    }

    #[inline]
    fn dispatch<K: Kernel>(self, kernel: K) -> K::Output {
        assert!(self.is_here(), "this processor has no {}", self.name());
        // SAFETY: the instructions are there.
        unsafe {
            match self {
                #[cfg(target_arch = "x86_64")]
                Path::Avx512 => avx512(kernel),
                #[cfg(target_arch = "x86_64")]
                Path::Avx2 => avx2(kernel),
                #[cfg(target_arch = "aarch64")]
                Path::Neon => kernel.go::<simd::Neon>(),
                _ => kernel.go::<simd::Portable>(),
            }
        }
    }
}

trait Kernel {
    type Output;

    /// # Safety
    /// The processor must have the instructions of `S`.
    unsafe fn go<S: Simd>(self) -> Self::Output;
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx2,fma")]
fn avx512<K: Kernel>(kernel: K) -> K::Output {
    // SAFETY: whoever calls this has the instructions.
    unsafe { kernel.go::<simd::Avx512>() }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn avx2<K: Kernel>(kernel: K) -> K::Output {
    // SAFETY: whoever calls this has the instructions.
    unsafe { kernel.go::<simd::Avx2>() }
}
