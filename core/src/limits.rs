//! Bounds on what a frame from an unknown sender may cost its reader.

use crate::LayoutRef;

/// Bounds that the caller sets before it parses a frame. They come from the caller, never from the wire. A
/// frame that asks for more is refused before any work that grows with what it asks for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limits {
    /// Coordinates that all units of one frame may cover together.
    pub max_elements: usize,
    /// Bytes after the header.
    pub max_body_bytes: usize,
    /// Entries that are decoded into scratch memory (sparse and seeded units), over all units of one frame.
    pub max_entries: usize,
    /// Units of one frame.
    pub max_units: usize,
    /// Words of 32 bits that parsing may use, summed over all units of a frame. FORMAT.md, section 11, has
    /// the exact numbers. A sparse unit takes one word an entry. It also takes the larger of two numbers: up
    /// to 7062 words if its positions are under `context`, or up to 133,320 under `context-max`; and 4096 if
    /// its values are in rANS. A seeded unit takes one word an entry and at most one bit a coordinate. A
    /// unit of levels takes 4096 words for each table in rANS, one byte for each segment that has a class,
    /// and one word for each norm in planes; under `context` it takes one word a coordinate.
    pub max_scratch_words: usize,
    /// Largest magnitude of a decoded value. For levels it is the largest norm, to which the highest level
    /// decodes. It bounds what one peer can do to the mean.
    pub max_magnitude: f32,
}

impl Limits {
    /// No limits, for a frame that this process has just written.
    #[cfg(feature = "full")]
    pub(crate) const NONE: Self = Self {
        max_elements: usize::MAX,
        max_body_bytes: usize::MAX,
        max_entries: usize::MAX,
        max_units: usize::MAX,
        max_scratch_words: usize::MAX,
        max_magnitude: f32::MAX,
    };

    /// The most that an honest frame for `layout` can need: every coordinate once, with its position and as
    /// f32, in units that are tensors or larger.
    ///
    /// `max_magnitude` is `f32::MAX`. Set it lower if you know the scale of the gradients.
    #[must_use]
    pub fn for_layout(layout: &LayoutRef<'_>) -> Self {
        let n = layout.len();
        let units = layout.tensor_count().max(1);
        Self {
            max_elements: n,
            // Four bytes of position or norm and four of value for each coordinate, and the header,
            // parameters and tables of every unit.
            max_body_bytes: n.saturating_mul(8).saturating_add(units.saturating_mul(1 << 10)),
            max_entries: n,
            max_scratch_words: n.saturating_mul(2).saturating_add(units.saturating_mul(1 << 13)),
            max_units: usize::from(u16::MAX),
            max_magnitude: f32::MAX,
        }
    }
}
