//! Levels of few bits, packed.

/// Fields carry the sign in this bit.
pub(crate) const FIELD_SIGN: u8 = 0x80;

#[inline(always)]
pub(in crate::kernels) fn pack_nibbles(fields: &[[u8; 2]], out: &mut [u8]) {
    let nibble = |field: u8| field & 7 | field >> 4 & 8;
    out.iter_mut().zip(fields).for_each(|(out, &[low, high])| *out = nibble(low) | nibble(high) << 4);
}

#[inline(always)]
pub(in crate::kernels) fn add_nibbles(packed: &[u8], scale: f32, weight: f32, acc: &mut [[f32; 2]]) {
    let value = |nibble: u32| {
        let magnitude = scale * (nibble & 7) as f32;
        f32::from_bits(magnitude.to_bits() | (nibble & 8) << 28)
    };
    for (acc, &byte) in acc.iter_mut().zip(packed) {
        acc[0] += weight * value(u32::from(byte));
        acc[1] += weight * value(u32::from(byte) >> 4);
    }
}

#[inline(always)]
pub(in crate::kernels) fn add_bytes(fields: &[u8], scale: f32, weight: f32, acc: &mut [f32]) {
    for (acc, &field) in acc.iter_mut().zip(fields) {
        let magnitude = scale * f32::from(field & !FIELD_SIGN);
        *acc += weight * f32::from_bits(magnitude.to_bits() | u32::from(field & FIELD_SIGN) << 24);
    }
}

/// The bits of a byte that a field of `bits` bits keeps: the level, and the sign in the highest one.
pub(in crate::kernels) fn field_mask(bits: u32) -> u8 {
    FIELD_SIGN | ((1 << (bits - 1)) - 1)
}

/// Eight fields of `bits` bits in a row, the first lowest.
pub(in crate::kernels) fn pack_eight(fields: [u8; 8], bits: u32) -> u64 {
    let packed = |field: u8| field & field_mask(bits) & !FIELD_SIGN | field >> 7 << (bits - 1);
    fields.iter().rev().fold(0, |word, &field| word << bits | u64::from(packed(field)))
}

/// Reverses [`pack_eight`]: eight fields of a byte each.
pub(in crate::kernels) fn unpack_eight(word: u64, bits: u32) -> [u8; 8] {
    let field = |i: usize| (word >> (bits as usize * i)) as u8 & ((1u16 << bits) - 1) as u8;
    core::array::from_fn(|i| field(i) & field_mask(bits) & !FIELD_SIGN | field(i) >> (bits - 1) << 7)
}

/// Weights of five base-3 digits, the highest first. The first coordinate has the lowest weight. In a product
/// with five bytes, each below 3, the weighted digits add up in byte 4, and the bytes below it carry nothing
/// into it.
const DIGIT_WEIGHTS: u64 = u64::from_le_bytes([81, 27, 9, 3, 1, 0, 0, 0]);

/// Five base-3 digits a byte: 0, 1 for +1, 2 for −1.
#[inline(always)]
pub(in crate::kernels) fn pack_ternary(fields: &[u8], out: &mut [u8]) {
    let (fives, few) = fields.as_chunks::<5>();
    let byte = |[a, b, c, d, e]: [u8; 5]| {
        let fields = u64::from_le_bytes([a, b, c, d, e, 0, 0, 0]);
        let digits = fields & LOWEST_BITS;
        // A level of 1 with its sign set counts twice.
        let digits = digits + (digits & fields >> 7);
        (digits.wrapping_mul(DIGIT_WEIGHTS) >> 32) as u8
    };
    out.iter_mut().zip(fives).for_each(|(out, &five)| *out = byte(five));
    if let Some(last) = out.get_mut(fives.len()) {
        let mut five = [0; 5];
        five[..few.len()].copy_from_slice(few);
        *last = byte(five);
    }
}

/// The lowest bit of every byte.
const LOWEST_BITS: u64 = 0x0101_0101_0101_0101;

/// The five fields of every byte of [`pack_ternary`], and three unused bytes.
static FIVE_FIELDS: [[u8; 8]; 256] = {
    let mut table = [[0; 8]; 256];
    let mut i = 0;
    while i < 243 * 5 {
        let (byte, place) = (i / 5, i % 5);
        let digit = byte / 3usize.pow(place as u32) % 3;
        table[byte][place] = [0, 1, FIELD_SIGN | 1][digit];
        i += 1;
    }
    table
};

#[inline(always)]
pub(in crate::kernels) fn unpack_ternary(bytes: &[u8], fields: &mut [u8]) {
    for (fields, &byte) in fields.chunks_mut(5).zip(bytes) {
        let five = &FIVE_FIELDS[usize::from(byte)];
        match fields.first_chunk_mut::<5>() {
            Some(fields) => *fields = [five[0], five[1], five[2], five[3], five[4]],
            None => fields.copy_from_slice(&five[..fields.len()]),
        }
    }
}
