//! One type for every codec: the result of reading a spelling.

#[cfg(feature = "std")]
use crate::codec::own::{self, Own};
use crate::codec::{Capabilities, CodecEntry, Described, EncodeUnit, Gossip, Law, Linear, Spelled};
use crate::codecs::dense::{Dense, DenseSum};
use crate::codecs::list_codecs;
use crate::coding::values::ValueChoice;
use crate::gradient::density::Density;
use crate::gradient::layout::LayoutRef;
use crate::gradient::unit::Unit;
use crate::keys::{Keys, MemoryChoice, Printer, SpecError};
use crate::memory::{Keeper, StateLen};
use crate::momentum::Momentum;
use crate::wire::ids::{CodecId, Kind};
use core::fmt;

/// A codec whose frames the crate can write. It cannot be named outside the crate, because a codec without a
/// number on the wire could not be decoded.
pub trait AsUnitCodec: Send + Sync {
    /// What encodes one unit.
    fn as_unit_codec(&self) -> &dyn EncodeUnit;
}

impl<C: EncodeUnit> AsUnitCodec for C {
    fn as_unit_codec(&self) -> &dyn EncodeUnit {
        self
    }
}

/// A codec of one of three kinds.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Codec {
    /// Frames are gathered.
    Gather(GatherCodec),
    /// Payloads are summed by all-reduce.
    Linear(LinearCodec),
    /// Models move towards those of their neighbours.
    Gossip(GossipCodec),
}

macro_rules! define_codecs {
    (
        gather { $($gather:ident($gather_type:ty),)* }
        linear { $($linear:ident($linear_type:ty),)* }
        gossip { $($gossip:ident($gossip_type:ty),)* }
    ) => {
        /// Every [`Gather`](crate::Gather) codec.
        #[non_exhaustive]
        #[derive(Clone, Copy, Debug, PartialEq)]
        pub enum GatherCodec {
            $(#[doc = concat!("See [`", stringify!($gather), "`](crate::codecs::", stringify!($gather), ").")] $gather($gather_type),)*
            /// A [registered codec](crate::experiments::OwnCodec) of another crate.
            #[cfg(feature = "std")]
            Own(Own),
        }

        /// Every [`Linear`] codec.
        #[non_exhaustive]
        #[derive(Clone, Copy, Debug, PartialEq)]
        pub enum LinearCodec {
            /// Dense f32 as a sum: `none` on an all-reduce.
            DenseSum(DenseSum),
            $(#[doc = concat!("See [`", stringify!($linear), "`](crate::codecs::", stringify!($linear), ").")] $linear($linear_type),)*
            /// A [registered codec](crate::experiments::OwnCodec) of another crate.
            #[cfg(feature = "std")]
            Own(Own),
        }

        /// Every [`Gossip`] codec.
        #[non_exhaustive]
        #[derive(Clone, Copy, Debug, PartialEq)]
        pub enum GossipCodec {
            $(#[doc = concat!("See [`", stringify!($gossip), "`](crate::codecs::", stringify!($gossip), ").")] $gossip($gossip_type),)*
        }

        /// All codecs of this crate that have a spelling, in the order in which they are listed.
        pub const CODECS: &[CodecEntry] = &[
            $(CodecEntry::of::<$gather_type>("gather"),)*
            $(CodecEntry::of::<$linear_type>("linear"),)*
            $(CodecEntry::of::<$gossip_type>("gossip"),)*
        ];

        impl Codec {
            /// The codec of a name and its keys, with the keys; `None` if no codec has that name.
            pub(crate) fn parse<'a>(name: &'a str, pairs: &'a str) -> Option<Result<(Self, Keys<'a>), SpecError<'a>>> {
                #[cfg(feature = "std")]
                if let Some(parsed) = own::parse(name, pairs) {
                    return Some(parsed.map(|(codec, keys)| (Self::of_own(codec), keys)));
                }
                $(if let Some(parsed) = parse::<$gather_type>(name, pairs) {
                    return Some(parsed.map(|(codec, keys)| (Self::Gather(GatherCodec::$gather(codec)), keys)));
                })*
                $(if let Some(parsed) = parse::<$linear_type>(name, pairs) {
                    return Some(parsed.map(|(codec, keys)| (Self::Linear(LinearCodec::$linear(codec)), keys)));
                })*
                $(if let Some(parsed) = parse::<$gossip_type>(name, pairs) {
                    return Some(parsed.map(|(codec, keys)| (Self::Gossip(GossipCodec::$gossip(codec)), keys)));
                })*
                None
            }

            /// The same codec at another density. A codec without a density does not change.
            #[must_use]
            pub fn with_density(&self, density: Density) -> Self {
                match *self {
                    $(Self::Gather(GatherCodec::$gather(codec)) => {
                        Self::Gather(GatherCodec::$gather(Spelled::with_density(codec, density)))
                    })*
                    $(Self::Linear(LinearCodec::$linear(codec)) => {
                        Self::Linear(LinearCodec::$linear(Spelled::with_density(codec, density)))
                    })*
                    #[cfg(feature = "std")]
                    Self::Gather(GatherCodec::Own(own)) => Self::Gather(GatherCodec::Own(own.with_density(density))),
                    #[cfg(feature = "std")]
                    Self::Linear(LinearCodec::Own(_)) => *self,
                    Self::Linear(LinearCodec::DenseSum(_)) | Self::Gossip(_) => *self,
                }
            }
        }

        impl AsUnitCodec for GatherCodec {
            fn as_unit_codec(&self) -> &dyn EncodeUnit {
                match self {
                    $(Self::$gather(codec) => codec,)*
                    #[cfg(feature = "std")]
                    Self::Own(codec) => codec,
                }
            }
        }

        impl AsUnitCodec for LinearCodec {
            fn as_unit_codec(&self) -> &dyn EncodeUnit {
                match self {
                    Self::DenseSum(_) => &Dense::F32,
                    $(Self::$linear(codec) => codec,)*
                    #[cfg(feature = "std")]
                    Self::Own(codec) => codec,
                }
            }
        }

        impl LinearCodec {
            /// The rounds of a unit: the codec's, or a plain sum for a unit that is sent dense whatever the
            /// codec.
            #[must_use]
            pub fn rounds_of(&self, unit: &Unit) -> &dyn Linear {
                if unit.dense { &DenseSum } else { self.rounds() }
            }

            /// The codec's rounds.
            #[must_use]
            pub fn rounds(&self) -> &dyn Linear {
                match self {
                    Self::DenseSum(codec) => codec,
                    $(Self::$linear(codec) => codec,)*
                    #[cfg(feature = "std")]
                    Self::Own(codec) => codec.rounds(),
                }
            }
        }

        impl GossipCodec {
            /// The codec's rounds.
            #[must_use]
            pub fn rounds(&self) -> &dyn Gossip {
                match self { $(Self::$gossip(codec) => codec,)* }
            }
        }

        impl Codec {
            fn described(&self) -> &dyn Described {
                match self {
                    $(Self::Gather(GatherCodec::$gather(codec)) => codec,)*
                    #[cfg(feature = "std")]
                    Self::Gather(GatherCodec::Own(codec)) | Self::Linear(LinearCodec::Own(codec)) => codec,
                    Self::Linear(LinearCodec::DenseSum(_)) => &Dense::F32,
                    $(Self::Linear(LinearCodec::$linear(codec)) => codec,)*
                    $(Self::Gossip(GossipCodec::$gossip(codec)) => codec,)*
                }
            }
        }
    };
}

list_codecs!(define_codecs);

/// The names that spellings begin with.
pub(crate) const NAMES: &[&str] = &{
    let (mut names, mut at, mut i) = ([""; count_of_names()], 0, 0);
    while i < CODECS.len() {
        let mut j = 0;
        while j < CODECS[i].names.len() {
            names[at] = CODECS[i].names[j].0;
            at += 1;
            j += 1;
        }
        i += 1;
    }
    names
};

const fn count_of_names() -> usize {
    let (mut count, mut i) = (0, 0);
    while i < CODECS.len() {
        count += CODECS[i].names.len();
        i += 1;
    }
    count
}

/// All assigned numbers on the wire are below this.
const NUMBERS: usize = 32;

/// The kind of body that frames of each codec hold besides dense ones, by its number on the wire.
const KINDS: [Option<Kind>; NUMBERS] = {
    let (mut kinds, mut i) = ([None; NUMBERS], 0);
    while i < CODECS.len() {
        let mut j = 0;
        while j < CODECS[i].names.len() {
            if let Some(id) = CODECS[i].names[j].1 {
                assert!(kinds[id.number() as usize].is_none(), "two codecs have the same number");
                kinds[id.number() as usize] = Some(CODECS[i].body);
            }
            j += 1;
        }
        i += 1;
    }
    kinds
};

/// The kind of body that frames of a codec hold besides dense ones; `None` if no codec has that number.
pub(crate) fn kind_of(codec: CodecId) -> Option<Kind> {
    KINDS.get(usize::from(codec.number())).copied().flatten()
}

impl CodecId {
    /// The name of the codec that has this number; `None` if no codec has it.
    #[must_use]
    pub fn name(self) -> Option<&'static str> {
        let mut names = CODECS.iter().flat_map(|entry| entry.names);
        let name = names.find(|(_, id)| *id == Some(self)).map(|(name, _)| *name);
        #[cfg(feature = "std")]
        return name.or_else(|| own::name_of(self));
        #[cfg(not(feature = "std"))]
        name
    }
}

/// All codecs that have a spelling in this process: those of this crate, then those of other crates, in the
/// order in which they were [registered](crate::experiments::OwnCodec::register).
#[cfg(feature = "std")]
pub fn codecs() -> impl Iterator<Item = CodecEntry> {
    CODECS.iter().copied().chain(own::listed())
}

/// The codec of type `C`, if `name` is one of its names.
fn parse<'a, C: Spelled>(name: &'a str, pairs: &'a str) -> Option<Result<(C, Keys<'a>), SpecError<'a>>> {
    let &(known, _) = C::NAMES.iter().find(|(known, _)| *known == name)?;
    let keys = Keys::new(known, C::KEYS, pairs);
    Some(keys.and_then(|keys| Ok((C::parse(known, &keys)?, keys))))
}

impl AsUnitCodec for Codec {
    fn as_unit_codec(&self) -> &dyn EncodeUnit {
        match self {
            Self::Gather(gather) => gather.as_unit_codec(),
            Self::Linear(linear) => linear.as_unit_codec(),
            // The values as they are, dense.
            Self::Gossip(_) => &Dense::F32,
        }
    }
}

impl Codec {
    #[cfg(feature = "std")]
    fn of_own(codec: Own) -> Self {
        if codec.is_linear() {
            Self::Linear(LinearCodec::Own(codec))
        } else {
            Self::Gather(GatherCodec::Own(codec))
        }
    }

    /// Every gradient as it is: `none`.
    pub const NONE: Self = Self::Gather(GatherCodec::Dense(Dense::F32));

    /// The name that spellings begin with.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.described().name()
    }

    /// What other code needs to know of the codec.
    #[must_use]
    pub fn capabilities(&self) -> Capabilities {
        self.as_unit_codec().capabilities()
    }

    /// The memory that the codec uses by default. Biased codecs use error feedback. Unbiased codecs use none,
    /// and neither do casts, whose bias is half a unit in the last place, nor codecs with which error
    /// feedback would not converge. Codecs that have momentum use error feedback with momentum.
    #[must_use]
    pub fn default_memory(&self) -> MemoryChoice {
        self.described().default_memory()
    }

    /// Epochs of warm-up by default.
    #[must_use]
    pub fn default_warmup(&self) -> u32 {
        self.described().default_warmup()
    }

    /// Whether tensors of one dimension are sent dense by default.
    #[must_use]
    pub fn default_dense_1d(&self) -> bool {
        self.described().default_dense_1d()
    }

    /// Whether every tensor is a unit of its own by default.
    #[must_use]
    pub fn default_per_tensor(&self) -> bool {
        self.described().default_per_tensor()
    }

    pub(crate) fn print(&self, out: &mut Printer<'_, '_>) -> fmt::Result {
        self.described().print(out)
    }

    /// Why the parameters do not go together, or with this memory.
    pub(crate) fn conflict(&self, memory: MemoryChoice) -> Option<&'static str> {
        let (has_momentum, has_state) = (self.momentum().is_some(), self.capabilities().law == Law::State);
        match memory {
            MemoryChoice::Momentum if !has_momentum => {
                Some("memory=momentum: it belongs to dgc, with a momentum above 0")
            }
            MemoryChoice::None | MemoryChoice::ErrorFeedback if has_momentum => {
                Some("memory: the codec keeps its momentum there; with momentum=0 it does without")
            }
            MemoryChoice::State if !has_state => Some("memory=state: this codec keeps no state of its own"),
            MemoryChoice::None | MemoryChoice::ErrorFeedback if has_state => {
                Some("memory: the codec keeps a state of its own there, and nothing that was not sent")
            }
            _ => self.described().conflict(memory != MemoryChoice::None),
        }
    }

    pub(crate) fn packet_conflict(&self) -> Option<&'static str> {
        self.described().packet_conflict()
    }

    /// The density, of codecs that have one.
    #[must_use]
    pub fn density(&self) -> Option<Density> {
        self.described().density()
    }

    /// The rank of the approximation, of codecs that have one.
    #[must_use]
    pub fn rank(&self) -> Option<u16> {
        match self {
            Self::Linear(LinearCodec::PowerSgd(codec)) => Some(codec.rank()),
            _ => None,
        }
    }

    /// How many coordinates a frame of these units should hold: the number that the density gives for
    /// compressed units, and all coordinates of dense ones; `None` for a codec without a density.
    #[must_use]
    pub fn target_count(&self, units: &[Unit]) -> Option<usize> {
        self.density()?;
        units
            .iter()
            .map(|unit| if unit.dense { Some(unit.len) } else { self.described().target_count(unit.len) })
            .sum()
    }

    /// The value coder, for codecs whose frames hold chosen coordinates.
    #[must_use]
    pub fn sparse_values(&self) -> Option<ValueChoice> {
        self.described().sparse_values()
    }

    /// The norm that one of `workers` shortens its whole gradient to (see
    /// [`clip_norm`](crate::arithmetic::clip_norm)) before it encodes, of codecs that clip.
    #[must_use]
    pub fn local_clip(&self, workers: u32) -> Option<f64> {
        self.described().local_clip(workers)
    }

    /// Whether the codec sends a sum of several gradients as steps of SGD, so that no other optimizer may
    /// apply it.
    #[must_use]
    pub fn accumulates_steps(&self) -> bool {
        self.described().accumulates_steps()
    }

    /// The momentum, of codecs that own it.
    #[must_use]
    pub fn momentum(&self) -> Option<Momentum> {
        self.as_unit_codec().momentum()
    }

    /// Lengths of the [factors](crate::Memory::factors) and [arrays](crate::Memory::arrays) that the codec
    /// keeps of a gradient of that layout, cut into `units` units.
    #[must_use]
    pub fn state_len(&self, layout: &LayoutRef<'_>, units: usize, keeper: Keeper) -> StateLen {
        self.as_unit_codec().state_len(layout, units, keeper)
    }

    /// The codec for all-reduce, if its payloads may be summed: linear codecs, and `none`.
    #[must_use]
    pub fn as_linear(&self) -> Option<LinearCodec> {
        match self {
            Self::Linear(linear) => Some(*linear),
            _ => self.described().is_plain_sum().then_some(LinearCodec::DenseSum(DenseSum)),
        }
    }
}
