//! Whether the threads of a transport can be made. libzmq ends the process when it cannot make one of its
//! own, so they are tried first.

use std::sync::RwLock;
use std::thread;
use std::time::Duration;

use super::error::ZmqError;

/// libzmq's for its sockets and for what is closed, and the engine's.
const THREADS: usize = 3;
/// The system counts a thread until shortly after it has ended.
const UNTIL_UNCOUNTED: Duration = Duration::from_millis(10);

/// Makes as many threads as a transport has, and ends them.
///
/// # Errors
/// `Threads`.
pub(super) fn ensure_threads() -> Result<(), ZmqError> {
    let gate = RwLock::new(());
    let wait = || drop(gate.read());
    thread::scope(|scope| {
        let _closed = gate.write();
        (0..THREADS).try_for_each(|_| thread::Builder::new().spawn_scoped(scope, wait).map(drop))
    })
    .map_err(|error| ZmqError::Threads { error: error.to_string() })?;
    thread::sleep(UNTIL_UNCOUNTED);
    Ok(())
}
