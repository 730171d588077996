//! Ranks over ZeroMQ: the contract, who may come in, what hostile peers can do, and what happens when
//! connections break.

mod begin;
mod breaks;
mod conformance;
mod exchange;
mod hostile;
mod keys;
mod packets;
mod proxy;
mod raw;
mod roll;
#[path = "../common/same_mean.rs"]
mod same_mean;
mod slow;
mod support;
