//! Gradient compression codecs with a specified, checksummed wire format.
//!
//! A gradient goes in, a *frame* comes out: one self-describing message that any reader of FORMAT.md can decode. What a
//! lossy codec does not send is kept in a [`Memory`] and added to the next gradient, so nothing is lost in silence.
//!
#![cfg_attr(feature = "alloc", doc = "```")]
#![cfg_attr(not(feature = "alloc"), doc = "```ignore")]
//! use gradwire::{Decoder, Encoder, Grad, LayoutRef, Limits, Memory, Source, Spec, StepKey};
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
//! let frame = encoder.encode(&spec.codec, key, &layout, &units, Grad::F32(&grad), Some(&mut memory))?;
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
//! A flat gradient and its [`LayoutRef`], cut into [`Unit`]s, go through a [`Gather`] codec with a [`StepKey`] that names
//! every random draw; [`Frame::parse`] checks received bytes once, completely, and [`Frame::add_scaled_to`] adds them up.
//! Codecs whose payloads may be summed are [`Linear`] and ride on all-reduce instead.
//!
//! # Features
//! | feature | adds |
//! | --- | --- |
//! | `std` (default) | run-time detection of CPU features; implies `alloc` |
//! | `parallel` | `Parallel`: the same frames, encoded on the threads of a rayon pool; implies `std` |
//! | `alloc` | owned conveniences: `Layout`, `Encoder`, `Decoder`; implies `full` |
//! | `full` | entropy coders (codebooks, rANS, Elias codes), half precision, ternary levels, Euclidean norms, frames of random-k, packets, PowerSGD |
//!
//! Encoding and decoding need no heap. Without `full` the code fits a microcontroller; what it leaves out is refused with
//! `NotBuilt`, and everything else has the same bytes.
#![no_std]
#![deny(unsafe_code)]

#[cfg(all(doctest, feature = "alloc"))]
#[doc = include_str!("../README.md")]
struct Readme;

#[cfg(feature = "alloc")]
extern crate alloc;
#[cfg(any(feature = "std", test))]
extern crate std;

mod arithmetic;
mod bits;
mod built;
pub mod codec;
mod codecs;
mod coding;
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
mod registry;
mod rng;
mod scratch;
mod source;
mod sparse;
mod spec;
#[cfg(feature = "parallel")]
mod threads;
mod wire;

pub use arithmetic::clip::clip_norm;
pub use arithmetic::mean::{divide, first_non_finite};
pub use codec::{Capabilities, CodecEntry, Edge, Gossip, Law, Linear, PacketSize, Payload, Reduction, Round};
pub use codecs::*;
pub use coding::index::IndexChoice;
pub use coding::values::{Rounding, ValueChoice};
pub use error::{DecodeError, EncodeError, Field, Limit};
pub use frame::gather::Gather;
pub use frame::header::{Divisor, HEADER_BYTES, Header};
pub use frame::packets::Packets;
pub use frame::{Frame, FrameUnit, UnitInfo, frame_extent, frame_scratch_len};
pub use gradient::density::Density;
pub use gradient::grad::Grad;
#[cfg(feature = "alloc")]
pub use gradient::layout::{Layout, Tensor};
pub use gradient::layout::{LayoutError, LayoutRef, TensorRef};
pub use gradient::unit::Unit;
pub use half::{bf16, f16};
pub use keys::{Allowed, MemoryChoice, SpecError};
pub use limits::Limits;
pub use memory::{Memory, MemoryView, Storage, UnitState};
pub use momentum::Momentum;
#[cfg(feature = "alloc")]
pub use owned::buffers::{Decoder, Encoder};
#[cfg(feature = "alloc")]
pub use owned::packets::PacketEncoder;
#[cfg(feature = "parallel")]
pub use owned::parallel::Parallel;
pub use rand_core;
pub use registry::{CODECS, Codec, GatherCodec, GossipCodec, LinearCodec};
pub use rng::Stream;
pub use rng::key::{Source, StepKey};
pub use scratch::{LinearScratch, LinearScratchLen, Scratch, ScratchLen};
pub use spec::schedule::warm_up;
pub use spec::{Spec, UnitPolicy};
pub use wire::ids::CodecId;
