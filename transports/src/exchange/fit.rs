//! Whether a codec fits a route.

use gradwire::format::Divisor;
use gradwire::packets::PacketSize;
use gradwire::plan::{Group, Plan};
use gradwire::{Codec, Gather};

use super::error::ExchangeError;

/// What routes have in common.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Kind {
    Frames,
    SparseFrames,
    Sums,
    Server,
    /// A server that reduces payloads.
    ServedSums,
}

impl Kind {
    /// Whether payloads are summed, and there are no frames.
    pub(super) fn is_summed(self) -> bool {
        matches!(self, Self::Sums | Self::ServedSums)
    }

    /// The same for plans whose codecs are those: a server reduces payloads where there are no frames.
    pub(super) fn of(self, all: &[Traits]) -> Self {
        let has_all_frames = all.iter().all(|codec| codec.has_frames);
        let is_linear = all.iter().all(|codec| codec.is_linear);
        if self == Self::Server && !has_all_frames && is_linear { Self::ServedSums } else { self }
    }
}

/// What routes need to know of a codec.
#[derive(Clone, Copy)]
pub(super) struct Traits {
    pub(super) name: &'static str,
    is_gossip: bool,
    has_frames: bool,
    is_linear: bool,
    /// Whether it sends chosen coordinates.
    is_sparse: bool,
    has_rounds_first: bool,
}

impl Traits {
    pub(super) fn of_codec(codec: &Codec) -> Self {
        Self {
            name: codec.name(),
            is_gossip: matches!(codec, Codec::Gossip(_)),
            has_frames: codec.capabilities().has_frames,
            is_linear: codec.as_linear().is_some(),
            is_sparse: codec.sparse_values().is_some(),
            has_rounds_first: codec.rounds_first().is_some(),
        }
    }

    fn of_group(group: &Group) -> Self {
        if let Some(codec) = group.listed() {
            return Self::of_codec(codec);
        }
        let is_linear = group.is_linear();
        Self {
            name: group.name(),
            is_gossip: false,
            has_frames: !is_linear,
            is_linear,
            is_sparse: false,
            has_rounds_first: group.codec().rounds_first().is_some(),
        }
    }

    /// Refuses a codec that makes no mean, or none by frames.
    pub(super) fn require_frames(&self) -> Result<(), ExchangeError> {
        let codec = self.name;
        match self {
            Self { is_gossip: true, .. } => Err(ExchangeError::Gossip { codec }),
            Self { has_frames: false, .. } => Err(ExchangeError::NoFrames { codec }),
            _ => Ok(()),
        }
    }

    fn require_sums(&self) -> Result<(), ExchangeError> {
        let codec = self.name;
        match self {
            Self { is_gossip: true, .. } => Err(ExchangeError::Gossip { codec }),
            Self { is_linear: false, .. } => Err(ExchangeError::NotLinear { codec }),
            _ => Ok(()),
        }
    }
}

/// The size of packets, if a gradient is to be cut into packets.
pub(super) fn packets_of(plan: &Plan) -> Option<PacketSize> {
    plan.only().and_then(|group| group.spec.packets)
}

/// The traits of all codecs of a plan.
pub(super) fn traits_of(plan: &Plan) -> Vec<Traits> {
    plan.groups().iter().map(Traits::of_group).collect()
}

/// Refuses codecs that do not fit the route together.
pub(super) fn require(all: &[Traits], kind: Kind) -> Result<(), ExchangeError> {
    if kind.is_summed() {
        return all.iter().try_for_each(Traits::require_sums);
    }
    all.iter().try_for_each(Traits::require_frames)?;
    let codec = all[0].name;
    match kind {
        Kind::SparseFrames if all.iter().all(|codec| !codec.is_sparse) => {
            Err(ExchangeError::NotSparse { codec })
        }
        Kind::Server if all[0].has_rounds_first => Err(ExchangeError::RoundsFirst { codec }),
        _ => Ok(()),
    }
}

/// Refuses a mean over senders if the route does not count them, or if all ranks send the same coordinates.
pub(super) fn require_senders(
    all: &[Traits],
    kind: Kind,
    has_packets: bool,
    divisor: Divisor,
) -> Result<(), ExchangeError> {
    let why = match kind {
        _ if divisor == Divisor::Contributors => return Ok(()),
        Kind::Sums | Kind::ServedSums | Kind::SparseFrames => {
            "only all-gather and a server count who sent a coordinate"
        }
        _ if has_packets => "packets are divided by the workers that they came from",
        _ if all.iter().any(|codec| codec.is_sparse) => return Ok(()),
        _ => "all ranks send the same coordinates with this codec",
    };
    Err(ExchangeError::NoSenders { why })
}
