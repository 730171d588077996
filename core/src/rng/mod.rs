//! The counter-based generator of every random draw of a codec. `stream` defines the draws; the kernels make
//! many at once.

pub(crate) mod stream;

pub(crate) mod key;

mod permutation;

pub(crate) use permutation::Permutation;
pub(crate) use stream::Purpose;
pub use stream::Stream;

#[cfg(test)]
mod tests;
