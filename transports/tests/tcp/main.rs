//! Ranks over TCP: the contract, who may come in, what hostile peers can do, and what happens when
//! connections break.

mod breaks;
mod conformance;
mod exchange;
mod flow;
mod hostile;
#[path = "../common/led.rs"]
mod led;
mod meeting;
#[path = "../common/same_mean.rs"]
mod same_mean;
mod support;
