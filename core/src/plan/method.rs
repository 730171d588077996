//! The codec of a group.

use super::Group;
use super::by_unit::ByUnit;
use crate::codec::{EncodeUnit, Linear};
use crate::codecs::dense::DenseSum;
use crate::codecs::powersgd::PowerSgdByUnit;
use crate::frame::gather::Gather;
use crate::gradient::unit::Unit;
#[cfg(feature = "parallel")]
use crate::owned::parallel::Parallel;
use crate::registry::codecs::{AsUnitCodec, Codec, LinearCodec};
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::fmt;

/// How the units of a group are encoded now.
pub(super) enum Method {
    /// All alike. The second is the codec of sums, if it is one; the third encodes on several threads.
    Listed(Codec, Option<LinearCodec>, #[cfg(feature = "parallel")] Parallel<Codec>),
    /// At a density of its own each. The codecs of sums are by the identifier of the unit; there are none if
    /// the codec's payloads cannot be summed.
    ByDensity(ByUnit, Vec<LinearCodec>),
    /// At a rank of its own each.
    ByRank(PowerSgdByUnit),
    /// Frames of a codec of another crate, with the name of its type.
    Gather(Box<dyn Gather>, &'static str),
    /// Sums of a codec of another crate, with the name of its type.
    Linear(Box<dyn Linear>, &'static str),
}

impl Method {
    pub(super) fn listed(codec: Codec) -> Self {
        Self::Listed(
            codec,
            codec.as_linear(),
            #[cfg(feature = "parallel")]
            Parallel(codec),
        )
    }
}

impl fmt::Debug for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Listed(codec, ..) => codec.fmt(f),
            Self::ByDensity(codecs, _) => codecs.fmt(f),
            Self::ByRank(codec) => codec.fmt(f),
            Self::Gather(_, name) | Self::Linear(_, name) => f.debug_tuple("Foreign").field(name).finish(),
        }
    }
}

impl Group {
    /// The name of the codec; of one of another crate, the name of its type.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match &self.method {
            Method::Gather(_, name) | Method::Linear(_, name) => name,
            _ => self.spelled().name(),
        }
    }

    /// The codec as it was spelled, or set last; where units differ in density or rank, that of any of them.
    /// `None` for a codec of another crate.
    #[must_use]
    pub fn listed(&self) -> Option<&Codec> {
        match &self.method {
            Method::Listed(codec, ..) => Some(codec),
            Method::ByDensity(codecs, _) => Some(codecs.first()),
            Method::ByRank(_) => Some(&self.spec.codec),
            Method::Gather(..) | Method::Linear(..) => None,
        }
    }

    /// The same, and `none` for a codec of another crate.
    fn spelled(&self) -> &Codec {
        self.listed().unwrap_or(&self.spec.codec)
    }

    /// The codec of frames. A codec that only has rounds refuses to encode; in place of a linear codec of
    /// another crate, this is `none`.
    #[must_use]
    pub fn codec(&self) -> &dyn Gather {
        match &self.method {
            #[cfg(feature = "parallel")]
            Method::Listed(.., parallel) if self.on_threads => parallel,
            Method::Listed(codec, ..) => codec,
            Method::ByDensity(codecs, _) => codecs,
            Method::Gather(codec, _) => &**codec,
            Method::ByRank(_) | Method::Linear(..) => &self.spec.codec,
        }
    }

    /// How it encodes a unit.
    ///
    /// # Panics
    /// For a codec of another crate.
    pub(super) fn unit_codec(&self) -> &dyn EncodeUnit {
        match &self.method {
            Method::ByDensity(codecs, _) => codecs,
            Method::Listed(codec, ..) => codec.as_unit_codec(),
            Method::ByRank(_) => self.spec.codec.as_unit_codec(),
            Method::Gather(..) | Method::Linear(..) => panic!("{} is of another crate", self.name()),
        }
    }

    /// Whether the payloads of this group can be summed.
    #[must_use]
    pub fn is_linear(&self) -> bool {
        match &self.method {
            Method::Listed(_, linear, ..) => linear.is_some(),
            Method::ByDensity(_, linear) => !linear.is_empty(),
            Method::ByRank(_) | Method::Linear(..) => true,
            Method::Gather(..) => false,
        }
    }

    /// The rounds of a unit of this group: those of the codec, or a plain sum for a unit that is sent dense
    /// whatever the codec.
    ///
    /// # Panics
    /// For a group that is not [linear](Self::is_linear), and for a unit of another group.
    #[must_use]
    pub fn rounds_of(&self, unit: &Unit) -> &dyn Linear {
        match &self.method {
            Method::Listed(_, Some(linear), ..) => linear.rounds_of(unit),
            Method::ByDensity(_, linear) if !linear.is_empty() => linear[unit.id as usize].rounds_of(unit),
            Method::ByRank(codec) => codec.rounds_of(unit),
            Method::Linear(..) if unit.dense => &DenseSum,
            Method::Linear(codec, _) => &**codec,
            _ => panic!("{} has no payloads that can be summed", self.name()),
        }
    }
}
