//! The engine of `gradwire.torch`: a thread that owns the exchange and the mesh of one model at one rank.
//!
//! Python hands over buckets of gradients as addresses of tensors. The thread encodes them, exchanges,
//! decodes, and writes the means where Python wants them, without the GIL; it calls back when a bucket is
//! done. Each group of tensors with one codec is a lane: an exchange of its own, over the transport that all
//! share.

mod bucket;
mod engine;
mod failing;
mod fork;
mod handle;
mod kept;
mod lane;
mod lanes;
mod pool;
mod probe;
mod says;
mod shared;
mod step;
mod view;

pub(crate) use self::bucket::{Bucket, Share};
pub(crate) use self::handle::Handle;
pub(crate) use self::view::View;
