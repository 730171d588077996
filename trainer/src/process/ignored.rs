//! Whether whoever started this process has a signal ignored.

use std::mem::MaybeUninit;
use std::ptr;

/// Whether the signal is ignored now.
#[allow(unsafe_code, reason = "no safe library asks the system this")]
pub(super) fn is_ignored(signal: i32) -> bool {
    let mut action = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: without a new action, sigaction changes nothing; it writes the present one to `action`, which
    // has its size and is valid when all zero.
    let (result, action) =
        unsafe { (libc::sigaction(signal, ptr::null(), action.as_mut_ptr()), action.assume_init()) };
    result == 0 && action.sa_sigaction == libc::SIG_IGN
}
