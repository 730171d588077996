//! Every codec again, written for clarity: `Vec<bool>` for bits, sorting for selection, one symbol at a time
//! for entropy coders. Nothing here is fast, and nothing is shared with the crate under test but the types of
//! its public interface.
//!
//! Where a choice is the encoder's (which codebook, which frequency table), the documented rule is followed,
//! so that frames are equal byte for byte.

pub mod amsgrad;
pub mod bits;
pub mod checksum;
pub mod classes;
pub mod context;
mod coordinates;
pub mod decode;
pub mod dgc;
pub mod draws;
pub mod efsign;
pub mod elias;
pub mod encode;
pub mod gain;
pub mod header;
pub mod index;
mod level_stream;
pub mod levels;
pub mod maxnorm;
pub mod planes;
pub mod powersgd;
mod randomk;
pub mod rans;
pub mod redsync;
pub mod rules;
pub mod sharedk;
pub mod sidco;
pub mod sketch;
pub mod values;
pub mod void;
