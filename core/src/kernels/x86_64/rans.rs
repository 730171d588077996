//! Rounds of interleaved rANS: all 32 lanes take a step together. The scalar coder of `entropy::rans` defines
//! the bytes; lanes take and leave words in ascending order, as it does.

use crate::kernels::isa::Isa;
use crate::kernels::scalar::rans::{Entries, LOWER, Lanes, PRESENT, ROUND, SCALE_BITS, SLOTS};
use core::arch::x86_64::*;

/// Most bytes of words that a round takes or leaves.
const ROUND_BYTES: usize = 2 * ROUND;

const SLOT_MASK: i32 = SLOTS as i32 - 1;

/// Symbols of the largest alphabet whose entries fit registers.
const FEW: usize = 16;

/// Decodes the first rounds of `out`, as long as the words cannot run out within a round. Returns the number
/// of rounds decoded, and updates `taken`, the number of bytes of `words` used so far.
///
/// # Panics
/// When `isa` is the baseline.
pub(crate) fn decode(
    isa: Isa,
    slots: &[u32; SLOTS],
    states: &mut Lanes,
    words: &[u8],
    taken: &mut usize,
    out: &mut [[u8; ROUND]],
) -> usize {
    match isa {
        // SAFETY: `Isa` names an instruction set only where the machine has it.
        Isa::Avx512 => unsafe { decode_avx512(slots, states, words, taken, out) },
        // SAFETY: as above.
        Isa::Avx2 => unsafe { decode_avx2(slots, states, words, taken, out) },
        Isa::Baseline => unreachable!("the baseline has no vectors of 32 lanes"),
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,popcnt")]
fn decode_avx512(
    slots: &[u32; SLOTS],
    states: &mut Lanes,
    words: &[u8],
    taken: &mut usize,
    out: &mut [[u8; ROUND]],
) -> usize {
    // SAFETY: two vectors of sixteen lanes are the 32 lanes.
    let mut halves = unsafe {
        [_mm512_loadu_si512(states.as_ptr().cast()), _mm512_loadu_si512(states.as_ptr().add(16).cast())]
    };
    let mut done = 0;
    for symbols in out.iter_mut() {
        let Some(window) = words.get(*taken..).and_then(|rest| rest.first_chunk::<ROUND_BYTES>()) else {
            break;
        };
        let mut used = 0;
        for (half, x) in halves.iter_mut().enumerate() {
            let slot = _mm512_and_si512(*x, _mm512_set1_epi32(SLOT_MASK));
            // SAFETY: every index is below the number of slots.
            let slot = unsafe { _mm512_i32gather_epi32::<4>(slot, slots.as_ptr().cast()) };
            let freq = _mm512_add_epi32(_mm512_srli_epi32::<20>(slot), _mm512_set1_epi32(1));
            let place = _mm512_and_si512(_mm512_srli_epi32::<8>(slot), _mm512_set1_epi32(SLOT_MASK));
            let next = _mm512_mullo_epi32(freq, _mm512_srli_epi32::<SCALE_BITS>(*x));
            let next = _mm512_add_epi32(next, place);
            let short = _mm512_cmplt_epu32_mask(next, _mm512_set1_epi32(LOWER as i32));
            // SAFETY: the half before has used at most sixteen words, so sixteen more lie in the window; the
            // store fills half a round.
            unsafe {
                let words = _mm512_cvtepu16_epi32(_mm256_loadu_si256(window.as_ptr().add(used).cast()));
                let words = _mm512_maskz_expand_epi32(short, words);
                *x = _mm512_mask_or_epi32(next, short, _mm512_slli_epi32::<16>(next), words);
                _mm_storeu_si128(symbols.as_mut_ptr().add(16 * half).cast(), _mm512_cvtepi32_epi8(slot));
            }
            used += 2 * short.count_ones() as usize;
        }
        *taken += used;
        done += 1;
    }
    // SAFETY: as for the loads.
    unsafe {
        _mm512_storeu_si512(states.as_mut_ptr().cast(), halves[0]);
        _mm512_storeu_si512(states.as_mut_ptr().add(16).cast(), halves[1]);
    }
    done
}

#[target_feature(enable = "avx2,popcnt")]
fn decode_avx2(
    slots: &[u32; SLOTS],
    states: &mut Lanes,
    words: &[u8],
    taken: &mut usize,
    out: &mut [[u8; ROUND]],
) -> usize {
    let mut quarters = load_quarters(states);
    let mut done = 0;
    for symbols in out.iter_mut() {
        let Some(window) = words.get(*taken..).and_then(|rest| rest.first_chunk::<ROUND_BYTES>()) else {
            break;
        };
        let mut used = 0;
        let mut decoded = [_mm256_setzero_si256(); 4];
        for (x, decoded) in quarters.iter_mut().zip(&mut decoded) {
            let slot = _mm256_and_si256(*x, _mm256_set1_epi32(SLOT_MASK));
            // SAFETY: every index is below the number of slots.
            let slot = unsafe { _mm256_i32gather_epi32::<4>(slots.as_ptr().cast(), slot) };
            let freq = _mm256_add_epi32(_mm256_srli_epi32::<20>(slot), _mm256_set1_epi32(1));
            let place = _mm256_and_si256(_mm256_srli_epi32::<8>(slot), _mm256_set1_epi32(SLOT_MASK));
            let next = _mm256_mullo_epi32(freq, _mm256_srli_epi32::<{ SCALE_BITS as i32 }>(*x));
            let next = _mm256_add_epi32(next, place);
            // States stay below 2³², so only those below 2¹⁶ have no upper half.
            let is_short = _mm256_cmpeq_epi32(_mm256_srli_epi32::<16>(next), _mm256_setzero_si256());
            let short = _mm256_movemask_ps(_mm256_castsi256_ps(is_short)) as usize;
            // SAFETY: the quarters before have used at most eight words each, so eight more lie in the
            // window.
            let words = unsafe { _mm_loadu_si128(window.as_ptr().add(used).cast()) };
            let words = _mm256_permutevar8x32_epi32(_mm256_cvtepu16_epi32(words), indices(EXPAND[short]));
            let refilled = _mm256_or_si256(_mm256_slli_epi32::<16>(next), words);
            *x = _mm256_blendv_epi8(next, refilled, is_short);
            *decoded = _mm256_and_si256(slot, _mm256_set1_epi32(0xff));
            used += 2 * short.count_ones() as usize;
        }
        store_symbols(decoded, symbols);
        *taken += used;
        done += 1;
    }
    store_quarters(quarters, states);
    done
}

/// For each mask of eight lanes, one byte a lane: which of the next words a lane of the mask takes.
const EXPAND: [u64; 256] = {
    let mut table = [0; 256];
    let mut i = 0;
    while i < 256 * 8 {
        let (mask, lane) = (i / 8, i % 8);
        let before = (mask & ((1usize << lane) - 1)).count_ones() as u64;
        table[mask] |= before << (8 * lane);
        i += 1;
    }
    table
};

/// For each mask of eight lanes, the numbers of its lanes in order, packed to the end of eight places.
const GATHER_LAST: [u64; 256] = {
    let mut table = [0; 256];
    let mut i = 0;
    while i < 256 * 8 {
        let (mask, lane) = (i / 8, i % 8);
        if mask >> lane & 1 == 1 {
            let behind = (mask as u64 >> lane >> 1).count_ones() as u64;
            table[mask] |= (lane as u64) << (8 * (7 - behind));
        }
        i += 1;
    }
    table
};

/// Eight indices of a byte each, as a vector.
#[target_feature(enable = "avx2")]
fn indices(bytes: u64) -> __m256i {
    _mm256_cvtepu8_epi32(_mm_cvtsi64_si128(bytes as i64))
}

#[target_feature(enable = "avx2")]
fn load_quarters(states: &Lanes) -> [__m256i; 4] {
    // SAFETY: four vectors of eight lanes are the 32 lanes.
    unsafe {
        [
            _mm256_loadu_si256(states.as_ptr().cast()),
            _mm256_loadu_si256(states.as_ptr().add(8).cast()),
            _mm256_loadu_si256(states.as_ptr().add(16).cast()),
            _mm256_loadu_si256(states.as_ptr().add(24).cast()),
        ]
    }
}

#[target_feature(enable = "avx2")]
fn store_quarters(quarters: [__m256i; 4], states: &mut Lanes) {
    for (quarter, x) in quarters.into_iter().enumerate() {
        // SAFETY: four vectors of eight lanes are the 32 lanes.
        unsafe { _mm256_storeu_si256(states.as_mut_ptr().add(8 * quarter).cast(), x) };
    }
}

/// The low bytes of four vectors, in order.
#[target_feature(enable = "avx2")]
fn store_symbols([a, b, c, d]: [__m256i; 4], symbols: &mut [u8; ROUND]) {
    // Packing works within halves of a vector: groups of four come out as 0, 2, 4, 6, 1, 3, 5, 7.
    let packed = _mm256_packus_epi16(_mm256_packus_epi32(a, b), _mm256_packus_epi32(c, d));
    let packed = _mm256_permutevar8x32_epi32(packed, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
    // SAFETY: a round has 32 symbols.
    unsafe { _mm256_storeu_si256(symbols.as_mut_ptr().cast(), packed) };
}

/// Encodes rounds from the last to the first into words that end with the first `free` bytes of `out`, while
/// there is room for the words of a whole round. Returns how many rounds remain to be encoded, and updates
/// `free`.
///
/// `seen` keeps the bits that the entries of all symbols have in common.
///
/// # Panics
/// When `isa` is the baseline.
pub(crate) fn encode(
    isa: Isa,
    rounds: &[[u8; ROUND]],
    entries: &Entries,
    states: &mut Lanes,
    seen: &mut u32,
    out: &mut [u8],
    free: &mut usize,
) -> usize {
    let few = entries[FEW..].iter().all(|entry| entry[1] & PRESENT == 0);
    // SAFETY: `Isa` names an instruction set only where the machine has it.
    unsafe {
        match (isa, few) {
            (Isa::Avx512, true) => encode_avx512::<true>(rounds, entries, states, seen, out, free),
            (Isa::Avx512, false) => encode_avx512::<false>(rounds, entries, states, seen, out, free),
            (Isa::Avx2, true) => encode_avx2::<true>(rounds, entries, states, seen, out, free),
            (Isa::Avx2, false) => encode_avx2::<false>(rounds, entries, states, seen, out, free),
            (Isa::Baseline, _) => unreachable!("the baseline has no vectors of 32 lanes"),
        }
    }
}

/// With `FEW`, only the first sixteen entries are present, and are held in registers.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,popcnt")]
fn encode_avx512<const FEW_SYMBOLS: bool>(
    rounds: &[[u8; ROUND]],
    entries: &Entries,
    states: &mut Lanes,
    seen: &mut u32,
    out: &mut [u8],
    free: &mut usize,
) -> usize {
    // SAFETY: two vectors of sixteen lanes are the 32 lanes; an entry is two words, and there are more than
    // sixteen.
    let (mut halves, low, high) = unsafe {
        let states = states.as_ptr();
        let entries: *const i32 = entries.as_ptr().cast();
        (
            [_mm512_loadu_si512(states.cast()), _mm512_loadu_si512(states.add(16).cast())],
            _mm512_loadu_si512(entries.cast()),
            _mm512_loadu_si512(entries.add(16).cast()),
        )
    };
    let even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    let odd = _mm512_add_epi32(even, _mm512_set1_epi32(1));
    let reciprocals = _mm512_permutex2var_epi32(low, even, high);
    let packeds = _mm512_permutex2var_epi32(low, odd, high);
    let mut all = _mm512_set1_epi32(-1);
    let mut any_symbol = _mm512_setzero_si512();
    let mut left = rounds.len();
    for round in rounds.iter().rev() {
        if *free < ROUND_BYTES {
            break;
        }
        for half in [1, 0] {
            let x = halves[half];
            // SAFETY: half a round has sixteen symbols.
            let symbols = unsafe { _mm_loadu_si128(round.as_ptr().add(16 * half).cast()) };
            let symbols = _mm512_cvtepu8_epi32(symbols);
            let (reciprocal, packed) = if FEW_SYMBOLS {
                any_symbol = _mm512_or_si512(any_symbol, symbols);
                (_mm512_permutexvar_epi32(symbols, reciprocals), _mm512_permutexvar_epi32(symbols, packeds))
            } else {
                // SAFETY: a symbol is a byte, there are 256 entries of eight bytes.
                unsafe {
                    let entries: *const i32 = entries.as_ptr().cast();
                    (
                        _mm512_i32gather_epi32::<8>(symbols, entries),
                        _mm512_i32gather_epi32::<8>(symbols, entries.add(1)),
                    )
                }
            };
            all = _mm512_and_si512(all, packed);
            let full = _mm512_cmpgt_epu32_mask(x, _mm512_or_si512(packed, _mm512_set1_epi32(0xf_ffff)));
            let words = _mm512_cvtepi32_epi16(_mm512_maskz_compress_epi32(full, x));
            let count = full.count_ones();
            *free -= 2 * count as usize;
            // SAFETY: `free` was at least the bytes of a round, so the words of both halves lie inside `out`.
            unsafe {
                let kept = ((1u32 << count) - 1) as __mmask16;
                _mm256_mask_storeu_epi16(out.as_mut_ptr().add(*free).cast(), kept, words);
            }
            let x = _mm512_mask_srli_epi32::<16>(x, full, x);
            let quotient = quotients_avx512(x, reciprocal, packed);
            let start = _mm512_and_si512(packed, _mm512_set1_epi32(SLOT_MASK));
            let others = _mm512_andnot_si512(packed, _mm512_set1_epi32(-1));
            let others = _mm512_srli_epi32::<20>(others);
            let next = _mm512_add_epi32(x, start);
            halves[half] = _mm512_add_epi32(next, _mm512_mullo_epi32(quotient, others));
        }
        left -= 1;
    }
    // SAFETY: as for the loads.
    unsafe {
        _mm512_storeu_si512(states.as_mut_ptr().cast(), halves[0]);
        _mm512_storeu_si512(states.as_mut_ptr().add(16).cast(), halves[1]);
    }
    *seen &= _mm512_reduce_and_epi32(all) as u32;
    if _mm512_reduce_or_epi32(any_symbol) as usize >= FEW {
        *seen = 0;
    }
    left
}

/// x / f in sixteen lanes, see [`Entries`]: the products have 64 bits, so even and odd lanes take turns.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn quotients_avx512(x: __m512i, reciprocal: __m512i, packed: __m512i) -> __m512i {
    let shift_mask = _mm512_set1_epi64(63);
    let x_odd = _mm512_srli_epi64::<32>(x);
    let even = _mm512_mul_epu32(x, reciprocal);
    let odd = _mm512_mul_epu32(x_odd, _mm512_srli_epi64::<32>(reciprocal));
    let even = _mm512_add_epi64(even, _mm512_slli_epi64::<32>(x));
    let odd = _mm512_add_epi64(odd, _mm512_slli_epi64::<32>(x_odd));
    let even = _mm512_srlv_epi64(even, _mm512_and_si512(_mm512_srli_epi64::<12>(packed), shift_mask));
    let odd = _mm512_srlv_epi64(odd, _mm512_and_si512(_mm512_srli_epi64::<44>(packed), shift_mask));
    _mm512_mask_blend_epi32(0xaaaa, even, _mm512_slli_epi64::<32>(odd))
}

/// As [`encode_avx512`].
#[target_feature(enable = "avx2,popcnt")]
fn encode_avx2<const FEW_SYMBOLS: bool>(
    rounds: &[[u8; ROUND]],
    entries: &Entries,
    states: &mut Lanes,
    seen: &mut u32,
    out: &mut [u8],
    free: &mut usize,
) -> usize {
    let mut quarters = load_quarters(states);
    let few = few_entries(entries);
    let mut all = _mm256_set1_epi32(-1);
    let mut any_symbol = _mm256_setzero_si256();
    let mut left = rounds.len();
    for round in rounds.iter().rev() {
        if *free < ROUND_BYTES {
            break;
        }
        for quarter in [3, 2, 1, 0] {
            let x = quarters[quarter];
            // SAFETY: a quarter of a round has eight symbols.
            let symbols = unsafe { _mm_loadl_epi64(round.as_ptr().add(8 * quarter).cast()) };
            let symbols = _mm256_cvtepu8_epi32(symbols);
            let (reciprocal, packed) = if FEW_SYMBOLS {
                any_symbol = _mm256_or_si256(any_symbol, symbols);
                (pick(symbols, few[0], few[1]), pick(symbols, few[2], few[3]))
            } else {
                // SAFETY: a symbol is a byte, there are 256 entries of eight bytes.
                unsafe {
                    let entries: *const i32 = entries.as_ptr().cast();
                    (
                        _mm256_i32gather_epi32::<8>(entries, symbols),
                        _mm256_i32gather_epi32::<8>(entries.add(1), symbols),
                    )
                }
            };
            all = _mm256_and_si256(all, packed);
            // AVX2 has no unsigned comparison. A state is not full if the minimum of it and the bound is the
            // state.
            let bound = _mm256_or_si256(packed, _mm256_set1_epi32(0xf_ffff));
            let is_not_full = _mm256_cmpeq_epi32(_mm256_min_epu32(x, bound), x);
            let full = !_mm256_movemask_ps(_mm256_castsi256_ps(is_not_full)) as usize & 0xff;
            let lows = _mm256_and_si256(x, _mm256_set1_epi32(0xffff));
            let words = _mm256_permutevar8x32_epi32(lows, indices(GATHER_LAST[full]));
            let words = _mm_packus_epi32(_mm256_castsi256_si128(words), _mm256_extracti128_si256::<1>(words));
            // SAFETY: `free` was at least the bytes of a round, and each quarter before has taken at most its
            // share of them; the bytes stored before the words are overwritten or dropped.
            unsafe { _mm_storeu_si128(out.as_mut_ptr().add(*free - 16).cast(), words) };
            *free -= 2 * full.count_ones() as usize;
            let x = _mm256_blendv_epi8(_mm256_srli_epi32::<16>(x), x, is_not_full);
            let quotient = quotients_avx2(x, reciprocal, packed);
            let start = _mm256_and_si256(packed, _mm256_set1_epi32(SLOT_MASK));
            let others = _mm256_andnot_si256(packed, _mm256_set1_epi32(-1));
            let others = _mm256_srli_epi32::<20>(others);
            let next = _mm256_add_epi32(x, start);
            quarters[quarter] = _mm256_add_epi32(next, _mm256_mullo_epi32(quotient, others));
        }
        left -= 1;
    }
    store_quarters(quarters, states);
    let mut lanes = [[0u32; 8]; 2];
    // SAFETY: the arrays hold eight words each.
    unsafe {
        _mm256_storeu_si256(lanes[0].as_mut_ptr().cast(), all);
        _mm256_storeu_si256(lanes[1].as_mut_ptr().cast(), any_symbol);
    }
    *seen = lanes[0].iter().fold(*seen, |seen, lane| seen & lane);
    if lanes[1].iter().any(|&lane| lane as usize >= FEW) {
        *seen = 0;
    }
    left
}

/// The first sixteen entries: their reciprocals, and their packed fields, in two vectors each.
#[target_feature(enable = "avx2")]
fn few_entries(entries: &Entries) -> [__m256i; 4] {
    let mut words = [[0u32; 8]; 4];
    for (i, entry) in entries[..FEW].iter().enumerate() {
        words[i / 8][i % 8] = entry[0];
        words[2 + i / 8][i % 8] = entry[1];
    }
    // SAFETY: the arrays hold eight words each.
    words.map(|words| unsafe { _mm256_loadu_si256(words.as_ptr().cast()) })
}

/// Element `index` of sixteen, the first eight in `low`.
#[target_feature(enable = "avx2")]
fn pick(index: __m256i, low: __m256i, high: __m256i) -> __m256i {
    let low = _mm256_castsi256_ps(_mm256_permutevar8x32_epi32(low, index));
    let high = _mm256_castsi256_ps(_mm256_permutevar8x32_epi32(high, index));
    // The sign of a lane selects, and bit 3 of the index moves there.
    let is_high = _mm256_castsi256_ps(_mm256_slli_epi32::<28>(index));
    _mm256_castps_si256(_mm256_blendv_ps(low, high, is_high))
}

/// As [`quotients_avx512`], in eight lanes.
#[target_feature(enable = "avx2")]
fn quotients_avx2(x: __m256i, reciprocal: __m256i, packed: __m256i) -> __m256i {
    let shift_mask = _mm256_set1_epi64x(63);
    let x_odd = _mm256_srli_epi64::<32>(x);
    let even = _mm256_mul_epu32(x, reciprocal);
    let odd = _mm256_mul_epu32(x_odd, _mm256_srli_epi64::<32>(reciprocal));
    let even = _mm256_add_epi64(even, _mm256_slli_epi64::<32>(x));
    let odd = _mm256_add_epi64(odd, _mm256_slli_epi64::<32>(x_odd));
    let even = _mm256_srlv_epi64(even, _mm256_and_si256(_mm256_srli_epi64::<12>(packed), shift_mask));
    let odd = _mm256_srlv_epi64(odd, _mm256_and_si256(_mm256_srli_epi64::<44>(packed), shift_mask));
    _mm256_blend_epi32::<0xaa>(even, _mm256_slli_epi64::<32>(odd))
}
