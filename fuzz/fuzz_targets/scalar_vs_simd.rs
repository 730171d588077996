//! Every kernel that this machine has gives the bits of the plain loop, for any finite input.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| gradwire::fuzzing::scalar_vs_simd(data));
