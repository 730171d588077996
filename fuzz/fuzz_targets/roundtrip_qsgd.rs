//! QSGD with nearest rounding and any parameters that error feedback allows: the bytes of the naive reference
//! and the law of conservation, or an error that changes nothing.
#![no_main]

use gradwire_tests::fuzzed::{conserves, pick, spec};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let mut data = data;
    let bits = pick(&mut data, &["ternary", "2", "3", "4", "5", "6", "7", "8"]);
    let entropy = pick(&mut data, &["auto", "fixed", "elias", "rans", "adaptive"]);
    // The Euclidean norm is a contraction for buckets below 4·levels² elements.
    let bucket = pick(&mut data, &["1", "2", "3", "1,norm=l2", "2,norm=l2", "3,norm=l2", "16", "512"]);
    conserves(
        &spec(&format!("qsgd:bits={bits},entropy={entropy},bucket={bucket},rounding=nearest,memory=ef")),
        data,
    );
});
