//! What several tests need.

extern crate std;
use proptest::prelude::*;
use std::boxed::Box;
use std::vec;
use std::vec::Vec;

use super::*;
use crate::bits::{BitReader, BitWriter, load_padded};
use crate::kernels::Isa;
use crate::kernels::scalar::rans::LOWER;

mod stream;
mod table;

fn counts(symbols: &[u8]) -> [u32; MAX_ALPHABET] {
    let mut counts = [0; MAX_ALPHABET];
    symbols.iter().for_each(|&s| counts[usize::from(s)] += 1);
    counts
}

fn lookup(table: &Table) -> Box<[u32; SLOTS]> {
    let mut slots = Box::new([u32::MAX; SLOTS]);
    table.fill_lookup(&mut slots);
    slots
}

/// A whole stream at the front of `out`.
fn encode(isa: Isa, symbols: &[u8], table: &Table, lanes_log2: u32, out: &mut [u8]) -> Option<usize> {
    let mut entries = [[0; 2]; MAX_ALPHABET];
    fill_entries(&mut entries, table);
    let mut encoder = Encoder::new(isa, symbols.len(), lanes_log2, out);
    encoder.prepend(symbols, &entries)?;
    encoder.finish()
}

/// The stream that every instruction set makes.
fn encoded(symbols: &[u8], table: &Table, lanes_log2: u32) -> Vec<u8> {
    let encoded = |isa| {
        let mut out = vec![0xa5; 2 * symbols.len() + 128];
        let len = encode(isa, symbols, table, lanes_log2, &mut out).unwrap();
        out.truncate(len);
        out
    };
    let expected = encoded(Isa::Baseline);
    Isa::available().for_each(|isa| assert_eq!(encoded(isa), expected, "{isa:?}"));
    expected
}

/// `n` symbols of the stream on every instruction set, and whether it was intact.
fn decoded(bytes: &[u8], table: &Table, lanes_log2: u32, n: usize) -> (Vec<u8>, bool) {
    let slots = lookup(table);
    let decoded = |isa| {
        let mut decoder = Decoder::new(isa, bytes, lanes_log2);
        let mut symbols = vec![0xa5; n];
        decoder.decode_into(&slots, &mut symbols);
        (symbols, decoder.is_intact())
    };
    let expected = decoded(Isa::Baseline);
    Isa::available().for_each(|isa| assert_eq!(decoded(isa), expected, "{isa:?}"));
    expected
}

fn written(table: &Table, alphabet: usize) -> Vec<u8> {
    let mut out = vec![0xa5; 1000];
    let mut writer = BitWriter::new(&mut out);
    table.write(&mut writer, alphabet);
    assert_eq!(writer.bits(), table.table_bits(alphabet));
    let len = writer.finish().unwrap();
    out.truncate(len);
    out
}

/// The pseudo-code of the module, word by word.
fn naive_encode(symbols: &[u8], table: &Table, lanes: usize) -> Vec<u8> {
    let (mut states, mut words) = (vec![1_u64 << 16; lanes], Vec::new());
    for (i, &symbol) in symbols.iter().enumerate().rev() {
        let f = u64::from(table.freqs[usize::from(symbol)]);
        let c: u64 = table.freqs[..usize::from(symbol)].iter().copied().map(u64::from).sum();
        let x = &mut states[i % lanes];
        if *x >= f << 20 {
            words.push(*x as u16);
            *x >>= 16;
        }
        *x = ((*x / f) << 12) + c + *x % f;
    }
    let words = words.into_iter().rev().flat_map(u16::to_le_bytes);
    states.into_iter().flat_map(|x| (x as u32).to_le_bytes()).chain(words).collect()
}

fn naive_decode(bytes: &[u8], table: &Table, lanes: usize, n: usize) -> Vec<u8> {
    let byte = |at: usize| bytes.get(at).copied().map_or(0, u32::from);
    let word = |at: usize| byte(at) | byte(at + 1) << 8;
    let mut states: Vec<u32> = (0..lanes).map(|l| word(4 * l) | word(4 * l + 2) << 16).collect();
    let mut at = 4 * lanes;
    let mut symbol_at = |i: usize| {
        let x = &mut states[i % lanes];
        let (mut c, mut symbol) = (0, 0);
        while *x & 0xfff >= c + u32::from(table.freqs[symbol]) {
            c += u32::from(table.freqs[symbol]);
            symbol += 1;
        }
        *x = u32::from(table.freqs[symbol]) * (*x >> 12) + (*x & 0xfff) - c;
        if *x < 1 << 16 {
            *x = *x << 16 | word(at);
            at += 2;
        }
        symbol as u8
    };
    (0..n).map(&mut symbol_at).collect()
}

/// A generator of skewed symbols: the product of two uniform numbers.
fn skewed(n: usize, alphabet: u64, seed: u64) -> Vec<u8> {
    let mut x = seed | 1;
    let mut uniform = move || {
        x = x.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        x >> 33
    };
    (0..n).map(|_| (uniform() % (uniform() % alphabet + 1)) as u8).collect()
}

fn entropy_bits(counts: &[u32]) -> f64 {
    let total: f64 = counts.iter().copied().map(f64::from).sum();
    counts.iter().filter(|c| **c > 0).map(|&c| f64::from(c) * (total / f64::from(c)).log2()).sum()
}

fn exact_cost(freqs: &[u16], counts: &[u32]) -> f64 {
    let cost =
        |(&f, &c): (&u16, &u32)| if c == 0 { 0.0 } else { f64::from(c) * (12.0 - f64::from(f).log2()) };
    freqs.iter().zip(counts).map(cost).sum()
}

fn histogram() -> impl Strategy<Value = Vec<u32>> {
    let count = prop_oneof![3 => Just(0_u32), 3 => 1_u32..4, 3 => 0_u32..1000, 1 => any::<u32>()];
    prop::collection::vec(count, 1..=MAX_ALPHABET)
}

const LENGTHS: [usize; 22] =
    [0, 1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 255, 256, 257, 3001];
