//! What the benches share: inputs, the memcpy that everything is measured against, and what a row of the
//! results says.
//!
//! A bench asks a [`Lab`] to [`compare`](Lab::compare) some work. Every run of the work is followed by a run
//! of memcpy over as many bytes as the f32 gradient has, so that whatever else the machine does hits both
//! alike; the ratio of the medians is the result, and the bytes and the error that the work bought stand
//! beside it.

mod buffer;
mod codec_run;
mod inputs;
mod lab;
pub mod peers;
mod rows;
mod settings;
mod targets;

pub use buffer::Aligned;
pub use codec_run::{CodecRun, DecodeRun, squared_error};
pub use inputs::{Gradient, Input};
pub use lab::{Group, Lab, Quality, Work, harness};
pub use rows::with_all_codecs;
pub use settings::Settings;
pub use targets::target;
