//! libgradwire: the codecs of gradwire for C and C++. `include/gradwire.h` is made from this crate and is
//! the manual.
//!
//! Every function checks what it can check, runs its body in `raw::boundary`, and keeps nothing anywhere
//! but in the objects that it is given. `raw` turns pointers into references; the other modules only call
//! it. Without the feature `heap`, the library allocates nothing and needs no operating system.
#![cfg_attr(not(any(feature = "heap", test)), no_std)]
#![allow(clippy::too_many_arguments, reason = "C has no structs here whose size could change")]
#![allow(non_camel_case_types, reason = "types have the names that C programs use")]

// The order of the header.
pub mod version;
// The results come first there, because every other function returns one.
pub mod results;
// Before the objects' own functions, because programs begin with `_new`.
#[cfg(feature = "heap")]
pub mod heap;
// Objects.
pub mod codec;
pub mod layout;
pub mod limits;
#[cfg(feature = "heap")]
pub mod spelling;
// Frames.
pub mod encoder;
pub mod frame;
pub mod memory;
#[cfg(feature = "heap")]
pub mod outline;
// A step of all ranks.
#[cfg(feature = "heap")]
pub mod exchange;
#[cfg(feature = "heap")]
pub mod rounds;
// The rest.
pub mod draws;
pub mod small;

#[cfg(feature = "heap")]
mod listed;
mod method;
pub mod raw;
#[cfg(test)]
mod tests;
