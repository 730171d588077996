//! Every name that this package takes from the codec crate, and every way of asking it that may yet change, so that a move there is
//! one edit here.

pub(crate) use gradwire::{
    Codec, CodecId, DecodeError, Decoder, DenseSum, Density, Divisor, EncodeError, Encoder, Frame, Gather,
    Grad, Header, Layout, LayoutRef, Limit, Limits, Linear, LinearCodec, LinearScratch, Memory, MemoryChoice,
    PacketEncoder, PacketSize, Payload, Reduction, Round, Scratch, Source, Spec, StepKey, Tensor, Unit,
    UnitInfo, UnitState, bf16, divide, f16, frame_extent,
};

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

/// The codec as what has rounds.
pub(crate) fn rounds_of(codec: &LinearCodec) -> &dyn Linear {
    codec.rounds()
}
