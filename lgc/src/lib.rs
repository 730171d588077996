#![doc = include_str!("../README.md")]

pub mod adam;
mod apart;
pub mod autoencoder;
mod kept;
mod layer;
mod lead;
mod led;
pub mod lessons;
mod product;
mod rounds;
mod settings;
mod sketch;

use gradwire::experiments::OwnCodec;
use gradwire::registry::Law;

pub use crate::kept::Counts;
use crate::settings::Lgc;

/// The codec. [Register](OwnCodec::register) it, or hand it to the trainer's `main_with`.
///
/// # Determinism
/// All arithmetic is of f32 and f64 in a written order, so ranks that train the same autoencoder on the same
/// values have the same bits, whatever their machines.
///
/// # Source
/// Abrahamyan et al.: Learned Gradient Compression for Distributed Deep Learning (arXiv 2103.08870). The
/// positions of one worker for all: ScaleCom (Chen et al., NeurIPS 2020).
pub fn codec() -> OwnCodec {
    let summary = "values that an autoencoder shortens, at coordinates that one worker chooses";
    let examples =
        ["x:lgc", "x:lgc:top=0.1,dense_steps=2,train_steps=3,gate=0.9,order=index", "x:lgc:decoders=4"];
    OwnCodec::linear("lgc", summary, Law::Rounded, Lgc::read).keys(Lgc::KEYS).examples(&examples)
}
