//! Every codec in one value: what a spelling stands for.

use crate::codec::{Edge, Gossip, Linear, LinearScratch, LinearScratchLen, Payload, Round};
use crate::codecs::dense::{Dense, DenseSum};
use crate::codecs::dgc::Dgc;
use crate::codecs::dpsgd::Dpsgd;
use crate::codecs::maxnorm::MaxNorm;
use crate::codecs::powersgd::PowerSgd;
use crate::codecs::qsgd::{Qsgd, Rounding};
use crate::codecs::randomk::{Estimator, RandomK};
use crate::codecs::sidco::Sidco;
use crate::codecs::threshold::Threshold;
use crate::codecs::topk::TopK;
use crate::error::EncodeError;
use crate::frame::header::{CodecId, Kind};
use crate::frame::packets::Content;
use crate::gather::{EncodeUnit, UnitInput};
use crate::gradient::density::Density;
use crate::gradient::grad::Grad;
use crate::gradient::layout::LayoutRef;
use crate::gradient::unit::Unit;
use crate::memory::{Memory, MemoryView};
use crate::momentum::Momentum;
use crate::rng::key::StepKey;
use crate::scratch::{Scratch, ScratchLen};
use crate::spec::MemoryChoice;
use crate::wire::writer::Writer;

/// A codec of one of the kinds that [`codec`](crate::codec) tells apart.
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

/// Every [`Gather`](crate::Gather) codec.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum GatherCodec {
    /// `none`, `f16`, `bf16`
    Dense(Dense),
    /// `topk`
    TopK(TopK),
    /// `threshold`
    Threshold(Threshold),
    /// `qsgd`
    Qsgd(Qsgd),
    /// `dgc`
    Dgc(Dgc),
    /// `sidco`
    Sidco(Sidco),
}

/// Every [`Linear`] codec.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum LinearCodec {
    /// Dense f32 as a sum; `none` where an all-reduce is at hand.
    DenseSum(DenseSum),
    /// `randomk`
    RandomK(RandomK),
    /// `maxnorm`
    MaxNorm(MaxNorm),
    /// `powersgd`
    PowerSgd(PowerSgd),
}

/// Every [`Gossip`](crate::Gossip) codec.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum GossipCodec {
    /// `dpsgd`
    Dpsgd(Dpsgd),
}

impl Codec {
    /// The name that spellings begin with.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Gather(GatherCodec::Dense(Dense::F32)) | Self::Linear(LinearCodec::DenseSum(_)) => "none",
            Self::Gather(GatherCodec::Dense(Dense::F16)) => "f16",
            Self::Gather(GatherCodec::Dense(Dense::Bf16)) => "bf16",
            Self::Gather(GatherCodec::TopK(_)) => "topk",
            Self::Gather(GatherCodec::Threshold(_)) => "threshold",
            Self::Gather(GatherCodec::Qsgd(_)) => "qsgd",
            Self::Gather(GatherCodec::Dgc(_)) => "dgc",
            Self::Gather(GatherCodec::Sidco(_)) => "sidco",
            Self::Linear(LinearCodec::RandomK(_)) => "randomk",
            Self::Linear(LinearCodec::MaxNorm(_)) => "maxnorm",
            Self::Linear(LinearCodec::PowerSgd(_)) => "powersgd",
            Self::Gossip(GossipCodec::Dpsgd(_)) => "dpsgd",
        }
    }

    /// Error feedback for biased codecs, none for unbiased ones and for casts, whose bias is half a unit in the last
    /// place; and none where error feedback would not converge. With momentum for codecs that have momentum.
    #[must_use]
    pub fn default_memory(&self) -> MemoryChoice {
        if self.momentum().is_some() {
            return MemoryChoice::Momentum;
        }
        let needs_feedback = match self {
            Self::Gather(GatherCodec::Dense(_)) | Self::Linear(LinearCodec::DenseSum(_)) => false,
            Self::Gather(
                GatherCodec::TopK(_)
                | GatherCodec::Threshold(_)
                | GatherCodec::Dgc(_)
                | GatherCodec::Sidco(_),
            ) => self.conserves(),
            Self::Gather(GatherCodec::Qsgd(qsgd)) => {
                qsgd.rounding() == Rounding::Nearest && qsgd.proves_contraction()
            }
            Self::Linear(LinearCodec::RandomK(randomk)) => randomk.estimator() == Estimator::Contraction,
            Self::Linear(LinearCodec::PowerSgd(_)) => true,
            Self::Linear(LinearCodec::MaxNorm(_)) | Self::Gossip(GossipCodec::Dpsgd(_)) => false,
        };
        if needs_feedback { MemoryChoice::ErrorFeedback } else { MemoryChoice::None }
    }

    /// The density, of codecs that have one.
    #[must_use]
    pub fn density(&self) -> Option<Density> {
        match self {
            Self::Gather(GatherCodec::TopK(topk)) => Some(topk.density()),
            Self::Gather(GatherCodec::Dgc(dgc)) => Some(dgc.density()),
            Self::Gather(GatherCodec::Sidco(sidco)) => Some(sidco.density()),
            Self::Linear(LinearCodec::RandomK(randomk)) => Some(randomk.density()),
            _ => None,
        }
    }

    /// The same codec at another density; a codec that has none is as it was.
    #[must_use]
    pub fn with_density(&self, density: Density) -> Self {
        match *self {
            Self::Gather(GatherCodec::TopK(topk)) => {
                Self::Gather(GatherCodec::TopK(topk.with_density(density)))
            }
            Self::Gather(GatherCodec::Dgc(dgc)) => Self::Gather(GatherCodec::Dgc(dgc.with_density(density))),
            Self::Gather(GatherCodec::Sidco(sidco)) => {
                Self::Gather(GatherCodec::Sidco(sidco.with_density(density)))
            }
            Self::Linear(LinearCodec::RandomK(randomk)) => {
                Self::Linear(LinearCodec::RandomK(randomk.with_density(density)))
            }
            other => other,
        }
    }

    /// How many coordinates a frame of these units should hold: what the density asks for of those that are compressed, all
    /// of those that are sent dense; `None` for a codec without a density.
    #[must_use]
    pub fn target_count(&self, units: &[Unit]) -> Option<usize> {
        let density = self.density()?;
        let counts = units.iter().map(|unit| if unit.dense { unit.len } else { density.count(unit.len) });
        Some(counts.sum())
    }

    /// The momentum, of codecs that own it.
    #[must_use]
    pub fn momentum(&self) -> Option<Momentum> {
        self.unit_codec().momentum()
    }

    /// Whether the codec keeps a [state](crate::UnitState) of each unit.
    #[must_use]
    pub fn adapts(&self) -> bool {
        self.unit_codec().adapts()
    }

    /// Elements of the [factors](Memory::factors) that the codec keeps of a gradient of that layout.
    #[must_use]
    pub fn factor_len(&self, layout: &LayoutRef<'_>) -> usize {
        self.unit_codec().factor_len(layout)
    }

    /// Whether the codec makes frames, and not rounds alone.
    #[must_use]
    pub fn has_frames(&self) -> bool {
        self.unit_codec().has_frames()
    }

    /// The codec as one that rides on all-reduce, if its payloads may be summed: linear codecs, and `none`.
    #[must_use]
    pub fn as_linear(&self) -> Option<LinearCodec> {
        match self {
            Self::Linear(linear) => Some(*linear),
            Self::Gather(GatherCodec::Dense(Dense::F32)) => Some(LinearCodec::DenseSum(DenseSum)),
            Self::Gather(_) | Self::Gossip(_) => None,
        }
    }

    fn unit_codec(&self) -> &dyn EncodeUnit {
        match self {
            Self::Gather(gather) => gather.inner(),
            Self::Linear(linear) => linear.inner(),
            Self::Gossip(GossipCodec::Dpsgd(_)) => &Dense::F32,
        }
    }
}

impl GatherCodec {
    fn inner(&self) -> &dyn EncodeUnit {
        match self {
            Self::Dense(dense) => dense,
            Self::TopK(topk) => topk,
            Self::Threshold(threshold) => threshold,
            Self::Qsgd(qsgd) => qsgd,
            Self::Dgc(dgc) => dgc,
            Self::Sidco(sidco) => sidco,
        }
    }
}

impl LinearCodec {
    fn inner(&self) -> &dyn EncodeUnit {
        match self {
            Self::DenseSum(_) => &Dense::F32,
            Self::RandomK(randomk) => randomk,
            Self::MaxNorm(maxnorm) => maxnorm,
            Self::PowerSgd(powersgd) => powersgd,
        }
    }
}

/// Frames of any codec: those of a linear codec hold what one worker alone would contribute, those of a gossip codec
/// what is handed to them, dense.
macro_rules! delegate_frames {
    ($codec:ty, $inner:ident) => {
        impl EncodeUnit for $codec {
            fn codec_id(&self) -> CodecId {
                self.$inner().codec_id()
            }

            fn kind(&self) -> Kind {
                self.$inner().kind()
            }

            fn max_body_bytes(&self, len: usize) -> Option<usize> {
                self.$inner().max_body_bytes(len)
            }

            fn unit_scratch_len(&self, len: usize) -> ScratchLen {
                self.$inner().unit_scratch_len(len)
            }

            fn overflow_bound(&self) -> f32 {
                self.$inner().overflow_bound()
            }

            fn needs_full(&self) -> bool {
                self.$inner().needs_full()
            }

            fn has_frames(&self) -> bool {
                self.$inner().has_frames()
            }

            fn factor_len(&self, layout: &LayoutRef<'_>) -> usize {
                self.$inner().factor_len(layout)
            }

            fn conserves(&self) -> bool {
                self.$inner().conserves()
            }

            fn adds_early(&self) -> bool {
                self.$inner().adds_early()
            }

            fn momentum(&self) -> Option<Momentum> {
                self.$inner().momentum()
            }

            fn adapts(&self) -> bool {
                self.$inner().adapts()
            }

            fn is_cut(&self) -> bool {
                self.$inner().is_cut()
            }

            fn content_scratch_len(&self, len: usize) -> ScratchLen {
                self.$inner().content_scratch_len(len)
            }

            fn least_body_bytes(&self, len: usize) -> usize {
                self.$inner().least_body_bytes(len)
            }

            fn decide(
                &self,
                input: UnitInput<'_, '_>,
                scratch: &mut Scratch<'_>,
            ) -> Result<Content, EncodeError> {
                self.$inner().decide(input, scratch)
            }

            fn encode_body(
                &self,
                input: UnitInput<'_, '_>,
                scratch: &mut Scratch<'_>,
                writer: &mut Writer<'_>,
            ) -> Result<(), EncodeError> {
                self.$inner().encode_body(input, scratch, writer)
            }
        }
    };
}

delegate_frames!(Codec, unit_codec);
delegate_frames!(GatherCodec, inner);
delegate_frames!(LinearCodec, inner);

impl LinearCodec {
    fn linear(&self) -> &dyn Linear {
        match self {
            Self::DenseSum(dense) => dense,
            Self::RandomK(randomk) => randomk,
            Self::MaxNorm(maxnorm) => maxnorm,
            Self::PowerSgd(powersgd) => powersgd,
        }
    }
}

impl Linear for LinearCodec {
    fn round_scratch_len(&self, len: usize) -> LinearScratchLen {
        self.linear().round_scratch_len(len)
    }

    fn held(&self, len: usize) -> usize {
        self.linear().held(len)
    }

    fn begin(
        &self,
        key: StepKey,
        layout: &LayoutRef<'_>,
        unit: &Unit,
        grad: Grad<'_>,
        memory: Option<MemoryView<'_>>,
        scratch: &mut LinearScratch<'_>,
    ) -> Result<Round, EncodeError> {
        self.linear().begin(key, layout, unit, grad, memory, scratch)
    }

    fn payload<'s>(&self, round: &Round, scratch: &'s mut LinearScratch<'_>) -> Payload<'s> {
        self.linear().payload(round, scratch)
    }

    fn advance(
        &self,
        layout: &LayoutRef<'_>,
        round: Round,
        scratch: &mut LinearScratch<'_>,
        contributors: u32,
        mean: &mut [f32],
        memory: Option<&mut Memory<'_>>,
    ) -> Option<Round> {
        self.linear().advance(layout, round, scratch, contributors, mean, memory)
    }

    fn abandon(&self, round: Round, scratch: &mut LinearScratch<'_>, memory: Option<&mut Memory<'_>>) {
        self.linear().abandon(round, scratch, memory);
    }
}

impl GossipCodec {
    fn gossip(&self) -> &dyn Gossip {
        match self {
            Self::Dpsgd(dpsgd) => dpsgd,
        }
    }
}

impl Gossip for GossipCodec {
    fn round_scratch_len(&self, len: usize) -> LinearScratchLen {
        self.gossip().round_scratch_len(len)
    }

    fn begin(
        &self,
        key: StepKey,
        edge: Edge,
        layout: &LayoutRef<'_>,
        unit: &Unit,
        model: &[f32],
        scratch: &mut LinearScratch<'_>,
    ) -> Result<Round, EncodeError> {
        self.gossip().begin(key, edge, layout, unit, model, scratch)
    }

    fn payload<'s>(&self, round: &Round, scratch: &'s mut LinearScratch<'_>) -> Payload<'s> {
        self.gossip().payload(round, scratch)
    }

    fn advance(
        &self,
        round: Round,
        scratch: &mut LinearScratch<'_>,
        theirs: &[f32],
        weight: f32,
        model: &mut [f32],
    ) -> Option<Round> {
        self.gossip().advance(round, scratch, theirs, weight, model)
    }
}
