//! Codecs of other crates, which have no spelling.

use std::any::type_name;
use std::fmt;

use gradwire::codecs::{DenseSum, PowerSgdByUnit};
use gradwire::registry::LinearCodec;
use gradwire::{Gather, Linear, Unit};

/// A codec of another crate, by the name of its type.
pub(super) enum Foreign {
    Gather(Box<dyn Gather>, &'static str),
    /// The route holds it, because only the route uses it.
    Linear(&'static str),
}

impl Foreign {
    pub(super) fn gather<C: Gather + 'static>(codec: C) -> Self {
        Self::Gather(Box::new(codec), type_name::<C>())
    }

    pub(super) fn linear<C: Linear + 'static>(_: &C) -> Self {
        Self::Linear(type_name::<C>())
    }

    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Gather(_, name) | Self::Linear(name) => name,
        }
    }

    /// The codec of frames, if it is one.
    pub(super) fn as_gather(&self) -> Option<&dyn Gather> {
        match self {
            Self::Gather(codec, _) => Some(&**codec),
            Self::Linear(_) => None,
        }
    }
}

impl fmt::Debug for Foreign {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Foreign").field(&self.name()).finish()
    }
}

/// A linear codec: one of the list, or one of another crate.
pub(super) enum Rounds {
    Listed(LinearCodec),
    /// One for each unit, by identifier; they differ in their densities alone.
    ByUnit(Vec<LinearCodec>),
    /// The units differ in their ranks.
    ByRank(PowerSgdByUnit),
    /// With the name of its type, for errors.
    Foreign(Box<dyn Linear>, &'static str),
}

impl Rounds {
    pub(super) fn foreign<C: Linear + 'static>(codec: C) -> Self {
        Self::Foreign(Box::new(codec), type_name::<C>())
    }

    /// The name of a codec of another crate; `None` for a codec that has a spelling.
    pub(super) fn foreign_name(&self) -> Option<&'static str> {
        match self {
            Self::Listed(_) | Self::ByUnit(_) | Self::ByRank(_) => None,
            Self::Foreign(_, name) => Some(name),
        }
    }

    /// The rounds of a unit: the codec's, or a plain sum for a unit that is sent dense whatever the codec.
    pub(super) fn rounds_of(&self, unit: &Unit) -> &dyn Linear {
        match self {
            Self::Listed(codec) => codec.rounds_of(unit),
            Self::ByUnit(codecs) => codecs[unit.id as usize].rounds_of(unit),
            Self::ByRank(codec) => codec.rounds_of(unit),
            Self::Foreign(..) if unit.dense => &DenseSum,
            Self::Foreign(codec, _) => &**codec,
        }
    }
}

impl fmt::Debug for Rounds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Listed(codec) => codec.fmt(f),
            Self::ByUnit(codecs) => codecs.fmt(f),
            Self::ByRank(codec) => codec.fmt(f),
            Self::Foreign(_, name) => f.debug_tuple("Foreign").field(name).finish(),
        }
    }
}
