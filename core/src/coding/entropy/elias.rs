//! Elias's omega code: the reference level coder of the QSGD paper.
//!
//! ```text
//! code(v) = "0"; x = v
//! while x > 1: code = binary(x) code; x = (number of digits of binary(x)) - 1
//! ```
//! The leftmost digit is written first.
//!
//! # Source
//! P. Elias, "Universal codeword sets and representations of the integers", IEEE Transactions on Information
//! Theory 21(2), 1975; used for levels in D. Alistarh et al., "QSGD", arXiv 1610.02132, section 3.2.

use crate::bits::{BitReader, BitWriter};

/// Every code of at most this many bits is read through [`SHORT_VALUES`]: those of 1 to 15.
const SHORT_BITS: u32 = 7;

/// Length << 4 | value of the code that the index, the next seven bits, begins with; 0 if it is longer.
static SHORT_VALUES: [u8; 1 << SHORT_BITS] = {
    let mut values = [0; 1 << SHORT_BITS];
    let mut v = 1;
    while v < 16 {
        let (code, len) = code(v);
        let mut above = 0;
        while above < 1 << (SHORT_BITS - len) {
            values[code as usize | above << len] = (len << 4 | v) as u8;
            above += 1;
        }
        v += 1;
    }
    values
};

/// Bits that are looked up at once, and the most levels that are taken from them.
const RUN_BITS: u32 = 11;
const RUN_LEVELS: usize = 4;

/// The levels that lie within the next bits, as symbols, how many these are, and the bits that they take.
#[derive(Clone, Copy)]
struct Run {
    symbols: [u8; RUN_LEVELS],
    levels: u8,
    bits: u8,
}

/// The run that the index, the next eleven bits, begins with; without levels if the first code is longer.
static RUNS: [Run; 1 << RUN_BITS] = {
    let mut runs = [Run { symbols: [0; RUN_LEVELS], levels: 0, bits: 0 }; 1 << RUN_BITS];
    let mut word = 0;
    while word < runs.len() {
        let run = &mut runs[word];
        while (run.levels as usize) < RUN_LEVELS {
            let left = RUN_BITS - run.bits as u32;
            let rest = word >> run.bits;
            let short = SHORT_VALUES[rest & ((1 << SHORT_BITS) - 1)] as usize;
            let (level, len) = ((short & 15) as u32, (short >> 4) as u32);
            let has_sign = level > 1;
            if short == 0 || len + has_sign as u32 > left {
                break;
            }
            let sign = rest >> len & has_sign as usize;
            run.symbols[run.levels as usize] = symbol(level - 1, sign as u32);
            run.levels += 1;
            run.bits += (len + has_sign as u32) as u8;
        }
        word += 1;
    }
    runs
};

/// The longest code of a symbol: that of level 128, and a sign.
const MOST_SYMBOL_BITS: u32 = 16;

/// Length << 24 | bits of the code and the sign of each symbol.
static SYMBOLS: [u32; 256] = {
    let mut codes = [0; 256];
    let mut symbol = 0;
    while symbol < codes.len() {
        let (level, is_negative) = ((symbol as u32).div_ceil(2), symbol > 0 && symbol % 2 == 0);
        let (code, len) = code(level + 1);
        let bits = len + (level > 0) as u32;
        assert!(bits <= MOST_SYMBOL_BITS);
        codes[symbol] = bits << 24 | code as u32 | (is_negative as u32) << len;
        symbol += 1;
    }
    codes
};

/// Bits of the codes and signs of these symbols.
pub(crate) fn symbols_bits(symbols: &[u8]) -> u64 {
    symbols.iter().map(|&symbol| u64::from(SYMBOLS[usize::from(symbol)] >> 24)).sum()
}

/// Appends the code of each level + 1, and its sign if the level is not 0.
pub(crate) fn put_symbols(writer: &mut BitWriter<'_>, symbols: &[u8]) {
    let code = |symbol: u8| {
        let code = SYMBOLS[usize::from(symbol)];
        (u64::from(code & 0xff_ffff), code >> 24)
    };
    let (threes, few) = symbols.as_chunks::<3>();
    for three in threes {
        let [(a, first), (b, second), (c, third)] = three.map(code);
        writer.put(a | b << first | c << (first + second), first + second + third);
    }
    few.iter().map(|&symbol| code(symbol)).for_each(|(code, bits)| writer.put(code, bits));
}

/// The symbol of a level and its sign: 0, then +1, −1, +2, …
const fn symbol(level: u32, sign: u32) -> u8 {
    (2 * level + sign).saturating_sub(1) as u8
}

/// The code of `v`, first digit lowest, and its length in bits, at most 43.
const fn code(v: u32) -> (u64, u32) {
    let (mut code, mut total) = (0, 1);
    let mut x = v;
    while x > 1 {
        let width = x.ilog2() + 1;
        code = code << width | (x.reverse_bits() >> (32 - width)) as u64;
        total += width;
        x = width - 1;
    }
    (code, total)
}

/// Length of the code of `v` in bits; `v` is at least 1.
pub(crate) fn len(v: u32) -> u32 {
    debug_assert!(v >= 1, "the code has no zero");
    code(v).1
}

/// Consumes one code and returns its value, or `max` if that is smaller; `max` is at least 1.
///
/// Total: any bits give a value in 1..=`max`. A group that would need more than 32 digits ends the code at
/// its first digit and counts as a value above every `max`. At most 43 bits are consumed. Bits past the end
/// read as zero, so the value there is 1.
#[inline]
pub(crate) fn take(reader: &mut BitReader<'_>, max: u32) -> u32 {
    debug_assert!(max >= 1, "the code has no zero");
    let word = reader.peek();
    let short = SHORT_VALUES[(word & ((1 << SHORT_BITS) - 1)) as usize];
    let (value, len) = if short != 0 { (u32::from(short & 15), u32::from(short >> 4)) } else { decode(word) };
    reader.skip(len);
    value.min(max)
}

/// Consumes one code of a level + 1, and a sign if the level is not 0. Returns the level, at most `levels`,
/// and the sign.
#[inline]
pub(crate) fn take_level(reader: &mut BitReader<'_>, levels: u32) -> (u32, bool) {
    let level = take(reader, levels + 1) - 1;
    let sign = reader.take(u32::from(level > 0));
    (level, sign == 1)
}

/// Fills `symbols` with the next levels and signs, as [`take_level`] reads them; `levels` is at most 127.
pub(crate) fn take_symbols(reader: &mut BitReader<'_>, levels: u32, symbols: &mut [u8]) {
    let mut rest = &mut *symbols;
    while let Some(next) = rest.first_chunk_mut() {
        let run = RUNS[reader.peek() as usize % RUNS.len()];
        if run.levels == 0 {
            take_each(reader, levels, &mut next[..1]);
        } else {
            *next = run.symbols;
            reader.skip(u32::from(run.bits));
        }
        rest = &mut rest[usize::from(run.levels.max(1))..];
    }
    take_each(reader, levels, rest);
    let most = 2 * levels as u8;
    symbols
        .iter_mut()
        .for_each(|symbol| *symbol = if *symbol > most { most - (*symbol & 1) } else { *symbol });
}

/// [`take_symbols`] one by one.
fn take_each(reader: &mut BitReader<'_>, levels: u32, symbols: &mut [u8]) {
    for slot in symbols {
        let (level, is_negative) = take_level(reader, levels);
        *slot = symbol(level, u32::from(is_negative));
    }
}

/// Consumes up to `count` levels with their signs, as [`take_level`] reads them, and stops past the end.
/// Returns how many are left.
pub(crate) fn skip_levels(reader: &mut BitReader<'_>, levels: u32, count: usize) -> usize {
    let mut left = count;
    while left > 0 && !reader.overran() {
        let run = RUNS[reader.peek() as usize % RUNS.len()];
        if run.levels == 0 || left < RUN_LEVELS {
            take_level(reader, levels);
            left -= 1;
        } else {
            reader.skip(u32::from(run.bits));
            left -= usize::from(run.levels);
        }
    }
    left
}

/// Value and length of the code that the low bits of `word` begin with.
fn decode(word: u64) -> (u32, u32) {
    let (mut value, mut used) = (1, 0);
    while word >> used & 1 == 1 {
        if value > 31 {
            return (u32::MAX, used + 1);
        }
        let width = value + 1;
        value = ((word >> used) as u32).reverse_bits() >> (32 - width);
        used += width;
    }
    (value, used + 1)
}

#[cfg(test)]
mod tests {
    extern crate std;
    use proptest::prelude::*;
    use std::format;
    use std::string::String;
    use std::vec::Vec;

    use super::*;

    fn put(writer: &mut BitWriter<'_>, v: u32) {
        let (code, len) = code(v);
        writer.put(code, len);
    }

    /// The definition, with digits in a string.
    fn textbook(v: u32) -> String {
        let (mut code, mut x) = (String::from("0"), v);
        while x > 1 {
            code = format!("{x:b}{code}");
            x = x.ilog2();
        }
        code
    }

    fn written(v: u32) -> String {
        let mut out = [0xa5; 16];
        let mut writer = BitWriter::new(&mut out);
        put(&mut writer, v);
        let bits = writer.bits() as u32;
        assert_eq!(bits, len(v));
        writer.finish().unwrap();
        let mut reader = BitReader::new(&out);
        (0..bits).map(|_| if reader.take(1) == 1 { '1' } else { '0' }).collect()
    }

    #[test]
    fn codes_are_those_of_the_textbook() {
        let oracles = [(1, "0"), (2, "100"), (3, "110"), (4, "101000"), (8, "1110000"), (16, "10100100000")];
        for (v, code) in oracles {
            assert_eq!(written(v), code);
        }
        for v in (1..5000).chain((5..32).flat_map(|k| [(1 << k) - 1, 1 << k, (1 << k) + 1])).chain([u32::MAX])
        {
            assert_eq!(written(v), textbook(v));
        }
    }

    #[test]
    fn lengths_are_those_of_the_textbook() {
        let ranges = [(1..=1, 1), (2..=3, 3), (4..=7, 6), (8..=15, 7), (16..=31, 11)];
        for (values, bits) in ranges {
            values.for_each(|v| assert_eq!(len(v), bits));
        }
        assert_eq!(len(u32::MAX), 43);
    }

    #[test]
    fn values_above_the_maximum_become_it() {
        let mut out = [0; 16];
        let mut writer = BitWriter::new(&mut out);
        put(&mut writer, 1_000_000);
        put(&mut writer, 7);
        writer.finish().unwrap();
        let mut reader = BitReader::new(&out);
        assert_eq!((take(&mut reader, 127), take(&mut reader, 3)), (127, 3));
        assert_eq!(reader.position(), u64::from(len(1_000_000) + len(7)));
    }

    #[test]
    fn an_over_long_group_becomes_the_maximum() {
        let mut reader = BitReader::new(&[0xff; 16]);
        // "11", "1111", sixteen ones, and the first digit of a group of 65536.
        assert_eq!(take(&mut reader, u32::MAX), u32::MAX);
        assert_eq!(reader.position(), 2 + 4 + 16 + 1);
    }

    #[test]
    fn past_the_end_every_value_is_one() {
        let mut reader = BitReader::new(&[]);
        (0..100).for_each(|_| assert_eq!(take(&mut reader, 9), 1));
        assert!(reader.overran());
    }

    #[test]
    fn the_short_table_agrees_with_the_definition() {
        for word in 0..1 << 16 {
            let bytes = (word as u32).to_le_bytes();
            let mut reader = BitReader::new(&bytes);
            let value = take(&mut reader, u32::MAX);
            assert_eq!((value, reader.position() as u32), decode(word));
        }
    }

    proptest! {
        #[test]
        fn values_survive_the_round_trip(values in prop::collection::vec((any::<u32>(), 0_u32..32), 0..100)) {
            let values: Vec<u32> = values.into_iter().map(|(v, shift)| (v >> shift).max(1)).collect();
            let mut out = [0xa5; 1000];
            let mut writer = BitWriter::new(&mut out);
            values.iter().for_each(|&v| put(&mut writer, v));
            let bits: u64 = values.iter().map(|&v| u64::from(len(v))).sum();
            prop_assert_eq!(writer.bits(), bits);
            let bytes = writer.finish().unwrap();
            let mut reader = BitReader::new(&out[..bytes]);
            for &v in &values {
                prop_assert_eq!(take(&mut reader, u32::MAX), v);
            }
            prop_assert_eq!(reader.position(), bits);
        }

        #[test]
        fn symbols_are_codes_with_signs(symbols in prop::collection::vec(0..255_u8, 0..100)) {
            let (mut out, mut back) = ([0xa5; 300], std::vec![0; symbols.len()]);
            let mut writer = BitWriter::new(&mut out);
            for &symbol in &symbols {
                let level = u32::from(symbol).div_ceil(2);
                put(&mut writer, level + 1);
                writer.put(u64::from(symbol > 0 && symbol % 2 == 0), u32::from(level > 0));
            }
            let bits = writer.bits();
            let bytes = writer.finish().unwrap();
            prop_assert_eq!(symbols_bits(&symbols), bits);
            let mut again = [0x5a; 300];
            let mut writer = BitWriter::new(&mut again);
            put_symbols(&mut writer, &symbols);
            prop_assert_eq!(writer.bits(), bits);
            writer.finish().unwrap();
            prop_assert_eq!(&out[..bytes], &again[..bytes]);
            take_symbols(&mut BitReader::new(&again[..bytes]), 127, &mut back);
            prop_assert_eq!(back, symbols);
        }

        /// Bits as they come, and as most levels are: small.
        #[test]
        fn runs_of_levels_are_those_that_are_taken_one_by_one(
            words in prop::collection::vec((any::<u8>(), any::<u8>(), any::<u8>()), 0..60),
            is_sparse in any::<bool>(),
            levels in prop_oneof![1..=15_u32, 1..=127_u32],
            count in 0..300_usize,
        ) {
            let byte = |(a, b, c): (u8, u8, u8)| if is_sparse { a & b & c } else { a };
            let bytes: Vec<u8> = words.into_iter().map(byte).collect();
            let (mut reader, mut symbols) = (BitReader::new(&bytes), std::vec![0xa5; count]);
            let mut places = std::vec![0];
            let expected: Vec<u8> = (0..count)
                .map(|_| {
                    let (level, is_negative) = take_level(&mut reader, levels);
                    places.push(reader.position());
                    (2 * level + u32::from(is_negative)).saturating_sub(1) as u8
                })
                .collect();
            take_symbols(&mut BitReader::new(&bytes), levels, &mut symbols);
            prop_assert_eq!(symbols, expected);
            let mut skipping = BitReader::new(&bytes);
            let left = skip_levels(&mut skipping, levels, count);
            prop_assert_eq!(skipping.position() + left as u64, reader.position());
            prop_assert_eq!(skipping.position(), places[count - left]);
        }

        #[test]
        fn any_bits_decode_to_values_in_range(
            bytes in prop::collection::vec(any::<u8>(), 0..40),
            max in 1..200_u32,
        ) {
            let mut reader = BitReader::new(&bytes);
            for _ in 0..100 {
                let before = reader.position();
                prop_assert!((1..=max).contains(&take(&mut reader, max)));
                prop_assert!((1..=43).contains(&(reader.position() - before)));
            }
        }
    }
}
