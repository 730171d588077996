//! Streams: the definition, and what any bytes do.

use super::super::encode::entry;
use super::*;

#[test]
fn bytes_are_those_of_the_definition() {
    for n in LENGTHS {
        for alphabet in [1, 2, 3, 15, 255, 256] {
            let symbols = skewed(n, alphabet, n as u64);
            let table = Table::from_counts(&counts(&symbols));
            for lanes_log2 in 0..=MAX_LANES_LOG2 {
                let bytes = encoded(&symbols, &table, lanes_log2);
                assert_eq!(bytes, naive_encode(&symbols, &table, 1 << lanes_log2));
                assert_eq!(decoded(&bytes, &table, lanes_log2, n), (symbols.clone(), true));
            }
        }
    }
}

#[test]
fn a_small_stream_has_exactly_these_bytes() {
    let table = Table::from_counts(&[6, 2]);
    assert_eq!(table.freqs[..2], [3072, 1024]);
    // By hand: x = 2^16; symbol 1 (f = 1024, c = 3072): 64·4096 + 3072 = 265216; symbol 0 (f = 3072, c =
    // 0): 86·4096 + 1024 = 353280.
    let bytes = encoded(&[0, 1], &table, 0);
    assert_eq!(bytes, 353_280_u32.to_le_bytes());
    assert_eq!(decoded(&bytes, &table, 0, 2), (vec![0, 1], true));
}

#[test]
fn the_smallest_buffer_is_enough_and_one_byte_less_is_not() {
    for (n, alphabet) in [(0, 1), (1, 2), (2, 100), (5, 9), (33, 100), (600, 100), (600, 15)] {
        let symbols = skewed(n, alphabet, 3);
        let table = Table::from_counts(&counts(&symbols));
        for lanes_log2 in 0..=MAX_LANES_LOG2 {
            let bytes = encoded(&symbols, &table, lanes_log2);
            let mut out = vec![0; bytes.len()];
            for isa in Isa::available() {
                assert_eq!(encode(isa, &symbols, &table, lanes_log2, &mut out), Some(bytes.len()));
                assert_eq!(out, bytes);
                for room in 0..bytes.len() {
                    assert_eq!(encode(isa, &symbols, &table, lanes_log2, &mut out[..room]), None);
                }
            }
        }
    }
}

#[test]
fn a_message_of_one_symbol_is_states_only() {
    for lanes_log2 in 0..=MAX_LANES_LOG2 {
        let symbols = [7; 1000];
        let table = Table::from_counts(&counts(&symbols));
        assert_eq!((table.freqs[7], table.cost_bits(&counts(&symbols))), (4096, 0));
        let bytes = encoded(&symbols, &table, lanes_log2);
        assert_eq!(bytes, LOWER.to_le_bytes().repeat(1 << lanes_log2));
        assert_eq!(decoded(&bytes, &table, lanes_log2, 1000), (symbols.to_vec(), true));
    }
}

#[test]
fn an_empty_message_is_initial_states() {
    for counts in [&[][..], &[0; 5], &[0; 256]] {
        let table = Table::from_counts(counts);
        assert_eq!(table.freqs[0], 4096);
        let bytes = encoded(&[], &table, 2);
        assert_eq!(bytes, LOWER.to_le_bytes().repeat(4));
        assert_eq!(decoded(&bytes, &table, 2, 0), (vec![], true));
    }
}

#[test]
fn a_symbol_without_slots_is_an_error() {
    let table = Table::from_counts(&[3, 0, 2]);
    let mut last = [0; 100];
    last[70] = 1;
    for symbols in [&[1][..], &[0, 2, 1, 0], &[200; 100], &[16; 100], &last] {
        for isa in Isa::available() {
            assert_eq!(encode(isa, symbols, &table, 2, &mut [0; 500]), None);
            assert_eq!(encode(isa, symbols, &table, MAX_LANES_LOG2, &mut [0; 500]), None);
        }
    }
}

#[test]
fn quotients_are_exact_for_every_frequency() {
    for f in 1..=SLOTS as u16 {
        let [reciprocal, packed] = entry(f, 0);
        let f = u64::from(f);
        let check = |x: u64| {
            let product = (x << 32) + x * u64::from(reciprocal);
            assert_eq!(product.wrapping_shr(packed >> 12), x / f, "{x} / {f}");
        };
        let top = f << 20;
        (0..200).for_each(|i| check(top - 1 - i % f));
        // Just below and at multiples of f, where a reciprocal that is off shows first.
        (1..200).map(|i| i * (top / f / 200) * f).for_each(|x| [x, x - 1].into_iter().for_each(check));
    }
}

#[test]
fn streams_are_as_long_as_their_cost_says() {
    for (n, alphabet) in [(100, 3), (5000, 15), (20_000, 255), (200_000, 31)] {
        let symbols = skewed(n, alphabet, 11);
        let counts = counts(&symbols);
        let table = Table::from_counts(&counts);
        let cost = table.cost_bits(&counts) as f64;
        for lanes_log2 in 0..=MAX_LANES_LOG2 {
            let lanes = f64::from(1 << lanes_log2);
            let bits = encoded(&symbols, &table, lanes_log2).len() as f64 * 8.0;
            assert!(bits >= 0.999 * cost + 16.0 * lanes - 1.0, "{n} {alphabet} {lanes} {cost} {bits}");
            assert!(bits <= 1.001 * cost + 32.0 * lanes + 1.0, "{n} {alphabet} {lanes} {cost} {bits}");
        }
    }
}

#[test]
fn most_damage_is_noticed() {
    let symbols = skewed(700, 15, 5);
    let table = Table::from_counts(&counts(&symbols));
    for lanes_log2 in [0, 2, 5] {
        let bytes = encoded(&symbols, &table, lanes_log2);
        for len in 0..bytes.len() {
            assert!(!decoded(&bytes[..len], &table, lanes_log2, 700).1, "cut to {len} bytes");
        }
        let flips = (0..8 * bytes.len()).filter(|bit| {
            let mut bytes = bytes.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            decoded(&bytes, &table, lanes_log2, 700).1
        });
        assert!(flips.count() * 1000 < 8 * bytes.len());
        let longer = [&bytes[..], &[0]].concat();
        assert!(!decoded(&longer, &table, lanes_log2, 700).1);
        assert!(!decoded(&[&longer[..], &[0]].concat(), &table, lanes_log2, 700).1);
    }
}

#[test]
fn states_cut_off_an_empty_message_are_noticed() {
    let table = Table::from_counts(&[1, 1]);
    let bytes = encoded(&[], &table, 5);
    for len in 0..bytes.len() {
        assert!(!decoded(&bytes[..len], &table, 5, 0).1);
    }
}

/// Sets the states directly, because no message is likely to bring a state to the bound.
#[test]
fn states_at_the_bound_are_renormalised_everywhere_alike() {
    let table = Table::from_counts(&[1000, 300, 70, 1, 9, 2]);
    let mut entries = [[0; 2]; MAX_ALPHABET];
    fill_entries(&mut entries, &table);
    let symbols: Vec<u8> = (0..32).map(|lane| lane % 6).collect();
    let stream = |isa| {
        let mut out = vec![0xa5; 500];
        let mut encoder = Encoder::new(isa, 128, MAX_LANES_LOG2, &mut out);
        for (lane, state) in encoder.states.iter_mut().enumerate() {
            *state = (u32::from(table.freqs[lane % 6]) << 20) - u32::from(lane % 4 < 2);
        }
        encoder.prepend(&symbols, &entries).unwrap();
        let len = encoder.finish().unwrap();
        out.truncate(len);
        out
    };
    Isa::available().for_each(|isa| assert_eq!(stream(isa), stream(Isa::Baseline), "{isa:?}"));
}

#[test]
fn tables_may_change_from_segment_to_segment() {
    let symbols = skewed(1000, 200, 9);
    let segments: Vec<&[u8]> = symbols.chunks(64).collect();
    let tables: Vec<Table> = segments.iter().map(|segment| Table::from_counts(&counts(segment))).collect();
    for (isa, lanes_log2) in Isa::available().flat_map(|isa| [0, 2, 3, 5].map(|lanes| (isa, lanes))) {
        let mut out = vec![0xa5; 2300];
        let mut encoder = Encoder::new(isa, symbols.len(), lanes_log2, &mut out);
        for (segment, table) in segments.iter().zip(&tables).rev() {
            let mut entries = [[1; 2]; MAX_ALPHABET];
            fill_entries(&mut entries, table);
            encoder.prepend(segment, &entries).unwrap();
        }
        let len = encoder.finish().unwrap();
        let mut decoder = Decoder::new(isa, &out[..len], lanes_log2);
        for (segment, table) in segments.iter().zip(&tables) {
            let mut decoded = vec![0xa5; segment.len()];
            decoder.decode_into(&lookup(table), &mut decoded);
            assert_eq!(decoded, *segment);
        }
        assert!(decoder.is_intact());
    }
}

proptest! {
    #[test]
    fn messages_survive_the_round_trip_in_blocks_of_any_size(
        n in prop::sample::select(&LENGTHS[..]),
        alphabet in 1_u64..=256,
        seed in any::<u64>(),
        lanes_log2 in 0..=MAX_LANES_LOG2,
        block in 1_usize..70,
    ) {
        let symbols = skewed(n, alphabet, seed);
        let table = Table::from_counts(&counts(&symbols));
        let bytes = encoded(&symbols, &table, lanes_log2);
        let mut clean = vec![0; 2 * n + 128];
        prop_assert_eq!(encode(Isa::best(), &symbols, &table, lanes_log2, &mut clean), Some(bytes.len()));
        prop_assert_eq!(&clean[..bytes.len()], &bytes[..]);
        let slots = lookup(&table);
        let mut decoder = Decoder::new(Isa::best(), &bytes, lanes_log2);
        let mut out = vec![0xa5; n];
        out.chunks_mut(block).for_each(|block| decoder.decode_into(&slots, block));
        prop_assert_eq!(out, symbols);
        prop_assert!(decoder.is_intact());
    }

    #[test]
    fn any_bytes_decode_as_the_definition_says(
        bytes in prop::collection::vec(prop_oneof![Just(0_u8), any::<u8>()], 0..300),
        counts in histogram(),
        lanes_log2 in 0..=MAX_LANES_LOG2,
        n in 0_usize..300,
    ) {
        let table = Table::from_counts(&counts);
        let (symbols, _) = decoded(&bytes, &table, lanes_log2, n);
        prop_assert_eq!(symbols, naive_decode(&bytes, &table, 1 << lanes_log2, n));
    }
}
