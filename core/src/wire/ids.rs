//! The numbers that name methods and bodies on the wire.

/// The method that made a frame, as its number on the wire.
///
/// Numbers 0xf0 … 0xfe are for [experiments](crate::experiments) and never assigned; 0xff is reserved. A
/// reader always refuses 0xff, and refuses the number of an experiment unless its caller gives it a parser of
/// its bodies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CodecId(u8);

impl CodecId {
    /// The method of that number, whether or not it exists.
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

/// The number of a codec of another crate. It is both the id of the codec on the wire and the kind of the
/// bodies that only this codec makes. FORMAT.md never assigns it; its users agree on what it means.
///
/// # Examples
/// ```
/// use gradwire::experiments::Experiment;
/// assert_eq!(Experiment::new(0xf7).unwrap().codec().number(), 0xf7);
/// assert_eq!((Experiment::new(0xef), Experiment::new(0xff)), (None, None));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Experiment(u8);

impl Experiment {
    /// `number` from 0xf0 to 0xfe, else `None`.
    #[must_use]
    pub const fn new(number: u8) -> Option<Self> {
        if number >= 0xf0 && number < 0xff { Some(Self(number)) } else { None }
    }

    /// The method of that number.
    #[must_use]
    pub const fn codec(self) -> CodecId {
        CodecId::new(self.0)
    }

    /// The kind of its bodies.
    pub(crate) const fn kind(self) -> Kind {
        Kind::new(self.0)
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
