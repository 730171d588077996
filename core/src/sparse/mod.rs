//! Sparse units: the part that all sparsifiers share, from chosen coordinates to bytes and back.

mod encode;
mod sparsifier;
mod view;

pub(crate) use encode::SparseCoding;
pub(crate) use sparsifier::Sparsifier;
pub(crate) use view::SparseFields;
