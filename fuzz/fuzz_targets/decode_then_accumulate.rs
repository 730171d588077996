//! A frame decodes whole or changes nothing: after an error the accumulator is as it was; after success it is
//! finite, and no coordinate was added twice.
#![no_main]

use gradwire::format::Header;
use gradwire::{Decoder, LayoutRef, Limits};
use gradwire_tests::run;
use libfuzzer_sys::fuzz_target;

const LEN: usize = 1 << 14;

fuzz_target!(|data: &[u8]| {
    let Ok(header) = Header::parse(data) else { return };
    let layout = LayoutRef::opaque(LEN, header.fingerprint);
    let limits = Limits { max_magnitude: 1e30, ..run::no_limits() };
    let mut acc = vec![0.5; LEN];
    match Decoder::new().parse(data, &layout, &limits) {
        Err(_) => assert!(acc.iter().all(|&sum| sum == 0.5)),
        Ok(frame) => {
            frame.add_scaled_to(-1.0, &mut acc);
            assert!(acc.iter().all(|sum| sum.abs() <= 1.001e30));
            let mut next = 0;
            for unit in frame.units() {
                unit.for_each(|i, value| {
                    assert!(unit.range().start + i >= next && i < unit.range().len() && value.is_finite());
                    next = unit.range().start + i + 1;
                });
            }
        }
    }
});
