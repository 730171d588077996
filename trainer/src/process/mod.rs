//! Requests from outside to this process: from the launcher that started it, and from the user who wants it
//! to end. And its threads, which the system may refuse.

#[cfg(unix)]
mod ignored;
pub(crate) mod interrupt;
pub mod launch;
pub mod threads;
