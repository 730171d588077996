//! Sparse units: the part that all sparsifiers share, from chosen coordinates to bytes and back.

mod encode;
mod pieces;
mod sparsifier;
mod spelling;
mod view;

pub(crate) use encode::SparseCoding;
#[cfg(feature = "alloc")]
pub(crate) use encode::encode_selected;
pub(crate) use sparsifier::Sparsifier;
pub(crate) use spelling::{coding_methods, density_methods, sparse_keys};
pub(crate) use view::SparseFields;
