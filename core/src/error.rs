//! What can go wrong while encoding and while decoding. Both errors are small, `Copy`, and carry no heap.

use core::fmt;

/// Why a gradient could not be encoded. Whatever the variant, codec and memory are as they were before the
/// call. The content of the output buffer is unspecified.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EncodeError {
    /// The output buffer holds `actual` bytes; the worst case of this codec and unit is `needed`.
    BufferTooSmall {
        /// Bytes that [`Gather::max_frame_bytes`](crate::Gather::max_frame_bytes) asks for.
        needed: usize,
        /// Bytes the caller lent.
        actual: usize,
    },
    /// The codec needs momentum, a state of each unit, or factors, and the memory lacks them.
    MemoryIncomplete,
    /// A memory was lent to a codec that cannot keep exactly what it does not send: stochastic QSGD, unbiased
    /// random-k.
    MemoryRefused,
    /// The codec has only rounds between all workers, and no frames.
    NoFrames,
    /// The codec's output cannot be cut into packets: it has no frames of ranges, or its index coder marks
    /// every coordinate.
    NoPackets,
    /// A packet must have room for `needed` bytes to be sure to hold a part of these units.
    PacketTooSmall {
        /// The smallest packet size that always suffices.
        needed: usize,
    },
    /// The gradient, or residual + gradient, is NaN or infinite at `index` of the flat gradient.
    NonFiniteInput {
        /// First offending coordinate, counted from the start of the layout.
        index: usize,
    },
    /// The scratch memory is smaller than [`Gather::scratch_len`](crate::Gather::scratch_len) asks for.
    ScratchTooSmall {
        /// What the codec needs.
        needed: crate::ScratchLen,
    },
    /// The [experiment](crate::experiments) refuses the values of a unit, or its own body of them.
    Experiment {
        /// Identifier of the unit.
        unit: u32,
        /// The coordinate that is to blame, counted from the start of the layout; the first of the unit if
        /// the experiment blames no single one.
        index: usize,
        /// The reason, from the experiment.
        why: &'static str,
    },
    /// The working memory of a linear codec's unit is smaller than
    /// [`Linear::round_scratch_len`](crate::Linear::round_scratch_len) asks for.
    LinearScratchTooSmall {
        /// What the unit needs.
        needed: crate::rounds::LinearScratchLen,
    },
    /// The codec needs a part that this build leaves out. The feature `full` adds it.
    NotBuilt,
    /// A unit, a message or a count does not fit the fields of the wire format.
    TooLarge,
    /// The units handed to one message are not ascending, overlap or reach beyond the layout; `unit` is the
    /// first.
    UnitOutOfOrder {
        /// Identifier of the offending unit.
        unit: u32,
    },
    /// The value at `index` is finite but too large for the narrow format it would be sent in.
    ValueOverflow {
        /// First offending coordinate, counted from the start of the layout.
        index: usize,
    },
}

impl fmt::Display for EncodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::BufferTooSmall { needed, actual } => {
                write!(f, "output buffer holds {actual} bytes, the worst case needs {needed}")
            }
            Self::MemoryIncomplete => f.write_str(
                "no memory, or one that lacks momentum, the state of a unit or factors, which this codec needs",
            ),
            Self::MemoryRefused => {
                f.write_str("this codec takes no memory: what it sends and keeps would not add up")
            }
            Self::NoFrames => {
                f.write_str("this codec has no frames: its payloads are sums of all workers, over all-reduce")
            }
            Self::NoPackets => f.write_str("what this codec sends cannot be cut into packets"),
            Self::PacketTooSmall { needed } => write!(f, "packet too small: {needed} bytes are needed"),
            Self::NonFiniteInput { index } => write!(f, "non-finite value at coordinate {index}"),
            Self::ScratchTooSmall { needed } => {
                write!(f, "scratch too small: {} words and {} bytes are needed", needed.words, needed.bytes)
            }
            Self::LinearScratchTooSmall { needed } => write!(
                f,
                "scratch too small: {} words, {} floats and {} integers are needed",
                needed.words, needed.floats, needed.ints
            ),
            Self::Experiment { unit, index, why } => {
                write!(f, "unit {unit} refused by the experiment, at coordinate {index}: {why}")
            }
            Self::NotBuilt => f.write_str("this codec needs the feature `full`, which this build leaves out"),
            Self::TooLarge => f.write_str("unit or message too large for the wire format"),
            Self::UnitOutOfOrder { unit } => {
                write!(f, "unit {unit} is out of order, overlaps or leaves the layout")
            }
            Self::ValueOverflow { index } => {
                write!(f, "value at coordinate {index} overflows the narrow format it is sent in")
            }
        }
    }
}

impl core::error::Error for EncodeError {}

impl EncodeError {
    /// The number of this kind of error, for callers without Rust's enums. A number never changes its
    /// meaning; those of encoding are 1 to 99.
    #[must_use]
    pub fn code(&self) -> u32 {
        match self {
            Self::BufferTooSmall { .. } => 1,
            Self::MemoryIncomplete => 2,
            Self::MemoryRefused => 3,
            Self::NoFrames => 4,
            Self::NoPackets => 5,
            Self::PacketTooSmall { .. } => 6,
            Self::NonFiniteInput { .. } => 7,
            Self::ScratchTooSmall { .. } => 8,
            Self::LinearScratchTooSmall { .. } => 9,
            Self::NotBuilt => 10,
            Self::TooLarge => 11,
            Self::UnitOutOfOrder { .. } => 12,
            Self::ValueOverflow { .. } => 13,
            Self::Experiment { .. } => 14,
        }
    }
}

/// Why a byte string is not a frame that the caller can accept. Nothing was changed. Nothing was sized from
/// the bytes before both the caller's [`Limits`](crate::Limits) and the bytes present allowed it.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DecodeError {
    /// The first two bytes are not the magic number.
    BadMagic,
    /// The CRC-32C in the header differs from that of the bytes.
    ChecksumMismatch {
        /// What the header says.
        stated: u32,
        /// What the bytes give.
        computed: u32,
    },
    /// The [experiment](crate::experiments) whose parser the caller passed refuses the body of a unit.
    Experiment {
        /// Identifier of the unit.
        unit: u32,
        /// The reason, from the experiment.
        why: &'static str,
    },
    /// A field has a value that its definition in FORMAT.md does not allow.
    InvalidField(Field),
    /// An index is not inside its unit, or not above the one before it.
    IndexOutOfRange,
    /// Positions are coded by tensors and rows, and the reader's layout does not know them:
    /// [`LayoutRef::opaque`](crate::LayoutRef::opaque).
    LayoutUnknown,
    /// The frame was made for another layout.
    LayoutMismatch {
        /// Fingerprint in the frame.
        frame: u64,
        /// Fingerprint of the caller's layout.
        layout: u64,
    },
    /// The frame asks for more than the caller's limits allow.
    LimitExceeded(Limit),
    /// A value is NaN or infinite.
    NonFiniteValue,
    /// The frame needs a part that this build leaves out. The feature `full` adds it.
    NotBuilt,
    /// The scratch memory is smaller than [`frame_scratch_len`](crate::format::frame_scratch_len) asks for.
    ScratchTooSmall {
        /// Words of 32 bits that this frame needs.
        needed: usize,
    },
    /// Bytes are left over after the frame or after one of its sections, or padding bits are not zero.
    TrailingBytes,
    /// The bytes end before the frame does.
    Truncated {
        /// Bytes that the next field or section needs.
        needed: usize,
        /// Bytes that are left for it.
        actual: usize,
    },
    /// This reader does not know the codec identifier.
    UnknownCodec(u8),
    /// A flag is set that this reader does not know, or a reserved bit is not zero.
    UnknownFlag(u16),
    /// A unit reaches beyond the layout.
    UnitOutOfRange,
    /// This reader does not know the version.
    UnsupportedVersion(u8),
    /// A [void frame](crate::format::VoidFrame): its sender has no gradient in this step.
    Void,
}

/// The field that a [`DecodeError::InvalidField`] names, as in FORMAT.md.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Field {
    /// A varint with superfluous bytes, or too large for its type.
    Varint,
    /// `unit_count`: zero.
    UnitCount,
    /// `unit`: beyond 32 bits.
    Unit,
    /// `kind`: unknown, or not a kind of the frame's codec.
    Kind,
    /// `k`: more entries than coordinates.
    Entries,
    /// `coding`: unknown index or value coder, or reserved bits. Of a seeded unit: unknown format or drawing.
    Coding,
    /// `bits`: level width outside its range.
    Bits,
    /// `norm`: unknown norm.
    Norm,
    /// `bucket`: zero.
    Bucket,
    /// `packing`: unknown, or not possible with this width.
    Packing,
    /// A level above the stated number of levels.
    Level,
    /// A scale is negative, or its largest level overflows.
    Scale,
    /// `block_log2` or a Rice parameter outside its range.
    Rice,
    /// `chunk_log2` or `width` of positions in chunks outside its range.
    Chunks,
    /// `columns` or `width` of a tile of positions outside its range, or no room for its entries.
    Tile,
    /// Codebook size outside its range, or entries that do not ascend.
    Codebook,
    /// `shift` or the heads of values in planes: outside their range, or a head that is not finite.
    Planes,
    /// `shape` of a rANS section: too many lanes.
    Lanes,
    /// `classes` of a rANS section: only one class, or classes where none are allowed.
    Classes,
    /// A frequency table that does not sum to its total.
    Table,
    /// The number of ones in the bitmap is not `k`.
    Bitmap,
    /// A saved memory whose kind or length differs from the one it is loaded into.
    Memory,
}

/// The limit that a [`DecodeError::LimitExceeded`] names, as the field of [`Limits`](crate::Limits).
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// `max_elements`
    Elements,
    /// `max_body_bytes`
    BodyBytes,
    /// `max_entries`
    Entries,
    /// `max_units`
    Units,
    /// `max_scratch_words`
    ScratchWords,
    /// `max_magnitude`
    Magnitude,
}

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::BadMagic => f.write_str("not a gradwire frame: bad magic number"),
            Self::ChecksumMismatch { stated, computed } => {
                write!(f, "checksum mismatch: header says {stated:08x}, bytes give {computed:08x}")
            }
            Self::Experiment { unit, why } => write!(f, "unit {unit} refused by the experiment: {why}"),
            Self::InvalidField(field) => write!(f, "invalid field: {field:?}"),
            Self::IndexOutOfRange => f.write_str("index outside its unit"),
            Self::LayoutMismatch { frame, layout } => {
                write!(f, "layout mismatch: frame has fingerprint {frame:016x}, reader has {layout:016x}")
            }
            Self::LayoutUnknown => {
                f.write_str("the positions cannot be read without the shapes of the layout")
            }
            Self::LimitExceeded(limit) => write!(f, "limit exceeded: {limit:?}"),
            Self::NonFiniteValue => f.write_str("non-finite value in frame"),
            Self::NotBuilt => f.write_str("this frame needs the feature `full`, which this build leaves out"),
            Self::ScratchTooSmall { needed } => write!(f, "scratch too small: {needed} words are needed"),
            Self::TrailingBytes => f.write_str("trailing bytes or padding bits behind a section"),
            Self::Truncated { needed, actual } => {
                write!(f, "truncated: {needed} bytes are needed, {actual} are left")
            }
            // Those of experiments: see FORMAT.md.
            Self::UnknownCodec(id @ 0xf0..=0xfe) => {
                write!(f, "unknown codec {id:#04x}: of another crate or of Python, and not registered here")
            }
            Self::UnknownCodec(id) => write!(f, "unknown codec {id}"),
            Self::UnknownFlag(flags) => write!(f, "unknown flag or reserved bit in {flags:#06x}"),
            Self::UnitOutOfRange => f.write_str("unit reaches beyond the layout"),
            Self::UnsupportedVersion(version) => write!(f, "unsupported version {version}"),
            Self::Void => f.write_str("void frame: its sender has no gradient in this step"),
        }
    }
}

impl core::error::Error for DecodeError {}

impl DecodeError {
    /// The number of this kind of error, for callers without Rust's enums. A number never changes its
    /// meaning; those of decoding are 101 to 199.
    #[must_use]
    pub fn code(&self) -> u32 {
        match self {
            Self::BadMagic => 101,
            Self::ChecksumMismatch { .. } => 102,
            Self::InvalidField(_) => 103,
            Self::IndexOutOfRange => 104,
            Self::LayoutUnknown => 105,
            Self::LayoutMismatch { .. } => 106,
            Self::LimitExceeded(_) => 107,
            Self::NonFiniteValue => 108,
            Self::NotBuilt => 109,
            Self::ScratchTooSmall { .. } => 110,
            Self::TrailingBytes => 111,
            Self::Truncated { .. } => 112,
            Self::UnknownCodec(_) => 113,
            Self::UnknownFlag(_) => 114,
            Self::UnitOutOfRange => 115,
            Self::UnsupportedVersion(_) => 116,
            Self::Experiment { .. } => 117,
            Self::Void => 118,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_errors_stay_as_they_were_given() {
        assert_eq!(EncodeError::BufferTooSmall { needed: 2, actual: 1 }.code(), 1);
        assert_eq!(EncodeError::NonFiniteInput { index: 9 }.code(), 7);
        assert_eq!(EncodeError::ValueOverflow { index: 9 }.code(), 13);
        assert_eq!(DecodeError::BadMagic.code(), 101);
        assert_eq!(DecodeError::LimitExceeded(Limit::Entries).code(), 107);
        assert_eq!(DecodeError::Truncated { needed: 2, actual: 1 }.code(), 112);
        assert_eq!(DecodeError::UnsupportedVersion(2).code(), 116);
        assert_eq!(EncodeError::Experiment { unit: 0, index: 0, why: "" }.code(), 14);
        assert_eq!(DecodeError::Experiment { unit: 0, why: "" }.code(), 117);
        assert_eq!(DecodeError::Void.code(), 118);
    }
}
