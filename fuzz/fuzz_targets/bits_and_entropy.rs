//! Any bits decode to Elias and rANS values in range, and what was coded decodes to itself.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| gradwire::fuzzing::bits_and_entropy(data));
