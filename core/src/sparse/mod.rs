//! Sparse units: the part that all sparsifiers share, from chosen coordinates to bytes and back.

mod encode;
mod view;

pub(crate) use encode::{
    SparseCoding, decide, encode_selected, least_body_bytes, max_body_bytes, scratch_len, split_scratch,
};
pub(crate) use view::SparseFields;
