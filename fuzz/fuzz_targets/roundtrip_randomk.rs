//! Random-k, and the casts: the bytes of the naive reference and the law of conservation, or an error that changes
//! nothing.
#![no_main]

use gradwire_fuzz::{codec, conserves, pick};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let mut data = data;
    let spellings = [
        "randomk:density=0.01",
        "randomk:density=0.3",
        "randomk:density=1",
        "f16:memory=ef",
        "bf16:memory=ef",
    ];
    conserves(&codec(pick(&mut data, &spellings)), data);
});
