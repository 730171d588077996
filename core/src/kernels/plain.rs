//! Small steps that are too short to choose an instruction set for at run time: where every machine of a kind
//! has vectors, those of its own folder take the place of these. These define what comes out.

pub(crate) mod mixing;
pub(crate) mod shares;
