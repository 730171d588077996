//! Each method has one folder. It holds the parameters, the encoder of a unit, the spelling, and the parser
//! of any kind of body that only this method makes.
//!
//! A new codec is a folder and its lines here; see CONTRIBUTING.md. Macros make enums, dispatch, names,
//! numbers and help from the two lists below.

pub(crate) mod choco;
pub(crate) mod dense;
pub(crate) mod dgc;
pub(crate) mod dpsgd;
pub(crate) mod efsign;
pub(crate) mod maxnorm;
pub(crate) mod powergossip;
pub(crate) mod powersgd;
pub(crate) mod qsgd;
pub(crate) mod randomk;
pub(crate) mod redsync;
pub(crate) mod sharedk;
pub(crate) mod sidco;
pub(crate) mod sketch;
pub(crate) mod threshold;
pub(crate) mod topk;

pub use crate::coding::index::IndexChoice;
pub use crate::coding::values::{Rounding, ValueChoice};
pub use crate::momentum::Momentum;
pub use choco::Choco;
pub use dense::{Dense, DenseSum};
pub use dgc::Dgc;
pub use dpsgd::Dpsgd;
pub use efsign::EfSign;
pub use maxnorm::MaxNorm;
pub use powergossip::PowerGossip;
pub use powersgd::PowerSgd;
#[cfg(feature = "alloc")]
pub use powersgd::PowerSgdByUnit;
pub use qsgd::{Cutoff, EntropyChoice, LevelBits, Norm, Qsgd};
pub use randomk::{Block, Estimator, RandomK};
pub use redsync::Redsync;
pub use sharedk::{SharedBy, SharedFeedback, SharedK, SketchSize};
pub use sidco::{Fit, Sidco};
pub use sketch::{AmsGrad, Sketch, SketchError};
pub use threshold::Threshold;
pub use topk::TopK;

/// Every codec by its kind, as `Variant(Type)`. Hands the list to the macro `$callback`.
macro_rules! list_codecs {
    ($callback:ident) => {
        $callback! {
            gather {
                Dense(crate::codecs::dense::Dense),
                TopK(crate::codecs::topk::TopK),
                Threshold(crate::codecs::threshold::Threshold),
                Qsgd(crate::codecs::qsgd::Qsgd),
                Dgc(crate::codecs::dgc::Dgc),
                Sidco(crate::codecs::sidco::Sidco),
                EfSign(crate::codecs::efsign::EfSign),
                Redsync(crate::codecs::redsync::Redsync),
            }
            linear {
                RandomK(crate::codecs::randomk::RandomK),
                MaxNorm(crate::codecs::maxnorm::MaxNorm),
                PowerSgd(crate::codecs::powersgd::PowerSgd),
                SharedK(crate::codecs::sharedk::SharedK),
                Sketch(crate::codecs::sketch::Sketch),
            }
            gossip {
                Dpsgd(crate::codecs::dpsgd::Dpsgd),
                PowerGossip(crate::codecs::powergossip::PowerGossip),
                Choco(crate::codecs::choco::Choco),
            }
        }
    };
}

/// Every kind of body, as `Variant(type that reads it)`. Hands the list to the macro `$callback`.
macro_rules! list_bodies {
    ($callback:ident) => {
        $callback! {
            Dense(crate::codecs::dense::DenseFields),
            Sparse(crate::sparse::SparseFields),
            Levels(crate::codecs::qsgd::LevelsFields),
            Seeded(crate::codecs::randomk::SeededFields),
            Signs(crate::codecs::efsign::SignsFields),
        }
    };
}
pub(crate) use {list_bodies, list_codecs};
