//! Any bytes are a frame for the crate exactly where they are one for the naive decoder, and hold the same
//! values; every way to look at them returns. A void frame that is read is written again with the same bytes.
#![no_main]

use gradwire::LayoutRef;
use gradwire::format::{Header, VoidFrame, frame_extent};
use gradwire_tests::naive::{decode::decode_for, header::patch_checksum};
use gradwire_tests::run::{self, bits};
use libfuzzer_sys::fuzz_target;

/// Long enough for the golden frames but one.
const LEN: usize = 1 << 14;

fuzz_target!(|data: &[u8]| {
    let Ok(header) = Header::parse(data) else { return };
    let mut frame = data.to_vec();
    patch_checksum(&mut frame);
    let layout = LayoutRef::opaque(LEN, header.fingerprint);
    if let Ok(Some(void)) = VoidFrame::parse(&frame, &layout) {
        let mut out = [0; VoidFrame::MAX_BYTES];
        let bytes = void.write(&layout, &mut out).unwrap();
        assert_eq!(out[..bytes], frame);
    }
    let extent = frame_extent(&frame, &run::no_limits());
    match (run::decode(&frame, &layout), decode_for(&frame, header.fingerprint, LEN)) {
        (Err(_), Err(_)) => {}
        (Ok(sum), Ok(naive)) => {
            assert_eq!(bits(&sum), bits(&naive.dense(LEN)));
            assert!(extent.is_ok_and(|extent| extent <= LEN));
        }
        (sum, naive) => panic!("{:?} against {:?}", sum.map(|_| ()), naive.map(|_| ())),
    }
});
