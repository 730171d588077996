//! Small steps that are too short to choose an instruction set for at run time. On architectures where every
//! machine has vectors, versions in the architecture's folder replace these. These define the results.

pub(crate) mod mixing;
pub(crate) mod shares;
