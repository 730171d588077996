//! What ranks on several machines share, whatever connects them.

mod saying;
mod terms;

use std::sync::atomic::Ordering;
use std::time::Duration;

pub(crate) use saying::Saying;
pub(crate) use terms::with_settings;

use crate::process::interrupt;

/// Between two looks for a wish to end, while this end waits for others to begin.
pub(crate) const LOOK_UP: Duration = Duration::from_millis(200);

pub(crate) fn is_end_wanted() -> bool {
    interrupt::requested().load(Ordering::Relaxed)
}

/// A number of seconds from the command line.
pub(crate) fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| format!("'{text}' is not a number of seconds"))?;
    Duration::try_from_secs_f64(seconds).map_err(|error| error.to_string())
}
