//! Threads, which the system may refuse to make.

use std::io;
use std::sync::RwLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, ScopedJoinHandle};

/// The system makes no further thread.
#[derive(Debug, thiserror::Error)]
#[error(
    "no thread for {what}: {error}; use fewer, or raise the limit on processes: \
     ulimit -u, TasksMax of a systemd unit, the pids limit of a container"
)]
pub struct NoThread {
    what: String,
    error: io::Error,
}

impl NoThread {
    /// What the system's refusal means, for a thread of this purpose.
    pub(crate) fn of(what: impl Into<String>) -> impl Fn(io::Error) -> Self {
        let what = what.into();
        move |error| Self { what: what.clone(), error }
    }
}

/// The results of `work` in `count` threads that begin at the same time, this one included; `count` is at
/// least 1. If a thread cannot be made, none begins.
///
/// # Errors
///
/// [`NoThread`].
///
/// # Panics
///
/// If `work` does, in any of the threads.
pub(crate) fn at_once<T: Send>(
    count: usize,
    what: &str,
    work: impl Fn() -> T + Sync,
) -> Result<Vec<T>, NoThread> {
    let (gate, is_called_off) = (RwLock::new(()), AtomicBool::new(false));
    let begin = || {
        let _open = gate.read();
        (!is_called_off.load(Ordering::Relaxed)).then(&work)
    };
    thread::scope(|scope| {
        let closed = gate.write();
        let spawn = |number: usize| {
            let failed = NoThread::of(format!("{what} {} of {count}", number + 1));
            thread::Builder::new().spawn_scoped(scope, begin).map_err(failed)
        };
        let others: Result<Vec<ScopedJoinHandle<'_, _>>, NoThread> = (1..count).map(spawn).collect();
        is_called_off.store(others.is_err(), Ordering::Relaxed);
        drop(closed);
        let others = others?;
        let own = work();
        let joined = others.into_iter().map(ScopedJoinHandle::join);
        let results = joined.map(|result| result.unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        Ok(std::iter::once(own).chain(results.flatten()).collect())
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;

    use super::*;

    #[test]
    fn threads_work_at_the_same_time() {
        // Each waits for the others.
        let all = Barrier::new(3);
        let together = at_once(3, "x", || {
            all.wait();
            thread::current().id()
        });
        let together = together.unwrap();
        assert!(together.len() == 3 && together[0] != together[1] && together[1] != together[2]);
    }
}
