//! Levels as decided, before any coding.

/// Norms and levels of some buckets, or of a part of one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Levels<'l> {
    /// The norm of each bucket, little-endian.
    pub(crate) norms: &'l [[u8; 4]],
    /// One field a coordinate: level, and sign in bit 7.
    pub(crate) fields: &'l [u8],
}
