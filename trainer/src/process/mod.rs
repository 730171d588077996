//! What this process is told from outside: by the launcher that started it, and by the user who wants it to
//! end.

pub(crate) mod interrupt;
pub mod launch;
