//! How a job ends when one of its ranks cannot continue: all ranks at once, with a message and a code.

use std::fmt::Display;
use std::io::{Write, stderr};
use std::panic;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering};
use std::thread::{self, ThreadId};
use std::time::Duration;

use super::exit_code::PANIC_EXIT_CODE;
use super::library;

/// How long the communication thread has to end the job before another thread does so.
const GRACE: Duration = Duration::from_secs(1);
const UNKNOWN_RANK: u32 = u32::MAX;

/// This process, as messages name it.
static RANK: AtomicU32 = AtomicU32::new(UNKNOWN_RANK);
static COMMUNICATION_THREAD: OnceLock<ThreadId> = OnceLock::new();
/// 0: no rank asked.
static REQUESTED: AtomicU8 = AtomicU8::new(0);

/// Prints the reason on standard error and ends every process of the job with `code`; 0 is replaced by 1.
///
/// The communication thread does it, because only it may use MPI. If it hangs inside the library, this thread
/// does it after a second. If the library does not return from its abort, an alarm ends the process five
/// seconds later, which the launcher treats as a failure too.
pub fn abort(code: u8, why: &dyn Display) -> ! {
    let rank = RANK.load(Ordering::Relaxed);
    let message = match rank {
        UNKNOWN_RANK => format!("{why}\n"),
        rank => format!("rank {rank}: {why}\n"),
    };
    // In one piece, because other ranks print too. If standard error is closed, there is no one left to tell.
    let _ = stderr().write_all(message.as_bytes());
    end(code.max(1))
}

fn end(code: u8) -> ! {
    REQUESTED.store(code, Ordering::Relaxed);
    if COMMUNICATION_THREAD.get().is_some_and(|thread| *thread != thread::current().id()) {
        thread::sleep(GRACE);
    }
    library::end_job(code)
}

/// Called by the communication thread in every turn.
pub(super) fn end_if_requested() {
    match REQUESTED.load(Ordering::Relaxed) {
        0 => {}
        code => library::end_job(code),
    }
}

/// Makes a panic of any thread end the job, after the message that it would print anyway. Otherwise a panic
/// on one rank leaves the others waiting for ever: MPI's finalization, which unwinding would run, waits for
/// all.
pub(super) fn on_panic() {
    static INSTALLED: AtomicBool = AtomicBool::new(false);
    if INSTALLED.swap(true, Ordering::Relaxed) {
        return;
    }
    let print = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        print(info);
        end(PANIC_EXIT_CODE)
    }));
}

/// The calling thread is the one that may use MPI.
pub(super) fn is_communication_thread() {
    let _ = COMMUNICATION_THREAD.set(thread::current().id());
}

/// Messages name this rank from now on.
pub(super) fn know_rank(rank: u32) {
    RANK.store(rank, Ordering::Relaxed);
}
