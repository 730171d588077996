//! Behind a header that is right, any body of any kind is judged and read as the naive decoder does: index
//! sections, codebooks, Elias codes, rANS tables and streams. The layout is one shape, or a matrix and what
//! is behind it.
#![no_main]

use gradwire_tests::naive::decode::decode;
use gradwire_tests::naive::header::{self, fingerprint};
use gradwire_tests::run::{self, bits};
use libfuzzer_sys::fuzz_target;

/// Codecs and the kinds that they make.
const KINDS: [(u8, u8); 5] = [(3, 1), (4, 1), (5, 2), (6, 3), (1, 0)];

fuzz_target!(|data: &[u8]| {
    let [choice, low, high, body @ ..] = data else { return };
    let (codec, kind) = KINDS[usize::from(*choice) % KINDS.len()];
    // Up to 1023 elements, so that both one and four lanes occur.
    let len = usize::from(u16::from_le_bytes([*low, *high]) % 1024);
    let width = usize::from(*choice) / KINDS.len();
    let shapes = match len.checked_div(width) {
        None => vec![vec![len]],
        Some(rows) => vec![vec![rows, width], vec![len % width]],
    };
    let unit = [&[0, 0, 0][..], &header::varint(len as u64), &[kind], body].concat();
    let frame = header::frame(codec, 1, fingerprint(&shapes), &unit);
    let sum = run::decode(&frame, &run::layout(&shapes).as_ref());
    match (sum, decode(&frame, &shapes)) {
        (Err(_), Err(_)) => {}
        (Ok(sum), Ok(naive)) => assert_eq!(bits(&sum), bits(&naive.dense(len))),
        (sum, naive) => panic!("{:?} against {:?}", sum.map(|_| ()), naive.map(|_| ())),
    }
});
