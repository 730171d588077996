//! Every name that this package takes from the codec crate, and every way of asking it that may yet change,
//! so that a move there is one edit here.

pub(crate) use gradwire::arithmetic::divide;
pub(crate) use gradwire::experiments::{
    BodyOutline, EncodeBody, Experiment, Keys, OwnCodec, ParseBody, Refused, UnitBody,
};
pub(crate) use gradwire::format::{CodecId, Divisor, Header, Limit, UnitInfo, frame_extent};
pub(crate) use gradwire::half::{bf16, f16};
pub(crate) use gradwire::packets::{PacketEncoder, PacketSize};
pub(crate) use gradwire::plan::Plan;
pub(crate) use gradwire::registry::{Law, LinearCodec};
pub(crate) use gradwire::rounds::{Payload, Reduction, Round, RoundBuffers, UnitStep};
pub(crate) use gradwire::state::{ArrayLen, Keeper, MemoryChoice, UnitState};
pub(crate) use gradwire::{
    Codec, DecodeError, Decoder, Density, EncodeError, Encoder, Frame, Gather, Grad, Layout, LayoutRef,
    Limits, Memory, Scratch, Source, Spec, SpecError, StepInput, StepKey, Tensor, Unit,
};
pub(crate) use gradwire_transports::exchange::ExchangeError;

/// Names of the codecs, separated by commas.
pub(crate) fn codecs() -> String {
    Spec::names().join(", ")
}

/// The name of the method that made a frame.
pub(crate) fn codec_name(codec: CodecId) -> &'static str {
    codec.name().unwrap_or("unknown")
}

/// Whether the codec makes frames, and not rounds alone.
pub(crate) fn has_frames(codec: &Codec) -> bool {
    codec.capabilities().has_frames
}

/// Whether all frames of the codec are as long as `max_frame_bytes` says, but for some bytes of each unit.
pub(crate) fn has_one_length(codec: &Codec) -> bool {
    matches!(codec.name(), "none" | "f16" | "bf16")
}
