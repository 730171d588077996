//! Every codec of the list, as its own examples spell it, and random-k at other densities: the bytes of the
//! naive reference and the codec's law of conservation, or an error that changes nothing.
#![no_main]

use gradwire_fuzz::{codec, conserves, listed, pick};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let mut data = data;
    let mut spellings = listed();
    spellings.extend(["randomk:density=0.3", "randomk:density=1", "f16:memory=ef"]);
    conserves(&codec(pick(&mut data, &spellings)), data);
});
