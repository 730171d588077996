//! Writes random draws to standard output until the reader closes it, for `./ci.sh streams`: `single` one
//! stream; `steps`, `units`, `ranks` one block each of 2^16 streams of consecutive keys, in turns; `weyl` a
//! generator that is known to be bad, which a test that is worth its time finds.

use gradwire::random::Stream;
use gradwire::{Source, StepKey};
use std::io::{self, ErrorKind, Write};

/// Streams that are interleaved.
const KEYS: u32 = 1 << 16;

/// Bytes of a block.
const BLOCK: usize = 16;

fn main() -> io::Result<()> {
    let what = std::env::args().nth(1).unwrap_or_default();
    let streams: Vec<Stream> = match what.as_str() {
        "single" => vec![stream(0, 0, 0)],
        "steps" => (0..KEYS).map(|i| stream(i, 0, 0)).collect(),
        "units" => (0..KEYS).map(|i| stream(0, i, 0)).collect(),
        "ranks" => (0..KEYS).map(|i| stream(0, 0, i)).collect(),
        "weyl" => Vec::new(),
        other => panic!("'{other}' is none of single, steps, units, ranks, weyl"),
    };
    let mut bytes = Vec::new();
    for turn in 0.. {
        bytes.clear();
        match streams.as_slice() {
            [] => (0..1u64 << 12).for_each(|i| bytes.extend(weyl(turn << 12 | i).to_le_bytes())),
            [one] => (0..1u64 << 12).for_each(|i| bytes.extend(block(one, turn << 12 | i))),
            many => many.iter().for_each(|stream| bytes.extend(block(stream, turn))),
        }
        match io::stdout().write_all(&bytes) {
            Err(error) if error.kind() == ErrorKind::BrokenPipe => break,
            result => result?,
        }
    }
    Ok(())
}

fn stream(step: u32, unit: u32, rank: u32) -> Stream {
    StepKey { seed: 1, step: step.into(), source: Source::Rank(rank) }.stream(unit)
}

fn block(stream: &Stream, i: u64) -> [u8; BLOCK] {
    let words = stream.block(i);
    std::array::from_fn(|byte| words[byte / 4].to_le_bytes()[byte % 4])
}

/// Multiples of the golden section: evenly spread, and not at all random.
fn weyl(i: u64) -> u32 {
    (i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as u32
}
