//! What a frame from a stranger may ask of its reader.

use crate::LayoutRef;

/// Bounds that the caller sets before a frame is parsed. They come from the caller, never from the wire: a frame
/// that asks for more is refused before any work that grows with what it asks for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limits {
    /// Coordinates that all units of one frame may cover together.
    pub max_elements: usize,
    /// Bytes behind the header.
    pub max_body_bytes: usize,
    /// Entries that are decoded into scratch memory (sparse and seeded units), over all units of one frame.
    pub max_entries: usize,
    /// Units of one frame.
    pub max_units: usize,
    /// Largest magnitude of a decoded value. Bounds what one peer can do to the mean.
    pub max_magnitude: f32,
}

impl Limits {
    /// What an honest frame for `layout` can need at the most: every coordinate once, as f32, in one frame.
    ///
    /// `max_magnitude` is `f32::MAX`; set it lower where the scale of the gradients is known.
    #[must_use]
    pub fn for_layout(layout: &LayoutRef<'_>) -> Self {
        let n = layout.len();
        Self {
            max_elements: n,
            // A dense f32 body, and room for the unit headers of the finest cut a message allows.
            max_body_bytes: n.saturating_mul(6).saturating_add(1 << 16),
            max_entries: n,
            max_units: usize::from(u16::MAX),
            max_magnitude: f32::MAX,
        }
    }
}
