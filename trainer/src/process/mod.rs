//! Requests from outside to this process: from the launcher that started it, and from the user who wants it
//! to end.

pub(crate) mod interrupt;
pub mod launch;
