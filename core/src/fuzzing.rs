//! Laws of parts that no public function reaches alone, for the fuzz targets. Compiled only under
//! `cfg(fuzzing)`.

use crate::bits::{BitReader, BitWriter};
use crate::coding::entropy::section::{CodedSymbols, SLOT_WORDS, max_section_bytes, write_symbols};
use crate::coding::entropy::{elias, rans};
use crate::kernels::{self, Bucket, CANDIDATE_SLACK, Candidates, Isa, Sums};
use crate::wire::reader::Reader;
use crate::wire::writer::Writer;
use crate::{Source, StepKey};
use alloc::{vec, vec::Vec};

/// Any bits decode to values in range; coded values decode to themselves.
pub fn bits_and_entropy(data: &[u8]) {
    let Some((&first, data)) = data.split_first() else { return };
    let max = u32::from(first) + 1;
    let mut bits = BitReader::new(data);
    while bits.remaining() > 0 {
        assert!((1..=max).contains(&elias::take(&mut bits, max)));
    }
    let alphabet = usize::from(first) + 1;
    if let Some(table) = rans::Table::read(&mut BitReader::new(data), alphabet) {
        decode_anything(&table, data, alphabet);
    }
    let symbols: Vec<u8> = data.iter().map(|&byte| byte.min(first)).collect();
    round_trip(&symbols, alphabet);
    elias_round_trip(&symbols);
}

fn decode_anything(table: &rans::Table, data: &[u8], alphabet: usize) {
    let mut slots = vec![0; rans::SLOTS];
    let Some(slots) = slots.first_chunk_mut() else { return };
    table.fill_lookup(slots);
    for lanes_log2 in 0..=rans::MAX_LANES_LOG2 {
        let mut decoded = vec![0; data.len() + 40];
        rans::Decoder::new(Isa::best(), data, lanes_log2).decode_into(slots, &mut decoded);
        assert!(decoded.iter().all(|&symbol| usize::from(symbol) < alphabet));
    }
}

fn round_trip(symbols: &[u8], alphabet: usize) {
    let mut out = vec![0xa5; max_section_bytes(symbols.len(), alphabet).unwrap_or(0)];
    let mut writer = Writer::new(&mut out);
    assert!(write_symbols(symbols, alphabet, usize::MAX, &mut writer));
    let len = writer.len();
    let mut reader = Reader::new(&out[..len]);
    let coded = CodedSymbols::fields(symbols.len(), &mut reader).expect("a section was written");
    let mut slots = vec![0; SLOT_WORDS];
    coded.check(alphabet, &mut slots).expect("a valid section was written");
    let mut decoded = Vec::new();
    coded.for_each(alphabet, &slots, |symbol| decoded.push(symbol));
    assert_eq!(decoded, symbols);
}

fn elias_round_trip(symbols: &[u8]) {
    // 127 levels of either sign, and 0.
    let symbols: Vec<u8> = symbols.iter().map(|&symbol| symbol.min(254)).collect();
    let mut out = vec![0xa5; symbols.len() * 2 + 8];
    let mut writer = BitWriter::new(&mut out);
    elias::put_symbols(&mut writer, &symbols);
    let len = writer.finish().expect("a code of a symbol takes at most 16 bits");
    let mut decoded = vec![0; symbols.len()];
    elias::take_symbols(&mut BitReader::new(&out[..len]), 127, &mut decoded);
    assert_eq!(decoded, symbols);
}

/// Every kernel that this machine has gives the bits of the plain loop, for any finite input.
pub fn scalar_vs_simd(data: &[u8]) {
    let (words, _) = data.as_chunks::<4>();
    let values = words.iter().map(|&word| f32::from_le_bytes(word)).filter(|value| value.is_finite());
    let values: Vec<f32> = values.map(|value| value * 0.25).collect();
    let (grad, residual) = values.split_at(values.len() / 2);
    let residual = &residual[..grad.len()];
    let expected = everything(Isa::Baseline, grad, residual);
    for isa in Isa::available() {
        assert!(everything(isa, grad, residual) == expected, "{isa:?}");
    }
}

/// Everything the kernels make of an input, as bytes.
fn everything(isa: Isa, grad: &[f32], residual: &[f32]) -> Vec<u32> {
    let mut all = Vec::new();
    let mut p = vec![0; grad.len()];
    all.push(kernels::add_to(isa, residual, grad, &mut p));
    all.extend(&p);
    let least = p.first().map_or(1, |bits| bits & 0x7fff_ffff);
    let mut parts = [vec![0; p.len() + CANDIDATE_SLACK], vec![0; p.len() + CANDIDATE_SLACK]];
    let [indices, values] = &mut parts;
    let mut candidates = Candidates { indices, values, len: 0 };
    let mut sum = residual.to_vec();
    all.push(kernels::keep_from(isa, grad, Sums::InPlace(&mut sum), 0, least, &mut candidates));
    all.extend(sum.iter().map(|value| value.to_bits()));
    let (kept, max) = (candidates.len, all[all.len() - 1 - sum.len()]);
    for non_temporal in [false, true] {
        let mut p = vec![f32::NAN; sum.len()];
        candidates.len = 0;
        let beside = Sums::Beside { residual, p: &mut p, non_temporal };
        assert_eq!(kernels::keep_from(isa, grad, beside, 0, least, &mut candidates), max);
        assert_eq!((kernels::bits_of(&p), candidates.len), (kernels::bits_of(&sum), kept));
    }
    parts.iter().for_each(|part| all.extend(&part[..kept]));
    let mut squares = [0.0; 8];
    kernels::add_squares(isa, &p, &mut squares);
    kernels::add_values(isa, &p, &mut squares);
    all.extend(squares.iter().map(|sum: &f64| sum.to_bits() as u32));
    let norm = f32::from_bits(kernels::max_magnitude(isa, &p)).max(f32::MIN_POSITIVE * 1e9);
    let bucket = Bucket { first: 8, inverse: 7.0 / norm, scale: norm / 7.0, levels: 7 };
    let stream = StepKey { seed: 1, step: 2, source: Source::Rank(3) }.stream(4);
    for stream in [None, Some(&stream)] {
        let mut fields = vec![0; p.len()];
        kernels::quantize(isa, &p, &bucket, stream, &mut fields);
        all.extend(fields.iter().map(|&field| u32::from(field)));
        for bits in 4..=8 {
            let mut packed = vec![0xa5; (fields.len() * bits as usize).div_ceil(8)];
            kernels::pack_fields(isa, bits, &fields, &mut packed);
            let mut unpacked = vec![0xa5; fields.len()];
            kernels::unpack_fields(isa, bits, &packed, &mut unpacked);
            assert_eq!(unpacked, fields);
            all.extend(packed.iter().map(|&byte| u32::from(byte)));
        }
        let mut kept = vec![0.0; p.len()];
        kernels::keep_rounding(isa, &p, &fields, bucket.scale, &mut kept);
        all.extend(kept.iter().map(|value| value.to_bits()));
    }
    let mut gaps = [0; kernels::TALLIED];
    gaps.iter_mut().zip(&p).for_each(|(gap, bits)| *gap = bits >> 8);
    let (mut blocks, mut tally) = (kernels::TurnBlocks::default(), kernels::BlockTally::new());
    kernels::best_blocks(isa, &gaps, p.len().min(gaps.len()), &mut blocks);
    kernels::tally_blocks(isa, &blocks, &mut tally);
    all.extend(tally.finish().iter().flat_map(|bits| [bits.lows as u32, bits.highs as u32]));
    all
}
