//! Gradient compression codecs with a specified, checksummed wire format.
//!
//! A codec turns a gradient into a *frame*: one self-describing message, specified in FORMAT.md. With error
//! feedback, a codec keeps what it does not send in a [`Memory`] and adds it to the next gradient, so nothing
//! is lost.
//!
#![cfg_attr(feature = "alloc", doc = "```")]
#![cfg_attr(not(feature = "alloc"), doc = "```ignore")]
//! use gradwire::{Decoder, Encoder, Grad, LayoutRef, Limits, Memory, Source, Spec, StepInput, StepKey};
//!
//! let grad = [0.5, -3.0, 0.0, 1.0];
//! let layout = LayoutRef::flat(grad.len());
//! let spec = Spec::parse("topk:density=0.25")?;
//! let units: Vec<_> = spec.units.units(&layout).collect();
//! let mut residual = [0.0; 4];
//! let mut memory = Memory::new(&mut residual);
//!
//! let key = StepKey { seed: 1, step: 0, source: Source::Rank(0) };
//! let mut encoder = Encoder::new();
//! let step = StepInput { key, layout: &layout, units: &units, grad: Grad::F32(&grad) };
//! let frame = encoder.encode(&spec.codec, &step, Some(&mut memory))?;
//!
//! let mut decoder = Decoder::new();
//! let frame = decoder.parse(frame, &layout, &Limits::for_layout(&layout))?;
//! let mut sum = [0.0; 4];
//! frame.add_scaled_to(1.0, &mut sum);
//! assert_eq!(sum, [0.0, -3.0, 0.0, 0.0]);
//! assert_eq!(memory.residual(), [0.5, 0.0, 0.0, 1.0]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # The life of a frame
//! The caller has a flat gradient and its [`LayoutRef`], which is cut into [`Unit`]s. A [`Gather`] codec
//! encodes the units into a frame; a [`StepKey`] determines every random draw. The receiver calls
//! [`Frame::parse`], which checks the bytes once, completely, and [`Frame::add_scaled_to`], which adds the
//! values to a sum. Codecs whose payloads may be summed are [`Linear`] and use all-reduce instead.
//!
//! The root holds what one step needs. The modules hold the rest:
//!
//! | module | holds |
//! | --- | --- |
//! | [`codecs`] | the methods with their parameters |
//! | [`registry`] | the list of all codecs |
//! | [`rounds`] | what linear and gossip codecs need |
//! | [`packets`] | frames for datagrams |
//! | [`format`](mod@format) | the parts of a message |
//! | [`rules`] | several codecs for one model |
//! | [`experiments`] | codecs of other crates |
//! | [`state`] | the parts of a memory |
//! | [`arithmetic`] | means, norms and loops of the caller |
//! | [`random`] | the draws |
//!
//! # Features
//! | feature | adds |
//! | --- | --- |
//! | `std` (default) | run-time detection of CPU features; implies `alloc` |
//! | `parallel` | `Parallel`: the same frames, encoded on the threads of a rayon pool; implies `std` |
//! | `alloc` | types that own their buffers: `Layout`, `Encoder`, `Decoder`; rules by tensor name; implies `full` |
//! | `full` | entropy coders (codebooks, rANS, Elias codes), half precision, ternary levels, Euclidean norms, frames of random-k, packets, PowerSGD |
//!
//! Encoding and decoding need no heap. Without `full` the code fits a microcontroller. Such a build refuses
//! what it leaves out with `NotBuilt`; everything else has the same bytes.
#![no_std]
#![deny(unsafe_code)]

#[cfg(all(doctest, feature = "alloc"))]
#[doc = include_str!("../README.md")]
struct Readme;

#[cfg(feature = "alloc")]
extern crate alloc;
#[cfg(any(feature = "std", test))]
extern crate std;

mod bits;
mod built;
mod codec;
pub mod codecs;
mod coding;
mod corrected;
mod error;
mod frame;
#[cfg(fuzzing)]
#[doc(hidden)]
pub mod fuzzing;
mod gradient;
mod kernels;
mod keys;
mod limits;
mod memory;
mod momentum;
#[cfg(feature = "alloc")]
mod owned;
#[cfg(feature = "alloc")]
pub mod plan;
pub mod registry;
mod rng;
mod scratch;
mod sparse;
mod spec;
#[cfg(feature = "parallel")]
mod threads;
mod wire;

pub use codec::Linear;
pub use error::{DecodeError, EncodeError};
pub use frame::Frame;
pub use frame::gather::{Gather, StepInput};
pub use gradient::density::Density;
pub use gradient::grad::Grad;
#[cfg(feature = "alloc")]
pub use gradient::layout::{Layout, Tensor};
pub use gradient::layout::{LayoutError, LayoutRef, TensorRef};
pub use gradient::unit::Unit;
pub use half;
pub use keys::SpecError;
pub use limits::Limits;
pub use memory::Memory;
#[cfg(feature = "alloc")]
pub use owned::buffers::{Decoder, Encoder};
#[cfg(feature = "parallel")]
pub use owned::parallel::Parallel;
#[cfg(feature = "alloc")]
pub use owned::selection::Selection;
#[cfg(feature = "alloc")]
pub use owned::trial::{Trial, Tried};
pub use registry::codecs::Codec;
pub use rng::key::{Source, StepKey};
pub use scratch::{Scratch, ScratchLen};
pub use spec::{Spec, UnitPolicy};

/// Operations on whole gradients other than encoding.
pub mod arithmetic;

/// Codecs of other crates.
///
/// FORMAT.md reserves the codec numbers 0xf0 to 0xfe for them, each with a kind of body of its own. A codec
/// implements [`ParseBody`], which reads such bodies, and [`EncodeBody`], which writes them. `Experimental`
/// makes a [`Gather`] codec of the two. Header, units, checksum, limits, residual and `give_back` are those
/// of every other codec. The crate itself subtracts the decoded values from the residual, so sent and kept
/// add up whatever the codec does.
///
/// A reader refuses frames of an experiment unless it gets the experiment's parser: `Frame::parse_with`,
/// `Decoder::parse_with`, `Header::parse_with`. Writing and reading them needs the feature `full`.
///
/// With the feature `std`, `OwnCodec` registers a codec for the whole process: it then has a spelling,
/// `x:NAME:keys`, and every reader has its parser. docs/own-codec.md shows it from the first line on.
///
/// [`ParseBody`]: experiments::ParseBody
/// [`EncodeBody`]: experiments::EncodeBody
pub mod experiments {
    #[cfg(feature = "std")]
    pub use crate::codec::own::{Own, OwnCodec, RegisterError};
    pub use crate::codec::{BodyOutline, EncodeBody, ParseBody, Refused, ShareNumbers, UnitBody, UnitSource};
    #[cfg(feature = "full")]
    pub use crate::frame::experiment::Experimental;
    #[cfg(feature = "full")]
    pub use crate::frame::frame_scratch_len_with;
    pub use crate::keys::Keys;
    pub use crate::wire::ids::Experiment;
}

/// The parts of a message, for readers that inspect before they decode.
pub mod format {
    pub use crate::error::{Field, Limit};
    pub use crate::frame::header::{Divisor, HEADER_BYTES, Header, VERSIONS};
    pub use crate::frame::outline::Outline;
    pub use crate::frame::void::VoidFrame;
    pub use crate::frame::{FrameUnit, UnitInfo, frame_extent, frame_scratch_len};
    pub use crate::keys::Allowed;
    pub use crate::wire::ids::CodecId;
}

/// Gradients cut into frames that fit datagrams.
pub mod packets {
    pub use crate::codec::PacketSize;
    pub use crate::frame::packets::Packets;
    #[cfg(feature = "alloc")]
    pub use crate::owned::packets::PacketEncoder;
}

/// Random draws that depend only on their key and position.
pub mod random {
    pub use crate::rng::Stream;
    pub use rand_core;
}

/// Codecs whose payloads are summed, or exchanged between neighbours, round by round; and rounds before a
/// frame.
pub mod rounds {
    pub use crate::codec::{Edge, Gossip, Payload, Reduction, Round, Turn, UnitStep};
    pub use crate::frame::rounds_first::{AfterRounds, RoundsFirst};
    pub use crate::kernels::bytes_of;
    pub use crate::memory::MemoryView;
    #[cfg(feature = "alloc")]
    pub use crate::owned::rounds::RoundBuffers;
    pub use crate::scratch::{LinearScratch, LinearScratchLen};
}

/// Several codecs for one model, by the names of its tensors.
#[cfg(feature = "alloc")]
pub mod rules {
    pub use crate::spec::rules::{Rule, Rules, RulesError, RulesProblem};
}

/// The parts of a memory.
pub mod state {
    pub use crate::keys::MemoryChoice;
    #[cfg(feature = "alloc")]
    pub use crate::memory::Snapshot;
    pub use crate::memory::{
        ArrayLen, DecayError, Dropped, Keeper, Moved, Remapped, SAVED_VERSIONS, SaveError, StateLen, Storage,
        UnitState,
    };
}
