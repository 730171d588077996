//! Prefix codes for the few magnitudes of a small codebook: no states, and a table of three bits a magnitude.
//!
//! The section is a varint with its bytes, then one bit string: the length of the code of each magnitude in
//! three bits, and for each entry its sign and the code of its magnitude. Codes are canonical: shorter ones
//! first, then lower numbers; the first digit is the first bit.

use crate::bits::{BitReader, BitWriter, check_padding};
use crate::error::{DecodeError, Field};
use crate::wire::writer::{Writer, varint_len};

/// Largest codebook as a power of two: the longest code of eight magnitudes has seven digits.
pub(super) const MAX_LOG2: u32 = 3;

const MAX_MAGNITUDES: usize = 1 << MAX_LOG2;

/// Digits of the longest code.
const MAX_BITS: u32 = MAX_MAGNITUDES as u32 - 1;

/// Bits of a length.
const LENGTH_BITS: u32 = 3;

/// A complete prefix code; magnitudes with length 0 have none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Code {
    lengths: [u8; MAX_MAGNITUDES],
    magnitudes: usize,
}

impl Code {
    /// The code with the fewest bits for these counts; at least two of them are not 0.
    ///
    /// # Source
    /// Huffman, A Method for the Construction of Minimum-Redundancy Codes (Proceedings of the IRE 40, 1952).
    /// Among equal weights the node that was made first is joined first; magnitudes come first, in their
    /// order.
    pub(super) fn new(counts: &[u32]) -> Self {
        let magnitudes = counts.len();
        // A node is the set of magnitudes below it, and its weight; nodes without weight no longer take part.
        let mut nodes = [(0u64, 0u8); 2 * MAX_MAGNITUDES];
        for (i, &count) in counts.iter().enumerate() {
            nodes[i] = (u64::from(count), 1 << i);
        }
        let mut lengths = [0; MAX_MAGNITUDES];
        for made in magnitudes..2 * magnitudes {
            let Some(first) = lightest(&nodes[..made]) else { break };
            let (weight, set) = core::mem::take(&mut nodes[first]);
            let Some(second) = lightest(&nodes[..made]) else { break };
            let (other_weight, other_set) = core::mem::take(&mut nodes[second]);
            nodes[made] = (weight + other_weight, set | other_set);
            for (i, length) in lengths.iter_mut().enumerate() {
                *length += (set | other_set) >> i & 1;
            }
        }
        Self { lengths, magnitudes }
    }

    /// Reads the lengths, which must be those of a complete code.
    fn read(bits: &mut BitReader<'_>, log2: u32) -> Result<Self, DecodeError> {
        let (mut lengths, magnitudes) = ([0; MAX_MAGNITUDES], 1usize << log2.min(MAX_LOG2));
        for length in lengths.iter_mut().take(magnitudes) {
            *length = bits.take(LENGTH_BITS) as u8;
        }
        let share = |&length: &u8| if length > 0 { 1u32 << (MAX_BITS - u32::from(length)) } else { 0 };
        let is_complete = lengths.iter().map(share).sum::<u32>() == 1 << MAX_BITS;
        if is_complete {
            Ok(Self { lengths, magnitudes })
        } else {
            Err(DecodeError::InvalidField(Field::Table))
        }
    }

    /// Calls `f(magnitude, code, length)` for each code in ascending order; the first digit of a code is its
    /// lowest bit.
    fn for_each(&self, mut f: impl FnMut(usize, u32, u32)) {
        let mut next = 0u32;
        for length in 1..=MAX_BITS {
            next <<= 1;
            for (magnitude, _) in
                self.lengths.iter().enumerate().filter(|(_, own)| u32::from(**own) == length)
            {
                f(magnitude, next.reverse_bits() >> (32 - length), length);
                next += 1;
            }
        }
    }

    /// Bytes of a section with these counts, its length included.
    pub(super) fn section_bytes(&self, counts: &[u32]) -> usize {
        let bytes = self.body_bytes(counts);
        varint_len(bytes as u64) + bytes
    }

    fn body_bytes(&self, counts: &[u32]) -> usize {
        let codes = counts.iter().zip(&self.lengths);
        let bits: u64 = codes.map(|(&count, &length)| u64::from(count) * (u64::from(length) + 1)).sum();
        (bits + self.magnitudes as u64 * u64::from(LENGTH_BITS)).div_ceil(8) as usize
    }

    /// Writes the section; a symbol is magnitude number · 2 + sign.
    pub(super) fn write(&self, symbols: &[u8], counts: &[u32], writer: &mut Writer<'_>) {
        let bytes = self.body_bytes(counts);
        writer.varint(bytes as u64);
        let mut bits = BitWriter::new(writer.reserve(bytes));
        self.lengths[..self.magnitudes].iter().for_each(|&length| bits.put(u64::from(length), LENGTH_BITS));
        let mut codes = [(0, 0); 2 * MAX_MAGNITUDES];
        self.for_each(|magnitude, code, length| {
            for sign in 0..2 {
                codes[2 * magnitude + sign] = (u64::from(code) << 1 | sign as u64, length + 1);
            }
        });
        for &symbol in symbols {
            let (code, length) = codes[usize::from(symbol)];
            bits.put(code, length);
        }
        let complete = bits.finish().is_some();
        debug_assert!(complete, "the codes were measured before they were written");
    }

    /// Calls `f` with `k` symbols. Any bits decode.
    #[inline]
    fn decode(&self, bits: &mut BitReader<'_>, k: usize, mut f: impl FnMut(u8)) {
        // For the next bits, magnitude number · 2 and the length of the code that they begin with.
        let mut table = [(0, 0); 1 << MAX_BITS];
        self.for_each(|magnitude, code, length| {
            for above in 0..1 << (MAX_BITS - length) {
                table[(code | above << length) as usize] = (2 * magnitude as u8, length as u8);
            }
        });
        for _ in 0..k {
            let word = bits.peek();
            let (symbol, length) = table[(word >> 1 & ((1 << MAX_BITS) - 1)) as usize];
            bits.skip(u32::from(length) + 1);
            f(symbol | (word & 1) as u8);
        }
    }
}

/// The node of least weight that is not 0, the first of equals.
fn lightest(nodes: &[(u64, u8)]) -> Option<usize> {
    let weighed = nodes.iter().enumerate().filter(|(_, node)| node.0 > 0);
    weighed.min_by_key(|(_, node)| node.0).map(|(i, _)| i)
}

/// The section as received, without its length.
#[derive(Clone, Copy, Debug)]
pub(super) struct PrefixView<'a> {
    pub(super) k: usize,
    pub(super) log2: u32,
    pub(super) section: &'a [u8],
}

impl PrefixView<'_> {
    /// Checks that the code is complete, that all entries are there, and that the remaining bits are padding.
    /// After that any bits decode.
    pub(super) fn check(&self) -> Result<(), DecodeError> {
        let mut bits = BitReader::new(self.section);
        let code = Code::read(&mut bits, self.log2)?;
        code.decode(&mut bits, self.k, |_| {});
        let used = bits.position();
        let available = self.section.len() as u64 * 8;
        if used > available {
            let needed = used.div_ceil(8) as usize;
            return Err(DecodeError::Truncated { needed, actual: self.section.len() });
        }
        check_padding(self.section, used)
    }

    /// Calls `f` with each symbol in order.
    #[inline]
    pub(super) fn for_each(&self, f: impl FnMut(u8)) {
        let mut bits = BitReader::new(self.section);
        if let Ok(code) = Code::read(&mut bits, self.log2) {
            code.decode(&mut bits, self.k, f);
        }
    }
}
