//! Behind a header that is right, any body of any kind is judged and read as the naive decoder does: index sections,
//! codebooks, Elias codes, rANS tables and streams.
#![no_main]

use gradwire::LayoutRef;
use gradwire_tests::naive::{decode::decode_for, header};
use gradwire_tests::run::{self, bits};
use libfuzzer_sys::fuzz_target;

/// Codecs and the kinds that they make.
const KINDS: [(u8, u8); 5] = [(3, 1), (4, 1), (5, 2), (6, 3), (1, 0)];

fuzz_target!(|data: &[u8]| {
    let [choice, low, high, body @ ..] = data else { return };
    let (codec, kind) = KINDS[usize::from(*choice) % KINDS.len()];
    // Up to 1023 elements, so that both one and four lanes occur.
    let len = usize::from(u16::from_le_bytes([*low, *high]) % 1024);
    let unit = [&[0, 0, 0][..], &header::varint(len as u64), &[kind], body].concat();
    let frame = header::frame(codec, 1, 42, &unit);
    let sum = run::decode(&frame, &LayoutRef::opaque(len, 42));
    match (sum, decode_for(&frame, 42, len)) {
        (Err(_), Err(_)) => {}
        (Ok(sum), Ok(naive)) => assert_eq!(bits(&sum), bits(&naive.dense(len))),
        (sum, naive) => panic!("{:?} against {:?}", sum.map(|_| ()), naive.map(|_| ())),
    }
});
