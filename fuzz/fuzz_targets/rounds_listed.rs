//! Every codec of the list without frames of its own, as its examples spell it: the rounds of several workers
//! end with one mean and lose nothing, and two neighbours keep the same.
#![no_main]

use gradwire_tests::fuzzed::{agree_in_rounds, agree_on_an_edge, mixed, pick, spec, summed};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let mut data = data;
    let (summed, mixed) = (summed(), mixed());
    let spelling = pick(&mut data, &[&summed[..], &mixed[..]].concat());
    let law = if summed.contains(&spelling) { agree_in_rounds } else { agree_on_an_edge };
    law(&spec(spelling), data);
});
