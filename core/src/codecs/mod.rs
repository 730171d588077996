//! One folder for each codec: its parameters, how it encodes a unit, and what reads a body that only it makes.

pub(crate) mod dense;
pub(crate) mod dgc;
pub(crate) mod dpsgd;
pub(crate) mod maxnorm;
pub(crate) mod powersgd;
pub(crate) mod qsgd;
pub(crate) mod randomk;
pub(crate) mod sidco;
pub(crate) mod threshold;
pub(crate) mod topk;
