//! The inner loops of all layers, with the fastest instructions of the processor.
//!
//! This is the only module with unsafe code, which is why memory that others lend (`lent`), that is used again (`pool`), that is
//! written in parts (`divided`), that has large pages (`memory`) and that processes share (`shared`) is here, too. Two kernels do nearly
//! all of the work, `sweep` and `outer`. The others are plain loops, compiled once for each instruction set
//! (`on_every_path!`), which the compiler vectorizes.

#![allow(unsafe_code)]

/// Compiles plain functions once for each path, and adds a first argument that selects the path.
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
                // SAFETY: `avx512` and `avx2` are safe functions except that the processor must have their
                // instructions, which `is_here` has just verified.
                #[cfg(target_arch = "x86_64")]
                $crate::kernels::Path::Avx512 => unsafe { avx512($($arg),*) },
                #[cfg(target_arch = "x86_64")]
                $crate::kernels::Path::Avx2 => unsafe { avx2($($arg),*) },
                _ => plain($($arg),*),
            }
        }
    )*};
}

mod divided;
mod lent;
pub mod loops;
pub mod memory;
mod outer;
mod pack;
mod peak;
mod pool;
pub mod rows;
#[cfg(target_os = "linux")]
pub mod shared;
#[cfg(not(target_os = "linux"))]
#[path = "shared_elsewhere.rs"]
pub mod shared;
mod simd;
mod sweep;
#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};

pub use divided::Divided;
pub use lent::Lent;
pub use outer::Outer;
pub use pool::Pool;
pub use sweep::{Positions, Start, Strides, Sweep};

use simd::Simd;

/// Which instructions the kernels use.
///
/// AVX2, AVX-512 and NEON use fused multiply-add, and are meant to return the same bits (this is tested for AVX2 and
/// AVX-512). The portable path returns the same bits on every processor, but different ones, because it
/// also rounds after each product.
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
        Path::ALL
            .into_iter()
            .find(|path| path.is_here())
            .expect("the portable path is always available")
    }

    /// Whether this processor has the instructions.
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
        struct Call<'a, 'b>(&'a Sweep<'b>, &'a mut [f32]);
        impl Kernel for Call<'_, '_> {
            type Output = ();
            #[inline(always)]
            unsafe fn run<S: Simd>(self) {
                // SAFETY: the caller guarantees the instructions of `S`, the only requirement of `sweep`.
                unsafe { sweep::sweep::<S>(self.0, self.1) }
            }
        }
        self.dispatch(Call(task, y));
    }

    /// W <- W + x^T delta; see [`Outer`].
    pub fn outer(self, task: &Outer<'_>, weights: &mut [f32]) {
        struct Call<'a, 'b>(&'a Outer<'b>, &'a mut [f32]);
        impl Kernel for Call<'_, '_> {
            type Output = ();
            #[inline(always)]
            unsafe fn run<S: Simd>(self) {
                // SAFETY: the caller guarantees the instructions of `S`, the only requirement of `outer`.
                unsafe { outer::outer::<S>(self.0, self.1) }
            }
        }
        self.dispatch(Call(task, weights));
    }

    /// Length of the packed weights of `depth` inputs and `outputs` outputs.
    pub fn packed_len(self, depth: usize, outputs: usize) -> usize {
        depth * outputs.next_multiple_of(self.shape().0)
    }

    /// Floats in a vector, and vectors in a wide panel.
    fn shape(self) -> (usize, usize) {
        struct Shape;
        impl Kernel for Shape {
            type Output = (usize, usize);
            unsafe fn run<S: Simd>(self) -> (usize, usize) {
                (S::LANES, S::WIDE)
            }
        }
        self.dispatch(Shape)
    }

    #[inline]
    fn dispatch<K: Kernel>(self, kernel: K) -> K::Output {
        assert!(self.is_here(), "this processor has no {}", self.name());
        // SAFETY: each branch requires the instructions of its path, which `is_here` has just verified;
        // `Portable` requires none.
        unsafe {
            match self {
                #[cfg(target_arch = "x86_64")]
                Path::Avx512 => avx512(kernel),
                #[cfg(target_arch = "x86_64")]
                Path::Avx2 => avx2(kernel),
                #[cfg(target_arch = "aarch64")]
                Path::Neon => kernel.run::<simd::Neon>(),
                _ => kernel.run::<simd::Portable>(),
            }
        }
    }
}

/// A function that is compiled for each instruction set.
trait Kernel {
    type Output;

    /// # Safety
    /// The processor must have the instructions of `S`.
    unsafe fn run<S: Simd>(self) -> Self::Output;
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx2,fma")]
fn avx512<K: Kernel>(kernel: K) -> K::Output {
    // SAFETY: `run` requires the instructions of its vectors, and `target_feature` obliges the caller of
    // this function to guarantee them.
    unsafe { kernel.run::<simd::Avx512>() }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn avx2<K: Kernel>(kernel: K) -> K::Output {
    // SAFETY: `run` requires the instructions of its vectors, and `target_feature` obliges the caller of
    // this function to guarantee them.
    unsafe { kernel.run::<simd::Avx2>() }
}
