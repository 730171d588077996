//! `trainer simulate`: the recorded steps of a run, on a cluster that is described.
//!
//! | module | is |
//! | --- | --- |
//! | [`cluster`] | workers, their links, sites, stragglers, loss: a TOML file |
//! | [`traffic`] | when a message arrives, given who else uses the links on its way |
//! | [`exchange`] | the messages of each exchange, in the order in which they depend on one another |
//! | [`replay`] | steps one after the other |

mod cluster;
mod exchange;
mod replay;
mod traffic;

pub(crate) use cluster::Cluster;
pub(crate) use exchange::Route;
pub(crate) use replay::{Outcome, Recorded, RecordedStep, replay};
