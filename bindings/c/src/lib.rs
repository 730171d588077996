//! libgradwire: the codecs of gradwire for C and C++. `include/gradwire.h` is made from this crate and is
//! the manual.
//!
//! Every function checks what it can check, runs its body in `raw::boundary`, and keeps nothing anywhere
//! but in the objects that it is given. `raw` turns pointers into references; the other modules only call
//! it.
#![allow(clippy::too_many_arguments, reason = "C has no structs here whose size could change")]
#![allow(non_camel_case_types, reason = "types have the names that C programs use")]

// The order of the header.
pub mod version;
// The results come first there, because every other function returns one.
pub mod results;
// Objects.
pub mod codec;
pub mod layout;
pub mod limits;
// Frames.
pub mod encoder;
pub mod frame;
pub mod memory;
pub mod outline;
// A step of all ranks.
pub mod exchange;
// The rest.
pub mod draws;
pub mod simple;

pub mod raw;
#[cfg(test)]
mod tests;
