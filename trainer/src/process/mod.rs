//! Requests from outside to this process: from the launcher that started it, and from the user who wants it
//! to end. Its threads, which the system may refuse; and how a command is written for a shell.

#[cfg(unix)]
mod ignored;
pub(crate) mod interrupt;
pub mod launch;
pub(crate) mod shell;
pub mod threads;
