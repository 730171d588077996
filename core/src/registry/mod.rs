//! The two lists of everything that there is: codecs, and kinds of body. A new one is a line here; enums, dispatch, names,
//! numbers and help follow from the lists.

mod bodies;
mod codecs;

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
            }
            linear {
                RandomK(crate::codecs::randomk::RandomK),
                MaxNorm(crate::codecs::maxnorm::MaxNorm),
                PowerSgd(crate::codecs::powersgd::PowerSgd),
            }
            gossip {
                Dpsgd(crate::codecs::dpsgd::Dpsgd),
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
        }
    };
}

use list_bodies;
use list_codecs;

pub(crate) use bodies::AnyBody;
pub(crate) use codecs::AsUnitCodec;
pub use codecs::{CODECS, Codec, GatherCodec, GossipCodec, LinearCodec};
pub(crate) use codecs::{NAMES, kind_of};
