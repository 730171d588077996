//! Signals that ask for an end: Ctrl-C, SIGTERM, SIGHUP of a terminal that closes, and the warnings of batch
//! systems. The first one asks for an orderly end, a later one ends at once. docs/operating.md says which
//! signal does what.

use std::sync::Arc;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, Ordering};

use super::threads::NoThread;

/// The code that a shell reports for a program that SIGINT ended.
pub(crate) const EXIT_CODE: u8 = 130;

static REQUESTED: LazyLock<Arc<AtomicBool>> = LazyLock::new(Arc::default);

/// Becomes true when the user asks for an end.
pub(crate) fn requested() -> &'static AtomicBool {
    &REQUESTED
}

/// What a second signal does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Again {
    EndsAtOnce,
    /// Nothing more: the launcher ends a process that does not end in time.
    #[cfg(feature = "mpi")]
    IsTheSame,
}

/// Signals end a program at once, unless it says otherwise; but the kernel keeps them from the first process
/// of a container that does not ask for them. Asks for them there, until [`listen`].
pub(crate) fn end_at_once_as_first_process() {
    #[cfg(unix)]
    if std::process::id() == 1 {
        system::end_at_once();
    }
}

/// A write beyond the limit on the size of files (`ulimit -f`) fails then, as on a full disk, and the process
/// says so: without it the system would kill the process.
pub(crate) fn outlive_limits_on_files() {
    #[cfg(unix)]
    system::outlive_limits_on_files();
}

/// Listens from now on.
///
/// # Errors
///
/// No thread can be made that waits for signals.
pub(crate) fn listen() -> Result<(), NoThread> {
    system::listen(Again::EndsAtOnce)
}

/// As [`listen`], for a process that may get the same signal twice, from the terminal and from its launcher.
#[cfg(feature = "mpi")]
pub(crate) fn listen_under_a_launcher() -> Result<(), NoThread> {
    system::listen(Again::IsTheSame)
}

#[cfg(unix)]
mod system {
    use std::sync::atomic::AtomicBool;
    use std::sync::mpsc::sync_channel;
    use std::sync::{Arc, LazyLock};
    use std::time::{Duration, Instant};
    use std::{io, thread};

    use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGUSR2, SIGXCPU, SIGXFSZ};
    use signal_hook::flag;
    use signal_hook::iterator::Signals;
    use tracing::warn;

    use super::{Again, EXIT_CODE, NoThread, Ordering, requested};
    use crate::process::ignored::is_ignored;
    #[cfg(feature = "mpi")]
    use crate::process::launch::Launch;

    /// Signals within this time are of one event: `timeout` sends SIGTERM to a process and to its group, and
    /// a closing session sends SIGTERM and SIGHUP.
    const ONE_EVENT: Duration = Duration::from_secs(1);

    const HEEDED: [i32; 6] = [SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2, SIGXCPU];
    /// They may come again on their own: the system repeats SIGXCPU every second.
    const NEVER_IMPATIENT: [i32; 2] = [SIGHUP, SIGXCPU];

    /// Whether signals end the process at once.
    static AT_ONCE: LazyLock<Arc<AtomicBool>> = LazyLock::new(|| Arc::new(AtomicBool::new(true)));

    /// What was ignored when the program started stays ignored: `nohup` and background jobs of a shell rely
    /// on that.
    fn heeded() -> Vec<i32> {
        HEEDED.into_iter().filter(|&one| !is_ignored(one)).collect()
    }

    pub(super) fn end_at_once() {
        for signal in heeded() {
            // Where that fails, signals do what they do without it.
            let _ = flag::register_conditional_shutdown(signal, EXIT_CODE.into(), Arc::clone(&AT_ONCE));
        }
    }

    pub(super) fn outlive_limits_on_files() {
        // Where that fails, the signal does what it does without it.
        let _ = flag::register(SIGXFSZ, Arc::default());
    }

    pub(super) fn listen(again: Again) -> Result<(), NoThread> {
        let heeded = heeded();
        let (tell, told) = sync_channel::<io::Result<()>>(1);
        let wait = move || match Signals::new(heeded) {
            Ok(mut signals) => {
                AT_ONCE.store(false, Ordering::Relaxed);
                let _ = tell.send(Ok(()));
                heed(signals.forever(), again);
            }
            Err(error) => drop(tell.send(Err(error))),
        };
        // Handlers are set by the thread that answers them: without it they would swallow the signals.
        let failed = NoThread::of("signals");
        thread::Builder::new().name("signals".to_owned()).spawn(wait).map_err(&failed)?;
        told.recv().unwrap_or(Ok(())).map_err(failed)
    }

    fn heed(signals: impl Iterator<Item = i32>, again: Again) {
        let mut first: Option<Instant> = None;
        for signal in signals {
            match first {
                None => {
                    first = Some(Instant::now());
                    requested().store(true, Ordering::Relaxed);
                    acknowledge(again);
                }
                Some(first) if is_impatient(signal, first.elapsed(), again) => {
                    std::process::exit(i32::from(EXIT_CODE));
                }
                Some(_) => {}
            }
        }
    }

    /// Whether a signal, so long after the first one, asks for an end at once.
    fn is_impatient(signal: i32, after: Duration, again: Again) -> bool {
        !NEVER_IMPATIENT.contains(&signal) && after >= ONE_EVENT && again == Again::EndsAtOnce
    }

    fn acknowledge(again: Again) {
        match again {
            Again::EndsAtOnce => warn!("ends after this step; again: at once"),
            #[cfg(feature = "mpi")]
            Again::IsTheSame => {
                if matches!(Launch::detect(), Ok(Some(Launch { rank: 0, .. }))) {
                    warn!("all workers end after this step");
                }
            }
        }
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn signals_of_one_event_count_once_and_a_closing_terminal_never_asks_for_more() {
            let says =
                |signal, millis| is_impatient(signal, Duration::from_millis(millis), Again::EndsAtOnce);
            assert!(HEEDED.iter().all(|&signal| !says(signal, 0) && !says(signal, 999)));
            assert!([SIGINT, SIGTERM, SIGUSR1, SIGUSR2].iter().all(|&signal| says(signal, 1000)));
            assert!([SIGHUP, SIGXCPU].iter().all(|&signal| !says(signal, 60_000)));
        }
    }
}

#[cfg(not(unix))]
mod system {
    use std::sync::Arc;

    use signal_hook::consts::SIGINT;
    use signal_hook::flag;

    use super::{Again, EXIT_CODE, NoThread, REQUESTED};

    pub(super) fn listen(_: Again) -> Result<(), NoThread> {
        let failed = NoThread::of("signals");
        // In this order, the first signal only asks, and the second one finds the flag set.
        flag::register_conditional_shutdown(SIGINT, i32::from(EXIT_CODE), Arc::clone(&REQUESTED))
            .and_then(|_| flag::register(SIGINT, Arc::clone(&REQUESTED)))
            .map(drop)
            .map_err(failed)
    }
}
