//! Ctrl-C, and the signal that ends a process from outside: the first asks for an orderly end, the second
//! ends at once.

use std::sync::atomic::{AtomicBool, Ordering};

/// The code that a shell reports for a program that SIGINT ended.
pub(crate) const EXIT_CODE: u8 = 130;

static REQUESTED: AtomicBool = AtomicBool::new(false);

/// Becomes true when the user asks for an end.
pub(crate) fn requested() -> &'static AtomicBool {
    &REQUESTED
}

/// Listens from now on. If that is impossible, Ctrl-C ends the program at once, as it does without this.
pub(crate) fn listen() {
    let _ = ctrlc::set_handler(|| {
        if REQUESTED.swap(true, Ordering::Relaxed) {
            std::process::exit(i32::from(EXIT_CODE));
        }
    });
}

/// As [`listen`], for a process that may get the same signal twice, from the terminal and from its launcher.
/// The launcher ends it if it does not end in time.
#[cfg(feature = "mpi")]
pub(crate) fn listen_under_a_launcher() {
    let _ = ctrlc::set_handler(|| REQUESTED.store(true, Ordering::Relaxed));
}
