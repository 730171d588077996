//! Sections that were written decode; damaged ones are refused.

extern crate std;

use super::*;
use crate::wire::writer::Writer;
use std::{vec, vec::Vec};

/// Symbols of a block, unless few bits are in one.
const BLOCK: usize = 1 << 18;

fn round_trip(symbols: &[u8], alphabet: usize) -> usize {
    let mut out = vec![0xa5; max_section_bytes(symbols.len(), alphabet).unwrap()];
    let mut writer = Writer::new(&mut out);
    assert!(write_symbols(symbols, alphabet, usize::MAX, &mut writer));
    let written = writer.len();
    let mut reader = Reader::new(&out[..written]);
    let coded = CodedSymbols::fields(symbols.len(), &mut reader).unwrap();
    reader.finish().unwrap();
    let mut slots = vec![0; SLOT_WORDS];
    coded.check(alphabet, &mut slots).unwrap();
    let mut decoded = Vec::new();
    coded.for_each(alphabet, &slots, |symbol| decoded.push(symbol));
    assert_eq!(decoded, symbols);
    written
}

fn skewed(n: usize, alphabet: u32) -> Vec<u8> {
    let mut state = 1u32;
    let mut draw = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        state >> 16
    };
    (0..n).map(|_| (draw() % alphabet).min(draw() % alphabet) as u8).collect()
}

#[test]
fn runs_of_any_length_round_trip() {
    for n in [0, 1, 2, 31, 33, 511, 512, 5000, 16_384, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK + 700] {
        for alphabet in [3, 15, 255, 256] {
            round_trip(&skewed(n, alphabet as u32), alphabet);
        }
    }
}

#[test]
fn one_repeated_symbol_costs_next_to_nothing() {
    assert!(round_trip(&[2; 100_000], 15) < 150);
}

#[test]
fn a_section_not_below_the_limit_is_not_written() {
    let symbols = skewed(2000, 15);
    let mut out = vec![0; 4000];
    let mut writer = Writer::new(&mut out);
    assert!(write_symbols(&symbols, 15, usize::MAX, &mut writer));
    let exact = writer.len();
    for (limit, fits) in [(exact + 1, true), (exact, false), (20, false)] {
        let mut out = vec![0; limit + SLACK];
        let mut writer = Writer::new(&mut out);
        assert_eq!(write_symbols(&symbols, 15, limit, &mut writer), fits);
        assert_eq!(writer.len(), if fits { exact } else { 0 });
    }
}

#[test]
fn truncated_and_longer_sections_are_refused() {
    let symbols = skewed(2000, 15);
    let mut out = vec![0; 4000];
    let mut writer = Writer::new(&mut out);
    write_symbols(&symbols, 15, usize::MAX, &mut writer);
    let written = writer.len();
    let section = &out[2..written];
    let check = |n: usize, section: &[u8]| {
        let mut framed = vec![0; section.len() + 3];
        let mut writer = Writer::new(&mut framed);
        writer.varint(section.len() as u64);
        writer.bytes(section);
        let coded = CodedSymbols::fields(n, &mut Reader::new(writer.written()))?;
        coded.check(15, &mut vec![0; SLOT_WORDS])
    };
    assert_eq!(check(2000, section), Ok(()));
    assert!(check(2000, &section[..20]).is_err());
    assert!(check(2000, &[]).is_err());
    assert!(check(0, section).is_err());
}

/// Bytes of the section with classes, which must decode to its symbols, and the number of its tables.
fn classed_round_trip(symbols: &[u8], alphabet: usize) -> (usize, usize) {
    let mut out = vec![0xa5; max_classed_section_bytes(symbols.len(), alphabet).unwrap()];
    let needed = ClassRoom::scratch_len(symbols.len());
    let (mut words, mut bytes) = (vec![0xa5a5_a5a5; needed.words], vec![0xa5; needed.bytes]);
    let room = ClassRoom::new(symbols.len(), &mut words, &mut bytes);
    let mut writer = Writer::new(&mut out);
    assert!(write_classed_symbols(symbols, alphabet, room, usize::MAX, &mut writer));
    let written = writer.len();
    let mut reader = Reader::new(&out[..written]);
    let coded = CodedSymbols::classed_fields(symbols.len(), &mut reader).unwrap();
    reader.finish().unwrap();
    let mut words = vec![0xa5a5_a5a5; coded.scratch_words()];
    coded.check(alphabet, &mut words).unwrap();
    let mut decoded = Vec::new();
    coded.for_each(alphabet, &words, |symbol| decoded.push(symbol));
    assert_eq!(decoded, symbols);
    (written, coded.tables())
}

/// Runs of quiet and of loud symbols.
fn uneven(n: usize, alphabet: u32) -> Vec<u8> {
    let loud = skewed(n, alphabet);
    let quiet = |i: usize, symbol: u8| {
        if (i / 700).is_multiple_of(3) { symbol } else { symbol / 4 * u8::from(i.is_multiple_of(5)) }
    };
    loud.into_iter().enumerate().map(|(i, symbol)| quiet(i, symbol)).collect()
}

#[test]
fn runs_with_classes_of_any_length_round_trip() {
    for n in [0, 1, 63, 64, 65, 8191, 8192, 8193, 20_000, BLOCK - 1, BLOCK + 1, 2 * BLOCK + 700] {
        for alphabet in [3, 15, 255, 256] {
            classed_round_trip(&uneven(n, alphabet as u32), alphabet);
        }
    }
}

#[test]
fn classes_pay_where_symbols_are_spread_unevenly_and_are_left_out_elsewhere() {
    let uneven = uneven(200_000, 15);
    let (bytes, tables) = classed_round_trip(&uneven, 15);
    assert!(tables > 1 && bytes * 10 < round_trip(&uneven, 15) * 9, "{bytes} bytes, {tables} tables");
    let even = skewed(200_000, 15);
    assert_eq!(classed_round_trip(&even, 15), (round_trip(&even, 15), 1));
}

#[test]
fn a_run_too_short_for_a_reader_of_many_tables_has_one() {
    assert_eq!(classed_round_trip(&uneven(8191, 15), 15).1, 1);
    assert!(classed_round_trip(&uneven(8192, 15), 15).1 == 2);
}

#[test]
fn classes_where_there_can_be_none_are_refused() {
    let symbols = uneven(100_000, 15);
    let mut out = vec![0; 100_000];
    let needed = ClassRoom::scratch_len(symbols.len());
    let (mut words, mut bytes) = (vec![0; needed.words], vec![0; needed.bytes]);
    let room = ClassRoom::new(symbols.len(), &mut words, &mut bytes);
    let mut writer = Writer::new(&mut out);
    assert!(write_classed_symbols(&symbols, 15, room, usize::MAX, &mut writer));
    let fields = CodedSymbols::fields(symbols.len(), &mut Reader::new(writer.written()));
    assert_eq!(fields.unwrap_err(), DecodeError::InvalidField(Field::Classes));
}

#[test]
fn sections_stay_within_half_a_percent_of_the_entropy_and_their_table() {
    for (n, alphabet) in [(60_000, 3), (75_000, 15), (300_000, 255), (BLOCK * 2 + 5, 15), (4_000_000, 3)] {
        let symbols: Vec<u8> = match n {
            4_000_000 => (0..n).map(|i| u8::from(i.is_multiple_of(97))).collect(),
            _ => skewed(n, alphabet as u32),
        };
        let mut counts = vec![0u32; alphabet];
        symbols.iter().for_each(|&symbol| counts[usize::from(symbol)] += 1);
        let bits = |&count: &u32| f64::from(count) * (n as f64 / f64::from(count)).log2();
        let entropy: f64 = counts.iter().filter(|count| **count > 0).map(bits).sum();
        let ideal = (entropy + Table::from_counts(&counts).table_bits(alphabet) as f64) / 8.0;
        let bytes = round_trip(&symbols, alphabet) as f64;
        assert!(bytes <= 1.005 * ideal, "{n} symbols of {alphabet}: {bytes} bytes, ideal {ideal:.0}");
    }
}

#[test]
fn a_single_symbol_takes_at_most_eleven_bytes() {
    for alphabet in 2..=256 {
        for symbol in [0, 1, alphabet / 2, alphabet - 1].into_iter().filter(|symbol| *symbol < alphabet) {
            assert!(round_trip(&[symbol as u8], alphabet) <= MAX_SINGLE_BYTES);
        }
    }
}
