//! Ctrl-C: the first asks for an orderly end, the second ends at once.

use std::sync::atomic::{AtomicBool, Ordering};

/// What a shell reports for a program that SIGINT ended.
pub(crate) const EXIT_CODE: u8 = 130;

static REQUESTED: AtomicBool = AtomicBool::new(false);

/// Becomes true when the user asks for an end.
pub(crate) fn requested() -> &'static AtomicBool {
    &REQUESTED
}

/// Listens from now on. Where that is impossible, Ctrl-C ends the program at once, as it does without.
pub(crate) fn listen() {
    let _ = ctrlc::set_handler(|| {
        if REQUESTED.swap(true, Ordering::Relaxed) {
            std::process::exit(i32::from(EXIT_CODE));
        }
    });
}
