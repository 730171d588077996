//! Tables: best, costed, spelled.

use super::super::table::*;
use super::*;

#[test]
fn logarithms_are_within_their_bound() {
    for f in 1..=SLOTS as u16 {
        let error = f64::from(f).log2() - f64::from(log2_q16(f)) / 65536.0;
        assert!((-1e-9..1.0 / 65536.0 + 1e-9).contains(&error), "{f}: {error}");
    }
}

#[test]
fn tables_reach_the_entropy_of_skewed_symbols() {
    // Two-sided geometric levels, the shape of quantised gradients.
    for (alphabet, ratio, limit) in
        [(3, 0.1, 1.0001), (15, 0.5, 1.0002), (31, 0.8, 1.0003), (255, 0.95, 1.002)]
    {
        let weight = |s: i32| 1e9 * f64::powi(ratio, (s - alphabet / 2).abs());
        let counts: Vec<u32> = (0..alphabet).map(|s| (weight(s) / 20.0) as u32 + 1).collect();
        let table = Table::from_counts(&counts);
        let excess = table.cost_bits(&counts) as f64 / entropy_bits(&counts);
        assert!((0.999_999..limit).contains(&excess), "{alphabet} symbols: {excess}");
    }
}

#[test]
fn no_single_exchange_of_slots_makes_a_table_much_above() {
    for seed in 0..6 {
        let counts = counts(&skewed(3000, 40 + 10 * seed, seed));
        let table = Table::from_counts(&counts);
        let before = exact_cost(&table.freqs, &counts);
        for to in 0..256 {
            for from in (0..256).filter(|&from| from != to && table.freqs[from] > 1 && counts[to] > 0) {
                let mut freqs = table.freqs;
                freqs[to] += 1;
                freqs[from] -= 1;
                assert!(exact_cost(&freqs, &counts) > before * (1.0 - 1e-6));
            }
        }
    }
}

#[test]
fn tables_have_these_sizes() {
    let bits = |counts: &[u32]| Table::from_counts(counts).table_bits(counts.len());
    assert_eq!(bits(&[1]), 0);
    assert_eq!(bits(&[0, 1]), 3 + 1);
    // A class of 12 after 1: gamma(23), and 11 digits; the other symbol takes the remaining slots.
    assert_eq!(bits(&[1, 1]), 9 + 11);
    assert_eq!(bits(&[1; 256]), 7 + 4 + 254 * (1 + 4));
    let mut sparse = [0; 256];
    (sparse[3], sparse[200]) = (1, 1);
    // Two runs of absent symbols, two jumps of the class up to 12 and one down, two times 11 digits.
    assert_eq!(bits(&sparse), (3 + 3) + (7 + 11) + (9 + 15) + (7 + 11));
}

#[test]
fn a_small_table_has_exactly_these_bytes() {
    // Class 12 after 1: gamma(1 + 2·11) is 0000 1 1110, first bit first; then 3072 - 2048 in 11 bits.
    assert_eq!(written(&Table::from_counts(&[6, 2]), 2), [0b1111_0000, 0, 0b1000]);
}

#[test]
fn a_table_that_is_none_is_rejected() {
    let read = |bytes: &[u8], alphabet| Table::read(&mut BitReader::new(bytes), alphabet);
    assert_eq!(read(&[], 0), None);
    assert_eq!(read(&[0xff; 100], 257), None);
    assert_eq!(read(&[], 1), Some(Table::from_counts(&[1])));
    assert_eq!(read(&[], 2), None);
    assert_eq!(read(&[0; 100], 2), None);
    // Class 0, then a run of three absent symbols, in an alphabet of four.
    let (mut bytes, run) = ([0; 8], 4);
    let mut writer = BitWriter::new(&mut bytes);
    put_gamma(&mut |value, width| writer.put(value, width), 1 + zigzag(-1));
    put_gamma(&mut |value, width| writer.put(value, width), run);
    writer.finish().unwrap();
    assert_eq!(read(&bytes, 4), None);
    assert_eq!(read(&bytes, 5), Some(Table::from_counts(&[0, 0, 0, 0, 1])));
}

#[test]
fn every_table_of_two_bytes_has_one_spelling() {
    for word in 0..=u16::MAX {
        for alphabet in 1..6 {
            let mut bytes = [0; 8];
            bytes[..2].copy_from_slice(&word.to_le_bytes());
            let mut reader = BitReader::new(&bytes);
            let Some(table) = Table::read(&mut reader, alphabet) else { continue };
            assert_eq!(table.freqs.iter().copied().map(usize::from).sum::<usize>(), SLOTS);
            assert_eq!(reader.position(), table.table_bits(alphabet));
            let again = written(&table, alphabet);
            let bits = |bytes: &[u8]| load_padded(bytes, 0) & ((1 << reader.position()) - 1);
            assert_eq!(bits(&bytes), bits(&again));
        }
    }
}

proptest! {
    #[test]
    fn tables_know_exactly_the_symbols_that_occur(counts in histogram()) {
        let table = Table::from_counts(&counts);
        prop_assert_eq!(table.freqs.iter().copied().map(usize::from).sum::<usize>(), SLOTS);
        if counts.iter().any(|count| *count > 0) {
            for (symbol, &f) in table.freqs.iter().enumerate() {
                prop_assert_eq!(f > 0, counts.get(symbol).is_some_and(|count| *count > 0));
            }
        }
    }

    #[test]
    fn costs_are_within_their_bound(counts in histogram()) {
        let table = Table::from_counts(&counts);
        let total: f64 = counts.iter().copied().map(f64::from).sum();
        let (cost, exact) = (table.cost_bits(&counts) as f64, exact_cost(&table.freqs, &counts));
        prop_assert!(cost > exact * (1.0 - 1e-12) - 1.0 && cost <= exact * (1.0 + 1e-12) + total / 65536.0);
    }

    #[test]
    fn tables_survive_the_round_trip(counts in histogram(), more in 0_usize..20) {
        let table = Table::from_counts(&counts);
        let alphabet = (counts.len() + more).min(MAX_ALPHABET);
        let bytes = written(&table, alphabet);
        let mut reader = BitReader::new(&bytes);
        prop_assert_eq!(Table::read(&mut reader, alphabet), Some(table.clone()));
        prop_assert_eq!(reader.position(), table.table_bits(alphabet));
        for len in 0..bytes.len() {
            prop_assert_eq!(Table::read(&mut BitReader::new(&bytes[..len]), alphabet), None);
        }
    }

    #[test]
    fn any_bytes_are_a_sound_table_or_none(
        bytes in prop::collection::vec(any::<u8>(), 0..60),
        alphabet in 0_usize..300,
    ) {
        if let Some(table) = Table::read(&mut BitReader::new(&bytes), alphabet) {
            prop_assert_eq!(table.freqs.iter().copied().map(usize::from).sum::<usize>(), SLOTS);
            prop_assert!(table.freqs[alphabet..].iter().all(|&f| f == 0));
            prop_assert!(lookup(&table).iter().all(|&slot| table.freqs[(slot & 0xff) as usize] > 0));
        }
    }
}
