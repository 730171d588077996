//! Every codec of the list with frames, as its own examples spell it, and random-k at other densities: the
//! bytes of the naive reference and the codec's law of conservation, or an error that changes nothing.
#![no_main]

use gradwire_tests::fuzzed::{conserves, framed, pick, spec};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let mut data = data;
    let mut spellings = framed();
    spellings.extend(["randomk:density=0.3", "randomk:density=1", "f16:memory=ef"]);
    conserves(&spec(pick(&mut data, &spellings)), data);
});
