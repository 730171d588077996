//! A server and workers in processes of their own, over ZeroMQ with keys.

mod absence;
mod elastic;
mod leaving;
mod outsiders;
#[path = "../common/process.rs"]
mod process;
mod refusals;
mod restart;
mod resume;
mod same;
mod support;
mod trace;
