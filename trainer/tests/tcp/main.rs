//! Ranks in processes of their own, over TCP on the loopback interface.

mod meeting;
#[path = "../common/process.rs"]
mod process;
mod restart;
mod same;
mod support;
