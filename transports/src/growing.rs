//! When to say again that something is still waited for: soon at first, then more and more rarely.

use std::time::{Duration, Instant};

/// The longest time between two lines.
const RARELY: Duration = Duration::from_secs(600);

/// Times at growing intervals: each wait is twice as long as the one before, up to ten minutes.
///
/// # Examples
/// ```
/// use std::time::{Duration, Instant};
///
/// use gradwire_transports::Growing;
///
/// let start = Instant::now();
/// let mut growing = Growing::new(Duration::from_secs(2), start);
/// let told = (0..=100).filter(|&at| growing.is_due(start + Duration::from_secs(at)));
/// assert_eq!(told.collect::<Vec<u64>>(), [2, 6, 14, 30, 62]);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Growing {
    due: Instant,
    pause: Duration,
}

impl Growing {
    /// Due for the first time after `first`.
    pub fn new(first: Duration, now: Instant) -> Self {
        Self { due: now + first, pause: first }
    }

    /// Whether it is time; each time is due once.
    pub fn is_due(&mut self, now: Instant) -> bool {
        if now < self.due {
            return false;
        }
        self.pause = (2 * self.pause).min(RARELY);
        self.due = now + self.pause;
        true
    }
}
