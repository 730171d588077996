//! What the tests share: the naive reference, inputs by name, and the manifests of golden and bad frames.
//!
//! | module | holds |
//! | --- | --- |
//! | [`naive`] | every codec again, written for clarity, and a decoder with every check |
//! | [`inputs`] | gradients that a short name and a seed describe, the same on every machine |
//! | [`golden`] | the manifest of `golden/`: how each frame was made and what it decodes to |
//! | [`bad`] | the manifest of `bad/`: frames that must be refused, and with which error |
//! | [`messages`] | the manifest of `messages/`: frames of several rules |
//! | [`fuzzed`] | the laws of fuzz targets that go through the list of codecs |
//! | [`payloads`] | the manifest of `golden/rounds/`: payloads of rounds, and what workers keep |
//! | [`positions`] | what the positions of real gradients cost, and what they should cost |
//! | [`rounds`] | linear codecs over several workers at once, and gossip over one edge |
//! | [`run`] | encoding and decoding through the public interface, in buffers of exactly the stated size |
//! | [`spellings`] | the codecs that a test goes through: its own, and every example of the list |
//! | [`tables`] | the tables of the documentation that follow from the registry |
//! | [`voids`] | the manifest of `golden/voids/`: void frames and what they say |

#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
mod readme {}

#[cfg(doctest)]
#[doc = include_str!("../../docs/training-loop.md")]
mod training_loop {}

pub mod bad;
pub mod fuzzed;
pub mod golden;
pub mod gradients;
pub mod inputs;
pub mod manifest;
pub mod messages;
pub mod naive;
pub mod payloads;
pub mod positions;
pub mod rounds;
pub mod run;
pub mod spellings;
pub mod tables;
pub mod voids;
