//! Checks that the imports of a crate point one way.
//!
//! ARCHITECTURE.md states the order of each crate once, in a fenced block ([`Order`]). [`Crate`] is what
//! `syn` parses of the crate's files. An [`Arrow`] leads from the file that uses something to the file that
//! defines it: names that are re-exported are followed to their definition. [`check`] compares the two:
//!
//! 1. No arrow goes from a lower layer to a higher one.
//! 2. Files that need each other in a circle lie in one folder of one room, and are at most
//!    [`LARGEST_CIRCLE`].
//!
//! Code under `#[cfg(test)]` is left out. Three things cannot be seen: methods and other associated items,
//! which have no path of their own; names that a macro makes, which count as defined in the file of the
//! module they are looked for in; and what a macro's tokens mean, so every path in them counts as if it stood
//! outside.

mod arrows;
mod circles;
mod names;
mod order;
mod rules;
mod source;

pub use arrows::{Arrow, Place};
pub use order::Order;
pub use rules::{Findings, LARGEST_CIRCLE, check, floors};
pub use source::{Crate, Sources, sources_below};
