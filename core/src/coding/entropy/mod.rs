//! Entropy coders: small numbers in, bits out; knows nothing of frames.
//!
//! All coders are total on the decoding side: any bits decode to the requested number of values, each in
//! range.

pub(crate) mod adaptive;
pub(crate) mod elias;
pub(crate) mod logistic;
pub(crate) mod mixer;
pub(crate) mod range;
pub(crate) mod rans;
pub(crate) mod section;
pub(crate) mod shares;
