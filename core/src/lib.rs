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

mod bits;
mod built;
mod clip;
pub mod codec;
mod codecs;
mod dense;
mod density;
mod dgc;
mod entropy;
mod error;
#[cfg(fuzzing)]
#[doc(hidden)]
pub mod fuzzing;
mod gather;
mod gossip;
mod grad;
mod index;
mod kernels;
mod key;
mod layout;
mod limits;
mod maxnorm;
mod mean;
mod memory;
mod momentum;
mod packets;
#[cfg(feature = "parallel")]
mod parallel;
mod powersgd;
mod qsgd;
mod randomk;
mod rng;
mod schedule;
mod scratch;
mod sidco;
mod source;
mod sparse;
mod spec;
mod threshold;
mod topk;
mod unit;
mod values;
mod wire;
#[cfg(feature = "alloc")]
mod workspace;

pub use clip::clip_norm;
pub use codec::{Edge, Gather, Gossip, Linear, LinearScratch, LinearScratchLen, Payload, Reduction, Round};
pub use codecs::{Codec, GatherCodec, GossipCodec, LinearCodec};
pub use dense::{Dense, DenseSum};
pub use density::Density;
pub use dgc::Dgc;
pub use error::{DecodeError, EncodeError, Field, Limit};
pub use gossip::Dpsgd;
pub use grad::Grad;
pub use half::{bf16, f16};
pub use index::IndexChoice;
pub use key::{Source, StepKey};
#[cfg(feature = "alloc")]
pub use layout::{Layout, Tensor};
pub use layout::{LayoutError, LayoutRef, TensorRef};
pub use limits::Limits;
pub use maxnorm::MaxNorm;
pub use mean::{divide, first_non_finite};
pub use memory::{Memory, MemoryView, Storage, UnitState};
pub use momentum::Momentum;
#[cfg(feature = "alloc")]
pub use packets::PacketEncoder;
pub use packets::{PacketSize, Packets};
#[cfg(feature = "parallel")]
pub use parallel::Parallel;
pub use powersgd::PowerSgd;
pub use qsgd::{EntropyChoice, LevelBits, Norm, Qsgd, Rounding};
pub use rand_core;
pub use randomk::{Estimator, RandomK};
pub use rng::Stream;
pub use schedule::warm_up;
pub use scratch::{Scratch, ScratchLen};
pub use sidco::{Fit, Sidco};
pub use spec::{Expected, MemoryChoice, Spec, SpecError, UnitPolicy};
pub use threshold::Threshold;
pub use topk::TopK;
pub use unit::Unit;
pub use values::ValueChoice;
pub use wire::frame::{Frame, FrameUnit, UnitInfo, frame_extent, frame_scratch_len};
pub use wire::header::{CodecId, Divisor, HEADER_BYTES, Header};
#[cfg(feature = "alloc")]
pub use workspace::{Decoder, Encoder};
