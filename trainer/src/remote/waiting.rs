//! While an end waits for the other, it looks now and then whether the user wants it to end.

use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::process::interrupt;

/// Between two looks for a wish to end, while this end waits for others to begin.
pub(super) const LOOK_UP: Duration = Duration::from_millis(200);

pub(super) fn is_end_wanted() -> bool {
    interrupt::requested().load(Ordering::Relaxed)
}
