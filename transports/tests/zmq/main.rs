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
mod slow;
mod support;
