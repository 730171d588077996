//! Constructors of single codecs, for programs that have no room for all of them.

use crate::codec::{Chosen, gw_codec};
use crate::method::{Alone, Frames};
use crate::raw::{Outcome, Place, boundary};
use crate::results::{GW_ERROR_OUT_OF_RANGE, gw_result};
use codecs::codecs::{Dense, EntropyChoice, IndexChoice, LevelBits, Qsgd, TopK, ValueChoice};
use codecs::registry::GatherCodec;
use codecs::state::MemoryChoice;
use codecs::{Codec, Density, Spec};
use core::ffi::c_void;

/// Where only one codec can be.
macro_rules! alone {
    ($variant:ident) => {
        &Alone {
            frames: |codec: &Codec| -> &dyn Frames {
                let Codec::Gather(GatherCodec::$variant(codec)) = codec else { unreachable!() };
                codec
            },
        }
    };
}

fn chosen(codec: GatherCodec, memory: MemoryChoice, method: &'static Alone) -> Chosen {
    let (units, warmup, packets) = Default::default();
    Chosen { spec: Spec { codec: Codec::Gather(codec), memory, decay: 1.0, units, warmup, packets }, method }
}

/// # Safety
/// As [`Place::open`] and [`Place::write`].
unsafe fn write(
    memory: *mut c_void,
    size: usize,
    made: Outcome<Chosen>,
    codec: *mut *mut gw_codec,
) -> Outcome {
    // SAFETY: the caller's promise.
    let place = unsafe { Place::<gw_codec>::open(memory, size)? };
    // SAFETY: as above.
    unsafe { place.write(made?, codec) }
}

/// As gw_codec_init with "topk:density=…". The density is GW_DENSITY(0.01), say: in billionths, because many
/// small machines have no instructions for double.
///
/// Errors: GW_ERROR_OUT_OF_RANGE for 0 and above a billion, and those of every object.
///
/// # Safety
/// As the manual says of pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gw_topk_init(
    memory: *mut c_void,
    size: usize,
    density: u32,
    codec: *mut *mut gw_codec,
) -> gw_result {
    // SAFETY: the caller's pointers are what the manual says.
    boundary(|| unsafe {
        let topk =
            Density::from_billionths(density).map(|at| TopK::new(at, IndexChoice::Auto, ValueChoice::F32));
        let made =
            topk.map(|topk| chosen(GatherCodec::TopK(topk), MemoryChoice::ErrorFeedback, alone!(TopK)));
        write(memory, size, made.ok_or(GW_ERROR_OUT_OF_RANGE), codec)
    })
}

/// As gw_codec_init with "qsgd:bits=…,entropy=fixed".
///
/// Errors: GW_ERROR_OUT_OF_RANGE outside of 2 to 8, and those of every object.
///
/// # Safety
/// As the manual says of pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gw_qsgd_init(
    memory: *mut c_void,
    size: usize,
    bits: u32,
    codec: *mut *mut gw_codec,
) -> gw_result {
    // SAFETY: the caller's pointers are what the manual says.
    boundary(|| unsafe {
        let bits = u8::try_from(bits).ok().and_then(LevelBits::new);
        let qsgd = bits.map(|bits| Qsgd::new(bits).with_entropy(EntropyChoice::Fixed));
        let made = qsgd.map(|qsgd| chosen(GatherCodec::Qsgd(qsgd), MemoryChoice::None, alone!(Qsgd)));
        write(memory, size, made.ok_or(GW_ERROR_OUT_OF_RANGE), codec)
    })
}

/// As gw_codec_init with "none": every value as it is.
///
/// Errors: those of every object.
///
/// # Safety
/// As the manual says of pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gw_none_init(
    memory: *mut c_void,
    size: usize,
    codec: *mut *mut gw_codec,
) -> gw_result {
    // SAFETY: the caller's pointers are what the manual says.
    boundary(|| unsafe {
        let made = chosen(GatherCodec::Dense(Dense::F32), MemoryChoice::None, alone!(Dense));
        write(memory, size, Ok(made), codec)
    })
}

/// A fault of the library, with nothing that could catch it: the processor traps.
#[cfg(not(any(feature = "heap", test)))]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    #[cfg(target_arch = "arm")]
    // SAFETY: an undefined instruction, which the program's fault handler sees.
    unsafe {
        core::arch::asm!("udf #0", options(noreturn, nomem, nostack))
    }
    #[cfg(not(target_arch = "arm"))]
    loop {}
}
