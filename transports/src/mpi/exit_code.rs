//! Exit codes of a job that ends early.

/// Exit code of a job in which a rank panicked: that of Rust's own panics.
pub const PANIC_EXIT_CODE: u8 = 101;
/// Exit code of a job in which a rank stopped answering.
pub const WATCHDOG_EXIT_CODE: u8 = 75;
/// Exit code of a job in which a rank dropped its transport without closing it.
pub const DROPPED_EXIT_CODE: u8 = 70;
