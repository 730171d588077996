//! Which instruction set the loops are compiled for, and how one is chosen.

/// An instruction set that loops are compiled for. Later ones are faster; all give the same bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Isa {
    /// What every machine of the target has.
    Baseline,
    /// AVX2 with BMI2.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// AVX-512 F, BW, DQ and VL.
    #[cfg(target_arch = "x86_64")]
    Avx512,
    /// NEON with the CRC instructions.
    #[cfg(target_arch = "aarch64")]
    Neon,
}

impl Isa {
    /// The best instruction set of this machine. Without `std` there is no detection at run time, and the
    /// target of the compilation decides. `--cfg gradwire_kernel="avx2"` or `"scalar"` makes a program that
    /// uses nothing beyond that.
    #[inline]
    pub(crate) fn best() -> Self {
        #[cfg(all(target_arch = "x86_64", not(gradwire_kernel = "scalar")))]
        {
            if has_avx512() && cfg!(not(gradwire_kernel = "avx2")) {
                return Self::Avx512;
            }
            if has_avx2() {
                return Self::Avx2;
            }
        }
        #[cfg(all(target_arch = "aarch64", not(gradwire_kernel = "scalar")))]
        if has_neon() {
            return Self::Neon;
        }
        Self::Baseline
    }

    /// All instruction sets of this machine, for tests.
    #[cfg(any(test, fuzzing))]
    pub(crate) fn available() -> impl Iterator<Item = Self> {
        let wide: [Option<Self>; _] = [
            #[cfg(target_arch = "x86_64")]
            has_avx2().then_some(Self::Avx2),
            #[cfg(target_arch = "x86_64")]
            has_avx512().then_some(Self::Avx512),
            #[cfg(target_arch = "aarch64")]
            has_neon().then_some(Self::Neon),
        ];
        core::iter::once(Self::Baseline).chain(wide.into_iter().flatten())
    }
}

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
macro_rules! has {
    ($($feature:tt),+) => {{
        #[cfg(all(feature = "std", target_arch = "x86_64"))]
        { true $(&& std::is_x86_feature_detected!($feature))+ }
        #[cfg(all(feature = "std", target_arch = "aarch64"))]
        { true $(&& std::arch::is_aarch64_feature_detected!($feature))+ }
        #[cfg(not(feature = "std"))]
        { cfg!(all($(target_feature = $feature),+)) }
    }};
}

#[cfg(target_arch = "x86_64")]
#[inline]
fn has_avx2() -> bool {
    has!("avx2", "bmi1", "bmi2", "lzcnt", "popcnt", "sse4.2", "f16c")
}

#[cfg(target_arch = "x86_64")]
#[inline]
fn has_avx512() -> bool {
    has_avx2() && has!("avx512f", "avx512bw", "avx512dq", "avx512vl")
}

/// Whether there are carry-less products of whole vectors in addition to AVX-512.
#[cfg(target_arch = "x86_64")]
#[inline]
pub(super) fn has_vpclmulqdq() -> bool {
    has_avx512() && has!("vpclmulqdq", "pclmulqdq")
}

#[cfg(target_arch = "aarch64")]
#[inline]
fn has_neon() -> bool {
    // Vectors are loaded from and stored to little-endian bytes.
    cfg!(target_endian = "little") && has!("neon", "crc")
}

/// Compiles one plain loop for every instruction set and calls the requested one. The body stays the same
/// Rust code, which neither reorders nor contracts float arithmetic, so every version gives the same bits.
macro_rules! compile_for_each_isa {
    ($(#[$meta:meta])* $visibility:vis fn $name:ident($isa:ident, $($argument:ident: $type:ty),* $(,)?) $(-> $result:ty)? = $body:path;) => {
        $(#[$meta])*
        #[allow(unsafe_code, reason = "calls of functions for instruction sets that were detected")]
        $visibility fn $name($isa: $crate::kernels::isa::Isa, $($argument: $type),*) $(-> $result)? {
            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt,sse4.2,f16c")]
                fn avx2($($argument: $type),*) $(-> $result)? {
                    $body($($argument),*)
                }
                #[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt,sse4.2,f16c,avx512f,avx512bw,avx512dq,avx512vl")]
                fn avx512($($argument: $type),*) $(-> $result)? {
                    $body($($argument),*)
                }
                match $isa {
                    $crate::kernels::isa::Isa::Baseline => {}
                    // SAFETY: `Isa::best` and `Isa::available` name an instruction set only where the machine
                    // has it.
                    $crate::kernels::isa::Isa::Avx2 => return unsafe { avx2($($argument),*) },
                    // SAFETY: as above.
                    $crate::kernels::isa::Isa::Avx512 => return unsafe { avx512($($argument),*) },
                }
            }
            // On other architectures the baseline has the vectors already.
            #[cfg(not(target_arch = "x86_64"))]
            let _ = $isa;
            $body($($argument),*)
        }
    };
}

pub(super) use compile_for_each_isa;

/// A loop over whole vectors that [`vectorised`](crate::arithmetic::vectorised) compiles for each instruction
/// set.
///
/// The body of [`run`](Self::run) is compiled for an instruction set where it is inlined. Mark it, and the
/// functions that it calls for every element, with `#[inline(always)]`.
pub trait Loop {
    /// The result of the loop.
    type Output;

    /// The loop, in plain Rust.
    fn run(self) -> Self::Output;
}

/// A closure that is marked `#[inline(always)]`, too.
impl<R, F: FnOnce() -> R> Loop for F {
    type Output = R;

    #[inline(always)]
    fn run(self) -> R {
        self()
    }
}

/// Compiles the loop for every instruction set and runs the requested version.
#[allow(unsafe_code, reason = "calls of functions for instruction sets that were detected")]
#[inline]
pub(crate) fn run_for<L: Loop>(isa: Isa, work: L) -> L::Output {
    #[cfg(target_arch = "x86_64")]
    {
        #[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt,sse4.2,f16c")]
        fn avx2<L: Loop>(work: L) -> L::Output {
            work.run()
        }
        #[target_feature(
            enable = "avx2,bmi1,bmi2,lzcnt,popcnt,sse4.2,f16c,avx512f,avx512bw,avx512dq,avx512vl"
        )]
        fn avx512<L: Loop>(work: L) -> L::Output {
            work.run()
        }
        match isa {
            Isa::Baseline => {}
            // SAFETY: `Isa::best` and `Isa::available` name an instruction set only where the machine has it.
            Isa::Avx2 => return unsafe { avx2(work) },
            // SAFETY: as above.
            Isa::Avx512 => return unsafe { avx512(work) },
        }
    }
    // On other architectures the baseline has the vectors already.
    #[cfg(not(target_arch = "x86_64"))]
    let _ = isa;
    work.run()
}
