//! The numbers that name methods and bodies on the wire.

/// The method that made a frame, as its number on the wire.
///
/// Numbers 0xf0 … 0xfe are for experiments and never assigned; 0xff is reserved. A reader refuses both.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CodecId(u8);

impl CodecId {
    /// The method of that number, whether or not there is one.
    #[must_use]
    pub const fn new(number: u8) -> Self {
        Self(number)
    }

    /// The number.
    #[must_use]
    pub const fn number(self) -> u8 {
        self.0
    }
}

/// How the body of one unit is laid out, as its number on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Kind(u8);

impl Kind {
    /// One value a coordinate: the one kind that frames of every codec may hold.
    pub(crate) const DENSE: Self = Self(0);

    pub(crate) const fn new(number: u8) -> Self {
        Self(number)
    }

    pub(crate) const fn number(self) -> u8 {
        self.0
    }
}
